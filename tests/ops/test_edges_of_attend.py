"""Calls at the edges of what `attend` takes: numbers near the limits of a type, and arguments that it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import attend, attend_heads, lengths, window
from attention_jax.errors import InputError
from attention_jax.ops.dropout import dropout
from attention_jax.ops.kernel_regression import local_widths
from attention_jax.ops.scores import Boxcar, Cosine, Gaussian, Triangular
from attention_jax.sampling import penalize_repetition, sample, truncate_logits

BLOCKS = {"implementation": "fused", "block_q": 2, "block_k": 4}


def normal(*shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


@pytest.mark.slow
def test_a_score_in_bfloat16_is_normalized_in_float32():
    query, key, value = (normal(16, 8, seed=seed).astype(jnp.bfloat16) for seed in range(3))
    logits = normal(16, 16).astype(jnp.bfloat16)
    score = jax.tree_util.Partial(lambda logits, query, key: logits, logits)
    _, log = attend(query, key, value, score=score, return_log_sum_exp=True, implementation="plain")
    np.testing.assert_allclose(log, jax.nn.logsumexp(logits.astype(jnp.float32), axis=1), rtol=1e-6)


def test_the_cosine_of_short_float16_vectors():
    x = jnp.array([[1e-5, 0.0, 0.0]], jnp.float16)
    assert Cosine(1.0)(x, x) == pytest.approx(1.0, abs=2e-3)


def test_a_window_wider_than_any_sequence_masks_nothing():
    x = normal(8, 2)
    run = jax.jit(lambda x: [attend(x, x, x, mask=window(width), **BLOCKS) for width in (2**31 - 1, 10**12)])
    for actual in run(x):
        np.testing.assert_allclose(actual, jax.jit(attend)(x, x, x), atol=1e-6)


def test_lengths_of_an_unsigned_type():
    x = normal(8, 2)
    actual = jax.jit(lambda n: attend(x, x, x, mask=lengths(n), **BLOCKS))(jnp.uint32(5))
    np.testing.assert_allclose(actual, jax.jit(attend)(x, x, x, mask=lengths(5)), atol=1e-6)


def test_an_empty_batch_has_an_empty_output():
    x = jnp.zeros((0, 8, 2, 4))
    assert jax.jit(attend_heads)(x, x, x).shape == x.shape


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: attend(x, x, x, mask=lambda q, k: (q[:, None] >= k[None]).astype(int)), "booleans.*int32"),
        (lambda x: attend(x, x, x, mask=lambda q, k: jnp.zeros((8, 8))), "booleans.*float32"),
        (lambda x: lengths(5.0), "lengths.*float32"),
        (lambda x: attend(x, x, x, score=Gaussian(local_widths(x, x, 1.0)), **BLOCKS), 'implementation="plain"'),
        (lambda x: truncate_logits(x, top_p=0.0), "top_p"),
        (lambda x: truncate_logits(x, top_k=-1), "top_k.*-1"),
        (lambda x: sample(None, None, jnp.zeros((2, 0), jnp.int32), 3), "prompt"),
        (lambda x: sample(None, None, jnp.zeros((2, 1), jnp.int32), 0), "length"),
    ],
)
def test_impossible_calls_raise_one_line(call, words):
    with pytest.raises(InputError, match=words) as error:
        call(normal(8, 2))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("call", [{"implementation": "plain"}, BLOCKS], ids=["plain", "fused"])
def test_traced_rates_of_dropout_out_of_range(call):
    """A rate below 0 drops nothing and one above 1 everything, as the closest rates within."""
    x, rng = normal(8, 2), jax.random.key(0)
    both = jax.jit(lambda rate: (attend(x, x, x, dropout=rate, rng=rng, **call), dropout(x, rate, rng)))
    for actual, expected in zip(both(-1.0), (attend(x, x, x, implementation="plain"), x)):
        np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert not any(actual.any() for actual in both(2.0))


def test_traced_options_of_sampling_out_of_range():
    """The most probable token stays; a penalty of repetitions that is not above 0 is 1."""
    logits = jnp.log(jnp.array([[0.1, 0.5, 0.15, 0.25]]))
    both = jax.jit(truncate_logits)
    for top_k, top_p in ((-1, 1.0), (-(2**31), 0.5), (0, 0.0), (0, -1.0), (3, -1.0), (-1, 0.0), (0, jnp.nan)):
        assert jnp.isfinite(both(logits, top_k, top_p)).tolist() == [[False, True, False, False]]
    with pytest.raises(InputError, match="top_k.*-1"):
        jax.jit(lambda top_p: truncate_logits(logits, -1, top_p))(0.5)  # known beside a traced number
    for penalty in (0.0, -2.0):
        np.testing.assert_array_equal(jax.jit(penalize_repetition)(logits, logits < 0, penalty), logits)


def test_traced_widths_of_kernels_count_by_their_size():
    x = normal(5, 2)
    for kernel in (Gaussian, Boxcar, Triangular):
        negative = jax.jit(lambda width, kernel=kernel: kernel(width)(x, x))(-1.5)
        np.testing.assert_allclose(negative, kernel(1.5)(x, x), rtol=1e-5)


@pytest.mark.parametrize("call", [{"implementation": "plain"}, BLOCKS], ids=["plain", "fused"])
def test_lowest_bias_masks_key(call):
    """As in additive masks of other libraries; where all keys have it, all have the same weight, as there. One program
    for each implementation."""
    x, allowed = normal(6, 2), np.tri(6, k=-1, dtype=bool)
    lowest = jnp.where(allowed, 0.0, jnp.finfo(jnp.float32).min)
    bias = lambda query, query_positions, key_positions: lowest[query_positions][:, key_positions]

    def loss(x):
        out = attend(x, x, x, bias=bias, **call)
        return out.sum(), out

    gradient, actual = jax.jit(jax.grad(loss, has_aux=True))(x)
    exact = np.asarray(x, np.float64)
    weights = np.exp(exact @ exact.T / 2**0.5) * allowed
    weights[0] = 1
    np.testing.assert_allclose(actual, weights / weights.sum(axis=1, keepdims=True) @ exact, atol=1e-5)
    assert np.isfinite(gradient).all()


@pytest.mark.slow
def test_batch_size_equal_to_length():
    """Four lengths are those of the examples and not of the four queries; equal scores give means of so many keys."""
    x = normal(4, 4, 1, 2)
    actual = attend_heads(jnp.zeros_like(x), x, x, mask=lengths(jnp.arange(1, 5)))
    for n, sequence in enumerate(np.asarray(x)):
        np.testing.assert_allclose(actual[n], np.broadcast_to(sequence[: n + 1].mean(axis=0), (4, 1, 2)), atol=1e-6)


@pytest.mark.slow
def test_blocks_without_jit():
    x = normal(4, 2)
    with jax.disable_jit():
        actual = attend(x, x, x, mask=lengths(3), **BLOCKS)
    exact = np.asarray(x, np.float64)
    weights = np.exp(exact @ exact[:3].T / 2**0.5)
    np.testing.assert_allclose(actual, weights / weights.sum(axis=1, keepdims=True) @ exact[:3], atol=1e-6)
