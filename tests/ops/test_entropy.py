"""`return_entropy`: the entropy of each query's weights, from the pass that computes the output."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend, attend_heads, biases, causal, dense, lengths, normalizers, pooling
from attention_jax.errors import InputError
from tests.ops.test_normalizers import ORACLES, case, score_of

KINDS = (normalizers.Softmax(), normalizers.Sparsemax(), normalizers.StickBreaking())
"""One of each module of `ops/blockwise`."""


def entropy(weights) -> float:
    """That of the weights of one query, divided by their sum."""
    if (weights < 0).any():
        return np.nan
    shares = weights[weights > 0] / weights.sum()
    return -(shares * np.log(shares)).sum()


@pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
def test_entropy_and_first_weight_against_float64(implementation):
    """Grouped heads with a bias, random masks and a sequence without keys, in blocks that the lengths are no multiple
    of, of flat and of sharp weights; the first weight is the output of a value that is 1 there. One program."""
    batch, queries, keys, heads, groups = 2, 33, 29, 4, 2
    draw = np.random.default_rng(0)
    query = draw.standard_normal((batch, queries, heads, 8)).astype(np.float32)
    key = draw.standard_normal((batch, keys, groups, 8)).astype(np.float32)
    added = draw.standard_normal((batch, heads, queries, keys)).astype(np.float32)
    pair_allowed = draw.random((batch, 1, queries, keys)) < 0.7
    pair_allowed[0, 0, 5], pair_allowed[0, 0, 6] = False, np.arange(keys) == 3
    slope, at = np.float32([0.5, 0.1, 0.2, 0.0]), np.arange(queries)
    rules = {"mask": (causal(), lengths(jnp.array([keys, 0])), pair_allowed), "bias": (biases.ALiBi(slope), added)}
    call = {"implementation": implementation, "block_q": 8, "block_k": 8, "return_entropy": True}
    first = np.tile(np.eye(keys, 1, dtype=np.float32)[:, None], (batch, 1, groups, 1))
    run = jax.jit(lambda scale: attend_heads(scale * query, key, first, **rules, **call))
    allowed = pair_allowed & (at[:, None] >= at[:keys]) & (np.array([keys, 0])[:, None, None, None] > 0)
    for scale in (1.0, 30.0):
        scores = np.einsum("bthd,bshd->bhts", scale * np.float64(query), np.repeat(np.float64(key), 2, axis=2))
        scores = scores / np.sqrt(8) - slope[:, None, None] * abs(at[:, None] - at[:keys]) + added
        scores = np.where(allowed, scores, -np.inf)
        with np.errstate(invalid="ignore"):
            weights = np.where(allowed, np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
        weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
        weight, entropies = run(scale)
        expected = np.apply_along_axis(entropy, -1, weights).swapaxes(1, 2)
        assert (
            entropies.dtype == jnp.float32
            and not expected[0, 5].any()
            and not expected[1].any()
            and expected[0, 7].all()
        )
        np.testing.assert_allclose(entropies, expected, atol=2e-6 * scale)
        np.testing.assert_allclose(weight[..., 0], weights[..., 0].swapaxes(1, 2), atol=2e-6 * scale)


FAST = [(name, "fused") for name in ("sigmoid", "sparsemax", "stick-breaking")]


@pytest.mark.parametrize(
    ("name", "implementation"), slow_but(FAST, [*((name, "fused") for name in ORACLES), ("entmax 1.5", "plain")])
)
def test_entropy_of_every_normalizer_against_the_papers(name, implementation):
    """In float64, with a query without keys and one with a single key; NaN where a weight is negative."""
    query, key, value = case(13, 11)
    allowed = np.random.default_rng(7).random((13, 11)) < 0.7
    allowed[4], allowed[6] = False, np.arange(11) == 2
    with jax.enable_x64(True):
        normalizer = jax.tree.map(jnp.float64, ORACLES[name][0])
        call = {"score": score_of(name), "mask": dense(jnp.asarray(allowed)), "implementation": implementation}
        call |= {"block_q": 4, "block_k": 4, "return_entropy": True}
        actual = jax.jit(lambda *arrays: attend(*arrays, normalizer=normalizer, **call)[1])(query, key, value)
        leaves = [np.float64(leaf) for leaf in jax.tree.leaves(normalizer)]
        scores = np.asarray(score_of(name)(query, key))
        expected = [entropy(ORACLES[name][1](s[row], *leaves)) if row.any() else 0.0 for s, row in zip(scores, allowed)]
        np.testing.assert_allclose(actual, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_scores_at_the_ends_of_their_range(implementation):
    """Blocks that come first and then weigh nothing, by masks of -3e38, leave no trace and no NaN."""
    low, high = np.float32(-3e38), np.float32(3e38)
    rows = np.full((5, 24), low)
    rows[0, 8:] = 0
    rows[1, 9] = high
    rows[2, 4:20], rows[2, :4] = 50, -1e30
    rows[3] = -np.inf
    query, key = jnp.ones((5, 2)), jnp.zeros((24, 2))
    call = {"bias": jnp.asarray(rows), "implementation": implementation, "block_q": 4, "block_k": 8}
    actual = jax.jit(lambda: attend(query, key, key, **call, return_entropy=True)[1])()
    np.testing.assert_allclose(actual, np.log([16, 1, 16, 1, 24]), rtol=1e-6)


def test_platforms_that_choose_differently():
    """Blocks on a CPU and all weights at once on a GPU are branches of one program; lowered only."""
    x = jax.ShapeDtypeStruct((300, 8), jnp.float32)
    for normalizer in KINDS:
        run = jax.jit(lambda x: attend(x, x, x, normalizer=normalizer, return_entropy=True)[1])
        text = run.trace(x).lower(lowering_platforms=("cpu", "cuda")).as_text()
        assert "stablehlo.case" in text and "tensor<300x256xf32>" in text and "tensor<300x300xf32>" in text


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", KINDS, ids=lambda kind: type(kind).__name__)
def test_derivatives_pools_and_dropout_beside_it(normalizer):
    """Outputs and their derivatives are those without it; it has none itself, and dropout does not change it."""
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case(13, 11))
    call = {"implementation": "fused", "mask": causal() & lengths(6), "block_q": 4, "block_k": 4}
    call |= {"normalizer": normalizer}
    loss = lambda query, **options: jnp.sin(jax.tree.leaves(attend(query, key, value, **call, **options))[0]).sum()
    with_entropy = lambda query: loss(query, return_entropy=True)
    np.testing.assert_array_equal(jax.grad(with_entropy)(query), jax.grad(loss)(query))
    hessian = jax.jvp(jax.grad(with_entropy), (query,), (query,))[1]
    np.testing.assert_allclose(hessian, jax.jvp(jax.grad(loss), (query,), (query,))[1], atol=1e-5)
    entropies = lambda query, **options: attend(query, key, value, **call, **options, return_entropy=True)[1]
    assert not jax.grad(lambda query: entropies(query).sum())(query).any()
    with jax.debug_nans(True):
        expected, tangent = jax.jvp(entropies, (query,), (query,))
    assert not tangent.any() and expected[1:].all()
    for options in ({"pool": pooling.Moments()}, {"dropout": 0.5, "rng": jax.random.key(0)}):
        np.testing.assert_allclose(entropies(query, **options), expected, atol=1e-6)
    if isinstance(normalizer, normalizers.Softmax):
        out, log, largest, actual = attend(
            query, key, value, **call, return_log_sum_exp=True, return_max_score=True, return_entropy=True
        )
        np.testing.assert_allclose(actual, expected, atol=1e-6)
        assert (largest <= log).all() and (log - largest <= np.log(6) + 1e-6).all()


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", KINDS, ids=lambda kind: type(kind).__name__)
def test_memory_is_linear_in_the_length(normalizer):
    """Four times the length takes less than six times XLA's plan of temporaries, where all weights take 16 times it."""

    def plan_bytes(length):
        x = jax.ShapeDtypeStruct((length, 8), jnp.float32)
        call = {"normalizer": normalizer, "implementation": "fused", "block_q": 64, "block_k": 64}
        run = jax.jit(lambda x: attend(x, x, x, mask=causal(), **call, return_entropy=True))
        return run.lower(x).compile().memory_analysis().temp_size_in_bytes

    assert plan_bytes(4096) < 6 * plan_bytes(1024)


def test_kernels_have_no_entropy():
    x = jnp.ones((16, 8), jnp.bfloat16)
    for implementation in ("cudnn", "flash", "linear"):
        with pytest.raises(InputError, match="computes the softmax alone, without its log-sum-exp and its entropy"):
            attend(x, x, x, return_entropy=True, implementation=implementation)
