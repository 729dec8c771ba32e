"""A residual network (He et al. 2016), with group normalization (Wu and He 2018): no running averages, so parameters
are all its state.

The baseline next to the Vision Transformers: same data, same loop.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.blocks import apply_dropout
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.precision import matmul


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

    options: config.ResNetConfig
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


def convolution(channels: int, size: int, stride: int, dtype) -> nn.Conv:
    """Create a size x size convolution without bias, which the normalization after it has."""
    initial = nn.initializers.he_normal()
    return nn.Conv(
        channels,
        (size, size),
        (stride,) * 2,
        use_bias=False,
        dtype=dtype,
        kernel_init=initial,
        conv_general_dilated_cls=lambda: convolve,
    )


def convolve(x: Float[Array, "B S S C"], kernel: Float[Array, "K K C D"], strides, padding, **kwargs):
    """`lax.conv_general_dilated`, on a CPU `convolve_by_matmul`."""

    def run(platform):
        if platform == "cpu":
            return convolve_by_matmul(x, kernel, strides, padding)
        return jax.lax.conv_general_dilated(x, kernel, strides, padding, **kwargs)

    return by_platform(run, {"cpu": "cpu", "default": "default"})


def convolve_by_matmul(
    x: Float[Array, "B S S C"], kernel: Float[Array, "K K C D"], strides, padding
) -> Float[Array, "B R R D"]:
    """Compute the convolution as one matmul over its windows (im2col).

    On CPUs XLA runs the gradient of its own convolution with respect to the kernel some 200 times slower inside a loop
    than outside (jax issue 12868), and the train steps of an epoch are a loop.

    >>> x, kernel = jnp.ones((1, 4, 4, 2)), jnp.ones((3, 3, 2, 1))
    >>> convolve_by_matmul(x, kernel, (1, 1), "SAME")[0, :, :, 0].tolist()[0]
    [8.0, 12.0, 12.0, 8.0]
    """
    size = kernel.shape[:2]
    pads = jax.lax.padtype_to_pads(x.shape[1:3], size, strides, padding) if isinstance(padding, str) else padding
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(x.shape[1:3], size, strides))
    window = lambda i, j: x[:, i : i + strides[0] * rows : strides[0], j : j + strides[1] * columns : strides[1]]
    windows = jnp.concatenate(
        [window(i, j) for i in range(size[0]) for j in range(size[1])], axis=-1
    )  # [B, R, R, K K C]
    return matmul(windows, kernel.reshape(-1, kernel.shape[-1]))  # [B, R, R, D]
