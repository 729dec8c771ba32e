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

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from attention_jax.errors import Diverged, InputError, Interrupted

__version__ = "0.1.0"

if TYPE_CHECKING:  # read by editors and by `lazily`, and never executed: these modules import JAX
    from attention_jax import config, interpret, models
    from attention_jax.claims.catalog import Experiment, load_experiment
    from attention_jax.decode import beam_search, generate, greedy, sample
    from attention_jax.ops import biases, masks, normalizers, pooling, scores
    from attention_jax.ops.attention import attend, attention_weights, masked_softmax
    from attention_jax.ops.blockwise.ring import attend_sharded
    from attention_jax.ops.dispatch import explain
    from attention_jax.ops.dropin import attention_fn, dot_product_attention
    from attention_jax.ops.heads import attend_heads
    from attention_jax.ops.kernel_regression import nadaraya_watson
    from attention_jax.ops.masks import causal, dense, lengths, segments, sliding_window, window
    from attention_jax.ops.trees import pytree
    from attention_jax.runs.api import LoadedRun, load_run, train_run
    from attention_jax.runs.pretrained import Pretrained, load_pretrained


def lazily(module: str) -> tuple[dict[str, str], Callable, Callable]:
    """The names that `if TYPE_CHECKING` of a package imports, and its `__getattr__` and `__dir__` (PEP 562), by which
    a name is imported when it is first used: {name: module}, `__getattr__`, `__dir__`.
    """
    package = sys.modules[module]
    blocks = [node for node in ast.parse(inspect.getsource(package)).body if isinstance(node, ast.If)]
    homes = {alias.name: line.module for line in blocks[0].body for alias in line.names}

    def load(name: str):
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}; dir({module}) lists what it has")
        home = homes[name]
        is_module = home in ("attention_jax", "attention_jax.ops")
        value = importlib.import_module(f"{home}.{name}") if is_module else getattr(importlib.import_module(home), name)
        setattr(package, name, value)
        return value

    return homes, load, lambda: sorted({*vars(package), *homes})


HOMES, __getattr__, __dir__ = lazily(__name__)
"""{public name: the module it is imported from}"""
__all__ = ["Diverged", "InputError", "Interrupted", *HOMES]
