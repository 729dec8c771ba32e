"""From attention weights of image tokens to maps over the image."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.rollout import rollout


def maps(seen: dict, prefix: bool) -> dict[str, Float[Array, "..."]]:
    """Maps [B, G, G] (heads: [B, H, G, G]) over the G x G tokens of an image, from a model's intermediates.

    "heads": what each head of the last layer looks at, as asked by the class token if there is one (`prefix`), else on average
    over the tokens; "last": their mean; "rollout": through all layers (Abnar and Zuidema 2020), weighed as the tokens are pooled.
    """
    weights = seen["encoder_attention"]  # [B, layers, H, T, T]
    size = math.isqrt(weights.shape[-1] - prefix)
    grid = lambda x: x.reshape(*x.shape[:-1], size, size)
    flow = jax.vmap(rollout)(weights)  # [B, T, T]
    if prefix:
        heads, through = weights[:, -1, :, 0, 1:], flow[:, 0, 1:]
    elif "pool_attention" in seen:
        pool = seen["pool_attention"]  # [B, T]
        heads, through = jnp.einsum("bt,bhts->bhs", pool, weights[:, -1]), jnp.einsum("bt,bts->bs", pool, flow)
    else:
        heads, through = weights[:, -1].mean(axis=2), flow.mean(axis=1)
    return {"heads": grid(heads), "last": grid(heads.mean(axis=1)), "rollout": grid(through)}
