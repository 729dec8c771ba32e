"""Poolings of few keys, of large numbers, and beside keys that nobody may look at; what they compute is in
tests/ops/test_attend_properties.py."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal, lengths
from attention_jax.ops.normalizers import ReluPower, Sigmoid, Softmax, Sparsemax
from attention_jax.ops.pooling import LocalLinear, LogMixture, Moments
from attention_jax.ops.scores import Gaussian, Triangular


def data(queries=7, keys=40, width=2, dtype=np.float64):
    draw = np.random.default_rng(0)
    key = draw.uniform(-1, 1, (keys, width)) + 5  # far from the origin
    return draw.uniform(-0.8, 0.8, (queries, width)).astype(dtype) + 5, key, draw.standard_normal((keys, 3))


@pytest.mark.slow
def test_local_linear_reproduces_linear_function_and_slope():
    """Fan 1992: exactly, whatever the kernel. The plain mean is not."""
    with jax.enable_x64(True):
        x = jnp.sort(jax.random.uniform(jax.random.key(0), (50, 1), minval=0, maxval=1), axis=0)
        ends = jnp.array([[0.0], [0.3], [1.0]])
        for score in (Gaussian(0.2), Triangular(1.0)):
            call = {"score": score}

            @jax.jit
            def regression(query, x):
                line = lambda query: attend(query, x, 2 * x - 1, pool=LocalLinear(0.0), **call)[:, 0]
                return line(query), jax.jacfwd(line)(query), attend(query, x, 2 * x - 1, **call)

            values, slopes, mean = jax.device_get(regression(ends, x))
            np.testing.assert_allclose(values, 2 * ends[:, 0] - 1, atol=1e-9)
            np.testing.assert_allclose(slopes[0, 0], 2.0, atol=1e-6)
            assert abs(mean[0, 0] + 1) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_moments_and_mixtures(implementation):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in data())
    call = {"score": Gaussian(0.5), "mask": causal()}
    attend_with = lambda *arrays, pool: attend(*arrays, pool=pool, implementation=implementation, **call)

    @jax.jit
    def run_all(query, key, value):
        moments = attend_with(query, key, value + 100, pool=Moments())
        mixture = attend_with(query, key, value - 200, pool=LogMixture())  # exp of these logs is 0 in float32
        return attention_weights(query, key, **call), moments, mixture

    weights, moments, mixture = jax.device_get(run_all(query, key, value))
    weights, exact = weights.astype(np.float64), np.asarray(value, np.float64)
    mean = weights @ exact
    np.testing.assert_allclose(moments[:, :3], mean + 100, rtol=1e-6)
    np.testing.assert_allclose(moments[:, 3:], weights @ exact**2 - mean**2, atol=1e-5)
    np.testing.assert_allclose(mixture, np.log(weights @ np.exp(exact)) - 200, rtol=1e-6)


def local_line(query, key, value, weights, ridge=None):
    """The definition in float64: the normal equations of one query, with a ridge of 1e-6 of the variance."""
    weights = weights / weights.sum()
    mean = weights @ key
    covariance = (weights[:, None] * (key - mean)).T @ (key - mean)
    ridge = 1e-6 * np.trace(covariance) / len(covariance) if ridge is None else ridge
    mixed = (weights[:, None] * (key - mean)).T @ (value - weights @ value)
    slopes = np.linalg.solve(covariance + (ridge or 1) * np.eye(len(covariance)), mixed)
    return weights @ value + (query - mean) @ slopes


SINGULAR = {  # keys from normal ones [20, 6], far from the origin, twice the same features, and all the same
    "few": lambda key: key,
    "far": lambda key: key + 100,
    "multiples": lambda key: np.concatenate([key[:, :3], 2 * key[:, :3]], axis=1),
    "narrow": lambda key: 1e3 + 0.1 * key,
    "constant and far": lambda key: np.concatenate([key[:, :3], 0 * key[:, :2] + 777.7, key[:, 5:]], axis=1),
    "constant": lambda key: np.concatenate([key[:, :5], key[:1, 5:].repeat(20, 0)], axis=1),
}


@pytest.mark.parametrize(
    ("name", "implementation"),
    slow_but([("few", "fused")], [(name, how) for name in SINGULAR for how in ("plain", "fused")]),
)
def test_local_linear_with_few_keys_against_float64(name, implementation):
    """Causal queries, of which the first see 1 to 6 keys; features that are multiples of others, or do not vary."""
    query, key, value = np.random.default_rng(1).normal(size=(3, 20, 6)).astype(np.float32)
    key = SINGULAR[name](key).astype(np.float32)
    if name in ("far", "narrow", "constant and far"):
        query = (query / (10 if name == "narrow" else 1) + (key - query).mean(axis=0).round()).astype(np.float32)
    call = {"score": Gaussian(2.0), "mask": causal(), "implementation": implementation, "block_q": 8, "block_k": 8}
    actual = jax.jit(lambda *x: attend(*x, pool=LocalLinear(), **call))(query, key, value)
    wide = [np.float64(x) for x in (query, key, value)]
    for i, (q, out) in enumerate(zip(wide[0], actual, strict=True)):
        visible = [x[: i + 1] for x in wide[1:]]
        right = local_line(q, *visible, np.exp(-((q - visible[0]) ** 2).sum(1) / 8))
        share = 2e-2 if name == "multiples" else 1e-3  # 8e-3 on one kind of processor, 4e-3 on another
        np.testing.assert_allclose(out, right, atol=share * max(1, abs(right).max()), err_msg=str(i))


EQUAL = {  # normalizers whose weights of equal keys are equal and need not sum to 1
    "sink": Softmax(sink=0.3),
    "sigmoid": Sigmoid(-1.0),
    "relu": ReluPower(1),
    "sparsemax": Sparsemax(),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "implementation"),
    slow_but([("sink", "fused"), ("sigmoid", "plain")], [(name, how) for name in EQUAL for how in ("plain", "fused")]),
)
def test_local_linear_of_equal_keys_is_the_mean(name, implementation):
    """1 to 9 keys at several distances from the origin: the mean of the values, which the query does not change."""
    call = {"normalizer": EQUAL[name], "pool": LocalLinear(), "implementation": implementation}
    draw = np.random.default_rng(0)
    key = draw.uniform(0.1, 1, (24, 1, 2)) * 10.0 ** np.arange(-2, 4).repeat(4)[:, None, None]
    value, count = draw.standard_normal((24, 9, 1)), np.arange(24) % 9 + 1
    query = key[:, 0] * draw.uniform(0.5, 3, (24, 2)) / (key[:, 0] ** 2).sum(axis=1, keepdims=True)  # scores of order 1

    def run(query, key, value, n):
        out = lambda query, value: attend(query[None], key.repeat(9, 0), value, mask=lengths(n), **call)[0, 0]
        return out(query, value), *jax.grad(out, (0, 1))(query, value)

    arrays = (jnp.asarray(x, jnp.float32) for x in (query, key, value))
    out, by_query, by_value = jax.jit(jax.vmap(run))(*arrays, jnp.asarray(count))
    is_seen = np.arange(9) < count[:, None]
    np.testing.assert_allclose(out, (value[:, :, 0] * is_seen).sum(axis=1) / count, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(by_query * query, 0, atol=1e-4)
    np.testing.assert_allclose(by_value[:, :, 0], is_seen / count[:, None], atol=1e-5)


POOLS = [LocalLinear(), LocalLinear(0.1), Moments(), LogMixture()]
CASES = [(pool, implementation) for pool in POOLS for implementation in ("plain", "fused")]


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "implementation"), slow_but(CASES[1:2], CASES), ids=str)
def test_unattended_keys_change_no_bit(pool, implementation):
    """Later keys that are large, infinite or NaN, of causal queries; and those behind a text, which a cache holds."""
    query, key, value = np.random.default_rng(1).normal(size=(3, 20, 6)).astype(np.float32)
    call = {"pool": pool, "implementation": implementation, "block_q": 8, "block_k": 8}
    rows = jax.jit(lambda key, value: attend(query, key, value, mask=causal(), **call)[:10])
    step = jax.jit(
        lambda key, value: attend(query[9:10], key, value, mask=causal() & lengths(10), query_offset=9, **call)
    )
    for run in (rows, step):
        right = run(key, value)
        assert np.isfinite(right[-1]).all()
        for factor in (3, 1e3, 1e30, np.inf, np.nan):
            scale = np.where(np.arange(20) < 10, 1, factor).astype(np.float32)[:, None]
            np.testing.assert_array_equal(run(key * scale, value * abs(scale)), right, err_msg=str(factor))


def test_shapes_that_heads_cannot_have():
    x = jnp.ones((2, 6, 4, 5))
    for query, key, value, options in (
        (x[0], x[0], x[0], {}),
        (x, x[:, :, :3], x[:, :, :3], {}),
        (x, x, x[:, :, :2], {}),
        (x, x, x, {"normalizer": Softmax(jnp.zeros(3))}),
        (x, x, x, {"mask": lengths(jnp.ones(3, int))}),
    ):
        with pytest.raises(InputError):
            attend_heads(query, key, value, **options)
    with pytest.raises(InputError):
        attend(x[0, 0], x[0, 0], x[0, 0], pool="mean")
