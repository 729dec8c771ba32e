"""Base class of the recurrent translation models: encoder, initial decoder state, embeddings and output layer.

Each model's file defines the decoder's recurrence and its attention: `bahdanau`, `luong`, `gnmt`. The same `run`
processes all target positions in training and a single one in decoding.
"""

from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.encoder import Encoder
from attention_jax.models.recurrent import Embedding, Layer, kernel_init
from attention_jax.models.taps import Edit, apply_edits, record_activation, step_edits, tap
from attention_jax.ops.dropout import dropout, is_zero
from attention_jax.ops.recurrent import cells


class Memory(NamedTuple):
    """The encoder's output and the initial state of the decoder."""

    length: Int[Array, " B"]
    states: list[cells.State]  # the decoder's first ones
    last: Float[Array, "B C"]  # the encoder's last state
    hidden: Float[Array, "B S C"] | None = None  # the annotations h_j of a model that attends
    key: Float[Array, "B S F"] | None = None  # what its score made of them


ATTENTION = ("attention.weights", "attention.context")
STATES = "decoder.states"


class Edits(NamedTuple):
    """What `interpret` sets in a decoder step; stacked over time, [T, B, ...]."""

    weights: tuple[Edit, ...] = ()
    context: tuple[Edit, ...] = ()
    states: tuple[Edit, ...] = ()


class Inputs(NamedTuple):
    """Inputs of a decoder step besides its state; stacked over time, [T, B, ...]."""

    token: Float[Array, "B G"]  # the embedded token E y_{t-1}, projected by the first layer
    noise: list[Float[Array, "B H"]]  # dropout between layers, in training
    weight_dropout: Float[Array, "B S"] | None = None  # dropout of the attention weights, in training
    edits: Edits = Edits()


def edit_top_state(states: list[cells.State], edits: tuple[Edit, ...]) -> list[cells.State]:
    """The states of all layers after these edits of the hidden state of the top one."""
    *below, (hidden, *cell) = states
    return [*below, (apply_edits(edits, hidden), *cell)]


def drop_weights(alpha: Float[Array, "B S"], weight_dropout: Float[Array, "B S"] | None) -> Float[Array, "B S"]:
    """The attention weights times the dropout factors `weight_dropout`, if there are any."""
    return alpha if weight_dropout is None else alpha * weight_dropout


class Step(NamedTuple):
    """Outputs of a decoder step; stacked over time, [T, B, ...]."""

    hidden: Float[Array, "B H"]  # the top layer's state s_t
    context: Float[Array, "B C"] | None = None  # c_t
    weights: Float[Array, "B S"] | None = None  # alpha_t, for attention maps


class Cache(NamedTuple):
    """The state of incremental decoding; its size does not depend on the length."""

    memory: Memory
    state: Any


class Translator(nn.Module):
    """Abstract. A model defines `make_decoder`, `run` and `read`, and `begin` if its state is more than its layers'."""

    settable: ClassVar[tuple[str, ...]] = ()
    """The taps of `Edits` that the steps of the decoder apply."""
    options: config.TranslatorConfig
    source_vocab: int
    target_vocab: int

    def setup(self):
        o = self.options
        passes = o.decoder_init in ("pass", "hidden")
        if passes and o.bidirectional != "none":
            raise InputError(
                f"--model.decoder-init {o.decoder_init} needs bidirectional none, got {o.bidirectional}: "
                "use decoder_init dense or mean"
            )
        if o.encoder_state == "last_step" and o.bidirectional != "none":
            raise InputError(
                "--model.encoder-state last_step needs bidirectional none: a backward direction ends at the first "
                f"token; got {o.bidirectional}"
            )
        if o.forget_bias and o.cell != "lstm":
            raise InputError(f"--model.forget-bias needs --model.cell lstm, got {o.cell}, which has no forget gates")
        if o.recurrent_bias and o.forget_bias:
            raise InputError(
                "--model.recurrent-bias starts all biases of a gate at random, got --model.forget-bias "
                f"{o.forget_bias}, too: leave one of them out"
            )
        scale = o.embed_scale or o.embed_size**-0.5
        self.encoder = Encoder(
            self.source_vocab, o.embed_size, o.hidden_size, o.cell, o.num_layers, o.bidirectional, "concat",
            residual=o.residual, embed_dropout=o.embed_dropout, layer_dropout=o.layer_dropout, embed_scale=scale,
            state=o.encoder_state, forget_bias=o.forget_bias, recurrent_bias=o.recurrent_bias,
        )  # fmt: skip
        if o.layer_norm:
            self.norm = nn.LayerNorm()
        if not passes:
            self.bridge = [nn.Dense((2 if o.cell == "lstm" else 1) * o.hidden_size) for _ in range(o.num_layers)]
        self.embed = Embedding(self.target_vocab, o.embed_size, scale)
        width = self.make_decoder(self.encoder.output_size())
        if o.tied_embeddings and width != o.embed_size:
            raise InputError(
                f"a tied output layer needs readout_size equal to embed_size, got {width} and {o.embed_size}"
            )
        if not o.tied_embeddings:
            self.kernel = self.param("kernel", kernel_init, (width, self.target_vocab))
        self.bias = self.param("bias", nn.initializers.zeros, (self.target_vocab,))

    def make_decoder(self, annotation_size: int) -> int:
        """Create the `stack` of layers, the `alignment` (or None) and other parts of the decoder, in `setup`.

        Returns the width of the output layer's input.
        """
        raise NotImplementedError

    def initial_state(self, memory: Memory):
        """Return the decoder's state before the first step."""
        return memory.states

    def run(self, memory: Memory, state, token: Float[Array, "T B G"], train: bool) -> tuple[Any, Step]:
        """Run all steps of a target with projected tokens; return the last state and the outputs, [T, B, ...]."""
        raise NotImplementedError

    def read(self, step: Step, embedded: Float[Array, "*shape E"]) -> Float[Array, "*shape D"]:
        """Return the input of the output layer, from a decoder step and the embedded previous token."""
        raise NotImplementedError

    def layers(self, first: tuple[int, ...], above: tuple[int, ...] = ()) -> list[Layer]:
        """Create the decoder's layers; `first` and `above` are the widths of inputs besides token and state below."""
        o = self.options
        layer = lambda *sizes: Layer(sizes, o.hidden_size, o.cell, o.forget_bias, o.recurrent_bias)
        upper_layers = [layer(o.hidden_size, *above) for _ in range(o.num_layers - 1)]
        return [layer(o.embed_size, *first), *upper_layers]

    def drop(self, x, rate: float | Array, train: bool):
        return dropout(x, rate, self.make_rng("dropout") if train else None)

    def encode(self, source: Int[Array, "B S"], source_length: Int[Array, "B"], *, train: bool = False) -> Memory:
        """Encode the source."""
        hidden, states = self.encoder(source, source_length, train=train)
        if self.options.layer_norm:
            hidden = self.norm(hidden)
        hidden = self.drop(hidden, self.options.memory_dropout, train)
        if self.alignment is None and self.options.decoder_init != "mean":  # the decoder has the last ones alone
            record_activation(self, "encoder.states", hidden, settable=False)
        else:
            hidden = tap(self, "encoder.states", hidden)
        memory = Memory(source_length, self.first_states(hidden, states, source_length), states[-1][0])
        if self.alignment is None:
            return memory
        return memory._replace(hidden=hidden, key=self.alignment.prepare(hidden))

    def first_states(self, hidden, states: list[cells.State], length) -> list[cells.State]:
        """Return the initial decoder states: by `decoder_init` the encoder's last, their hidden parts, or a dense map.

        The dense layer reads the last states of both directions; in Bahdanau et al. 2015 (A.2.2) it reads only the
        backward state.
        """
        o = self.options
        if o.decoder_init == "pass":
            return states
        if o.decoder_init == "hidden":
            return [(last, *(jnp.zeros_like(c) for c in cell)) for last, *cell in states]
        sources = [state[0] for state in states]
        if o.decoder_init == "mean":
            token_mask = (jnp.arange(hidden.shape[1])[None, :] < length[:, None]).astype(hidden.dtype)
            count = jnp.maximum(length, 1).astype(hidden.dtype)[:, None]
            sources = [jnp.einsum("bs,bsc->bc", token_mask, hidden) / count] * o.num_layers  # [B, C] each
        start = [jnp.tanh(dense(x)) for dense, x in zip(self.bridge, sources, strict=True)]
        return [tuple(jnp.split(s, 2, axis=-1)) if o.cell == "lstm" else (s,) for s in start]

    def decode(
        self, memory: Memory, target_in: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False
    ):
        """Teacher forced: hidden [B, T, D] and intermediates; logits are `hidden @ kernel + bias` (see `output`)."""
        embedded, token = self.inputs(target_in.T, train)  # [T, B, E], [T, B, G]
        _, steps = self.run(memory, self.initial_state(memory), token, train)
        steps, embedded = jax.tree.map(lambda x: x.swapaxes(0, 1), (steps, embedded))  # [B, T, ...]
        activations = (steps.weights, steps.context, steps.hidden)
        for name, x in zip((*ATTENTION, STATES), activations, strict=True):
            if x is not None:
                record_activation(self, name, x, settable=name in self.settable)
        hidden = self.drop(self.read(steps, embedded), self.options.output_dropout, train)
        return hidden, _attention_maps(steps) if return_weights else {}

    def inputs(self, tokens: Int[Array, "T B"], train: bool) -> tuple[Float[Array, "T B E"], Float[Array, "T B G"]]:
        """Return the embedded tokens, and their projection by the first layer."""
        first, rate = self.stack[0], self.options.embed_dropout
        if train and not is_zero(rate):
            embedded = self.drop(self.embed(tokens), rate, train)
            return embedded, first.project(embedded)
        return self.embed(tokens), first.lookup(self.embed.table, tokens)

    def noise(self, token: Float[Array, "T B G"], train: bool) -> list[Float[Array, "T B H"]]:
        """Dropout between layers that go step by step."""
        o = self.options
        if not train or is_zero(o.layer_dropout):
            return []
        unit_factors = jnp.ones((*token.shape[:2], o.hidden_size))
        return [self.drop(unit_factors, o.layer_dropout, train) for _ in range(o.num_layers - 1)]

    def weight_dropout(self, memory: Memory, steps: int, train: bool) -> Float[Array, "T B S"] | None:
        """Dropout of the attention weights of all steps: factors 0 or 1 / (1 - rate); None without."""
        if not train or is_zero(self.options.attention_dropout):
            return None
        return self.drop(jnp.ones((steps, *memory.hidden.shape[:2])), self.options.attention_dropout, train)

    def edits(self, memory: Memory, steps: int, width: int) -> Edits:
        """What replaces activations of a decoder that attends, whose states are `width` wide, in all steps."""
        batch, length, annotation = memory.hidden.shape
        sizes = dict(zip((*ATTENTION, STATES), (length, annotation, width), strict=True))
        return Edits(
            *(step_edits(self, name, (batch, steps, n)) if name in self.settable else () for name, n in sizes.items())
        )

    def start(self, memory: Memory, max_length: int) -> Cache:
        """The cache before the first step; after it the decoder's own state replaces the initial ones."""
        return Cache(memory._replace(states=[]), self.initial_state(memory))

    def step(self, cache: Cache, token: Int[Array, "B"]):
        """One step: logits [B, V], the next cache, and its attention weights [B, 1, 1, 1, S]."""
        embedded = self.embed(token)[None]  # T = 1
        state, steps = self.run(cache.memory, cache.state, self.stack[0].project(embedded), train=False)
        kernel, bias = self.output()
        logits = self.read(jax.tree.map(lambda x: x[0], steps), embedded[0]) @ kernel + bias[None]
        return logits, cache._replace(state=state), _attention_maps(jax.tree.map(lambda x: x.swapaxes(0, 1), steps))

    def output(self) -> tuple[Float[Array, "D V"], Float[Array, "V"]]:
        """Kernel and bias of the output layer; a tied one is the target embedding."""
        return (self.embed.table.T if self.options.tied_embeddings else self.kernel), self.bias

    def __call__(self, source, source_length, target_in, *, train: bool = False, return_weights: bool = False):
        """Teacher-forced logits [B, T, V] and intermediates."""
        memory = self.encode(source, source_length, train=train)
        hidden, intermediates = self.decode(memory, target_in, train=train, return_weights=return_weights)
        kernel, bias = self.output()
        return tap(self, "logits", hidden @ kernel + bias[None, None]), intermediates


def _attention_maps(steps: Step) -> dict[str, Float[Array, "B 1 1 T S"]]:
    """Convert attention weights [B, T, S] to the intermediates that all models return: [B, layers, heads, T, S]."""
    return {} if steps.weights is None else {"cross_attention": steps.weights[:, None, None]}
