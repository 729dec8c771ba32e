"""`attend_heads` beside `attend`: the same arguments, and every head as one call."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.blockwise.ring import attend_sharded
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import lengths
from attention_jax.ops.pooling import LocalLinear, Moments
from attention_jax.ops.scores import Gaussian

B, T, S, H, G, D = 2, 7, 9, 4, 2, 5
DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (DRAW.standard_normal(n).astype(np.float32) for n in ((B, T, H, D), (B, S, G, D), (B, S, G, 3)))


@pytest.mark.slow
def test_heads_pool_and_block_as_one_head():
    """`pool`, whose leaves lead with the heads, `block_q` and `block_k` of `attend_heads`."""
    ridges = jnp.array([1e-3, 0.1, 1.0, 10.0])
    call = {"score": Gaussian(2.0), "mask": lengths(8), "implementation": "plain"}
    heads = jax.jit(lambda ridges: attend_heads(QUERY, KEY, VALUE, pool=LocalLinear(ridges), **call))
    run_head = jax.jit(lambda q, k, v, ridge: attend(q, k, v, pool=LocalLinear(ridge), **call))
    actual = heads(ridges)
    for b in range(B):
        for h in range(H):
            expected = run_head(QUERY[b, :, h], KEY[b, :, h // 2], VALUE[b, :, h // 2], ridges[h])
            np.testing.assert_allclose(actual[b, :, h], expected, atol=1e-4)
    assert jax.eval_shape(lambda: attend_heads(QUERY, KEY, VALUE, pool=Moments())).shape == (B, T, H, 6)
    for block in ("block_q", "block_k"):
        with pytest.raises(InputError, match="at least 1"):
            attend_heads(QUERY, KEY, VALUE, **{block: 0})


def test_arguments_have_one_name_order_and_default_everywhere():
    expected = inspect.signature(attend).parameters
    assert list(inspect.signature(attend_heads).parameters) == list(expected)
    for function in (attend_heads, attention_weights, attend_sharded):
        actual = {n: p for n, p in inspect.signature(function).parameters.items() if n != "axis_name"}
        assert list(actual) == [name for name in expected if name in actual]
        assert all(p.default is expected[n].default or p.default == expected[n].default for n, p in actual.items())
        assert all(str(actual[n].annotation) == str(expected[n].annotation) for n in ("dropout", "rng") if n in actual)
