"""Recurrent language models on characters: plain tanh, GRU and LSTM, one layer, as in d2l chapters 9 and 10.

Characters enter one-hot, so that the input product is a row of the kernel. All weights start uniform in +-1 /
sqrt(hidden size).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.taps import tap
from attention_jax.ops import meshes
from attention_jax.ops.dropout import dropout
from attention_jax.ops.recurrent import bptt, cells

GATES = {"rnn": 1, "gru": 3, "lstm": 4}


def rnn_step(inputs: Float[Array, "B H"], kernel: Float[Array, "H H"], state: cells.State) -> cells.State:
    """One step of a plain recurrent layer, `h' = tanh(inputs + h kernel)` (d2l equation 9.4.5 with tanh).

    >>> [h] = rnn_step(jnp.zeros((1, 1)), jnp.ones((1, 1)), (jnp.ones((1, 1)),))
    >>> print(f"{h.item():.4f}")
    0.7616
    """
    return (jnp.tanh(inputs + state[0] @ kernel),)


class RecurrentLanguageModel(nn.Module):
    """A character-level recurrent language model; the state is a tuple of arrays and starts at zero.

    Call it with characters [B, T]; returns logits [B, T, V] of the next character and a dict of intermediates.
    `truncation` sets how far gradients flow back in training: "full" (the whole window), "truncated" (cut every
    `truncation_length` steps) or "randomised" (every `truncation_length` steps on average, unbiased). Outputs
    are the same.
    """

    options: config.RecurrentLanguageModelConfig
    vocab: int

    def setup(self):
        bound = self.options.hidden_size**-0.5
        uniform = lambda rng, shape: jax.random.uniform(rng, shape, minval=-bound, maxval=bound)
        width = GATES[self.options.cell] * self.options.hidden_size
        self.input_kernel = self.param("input_kernel", uniform, (self.vocab, width))
        self.recurrent_kernel = self.param("recurrent_kernel", uniform, (self.options.hidden_size, width))
        self.bias = self.param("bias", uniform, (width,))
        if self.options.cell == "gru":
            self.inner_bias = self.param("inner_bias", uniform, (self.options.hidden_size,))
        self.output_kernel = self.param("output_kernel", uniform, (self.options.hidden_size, self.vocab))
        self.output_bias = self.param("output_bias", uniform, (self.vocab,))
        if self.options.recurrent_bias:
            added = width - self.options.hidden_size if self.options.cell == "gru" else width
            self.bias = self.bias.at[:added].add(self.param("recurrent_bias", uniform, (added,)))

    def advance(self, projected: Float[Array, "B G"], state: cells.State) -> cells.State:
        """One step of the cell."""
        if self.options.cell == "lstm":
            return cells.lstm_step(projected, self.recurrent_kernel, state)
        if self.options.cell == "gru":
            return cells.gru_step(projected, self.recurrent_kernel, self.inner_bias, state)
        return rnn_step(projected, self.recurrent_kernel, state)

    def zero_state(self, batch: int) -> cells.State:
        """The state before the first character."""
        return (jnp.zeros((batch, self.options.hidden_size)),) * (2 if self.options.cell == "lstm" else 1)

    def hidden(
        self, tokens: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False
    ) -> tuple[Float[Array, "B T H"], dict]:
        """Return the hidden states of all steps, the input of the output layer; in training with dropout."""
        hidden = tap(self, "decoder.states", self.states(tokens, train))
        if train:
            hidden = dropout(hidden, self.options.dropout, self.make_rng("dropout"))
        return hidden, {}

    def states(self, tokens: Int[Array, "B T"], train: bool) -> Float[Array, "B T H"]:
        """Run the cell over the windows."""
        projected = self.input_kernel[tokens.T] + self.bias[None, None]  # [T, B, G]
        state = self.zero_state(tokens.shape[0])
        if train and self.options.truncation != "full":
            factors = self.factors(tokens.shape[1])

            def step(state, x):
                state = self.advance(x, state)
                return state, state[0]

            return bptt.scan_with_factors(step, state, projected, factors)[1].swapaxes(0, 1)  # [B, T, H]
        if self.options.cell == "lstm":
            hidden = cells.lstm(projected, self.recurrent_kernel, state)[0]
        elif self.options.cell == "gru":
            hidden = cells.gru(projected, self.recurrent_kernel, self.inner_bias, state)[0]
        else:
            step = lambda h, x: (rnn_step(x, self.recurrent_kernel, h),) * 2
            hidden = meshes.scan_with_closure(step, state, projected)[1][0]
        return hidden.swapaxes(0, 1)  # [B, T, H]

    def factors(self, steps: int) -> Float[Array, "T"]:
        """Factors by which each step multiplies the gradient that flows into the past."""
        if self.options.truncation == "truncated":
            return bptt.truncation_factors(steps, self.options.truncation_length)
        return bptt.random_factors(self.make_rng("dropout"), steps, 1 / self.options.truncation_length)

    def output(self) -> tuple[Float[Array, "H V"], Float[Array, "V"]]:
        """(kernel, bias) of the output layer."""
        return self.output_kernel, self.output_bias

    def start(self, batch_size: int, max_length: int) -> cells.State:
        """Return the state before the first character; its size does not depend on `max_length`."""
        return self.zero_state(batch_size)

    def step(self, cache: cells.State, token: Int[Array, "B"]):
        """(logits [B, V], state, {}) after one more character."""
        state = self.advance(self.input_kernel[token] + self.bias[None], cache)
        return state[0] @ self.output_kernel + self.output_bias[None], state, {}

    def __call__(
        self, tokens: Int[Array, "B T"], *, train: bool = False, return_weights: bool = False
    ) -> tuple[Float[Array, "B T V"], dict]:
        """Logits of the character after each one."""
        hidden, intermediates = self.hidden(tokens, train=train, return_weights=return_weights)
        return tap(self, "logits", hidden @ self.output_kernel + self.output_bias[None, None]), intermediates
