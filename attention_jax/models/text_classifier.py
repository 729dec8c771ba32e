"""Text classification by attention pooling: one learned query attends to an encoder's word states (Yang et al. 2016,
"Hierarchical Attention Networks for Document Classification", section 2.2).

The paper's states h_t come from a bidirectional GRU, here they come from a Transformer encoder.
"""

from dataclasses import fields

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.config.models import TransformerLayers
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block, apply_dropout
from attention_jax.models.multihead import Linear
from attention_jax.models.position_encodings import custom_positions
from attention_jax.models.taps import tap
from attention_jax.models.transformer import Embedding, Encoder
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.masks import lengths
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scores import Dot


class AttentionPool(nn.Module):
    """u_t = tanh(W h_t + b), a_t = softmax(u_t . u), s = sum a_t h_t with a learned u (Yang et al. 2016, eq. 5-7)."""

    @nn.compact
    def __call__(self, states: Float[Array, "B T D"], length: Int[Array, "B"], return_weights: bool = False):
        """(s [B, D], a [B, T] if `return_weights` else None)."""
        key = jnp.tanh(Linear(states.shape[-1], dtype=states.dtype, name="key")(states))  # [B, T, D]
        query = self.param("query", nn.initializers.normal(0.1), (states.shape[-1],)).astype(key.dtype)[None]

        def pool_text(key, value, length):
            kwargs = {"score": Dot(), "mask": lengths(length)}
            return attend(query, key, value, **kwargs)[0], attention_weights(query, key, **kwargs)[
                0
            ] if return_weights else None

        return jax.vmap(pool_text)(key, states, length)  # [B, D], [B, T]


def check_pool_alone(options: config.TextClassifierConfig):
    """Raise InputError for options of layers, which a classifier without layers does not use."""
    changed = [field.name for field in fields(TransformerLayers) if getattr(options, field.name) != field.default]
    positions = options.position_embedding
    if positions not in ("none", "sinusoidal") and custom_positions(positions) is None:
        changed.append("position_embedding")
    if changed:
        raise InputError(
            f"{config.option_name(changed[0], 'model')} {getattr(options, changed[0])} needs layers, got "
            "--model.num-layers 0, which pools the embeddings: leave it out, or give at least one layer"
        )


class TextClassifier(nn.Module):
    """A Transformer encoder over words, attention pooling and a linear classifier."""

    options: config.TextClassifierConfig
    vocab: int
    classes: int

    def __post_init__(self):
        Block.of(self.options)  # raises InputError for incompatible options
        if not self.options.num_layers:
            check_pool_alone(self.options)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, tokens: Int[Array, "B T"], length: Int[Array, "B"], *, train: bool = False, return_weights: bool = False
    ):
        """Logits [B, classes] and, with `return_weights`, {"encoder_attention": [B, layers, H, T, T], "pool_attention":
        [B, T]}."""
        options, block = self.options, Block.of(self.options)
        embedding = Embedding(self.vocab, block, max_length=0, scale=True, initial="normal", name="embedding")
        x = embedding(tokens, train=train)  # [B, T, D]
        weights = {}
        if options.num_layers:
            x, layer_weights = Encoder(block, options.num_layers, name="encoder")(
                x, lengths(length), train, return_weights
            )
            weights = {"encoder_attention": layer_weights}
        pooled, pool_weights = AttentionPool(name="pool")(x, length, return_weights)
        pooled = apply_dropout(self, pooled.astype(accumulator(pooled.dtype)), block.dropout, train)
        logits = tap(self, "logits", Linear(self.classes, dtype=pooled.dtype, name="head")(pooled))
        return logits, weights | {"pool_attention": pool_weights} if return_weights else {}
