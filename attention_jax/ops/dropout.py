"""Dropout as a pure function, with a rate that may be a Python number or a traced scalar (so that a sweep compiles once)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

_LEVELS = 1 << 16


def dropout(x: Float[Array, "..."], rate: float | Float[Array, ""], rng: Array | None) -> Float[Array, "..."]:
    """Zero each element with probability `rate` and divide the others by `1 - rate` (Srivastava et al. 2014).

    `rng=None` means no dropout, and a Python `rate` of 0 costs nothing. The draw uses 16 random bits per element, so the
    rate is exact to 2**-16.

    >>> import jax, jax.numpy as jnp
    >>> dropout(jnp.ones(4), 0.5, jax.random.key(1)).tolist()  # every element is 0 or 2
    [2.0, 2.0, 0.0, 0.0]
    >>> dropout(jnp.ones(4), 0.5, None).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    if rng is None or (isinstance(rate, (int, float)) and rate == 0):
        return x
    keep = 1.0 - jnp.asarray(rate, jnp.float32)
    bits = jax.random.bits(rng, x.shape, jnp.uint16).astype(jnp.float32)
    scale = jnp.where(keep > 0, 1.0 / jnp.maximum(keep, 1.0 / _LEVELS), 0.0).astype(x.dtype)
    return jnp.where(bits < keep * _LEVELS, x * scale, jnp.zeros((), x.dtype))
