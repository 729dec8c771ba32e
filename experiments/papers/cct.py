"""Compact Convolutional Transformer (Hassani et al. 2021): a ViT whose patches come from a small convolutional
network."""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.models.blocks import apply_dropout
from attention_jax.models.position_encodings import custom_positions
from attention_jax.models.stem import convolution
from attention_jax.models.vit import EncoderWithHead, image_block, interpolate
from experiments.papers.options import CCTConfig


class Tokenizer(nn.Module):
    """`convolutions` times: k x k convolution, ReLU, 3 x 3 max-pooling of stride 2 (section 3.3, eq. 7). Rows of
    tokens."""

    convolutions: int
    kernel_size: int
    width: int
    dtype: Any

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"]) -> Float[Array, "B N D"]:
        x = images.astype(self.dtype)
        for i in range(self.convolutions):
            channels = self.width if i == self.convolutions - 1 else 64
            x = convolution(channels, self.kernel_size, 1, self.dtype)(x)
            x = nn.max_pool(jax.nn.relu(x), (3, 3), (2, 2), padding=((1, 1), (1, 1)))
        return x.reshape(x.shape[0], -1, self.width)  # [B, N, D]


class CCT(nn.Module):
    """A convolutional tokenizer, learned positions, an encoder and sequence pooling (figure 2)."""

    options: CCTConfig
    classes: int
    image_size: int

    def __post_init__(self):
        image_block(self.options)  # raises InputError for incompatible options
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"], *, train: bool = False, return_weights: bool = False):
        """Logits [B, classes] and, with `return_weights`, {"encoder_attention": [B, layers, H, T, T], "pool_attention":
        [B, T]}."""
        options, block = self.options, image_block(self.options)
        if images.shape[1] != images.shape[2]:
            raise InputError(f"images must be squares, got {images.shape[1]} x {images.shape[2]}; give --data.pixels")
        tokenizer = Tokenizer(
            options.num_conv_layers, options.kernel_size, block.hidden_size, block.dtype, name="tokenizer"
        )
        x = tokenizer(images)
        if options.position_embedding == "learned":
            side = self.image_size
            for _ in range(options.num_conv_layers):
                side = -(-side // 2)
            table = self.param("positions", nn.initializers.truncated_normal(0.2), (side * side, block.hidden_size))
            x = x + interpolate(table, math.isqrt(x.shape[1])).astype(block.dtype)[None, :, :]
        elif make_positions := custom_positions(options.position_embedding):
            vectors = make_positions(block.hidden_size, name="position")(jnp.arange(x.shape[1]))
            x = x + vectors.astype(block.dtype)[None, :, :]
        x = apply_dropout(self, x, block.dropout, train)
        trunk = EncoderWithHead(
            self.classes, block, options.num_layers, "attention", options.stochastic_depth, name="trunk"
        )
        return trunk(x, train=train, return_weights=return_weights)
