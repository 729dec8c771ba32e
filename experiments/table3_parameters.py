"""The parameter counts of the Transformer paper's ablation table, from the shapes alone.

Chapter: Transformer
Source: Vaswani et al. 2017, table 3, last column (millions)
Data: none
Command: python launch.py reproduce table3_parameters
Cost: seconds: nothing is computed, `jax.eval_shape` only traces the initialisation

The paper's vocabulary is "about 37,000" joint pieces; one table serves both languages and the output layer. What it is
exactly, the base row tells: its 65 million ask for 40,745 pieces (37,000 make 63.1 million). With these the other rows
are counted, and their differences to the base row are judged, two numbers that the paper rounds to a million. Nine of
ten agree. "big" does not, with any vocabulary that the other rows of another width allow: its 148 million more than the
base row ask for about 30,800 pieces, those of d = 1024 for 41,300 and of d = 256 for 39,900. (Until 2026-11-22 all was
held against 37,000 pieces: d = 1024, with 100.8 million, was missed too, and "big" had 151.2.)
"""

from attention_jax.config import Claim, Config, Transformer, replace

SOURCE = "Vaswani et al. 2017, table 3"
VOCABULARY = 40_745
"""Pieces with which the base row has 65 million."""
TOLERANCE = 1.2
"""Millions: two numbers rounded to a million, and a fifth."""

ROWS = {  # name -> (changes to the base model, millions in the paper)
    "base": ({}, 65),
    "B: d_k 16": ({"key_width": 16}, 58),
    "B: d_k 32": ({"key_width": 32}, 60),
    "C: N 2": ({"encoder_layers": 2, "decoder_layers": 2}, 36),
    "C: N 4": ({"encoder_layers": 4, "decoder_layers": 4}, 50),
    "C: N 8": ({"encoder_layers": 8, "decoder_layers": 8}, 80),
    "C: d 256": ({"width": 256, "key_width": 32, "value_width": 32}, 28),
    "C: d 1024": ({"width": 1024, "key_width": 128, "value_width": 128}, 168),
    "C: d_ff 1024": ({"ffn": 1024}, 53),
    "C: d_ff 4096": ({"ffn": 4096}, 90),
    "big": ({"width": 1024, "ffn": 4096, "heads": 16}, 213),
}
OTHER_WIDTHS = ("C: d 256", "C: d 1024", "big")


def config() -> Config:
    return Config("table3_parameters", None, Transformer(tied="all", output_bias=False))


def smoke() -> Config:
    return config()


def count(model: Transformer, vocabulary: int = VOCABULARY) -> int:
    """How many parameters `model` has."""
    import jax
    import jax.numpy as jnp

    from attention_jax.models import transformer

    token = jnp.zeros((1, 1), jnp.int32)
    module = transformer.Transformer(model, vocabulary, vocabulary)
    return transformer.count_parameters(
        jax.eval_shape(module.init, jax.random.key(0), token, jnp.ones(1, jnp.int32), token)
    )


def study(config: Config, directory) -> dict:
    """Millions of parameters, and differences to the base row, of every row."""
    counts = {name: count(replace(config.model, **changes)) / 1e6 for name, (changes, _) in ROWS.items()}
    metrics = {f"millions.{name}": n for name, n in counts.items()}
    metrics |= {f"difference.{name}": n - counts["base"] for name, n in counts.items() if name != "base"}
    for name in OTHER_WIDTHS:  # pieces with which our difference would be the paper's
        lacking = ROWS[name][1] - ROWS["base"][1] - (counts[name] - counts["base"])
        metrics[f"vocabulary_of_{name}"] = VOCABULARY + lacking * 1e6 / (ROWS[name][0]["width"] - config.model.width)
    metrics["vocabulary_of_base"] = VOCABULARY + (ROWS["base"][1] - counts["base"]) * 1e6 / config.model.width
    return metrics


CLAIMS = (
    Claim("pieces with which the base row has its 65 millions", "vocabulary_of_base", 37_000, f"{SOURCE}: about"),
    *(
        Claim(
            f"{name}: difference to base, millions",
            f"difference.{name}",
            m - 65,
            SOURCE,
            at_least=m - 65 - TOLERANCE,
            at_most=m - 65 + TOLERANCE,
        )
        for name, (_, m) in ROWS.items()
        if name != "base"
    ),
)
