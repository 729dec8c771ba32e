"""The parameter counts of the Transformer paper's ablation table, from the shapes alone.

Chapter: Transformer
Source: Vaswani et al. 2017, table 3, last column (millions)
Data: none
Command: python launch.py reproduce table3_parameters
Cost: 0.17 minutes; nothing is computed, `jax.eval_shape` only traces the initialization

The paper's vocabulary has "about 37,000" joint pieces; one table serves both languages and the output layer. With
37,000 pieces nine of eleven rows are more than 2 % off. The base row has 63.1 million instead of 65; it requires 40,745
pieces, 10 % more than the paper states.

With 40,745 pieces, which are fitted to the base row, the differences of the other rows to it are judged, each between
two numbers that the paper rounds to a million. Nine of ten agree. "big" does not agree, with any vocabulary that the
other rows of another width allow: its 148 million more than the base row require about 30,800 pieces, those of d = 1024
for 41,300 and those of d = 256 for 39,900. Until 2026-11-22 the differences were judged with 37,000 pieces, and d =
1024, with 100.8 million, differed, too; "big" had 151.2. Rows of the base model's width do not depend on the
vocabulary; the three of another width do.
"""

from attention_jax.config import Config, Grid, TransformerConfig, replace

STATED = 37_000
"""Pieces that the paper states ("about")."""
VOCABULARY = 40_745
"""Pieces with which the base row has 65 million."""
ROWS = {  # name -> (changes to the base model, millions in the paper)
    "base": ({}, 65),
    "B: d_k 16": ({"key_dim": 16}, 58),
    "B: d_k 32": ({"key_dim": 32}, 60),
    "C: N 2": ({"num_encoder_layers": 2, "num_decoder_layers": 2}, 36),
    "C: N 4": ({"num_encoder_layers": 4, "num_decoder_layers": 4}, 50),
    "C: N 8": ({"num_encoder_layers": 8, "num_decoder_layers": 8}, 80),
    "C: d 256": ({"hidden_size": 256, "key_dim": 32, "value_dim": 32}, 28),
    "C: d 1024": ({"hidden_size": 1024, "key_dim": 128, "value_dim": 128}, 168),
    "C: d_ff 1024": ({"mlp_dim": 1024}, 53),
    "C: d_ff 4096": ({"mlp_dim": 4096}, 90),
    "big": ({"hidden_size": 1024, "mlp_dim": 4096, "num_heads": 16}, 213),
}
OTHER_WIDTHS = ("C: d 256", "C: d 1024", "big")


def config() -> Config:
    return Config("table3_parameters", None, TransformerConfig(tied_embeddings="all", output_bias=False))


def smoke() -> Config:
    return config()


def count(model: TransformerConfig, vocabulary: int = VOCABULARY) -> int:
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
    """Millions of parameters of every row with either vocabulary, and differences to the base row."""
    models = {name: replace(config.model, **changes) for name, (changes, _) in ROWS.items()}
    counts = {name: count(model) / 1e6 for name, model in models.items()}
    metrics = {f"millions.{name}": n for name, n in counts.items()}
    fewer = {name: (VOCABULARY - STATED) * model.hidden_size / 1e6 for name, model in models.items()}
    metrics |= {f"millions_of_37000.{name}": n - fewer[name] for name, n in counts.items()}
    metrics |= {f"difference.{name}": n - counts["base"] for name, n in counts.items() if name != "base"}
    for name in OTHER_WIDTHS:  # pieces with which our difference would be the paper's
        lacking = ROWS[name][1] - ROWS["base"][1] - (counts[name] - counts["base"])
        metrics[f"vocabulary_of_{name}"] = VOCABULARY + lacking * 1e6 / (
            ROWS[name][0]["hidden_size"] - config.model.hidden_size
        )
    metrics["vocabulary_of_base"] = VOCABULARY + (ROWS["base"][1] - counts["base"]) * 1e6 / config.model.hidden_size
    return metrics


GRIDS = (
    Grid("Millions of parameters with 40,745 pieces", {name: f"millions.{name}" for name in ROWS}, ("",)),
    Grid(
        "Pieces with which a row has the paper's difference to base",
        {name: f"vocabulary_of_{name}" for name in OTHER_WIDTHS},
        ("",),
    ),
)
