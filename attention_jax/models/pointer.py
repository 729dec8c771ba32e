"""Pointer Networks (Vinyals, Fortunato, Jaitly 2015): the attention weights are the output distribution over inputs."""

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.named_scores import make_score
from attention_jax.models.recurrent import Layer
from attention_jax.models.taps import tap
from attention_jax.ops.recurrent import cells


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
    """An LSTM encodes the inputs, and another one selects from them; each step's input is the one selected before.

    The first input is the symbol that begins an output, and selecting it ends the output. Attention does not feed the
    recurrence, so in training the decoder runs first and the attention of all steps is computed at once. An input may
    be selected repeatedly, as in the paper, which excludes that only for tours.
    """

    options: config.PointerNetworkConfig
    features: int

    def setup(self):
        size = self.options.hidden_size
        self.encoder, self.decoder = Layer((self.features,), size), Layer((self.features,), size)
        self.score = make_score(self, "additive", size, size, size)

    def encode(self, inputs: Float[Array, "B S F"], length: Int[Array, " B"]) -> Memory:
        """Encode the inputs in the given order."""
        hidden, cell = self.encoder.scan(
            self.encoder.project(inputs.swapaxes(0, 1)), self.encoder.zero_state(len(inputs))
        )
        last = cells.at_length(hidden, length), cells.at_length(cell, length)
        states = tap(self, "encoder.states", hidden.swapaxes(0, 1))  # [B, S, H]
        return Memory(inputs, length, states, last)

    def point(self, memory: Memory, states: Float[Array, "B T H"]) -> Float[Array, "B T S"]:
        """log p(C_i | C_1, ..., C_{i-1}, P), p = softmax_j v . tanh(W_1 e_j + W_2 d_i) (equation 3); -inf for padding.

        In logarithms a probability that underflows has a finite loss.
        """

        def log_probabilities(d, e, length):
            return jax.nn.log_softmax(self.score(d, e), where=jnp.arange(len(e)) < length)

        return jax.vmap(log_probabilities)(states, memory.states, memory.length)  # [B, T, S]

    def decode(self, memory: Memory, previous: Int[Array, "B T"]) -> Float[Array, "B T S"]:
        """Teacher forced: log p of every step, where `previous` is the index selected before it, 0 at first."""
        selected = jnp.take_along_axis(memory.inputs, previous[:, :, None], axis=1).swapaxes(0, 1)  # [T, B, F]
        hidden, _ = self.decoder.scan(self.decoder.project(selected), memory.last)
        states = tap(self, "decoder.states", hidden.swapaxes(0, 1))  # [B, T, H]
        return tap(self, "logits", self.point(memory, states))

    def start(self, memory: Memory) -> Cache:
        """The cache before the first step."""
        return Cache(memory, memory.last)

    def step(self, cache: Cache, previous: Int[Array, " B"]) -> tuple[Float[Array, "B S"], Cache]:
        """Run one step: log p [B, S] of each input, and the next cache."""
        selected = jnp.take_along_axis(cache.memory.inputs, previous[:, None, None], axis=1)[:, 0]  # [B, F]
        state = cells.lstm_step(self.decoder.project(selected), self.decoder.recurrent_kernel, cache.state)
        return self.point(cache.memory, state[0][:, None])[:, 0], cache._replace(state=state)

    def __call__(self, inputs, length, previous):
        """Return log p [B, T, S] of every step, with teacher forcing."""
        return self.decode(self.encode(inputs, length), previous)
