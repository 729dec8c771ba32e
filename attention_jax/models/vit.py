"""Vision Transformer (Dosovitskiy et al. 2021): an image is a sequence of patches, and a Transformer encoder reads it.

The pieces are functions; the module owns the weights. The layer is the pre-norm layer of models/blocks.py with what
images need: 2-D rotary positions, stochastic depth, and a last layer that computes only what the classifier reads.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.attention_layers import call_attention
from attention_jax.models.blocks import Block, apply_dropout, check_bidirectional
from attention_jax.models.multihead import Linear, MultiHeadAttention
from attention_jax.models.norms import LayerNorm
from attention_jax.models.position_encodings import RelativeBias, custom_positions, rope_scaling
from attention_jax.models.stem import ConvolutionalStem
from attention_jax.models.taps import tap
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.biases import Bias
from attention_jax.ops.dropout import dropout, is_zero
from attention_jax.ops.images.augment import resize
from attention_jax.ops.positions import rotary, sinusoidal
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scores import Dot


def patches(images: Float[Array, "B S S C"], size: int) -> Float[Array, "B N P"]:
    """Cut square images in patches of `size` x `size` pixels, row by row; a patch is a vector of size * size * C
    numbers.

    >>> patches(jnp.arange(16.0).reshape(1, 4, 4, 1), 2)[0].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0], [8.0, 9.0, 12.0, 13.0], [10.0, 11.0, 14.0, 15.0]]
    """
    batch, height, width, channels = images.shape
    if height != width or height % size:
        raise InputError(
            f"images must be squares of a multiple of the patch size, {size} pixels, got {height} x {width}; "
            "change --data.pixels or --model.patch-size"
        )
    grid = height // size
    x = images.reshape(batch, grid, size, grid, size, channels).swapaxes(2, 3)  # [B, rows, columns, P, P, C]
    return x.reshape(batch, grid * grid, size * size * channels)  # [B, N, P P C]


def with_shifts(images: Float[Array, "B S S C"], by: int) -> Float[Array, "B S S E"]:
    """The images and, in further channels, the same moved by `by` pixels along the four diagonals, zeros coming in: E =
    5 C.

    Cut in patches with `by` half of their size, a patch sees twice as far in each direction as it reaches: shifted
    patch tokenization (Lee, Lee and Song 2021, "Vision Transformer for Small-Size Datasets", eq. 3).

    >>> with_shifts(jnp.array([[1.0, 2.0], [3.0, 4.0]])[None, :, :, None], 1)[0, :, :, 1].tolist()
    [[0.0, 0.0], [0.0, 1.0]]
    """
    if by < 1:
        raise InputError(
            "shifted patches need at least 2 pixels to shift by half of them; give --model.patch-size 2 or more"
        )
    (height, width), ends = images.shape[1:3], (0, 2 * by)
    padded = jnp.pad(images, ((0, 0), (by, by), (by, by), (0, 0)))
    return jnp.concatenate([images, *(padded[:, y : y + height, x : x + width] for y in ends for x in ends)], axis=-1)


def sinusoidal_2d(grid: int, width: int, dtype=jnp.float32) -> Float[Array, "N D"]:
    """Sinusoidal positions of a grid x grid image, row by row: half of the channels encode the row, half the column.

    >>> sinusoidal_2d(3, 8).shape
    (9, 8)
    """
    if width % 2:
        raise InputError(f"2-D sinusoidal positions need an even hidden size, got {width}")
    row, column = jnp.divmod(jnp.arange(grid * grid), grid)
    return jnp.concatenate([sinusoidal(coordinate, width // 2, dtype) for coordinate in (row, column)], axis=1)


def interpolate(table: Float[Array, "N D"], grid: int) -> Float[Array, "M D"]:
    """A table of the positions of an n x n grid, bilinearly resized to grid x grid (Dosovitskiy et al. 2021, section
    3.2).

    >>> interpolate(jnp.arange(4.0)[:, None], 2)[:, 0].tolist()
    [0.0, 1.0, 2.0, 3.0]
    """
    old_grid = math.isqrt(table.shape[0])
    if old_grid == grid:
        return table
    return resize(table.reshape(1, old_grid, old_grid, -1), grid).reshape(grid * grid, -1)  # [M, D]


def rotary_2d(x: Float[Array, "B H T E"], grid: int, prefix: int, rotate: Callable = rotary) -> Float[Array, "B H T E"]:
    """Rotate one half of the channels by the row and the other by the column; the first `prefix` tokens
    are not rotated. `rotate` is `ops.positions.rotary`, with its options.

    The product of a rotated query and a rotated key depends on their two displacements alone (rotary, Su et al. 2021,
    per axis).
    """
    position = jnp.arange(x.shape[2]) - prefix
    row, column = (jnp.where(position < 0, 0, coordinate) for coordinate in jnp.divmod(position, grid))
    half = x.shape[-1] // 2
    rotate = jax.vmap(jax.vmap(rotate, in_axes=(0, None)), in_axes=(0, None))
    return jnp.concatenate([rotate(x[..., :half], row), rotate(x[..., half:], column)], axis=-1)  # [B, H, T, E]


def check_registers(options: config.ViTConfig, grid: int):
    """Raise InputError if the classifier would read registers, or if there are so many that they look like a
    larger grid."""
    if options.num_registers and options.pool != "token":
        raise InputError(f"--model.num-registers need --model.pool token, got {options.pool}: the pool would read them")
    if options.num_registers and options.num_registers >= 2 * grid:
        raise InputError(
            f"--model.num-registers must be fewer than {2 * grid}, twice the patches of a side; got "
            f"{options.num_registers}"
        )


def with_first_tokens(module: nn.Module, x: Float[Array, "B N D"]) -> Float[Array, "B T D"]:
    """Prepend the registers and, if it is pooled, the class token ([CLS]) to the tokens of each image."""
    options, (batch, _, width) = module.options, x.shape
    if options.num_registers:
        registers = module.param("registers", nn.initializers.normal(0.02), (options.num_registers, width)).astype(
            x.dtype
        )
        x = jnp.concatenate([jnp.broadcast_to(registers[None, :, :], (batch, *registers.shape)), x], axis=1)
    if options.pool == "token":
        token = module.param("class_token", nn.initializers.zeros, (width,)).astype(x.dtype)
        x = jnp.concatenate([jnp.broadcast_to(token[None, None, :], (batch, 1, width)), x], axis=1)
    return x


def stochastic_depth(x: Float[Array, "B T D"], rate, rng) -> Float[Array, "B T D"]:
    """DropPath: drop a branch of an example with probability `rate`, else divide by 1 - rate (Huang et al. 2016)."""
    return x * dropout(jnp.ones((x.shape[0], 1, 1), x.dtype), rate, rng)


def attention_pool(query: Float[Array, "D"], tokens: Float[Array, "T D"]) -> Float[Array, "D"]:
    """Sequence pooling (Hassani et al. 2021, section 3.2): `attend` with one learned query.

    The paper's linear map to one number has a bias too, which the softmax cancels.

    >>> attention_pool(jnp.zeros(2), jnp.array([[1.0, 2.0], [3.0, 4.0]])).tolist()
    [2.0, 3.0]
    """
    return attend(query[None, :].astype(tokens.dtype), tokens, tokens, score=Dot())[0]


class ImageLayer(nn.Module):
    """x + attention(norm(x)), then x + ffn(norm(x)), each branch under stochastic depth.

    Dropout is applied to the attention weights and in the feed-forward layer, and not to the output of attention as in
    Dosovitskiy et al. 2021 (appendix B.1).
    """

    block: Block
    drop_path_rate: Any = 0.0
    """Probability of dropping a residual branch (stochastic depth)."""

    def setup(self):
        block = self.block
        check_bidirectional(block)
        self.attention = block.self_attention()
        self.ffn, self.attention_norm, self.ffn_norm = (
            block.feed_forward(),
            block.normalization(),
            block.normalization(),
        )

    def __call__(
        self,
        x: Float[Array, "B T D"],
        grid: int = 0,
        outputs: int | None = None,
        train: bool = False,
        return_weights: bool = False,
        bias: Bias | None = None,
    ):
        """(output [B, T, D], weights [B, H, T, T] or None); `outputs` computes the first tokens only, [B, outputs, D].

        With `grid`, queries and keys are rotated by their row and column in a grid x grid image; the tokens before the
        image are not.
        """
        x = tap(self, "residual_in", x)
        h = self.attention_norm(x)
        y, weights = self._attend(h, grid, outputs, bias, {"train": train, "return_weights": return_weights})
        x = x[:, :outputs] + self._drop_branch(tap(self, "attention_output", y), train)
        y = apply_dropout(self, self.ffn(self.ffn_norm(x), train=train), self.block.dropout, train)
        return tap(self, "residual_out", x + self._drop_branch(tap(self, "mlp_output", y), train)), weights

    def _attend(self, h, grid, outputs, bias, flags):
        """Self-attention of the first `outputs` tokens."""
        mask = self.block.self_mask(None, h.shape[0])
        if not isinstance(self.attention, MultiHeadAttention):
            if grid:
                raise InputError(
                    "--model.position-embedding rotary rotates the heads of an image by row and column, which "
                    f"--model.attention {self.block.attention} does not have: use learned"
                )
            return call_attention(self.attention, h[:, :outputs], h, bias=bias, mask=mask, **flags)
        query, (key, value) = self.attention.project_q(h[:, :outputs]), self.attention.project_kv(h, h)
        if grid:
            prefix = h.shape[1] - grid * grid
            kwargs = {"theta": self.block.rope_theta, "scaling": rope_scaling(self.block.rope_scaling)}
            rotate = partial(rotary, **kwargs, fraction=self.block.rope_fraction)
            query, key = (rotary_2d(heads, grid, prefix, rotate) for heads in (query, key))
        bias = self.attention.add_bias(bias, self.attention.forget(h))
        return self.attention.attend(query, key, value, h[:, :outputs], bias=bias, mask=mask, **flags)

    def _drop_branch(self, y, train):
        skips = train and not is_zero(self.drop_path_rate)
        return stochastic_depth(y, self.drop_path_rate, self.make_rng("dropout")) if skips else y


def image_block(options: config.ViTConfig) -> Block:
    """The block of an image model, whose built-in positions are added to the tokens or, in `ImageLayer`, rotate the
    heads."""
    position_embedding = options.position_embedding if ":" in options.position_embedding else "none"
    return Block.of(options, position_embedding=position_embedding, mlp_dropout=options.dropout)


class EncoderWithHead(nn.Module):
    """Layers, a last normalization, pooling over the tokens and a linear classifier."""

    classes: int
    block: Block
    layers: int
    pool: str
    """Pooling before the classifier, as in `config.ViTConfig`."""
    stochastic_depth: Any
    pre_logits_dim: int = 0
    zero_head: bool = False
    """Both as in `config.ViTConfig`."""

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, grid: int = 0, train: bool = False, return_weights: bool = False):
        """(logits [B, classes], intermediates); with pool="token" the classifier reads the first token.

        The last layer then computes that token alone: the same logits for 60 % of a two-layer model's products (36
        patches).
        """
        weights, last = [], self.layers - 1
        heads, width = self.block.num_maps, self.block.map_widths[0]
        bias = RelativeBias(self.block.position_embedding, heads, width, True, name="bias")()
        x = tap(self, "embedding", x)
        for i in range(self.layers):
            skip = self.stochastic_depth * (i / last if last else 1.0)
            layer = ImageLayer(self.block, drop_path_rate=skip, name=f"layer_{i}")
            outputs = 1 if self.pool == "token" and i == last and not return_weights else None
            x, layer_weights = layer(x, grid, outputs, train, return_weights, bias)
            weights.append(layer_weights)
        x = tap(self, "final_norm", self.block.normalization("norm")(tap(self, "residual_out", x)))
        if self.pool == "attention":
            query = self.param("pool_query", nn.initializers.normal(0.02), (x.shape[-1],))
            pooled = jax.vmap(attention_pool, in_axes=(None, 0))(query, x)  # [B, D]
        else:
            pooled = x[:, 0] if self.pool == "token" else x.mean(axis=1)  # [B, D]
        pooled = pooled.astype(accumulator(pooled.dtype))
        if self.pre_logits_dim:
            pooled = jnp.tanh(Linear(self.pre_logits_dim, dtype=pooled.dtype, name="pre_logits")(pooled))
        head_init = {"kernel_init": nn.initializers.zeros} if self.zero_head else {}
        logits = tap(self, "logits", Linear(self.classes, dtype=pooled.dtype, name="head", **head_init)(pooled))
        if not return_weights:
            return logits, {}
        intermediates = {"encoder_attention": jnp.stack(weights, axis=1)}  # [B, layers, H, T, T]
        if self.pool == "attention":
            weigh = jax.vmap(
                lambda tokens: attention_weights(query[None, :].astype(tokens.dtype), tokens, score=Dot())[0]
            )
            intermediates["pool_attention"] = weigh(x)  # [B, T]
        return logits, intermediates


class ViT(nn.Module):
    """The Vision Transformer (Dosovitskiy et al. 2021, section 3.1): images [B, S, S, C] to logits [B, classes].

    Patch embeddings, a class token if it is pooled, positions, and an encoder with a head. A model made for
    `image_size` also takes images of another size: learned positions are interpolated. With the stem "shifted" it
    reads patches of the image and of its shifts by half a patch, normalized (Lee et al. 2021, eq. 4).

    >>> model = ViT(config.ViTConfig(patch_size=2, hidden_size=8, mlp_dim=16, num_heads=2), classes=10, image_size=8)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), jnp.ones((3, 8, 8, 1)))
    >>> logits.shape
    (3, 10)
    """

    options: config.ViTConfig
    classes: int
    image_size: int

    def __post_init__(self):
        options = self.options
        image_block(options)  # raises InputError for incompatible options
        if options.position_embedding == "rotary" and image_block(options).map_widths[0] % 4:
            raise InputError(
                "--model.position-embedding rotary needs heads of a multiple of 4 dimensions, pairs for each axis, and "
                f"differential ones of 8; got {options.hidden_size} / {options.num_heads}"
            )
        if options.position_embedding == "rotary" and options.bias in ("shaw", "transformer_xl"):
            raise InputError(
                f"--model.bias {options.bias} reads queries, which --model.position-embedding rotary has rotated by "
                "row and column: use alibi or t5, or another position embedding"
            )
        check_registers(options, self.image_size // options.patch_size)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Float[Array, "B S S C"], *, train: bool = False, return_weights: bool = False):
        """(logits [B, classes], {"encoder_attention": [B, layers, H, T, T]} if `return_weights`)."""
        options, block = self.options, image_block(self.options)
        x = self.patch_embed(images, block)  # [B, N, D]
        grid = math.isqrt(x.shape[1])
        x = apply_dropout(self, self.add_positions(with_first_tokens(self, x), grid), block.dropout, train)
        head = {"pre_logits_dim": options.pre_logits_dim, "zero_head": options.zero_head}
        depth = {"layers": options.num_layers, "stochastic_depth": options.stochastic_depth}
        trunk = EncoderWithHead(self.classes, block, pool=options.pool, **depth, **head, name="trunk")
        return trunk(
            x, grid=grid if options.position_embedding == "rotary" else 0, train=train, return_weights=return_weights
        )

    def patch_embed(self, images: Float[Array, "B S S C"], block: Block) -> Float[Array, "B N D"]:
        """Patch embeddings, by the stem."""
        size, stem = self.options.patch_size, self.options.stem
        if stem == "convolutions":
            return ConvolutionalStem(size, block.hidden_size, block.dtype, name="stem")(images)
        shifted = stem == "shifted"
        images = with_shifts(images, size // 2) if shifted else images
        x = patches(images.astype(block.dtype), size)
        x = LayerNorm(block.norm_epsilon, name="patch_norm")(x) if shifted else x
        return Linear(block.hidden_size, dtype=block.dtype, name="patch_embedding")(x)

    def add_positions(self, x: Float[Array, "B T D"], grid: int) -> Float[Array, "B T D"]:
        """Add position embeddings to the tokens, if the model has any (rotary ones act on queries and keys)."""
        prefix, width = x.shape[1] - grid * grid, x.shape[2]
        if self.options.position_embedding == "learned":
            rows = prefix + (self.image_size // self.options.patch_size) ** 2
            table = self.param("positions", nn.initializers.normal(0.02), (rows, width))
            table = jnp.concatenate([table[:prefix], interpolate(table[prefix:], grid)])
            return x + table.astype(x.dtype)[None, :, :]
        if self.options.position_embedding == "sinusoidal":
            return x.at[:, prefix:].add(sinusoidal_2d(grid, width, accumulator(x.dtype)).astype(x.dtype)[None, :, :])
        if make_positions := custom_positions(self.options.position_embedding):
            vectors = make_positions(width, name="position")(jnp.arange(grid * grid))
            return x.at[:, prefix:].add(vectors.astype(x.dtype)[None, :, :])
        return x
