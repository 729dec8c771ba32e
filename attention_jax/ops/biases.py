"""Biases: callable pytrees `bias(query [Q, D], query_positions [Q], key_positions [K]) -> [Q, K]`, added to the score.

They are how attention learns about (relative) positions. Parameters are leaves; biases per
head are vmapped with the heads.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax import InputError
from attention_jax.ops.positions import rotary
from attention_jax.ops.precision import accumulator
from attention_jax.ops.trees import pytree


def _relative(query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"]) -> Int[Array, "Q K"]:
    return key_positions[None, :] - query_positions[:, None]


class Bias:
    """What all biases share: their signature."""

    def __call__(
        self, query: Float[Array, "Q D"], query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"]
    ) -> Float[Array, "Q K"]:
        raise NotImplementedError


@pytree
@dataclass(frozen=True)
class ShawBias(Bias):
    """q . a[clip(k - q, -c, c)] / sqrt(D) with `table` a [2 c + 1, D] (Shaw et al. 2018, eq. 4-5;
    values get no vectors of positions, eq. 3).

    With the score `ScaledDot` this is q . (k + a) / sqrt(D). One product with the table serves all keys.
    """

    table: Float[Array, "R D"]

    def __call__(self, query, query_positions, key_positions):
        reach = self.table.shape[0] // 2
        precision = accumulator(query.dtype)
        products = jnp.einsum("qd,rd->qr", query, self.table, preferred_element_type=precision)  # [Q, 2 c + 1]
        index = jnp.clip(_relative(query_positions, key_positions), -reach, reach) + reach
        return jnp.take_along_axis(products, index, axis=1) * query.shape[-1] ** -0.5

    @classmethod
    def init(cls, rng: Array, width: int, reach: int) -> "ShawBias":
        """A table for relative positions -reach..reach."""
        return cls(jax.nn.initializers.glorot_uniform()(rng, (2 * reach + 1, width)))


@pytree
@dataclass(frozen=True)
class TransformerXLBias(Bias):
    """q . W r(q - k) / sqrt(D), where r is the sinusoid of the distance and `kernel` W [D, S] is learned (Dai et al.
    2019, section 3.3, terms b and d). S is even: half of r are cosines, the other half sines.

    With the score `ScaledDot` this is q . (k + W r), for distances never seen in training too. Their u and v (terms c
    and d) are here one vector a layer, the bias term of the projection that makes q, if it has one. r(i - j) is r(-j)
    rotated by i, so W^T q is rotated instead and meets the sinusoids of the keys: products of width S a pair, where
    `ShawBias` picks from a table. Angles are of positions, in float32: about 2e-4 off at position 16,000.
    """

    kernel: Float[Array, "D S"]

    def __call__(self, query, query_positions, key_positions):
        precision = accumulator(query.dtype)
        asked = jnp.matmul(query, self.kernel, preferred_element_type=precision)  # W^T q, [Q, S]
        zero = jnp.repeat(jnp.array([1, 0], precision), self.kernel.shape[1] // 2)  # r(0): cosines, then sines
        waves = rotary(jnp.broadcast_to(zero, (key_positions.shape[0], zero.shape[0])), -key_positions)  # r(-j)
        return rotary(asked, -query_positions) @ waves.T * query.shape[-1] ** -0.5

    @classmethod
    def init(cls, rng: Array, width: int, sinusoids: int) -> "TransformerXLBias":
        """Distances as `sinusoids` numbers, which must be even."""
        if sinusoids % 2:
            raise InputError(f"sinusoids must be even, half of them cosines; got {sinusoids}")
        return cls(jax.nn.initializers.glorot_uniform()(rng, (width, sinusoids)))


@pytree
@dataclass(frozen=True)
class T5Bias(Bias):
    """A learned scalar for each bucket of k - q, `table` [buckets] (Raffel et al. 2020, section 2.1).

    Half of the buckets are for single steps, the other half grow logarithmically up to `max_distance`,
    beyond which all share the last one. `bidirectional` gives half of all buckets to keys after the query;
    otherwise these share bucket 0.
    """

    table: Float[Array, " buckets"]
    max_distance: int = field(default=128, metadata={"static": True})
    bidirectional: bool = field(default=True, metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        return self.table[self.bucket(_relative(query_positions, key_positions))]

    def bucket(self, relative: Int[Array, "Q K"]) -> Int[Array, "Q K"]:
        """The bucket of each relative position k - q."""
        buckets = self.table.shape[0] // (2 if self.bidirectional else 1)
        after = jnp.where(relative > 0, buckets, 0) if self.bidirectional else jnp.zeros_like(relative)
        distance = jnp.abs(relative) if self.bidirectional else jnp.maximum(-relative, 0)
        exact = buckets // 2
        growth = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(self.max_distance / exact)
        far = jnp.minimum(exact + (growth * (buckets - exact)).astype(relative.dtype), buckets - 1)
        return after + jnp.where(distance < exact, distance, far)

    @classmethod
    def init(cls, rng: Array, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> "T5Bias":
        """A small normal table, as for any embedding."""
        return cls(0.02 * jax.random.normal(rng, (buckets,)), max_distance, bidirectional)


@pytree
@dataclass(frozen=True)
class Location(Bias):
    """W q at the position of the key: the query alone says where to attend to (Luong et al. 2015, eq. 8, "location").

    `kernel` [D, P] has a column for each of P positions. With the score `Constant` this is the paper's whole score,
    where shorter sentences use the first columns. A key beyond them has NaN, unless a mask forbids it.
    """

    kernel: Float[Array, "D P"]

    def __call__(self, query, query_positions, key_positions):
        if key_positions.shape[0] > self.kernel.shape[1]:
            raise InputError(
                f"score location knows {self.kernel.shape[1]} source positions, got {key_positions.shape[0]}: "
                "shorten the sentences"
            )
        return jnp.take(query @ self.kernel, key_positions, axis=1, mode="fill", fill_value=jnp.nan)

    @classmethod
    def init(cls, rng: Array, width: int, positions: int) -> "Location":
        """Glorot-uniform over `positions` positions."""
        return cls(jax.nn.initializers.glorot_uniform()(rng, (width, positions)))


@pytree
@dataclass(frozen=True)
class ALiBi(Bias):
    """-slope * |q - k| (Press et al. 2022, section 3), the slope fixed per head."""

    slope: Float[Array, ""] | float

    def __call__(self, query, query_positions, key_positions):
        distance = jnp.abs(_relative(query_positions, key_positions))
        return -self.slope * distance.astype(accumulator(query.dtype))

    @staticmethod
    def slopes(heads: int) -> Float[np.ndarray, " heads"]:
        """The geometric sequence of the paper: 2^(-8/n), 2^(-16/n), ...; for n no power of two,
        every other slope of 2n fills up.

        >>> ALiBi.slopes(4).tolist()
        [0.25, 0.0625, 0.015625, 0.00390625]
        """
        whole = 2 ** int(math.log2(heads))
        slopes = 2.0 ** (-8.0 / whole * np.arange(1, whole + 1))
        between = 2.0 ** (-4.0 / whole * np.arange(1, 2 * whole + 1, 2))
        return np.concatenate([slopes, between[: heads - whole]]).astype(np.float32)
