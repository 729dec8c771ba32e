"""Laws of kernel regression: four estimators from 1964 to 2026 as lines of one `attend`, and how fast they converge.

An estimator is a function (query [Q, D], x [K, D], y [K, V], width) -> [Q, V]. All are linear in y, so that the
expected error over noise is known without a sample: the gradient of an estimate with respect to y has its weights.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.sparse.linalg import cg

from attention_jax.laws.law import Attention
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.pooling import LocalLinear
from attention_jax.ops.scores import Dot, Gaussian, Score

Estimator = Callable[[jax.Array, jax.Array, jax.Array, float], jax.Array]

SIZES = (1_000, 4_000, 16_000, 64_000)
"""Points n of `rate`."""
NOISE = 0.3


def local_constant(query, x, y, width):
    """sum_i w_i y_i, w_i ~ exp(-|q - x_i|^2 / 2 h^2) (Nadaraya 1964; Watson 1964)."""
    return attend(query, x, y, score=Gaussian(width))


def local_linear(query, x, y, width):
    """The a of min over (a, b) of sum_i w_i (y_i - a - b (x_i - q))^2 (Stone 1977; Fan 1992; Zuo et al. 2025)."""
    return attend(query, x, y, score=Gaussian(width), pool=LocalLinear())


def ridge(query, x, y, score: Score = Gaussian(), kernel=jnp.exp, penalty: float = 0.1):
    """k(q, x) (K + lambda I)^-1 y, solved by conjugate gradients with `attend` as the product K a, in memory linear in
    n (kernel ridge regression; as attention: Cubit, arXiv 2605.06501)."""
    product = partial(attend, score=score, normalizer=kernel)
    dual, _ = cg(lambda a: product(x, x, a) + penalty * a, y, tol=1e-7, maxiter=1_000)
    return product(query, x, dual)


def parallax(query, key, value, probe):
    """mean_w(v) + cov_w(v, k) r: the local constant with a slope that the probe r [Q, D] gives instead of a solver
    (Parallax, arXiv 2605.29157). The covariance is the derivative of `attend` in the direction r."""
    mean, slope = jax.jvp(lambda query: attend(query, key, value, score=Dot()), (query,), (probe,))
    return mean + slope


def on_circle(attention: Attention) -> Estimator:
    """Attention as an estimator in one dimension: inputs are points of a circle with a radius of 1 / width, on which a
    dot product is a constant minus half of the squared distance (d2l 11.3.1)."""
    point = lambda x, width: jnp.concatenate([jnp.cos(x), jnp.sin(x)], axis=1) / width
    return lambda query, x, y, width: attention(point(query, width), point(x, width), y)


def curve(x):
    return jnp.sin(3 * x) + 2 * x


def mean_squared_error(estimator: Estimator, points: int, at: float) -> float:
    """Squared bias + variance of the estimate of `curve` at one query, for n equally spaced inputs in [0, 1]."""
    x, width = jnp.arange(0.5, points) / points, 0.3 * points**-0.2

    def estimate(y):
        return estimator(jnp.full((1, 1), at), x[:, None], y[:, None], width)[0, 0]

    mean, weights = jax.jit(jax.value_and_grad(estimate))(curve(x))
    return float((mean - curve(at)) ** 2 + NOISE**2 * jnp.sum(weights**2))


def rate(at: float, estimator: Estimator, seed: int = 0) -> float:
    """The power of n with which the expected squared error falls for h ~ n^(-1/5), which balances h^4 and 1 / (n h).

    Inside of the data -4/5 for both estimators; at the boundary the bias of the local constant is of order h instead of
    h^2, and its error falls with n^(-2/5), while the local linear one keeps -4/5 (Fan & Gijbels 1996, section 3.2.5).
    """
    return float(np.polyfit(np.log(SIZES), np.log([mean_squared_error(estimator, n, at) for n in SIZES]), 1)[0])


def rate_on_circle(at: float, attention: Attention, seed: int = 0) -> float:
    """`rate` of any attention function as an estimator; that of softmax attention is the local constant's."""
    return rate(at, on_circle(attention))


def normal_equations(solver, seed: int = 0) -> float:
    """The largest error of kernel ridge regression against the normal equations in float64, over the largest value."""
    at, key = (np.asarray(a, np.float64) for a in jax.random.normal(jax.random.key(seed), (2, 300, 2)))
    value = np.sin(2 * key)
    kernel = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2)
    exact = kernel(at, key) @ np.linalg.solve(kernel(key, key) + 0.1 * np.eye(len(key)), value)
    actual = jax.jit(solver)(*(jnp.asarray(a, jnp.float32) for a in (at, key, value)))
    return float(np.abs(np.asarray(actual, np.float64) - exact).max() / np.abs(exact).max())


def best_probe(query, key, penalty: float):
    """cov_w(k, k)^-1 (q - mean_w(k)) [Q, D]: the probe of the least-squares slope under the weights of `attend`."""
    weights = attention_weights(query, key, score=Dot())
    mean = weights @ key
    away = key[None] - mean[:, None]  # [Q, K, D]
    covariance = jnp.einsum("qk,qkd,qke->qde", weights, away, away) + penalty * jnp.eye(key.shape[1])[None]
    return jnp.linalg.solve(covariance, (query - mean)[..., None])[..., 0]


def as_local_linear(estimator, seed: int = 0) -> float:
    """The largest difference of Parallax with the best probe to local linear attention, over its largest value."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 200, 3))
    exact = jax.jit(lambda *rows: attend(*rows, score=Dot(), pool=LocalLinear(ridge=0.1)))(query, key, value)
    actual = jax.jit(lambda *rows: estimator(*rows, best_probe(*rows[:2], 0.1)))(query, key, value)
    return float(jnp.max(jnp.abs(actual - exact)) / jnp.max(jnp.abs(exact)))


def rates_figure(sizes=SIZES) -> dict[str, tuple]:
    """{estimator: (n, expected error at the boundary)} of the two estimators with a width."""
    kinds = {"local constant": local_constant, "local linear": local_linear}
    return {
        name: (sizes, [math.sqrt(mean_squared_error(estimator, n, 0.0)) for n in sizes])
        for name, estimator in kinds.items()
    }
