"""Attention before the recurrence (Bahdanau et al. 2015): the last state asks, the context is input."""

from typing import NamedTuple

from attention_jax import config
from attention_jax.models.alignment import Alignment, Scorer
from attention_jax.models.readout import DeepOutput
from attention_jax.models.recurrent import Cell, cells_of, stacked_step
from attention_jax.models.translator import Inputs, Step
from attention_jax.ops.deferred import DeferredWeight, deferred_scan


class Weights(NamedTuple):
    """What a step multiplies with."""

    align: Alignment  # query [B, H] -> weights [B, S]
    annotations: DeferredWeight  # h_j, [B, S, C]
    context: DeferredWeight  # C, from the context to the first layer's gates
    layers: list[Cell]


def step(w: Weights, states, x: Inputs):
    """Bahdanau et al. 2015, A.2.2; x.token is E y_{i-1}, projected for all steps before the scan."""
    alpha = w.align(states[-1][0])  # eq. 6: alpha_ij = softmax_j a(s_{i-1}, h_j)
    context = alpha @ w.annotations  # eq. 5: c_i = sum_j alpha_ij h_j
    states = stacked_step(w.layers, states, x.token + context @ w.context, x.noise)  # s_i = f(s_{i-1}, y_{i-1}, c_i)
    return states, Step(states[-1][0], context, alpha)


class Bahdanau(DeepOutput):
    """The paper's: score additive, cell gru, bidirectional all, readout maxout."""

    options: config.Bahdanau

    def make_decoder(self, annotation_size: int) -> int:
        o = self.options
        self.stack = self.layers((annotation_size,))
        self.alignment = Scorer(o.score, o.hidden_size, annotation_size, o.hidden_size)
        return self.make_readout(annotation_size)

    def run(self, memory, states, token, train):
        align = self.alignment(memory.key, memory.length)
        w = Weights(align, DeferredWeight(memory.hidden), DeferredWeight(self.stack[0].kernel(1)), cells_of(self.stack))
        return deferred_scan(step, w, states, Inputs(token, self.noise(token, train)))
