"""Position biases: callable pytrees `bias(query [Q, D], query_positions [Q], key_positions [K]) -> [Q, K]` that are
added to the logits. Their parameters are leaves; a bias per head is vmapped with the heads.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.errors import InputError
from attention_jax.ops.kernels.terms import Terms
from attention_jax.ops.positions import as_positions, rotary
from attention_jax.ops.precision import accumulator, promote_arrays
from attention_jax.ops.trees import pytree

__all__ = ["ALiBi", "Bias", "Forget", "Location", "ShawBias", "T5Bias", "TransformerXLBias", "contextual_bias"]


def _relative(query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"]) -> Int[Array, "Q K"]:
    return as_positions(key_positions)[None, :] - as_positions(query_positions)[:, None]


class Bias:
    """Base class of position biases, added to the logits [Q, K] of a score.

    A subclass is a dataclass registered by `pytree` that defines `__call__`.

    >>> ALiBi(slope=1.0)(jnp.ones((1, 2)), jnp.array([2]), jnp.arange(3)).tolist()
    [[-2.0, -1.0, -0.0]]
    """

    def __call__(
        self, query: Float[Array, "Q D"], query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"]
    ) -> Float[Array, "Q K"]:
        raise NotImplementedError

    def terms(self, query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"], causal: bool) -> Terms | None:
        """The bias as `Terms(key_term=..., query_term=...)`, which kernels of GPUs and TPUs add; None, the default, if
        it is no sum of these. `causal` promises that no key is after its query. A class that overrides `__call__` does
        not inherit it."""
        return None


@pytree
@dataclass(frozen=True)
class ShawBias(Bias):
    """Relative position representations: a learned vector per distance, dotted with the query (Shaw et al. 2018).

    It is q . a[clip(k - q, -c, c)] / sqrt(D) with `table` a [2 c + 1, D] (eq. 4-5; values get no vectors of positions,
    eq. 3).

    With the score `ScaledDot` this is q . (k + a) / sqrt(D). One matmul with the table serves all keys.

    >>> bias = ShawBias(jnp.array([[1.0], [0.0], [2.0]]))  # relative positions -1, 0 and 1
    >>> bias(jnp.array([[1.0]]), jnp.array([1]), jnp.arange(4)).tolist()
    [[1.0, 0.0, 2.0, 2.0]]
    """

    table: Float[Array, "R D"]

    def __call__(self, query, query_positions, key_positions):
        if self.table.shape[0] % 2 == 0:
            raise InputError(f"ShawBias needs a table of 2 c + 1 rows, an odd number, got {list(self.table.shape)}")
        reach = self.table.shape[0] // 2
        query, table = promote_arrays(query, self.table)
        precision = accumulator(query.dtype)
        products = jnp.einsum("qd,rd->qr", query, table, preferred_element_type=precision)  # [Q, 2 c + 1]
        index = jnp.clip(_relative(query_positions, key_positions), -reach, reach) + reach
        return jnp.take_along_axis(products, index, axis=1) * query.shape[-1] ** -0.5

    @classmethod
    def init(cls, rng: Array, width: int, reach: int) -> "ShawBias":
        """A table for relative positions -reach..reach."""
        return cls(jax.nn.initializers.glorot_uniform()(rng, (2 * reach + 1, width)))


@pytree
@dataclass(frozen=True)
class TransformerXLBias(Bias):
    """Transformer-XL's relative position bias, from sinusoids of the distance (Dai et al. 2019).

    It is q . W r(i - j) / sqrt(D) for a query at i and a key at j, with r the sinusoid of the distance and a learned
    `kernel` W [D, S] (section 3.3, terms b and d). S is even: half of r are cosines, half sines.

    With the score `ScaledDot` this is q . (k + W r), also for distances beyond those in training. The paper's u and v
    (terms c and d) are one vector per layer here, the bias of the query projection, if it has one. r(i - j) is r(-j)
    rotated by i, so W^T q is rotated instead and multiplied by the sinusoids of the keys: S multiplications per pair,
    where `ShawBias` gathers from a table. Angles are exact to about 2e-4 up to position 4,096, and to 1e-6 beyond.

    >>> bias = TransformerXLBias.init(jax.random.key(0), width=4, sinusoids=6)
    >>> bias(jnp.ones((2, 4)), jnp.arange(2), jnp.arange(3)).shape
    (2, 3)
    """

    kernel: Float[Array, "D S"]

    def __call__(self, query, query_positions, key_positions):
        query, kernel = promote_arrays(query, self.kernel)
        precision = accumulator(query.dtype)
        projected_query = jnp.matmul(query, kernel, preferred_element_type=precision)  # W^T q, [Q, S]
        zero = jnp.repeat(jnp.array([1, 0], precision), kernel.shape[1] // 2)  # r(0): cosines, then sines
        query_positions, key_positions = as_positions(query_positions), as_positions(key_positions)
        waves = rotary(jnp.broadcast_to(zero, (key_positions.shape[0], zero.shape[0])), -key_positions)  # r(-j)
        return rotary(projected_query, -query_positions) @ waves.T * query.shape[-1] ** -0.5  # [Q, K]

    @classmethod
    def init(cls, rng: Array, width: int, sinusoids: int) -> "TransformerXLBias":
        """Glorot-uniform W with S = `sinusoids`; InputError if that is odd."""
        if sinusoids % 2:
            raise InputError(f"sinusoids must be even, half of them cosines; got {sinusoids}")
        return cls(jax.nn.initializers.glorot_uniform()(rng, (width, sinusoids)))


@pytree
@dataclass(frozen=True)
class T5Bias(Bias):
    """T5's relative position bias: a learned number per bucket of distances (Raffel et al. 2020).

    `table` [buckets] has the number for each bucket of relative positions k - q (section 2.1).

    Half of the buckets hold one distance each, the other half grow logarithmically up to `max_distance` (positions),
    beyond which all share the last one. `bidirectional` gives half of all buckets to keys after the query; otherwise
    these share bucket 0. There is at least one bucket for each direction, and a direction with one shares it. Raises
    InputError for a shorter table, and unless `max_distance` exceeds the number of buckets with one distance each.

    >>> bias = T5Bias(jnp.arange(4.0), max_distance=8, bidirectional=False)
    >>> bias(jnp.ones((1, 2)), jnp.array([9]), jnp.array([9, 8, 4, 0])).tolist()
    [[0.0, 1.0, 3.0, 3.0]]
    """

    table: Float[Array, " buckets"]
    max_distance: int = field(default=128, metadata={"static": True})
    bidirectional: bool = field(default=True, metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        return self.table[self.bucket(_relative(query_positions, key_positions))]

    def bucket(self, relative: Int[Array, "Q K"]) -> Int[Array, "Q K"]:
        """The bucket of each relative position k - q."""
        buckets = self.table.shape[0] // (2 if self.bidirectional else 1)
        first_bucket = jnp.where(relative > 0, buckets, 0) if self.bidirectional else jnp.zeros_like(relative)
        distance = jnp.abs(relative) if self.bidirectional else jnp.maximum(-relative, 0)
        exact = buckets // 2
        if buckets < 1 or self.max_distance <= exact:
            raise InputError(
                f"T5Bias needs at least one bucket for each direction and a max_distance > {exact}, half of these, got "
                f"a table of {self.table.shape[0]} and max_distance {self.max_distance}"
            )
        if not exact:
            return first_bucket
        growth = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(self.max_distance / exact)
        far = jnp.minimum(exact + (growth * (buckets - exact)).astype(relative.dtype), buckets - 1)
        return first_bucket + jnp.where(distance < exact, distance, far)

    @classmethod
    def init(cls, rng: Array, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> "T5Bias":
        """A table sampled from N(0, 0.02^2)."""
        return cls(0.02 * jax.random.normal(rng, (buckets,)), max_distance, bidirectional)


@pytree
@dataclass(frozen=True)
class Location(Bias):
    """Location-based score W q at the position of the key (Luong et al. 2015, eq. 8, "location").

    `kernel` [D, P] has a column for each of P positions. With the score `Constant` this is the paper's whole score,
    of which shorter sentences use the first columns. A key beyond them scores NaN, unless it is masked.

    >>> Location(jnp.array([[1.0, 2.0]]))(jnp.array([[3.0]]), jnp.arange(1), jnp.arange(2)).tolist()
    [[3.0, 6.0]]
    """

    kernel: Float[Array, "D P"]

    def __call__(self, query, query_positions, key_positions):
        if key_positions.shape[0] > self.kernel.shape[1]:
            raise InputError(
                f"score location knows {self.kernel.shape[1]} source positions, got {key_positions.shape[0]}: "
                "shorten the sentences"
            )
        query, kernel = promote_arrays(query, self.kernel)
        return jnp.take(query @ kernel, key_positions, axis=1, mode="fill", fill_value=jnp.nan)

    @classmethod
    def init(cls, rng: Array, width: int, positions: int) -> "Location":
        """Draw a Glorot-uniform kernel [width, positions]."""
        return cls(jax.nn.initializers.glorot_uniform()(rng, (width, positions)))


@pytree
@dataclass(frozen=True)
class ALiBi(Bias):
    """ALiBi: -slope * |i - j| for positions i and j, with a fixed slope per head (Press et al. 2022, section 3).

    >>> ALiBi(slope=0.5)(jnp.ones((1, 2)), jnp.array([2]), jnp.arange(3)).tolist()
    [[-1.0, -0.5, -0.0]]
    """

    slope: Float[Array, ""] | float

    def __call__(self, query, query_positions, key_positions):
        distance = jnp.abs(_relative(query_positions, key_positions)).astype(accumulator(query.dtype))
        return -jnp.asarray(self.slope, distance.dtype) * distance

    def terms(self, query_positions, key_positions, causal):
        """slope * (j - i), with positions from the middle of the keys."""
        middle = key_positions.shape[0] // 2
        i, j = ((as_positions(x) - middle).astype(jnp.float32) for x in (query_positions, key_positions))
        return Terms(key_term=j, query_term=-i, factor=self.slope) if causal else None

    @staticmethod
    def slopes(heads: int) -> Float[np.ndarray, " heads"]:
        """The geometric sequence of the paper: 2^(-8/n), 2^(-16/n), ... for n heads; if n is not a power of two, every
        other slope of the next one is appended.

        >>> ALiBi.slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
        """
        power_of_two = 2 ** int(math.log2(heads))
        slopes = 2.0 ** (-8.0 / power_of_two * np.arange(1, power_of_two + 1))
        between = 2.0 ** (-4.0 / power_of_two * np.arange(1, 2 * power_of_two + 1, 2))
        return np.concatenate([slopes, between[: heads - power_of_two]]).astype(np.float32)


@pytree
@dataclass(frozen=True)
class Forget(Bias):
    """Forget gates (Forgetting Transformer): the sum of log f over the positions between a key and its query.

    Lin et al. 2025, arXiv 2503.02130, section 3.
    `total` [T] is c_t = log f_1 + ... + log f_t, of gates f between 0 and 1; a key at j has the bias c_i - c_j for a
    query at i. A key after its query, which the paper does not have, gets c_j - c_i, so that an encoder forgets in both
    directions. With equal gates this is `ALiBi`, whose slope is -log f. A position beyond `total` has NaN.

    >>> gates = jnp.array([0.9, 0.5, 0.25])
    >>> bias = Forget(jnp.cumsum(jnp.log(gates)))(jnp.ones((1, 2)), jnp.array([2]), jnp.arange(3))
    >>> jnp.exp(bias).round(4).tolist()  # of the key itself, of one gate between, and of two
    [[0.125, 0.25, 1.0]]
    """

    total: Float[Array, " T"]

    def __call__(self, query, query_positions, key_positions):
        difference = self._at(query_positions)[:, None] - self._at(key_positions)[None, :]
        return jnp.where(_relative(query_positions, key_positions) <= 0, difference, -difference)

    def terms(self, query_positions, key_positions, causal):
        """c_i - c_j, both less that of the middle of the keys."""
        middle = jax.lax.stop_gradient(self.total[self.total.shape[0] // 2])
        i, j = (self._at(x) - middle for x in (query_positions, key_positions))
        return Terms(key_term=-j, query_term=i) if causal else None

    def _at(self, positions):
        return jnp.take(self.total, as_positions(positions), mode="fill", fill_value=jnp.nan)


def contextual_bias(
    query: Float[Array, "Q D"], logits: Float[Array, "Q K"], table: Float[Array, "P D"]
) -> Float[Array, "Q K"]:
    """Contextual position encoding (CoPE): the bias q . e[p] of positions p that count only some of the keys.

    Golovneva et al. 2024, arXiv 2405.18719, section 4.
    `logits` are the scores of the keys, -inf for those that a query may not attend to. A key counts by its gate
    sigmoid(logit), and the position of key j for a query is the sum of the gates of the keys from j to the last one
    that the query may attend to, at most P - 1. `table` e has a row for each whole position; those between are
    interpolated. It needs memory for Q * K numbers.

    >>> query, logits = jnp.ones((1, 1)), jnp.array([[0.0, 100.0, 0.0, -jnp.inf]])  # gates 1/2, 1, 1/2, 0
    >>> contextual_bias(query, logits, jnp.array([[0.0], [10.0], [20.0]])).tolist()
    [[20.0, 15.0, 5.0, 0.0]]
    """
    gates = jax.nn.sigmoid(logits)
    positions = jnp.minimum(jax.lax.cumsum(gates, axis=1, reverse=True), table.shape[0] - 1)  # [Q, K]
    lower = jnp.floor(positions)
    query, table = promote_arrays(query, table)
    products = jnp.matmul(query, table.T, preferred_element_type=logits.dtype)  # [Q, P]
    at = lambda index: jnp.take_along_axis(products, index.astype(jnp.int32), axis=1)
    share = positions - lower
    return at(lower) * (1 - share) + at(jnp.ceil(positions)) * share
