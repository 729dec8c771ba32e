"""Attention rollout: how much of each input reaches each output through all layers (Abnar & Zuidema 2020)."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.meshes import scan


def rollout(weights: Float[Array, "L H T T"], residual: float = 0.5) -> Float[Array, "T T"]:
    """The product over layers of `residual * I + (1 - residual) * mean over heads of the layer's weights`,
    row-normalised.

    Row q holds the contribution of every input position to output position q; rows sum to one. `residual` in [0, 1]
    is the weight of the residual connection (one half in the paper, section 3).

    >>> uniform = jnp.full((1, 2, 2, 2), 0.5)
    >>> rollout(uniform).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    weights = jnp.asarray(weights)
    size = weights.shape[-1]
    mixed = residual * jnp.eye(size, dtype=weights.dtype)[None] + (1.0 - residual) * weights.mean(axis=1)  # [L, T, T]
    mixed = mixed / mixed.sum(axis=-1, keepdims=True)
    start = jnp.eye(size, dtype=weights.dtype)
    return scan(lambda below, layer: (layer @ below, None), start, mixed)[0]
