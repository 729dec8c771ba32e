"""Poolings: how attention weights and values become outputs, `attend(..., pool=...)`.

A pooling is a pytree with two methods: `lift` replaces the values of `attend`, and `finish` computes the output from
their weighted sums. So every pooling works with every score, mask, normalizer and implementation, and has all their
derivatives.

>>> import jax.numpy as jnp
>>> from attention_jax.ops.attention import attend
>>> x = jnp.array([[0.0], [1.0], [2.0]])
>>> attend(jnp.array([[0.5]]), x, 3 * x, pool=LocalLinear()).round(4).tolist()
[[1.5]]
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.errors import InputError
from attention_jax.ops.precision import accumulator
from attention_jax.ops.trees import pytree

__all__ = ["LocalLinear", "LogMixture", "Mean", "Moments", "Pool"]


class Pool:
    """Base class of poolings; without overrides the weighted sum of the values.

    >>> Pool().lift(jnp.ones((2, 1)), jnp.ones((2, 3)), jnp.ones(2, bool))[0].shape
    (2, 3)
    """

    def lift(
        self, key: Float[Array, "K E"], value: Float[Array, "K V"], attended: Bool[Array, " K"]
    ) -> tuple[Float[Array, "K P"], object]:
        """Return (arrays to sum in place of the values, auxiliary data for `finish`). The latter may depend only on the
        `attended` keys, those that some query may attend to."""
        return value, None

    def finish(
        self, query: Float[Array, "Q D"], pooled: Float[Array, "Q P"], known: object, width: int
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
    for the variance with the mean of each query: the mean of the squares minus the square of the mean would lose a
    variance that is small beside either.

    >>> from attention_jax.ops.attention import attend
    >>> attend(jnp.ones((1, 2)), jnp.ones((2, 2)), jnp.array([[1.0], [3.0]]), pool=Moments()).tolist()
    [[2.0, 1.0]]
    """

    def lift(self, key, value, attended):
        value = value.astype(accumulator(value.dtype))
        center = _mean(value, attended)
        moved = value - center[None]
        return jnp.concatenate([jnp.ones_like(moved[:, :1]), moved], axis=1), center

    def means(self, pooled: Float[Array, "Q P"]) -> Float[Array, "Q V"]:
        """The weighted means of the lifted values, which `attend` appends to `pooled` with the weighted sums of
        squares about them: mass, values, squares, means [Q, 1 + 3 V]."""
        return _divided(pooled)[1]

    def finish(self, query, pooled, known, width):
        if pooled.shape[1] == 1 + width:
            raise InputError("Moments needs the squares about the mean, which attend adds: call attend(pool=Moments())")
        mass, divided = _divided(pooled[:, : 1 + 2 * width])
        first, second = divided[:, :width], divided[:, width:]
        second = second - (first - pooled[:, 1 + 2 * width :]) ** 2 * mass  # 0, but for its second derivative
        return jnp.concatenate([(first + known[None]) * mass, jnp.maximum(second, 0)], axis=1)


@pytree
@dataclass(frozen=True)
class LocalLinear(Pool):
    """Local linear attention: a weighted linear regression at each query (Stone 1977; Zuo et al. 2025).

    The result [Q, V] is the a of the (a, b) that minimize sum_j w_j (|v_j - a - b (k_j - q)|^2 + ridge |b|^2) (Stone
    1977; Fan 1992; as attention: Zuo et al. 2025). Without `ridge` it is 1e-6 times the mean variance of a feature of
    the keys, whatever their unit; features may be multiples of one another.

    Plain attention has b = 0. Queries and keys have one width D, else InputError. The sums have 1 + D + D (D + 1) / 2 +
    V + D V numbers per key, and each query solves D equations: for D up to about 16.

    >>> from attention_jax.ops.attention import attend
    >>> x = jnp.array([[0.0], [1.0], [2.0]])
    >>> attend(jnp.array([[0.5]]), x, 3 * x, pool=LocalLinear()).round(4).tolist()
    [[1.5]]
    """

    ridge: Float[Array, ""] | float | None = None

    def _ridge(self, covariance: Float[Array, "Q D D"]) -> Float[Array, " Q"]:
        if self.ridge is None:
            return jnp.maximum(_trace(covariance, 1e-6), 0)
        return jnp.broadcast_to(jnp.asarray(self.ridge, covariance.dtype), covariance.shape[:1])

    def lift(self, key, value, attended):
        precision = accumulator(value.dtype)
        key, value = key.astype(precision), value.astype(precision)
        center = _mean(key, attended), _mean(value, attended)  # or differences of large numbers
        key, value = key - center[0][None], value - center[1][None]
        rows, columns = jnp.triu_indices(key.shape[1])
        mixed = (key[:, :, None] * value[:, None, :]).reshape(len(key), key.shape[1] * value.shape[1])  # [K, D V]
        lifted = [jnp.ones_like(key[:, :1]), key, key[:, rows] * key[:, columns], value, mixed]
        return jnp.concatenate(lifted, axis=1), center

    def finish(self, query, pooled, known, width):
        features = query.shape[1]
        if features != len(known[0]):
            raise InputError(f"LocalLinear needs queries as wide as keys, got {features} and {len(known[0])}")
        mass, pooled = _divided(pooled)
        rows, columns = jnp.triu_indices(features)
        ends = [features, features + len(rows), features + len(rows) + width]
        key, squares, value, mixed = jnp.split(pooled, ends, axis=1)
        square = jnp.zeros((len(query), features, features), pooled.dtype)
        square = square.at[:, rows, columns].set(squares).at[:, columns, rows].set(squares)
        covariance = square - key[:, :, None] * key[:, None, :]
        ridge = self._ridge(covariance) + _trace(square, 4 * jnp.finfo(pooled.dtype).eps)  # their rounding error
        ridge = jnp.where(ridge > 0, ridge, 1.0)  # all keys are the same
        covariance = covariance + ridge[:, None, None] * jnp.eye(features, dtype=pooled.dtype)[None]
        mixed = mixed.reshape(len(query), features, width) - key[:, :, None] * value[:, None, :]
        slopes = jnp.linalg.solve(covariance, mixed)  # [Q, D, V]
        away = query.astype(pooled.dtype) - known[0][None] - key  # [Q, D]
        return (value + known[1][None] + jnp.einsum("qd,qdv->qv", away, slopes)) * mass


@pytree
@dataclass(frozen=True)
class LogMixture(Pool):
    """A mixture of distributions: the attention weights mix values that are log-probabilities (Wu et al. 2018).

    The result [Q, V] is log sum_j w_j exp(v_j), as in latent attention (eq. 5). It is -inf for a fully masked query,
    and for one whose values are all more than 87 (the range of float32) below the largest value that any query attends
    to.

    >>> from attention_jax.ops.attention import attend
    >>> x, log_p = jnp.ones((2, 2)), jnp.log(jnp.array([[0.5], [1.0]]))
    >>> jnp.exp(attend(x[:1], x, log_p, pool=LogMixture())).round(4).tolist()
    [[0.75]]
    """

    def lift(self, key, value, attended):
        value = value.astype(accumulator(value.dtype))
        largest = jnp.max(value, axis=0, initial=-jnp.inf, where=attended[:, None])
        largest = jax.lax.stop_gradient(jnp.where(jnp.isfinite(largest), largest, 0.0))
        return jnp.exp(value - largest[None]), largest

    def finish(self, query, pooled, known, width):
        some = pooled != 0
        return jnp.where(some, jnp.log(jnp.where(some, pooled, 1.0)) + known[None], -jnp.inf)


def _trace(x, share):
    """Compute a share of the mean of the diagonal of each matrix [Q, D, D]."""
    return jnp.trace(x, axis1=1, axis2=2) * (share / x.shape[-1])


def _mean(x, attended):
    """Compute the mean of the unmasked rows, without gradient: quantities centered about it do not depend on it."""
    count = jnp.maximum(attended.sum(), 1).astype(x.dtype)
    return jax.lax.stop_gradient(jnp.sum(x, axis=0, where=attended[:, None]) / count)


def _divided(pooled):
    """Return whether each query has a nonzero weight, as 0 or 1 [Q, 1], and the other sums divided by that of the
    weights."""
    mass = pooled[:, :1]
    some = mass != 0
    return some.astype(pooled.dtype), jnp.where(some, pooled[:, 1:] / jnp.where(some, mass, 1.0), 0.0)
