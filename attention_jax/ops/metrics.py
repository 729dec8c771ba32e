"""Metrics as (sum, count) pairs, so that batches, devices and uneven last batches add up exactly."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def token_accuracy(
    predicted: Int[Array, "*shape"], targets: Int[Array, "*shape"], mask: Bool[Array, "*shape"] | Float[Array, "*shape"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Count the correct tokens under the mask, and all tokens under it.

    >>> import jax.numpy as jnp
    >>> right, count = token_accuracy(jnp.array([1, 2, 3]), jnp.array([1, 9, 9]), jnp.array([True, True, False]))
    >>> float(right), float(count)
    (1.0, 2.0)
    """
    weight = mask.astype(jnp.float32)
    return ((predicted == targets).astype(jnp.float32) * weight).sum(), weight.sum()
