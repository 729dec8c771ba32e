"""A residual network (He et al. 2016), with group normalisation (Wu and He 2018): no running averages, so parameters are all its state.

The baseline next to the Vision Transformers: same data, same loop.
"""

from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.models.blocks import drop


class Residual(nn.Module):
    """Two 3 x 3 convolutions around a shortcut (He et al. 2016, figure 2); a 1 x 1 convolution where the shape changes."""

    channels: int
    stride: int
    groups: int
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x: Float[Array, "B S S C"]) -> Float[Array, "B R R D"]:
        y = convolution(self.channels, 3, self.stride, self.dtype)(x)
        y = jax.nn.relu(nn.GroupNorm(self.groups, dtype=self.dtype)(y))
        y = convolution(self.channels, 3, 1, self.dtype)(y)
        y = nn.GroupNorm(self.groups, dtype=self.dtype)(y)
        if x.shape != y.shape:
            x = convolution(self.channels, 1, self.stride, self.dtype)(x)
        return jax.nn.relu(x + y)


class ResNet(nn.Module):
    """A stem, stages of residual blocks, the mean over the image, and a linear classifier."""

    classes: int
    widths: tuple[int, ...] = (64, 128, 256, 512)
    blocks: int = 2
    stem: Literal["small", "large"] = "small"
    groups: int = 16
    dropout: Any = 0.0
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"], *, train: bool = False, look: bool = False):
        """(logits [B, classes], {}): there is no attention to look at."""
        small = self.stem == "small"
        x = convolution(self.widths[0], 3 if small else 7, 1 if small else 2, self.dtype)(images.astype(self.dtype))
        x = jax.nn.relu(nn.GroupNorm(self.groups, dtype=self.dtype)(x))
        if not small:
            x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, width in enumerate(self.widths):
            for block in range(self.blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Residual(width, stride, self.groups, self.dtype, name=f"stage_{stage}_block_{block}")(x)
        x = x.mean(axis=(1, 2)).astype(jnp.float32)
        return nn.Dense(self.classes, name="head")(drop(self, x, self.dropout, train)), {}


def convolution(channels: int, size: int, stride: int, dtype) -> nn.Conv:
    """A size x size convolution without bias: the normalisation after it has one."""
    return nn.Conv(channels, (size, size), (stride, stride), use_bias=False, dtype=dtype, kernel_init=nn.initializers.he_normal())
