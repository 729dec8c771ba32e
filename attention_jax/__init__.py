"""attention_jax: attention is a differentiable lookup - score, mask, normalize, pool.

This is the public API. Names are loaded on first use: importing the package does not import JAX.
Kernel regression, for example, [Q, D], [K, D], [K, V] -> [Q, V]:

>>> import jax.numpy as jnp
>>> from attention_jax import attend, scores
>>> x, y = jnp.arange(4.0)[:, None], jnp.array([[0.0], [0.0], [1.0], [1.0]])
>>> attend(jnp.array([[1.5]]), x, y, score=scores.Gaussian())
Array([[0.5]], dtype=float32)

What `attend` is made of is in the namespaces `scores`, `masks`, `biases`, `normalizers` and `pooling`, and the Flax
modules are in `models`; further functions of the papers (retention, the delta rule, latent alignments) are modules of
`attention_jax.ops`. docs/design.md has the tree of the package, `tests/test_imports.py` the table of permitted imports.
"""

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from attention_jax.errors import Diverged, InputError, Interrupted

__version__ = "0.1.0"

if TYPE_CHECKING:  # for editors and type checkers; tests/test_public_api.py compares it with HOMES
    from attention_jax import config, interpret, models
    from attention_jax.catalog import Experiment, load_experiment
    from attention_jax.decode import beam_search, greedy
    from attention_jax.ops import biases, masks, normalizers, pooling, scores
    from attention_jax.ops.attention import attend, attention_weights, masked_softmax
    from attention_jax.ops.blockwise.ring import attend_sharded
    from attention_jax.ops.dispatch import explain
    from attention_jax.ops.dropin import attention_fn, dot_product_attention
    from attention_jax.ops.heads import attend_heads
    from attention_jax.ops.kernel_regression import nadaraya_watson
    from attention_jax.ops.masks import causal, dense, lengths, segments, sliding_window, window
    from attention_jax.ops.trees import pytree
    from attention_jax.pretrained.interface import Pretrained
    from attention_jax.pretrained.load import load_pretrained
    from attention_jax.runs.api import LoadedRun, export_run, import_run, load_run, train_run
    from attention_jax.sampling import generate, sample


def lazy_attributes(package: str, homes: dict[str, str]) -> tuple[Callable, Callable]:
    """Return `__getattr__` and `__dir__` (PEP 562) of a package that imports the names in `homes`, {name: module}, on
    first use. A public submodule maps to its own path, such as {"scores": "attention_jax.ops.scores"}."""

    def load(name: str):
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; dir({package}) lists what it has")
        home = importlib.import_module(homes[name])
        value = home if homes[name].endswith(f".{name}") else getattr(home, name)
        setattr(sys.modules[package], name, value)
        return value

    return load, lambda: sorted({*vars(sys.modules[package]), *homes})


HOMES = {
    "config": "attention_jax.config",
    "interpret": "attention_jax.interpret",
    "models": "attention_jax.models",
    "Experiment": "attention_jax.catalog",
    "load_experiment": "attention_jax.catalog",
    "beam_search": "attention_jax.decode",
    "greedy": "attention_jax.decode",
    "biases": "attention_jax.ops.biases",
    "masks": "attention_jax.ops.masks",
    "normalizers": "attention_jax.ops.normalizers",
    "pooling": "attention_jax.ops.pooling",
    "scores": "attention_jax.ops.scores",
    "attend": "attention_jax.ops.attention",
    "attention_weights": "attention_jax.ops.attention",
    "masked_softmax": "attention_jax.ops.attention",
    "attend_sharded": "attention_jax.ops.blockwise.ring",
    "explain": "attention_jax.ops.dispatch",
    "attention_fn": "attention_jax.ops.dropin",
    "dot_product_attention": "attention_jax.ops.dropin",
    "attend_heads": "attention_jax.ops.heads",
    "nadaraya_watson": "attention_jax.ops.kernel_regression",
    "causal": "attention_jax.ops.masks",
    "dense": "attention_jax.ops.masks",
    "lengths": "attention_jax.ops.masks",
    "segments": "attention_jax.ops.masks",
    "sliding_window": "attention_jax.ops.masks",
    "window": "attention_jax.ops.masks",
    "pytree": "attention_jax.ops.trees",
    "LoadedRun": "attention_jax.runs.api",
    "export_run": "attention_jax.runs.api",
    "import_run": "attention_jax.runs.api",
    "load_run": "attention_jax.runs.api",
    "train_run": "attention_jax.runs.api",
    "generate": "attention_jax.sampling",
    "sample": "attention_jax.sampling",
    "Pretrained": "attention_jax.pretrained.interface",
    "load_pretrained": "attention_jax.pretrained.load",
}
"""{public name: the module it is imported from}"""
__getattr__, __dir__ = lazy_attributes(__name__, HOMES)
__all__ = ["Diverged", "InputError", "Interrupted", *HOMES]
