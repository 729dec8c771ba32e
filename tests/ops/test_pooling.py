"""Poolings against their definitions in NumPy, and attention of [batch, position, head, feature] with shared keys."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from tiers import slow_but

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.masks import causal, lengths
from attention_jax.ops.normalizers import CompactKernel, Entmax, Sigmoid, Softmax
from attention_jax.ops.pooling import LocalLinear, LogMixture, Moments
from attention_jax.ops.scores import Gaussian, NegativeSquaredDistance


def data(queries=7, keys=40, width=2, dtype=np.float64):
    draw = np.random.default_rng(0)
    key = draw.uniform(-1, 1, (keys, width)) + 5  # far from the origin
    return draw.uniform(-0.8, 0.8, (queries, width)).astype(dtype) + 5, key, draw.standard_normal((keys, 3))


NORMALIZERS = {"softmax": Softmax(), "sigmoid": Sigmoid(), "entmax": Entmax(1.5), "compact": CompactKernel(1)}


@pytest.mark.parametrize(
    ("name", "implementation"),
    slow_but(
        [("softmax", "plain"), *((name, "fused") for name in NORMALIZERS)],
        [(name, how) for name in NORMALIZERS for how in ("plain", "fused")],
    ),
)
def test_local_linear_regression_solves_the_normal_equations(name, implementation):
    with jax.enable_x64(True):
        query, key, value = (jnp.asarray(x) for x in data())
        call = {"score": Gaussian(0.5), "normalizer": NORMALIZERS[name], "mask": lengths(35)}
        ridge = 1e-3
        options = {"pool": LocalLinear(ridge), "implementation": implementation, "block_k": 16}
        both = jax.jit(lambda q, k, v: (attend(q, k, v, **call, **options), attention_weights(q, k, **call)))
        actual, weights = jax.device_get(both(query, key, value))
    for q, w in enumerate(weights):
        w = w / w.sum()
        design = np.concatenate([np.ones((40, 1)), np.asarray(key) - np.asarray(query[q])], axis=1)
        normal = design.T @ (w[:, None] * design) + ridge * np.diag([0, 1, 1])
        line = np.linalg.solve(normal, design.T @ (w[:, None] * np.asarray(value)))
        np.testing.assert_allclose(actual[q], line[0], atol=1e-8)


def test_local_linear_reproduces_linear_function_and_slope():
    """Fan 1992: exactly, whatever the kernel. The plain mean is not."""
    with jax.enable_x64(True):
        x = jnp.sort(jax.random.uniform(jax.random.key(0), (50, 1), minval=0, maxval=1), axis=0)
        ends = jnp.array([[0.0], [0.3], [1.0]])
        for score, normalizer in ((Gaussian(0.2), Softmax()), (NegativeSquaredDistance(), CompactKernel(1))):
            call = {"score": score, "normalizer": normalizer}

            @jax.jit
            def regression(query, x):
                line = lambda query: attend(query, x, 2 * x - 1, pool=LocalLinear(0.0), **call)[:, 0]
                return line(query), jax.jacfwd(line)(query), attend(query, x, 2 * x - 1, **call)

            values, slopes, mean = jax.device_get(regression(ends, x))
            np.testing.assert_allclose(values, 2 * ends[:, 0] - 1, atol=1e-9)
            np.testing.assert_allclose(slopes[0, 0], 2.0, atol=1e-6)
            assert abs(mean[0, 0] + 1) > 0.1


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


@pytest.mark.parametrize("pool", [LocalLinear(), Moments(), LogMixture()], ids=lambda pool: type(pool).__name__)
def test_masked_keys_have_no_effect(pool):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in data())
    run = jax.jit(lambda query, key, value: attend(query, key, value, mask=lengths(20), pool=pool))
    poisoned = query, key.at[30].set(jnp.nan), value.at[33].set(1e30)
    assert np.array_equal(run(*poisoned), run(query, key, value))
    empty = jax.jit(lambda key: attend(query, key, value, mask=lengths(0), pool=pool))
    assert (empty(key) == (-jnp.inf if isinstance(pool, LogMixture) else 0)).all()
    of_key = jax.jit(jax.grad(lambda key: jnp.where(jnp.isfinite(empty(key)), empty(key), 0).sum()))
    assert not np.any(of_key(key))
    gradients = jax.jit(jax.grad(lambda *inputs: jnp.sin(run(*inputs)).sum(), (0, 1, 2)))(*poisoned)
    assert all(np.isfinite(x).all() for x in gradients)


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
    query = query + 100 if name == "far" else query
    call = {"score": Gaussian(2.0), "mask": causal(), "implementation": implementation, "block_q": 8, "block_k": 8}
    actual = jax.jit(lambda *x: attend(*x, pool=LocalLinear(), **call))(query, key, value)
    wide = [np.float64(x) for x in (query, key, value)]
    for i, (q, out) in enumerate(zip(wide[0], actual, strict=True)):
        visible = [x[: i + 1] for x in wide[1:]]
        right = local_line(q, *visible, np.exp(-((q - visible[0]) ** 2).sum(1) / 8))
        np.testing.assert_allclose(out, right, atol=1e-3 * max(1, abs(right).max()), err_msg=str(i))


POOLS = [LocalLinear(), LocalLinear(0.1), Moments(), LogMixture()]
CASES = [(pool, implementation) for pool in POOLS for implementation in ("plain", "fused")]


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


@pytest.mark.slow
@pytest.mark.parametrize("pool", [LocalLinear(), Moments()], ids=lambda pool: type(pool).__name__)
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_derivatives_of_sums_about_a_center(pool, implementation):
    """In float64 against differences: the center of a query, its first line, has no derivative, the result does."""
    with jax.enable_x64(True):
        query, key, value = np.random.default_rng(2).normal(size=(3, 9, 2))
        call = {"pool": pool, "mask": causal(), "implementation": implementation, "block_q": 4, "block_k": 4}
        loss = jax.jit(lambda q, k, v: jnp.sin(attend(q, k, v, **call)[4:]).sum())
        arrays = [jnp.asarray(x) for x in (query, key, value)]
        check_grads(loss, arrays, order=2, modes=["rev", "fwd"], rtol=1e-3, eps=1e-5)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_heads_share_keys_without_repeating_them(implementation):
    draw = jax.random.normal
    shapes = (2, 6, 4, 5), (2, 7, 2, 5), (2, 7, 2, 3)
    query, key, value = (np.asarray(draw(jax.random.key(n), shape)) for n, shape in enumerate(shapes))
    sinks, length = jnp.arange(4.0), jnp.array([7, 4])
    call = {"normalizer": Softmax(sinks), "mask": lengths(length), "implementation": implementation}
    out = jax.jit(lambda *x: attend_heads(*x, **call))(query, key, value)
    assert out.shape == (2, 6, 4, 3)
    alone = jax.jit(lambda *x, sink, length: attend(*x, normalizer=Softmax(sink), mask=lengths(length)))
    for b in range(2):
        for h in range(4):
            leaves = {"sink": sinks[h], "length": length[b]}
            expected = alone(query[b, :, h], key[b, :, h // 2], value[b, :, h // 2], **leaves)
            np.testing.assert_allclose(out[b, :, h], expected, atol=1e-5)
    gradient = jax.jit(jax.grad(lambda *x: jnp.sin(attend_heads(*x, **call)).sum(), (0, 1, 2)))
    gradients = gradient(query, key, value)
    wide = gradient(query, *(np.repeat(x, 2, axis=2) for x in (key, value)))
    np.testing.assert_allclose(gradients[0], wide[0], atol=1e-5)
    for bar, wide_bar in zip(gradients[1:], wide[1:], strict=True):
        np.testing.assert_allclose(bar, wide_bar.reshape(2, 7, 2, 2, -1).sum(axis=3), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_two_caches_are_merged_by_their_log_sums(implementation):
    """As in ring attention: the sum of both outputs by their shares of the sum of exponentials, gradients too."""
    draw, shapes = jax.random.normal, ((2, 6, 4, 5), (2, 7, 2, 5), (2, 7, 2, 3))
    inputs = [draw(jax.random.key(n), shape) for n, shape in enumerate(shapes)]
    heads = functools.partial(attend_heads, return_log_sum_exp=True, implementation=implementation)

    def merge_caches(query, key, value):
        caches = [heads(query, key[:, span], value[:, span]) for span in (slice(3), slice(3, 7))]
        out, log = (jnp.stack(each) for each in zip(*caches))
        return (jax.nn.softmax(log, axis=0)[..., None] * out).sum(axis=0), jax.nn.logsumexp(log, axis=0)

    query, key = np.asarray(inputs[0], np.float64), np.repeat(np.asarray(inputs[1], np.float64), 2, axis=2)
    exponentials = np.exp(np.einsum("bthd,bshd->bths", query, key) / np.sqrt(5))
    np.testing.assert_allclose(jax.jit(heads)(*inputs)[1], np.log(exponentials.sum(axis=-1)), atol=1e-5)
    total = lambda function: lambda *inputs: sum(jnp.sin(x).sum() for x in function(*inputs))
    for actual, expected in zip(jax.jit(merge_caches)(*inputs), jax.jit(heads)(*inputs), strict=True):
        assert actual.shape[:3] == (2, 6, 4)
        np.testing.assert_allclose(actual, expected, atol=1e-5)
    gradients = [jax.jit(jax.grad(total(function), (0, 1, 2)))(*inputs) for function in (merge_caches, heads)]
    for actual, expected in zip(*gradients, strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-5)


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
