"""The scalable softmax as the softmax of another call: the count of keys, its factor in any type, and what computes it.

The table of tests/ops/cases.py has it with every score, bias and mask, against the formula."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import attend, attend_heads, causal, lengths, segments, sliding_window, window
from attention_jax.errors import InputError
from attention_jax.ops.attention import attention_weights
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.blockwise.score_blocks import count_keys
from attention_jax.ops.dispatch import explain
from attention_jax.ops.kernels.terms import terms_of
from attention_jax.ops.normalizers import ScalableSoftmax, Softmax, TopK
from attention_jax.ops.scaled_logits import _in_parts, _split, as_softmax
from attention_jax.ops.scores import Additive, Boxcar, Cosine, Dot, Gaussian, QKNorm, ScaledDot

X = np.random.default_rng(0).normal(size=(3, 12, 4)).astype(np.float32)
EXTRAS = ("return_log_sum_exp", "return_statistics")
run_attend, run_weights = jax.jit(attend, static_argnames=EXTRAS), jax.jit(attention_weights)


def test_weights_are_powers_of_the_number_of_keys():
    """The first of scores log 1, log 2 and log 4 / (2 log 3) with s = 2: 1, 2 and 4 of 7."""
    query, key = np.ones((1, 1), np.float32), np.log(np.float32([[1], [2], [4]])) / (2 * math.log(3))
    weights = run_weights(query, key, score=Dot(), normalizer=ScalableSoftmax(2.0))
    np.testing.assert_allclose(weights, [[1 / 7, 2 / 7, 4 / 7]], rtol=1e-6)


def test_queries_of_one_key_and_of_none():
    """log 1 = 0, and a query without a key has weights and gradients of zero, also beside NaN."""
    query, key, value = X.copy()
    mask = np.outer(np.arange(12) == 1, np.arange(12) == 5)
    key[0] = np.nan
    for bias in (None, ALiBi(0.5)):
        run = lambda q, k, v, s, bias=bias: attend(q, k, v, normalizer=ScalableSoftmax(s), mask=mask, bias=bias)
        out, bars = jax.jit(lambda *x, run=run: (run(*x), jax.grad(lambda *x: run(*x).sum(), range(4))(*x)))(
            query, key, value, np.float32(0.7)
        )
        np.testing.assert_array_equal(out, np.zeros((12, 4)) + np.eye(12)[1][:, None] * X[2][5])
        assert not bars[0].any() and not bars[1].any() and bars[3] == 0
        np.testing.assert_array_equal(bars[2], np.zeros((12, 4)) + np.eye(12)[5][:, None])


def test_counts_in_chunks_are_those_of_the_matrix():
    """More pairs than a chunk has, whose last begins early; the queries begin at position 100."""
    queries, keys = 1500, 1100
    positions = 100 + np.arange(queries, dtype=np.int32), np.arange(keys, dtype=np.int32)
    ids = np.sort(np.random.default_rng(0).integers(0, 5, 1600)).astype(np.int32)
    for mask in (causal(), lengths(700), sliding_window(30), window(9) | lengths(3), segments(ids, ids[:keys])):
        matrix, counts = jax.jit(lambda mask: (mask(*positions), count_keys(mask, 100, queries, keys)))(mask)
        np.testing.assert_array_equal(counts, np.asarray(matrix).sum(axis=1))
    assert count_keys(None, 0, 2, keys).tolist() == [keys, keys]


def test_a_key_of_score_minus_infinity_counts():
    query, bias = np.float32([[1.0]]), np.float32([[0.0, 1.0, -np.inf]])
    weights = run_weights(query, np.zeros_like(bias.T), bias=bias, normalizer=ScalableSoftmax(2.0))
    np.testing.assert_allclose(weights, [[1 / 10, 9 / 10, 0]], rtol=1e-6)  # 3^0 and 3^2
    for scale in (-1.0, 0.0):
        call = {"score": Boxcar(1.0), "normalizer": ScalableSoftmax(scale)}
        boxcar = run_weights(0 * query, np.float32([[0.0], [5.0]]), **call)
        assert boxcar.tolist() == [[1.0, 0.0]]


def test_other_keys_than_those_of_the_mask_do_not_count():
    """Padding and packing: every sequence has the numbers that it has alone, in every head its own s."""
    query, key, value = X
    normalizer = ScalableSoftmax(np.float32(0.6))
    call = {"normalizer": normalizer, "bias": ALiBi(0.2)}
    padded = run_attend(query, key, value, mask=lengths(5), **call)
    np.testing.assert_allclose(padded, run_attend(query, key[:5], value[:5], **call), atol=1e-6)
    ids = np.repeat(np.int32([0, 1]), [5, 7])
    packed = run_attend(query, key, value, mask=causal() & segments(ids, ids), **call)
    for rows in (slice(5), slice(5, 12)):
        alone = run_attend(query[rows], key[rows], value[rows], mask=causal(), **call)
        np.testing.assert_allclose(packed[rows], alone, atol=1e-6)
    heads = [np.stack([x, x[::-1]], axis=1)[None] for x in X]
    both = jax.jit(attend_heads)(*heads, mask=causal(), normalizer=ScalableSoftmax(np.float32([0.6, 1.2])))
    second = run_attend(query[::-1], key[::-1], value[::-1], mask=causal(), normalizer=ScalableSoftmax(1.2))
    np.testing.assert_allclose(both[0, :, 1], second, atol=1e-6)


@pytest.mark.parametrize("mask", [causal(), sliding_window(4), causal() & lengths(7)])
def test_one_query_at_its_offset_is_that_of_the_whole(mask):
    query, key, value = (jnp.asarray(x) for x in X)
    call = {"mask": mask, "normalizer": ScalableSoftmax(0.5), "bias": ALiBi(0.3)}
    whole = run_attend(query, key, value, **call)
    step = jax.jit(lambda i: attend(query[i][None], key, value, query_offset=i, **call)[0])
    np.testing.assert_allclose([step(i) for i in range(12)], whole, atol=1e-6)


def test_the_factor_has_all_its_digits_in_half_precision():
    factor = np.random.default_rng(0).uniform(0.1, 9, 200).astype(np.float32)
    for dtype, tolerance in ((jnp.bfloat16, 1e-7), (jnp.float16, 3e-6), (jnp.float32, 0)):

        @jax.jit
        def read(factor, dtype=dtype):
            joined = jnp.concatenate([jnp.ones((200, 2), dtype), _in_parts(factor, dtype)], axis=1)
            assert joined.dtype == dtype
            return _split(joined, joined.shape[1] - 2)[1]

        np.testing.assert_allclose(read(factor), factor, rtol=tolerance)
        np.testing.assert_array_equal(jax.jit(jax.grad(lambda factor, read=read: read(factor).sum()))(factor), 1.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"bias": ALiBi(0.1)},
        pytest.param({"score": Cosine(4.0)}, marks=pytest.mark.slow),
        pytest.param({"score": Gaussian(2.0)}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_half_precision_rounds_the_queries_once(rules):
    """Beside the float32 of the same rounded arrays, whose logits are multiplied by up to 5."""
    arrays = [np.random.default_rng(i).normal(size=(128, 16)).astype(jnp.bfloat16) for i in range(3)]

    @jax.jit
    def run(*arrays):
        out = lambda s: attend(*arrays, mask=causal(), normalizer=ScalableSoftmax(s), **rules).astype(jnp.float32)
        return out(1.0), jax.value_and_grad(lambda s: out(s).var())(1.0)

    (out, both), (exact, both_exact) = run(*arrays), run(*(x.astype(np.float32) for x in arrays))
    assert np.linalg.norm(out - exact) < 2**-7 * np.linalg.norm(exact)
    np.testing.assert_allclose(both, both_exact, rtol=2e-2)


@pytest.mark.slow
def test_terms_of_products_are_the_scaled_logits():
    """Of any score that is a product of features alone; distances are not."""
    query, key = jnp.asarray(X[0]), jnp.asarray(X[1])
    for score in (Cosine(3.0), QKNorm(jnp.full(4, 1.5), jnp.ones(4)), Dot()):
        call = query, score, ALiBi(0.1), causal(), ScalableSoftmax(0.5), 0, 12

        @jax.jit
        def logits(call=call):
            scaled_query, scaled, *_ = as_softmax(*call)
            [terms] = terms_of(scaled_query, key, scaled, None, None)
            return terms.scale * terms.query @ terms.key.T, scaled(scaled_query, key), call[1](query, key)

        *actual, unscaled = logits()
        expected = 0.5 * np.log(1 + np.arange(12))[:, None] * unscaled
        for scaled in actual:
            np.testing.assert_allclose(scaled, expected, atol=1e-5)
    wide = jnp.ones((12, 8))
    scaled_query, scaled, *_ = as_softmax(wide, Gaussian(1.0), None, None, ScalableSoftmax(0.5), 0, 12)
    assert terms_of(scaled_query, wide, scaled, None, None) is None


def test_kernels_take_it_as_they_take_the_softmax(cudnn_installed):
    """A dot product stays one; beside a bias, or of a score that is no product, it is computed block by block."""
    x = jax.ShapeDtypeStruct((1024, 64), jnp.bfloat16)
    for rules, chosen in (
        ({}, ("cudnn", "flash")),
        ({"score": Additive.init(jax.random.key(0), 64, 64, 8)}, ("fused", "fused")),
        ({"bias": ALiBi(0.1)}, ("fused", "fused")),
    ):
        call = rules | {"mask": causal(), "normalizer": ScalableSoftmax(0.2)}
        [choices] = explain(lambda x, call=call: attend(x, x, x, **call), x)
        assert (choices["cuda"].implementation, choices["tpu"].implementation) == chosen


def test_log_sum_exp_and_statistics_are_those_of_the_scaled_logits():
    query, key, value = X
    extras = {"mask": causal()} | dict.fromkeys(EXTRAS, True)
    outputs = run_attend(query, key, value, normalizer=ScalableSoftmax(0.5), **extras)
    query = query * (0.5 * np.log(1 + np.arange(12))).astype(np.float32)[:, None]
    jax.tree.map(lambda *x: np.testing.assert_allclose(*x, atol=1e-6), outputs, run_attend(query, key, value, **extras))


def test_any_other_normalizer_keeps_its_call():
    query = jnp.asarray(X[0])
    call = as_softmax(query, ScaledDot(), None, causal(), Softmax(), 0, 12)
    assert call[0] is query and call[1:] == (ScaledDot(), None, Softmax())


def test_what_it_cannot_do_is_one_line():
    x = jnp.asarray(X[0])
    with pytest.raises(InputError, match=r"TopK needs .* ScalableSoftmax.*write TopK\(k\)"):
        TopK(3, ScalableSoftmax(0.4))
    for name in ("cudnn", "flash", "linear", "kernel"):
        with pytest.raises(InputError, match=f'implementation="{name}" ') as error:
            attend(x, x, x, bias=ALiBi(0.1), normalizer=ScalableSoftmax(0.4), implementation=name)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="the score <lambda> must return logits"):
        attend(x, x, x, score=lambda query, key: query.sum(axis=1), normalizer=ScalableSoftmax(0.4))
    with pytest.raises(InputError, match="the bias .* must return an array that broadcasts"):
        attend(x, x, x, bias=lambda query, i, j: jnp.zeros((5, 3)), normalizer=ScalableSoftmax(0.4))
    for name in ("plain", "fused"):
        with pytest.raises(InputError, match="the score <lambda> must return real logits, got complex64"):
            attend(x, x, x, score=lambda query, key: (query @ key.T).astype(complex), implementation=name)
        with pytest.raises(InputError, match="the bias <lambda> must return real logits, got complex64"):
            attend(x, x, x, bias=lambda query, i, j: (i[:, None] * j[None]).astype(complex), implementation=name)
