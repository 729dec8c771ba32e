"""The encoder-decoder of Bahdanau et al. (2015): the previous decoder state queries the source, and the context vector
is an input of the recurrence."""

from typing import NamedTuple

from attention_jax import config
from attention_jax.models.alignment import Alignment, Scorer
from attention_jax.models.readout import DeepOutput
from attention_jax.models.recurrent import Cell, cells_of, step_stack
from attention_jax.models.taps import apply_edits
from attention_jax.models.translator import ATTENTION, STATES, Inputs, Step, drop_weights, edit_top_state
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan


class Weights(NamedTuple):
    """The weights of a decoder step."""

    align: Alignment  # query [B, H] -> weights [B, S]
    annotations: DeferredWeight  # h_j, [B, S, C]
    context: DeferredWeight  # C, from the context to the first layer's gates
    layers: list[Cell]


def step(w: Weights, states, x: Inputs):
    """One decoder step with additive attention (Bahdanau et al. 2015, A.2.2). `x.token` is E y_{i-1}, projected for all
    steps before the scan."""
    alpha = apply_edits(x.edits.weights, w.align(states[-1][0]))  # eq. 6: alpha_ij = softmax_j a(s_{i-1}, h_j)
    context = apply_edits(
        x.edits.context, drop_weights(alpha, x.weight_dropout) @ w.annotations
    )  # eq. 5: c_i = sum_j alpha_ij h_j
    states = step_stack(w.layers, states, x.token + context @ w.context, x.noise)  # s_i = f(s_{i-1}, y_{i-1}, c_i)
    states = edit_top_state(states, x.edits.states)
    return states, Step(states[-1][0], context, alpha)


class Bahdanau(DeepOutput):
    """The encoder-decoder with additive attention of Bahdanau et al. (2015), appendix A.2.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`.
    The paper has score additive, cell gru, bidirectional all and readout maxout.

    >>> import jax, jax.numpy as jnp
    >>> from attention_jax import config
    >>> options = config.BahdanauConfig(hidden_size=4, embed_size=4, readout_size=4)
    >>> model = Bahdanau(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 3), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 3, 7)
    """

    settable = (*ATTENTION, STATES)
    options: config.BahdanauConfig

    def make_decoder(self, annotation_size: int) -> int:
        o = self.options
        self.stack = self.layers((annotation_size,))
        self.alignment = Scorer(o, annotation_size)
        return self.make_readout(annotation_size)

    def run(self, memory, states, token, train):
        align = self.alignment(memory.key, memory.length)
        w = Weights(align, DeferredWeight(memory.hidden), DeferredWeight(self.stack[0].kernel(1)), cells_of(self.stack))
        steps, noise = len(token), self.noise(token, train)
        edits = self.edits(memory, steps, self.options.hidden_size)
        return deferred_scan(step, w, states, Inputs(token, noise, self.weight_dropout(memory, steps, train), edits))
