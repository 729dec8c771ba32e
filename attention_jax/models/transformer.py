"""The Transformer (Vaswani et al. 2017) as an encoder-decoder that follows the methods of every seq2seq model:
`encode`, `decode`, `start`, `step`, `output`, `__call__` (all batch-major).

Stacks of layers first; then the embeddings; then the model, which only joins them.
"""

from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block, DecoderLayer, EncoderLayer, apply_dropout, depth_query
from attention_jax.models.layer_stack import join_layer_outputs, layer_segments, make_layers, run_layers
from attention_jax.models.position_encodings import custom_positions, position_vectors
from attention_jax.models.taps import tap
from attention_jax.ops.depth import attend_over_depth
from attention_jax.ops.masks import causal, lengths, segments
from attention_jax.ops.positions import positions_within
from attention_jax.ops.precision import accumulator
from attention_jax.ops.shared import BeamInvariant, ancestor_mask, mark_self

Weights = Float[Array, "B L H Q K"]


class Encoder(nn.Module):
    """A stack of encoder layers; in pre-norm and sandwich one normalization at the end."""

    block: Block
    layers: int
    remat: bool = False
    """Save only the layers' inputs for the backward pass and recompute the rest."""
    shared: bool = False
    """All layers share one set of weights (Dehghani et al. 2019)."""
    scan: bool = False
    """Runs of equal layers are one scan (models/layer_stack.py)."""

    def setup(self):
        layer = nn.remat(EncoderLayer, static_argnums=(4, 5)) if self.remat else EncoderLayer
        make_layers(self, layer, bidirectional=True)
        self.norm = None if self.block.norm == "post" else self.block.normalization()

    def __call__(self, x: Float[Array, "B T D"], mask=None, train: bool = False, return_weights: bool = False):
        """(states [B, T, D], weights [B, layers, H, T, T] or None)."""

        def apply_layer(layer, x, bias, memory, cache):
            x, weights = layer(x, mask, bias, train, return_weights)
            return x, weights, None

        x, weights, _ = run_layers(self, apply_layer, tap(self, "embedding", x))
        return finish_stack(self, x), join_layer_outputs(self, weights) if return_weights else None


def enter_stack(stack: nn.Module, x: Float[Array, "B T D"]) -> Any:
    """What the first layer of a stack reads: the embeddings x as a residual stream or, with attention residuals, as the
    first output [B, T, 1, D]; with value residuals in a pair with zeros in place of the first layer's values."""
    x, block = tap(stack, "embedding", x), stack.block
    stream = x[:, :, None] if block.attention_residuals else x
    if not block.value_residual:
        return stream
    values = x.shape[0], block.num_kv_heads or block.num_heads, x.shape[1], block.map_widths[1]
    return stream, jnp.zeros(values, block.dtype)


def finish_stack(stack: nn.Module, x: Any) -> Float[Array, "B T D"]:
    """The states of a stack, from what its last layer returns (`enter_stack`)."""
    x = x[0] if stack.block.value_residual else x
    if stack.block.attention_residuals:
        x = attend_over_depth(stack.depth_query, x, stack.block.norm_epsilon)
    x = tap(stack, "residual_out", x)
    return x if stack.norm is None else tap(stack, "final_norm", stack.norm(x))


class KVCache(NamedTuple):
    """The keys and values of the positions generated so far, for R = B k hypotheses (ops/shared.py)."""

    position: Int[Array, "R"]  # of the next token; `step` needs it to be the same for all
    ancestors: Int[Array, "R T"]  # the hypothesis of its sentence from which each one descends, by position
    layers: (
        Any  # per segment keys [B, Hkv, E, T k] and values [B, Hkv, T k, V], each `BeamKVCache`; scanned: [L, B, ..]
    )


class Decoder(nn.Module):
    """A stack of decoder layers, with attention over a memory (`cross`) or, as a language model, without."""

    block: Block
    layers: int
    cross: bool = True
    remat: bool = False
    shared: bool = False
    scan: bool = False

    def setup(self):
        layer = nn.remat(DecoderLayer, static_argnums=(5, 6)) if self.remat else DecoderLayer
        make_layers(self, lambda block: layer(block, self.cross), bidirectional=False)
        self.norm = None if self.block.norm == "post" else self.block.normalization()
        if self.block.attention_residuals:
            self.depth_query = depth_query(self, "depth_query")

    def __call__(self, x: Float[Array, "B T D"], mask, memory=None, train=False, return_weights=False, embeddings=None):
        """(states [B, T, D], self-attention weights [B, layers, H, T, T] or None, cross-attention weights [B,
        layers, H, T, S] or None); `memory` is that of `project`, and `embeddings` [B, T, L, Hkv V] are the value
        embeddings of a language model."""

        def apply_layer(layer, x, bias, projected, cache):
            x, self_weights, cross_weights = layer(x, mask, bias, _with_mask(projected, memory), train, return_weights)
            return x, (self_weights, cross_weights), None

        memories = memory.layers if memory else self._by_segment(embeddings)
        x, weights, _ = run_layers(self, apply_layer, enter_stack(self, x), memories)
        return self._finish(x, weights, return_weights)

    def _by_segment(self, embeddings: Float[Array, "B T L V"] | None) -> list | None:
        """The value embeddings of each segment, [B, T, V], or [layers, B, T, V] of scanned layers."""
        if embeddings is None:
            return None
        counts = [segment.count for segment in layer_segments(self)]
        by_segment = jnp.split(jnp.moveaxis(embeddings, 2, 0), np.cumsum([count or 1 for count in counts])[:-1])
        return [x[0] if count is None else x for x, count in zip(by_segment, counts, strict=True)]

    def project(self, states: Float[Array, "B S D"], mask) -> "ProjectedMemory":
        """The keys and values for the cross-attention of each layer."""

        def project_layer(layer, x, bias, memory, cache):
            return x, layer.project(states), None

        _, layers, _ = run_layers(self, project_layer, None)
        return ProjectedMemory(tuple(layers), mask)

    def start(self, batch_size: int, max_length: int) -> KVCache:
        """Create an empty cache for `max_length` positions."""
        segments = layer_segments(self)
        layers = tuple(x.layer.block.empty_cache(batch_size, max_length, x.count) for x in segments)
        return KVCache(jnp.zeros((batch_size,), jnp.int32), jnp.zeros((batch_size, max_length), jnp.int32), layers)

    def prefill(self, x: Float[Array, "B P D"], past: KVCache, lengths: Int[Array, "B"], embeddings=None):
        """Run the first positions of a language model at once: (states [B, P, D], the cache, in which each row is at
        the position after its own `lengths`)."""
        memories = self._by_segment(embeddings)
        x, _, layers = run_layers(self, DecoderLayer.prefill, enter_stack(self, x), memories, past.layers)
        return finish_stack(self, x), KVCache(lengths.astype(jnp.int32), past.ancestors, tuple(layers))

    def step(self, x: Float[Array, "R 1 D"], past: KVCache, memory=None, return_weights=False, embeddings=None):
        """Run one position: (states [R, 1, D], the extended cache, self-attention weights, cross-attention weights)."""
        position, hypotheses = past.position[0], x.shape[0] // past.layers[0][0].value.shape[-4]
        ancestors = mark_self(past.ancestors, position, hypotheses)
        entries = ancestor_mask(ancestors, position, hypotheses)

        def step_layer(layer, x, bias, projected, kv):
            projected = _with_mask(projected, memory)
            x, kv, self_weights, cross_weights = layer.step(x, kv, position, entries, bias, projected, return_weights)
            return x, (self_weights, cross_weights), kv

        memories = memory.layers if memory else self._by_segment(embeddings)
        x, weights, layers = run_layers(self, step_layer, enter_stack(self, x), memories, past.layers)
        x, self_weights, cross_weights = self._finish(x, weights, return_weights)
        return x, KVCache(past.position + 1, ancestors, tuple(layers)), self_weights, cross_weights

    def _finish(self, x, weights, return_weights):
        x = finish_stack(self, x)
        self_weights, cross_weights = ([maps[i] for maps in weights] for i in (0, 1))
        return (
            x,
            join_layer_outputs(self, self_weights) if return_weights else None,
            join_layer_outputs(self, cross_weights) if return_weights and self.cross else None,
        )


class ProjectedMemory(NamedTuple):
    """The encoder's output as the layers of a decoder attend to it."""

    layers: tuple  # per segment keys [B, Hkv, S, E] and values [B, Hkv, S, V]; scanned: [L, B, ...]
    mask: Any  # leaves [B, ...]


def _with_mask(projected, memory: ProjectedMemory | None):
    return projected if memory is None else (*projected, memory.mask)


class Embedding(nn.Module):
    """Token embeddings, times sqrt(d) if `scale`, plus position embeddings, with dropout on the sum."""

    vocab: int
    block: Block
    max_length: int
    """Rows of a learned table of positions."""
    scale: bool
    initial: Literal["normal", "xavier"]
    deviation: float = 0.0
    """Standard deviation of the tokens if `initial` is normal; 0 is that of 1 after scaling."""
    position_deviation: float = 1.0
    """Standard deviation of a learned table of positions if `initial` is normal; 1 is that of the scaled tokens."""

    def setup(self):
        width, (normal, xavier) = self.block.hidden_size, (nn.initializers.normal, nn.initializers.xavier_uniform())
        draw = lambda deviation: xavier if self.initial == "xavier" else normal(deviation)
        self.token = nn.Embed(
            self.vocab, width, embedding_init=draw(self.deviation or (width**-0.5 if self.scale else 1.0))
        )
        if self.block.position_embedding == "learned":
            self.position = nn.Embed(self.max_length, width, embedding_init=draw(self.position_deviation))
        else:
            make_positions = custom_positions(self.block.position_embedding)
            self.position = None if make_positions is None else make_positions(width)

    def check(self, length: int):
        """Raise InputError if there are fewer learned positions than `length`."""
        if self.block.position_embedding == "learned" and length > self.max_length:
            raise InputError(
                f"there are {self.max_length} learned positions, --model.max-length, for {length} tokens: give fewer "
                "tokens, or train with more positions"
            )

    def __call__(
        self, tokens: Int[Array, "B T"], offset=0, train: bool = False, segment: Int[Array, "B T"] | None = None
    ) -> Float[Array, "B T D"]:
        """The embeddings of `tokens` at positions `offset`, `offset` + 1, ...; from 0 in each `segment`."""
        if segment is None:
            self.check(tokens.shape[1])
        x = self.token(tokens)
        x = x * self.block.hidden_size**0.5 if self.scale else x
        positions = (
            jnp.arange(tokens.shape[1], dtype=jnp.int32) + offset if segment is None else positions_within(segment)
        )
        kind, width = self.block.position_embedding, self.block.hidden_size
        wide_dtype = accumulator(x.dtype)
        vectors = position_vectors(kind, positions.reshape(-1), width, self.position, wide_dtype)  # [T, D] or [B T, D]
        if vectors is not None:
            x = x + (vectors[None] if segment is None else vectors.reshape(x.shape))
        rate = self.block.dropout if self.block.dropout_embeddings else 0.0
        return apply_dropout(self, x, rate, train).astype(self.block.dtype)


class Memory(NamedTuple):
    """The encoder's output."""

    states: Float[Array, "B S D"]
    source_length: Int[Array, "B"]
    segment: Int[Array, "B S"] | None = None  # of packed sequences


class Cache(NamedTuple):
    """The state of incremental decoding."""

    past: KVCache
    memory: BeamInvariant  # per layer keys, values and mask of the source


class Transformer(nn.Module):
    """The encoder-decoder of Vaswani et al. (2017), figure 1.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`. `encode`, `start` and `step` decode
    one token at a time with a KV cache. Raises InputError for sizes and parts that do not fit each other.

    >>> from attention_jax import config
    >>> options = config.TransformerConfig(hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model = Transformer(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 4), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 4, 7)
    """

    options: config.TransformerConfig
    source_vocab: int
    target_vocab: int

    def __post_init__(self):
        options = self.options
        Block.of(options)  # raises InputError for incompatible options
        if options.needs_joint_vocabulary and self.source_vocab != self.target_vocab:
            raise InputError(
                f"--model.tied-embeddings {options.tied_embeddings} needs one vocabulary for both languages, got "
                f"{self.source_vocab} and {self.target_vocab} tokens; use a joint vocabulary, or "
                "--model.tied-embeddings output"
            )
        if options.embed_scale and options.embedding_init != "normal":
            raise InputError(f"--model.embed-scale needs --model.embedding-init normal, got {options.embedding_init}")
        if options.mlp_init == "relu" and options.mlp_layer != "dense":
            raise InputError(f"--model.mlp-init relu needs --model.mlp-layer dense, got {options.mlp_layer}")
        super().__post_init__()

    def setup(self):
        options, block = self.options, Block.of(self.options)
        embed = lambda size: Embedding(
            size, block, options.max_length, options.scale_embeddings, options.embedding_init, options.embed_scale
        )
        self.target_embedding = embed(self.target_vocab)
        self.source_embedding = self.target_embedding if options.needs_joint_vocabulary else embed(self.source_vocab)
        layers = {"remat": options.remat, "shared": options.shared_layers, "scan": options.scan_layers}
        self.encoder = Encoder(block, options.num_encoder_layers, **layers)
        self.decoder = Decoder(block, options.num_decoder_layers, True, **layers)
        if options.tied_embeddings in ("none", "inputs"):
            glorot = nn.initializers.xavier_uniform()
            self.kernel = self.param("kernel", glorot, (options.hidden_size, self.target_vocab))
        if options.output_bias:
            self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def encode(
        self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False, segment=None
    ) -> Memory:
        """Encode padded sentences or, with `segment` [B, S], packed ones."""
        return self._encode(source, source_length, train, False, segment)[0]

    def decode(
        self,
        memory: Memory,
        target_in: Int[Array, "B T"],
        *,
        train: bool = False,
        return_weights: bool = False,
        segment=None,
    ):
        """Teacher forcing: (hidden [B, T, D] in float32 at least, intermediates). With `segment` [B, T] tokens attend
        within their own segment and to its source."""
        self_mask, source_mask = causal(), lengths(memory.source_length)
        if not train and self.options.evaluation_mask == "none":
            self_mask = lengths(jnp.full(target_in.shape[:1], target_in.shape[1]))
        if segment is not None:
            self_mask, source_mask = self_mask & segments(segment, segment), segments(segment, memory.segment)
        projected = self.decoder.project(memory.states, source_mask)
        x = self.target_embedding(target_in, train=train, segment=segment)
        x, self_weights, cross_weights = self.decoder(x, self_mask, projected, train, return_weights)
        x = x.astype(accumulator(x.dtype))
        return x, {"decoder_attention": self_weights, "cross_attention": cross_weights} if return_weights else {}

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Return (kernel, bias) of the output layer, logits = hidden @ kernel + bias."""
        has_kernel = self.options.tied_embeddings in ("none", "inputs")
        kernel = self.kernel if has_kernel else self.target_embedding.token.embedding.T
        kernel = kernel * self.options.hidden_size**-0.5 if self.options.scale_output else kernel
        return kernel, self.bias if self.options.output_bias else jnp.zeros((self.target_vocab,))

    def start(self, memory: Memory, max_length: int) -> Cache:
        """Create the cache for `max_length` decoding steps; the source's keys and values are projected once, here."""
        self.target_embedding.check(max_length)
        projected = self.decoder.project(memory.states, lengths(memory.source_length))
        return Cache(self.decoder.start(memory.source_length.shape[0], max_length), BeamInvariant(projected))

    def step(self, cache: Cache, token: Int[Array, "B"], *, return_weights: bool = False):
        """Decode one token: (logits [B, V], cache, intermediates)."""
        x = self.target_embedding(token[:, None], cache.past.position[0])
        x, past, self_weights, cross_weights = self.decoder.step(x, cache.past, cache.memory.value, return_weights)
        weights = {"decoder_attention": self_weights, "cross_attention": cross_weights} if return_weights else {}
        return self._logits(x.astype(accumulator(x.dtype)))[:, 0], cache._replace(past=past), weights

    def __call__(self, source, source_length, target_in, *, train: bool = False, return_weights: bool = False):
        """Teacher-forced logits [B, T, V] and, with `return_weights`, {"encoder_attention", "decoder_attention",
        "cross_attention": [B, layers, H, Q, K]}."""
        memory, encoder_weights = self._encode(source, source_length, train, return_weights)
        hidden, weights = self.decode(memory, target_in, train=train, return_weights=return_weights)
        logits = tap(self, "logits", self._logits(hidden))
        return logits, weights | {"encoder_attention": encoder_weights} if return_weights else {}

    def _encode(self, source, source_length, train, return_weights, segment=None):
        x = self.source_embedding(source, train=train, segment=segment)
        mask = lengths(source_length) if segment is None else segments(segment, segment)
        states, weights = self.encoder(x, mask, train, return_weights)
        return Memory(states, source_length, segment), weights

    def _logits(self, hidden):
        kernel, bias = self.output()
        return hidden @ kernel + bias[None, None, :]


def count_parameters(params) -> int:
    """Return the number of elements in a pytree of arrays or of shapes (from `jax.eval_shape`)."""
    return sum(leaf.size for leaf in jax.tree.leaves(params))
