"""Normalization layers: `ops.norm` with learned parameters."""

import flax.linen as nn
from jaxtyping import Array, Float

from attention_jax.ops.norm import layer_norm, rms_norm

EPSILON = 1e-5
"""Default epsilon of the normalizations, added to the variance."""


class LayerNorm(nn.Module):
    """`ops.norm.layer_norm` with its scale and bias."""

    epsilon: float = EPSILON

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        return layer_norm(x, scale, self.param("bias", nn.initializers.zeros, (x.shape[-1],)), self.epsilon)


class RMSNorm(nn.Module):
    """`ops.norm.rms_norm` with its scale."""

    epsilon: float = EPSILON

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... D"]:
        return rms_norm(x, self.param("scale", nn.initializers.ones, (x.shape[-1],)), self.epsilon)
