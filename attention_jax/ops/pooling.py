"""Poolings: how attention weights and values become outputs, `attend(..., pool=...)`.

A pooling is a pytree with three methods: `lift` replaces the values of `attend`, `terms` says what each query sums over
them, and `finish` computes the output from these sums. So every pooling works with every score, mask, normalizer and
implementation, and has all their derivatives.

Sums about a center, as of variances, are about one that each query computes from its own keys: what another query sees
changes nothing, not even by rounding.

>>> import jax.numpy as jnp
>>> from attention_jax.ops.attention import attend
>>> x = jnp.array([[0.0], [1.0], [2.0]])
>>> attend(jnp.array([[0.5]]), x, 3 * x, pool=LocalLinear()).round(4).tolist()
[[1.5]]
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.ops.precision import accumulator, widest
from attention_jax.ops.trees import pytree

__all__ = ["LocalLinear", "LogMixture", "Mean", "Moments", "Pool"]


class Terms:
    """Base class of what a query sums over the keys: pytrees whose leaves lead with the axis of queries."""

    def __call__(self, weights: Float[Array, " K"], value: Float[Array, "K P"]) -> Float[Array, " S"]:
        """Compute the sums of one query, from its weights and the lifted values."""
        raise NotImplementedError


class Pool:
    """Base class of poolings; without overrides the weighted sum of the values.

    >>> Pool().lift(jnp.ones((2, 1)), jnp.ones((2, 3))).shape
    (2, 3)
    """

    def lift(self, key: Float[Array, "K E"], value: Float[Array, "K V"]) -> Float[Array, "K P"]:
        """Return the arrays to sum in place of the values."""
        return value

    def terms(
        self,
        query: Float[Array, "Q D"],
        lifted: Float[Array, "K P"],
        pooled: Callable[[Float[Array, "K P"], Terms | None], Float[Array, "Q S"]],
        largest: Callable[[Float[Array, "K P"]], Float[Array, "Q P"]],
    ) -> Terms | None:
        """Return what each query sums, None for the lifted values. It has no derivative, so the output must not depend
        on it except for rounding. `pooled(values, terms)` are weighted sums, `largest(values)` the largest values of
        the keys that each query may attend to; each goes through the keys once."""
        return None

    def finish(
        self, query: Float[Array, "Q D"], pooled: Float[Array, "Q S"], terms: Terms | None, width: int
    ) -> Float[Array, "Q W"]:
        """Compute the output from the weighted sums and the width V of the values."""
        return pooled


def as_pool(pool) -> Pool:
    """Return `pool`; InputError unless it is a pooling."""
    if not isinstance(pool, Pool):
        raise InputError(f"pool must be a pooling such as Mean(), got {pool!r}")
    return pool


@pytree
@dataclass(frozen=True)
class Mean(Pool):
    """The weighted sum of the values, sum_j w_j v_j [Q, V]: the default of `attend`.

    >>> from attention_jax.ops.attention import attend
    >>> attend(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([[1.0], [3.0]]), pool=Mean()).tolist()
    [[2.0]]
    """


@pytree
@dataclass(frozen=True)
class Moments(Pool):
    """The weighted mean of the values and their variance: attention with an error bar, [Q, 2 V].

    The variance is that about the mean, and the weights are divided by their sum. `attend` goes through the keys twice,
    for sums about the mean of each query: the mean of the squares minus the square of the mean would lose a variance
    that is small beside either.

    >>> from attention_jax.ops.attention import attend
    >>> attend(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([[1.0], [3.0]]), pool=Moments()).tolist()
    [[2.0, 1.0]]
    """

    def lift(self, key, value):
        return value.astype(accumulator(value.dtype))

    def terms(self, query, lifted, pooled, largest):
        return _Squares(_means(lifted, pooled))

    def finish(self, query, pooled, terms, width):
        mass, divided = _divide_by_mass(pooled)
        first, second = divided[:, :width], divided[:, width:]
        return jnp.concatenate([(terms.center + first) * mass, jnp.maximum(second - first**2, 0)], axis=1)


@pytree
@dataclass(frozen=True)
class _Squares(Terms):
    """The sums of w_j, w_j x_j and w_j x_j^2 with x_j = v_j - center, [1 + 2 V]."""

    center: Float[Array, "Q V"]

    def __call__(self, weights, value):
        away = _zero_unreached(weights, value - self.center[None])
        return jnp.concatenate([weights.sum()[None], _sum(weights, away), _sum(weights, jnp.square(away))])


@pytree
@dataclass(frozen=True)
class LocalLinear(Pool):
    """Local linear attention: a weighted linear regression at each query (Stone 1977; Zuo et al. 2025).

    The result [Q, V] is the a of the (a, b) that minimize sum_j w_j (|v_j - a - b (k_j - q)|^2 + ridge |b|^2) (Stone
    1977; Fan 1992; as attention: Zuo et al. 2025). Without `ridge` it is 1e-6 times the mean variance of a feature of
    the keys that the query attends to, whatever their unit; features may be multiples of one another, and keys fewer
    than features. Features in which the keys of a query are the same to rounding have slope 0, so that the result is
    the mean of the values where all keys are the same.

    Plain attention has b = 0. Queries and keys have one width D, else InputError. `attend` goes through the keys four
    times: for their mean, twice for the slopes b, and for the line through what these leave (iterative refinement). The
    sums have (1 + D) (1 + D + V) numbers per query, and each query solves D equations: for D up to about 16.

    In float32 the result is that of float64 to about 1e-3 of the values (5e-3 where features are multiples of one
    another), and for most queries to 1e-5. Slopes in
    directions in which the keys vary by less than 1e-2 of their spread, but do vary, are less precise: a query away
    from the keys there is off by up to a fifth of its result. A larger `ridge`, 1e-4 times the variance, avoids it.

    >>> from attention_jax.ops.attention import attend
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> attend(jnp.array([[0.5]]), x, 3 * x, pool=LocalLinear()).round(4).tolist()
    [[1.5]]
    """

    ridge: Float[Array, ""] | float | None = None

    def lift(self, key, value):
        precision = accumulator(widest(key, value))
        return jnp.concatenate([key.astype(precision), value.astype(precision)], axis=1)  # [K, D + V]

    def terms(self, query, lifted, pooled, largest):
        features, center = query.shape[1], _means(lifted, pooled)
        if features > lifted.shape[1]:
            raise InputError(f"LocalLinear needs queries as wide as keys, got {features} and fewer")
        slopes = jnp.zeros((*center.shape[:1], features, lifted.shape[1] - features), center.dtype)
        terms = _Residuals(center[:, :features], center[:, features:], slopes)
        for stiffness in (1e-4, 0.0):  # a stiff line first, whose slopes are small where the keys do not vary
            slopes = self._line(pooled(lifted, terms), terms, stiffness)[2]
            terms = _Residuals(terms.key, terms.value, jax.lax.stop_gradient(slopes))
        return terms

    def finish(self, query, pooled, terms, width):
        mass, (key, value), slopes = self._line(pooled, terms)
        away = jnp.where(mass != 0, query.astype(pooled.dtype) - key, 0.0)  # [Q, D], 0 for a query without keys
        return (value + _times(away[:, None], slopes)[:, 0]) * mass

    def _line(self, pooled: Float[Array, "Q S"], terms: "_Residuals", stiffness: float = 0.0):
        """Compute whether each query has a weight [Q, 1], the means of the keys [Q, D] and values [Q, V], and the
        slopes [Q, D, V]. Those of `terms` are corrected by what they leave of the normal equations; with `stiffness` by
        a solution whose ridge is at least that share of the variance."""
        queries, features, width = terms.slopes.shape
        mass, divided = _divide_by_mass(pooled)
        unit = jnp.ones((queries, 1), pooled.dtype)
        sums = jnp.concatenate([unit, divided], axis=1).reshape(queries, 1 + features, 1 + features + width)
        key, left = sums[:, 0, 1 : 1 + features], sums[:, 0, 1 + features :]  # means, about those of `terms`
        covariance = sums[:, 1:, 1 : 1 + features] - key[:, :, None] * key[:, None, :]
        eps = float(jnp.finfo(pooled.dtype).eps)
        # the mean of equal keys differs from them by a rounding, whose square is no variance
        varies = jnp.diagonal(covariance, axis1=1, axis2=2) > jnp.square(4 * eps * (terms.key + key))  # [Q, D]
        covariance = jnp.where(varies[:, :, None] & varies[:, None, :], covariance, 0.0)
        mixed = sums[:, 1:, 1 + features :] - key[:, :, None] * left[:, None, :]
        variance = jnp.maximum(jnp.trace(covariance, axis1=1, axis2=2) / features, 0)  # [Q]
        ridge = 1e-6 * variance if self.ridge is None else jnp.asarray(self.ridge, pooled.dtype)
        ridge = jnp.broadcast_to(ridge, variance.shape)[:, None, None]
        rounding = 2 * eps * variance[:, None, None]
        solved = jnp.maximum(ridge, stiffness * variance[:, None, None]) + rounding
        solved = jnp.where(solved > 0, solved, 1.0)  # all keys are the same
        matrix = covariance + solved * jnp.eye(features, dtype=pooled.dtype)[None]
        slopes = terms.slopes + jnp.linalg.solve(matrix, mixed - ridge * terms.slopes)
        slopes = jnp.where(varies[:, :, None], slopes, 0.0)
        value = terms.value + left + _times(key[:, None], terms.slopes)[:, 0]
        return mass, (terms.key + key, value), slopes


@pytree
@dataclass(frozen=True)
class _Residuals(Terms):
    """The sums of w_j (1, x_j)^T (1, x_j, r_j), [(1 + D) (1 + D + V)], with x_j = k_j - key, and r_j = v_j - value -
    x_j slopes, what a line leaves of the values."""

    key: Float[Array, "Q D"]
    value: Float[Array, "Q V"]
    slopes: Float[Array, "Q D V"]

    def __call__(self, weights, value):
        away = _zero_unreached(weights, value - jnp.concatenate([self.key, self.value])[None])
        unit, key, value = jnp.ones_like(weights)[:, None], *jnp.split(away, [len(self.key)], axis=1)
        right = jnp.concatenate([unit, key, value - _times(key, self.slopes)], axis=1)
        return _times((weights[:, None] * right[:, : 1 + len(self.key)]).T, right).reshape(-1)


@pytree
@dataclass(frozen=True)
class LogMixture(Pool):
    """A mixture of distributions: the attention weights mix values that are log-probabilities (Wu et al. 2018).

    The result [Q, V] is log sum_j w_j exp(v_j), as in latent attention (eq. 5). It is -inf for a fully masked query,
    and for one all of whose weights above 0 are of values more than 87 (the range of float32) below the largest value
    that it may attend to.

    >>> from attention_jax.ops.attention import attend
    >>> x, log_p = jnp.ones((2, 2)), jnp.log(jnp.array([[0.5], [1.0]]))
    >>> jnp.exp(attend(x[:1], x, log_p, pool=LogMixture())).round(4).tolist()
    [[0.75]]
    """

    def lift(self, key, value):
        return value.astype(accumulator(value.dtype))

    def terms(self, query, lifted, pooled, largest):
        bound = jax.lax.stop_gradient(largest(lifted))
        return _Exponentials(jnp.where(jnp.isfinite(bound), bound, 0.0))

    def finish(self, query, pooled, terms, width):
        is_positive = pooled != 0
        return jnp.where(is_positive, jnp.log(jnp.where(is_positive, pooled, 1.0)) + terms.largest, -jnp.inf)


@pytree
@dataclass(frozen=True)
class _Exponentials(Terms):
    """The sums of w_j exp(v_j - largest), [V]."""

    largest: Float[Array, "Q V"]

    def __call__(self, weights, value):
        away = value - self.largest[None]
        unseen = (weights == 0)[:, None] & ~(away <= 0)
        return _sum(weights, jnp.exp(jnp.where(unseen, 0.0, away)))


def _means(lifted, pooled):
    """Compute each query's weighted mean of the lifted values [Q, P], without gradient: sums about it do not depend on
    it."""
    finite = jnp.where(jnp.isfinite(lifted), lifted, 0.0)  # a query is not reached by what it does not see
    unit = jnp.ones_like(finite[:, :1])
    return jax.lax.stop_gradient(_divide_by_mass(pooled(jnp.concatenate([unit, finite], axis=1), None))[1])


def _zero_unreached(weights, x):
    """Replace numbers of x [K, P] by 0 that are, or whose squares are, not finite, of keys without a weight [K]: 0
    times infinity is NaN."""
    return jnp.where((weights == 0)[:, None] & ~jnp.isfinite(jnp.square(x)), 0.0, x)


def _times(a, b):
    return jnp.matmul(a, b, precision=jax.lax.Precision.HIGHEST)


def _sum(weights, x):
    return _times(weights[None], x)[0]


def _divide_by_mass(pooled):
    """Return (1 where a query has a nonzero weight, else 0, [Q, 1]; the other sums divided by the sum of the
    weights)."""
    mass = pooled[:, :1]
    has_mass = mass != 0
    return has_mass.astype(pooled.dtype), jnp.where(has_mass, pooled[:, 1:] / jnp.where(has_mass, mass, 1.0), 0.0)
