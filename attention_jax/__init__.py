"""attention_jax: attention is a differentiable lookup - score, mask, normalize, pool.

This is the public API. Names are loaded on first use: importing the package does not import JAX.
Kernel regression, for example, [Q, D], [K, D], [K, V] -> [Q, V]:

>>> import jax.numpy as jnp
>>> from attention_jax import Gaussian, attend
>>> x, y = jnp.arange(4.0)[:, None], jnp.array([[0.0], [0.0], [1.0], [1.0]])
>>> attend(jnp.array([[1.5]]), x, y, score=Gaussian())
Array([[0.5]], dtype=float32)

The packages: `ops` (pure functions), `data`, `models`, `decode`, `train`, `report`, `sweep`, and `tasks`, which joins
them. `tests/test_imports.py` has the table of permitted imports.
"""

import importlib
from typing import TYPE_CHECKING

from attention_jax.errors import Diverged, InputError, Interrupted, lower_is_better

__version__ = "0.1.0"

PUBLIC = {
    "runs.api": ("LoadedRun", "load_run", "train_run"),
    "claims.catalog": ("Experiment", "load_experiment"),
    "decode": ("beam_search", "greedy", "sample"),
    "models.bahdanau": ("Bahdanau",),
    "models.conditional_gru": ("ConditionalGRU",),
    "models.gnmt": ("GNMT",),
    "models.language_model": ("LanguageModel",),
    "models.luong": ("Luong",),
    "models.multihead": ("MultiHeadAttention",),
    "models.ntm": ("NTM",),
    "models.sutskever": ("Sutskever",),
    "models.transformer": ("Transformer",),
    "models.vit": ("ViT",),
    "ops.attention": ("attend", "attention_weights", "masked_softmax"),
    "ops.biases": ("ALiBi", "Bias", "ShawBias", "T5Bias", "TransformerXLBias"),
    "ops.delta": ("chunked_delta", "recurrent_delta"),
    "ops.heads": ("attend_heads",),
    "ops.kernel_regression": ("nadaraya_watson",),
    "ops.lattice": ("expected_monotonic", "hard_attention", "hidden_markov", "monotonic_transitions"),
    "ops.masks": ("Mask", "causal", "dense", "lengths", "segments", "sliding_window", "window"),
    "ops.normalizers": (
        "Budget", "CompactKernel", "Entmax", "Normmax", "ReluPower", "Sigmoid", "Signed", "Softmax", "Sparsemax",
        "StickBreaking", "StudentKernel", "TopK",
    ),
    "ops.normalizer_kinds": ("Normalizer", "Ordered", "Pointwise", "Ratio", "Threshold"),
    "ops.pooling": ("LocalLinear", "LogMixture", "Mean", "Moments", "Pool"),
    "ops.retention": ("chunked_retention", "quadratic_retention", "recurrent_retention", "retnet_decays"),
    "ops.scores": (
        "Additive", "Bilinear", "Boxcar", "Concat", "Constant", "Cosine", "Dot", "Triangular", "Gaussian",
        "NegativeSquaredDistance", "QKNorm", "ScaledDot", "Score", "SoftCap",
    ),
    "ops.blockwise.ring": ("attend_sharded",),
    "ops.trees": ("pytree",),
}  # fmt: skip
"""{module: public names}. The block below repeats them for editors; a test compares the two."""

if TYPE_CHECKING:
    from attention_jax.claims.catalog import Experiment, load_experiment
    from attention_jax.decode import beam_search, greedy, sample
    from attention_jax.models.bahdanau import Bahdanau
    from attention_jax.models.conditional_gru import ConditionalGRU
    from attention_jax.models.gnmt import GNMT
    from attention_jax.models.language_model import LanguageModel
    from attention_jax.models.luong import Luong
    from attention_jax.models.multihead import MultiHeadAttention
    from attention_jax.models.ntm import NTM
    from attention_jax.models.sutskever import Sutskever
    from attention_jax.models.transformer import Transformer
    from attention_jax.models.vit import ViT
    from attention_jax.ops.attention import attend, attention_weights, masked_softmax
    from attention_jax.ops.biases import ALiBi, Bias, ShawBias, T5Bias, TransformerXLBias
    from attention_jax.ops.blockwise.ring import attend_sharded
    from attention_jax.ops.delta import chunked_delta, recurrent_delta
    from attention_jax.ops.heads import attend_heads
    from attention_jax.ops.kernel_regression import nadaraya_watson
    from attention_jax.ops.lattice import expected_monotonic, hard_attention, hidden_markov, monotonic_transitions
    from attention_jax.ops.masks import Mask, causal, dense, lengths, segments, sliding_window, window
    from attention_jax.ops.normalizer_kinds import Normalizer, Ordered, Pointwise, Ratio, Threshold
    from attention_jax.ops.normalizers import (
        Budget,
        CompactKernel,
        Entmax,
        Normmax,
        ReluPower,
        Sigmoid,
        Signed,
        Softmax,
        Sparsemax,
        StickBreaking,
        StudentKernel,
        TopK,
    )
    from attention_jax.ops.pooling import LocalLinear, LogMixture, Mean, Moments, Pool
    from attention_jax.ops.retention import chunked_retention, quadratic_retention, recurrent_retention, retnet_decays
    from attention_jax.ops.scores import (
        Additive,
        Bilinear,
        Boxcar,
        Concat,
        Constant,
        Cosine,
        Dot,
        Gaussian,
        NegativeSquaredDistance,
        QKNorm,
        ScaledDot,
        Score,
        SoftCap,
        Triangular,
    )
    from attention_jax.ops.trees import pytree
    from attention_jax.runs.api import LoadedRun, load_run, train_run

__all__ = sorted(
    ["Diverged", "InputError", "Interrupted", "lower_is_better", *(n for ns in PUBLIC.values() for n in ns)]
)

_HOME = {name: module for module, names in PUBLIC.items() for name in names}


def __getattr__(name: str):
    """A public name, loaded from its module the first time (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module 'attention_jax' has no attribute {name!r}; dir(attention_jax) lists what it has")
    value = getattr(importlib.import_module(f"attention_jax.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
