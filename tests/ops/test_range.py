"""Range: adding a constant to all scores of a shift-invariant normalizer, or moving all points of a distance, changes
nothing beyond rounding; nothing is lost to the height of scores, to the size of points and weights, or to a type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend
from attention_jax.ops.delta import chunked_delta, recurrent_delta
from attention_jax.ops.masks import dense
from attention_jax.ops.normalizers import Entmax, Signed, Softmax, Softpick, Sparsemax, TopK
from attention_jax.ops.pooling import LocalLinear, Moments
from attention_jax.ops.retention import chunked_retention, quadratic_retention
from attention_jax.ops.scores import (
    Boxcar,
    Constant,
    Cosine,
    Dot,
    Gaussian,
    NegativeSquaredDistance,
    QKNorm,
    Triangular,
)
from attention_jax.sampling import sample, truncate_logits

both = pytest.mark.parametrize("implementation", [pytest.param("plain", marks=pytest.mark.slow), "fused"])
INVARIANT = {
    "softmax": Softmax(),
    "sparsemax": Sparsemax(),
    "entmax": Entmax(1.5),
    "top-k": TopK(1),
    "top-k sparsemax": TopK(3, Sparsemax()),
}


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", INVARIANT)
def test_weights_are_shift_invariant(name, implementation):
    """Scores c + [0, 0.5, -3, 0.25] are exact in float32 up to c = 10^6; one program for each implementation."""
    key = np.stack([np.ones(4), [0, 0.5, -3, 0.25]], axis=1).astype(np.float32)
    call = {"score": Dot(), "normalizer": INVARIANT[name], "implementation": implementation, "block_q": 2, "block_k": 2}
    weights = jax.jit(lambda query: attend(query, key, jnp.eye(4), **call))
    heights = np.array([0, 20, -20, 1e4, 1e5, 1e6, -1e6], np.float32)
    actual = np.asarray(weights(np.stack([heights, np.ones_like(heights)], axis=1)))
    np.testing.assert_allclose(actual, np.broadcast_to(actual[:1], actual.shape), atol=3e-7)
    exact = {"sparsemax": [1 / 12, 7 / 12, 0, 1 / 3], "top-k": [0, 1, 0, 0]}
    np.testing.assert_allclose(actual[0], exact.get(name, actual[0]), atol=3e-7)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", slow_but(["float32"], ["float32", "bfloat16", "float16"]))
@pytest.mark.parametrize("implementation", slow_but(["plain", "fused"], ["plain", "fused", "kernel"]))
def test_softpick_of_large_and_small_scores(implementation, dtype):
    """Weights, gradient and tangent against the formula, of which e^-m multiplies both sides, in float64."""
    rows = [[100, 99, 0.5, -100], [1e4, 9992, 3, -1e4], [-50, -1e4, -1e-3, 0], [1e-4, -2e-4, 3e-4, 0], [0, 0, 0, 0]]
    scores = jnp.asarray(np.array(rows), dtype)
    exact = np.float64(scores)
    height = np.maximum(exact.max(axis=1, keepdims=True), 0)
    terms = np.exp(exact - height) - np.exp(-height)
    divisor = 1e-6 * np.exp(-height) + np.abs(terms).sum(axis=1, keepdims=True)
    weights, bars = np.maximum(terms, 0) / divisor, np.array([0.5, -1, 2, 1])
    mean = (weights * bars).sum(axis=1, keepdims=True)
    slopes = np.exp(exact - height) / divisor * ((exact > 0) * bars - np.sign(exact) * mean)
    call = {"score": Dot(), "normalizer": Softpick(), "implementation": implementation}
    call |= {} if implementation == "plain" else {"block_q": 16, "block_k": 16}
    attention = lambda scores: attend(scores, jnp.eye(4, dtype=dtype), jnp.eye(4, dtype=dtype), **call)
    out, dot = jax.jit(lambda x: jax.jvp(attention, (x,), (jnp.full_like(x, 0.5),)))(scores)
    (bar,) = jax.jit(lambda x: jax.vjp(attention, x)[1](jnp.asarray(np.tile(bars, (5, 1)), dtype)))(scores)
    tolerance = 1e-5 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.float64(out), weights, atol=tolerance)
    for actual, right in ((np.float64(bar), slopes), (np.float64(dot) @ bars, slopes.sum(axis=1) / 2)):
        for x, y in zip(actual, right, strict=True):
            np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance * max(1.0, np.abs(y).max()))


def test_softpick_of_zeros_in_half_precision():
    """1 / epsilon is beyond the range of float16."""
    scores, allowed = jnp.zeros((1, 3), jnp.float16), jnp.ones((1, 3), bool)
    np.testing.assert_array_equal(Softpick().weights(scores, allowed), 0)


DISTANCES = {
    "gaussian": (Gaussian(1.0), lambda square: np.exp(-square / 2)),
    "squared": (NegativeSquaredDistance(), lambda square: np.exp(-square)),
    "boxcar": (Boxcar(3.0), lambda square: (square < 9) * 1.0),
    "triangular": (Triangular(9.0), lambda square: np.maximum(1 - np.sqrt(square) / 9, 0)),
}


@both
@pytest.mark.parametrize("name", DISTANCES)
def test_distances_do_not_depend_on_the_origin(name, implementation):
    """Of moved points as float32 holds them, against NumPy in float64."""
    score, kernel = DISTANCES[name]
    points = np.random.default_rng(0).normal(size=(6, 8))
    call = {"score": score, "implementation": implementation, "block_q": 4, "block_k": 4}
    weights = jax.jit(lambda x: attend(x, x, jnp.eye(6), **call))
    for origin in (0, 100, 1e4):
        moved = (points + origin).astype(np.float32)
        exact = kernel(np.square(np.float64(moved)[:, None] - np.float64(moved)[None]).sum(axis=-1))
        exact /= exact.sum(axis=1, keepdims=True)
        atol = 1e-4 if name == "triangular" else 2e-6  # the root of a rounding error
        np.testing.assert_allclose(weights(moved), exact, atol=atol)


UNITS = [(dtype, size) for dtype in ("float32", "bfloat16") for size in (1e-20, 1e-6, 1e6, 1e18)]


@pytest.mark.parametrize(
    ("dtype", "size"),
    slow_but([UNITS[0], UNITS[3], ("float16", 1e-4)], [*UNITS, ("float16", 1e-4), ("float16", 1e4)]),
)
def test_scores_that_do_not_depend_on_the_unit(dtype, size):
    """Points and the width of a kernel in one unit, and the cosine, which has none."""
    points = np.random.default_rng(1).normal(size=(4, 8))
    scaled_points = jnp.asarray(points * size, dtype)
    exact = np.float64(np.asarray(scaled_points.astype(jnp.float32)))
    square = np.square(exact[:, None] - exact[None]).sum(axis=-1) / size**2
    rules = Gaussian(3 * size), Boxcar(3.5 * size), Triangular(9 * size), Cosine(), QKNorm.init(None, 8, 8)
    run = jax.jit(lambda x, learned: [rule(x, x) for rule in (learned, *rules)])
    *gaussians, boxcar, triangular, cosine, normalized = run(scaled_points, Gaussian(jnp.float32(3 * size)))
    for actual in gaussians:
        np.testing.assert_allclose(actual, -square / 18, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(boxcar == 0, square < 3.5**2)
    kernel = np.maximum(1 - np.sqrt(square) / 9, 0)
    np.testing.assert_allclose(np.exp(np.float32(triangular)), kernel, atol=1e-3)
    unit = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    tolerance = 1e-5 if dtype == "float32" else 2e-2
    np.testing.assert_allclose(cosine, unit @ unit.T, atol=tolerance)
    np.testing.assert_allclose(normalized, unit @ unit.T * 8**0.5, atol=3 * tolerance)


@pytest.mark.slow
@both
@pytest.mark.parametrize(("dtype", "size"), [("float32", 1e-20), ("float16", 1e-4)])
def test_attention_does_not_depend_on_the_unit(dtype, size, implementation):
    """The weights and their gradient with respect to the queries, times the unit, against those of points in units."""
    scaled_points = jnp.asarray(np.random.default_rng(1).normal(size=(4, 8)) * size, dtype)
    units = jnp.asarray(np.float32(np.float64(np.asarray(scaled_points.astype(jnp.float32))) / size))
    direction = jnp.arange(4.0)[:, None]

    @jax.jit
    def values(x, score):
        call = {"score": score, "implementation": implementation, "block_q": 2, "block_k": 2}
        out, pull = jax.vjp(lambda query: attend(query, x, direction, **call), x)
        return out, pull(jnp.ones_like(out))[0].astype(jnp.float32)

    for score, exact in ((Gaussian(3 * size), Gaussian(3.0)), (Cosine(), Cosine())):
        (actual, bar), (right, right_bar) = values(scaled_points, score), values(units, exact)
        tolerance = 1e-5 if dtype == "float32" else 2e-2
        np.testing.assert_allclose(actual, right, rtol=tolerance)
        np.testing.assert_allclose(np.float64(bar) * size, right_bar, atol=tolerance)


@pytest.mark.slow
@both
def test_moments_about_the_mean_of_each_query(implementation):
    """Two queries that see distant values: variances of a few numbers, by hand; and the gradient, 2 (v - mean) / 3."""
    value = np.array([1000, 1000.1, 1000.2, -1000, -1000.1, -1000.3], np.float32)[:, None]
    mask = dense(np.repeat(np.eye(2, dtype=bool), 3, axis=1))
    call = {"score": Constant(), "mask": mask, "pool": Moments(), "implementation": implementation, "block_k": 4}
    run = lambda value: attend(jnp.ones((2, 1)), jnp.ones((6, 1)), value, **call)
    actual, pull = jax.vjp(run, value)
    exact = [np.float64(value[:3]).var(), np.float64(value[3:]).var()]
    np.testing.assert_allclose(actual[:, 1], exact, rtol=1e-4)
    mean = np.repeat([value[:3].mean(dtype=np.float64), value[3:].mean(dtype=np.float64)], 3)
    (bar,) = pull(jnp.array([[0.0, 1.0], [0.0, 1.0]]))
    np.testing.assert_allclose(bar[:, 0], 2 * (value[:, 0] - mean) / 3, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("unit", [100.0, 1.0, 1e-4])
def test_local_linear_with_collinear_features(unit):
    """A line through (t, t) is reproduced, whatever the unit of t."""
    t = jnp.arange(6.0)[:, None]
    key = jnp.concatenate([t, t], axis=1) * unit
    actual = attend(key[2:3], key, t, score=Gaussian(2 * unit), pool=LocalLinear())
    np.testing.assert_allclose(actual, [[2.0]], atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("log_decay", [[0, 0, -np.inf, np.log(0.5)], [-0.1, -1e6, -0.1, -0.1]])
def test_forms_of_retention_agree_after_a_reset(log_decay):
    """Against the recurrence in NumPy; gradients of all forms are those of the recurrence."""
    query = key = jnp.ones((4, 1))
    value, log_decay = jnp.array([[1.0], [0.0], [1.0], [0.0]]), jnp.array(log_decay, jnp.float32)
    state, exact = 0.0, []
    for v, g in zip(np.asarray(value)[:, 0], np.asarray(log_decay)):
        state = np.exp(g) * state + v
        exact.append([state])
    np.testing.assert_allclose(quadratic_retention(query, key, value, log_decay), exact, rtol=1e-6)
    np.testing.assert_allclose(chunked_retention(query, key, value, log_decay, chunk=3)[0], exact, rtol=1e-6)
    beta = jnp.full(4, 0.5)
    loss = lambda form: lambda *x: (form(*x)[0] ** 2).sum()
    actual = jax.value_and_grad(loss(chunked_delta), (0, 1, 2, 3, 4))(query, key, value, beta, log_decay)
    expected = jax.value_and_grad(loss(recurrent_delta), (0, 1, 2, 3, 4))(query, key, value, beta, log_decay)
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@both
def test_weights_beyond_float16(implementation):
    """160,000 * 0.001 * 2 = 320, and the gradient for the values, 160,000 * 0.001 = 160."""
    half = lambda shape, x: jnp.full(shape, x, jnp.float16)
    call = {"score": Dot(), "normalizer": Signed(), "implementation": implementation}
    run = lambda value: attend(half((1, 16), 100), half((2, 16), 100), value, **call)

    @jax.jit
    def value_and_gradients():
        out, pull = jax.vjp(run, half((2, 1), 1e-3))
        return out, pull(half((1, 1), 1e-3))[0]

    out, bar = value_and_gradients()
    np.testing.assert_allclose(np.float32(out), [[320.0]], rtol=2e-3)
    np.testing.assert_allclose(np.float32(bar), [[160.0], [160.0]], rtol=2e-3)


@both
def test_a_sink_of_minus_infinity_and_no_key(implementation):
    call = {"normalizer": Softmax(sink=-jnp.inf), "mask": dense(np.array([[True] * 3, [False] * 3]))}
    call |= {"implementation": implementation}
    actual = jax.jit(lambda x: attend(x[:2], x, jnp.ones((3, 1)), **call))(jnp.ones((3, 2)))
    assert actual.tolist() == [[1.0], [0.0]]


@pytest.mark.parametrize(
    ("dtype", "temperature"),
    slow_but([("float16", 1e-4)], [("float32", 1e-38), ("float16", 1e-4), ("bfloat16", 1e-30)]),
)
def test_a_small_temperature_takes_the_most_probable_token(dtype, temperature):
    logits = jnp.array([[10, 30, 60, 20]], dtype)
    step = lambda tokens, cache: (logits, cache)
    run = lambda **options: sample(step, None, jnp.array([[0]]), 4, **options).tolist()
    assert run(temperature=temperature) == [[2] * 4]
    traced = jax.jit(lambda t, p, k: sample(step, None, jnp.array([[0]]), 4, temperature=t, top_p=p, top_k=k))
    assert traced(temperature, 0.9, 2).tolist() == traced(0.0, 1.0, 0).tolist() == [[2] * 4]


@pytest.mark.slow
def test_traced_options_of_sampling_are_those_given():
    """The same tokens as with options from Python; the logits of two tokens that may be drawn."""
    step = lambda tokens, cache: (jnp.array([[1.0, 1.5, 0.5, -3.0]]), cache)
    run = lambda t, p, k: sample(step, None, jnp.array([[0]]), 20, temperature=t, top_p=p, top_k=k)
    for options in ((0.7, 0.8, 0), (1.3, 1.0, 2)):
        assert jax.jit(run)(*options).tolist() == run(*options).tolist()


@pytest.mark.slow
def test_the_nucleus_is_summed_in_float32():
    in_nucleus = jnp.isfinite(truncate_logits(jnp.zeros((1, 4096), jnp.bfloat16), top_p=0.5))
    assert int(in_nucleus.sum()) == 2048
