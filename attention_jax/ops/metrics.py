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


def sequence_accuracy(
    predicted: Int[Array, "*B T"], targets: Int[Array, "*B T"], mask: Bool[Array, "*B T"] | Float[Array, "*B T"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Count the sequences that are correct in every token under the mask (exact match), and all that have such a token.

    >>> import jax.numpy as jnp
    >>> predicted, target = jnp.array([[1, 2], [3, 4]]), jnp.array([[1, 9], [3, 9]])
    >>> right, count = sequence_accuracy(predicted, target, jnp.array([[1, 1], [1, 0]]))
    >>> float(right), float(count)
    (1.0, 2.0)
    """
    used = mask.astype(bool)
    right = ((predicted == targets) | ~used).all(axis=-1) & used.any(axis=-1)
    return right.sum(dtype=jnp.float32), used.any(axis=-1).sum(dtype=jnp.float32)
