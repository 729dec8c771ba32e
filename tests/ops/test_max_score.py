"""`return_max_score`: the largest score of each query, from the pass that computes the output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import attend, attend_heads, biases, causal, lengths, normalizers, pooling
from attention_jax.errors import InputError

B, T, H, D = 2, 33, 2, 8
DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (DRAW.standard_normal((B, T, H, D)).astype(np.float32) for _ in range(3))
SLOPE = np.array([0.5, 0.1])


def oracle(scale=1.0):
    """In float64: causal attention with ALiBi and 20 or no keys, the largest score and the log-sum-exp [B, T, H]."""
    at = np.arange(T)
    scores = np.einsum("bthd,bshd->bhts", *np.float64((scale * QUERY, KEY))) / np.sqrt(D)
    scores = scores - SLOPE[:, None, None] * abs(at[:, None] - at)
    allowed = (at <= at[:, None]) & (at < np.array([20, 0])[:, None, None, None])
    scores = np.where(allowed, scores, -np.inf)
    largest = scores.max(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        log = np.where(largest == -np.inf, -np.inf, largest + np.log(np.exp(scores - largest[..., None]).sum(-1)))
    return largest.swapaxes(1, 2), log.swapaxes(1, 2)


CALL = {"bias": biases.ALiBi(jnp.float32(SLOPE)), "mask": causal() & lengths(jnp.array([20, 0]))}


@pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
def test_the_largest_score_against_float64(implementation):
    """With and without the log-sum-exp, in blocks that the length is no multiple of; two compiled programs."""
    call = CALL | {"implementation": implementation, "block_q": 8, "block_k": 8, "return_max_score": True}
    run = jax.jit(
        lambda scale, **options: attend_heads(scale * QUERY, KEY, VALUE, **call, **options),
        static_argnames="return_log_sum_exp",
    )
    for scale in (1.0, 300.0):
        largest, log = oracle(scale)
        out, found_log, actual = run(scale, return_log_sum_exp=True)
        np.testing.assert_allclose(actual, largest, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found_log, log, rtol=1e-5, atol=1e-5)
    alone, actual = run(300.0)
    np.testing.assert_array_equal(alone, out)
    np.testing.assert_allclose(actual, largest, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_gradients_sinks_top_k_and_pools_beside_it(implementation):
    """Derivatives of the output are those without it, it has none itself, and a sink is no score."""
    query, key, value = QUERY[0, :, 0], KEY[0, :, 0], VALUE[0, :, 0]
    call = {"implementation": implementation, "mask": causal(), "block_q": 8, "block_k": 8}
    loss = lambda query, **options: jax.tree.leaves(attend(query, key, value, **call, **options))[0].sum()
    actual = jax.grad(lambda q: loss(q, return_max_score=True))(query)
    np.testing.assert_array_equal(actual, jax.grad(loss)(query))
    assert not jax.grad(lambda q: attend(q, key, value, **call, return_max_score=True)[1].sum())(query).any()
    hessian = jax.jvp(jax.grad(lambda q: loss(q, return_max_score=True)), (query,), (query,))[1]
    np.testing.assert_allclose(hessian, jax.jvp(jax.grad(loss), (query,), (query,))[1], atol=1e-5)
    expected = attend(query, key, value, **call, return_max_score=True)[1]
    for options in (
        {"normalizer": normalizers.Softmax(sink=9.0)},
        {"normalizer": normalizers.TopK(2)},
        {"pool": pooling.Moments()},
        {"dropout": 0.5, "rng": jax.random.key(0)},
    ):
        out, actual = attend(query, key, value, **call, **options, return_max_score=True)
        np.testing.assert_allclose(actual, expected, atol=1e-6)
        np.testing.assert_allclose(out, attend(query, key, value, **call, **options), atol=1e-6)


def test_other_normalizers_have_no_largest_score():
    with pytest.raises(InputError, match="return_max_score=True needs the softmax, got the normalizer Sparsemax"):
        attend(QUERY[0, :, 0], KEY[0, :, 0], VALUE[0, :, 0], normalizer=normalizers.Sparsemax(), return_max_score=True)
