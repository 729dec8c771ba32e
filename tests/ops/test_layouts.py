"""`attend` under every layout of batch and heads, in every dtype, is what it is in float32 with heads first."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.attention import attend

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 24, 20, 8
TOLERANCE = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
OVER_HEADS_LAST = functools.partial(jax.vmap, in_axes=1, out_axes=1)
LAYOUTS = {  # where batch and heads are in [B, H, T, D], and how attend is lifted over them
    "none": (lambda x: x[0, 0], lambda f: f),
    "batch": (lambda x: x[:, 0], jax.vmap),
    "heads first": (lambda x: x, lambda f: jax.vmap(jax.vmap(f))),
    "heads last": (lambda x: x.swapaxes(1, 2), lambda f: jax.vmap(OVER_HEADS_LAST(f))),
    "heads last, mapped first": (lambda x: x.swapaxes(1, 2), lambda f: jax.vmap(jax.vmap(f), in_axes=2, out_axes=2)),
    "batch last": (lambda x: x.transpose(1, 2, 3, 0), lambda f: jax.vmap(jax.vmap(f, in_axes=2, out_axes=2))),
}
ALONE = [("bfloat16", True), ("float16", False)]  # compiled whole, and op by op


def heads_first(queries=QUERIES, keys=KEYS, width=WIDTH):
    """query, key, value and a cotangent [B, H, T, D], rounded to bfloat16, so that all dtypes begin alike."""
    draw = np.random.default_rng(0).standard_normal
    shapes = [(BATCH, HEADS, rows, width) for rows in (queries, keys, keys, queries)]
    return [jnp.asarray(draw(shape).astype(np.float32)).astype(jnp.bfloat16) for shape in shapes]


def of_layout(layout, implementation, *arrays):
    """What `attend` gives, and its gradients, for arrays [B, H, T, D] brought into a layout."""
    arrange, lift = LAYOUTS[layout]
    *inputs, bar = (arrange(x) for x in arrays)
    pooled, pull = jax.vjp(lift(functools.partial(attend, implementation=implementation)), *inputs)
    return pooled, *pull(bar)


@functools.cache
def exact(*sizes):
    """Of `heads_first(*sizes)`, float32, plain and heads first."""
    arrays = [x.astype(jnp.float32) for x in heads_first(*sizes)]
    return [np.asarray(x) for x in jax.jit(functools.partial(of_layout, "heads first", "plain"))(*arrays)]


def assert_close(actual, heads_first, layout, dtype):
    for x, y in zip(actual, heads_first, strict=True):
        y = LAYOUTS[layout][0](y)
        assert x.dtype == dtype
        np.testing.assert_allclose(x.astype(jnp.float32), y, rtol=0, atol=TOLERANCE[dtype] * np.abs(y).max())


ALL = [(i, dtype) for i in ("plain", "fused") for dtype in TOLERANCE]
EASY = [("plain", "float16"), ("fused", "bfloat16")]


@pytest.mark.parametrize(
    ("implementation", "dtype"), [c if c in EASY else pytest.param(*c, marks=pytest.mark.slow) for c in ALL]
)
def test_all_layouts_in_one_program(implementation, dtype):
    arrays = [x.astype(dtype) for x in heads_first()]
    every = jax.jit(lambda *arrays: {name: of_layout(name, implementation, *arrays) for name in LAYOUTS})
    for layout, actual in every(*arrays).items():
        assert_close(actual, exact(), layout, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype, jitted", ALONE)
def test_each_layout_alone(layout, dtype, jitted):
    """128 x 128 and features of 32, where XLA chooses among more kernels; the implementation that is the default."""
    sizes = 128, 128, 32
    run = functools.partial(of_layout, layout, None)
    actual = (jax.jit(run) if jitted else run)(*(x.astype(dtype) for x in heads_first(*sizes)))
    assert_close(actual, exact(*sizes), layout, dtype)
