"""BERT (Devlin et al. 2019), RoBERTa (Liu et al. 2019) and DistilBERT (Sanh et al. 2019): a Transformer encoder that is
pretrained to predict masked words, with heads for words, classes and sentence embeddings. With other options it is the
encoder of T5 (Raffel et al. 2020) or CLIP's text encoder (Radford et al. 2021)."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.blocks import ACTIVATIONS, Block, apply_dropout
from attention_jax.models.multihead import Linear
from attention_jax.models.taps import tap
from attention_jax.models.transformer import Encoder
from attention_jax.ops.masks import lengths
from attention_jax.ops.precision import accumulator


class BertEmbedding(nn.Module):
    """The sum of token embeddings and, as the options say, position and token type embeddings, normalized in BERT
    (Devlin et al. 2019, figure 2)."""

    options: config.MaskedLanguageModelConfig
    block: Block
    vocab: int

    def setup(self):
        options, draw = self.options, nn.initializers.normal(0.02)
        embed = lambda rows: nn.Embed(rows, options.hidden_size, embedding_init=draw)
        self.token = embed(self.vocab)
        if options.position_embedding == "learned":
            self.position = embed(options.first_position + options.max_length)
        self.token_type = embed(options.num_token_types) if options.num_token_types else None
        self.norm = self.block.normalization() if options.norm_embedding else lambda x: x

    def __call__(self, tokens: Int[Array, "B T"], token_types: Int[Array, "B T"] | None, train: bool = False):
        """The embeddings [B, T, D]; `token_types` None are zeros. Raises InputError for more tokens than positions."""
        options, length, x = self.options, tokens.shape[1], self.token(tokens)
        if options.position_embedding == "learned":
            if length > options.max_length:
                raise InputError(
                    f"there are {options.max_length} learned positions, --model.max-length, for {length} tokens: give "
                    "fewer"
                )
            positions = jnp.arange(length, dtype=jnp.int32) + options.first_position
            x = x + self.position(positions)[None]
        if self.token_type is not None:
            x = x + self.token_type(jnp.zeros_like(tokens) if token_types is None else token_types)
        return apply_dropout(self, self.norm(x), self.block.dropout, train).astype(self.block.dtype)


class WordHead(nn.Module):
    """Logits of the word at each position: a layer, its activation, a normalization, and the token embeddings."""

    block: Block

    @nn.compact
    def __call__(self, states: Float[Array, "B T D"], table: Float[Array, "V D"]) -> Float[Array, "B T V"]:
        x = Linear(self.block.hidden_size, dtype=self.block.dtype, name="dense")(states)
        x = self.block.normalization("norm")(self.activate(x))
        x = x.astype(accumulator(x.dtype))
        return x @ table.T + self.param("bias", nn.initializers.zeros, (len(table),))[None, None]

    def activate(self, x):
        """The activation; attributions of `interpret` hold its quotient by x constant."""
        return ACTIVATIONS[self.block.activation](x)


def padding_mask(length, tokens):
    """The mask of padding behind the `length` [B] of each text of tokens [B, T]; InputError for another shape."""
    if jnp.shape(length) != tokens.shape[:1]:
        raise InputError(
            f"length must be numbers of tokens [B] = {list(tokens.shape[:1])}, got an array "
            f"{list(jnp.shape(length))}; of a mask whose padding is at the end it is mask.sum(axis=1)"
        )
    return lengths(length)


class MaskedLanguageModel(nn.Module):
    """A Transformer encoder, by default post-norm, with the heads that its options and `classes` name.

    Call it with tokens [B, T] and their lengths [B]; returns the logits [B, classes] of a classifier, else the logits
    [B, T, V] of each word, else, without either head, sentence embeddings [B, D], and with `return_weights`
    {"encoder_attention": [B, layers, H, T, T]}. Padding changes nothing. Raises InputError for sizes and parts that do
    not fit each other.

    >>> from attention_jax import config
    >>> options = config.MaskedLanguageModelConfig(hidden_size=8, mlp_dim=16, num_heads=2, max_length=5)
    >>> model, batch = MaskedLanguageModel(options, vocab=11), (jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]))
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 5, 11)
    """

    options: config.MaskedLanguageModelConfig
    vocab: int
    classes: int = 0
    """Number of classes; 0 means no classifier."""

    def __post_init__(self):
        Block.of(self.options)  # raises InputError for incompatible options
        _check_projection(self.options, self.classes)
        super().__post_init__()

    def setup(self):
        options, block = self.options, Block.of(self.options)
        self.embedding = BertEmbedding(options, block, self.vocab)
        self.encoder = Encoder(block, options.num_layers, options.remat, scan=options.scan_layers)
        linear = partial(Linear, dtype=accumulator(block.dtype))
        self.word_head, self.pooler, self.head = WordHead(block), linear(options.hidden_size), linear(self.classes)
        self.projection = linear(options.projection_dim, use_bias=False)

    def hidden(self, tokens, length, token_types=None, *, train: bool = False, return_weights: bool = False):
        """(states [B, T, D] in float32 at least, intermediates) of texts that are padded behind their `length` [B]."""
        x = self.embedding(tokens, token_types, train)
        x, weights = self.encoder(x, padding_mask(length, tokens), train, return_weights)
        return x.astype(accumulator(x.dtype)), {"encoder_attention": weights} if return_weights else {}

    def words(self, states: Float[Array, "B T D"]) -> Float[Array, "B T V"]:
        """The logits of the word at each position."""
        if not self.options.word_head or self.classes:
            raise InputError("this encoder has no head for masked words; use its embeddings, or its classes if any")
        return self.word_head(states, self.embedding.token.embedding)

    def embed(self, states: Float[Array, "B T D"], length: Int[Array, "B"]) -> Float[Array, "B D"]:
        """Sentence embeddings: the pooled states, projected with `projection_dim` (then D is that width), and divided
        by their norm with `unit_norm`."""
        pooled = self._pool_states(states, length)
        pooled = self.projection(pooled) if self.options.projection_dim else pooled
        norm = jnp.maximum(jnp.linalg.norm(pooled, axis=-1, keepdims=True), 1e-12)
        return pooled / norm if self.options.unit_norm else pooled

    def classify(self, states: Float[Array, "B T D"], length: Int[Array, "B"], train: bool = False):
        """The logits [B, classes] of each text: from the pooler, a layer on the first state, or without one from the
        pooled states."""
        if not self.classes:
            raise InputError("this encoder has no classifier; train one: launch.py train classify_text --from DIR")
        if self.options.pooler == "none":
            pooled = self._pool_states(states, length)
        else:
            pooled = {"tanh": jnp.tanh, "relu": jax.nn.relu}[self.options.pooler](self.pooler(states[:, 0]))
        return self.head(apply_dropout(self, pooled, self.options.dropout, train))

    def _pool_states(self, states, length):
        """The mean, the maximum, the first or the last of the states of each text."""
        token_mask = (jnp.arange(states.shape[1])[None] < length[:, None])[..., None]
        if self.options.pool in ("first", "last"):
            return states[:, 0] if self.options.pool == "first" else states[jnp.arange(len(states)), length - 1]
        if self.options.pool == "max":
            return jnp.where(token_mask, states, -jnp.inf).max(axis=1)
        return jnp.where(token_mask, states, 0).sum(axis=1) / jnp.maximum(length, 1)[:, None].astype(states.dtype)

    def __call__(self, tokens, length, token_types=None, *, train: bool = False, return_weights: bool = False):
        """(class logits [B, classes], word logits [B, T, V] or sentence embeddings [B, D], intermediates)."""
        states, weights = self.hidden(tokens, length, token_types, train=train, return_weights=return_weights)
        if self.classes:
            return tap(self, "logits", self.classify(states, length, train)), weights
        if self.options.word_head:
            return tap(self, "logits", self.words(states)), weights
        return self.embed(states, length), weights


def _check_projection(options: config.MaskedLanguageModelConfig, classes: int):
    """Raise InputError for a projection of sentence embeddings in a model that returns logits."""
    if options.projection_dim and (classes or options.word_head):
        head = f"{classes} classes" if classes else "--model.word-head"
        raise InputError(
            f"--model.projection-dim {options.projection_dim} is for sentence embeddings, which a model with {head} "
            "does not return: give 0"
        )
