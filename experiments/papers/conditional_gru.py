"""The conditional GRU (Firat & Cho 2016): two transitions around the attention, on the token and on the context."""

from typing import NamedTuple

from attention_jax.errors import InputError
from attention_jax.models.alignment import Alignment, Scorer
from attention_jax.models.readout import DeepOutput
from attention_jax.models.recurrent import Cell, Layer
from attention_jax.models.taps import apply_edits
from attention_jax.models.translator import ATTENTION, STATES, Inputs, Step, drop_weights, edit_top_state
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan
from experiments.papers.options import ConditionalGRUConfig


class Weights(NamedTuple):
    """The weights of a decoder step."""

    align: Alignment  # query [B, H] -> weights [B, S]
    annotations: DeferredWeight  # h_i, [B, S, C]
    first: Cell
    second: Cell  # its input is the context


def step(w: Weights, states, x: Inputs):
    """One step of the conditional GRU (Sennrich et al. 2017, arXiv:1703.04357, section 2). `x.token` is E y_{j-1},
    projected for all steps before the scan."""
    between = w.first.step(x.token, states[0])  # eq. 2: s'_j = GRU_1(y_{j-1}, s_{j-1})
    alpha = apply_edits(x.edits.weights, w.align(between[0]))  # eq. 3, its weights
    context = apply_edits(
        x.edits.context, drop_weights(alpha, x.weight_dropout) @ w.annotations
    )  # eq. 3: c_j = ATT(C, s'_j)
    state = w.second.step(context @ w.second.input + w.second.bias[None], between)  # eq. 4: s_j = GRU_2(s'_j, c_j)
    [state] = edit_top_state([state], x.edits.states)
    return [state], Step(state[0], context, alpha)


class ConditionalGRU(DeepOutput):
    """The encoder-decoder with a conditional GRU of Firat & Cho (2016); Sennrich et al. 2017, section 2.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`.
    Caglayan et al. 2017 have readout tanh, tied embeddings, decoder_init mean and layer_norm of the annotations.

    >>> import jax, jax.numpy as jnp
    >>> options = ConditionalGRUConfig(hidden_size=4, embed_size=4, readout_size=4)
    >>> model = ConditionalGRU(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 3), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 3, 7)
    """

    settable = (*ATTENTION, STATES)
    options: ConditionalGRUConfig

    def make_decoder(self, annotation_size: int) -> int:
        o = self.options
        if o.num_layers != 1:
            raise InputError(f"a conditional GRU has one layer; got layers {o.num_layers}: use 1")
        self.stack = self.layers(())
        self.second = Layer((annotation_size,), o.hidden_size, o.cell, o.forget_bias, o.recurrent_bias)
        self.alignment = Scorer(o, annotation_size)
        return self.make_readout(annotation_size)

    def run(self, memory, states, token, train):
        align = self.alignment(memory.key, memory.length)
        edits = self.edits(memory, len(token), self.options.hidden_size)
        first, second = self.stack[0].cell_weights(first=True), self.second.cell_weights(first=False)
        return deferred_scan(
            step,
            Weights(align, DeferredWeight(memory.hidden), first, second),
            states,
            Inputs(token, [], self.weight_dropout(memory, len(token), train), edits),
        )
