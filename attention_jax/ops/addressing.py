"""Content-based and location-based addressing of an external memory: the attention of the Neural Turing Machine.

Graves, Wayne, Danihelka, "Neural Turing Machines", 2014 (arXiv 1410.5401), section 3; equation numbers below are that
paper's. A memory is a matrix `[N, W]` (N locations of width W); a head is a weighting over its rows, `[N]`,
non-negative, summing to one. Everything is written for one head and one memory, and everything is finite for an empty
memory and for extreme strengths.

    content lookup      beta, key          -> w^c   (5), (6)     attention with a cosine score and a learned temperature
    interpolation       g                  -> w^g   (7)
    shift               s                  -> w~    (8)
    sharpening          gamma              -> w     (9)
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

TINY = 1e-12
"""Added under square roots and logarithms: far below float32's resolution of a weight, far
above its underflow when squared."""


class Address(NamedTuple):
    """The addressing parameters that one head emits (section 3.3), each already in its range."""

    key: Float[Array, "W"]
    strength: Float[Array, ""]
    """beta >= 0: how peaked the content lookup is."""
    gate: Float[Array, ""]
    """g in (0, 1): 1 looks by content, 0 keeps the previous weighting."""
    shift: Float[Array, "S"]
    """A distribution over the shifts -(S-1)/2 ... (S-1)/2."""
    sharpening: Float[Array, ""]
    """gamma >= 1."""


def cosine_similarity(memory: Float[Array, "N W"], key: Float[Array, "W"]) -> Float[Array, "N"]:
    """`K[u, v] = u . v / (|u| |v|)`, equation (6), of every row with the key;
    0 (and finite gradients) where a row or the key is 0, and less than it where they are so small that the product of
    their squared lengths is not far above 1e-12, as of a memory that begins at 1e-6 everywhere.

    >>> memory = jnp.array([[3.0, 0.0], [0.0, 0.0], [1.0, 1.0]])
    >>> [round(s, 4) for s in cosine_similarity(memory, jnp.array([2.0, 0.0])).tolist()]
    [1.0, 0.0, 0.7071]
    """
    squares = jnp.sum(memory * memory, axis=-1) * jnp.sum(key * key)  # [N]
    return (memory @ key) * jax.lax.rsqrt(squares + TINY)


def content_weights(
    memory: Float[Array, "N W"], key: Float[Array, "W"], strength: Float[Array, ""]
) -> Float[Array, "N"]:
    """`w^c = softmax(beta K[k, M(i)])`, equation (5), content-based addressing: attention over the rows with a
    cosine score."""
    return jax.nn.softmax(strength * cosine_similarity(memory, key))


def interpolate(content: Float[Array, "N"], previous: Float[Array, "N"], gate: Float[Array, ""]) -> Float[Array, "N"]:
    """`w^g = g w^c + (1 - g) w_{t-1}`, equation (7)."""
    return gate * content + (1 - gate) * previous


def shift(weights: Float[Array, "N"], shifts: Float[Array, "S"]) -> Float[Array, "N"]:
    """Circular convolution `w~(i) = sum_j w^g(j) s(i - j)`, equation (8); the middle of `shifts` is
    "stay", the last "one forward".

    >>> shift(jnp.array([1.0, 0.0, 0.0, 0.0]), jnp.array([0.0, 0.0, 1.0]))
    Array([0., 1., 0., 0.], dtype=float32)
    """
    reach = shifts.shape[0] // 2
    return sum(shifts[j] * jnp.roll(weights, j - reach) for j in range(shifts.shape[0]))


def sharpen(weights: Float[Array, "N"], sharpening: Float[Array, ""]) -> Float[Array, "N"]:
    """`w(i) = w~(i)^gamma / sum_j w~(j)^gamma`, equation (9), computed as
    softmax(gamma log w~): nothing under- or overflows.

    >>> [round(w, 4) for w in sharpen(jnp.array([0.5, 0.25, 0.25]), jnp.array(2.0)).tolist()]
    [0.6667, 0.1667, 0.1667]
    """
    return jax.nn.softmax(sharpening * jnp.log(weights + TINY))


def locate(memory: Float[Array, "N W"], previous: Float[Array, "N"], address: Address) -> Float[Array, "N"]:
    """The whole chain of figure 2: content lookup, interpolation, shift, sharpening."""
    content = content_weights(memory, address.key, address.strength)
    return sharpen(shift(interpolate(content, previous, address.gate), address.shift), address.sharpening)


def read(memory: Float[Array, "N W"], weights: Float[Array, "*heads N"]) -> Float[Array, "*heads W"]:
    """`r = sum_i w(i) M(i)`, equation (2), for one head or several."""
    return weights @ memory


def write(
    memory: Float[Array, "N W"], weights: Float[Array, "H N"], erase: Float[Array, "H W"], add: Float[Array, "H W"]
) -> Float[Array, "N W"]:
    """`M(i) prod_h (1 - w_h(i) e_h) + sum_h w_h(i) a_h`, equations (3) and (4): all heads
    erase, then all add, in any order.

    >>> write(jnp.ones((2, 2)), jnp.array([[0.0, 1.0]]), jnp.ones((1, 2)), jnp.array([[5.0, 6.0]]))
    Array([[1., 1.],
           [5., 6.]], dtype=float32)
    """
    erased = memory
    for w, e in zip(weights, erase):  # few heads: unrolled
        erased = erased * (1 - w[:, None] * e[None, :])  # [N, W]
    return erased + weights.T @ add  # [N, W]
