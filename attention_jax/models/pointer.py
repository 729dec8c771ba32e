"""Pointer Networks (Vinyals, Fortunato, Jaitly 2015): attention weights are the output, a place in the input."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.named_scores import make_score
from attention_jax.models.recurrent import Layer
from attention_jax.ops import cells


class Memory(NamedTuple):
    """The encoder's output."""

    inputs: Float[Array, "B S F"]
    length: Int[Array, " B"]
    states: Float[Array, "B S H"]  # e_j
    last: cells.State


class Cache(NamedTuple):
    """The decoder between two steps."""

    memory: Memory
    state: cells.State


class PointerNetwork(nn.Module):
    """An LSTM reads the inputs, another one points at them: each step reads the input that was pointed at before.

    The first input is the symbol that begins an output, and pointing at it ends one. Attention goes nowhere else, so
    no step waits for the weights of the one before: in training the decoder runs first and then looks, all steps at
    once. What was pointed at may be pointed at again, as in the paper, which excludes it for tours alone.
    """

    options: config.PointerNetwork
    features: int

    def setup(self):
        size = self.options.hidden_size
        self.encoder, self.decoder = Layer((self.features,), size), Layer((self.features,), size)
        self.score = make_score(self, "additive", size, size, size)

    def encode(self, inputs: Float[Array, "B S F"], length: Int[Array, " B"]) -> Memory:
        """Read the inputs in their order."""
        hidden, cell = self.encoder.scan(self.encoder.project(inputs.swapaxes(0, 1)), self.encoder.zero(len(inputs)))
        last = cells.at_length(hidden, length), cells.at_length(cell, length)
        return Memory(inputs, length, hidden.swapaxes(0, 1), last)

    def point(self, memory: Memory, states: Float[Array, "B T H"]) -> Float[Array, "B T S"]:
        """log p(C_i | C_1, ..., C_{i-1}, P), p = softmax_j v . tanh(W_1 e_j + W_2 d_i) (equation 3); -inf for padding.

        In logarithms a probability that underflows has a finite loss.
        """

        def one(d, e, length):
            return jax.nn.log_softmax(self.score(d, e), where=jnp.arange(len(e)) < length)

        return jax.vmap(one)(states, memory.states, memory.length)

    def decode(self, memory: Memory, before: Int[Array, "B T"]) -> Float[Array, "B T S"]:
        """Teacher forced: log p of every step, where `before` is the index before it, 0 at first."""
        read = jnp.take_along_axis(memory.inputs, before[:, :, None], axis=1).swapaxes(0, 1)
        hidden, _ = self.decoder.scan(self.decoder.project(read), memory.last)
        return self.point(memory, hidden.swapaxes(0, 1))

    def start(self, memory: Memory) -> Cache:
        """The cache before the first step."""
        return Cache(memory, memory.last)

    def step(self, cache: Cache, before: Int[Array, " B"]) -> tuple[Float[Array, "B S"], Cache]:
        """One step: log p of each place, and the next cache."""
        read = jnp.take_along_axis(cache.memory.inputs, before[:, None, None], axis=1)[:, 0]
        state = cells.lstm_step(self.decoder.project(read), self.decoder.recurrent_kernel, cache.state)
        return self.point(cache.memory, state[0][:, None])[:, 0], cache._replace(state=state)

    def __call__(self, inputs, length, before):
        """log p [B, T, S] of every step, teacher forced."""
        return self.decode(self.encode(inputs, length), before)
