"""GNMT (Wu et al. 2016, arXiv:1609.08144): a deep residual stack in which the bottom decoder layer alone
computes attention."""

from attention_jax import config
from attention_jax.models import bahdanau
from attention_jax.models.alignment import Scorer
from attention_jax.models.readout import DeepOutput
from attention_jax.models.recurrent import cells_of
from attention_jax.models.translator import ATTENTION, Inputs
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan


class GNMT(DeepOutput):
    """The deep residual encoder-decoder of Wu et al. (2016), figure 1: one attention, whose context all layers read.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`.
    The paper has bidirectional first, cell lstm and residual connections (section 3.1), which begin at its third layer
    from the bottom (figure 1). Here they begin at the second layer of the decoder, and in the encoder at the first one
    whose input is as wide as its output.

    >>> import jax, jax.numpy as jnp
    >>> from attention_jax import config
    >>> options = config.GNMTConfig(hidden_size=4, embed_size=4, readout_size=4)
    >>> model = GNMT(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 3), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 3, 7)
    """

    settable = ATTENTION
    options: config.GNMTConfig

    def make_decoder(self, annotation_size: int) -> int:
        o = self.options
        self.stack = self.layers(first=(annotation_size,), above=(annotation_size,))
        self.alignment = Scorer(o, annotation_size)
        return self.make_readout(annotation_size)

    def run(self, memory, states, token, train):
        first, *above = self.stack
        align = self.alignment(memory.key, memory.length)
        w = bahdanau.Weights(align, DeferredWeight(memory.hidden), DeferredWeight(first.kernel(1)), cells_of([first]))
        last, steps = deferred_scan(
            bahdanau.step,
            w,
            states[:1],
            Inputs(token, [], self.weight_dropout(memory, len(token), train), self.edits(memory, len(token), 0)),
        )  # eq. 4: layer 1 attends, step by step
        hidden = steps.hidden
        for layer, state in zip(above, states[1:], strict=True):  # the others are one fused scan each
            below = self.drop(hidden, self.options.layer_dropout, train)
            layer_states = layer.scan(layer.project(below) + layer.project(steps.context, input_index=1), state)
            last = [*last, tuple(component[-1] for component in layer_states)]
            hidden = layer_states[0] + hidden if self.options.residual else layer_states[0]  # eq. 6
        return last, steps._replace(hidden=hidden)
