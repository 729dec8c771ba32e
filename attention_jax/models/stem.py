"""Strided convolutions instead of a patch embedding (Xiao et al. 2021, "Early Convolutions Help Transformers See
Better")."""

from typing import Any

import flax.linen as nn
import jax
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.models.resnet import convolution

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
