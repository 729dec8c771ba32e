"""A residual network (He et al. 2016), with group normalization (Wu and He 2018): no running averages, so parameters
are all its state.

The baseline next to the Vision Transformers: same data, same loop.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.models.blocks import apply_dropout
from attention_jax.models.stem import convolution
from experiments.papers.options import ResNetConfig


class Residual(nn.Module):
    """Two 3 x 3 convolutions around a shortcut (He et al. 2016, figure 2); a 1 x 1 convolution where the shape
    changes."""

    channels: int
    stride: int
    num_groups: int
    dtype: Any

    @nn.compact
    def __call__(self, x: Float[Array, "B S S C"]) -> Float[Array, "B R R D"]:
        y = convolution(self.channels, 3, self.stride, self.dtype)(x)
        y = jax.nn.relu(nn.GroupNorm(self.num_groups, dtype=self.dtype)(y))
        y = convolution(self.channels, 3, 1, self.dtype)(y)
        y = nn.GroupNorm(self.num_groups, dtype=self.dtype)(y)
        if x.shape != y.shape:
            x = convolution(self.channels, 1, self.stride, self.dtype)(x)
        return jax.nn.relu(x + y)


class ResNet(nn.Module):
    """A stem, stages of residual blocks, the mean over the image, and a linear classifier."""

    options: ResNetConfig
    classes: int
    image_size: int
    """Not used: images of every size have one mean."""

    def __post_init__(self):
        widths, groups = self.options.widths, self.options.num_groups
        if not widths or any(width % groups for width in widths):
            raise InputError(
                f"--model.widths must be one width a stage, multiples of --model.num-groups {groups}, got {widths}"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"], *, train: bool = False, return_weights: bool = False):
        """(logits [B, classes], {}): the model has no attention."""
        options, dtype = self.options, jnp.dtype(self.options.dtype)
        size, stride = (3, 1) if options.stem == "small" else (7, 2)
        x = convolution(options.widths[0], size, stride, dtype)(images.astype(dtype))
        x = jax.nn.relu(nn.GroupNorm(options.num_groups, dtype=dtype)(x))
        if options.stem == "large":
            x = nn.max_pool(x, (3, 3), (2, 2), padding="SAME")
        for stage, width in enumerate(options.widths):
            for block in range(options.blocks_per_stage):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Residual(width, stride, options.num_groups, dtype, name=f"stage_{stage}_block_{block}")(x)
        x = x.mean(axis=(1, 2)).astype(jnp.float32)
        return nn.Dense(self.classes, name="head")(apply_dropout(self, x, options.dropout, train)), {}
