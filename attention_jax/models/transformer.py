"""The Transformer (Vaswani et al. 2017) as an encoder-decoder that follows the methods of every seq2seq model:
`encode`, `decode`, `start`, `step`, `output`, `__call__` (all batch-major).

Stacks of layers first; then the embeddings; then the model, which only joins them.
"""

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import InputError, config
from attention_jax.models.blocks import Block, DecoderLayer, EncoderLayer, drop
from attention_jax.models.position_encodings import added_positions
from attention_jax.ops.masks import causal, lengths, segments
from attention_jax.ops.positions import within
from attention_jax.ops.shared import Shared, readable, sign

Weights = Float[Array, "B L H Q K"]


def in_order(stack: "Encoder | Decoder") -> list[tuple]:
    """(layer, bias) of each of the stack's layers; those that it has once come again."""
    return [(stack.layer[i % len(stack.layer)], stack.bias[i % len(stack.bias)]) for i in range(stack.layers)]


class Encoder(nn.Module):
    """A stack of encoder layers; in pre-norm one normalisation at the end."""

    block: Block
    layers: int
    remat: bool = False
    """Keep only the layers' inputs for the backward pass and compute the rest again."""
    shared: bool = False
    """All layers are the same one."""

    def setup(self):
        layer = nn.remat(EncoderLayer, static_argnums=(4, 5)) if self.remat else EncoderLayer
        self.layer = [layer(self.block) for _ in range(1 if self.shared else self.layers)]
        self.bias = self.block.relative_biases(len(self.layer), bidirectional=True)
        self.norm = self.block.normalisation() if self.block.norm == "pre" else None

    def __call__(self, x: Float[Array, "B T D"], mask=None, train: bool = False, look: bool = False):
        """(states [B, T, D], weights [B, layers, H, T, T] or None)."""
        weights = []
        for layer, bias in in_order(self):
            x, w = layer(x, mask, bias(), train, look)
            weights.append(w)
        return (x if self.norm is None else self.norm(x)), jnp.stack(weights, axis=1) if look else None


class Past(NamedTuple):
    """What a decoder remembers while it decodes step by step; see ops/shared.py."""

    position: Int[Array, "R"]  # of the next token, the same in every row
    ancestors: Int[Array, "R T"]  # which hypothesis of its sentence wrote what a row reads
    layers: Any  # per layer keys [B, Hkv, E, T k] and values [B, Hkv, T k, V], each `Written`


class Decoder(nn.Module):
    """A stack of decoder layers, with attention over a memory (`cross`) or, as a language model, without."""

    block: Block
    layers: int
    cross: bool = True
    remat: bool = False
    shared: bool = False

    def setup(self):
        layer = nn.remat(DecoderLayer, static_argnums=(5, 6)) if self.remat else DecoderLayer
        self.layer = [layer(self.block, self.cross) for _ in range(1 if self.shared else self.layers)]
        self.bias = self.block.relative_biases(len(self.layer), bidirectional=False)
        self.norm = self.block.normalisation() if self.block.norm == "pre" else None

    def __call__(self, x: Float[Array, "B T D"], mask, memory=None, train: bool = False, look: bool = False):
        """(states, own weights [B, layers, H, T, T] or None, weights over the memory or None); `memory` from
        `project`."""
        own, cross = [], []
        for i, (layer, bias) in enumerate(in_order(self)):
            projected = None if memory is None else memory[i]
            x, w, c = layer(x, mask, bias(), projected, train, look)
            own.append(w)
            cross.append(c)
        return self._finish(x, own, cross, look)

    def project(self, states: Float[Array, "B S D"], mask):
        """What the layers' cross-attentions read: a tuple over layers of (keys, values, mask)."""
        return tuple((*layer.project(states), mask) for layer, _ in in_order(self))

    def start(self, batch_size: int, max_length: int) -> Past:
        """Nothing written yet, with room for `max_length` positions."""
        layers = tuple(self.block.empty_cache(batch_size, max_length) for _ in range(self.layers))
        return Past(jnp.zeros((batch_size,), jnp.int32), jnp.zeros((batch_size, max_length), jnp.int32), layers)

    def step(self, x: Float[Array, "R 1 D"], past: Past, memory=None, look: bool = False):
        """The states at one position and the past with it added: (states [R, 1, D], past, own weights, cross
        weights)."""
        position, hypotheses = past.position[0], x.shape[0] // past.layers[0][0].value.shape[0]
        ancestors = sign(past.ancestors, position, hypotheses)
        seen = readable(ancestors, position, hypotheses)
        own, cross, new = [], [], []
        for i, (layer, bias) in enumerate(in_order(self)):
            projected = None if memory is None else memory[i]
            x, kv, w, c = layer.step(x, past.layers[i], position, seen, bias(), projected, look)
            new.append(kv)
            own.append(w)
            cross.append(c)
        x, own, cross = self._finish(x, own, cross, look)
        return x, Past(past.position + 1, ancestors, tuple(new)), own, cross

    def _finish(self, x, own, cross, look):
        x = x if self.norm is None else self.norm(x)
        return x, jnp.stack(own, axis=1) if look else None, jnp.stack(cross, axis=1) if look and self.cross else None


class Embedding(nn.Module):
    """Token embeddings, times sqrt(d) if `scale`, plus the positions' vectors, with dropout on the sum."""

    vocab: int
    block: Block
    max_length: int
    """The longest sequence: rows of a learned table of positions."""
    scale: bool
    initial: Literal["normal", "xavier"]
    position_deviation: float = 1.0
    """Of a learned table of positions at first, if `initial` is normal; 1 is as large as the scaled tokens."""

    def setup(self):
        width, (normal, xavier) = self.block.hidden_size, (nn.initializers.normal, nn.initializers.xavier_uniform())
        draw = lambda deviation: xavier if self.initial == "xavier" else normal(deviation)
        self.token = nn.Embed(self.vocab, width, embedding_init=draw(width**-0.5 if self.scale else 1.0))
        if self.block.position_embedding == "learned":
            self.position = nn.Embed(self.max_length, width, embedding_init=draw(self.position_deviation))

    def check(self, length: int):
        """Raises InputError if so many tokens have no learned positions."""
        if self.block.position_embedding == "learned" and length > self.max_length:
            raise InputError(
                f"there are {self.max_length} learned positions, --model.max-length, for {length} tokens: give fewer "
                "tokens, or train with more positions"
            )

    def __call__(
        self, tokens: Int[Array, "B T"], offset=0, train: bool = False, segment: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T D"]:
        """The vectors of `tokens`, the first of which stands at position `offset`; or the first of each segment at
        0."""
        if segment is None:
            self.check(tokens.shape[1])
        x = self.token(tokens)
        x = x * self.block.hidden_size**0.5 if self.scale else x
        positions = jnp.arange(tokens.shape[1], dtype=jnp.int32) + offset if segment is None else within(segment)
        table = self.position if self.block.position_embedding == "learned" else None
        vectors = added_positions(self.block.position_embedding, positions.reshape(-1), self.block.hidden_size, table)
        if vectors is not None:
            x = x + (vectors[None] if segment is None else vectors.reshape(x.shape))
        return drop(self, x, self.block.dropout, train).astype(self.block.dtype)


class Memory(NamedTuple):
    """What the encoder hands to the decoder."""

    states: Float[Array, "B S D"]
    source_length: Int[Array, "B"]
    segment: Int[Array, "B S"] | None = None  # of packed rows


class Cache(NamedTuple):
    """The decoder's state while it decodes step by step."""

    past: Past
    memory: Shared  # per layer keys, values and mask of the source


class Transformer(nn.Module):
    """Encoder-decoder. `tied`: "output" shares the target embeddings with the output layer, "all" the source's too."""

    options: config.Transformer
    source_vocab: int
    target_vocab: int

    def __post_init__(self):
        options = self.options
        Block.of(options)  # refuses sizes and parts that do not fit
        if options.tied_embeddings == "all" and self.source_vocab != self.target_vocab:
            raise InputError(
                f"--model.tied-embeddings all needs one vocabulary for both languages, got {self.source_vocab} and "
                f"{self.target_vocab} tokens; use a joint vocabulary, or --model.tied-embeddings output"
            )
        super().__post_init__()

    def setup(self):
        options, block = self.options, Block.of(self.options)
        embed = lambda size: Embedding(
            size, block, options.max_length, options.scale_embeddings, options.embedding_init
        )
        self.target_embedding = embed(self.target_vocab)
        self.source_embedding = self.target_embedding if options.tied_embeddings == "all" else embed(self.source_vocab)
        self.encoder = Encoder(block, options.num_encoder_layers, options.remat, options.shared_layers)
        self.decoder = Decoder(block, options.num_decoder_layers, True, options.remat, options.shared_layers)
        if options.tied_embeddings == "none":
            glorot = nn.initializers.xavier_uniform()
            self.kernel = self.param("kernel", glorot, (options.hidden_size, self.target_vocab))
        if options.output_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def encode(
        self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False, segment=None
    ) -> Memory:
        """The encoder's states of a batch of padded sentences, or with `segment` [B, S] of rows of several each."""
        return self._encode(source, source_length, train, False, segment)[0]

    def decode(
        self, memory: Memory, target_in: Int[Array, "B T"], *, train: bool = False, look: bool = False, segment=None
    ):
        """Teacher forced: (hidden [B, T, D] in float32, intermediates). With `segment` [B, T] each target sees itself
        and the source of its own segment."""
        past, source = causal(), lengths(memory.source_length)
        if segment is not None:
            past, source = past & segments(segment, segment), segments(segment, memory.segment)
        projected = self.decoder.project(memory.states, source)
        x = self.target_embedding(target_in, train=train, segment=segment)
        x, own, cross = self.decoder(x, past, projected, train, look)
        return x.astype(jnp.float32), {"decoder_attention": own, "cross_attention": cross} if look else {}

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """The output layer, logits = hidden @ kernel + bias."""
        kernel = self.kernel if self.options.tied_embeddings == "none" else self.target_embedding.token.embedding.T
        return kernel, self.bias if self.options.output_bias else jnp.zeros((self.target_vocab,))

    def start(self, memory: Memory, max_length: int) -> Cache:
        """The cache for `max_length` steps of decoding; the source's keys and values are projected once, here."""
        self.target_embedding.check(max_length)
        projected = self.decoder.project(memory.states, lengths(memory.source_length))
        return Cache(self.decoder.start(memory.source_length.shape[0], max_length), Shared(projected))

    def step(self, cache: Cache, token: Int[Array, "B"], *, look: bool = False):
        """One more token: (logits [B, V], cache, intermediates)."""
        x = self.target_embedding(token[:, None], cache.past.position[0])
        x, past, own, cross = self.decoder.step(x, cache.past, cache.memory.value, look)
        weights = {"decoder_attention": own, "cross_attention": cross} if look else {}
        return self._logits(x.astype(jnp.float32))[:, 0], cache._replace(past=past), weights

    def __call__(self, source, source_length, target_in, *, train: bool = False, look: bool = False):
        """(logits [B, T, V], intermediates); `look` adds the weights of all three attentions, [B, layers, heads, Q,
        K]."""
        memory, encoder_weights = self._encode(source, source_length, train, look)
        hidden, weights = self.decode(memory, target_in, train=train, look=look)
        return self._logits(hidden), weights | {"encoder_attention": encoder_weights} if look else {}

    def _encode(self, source, source_length, train, look, segment=None):
        x = self.source_embedding(source, train=train, segment=segment)
        mask = lengths(source_length) if segment is None else segments(segment, segment)
        states, weights = self.encoder(x, mask, train, look)
        return Memory(states, source_length, segment), weights

    def _logits(self, hidden):
        kernel, bias = self.output()
        return hidden @ kernel + bias[None, None, :]


def count_parameters(params) -> int:
    """How many numbers a tree of arrays or of shapes (from `jax.eval_shape`) holds."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
