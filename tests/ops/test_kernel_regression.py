"""Kernel regression as attention, against the weighted mean written as a loop."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import kernel_regression as nw
from attention_jax.ops.scores import Boxcar, Constant, Gaussian, Triangular

RNG = np.random.default_rng(0)
X, Y, QUERY = (jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in ((12, 2), (12, 3), (5, 2)))
estimate = jax.jit(nw.nadaraya_watson)
KERNELS = {
    "gaussian": (Gaussian(0.7), lambda d: np.exp(-(d**2) / (2 * 0.7**2))),
    "boxcar": (Boxcar(1.5), lambda d: float(d < 1.5)),
    "epanechikov": (Triangular(1.5), lambda d: max(0.0, 1 - d / 1.5)),
    "constant": (Constant(), lambda d: 1.0),
}


@pytest.mark.parametrize("name", KERNELS)
def test_is_the_weighted_mean(name):
    score, kernel = KERNELS[name]
    for query, actual in zip(np.asarray(QUERY), estimate(QUERY, X, Y, score)):
        weights = [kernel(np.linalg.norm(query - x)) for x in np.asarray(X)]
        expected = sum(w * y for w, y in zip(weights, np.asarray(Y))) / sum(weights) if sum(weights) else np.zeros(3)
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_query_without_neighbors_is_zero():
    far = jnp.full((1, 2), 50.0)
    assert int(nw.count_neighbors(far, X, Boxcar(1.0))[0]) == 0
    np.testing.assert_array_equal(estimate(far, X, Y, Boxcar(1.0)), np.zeros((1, 3)))


def test_leave_one_out_is_the_loop():
    errors = []
    for i in range(12):
        not_i = np.arange(12) != i
        errors.append((np.asarray(estimate(X[i : i + 1], X[not_i], Y[not_i], Gaussian(0.5))) - np.asarray(Y[i])) ** 2)
    np.testing.assert_allclose(jax.jit(nw.leave_one_out)(X, Y, Gaussian(0.5)), np.mean(errors), rtol=1e-5)


def test_the_learned_width_is_better_than_its_neighbors():
    x = jnp.linspace(0.0, 5.0, 40)[:, None]
    y = 2 * jnp.sin(x) + x + 0.5 * jax.random.normal(jax.random.key(0), x.shape)
    width = nw.learn_width(x, y)
    error = jax.jit(lambda width: nw.leave_one_out(x, y, Gaussian(width)))
    assert 0.05 < width < 1 and error(width) <= min(error(width * 1.2), error(width / 1.2))


def test_local_widths_are_wide_where_inputs_are_rare():
    x = jnp.concatenate([jnp.linspace(0.0, 1.0, 20), jnp.linspace(1.5, 5.0, 5)])[:, None]
    local_widths = jax.jit(nw.local_widths)
    dense, rare = local_widths(jnp.array([[0.5], [4.0]]), x, jnp.array(0.5))[:, 0]
    assert rare > 1.5 * dense
    close = jnp.linspace(0.0, 1.0, 8)[:, None]  # seen with a wide pilot, all are equally dense
    np.testing.assert_allclose(local_widths(close, close, jnp.array(100.0)), 100.0, rtol=1e-3)


def test_silverman():
    np.testing.assert_allclose(nw.silverman_width(X[:, :1]), 1.06 * np.std(np.asarray(X[:, 0])) * 12**-0.2, rtol=1e-5)
