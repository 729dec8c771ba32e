"""Scores by name, with their weights owned by a module."""

import flax.linen as nn

from attention_jax import InputError
from attention_jax.ops import scores

SCORES = {
    "dot": scores.Dot,
    "scaled_dot": scores.ScaledDot,
    "general": scores.Bilinear,
    "concat": scores.Concat,
    "additive": scores.Additive,
    "cosine": scores.Cosine,
    "mean": scores.Constant,
}
"""Names used in configurations. "mean" gives every key the same weight."""
SAME_WIDTH = ("dot", "scaled_dot", "cosine")


def make_score(module: nn.Module, name: str, query_width: int, key_width: int, hidden: int) -> scores.Score:
    """The score called `name`; what it has of weights becomes the parameter "score" of `module` (called in its setup)."""
    if name not in SCORES:
        raise InputError(f"score must be one of {', '.join(SCORES)}, got {name!r}")
    if name in SAME_WIDTH and query_width != key_width:
        raise InputError(f"score {name} compares vectors of one width, got queries of {query_width} and keys of {key_width}: use general")
    kind = SCORES[name]
    if not hasattr(kind, "init"):
        return kind()
    return kind(**module.param("score", lambda rng: dict(vars(kind.init(rng, query_width, key_width, hidden)))))
