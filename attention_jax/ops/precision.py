"""In which type sums are taken."""

import jax.numpy as jnp


def accumulator(dtype) -> jnp.dtype:
    """float64 for float64, float32 for everything else, half precision included.

    >>> accumulator(jnp.bfloat16)
    dtype('float32')
    """
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)
