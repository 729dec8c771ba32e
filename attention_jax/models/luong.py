"""The encoder-decoder of Luong et al. (2015, arXiv:1508.04025): attention after the recurrence, input feeding, and
local attention."""

from dataclasses import dataclass, field
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.alignment import Alignment, Scorer
from attention_jax.models.recurrent import Cell, cells_of, kernel_init, run_stack, step_stack
from attention_jax.models.taps import apply_edits
from attention_jax.models.translator import ATTENTION, STATES, Inputs, Memory, Step, Translator, drop_weights
from attention_jax.ops.precision import matmul
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan
from attention_jax.ops.trees import pytree


@pytree
@dataclass(frozen=True)
class Monotonic(Alignment):
    """Monotonic local attention, local-m (section 3.2): source positions within `reach` of p_t = t."""

    reach: int = field(metadata={"static": True})  # D

    def __call__(self, query, time):
        distance = jnp.arange(self.key.shape[1])[None] - time[:, None]
        return self.weights(query, self.token_mask & (jnp.abs(distance) <= self.reach))


@pytree
@dataclass(frozen=True)
class Predictive(Alignment):
    """Predictive local attention, local-p (section 3.2): source positions within `reach` of a predicted one p_t, times
    a Gaussian about it, not renormalized."""

    reach: int = field(metadata={"static": True})  # D
    kernel: Float[Array, "D H"]  # W_p
    vector: Float[Array, "H 1"]  # v_p

    def __call__(self, query, time):
        fraction = jax.nn.sigmoid(jnp.tanh(query @ self.kernel) @ self.vector)
        center = fraction * self.length[:, None].astype(jnp.float32)  # eq. 9: p_t = S sigmoid(v_p . tanh(W_p h_t))
        distance = jnp.arange(self.key.shape[1]).astype(jnp.float32)[None] - center
        weights = self.weights(query, self.token_mask & (jnp.abs(distance) <= self.reach))
        return weights * jnp.exp(-jnp.square(distance) / (2.0 * (self.reach / 2.0) ** 2))  # eq. 10, sigma = D / 2


class Weights(NamedTuple):
    """The weights of a decoder step with input feeding."""

    align: Alignment  # query [B, H], time [B] -> weights [B, S]
    annotations: DeferredWeight  # [B, S, C]
    feed: DeferredWeight  # from the last attentional vector to the first layer's gates
    layers: list[Cell]
    readout: DeferredWeight  # W_c
    bias: Float[Array, " R"]


class InputFeedingState(NamedTuple):
    """The state of a decoder with input feeding."""

    states: list
    fed: Float[Array, "B R"]  # the attentional vector of the last step
    time: Int[Array, " B"]


def feeding_step(w: Weights, state: InputFeedingState, x: Inputs):
    """Section 3.3: the attentional vector of the previous step is an input of this one."""
    states = step_stack(w.layers, state.states, x.token + state.fed @ w.feed, x.noise)  # h_t
    alpha = apply_edits(x.edits.weights, w.align(states[-1][0], state.time))  # eq. 7
    context = apply_edits(x.edits.context, drop_weights(alpha, x.weight_dropout) @ w.annotations)  # c_t
    fed = jnp.tanh(jnp.concatenate([states[-1][0], context], axis=-1) @ w.readout + w.bias[None])  # eq. 5: h~_t
    fed = apply_edits(x.edits.states, fed)
    return InputFeedingState(states, fed, state.time + 1), Step(fed, context, alpha)


class PredictiveScorer(Scorer):
    """A `Scorer` with the weights of the predicted position p_t (Luong et al. 2015, eq. 9)."""

    def setup(self):
        super().setup()
        glorot, size = nn.initializers.glorot_uniform(), self.options.hidden_size
        self.position_kernel = self.param("position_kernel", glorot, (size, size))
        self.position_vector = self.param("position_vector", glorot, (size, 1))


class Luong(Translator):
    """The encoder-decoder of Luong et al. (2015), with global or local attention and input feeding.

    Logits are computed from the attentional vector h~_t = tanh(W_c [h_t; c_t]) (eq. 5), which with input feeding is
    also an input of the next step.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`.

    >>> import jax, jax.numpy as jnp
    >>> from attention_jax import config
    >>> options = config.LuongConfig(hidden_size=4, embed_size=4, readout_size=4)
    >>> model = Luong(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 3), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 3, 7)
    """

    settable = (*ATTENTION, STATES)
    options: config.LuongConfig

    def make_decoder(self, annotation_size: int) -> int:
        o = self.options
        self.stack = self.layers((o.readout_size if o.input_feeding else 0,))
        scorer = PredictiveScorer if o.window == "predictive" else Scorer
        self.alignment = scorer(o, annotation_size)
        joined_size = o.hidden_size + annotation_size
        self.readout_kernel = self.param("readout_kernel", kernel_init, (joined_size, o.readout_size))
        self.readout_bias = self.param("readout_bias", nn.initializers.zeros, (o.readout_size,))
        return o.readout_size

    def align(self, memory: Memory) -> Alignment:
        """Global attention, or one of the local windows."""
        alignment, window, reach = (
            self.alignment(memory.key, memory.length),
            self.options.window,
            self.options.window_size,
        )
        fields = (alignment.score, alignment.key, alignment.length, alignment.bias, alignment.normalizer)
        if window == "monotonic":
            return Monotonic(*fields, reach)
        if window == "predictive":
            return Predictive(*fields, reach, self.alignment.position_kernel, self.alignment.position_vector)
        return alignment

    def initial_state(self, memory: Memory) -> InputFeedingState:
        batch = memory.length.shape[0]
        return InputFeedingState(
            memory.states, jnp.zeros((batch, self.options.readout_size)), jnp.zeros((batch,), jnp.int32)
        )

    def run(self, memory, state, token, train):
        if not self.options.input_feeding:
            return self.run_without_feeding(memory, state, token, train)
        feed = DeferredWeight(self.stack[0].kernel(1))
        readout = DeferredWeight(self.readout_kernel), self.readout_bias
        w = Weights(self.align(memory), DeferredWeight(memory.hidden), feed, cells_of(self.stack), *readout)
        weight_dropout, edits = (
            self.weight_dropout(memory, len(token), train),
            self.edits(memory, len(token), self.options.readout_size),
        )
        return deferred_scan(feeding_step, w, state, Inputs(token, self.noise(token, train), weight_dropout, edits))

    def run_without_feeding(self, memory: Memory, state: InputFeedingState, token, train):
        """The recurrence over all steps, then attention of all its states at once."""
        drop = lambda x: self.drop(x, self.options.layer_dropout, train)
        hidden, states = run_stack(self.stack, token, state.states, drop)  # [T, B, H]
        time = state.time[:, None] + jnp.arange(hidden.shape[0])[None]  # [B, T]
        hidden = hidden.swapaxes(0, 1)  # [B, T, H]
        edits = self.edits(memory, len(token), self.options.readout_size)
        edit_steps = lambda edits, x: (
            apply_edits(edits, x.swapaxes(0, 1)).swapaxes(0, 1) if edits else x
        )  # of all steps at once
        alpha = jax.vmap(self.align(memory), in_axes=1, out_axes=1)(hidden, time)  # eq. 7: [B, T, S]
        alpha = edit_steps(edits.weights, alpha)
        weight_dropout = self.weight_dropout(memory, len(token), train)
        weight_dropout = None if weight_dropout is None else weight_dropout.swapaxes(0, 1)  # [B, T, S]
        context = jnp.einsum("bts,bsc->btc", drop_weights(alpha, weight_dropout), memory.hidden)  # [B, T, C]
        context = edit_steps(edits.context, context)
        joined = jnp.concatenate([hidden, context], axis=-1)
        attentional = jnp.tanh(matmul(joined, self.readout_kernel) + self.readout_bias[None, None])  # eq. 5
        attentional = edit_steps(edits.states, attentional)
        steps = jax.tree.map(lambda x: x.swapaxes(0, 1), Step(attentional, context, alpha))  # [T, B, ...]
        return InputFeedingState(states, state.fed, state.time + hidden.shape[1]), steps

    def read(self, step: Step, embedded):
        return step.hidden  # h~_t
