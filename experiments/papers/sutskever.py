"""Sequence to sequence without attention (Sutskever et al. 2014; Cho et al. 2014): the source is one vector."""

import jax.numpy as jnp

from attention_jax.errors import InputError
from attention_jax.models.readout import DeepOutput
from attention_jax.models.recurrent import run_stack
from attention_jax.models.translator import Step
from experiments.papers.options import SutskeverConfig


class Sutskever(DeepOutput):
    """The encoder-decoder without attention of Sutskever et al. (2014), and of Cho et al. (2014).

    The decoder starts from the encoder's last state; with context_input "every_step" (Cho et al.) it is also an input
    of every step. Sutskever et al. have cell lstm, 4 layers, bidirectional none, decoder_init pass and readout state.

    Call it with source [B, S], source_length [B] and target_in [B, T], the target shifted right behind `bos`; returns
    logits [B, T, V] and a dict of attention weights, empty unless `return_weights`.

    >>> import jax, jax.numpy as jnp
    >>> options = SutskeverConfig(hidden_size=4, embed_size=4, readout_size=4)
    >>> model = Sutskever(options, source_vocab=9, target_vocab=7)
    >>> batch = jnp.ones((2, 5), jnp.int32), jnp.array([5, 3]), jnp.ones((2, 3), jnp.int32)
    >>> (logits, _), params = jax.eval_shape(model.init_with_output, jax.random.key(0), *batch)
    >>> logits.shape
    (2, 3, 7)
    """

    options: SutskeverConfig

    def make_decoder(self, annotation_size: int) -> int:
        if self.options.attention_dropout:
            raise InputError("--model.attention-dropout needs a model that attends: leave it out")
        if (o := self.options).decoder_init != "mean" and (o.layer_norm or o.memory_dropout):
            raise InputError(
                "--model.layer-norm and --model.memory-dropout are of the annotations, which without attention only "
                "--model.decoder-init mean reads: leave them out, or start from the mean"
            )
        context_size = annotation_size if self.options.context_input == "every_step" else 0
        self.stack = self.layers((context_size,))
        self.alignment = None
        return self.make_readout(context_size)

    def run(self, memory, states, token, train):
        context = None
        if self.options.context_input == "every_step":
            context = jnp.broadcast_to(memory.last, (token.shape[0], *memory.last.shape))  # [T, B, H]
            token = token + self.stack[0].project(memory.last, input_index=1)[None]
        drop = lambda x: self.drop(x, self.options.layer_dropout, train)
        hidden, states = run_stack(self.stack, token, states, drop)
        return states, Step(hidden, context)
