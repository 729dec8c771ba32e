"""Blockwise attention where numbers are not finite, very large or very close; under JAX's transformations; and its
memory. What it computes is in tests/ops/test_attend_properties.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.ops import normalizers, scores
from attention_jax.ops.attention import attend
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal
from tests.ops.cases import SCORES
from tests.ops.test_attend_properties import AS_USERS_DO

WIDTH, VALUE_WIDTH = 4, 3
KEY = jax.random.key(0)


def arrays(queries, keys, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return [draw(shape).astype(np.float32) for shape in ((queries, WIDTH), (keys, WIDTH), (keys, VALUE_WIDTH))]


def with_gradients(implementation, *case, **call):
    """The output of a case (query, key, value), and the gradients of the sum of its sine."""

    def loss(*case):
        out = attend(*case, implementation=implementation, block_q=3, block_k=4, **call)
        return jnp.sin(out).sum(), out

    gradients, out = jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))(*case)
    return out, *gradients


KINDS = [normalizers.Softmax(), normalizers.Sigmoid(), normalizers.Sparsemax(), normalizers.StickBreaking()]


@pytest.mark.parametrize("implementation", slow_but(["fused"], ["plain", "fused"]))
@pytest.mark.parametrize("normalizer", KINDS, ids=lambda n: type(n).__name__)
def test_attended_nan_reaches_output(normalizer, implementation):
    """Of the queries that may attend to it alone, and never a row of zeros, the output of a query without any key."""
    call = {"mask": causal(), "normalizer": normalizer, "implementation": implementation, "block_q": 3, "block_k": 4}
    run = jax.jit(lambda *x: attend(*x, **call))
    query, key, value = arrays(7, 9)
    key[2] = np.nan
    assert np.isnan(run(query, key, value)).all(axis=1).tolist() == [q >= 2 for q in range(7)]
    query, key, value = arrays(7, 9)
    query[3] = np.nan
    assert np.isnan(run(query, key, value)).all(axis=1).tolist() == [q == 3 for q in range(7)]


@pytest.mark.parametrize("score", slow_but(["ScaledDot"], ["ScaledDot", "Cosine", "Gaussian"]))
def test_scores_with_large_rounding_errors(score):
    """A score is one number: a multiplication that XLA contracts with the difference to the largest score would make
    that difference hundreds where it is zero. Width 8: its root is no power of two, so that the product rounds."""
    draw = np.random.default_rng(0).standard_normal
    query, key, value = (jnp.asarray(draw(shape), jnp.float32) for shape in ((4, 8), (9, 8), (9, 3)))
    rule = {"ScaledDot": scores.ScaledDot(), "Cosine": scores.Cosine(1e10), "Gaussian": scores.Gaussian(1e-5)}[score]
    query = query * (1e10 if score == "ScaledDot" else 1.0)
    best = value[np.argmax(rule(query, key), axis=1)]

    def pool_and_output(query, key, value):
        out = attend(query, key, value, score=rule, implementation="fused")
        return out.sum(), out

    (_, out), gradients = jax.jit(
        jax.value_and_grad(pool_and_output, (0, 1, 2), has_aux=True), compiler_options=AS_USERS_DO
    )(query, key, value)
    np.testing.assert_array_equal(out, best)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[2].sum(axis=0), [4, 4, 4])  # each query has one key


def test_finite_arrays_are_not_cleaned_under_nested_vmaps():
    """The pass over the mask stays in a branch that finite arrays do not take."""
    x = jax.ShapeDtypeStruct((2, 32, 3, WIDTH), jnp.float32)
    run = lambda mask: lambda x: attend_heads(x, x, x, mask=mask, implementation="fused")
    branches = lambda mask: jax.jit(run(mask)).lower(x).as_text().count("stablehlo.case")
    assert branches(causal()) == branches(None) + 1


def test_very_large_and_all_equal_scores():
    query, key, value = arrays(7, 9)
    case, call = (query * 1e2, key * 1e2, value), {"score": scores.Dot(), "mask": causal()}
    assert (np.abs(query @ key.T).max() * 1e4) > 1e4
    for actual, expected in zip(with_gradients("fused", *case, **call), with_gradients("plain", *case, **call)):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)
    equal = with_gradients("fused", query, np.ones_like(key), value)[0]
    np.testing.assert_allclose(equal, np.broadcast_to(value.mean(axis=0), equal.shape), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_composes_with_jax_transformations_without_recompiling():
    query, key, value = (jnp.asarray(x) for x in arrays(7, 9))
    heads = jax.vmap(lambda rng: scores.Additive.init(rng, WIDTH, WIDTH, 6))(jax.random.split(KEY, 2))
    traces = []

    def loss(implementation, heads, query):
        traces.append(implementation)
        attend_head = lambda score, q: attend(
            q, key, value, score=score, mask=causal(), implementation=implementation, block_q=4, block_k=4
        )
        layer = jax.checkpoint(
            lambda q: jnp.pad(jax.vmap(attend_head, (0, None))(heads, q).mean(axis=0), ((0, 0), (0, 1)))
        )
        return jnp.sin(jax.lax.scan(lambda q, _: (layer(q), None), query, None, length=3)[0]).sum()

    step = {i: jax.jit(jax.grad(lambda heads, q, i=i: loss(i, heads, q))) for i in ("plain", "fused")}
    for seed in (0, 1):
        q = query + seed
        for actual, expected in zip(
            jax.tree.leaves(step["fused"](heads, q)), jax.tree.leaves(step["plain"](heads, q)), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert traces.count("fused") == 1 and step["fused"]._cache_size() == 1
    mapped = jax.pmap(jax.grad(lambda heads, q: loss("fused", heads, q)), in_axes=(None, 0))(heads, query[None])
    np.testing.assert_allclose(mapped.vector[0], step["plain"](heads, query).vector, rtol=1e-4, atol=1e-5)


def temporary(score, implementation, length, blocks=(None, None)):
    """Bytes of temporary memory that XLA plans for the gradient of one head."""
    loss = lambda q, k, v: attend(
        q, k, v, score=score, implementation=implementation, block_q=blocks[0], block_k=blocks[1]
    ).sum()
    shapes = [jax.ShapeDtypeStruct((length, width), jnp.float32) for width in (WIDTH, WIDTH, VALUE_WIDTH)]
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "score",
    [
        score if score in ("ScaledDot", "Additive", "Cosine") else pytest.param(score, marks=pytest.mark.slow)
        for score in SCORES
    ],
)
def test_no_gradient_materializes_the_matrix(score):
    """At 16,384 a matrix of one bit a pair would take 32 MiB; blocks of 64 x 64 and six arrays of
    the inputs' size take under 8."""
    rule = SCORES[score](lambda *shape: jnp.ones(shape), WIDTH)
    assert temporary(rule, "fused", 16384, (64, 64)) < 8 * 2**20


def test_memory_is_linear():
    small, large = (temporary(scores.Gaussian(), "fused", length) for length in (4096, 32768))
    assert np.log(large / small) / np.log(8) <= 1.1
    assert temporary(scores.ScaledDot(), "plain", 2048) > 10 * temporary(scores.ScaledDot(), "fused", 2048)
