"""Inputs of the output layer: the decoder state, or a function of state, context and previous token ("deep output")."""

import jax.numpy as jnp
from flax import linen as nn
from jaxtyping import Array, Float

from attention_jax import config
from attention_jax.models.recurrent import kernel_init
from attention_jax.models.translator import Step, Translator
from attention_jax.ops.precision import matmul


class DeepOutput(Translator):
    """Abstract. The state s_t alone; or [s_t; c_t; E y_{t-1}] as it is, through tanh, or through maxout.

    Maxout (Goodfellow et al. 2013) is the "deep output" of Bahdanau et al. 2015, A.2.2; here it sees s_t, not s_{t-1}.
    """

    options: config.DeepOutputConfig

    def make_readout(self, context_size: int) -> int:
        """Create the weights, in `setup`; return the width of the output layer's input."""
        o = self.options
        input_size = o.hidden_size + context_size + (o.embed_size if o.readout_embedding else 0)
        if o.readout == "state":
            return o.hidden_size
        if o.readout == "linear":
            return input_size
        columns = o.readout_size * (2 if o.readout == "maxout" else 1)
        self.readout_kernel = self.param("readout_kernel", kernel_init, (input_size, columns))
        self.readout_bias = self.param("readout_bias", nn.initializers.zeros, (columns,))
        return o.readout_size

    def read(self, step: Step, embedded: Float[Array, "*shape E"]) -> Float[Array, "*shape D"]:
        """The input of the output layer, from a decoder step and the previous token."""
        if self.options.readout == "state":
            return step.hidden
        token = embedded if self.options.readout_embedding else None
        features = jnp.concatenate([x for x in (step.hidden, step.context, token) if x is not None], axis=-1)
        if self.options.readout == "linear":
            return features
        y = matmul(features, self.readout_kernel)  # [*shape, D], of maxout [*shape, 2 D]
        y = y + self.readout_bias.reshape((1,) * (y.ndim - 1) + (-1,))
        return jnp.tanh(y) if self.options.readout == "tanh" else y.reshape(*y.shape[:-1], -1, 2).max(axis=-1)
