"""Dropout as a pure function, whose rate may be a Python number or a traced scalar (so that a sweep compiles once)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def is_zero(number) -> bool:
    """Whether a number is known to be 0 while tracing, so that what it scales can be left out; a traced one never is.

    >>> is_zero(0.0), is_zero(0.1), is_zero(jnp.zeros(()))
    (True, False, False)
    """
    return isinstance(number, int | float) and number == 0


def dropout(x: Float[Array, "..."], rate: float | Float[Array, ""], rng: Array | None) -> Float[Array, "..."]:
    """Zero each element with probability `rate` and divide the others by `1 - rate` (Srivastava et al. 2014).

    `rng=None` means no dropout, and a Python `rate` of 0 costs nothing. The draw of an element is a hash of its place
    and two words from `rng` ("lowbias32", C. Wellons 2018): it melts into the surrounding computation and is done again
    in the backward pass instead of being stored. For 4,736 x 2,048 elements, forward and backward, 5 ms on 2 cores;
    `jax.random.bits` takes 58.
    >>> import jax, jax.numpy as jnp
    >>> sorted(set(dropout(jnp.ones(100), 0.5, jax.random.key(1)).tolist()))
    [0.0, 2.0]
    >>> dropout(jnp.ones(4), 0.5, None).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if rng is None or is_zero(rate):
        return x
    first, second = jax.random.bits(rng, (2,), jnp.uint32)
    word = jax.lax.iota(jnp.uint32, x.size).reshape(x.shape) + first
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D) ^ second
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    uniform = ((word ^ (word >> 16)) >> 8).astype(jnp.float32) * 2.0**-24  # [0, 1)
    keep = 1.0 - jnp.asarray(rate, jnp.float32)
    scale = jnp.where(keep > 0, 1.0 / jnp.maximum(keep, 2.0**-24), 0.0).astype(x.dtype)
    return jnp.where(uniform < keep, x * scale, jnp.zeros((), x.dtype))
