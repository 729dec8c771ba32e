"""The parameter counts of the Transformer paper's ablation table, from the shapes alone.

Chapter: Transformer
Source: Vaswani et al. 2017, table 3, last column (millions)
Data: none
Command: python launch.py reproduce table3_parameters
Cost: seconds: nothing is computed, `jax.eval_shape` only traces the initialisation

Judged are differences to the base row, which do not depend on what is counted once (the paper's vocabulary is "about
37,000" joint pieces; one table serves both languages and the output layer). The paper's column does not fit one
vocabulary: from the rows of other widths, d = 1024 asks for about 41,300 pieces and "big" for about 30,800.
`vocabulary_of_*` are these; both rows are held against 37,000 all the same.
"""

from attention_jax.config import Claim, Config, Transformer, replace

SOURCE = "Vaswani et al. 2017, table 3"
VOCABULARY = 37_000
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
    for name in ("C: d 1024", "big"):  # pieces at which our difference would be the paper's
        paper = ROWS[name][1] - ROWS["base"][1] - (counts[name] - counts["base"])
        metrics[f"vocabulary_of_{name}"] = VOCABULARY + paper * 1e6 / 512
    return metrics


CLAIMS = (
    Claim("base row, millions (depends on the vocabulary)", "millions.base", 65, SOURCE),
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
