"""Strided convolutions instead of a patch embedding (Xiao et al. 2021, "Early Convolutions Help Transformers See
Better")."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.precision import matmul

GROUP = 8
"""Channels that are normalized together."""


class ConvolutionalStem(nn.Module):
    """3 x 3 convolutions of stride 2 until a position covers a patch, then a 1 x 1 convolution to the tokens' width
    (section 4).

    The channels double with every convolution and end at `width`. Group normalization replaces the paper's batch
    normalization: it has no running averages.
    """

    patch_size: int
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"]) -> Float[Array, "B N D"]:
        halvings = self.patch_size.bit_length() - 1
        channels = [self.width >> remaining for remaining in reversed(range(halvings))]
        if any(count % GROUP for count in channels):
            raise InputError(
                f"--model.stem convolutions halves --model.hidden-size {halvings - 1} times, {GROUP} channels a group: "
                f"it must be a multiple of {GROUP << max(halvings - 1, 0)}, got {self.width}"
            )
        if self.patch_size != 2**halvings or images.shape[1] % self.patch_size or images.shape[1] != images.shape[2]:
            raise InputError(
                "--model.stem convolutions needs a patch size that is a power of 2 and images that are squares of a "
                f"multiple of it, got {self.patch_size} and {images.shape[1]} x {images.shape[2]}"
            )
        x = images.astype(self.dtype)
        for count in channels:
            x = convolution(count, 3, 2, self.dtype)(x)
            x = jax.nn.relu(nn.GroupNorm(num_groups=None, group_size=GROUP, dtype=self.dtype)(x))
        x = nn.Dense(self.width, dtype=self.dtype, name="embedding")(x)
        return x.reshape(x.shape[0], -1, self.width)  # [B, N, D]


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
