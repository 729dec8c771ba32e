"""Recurrent layers: the weights of `ops.recurrent.cells`, one step of a stack of them, and a stack over all time at
once.

Time comes first ([T, B, D]), because a scan runs over it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.models.initializers import XAVIER, within
from attention_jax.ops.precision import matmul
from attention_jax.ops.recurrent import cells
from attention_jax.ops.recurrent.deferred import DeferredWeight

GATES = {"lstm": 4, "gru": 3}
kernel_init = nn.initializers.lecun_normal()
"""Variance 1 / fan_in, as in "Deep Learning from Scratch 2" (there untruncated)."""


class Embedding(nn.Module):
    """Token embeddings, initialized to N(0, scale^2); the default 0.01 is that of "Deep Learning from Scratch 2"."""

    vocab: int
    size: int
    scale: float = 0.01

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(self.scale), (self.vocab, self.size))

    def __call__(self, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        return self.table[tokens]


def gate_bias(forget: float):
    """The initializer of an LSTM's bias [4 H], gates in the order of `ops.recurrent.cells`: zero, but for the forget
    gates `forget`. It is zero for a GRU, which has none.

    >>> gate_bias(1.0)(None, (8,)).tolist()
    [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    """
    if not forget:
        return nn.initializers.zeros

    def initial(rng, shape, dtype=jnp.float32):
        hidden = shape[0] // 4
        return jnp.zeros(shape, dtype).at[hidden : 2 * hidden].set(forget)

    return initial


class Layer(nn.Module):
    """An LSTM or GRU layer in one direction. It may have several inputs, of widths `sizes`, each with
    its rows of the kernel.

    With `recurrent_bias` the recurrent product has a bias, too, as in PyTorch: all biases start uniform within
    1 / sqrt(hidden size), and kernels with Xavier's values over all gates, as d2l sets them (10.7).
    """

    sizes: tuple[int, ...]
    hidden_size: int
    cell: str = "lstm"
    forget_bias: float = 0.0
    recurrent_bias: bool = False

    def setup(self):
        width, uniform = GATES[self.cell] * self.hidden_size, within(self.hidden_size**-0.5)
        kernel, inner = (XAVIER, uniform) if self.recurrent_bias else (kernel_init, nn.initializers.zeros)
        self.input_kernel = self.param("input_kernel", kernel, (sum(self.sizes), width))
        self.recurrent_kernel = self.param("recurrent_kernel", kernel, (self.hidden_size, width))
        self.bias = self.param("bias", uniform if self.recurrent_bias else gate_bias(self.forget_bias), (width,))
        if self.cell == "gru":
            self.inner_bias = self.param("inner_bias", inner, (self.hidden_size,))
        if self.recurrent_bias:
            added = width - self.hidden_size if self.cell == "gru" else width
            self.bias = self.bias.at[:added].add(self.param("recurrent_bias", uniform, (added,)))

    def kernel(self, input_index: int) -> Float[Array, "I G"]:
        """The rows of the input kernel that belong to one of the inputs."""
        start = sum(self.sizes[:input_index])
        return self.input_kernel[start : start + self.sizes[input_index]]

    def project(self, x: Float[Array, "*shape I"], input_index: int = 0) -> Float[Array, "*shape G"]:
        """Multiply one of the inputs by its weights; input 0 includes the bias."""
        y = matmul(x, self.kernel(input_index))
        return y + self.bias.reshape((1,) * (y.ndim - 1) + (-1,)) if input_index == 0 else y  # [*shape, G]

    def lookup(self, table: Float[Array, "V I"], tokens: Int[Array, "*shape"]) -> Float[Array, "*shape G"]:
        """Compute `project(table[tokens])`; the table is projected first if it has fewer rows than there are tokens."""
        return self.project(table)[tokens] if table.shape[0] < tokens.size else self.project(table[tokens])

    def zero_state(self, batch: int) -> cells.State:
        """The state before the first step: (hidden, cell) for an LSTM, (hidden,) for a GRU."""
        return (jnp.zeros((batch, self.hidden_size), self.bias.dtype),) * (2 if self.cell == "lstm" else 1)

    def scan(self, projected: Float[Array, "T B G"], state: cells.State) -> tuple[Float[Array, "T B H"], ...]:
        """Scan over a sequence of projected inputs; return the state of every step."""
        if self.cell == "lstm":
            return cells.lstm(projected, self.recurrent_kernel, state)
        return cells.gru(projected, self.recurrent_kernel, self.inner_bias, state)

    def cell_weights(self, first: bool) -> "Cell":
        """The weights for a scan over steps; the first layer of a stack gets its input projected."""
        inner_bias = self.inner_bias if self.cell == "gru" else None
        return Cell(
            None if first else DeferredWeight(self.kernel(0)),
            DeferredWeight(self.recurrent_kernel),
            self.bias,
            inner_bias,
        )


class Cell(NamedTuple):
    """The weights of one layer for a scan over steps, wrapped as `ops.recurrent.deferred.DeferredWeight`."""

    input: DeferredWeight | None  # of the hidden state of the layer below; None for the first layer
    recurrent: DeferredWeight
    bias: Float[Array, " G"]
    inner_bias: Float[Array, " H"] | None  # of a GRU

    def step(self, z: Float[Array, "B G"], state: cells.State) -> cells.State:
        """The next state, from the projected input z."""
        return cells.advance(z, state[0] @ self.recurrent, state, self.inner_bias)


def cells_of(layers: Sequence[Layer]) -> list[Cell]:
    """The weights of a stack of layers for a scan over steps."""
    return [layer.cell_weights(first=i == 0) for i, layer in enumerate(layers)]


def step_stack(
    layers: Sequence[Cell], states: Sequence[cells.State], z: Float[Array, "B G"], noise
) -> list[cells.State]:
    """One step of a stack: z is the first layer's projected input, `noise` the dropout [B, H] between layers, or []."""
    states = list(states)
    for i, layer in enumerate(layers):
        if i > 0:
            below = states[i - 1][0] * noise[i - 1] if noise else states[i - 1][0]
            z = below @ layer.input + layer.bias[None]
        states[i] = layer.step(z, states[i])
    return states


def run_stack(layers: Sequence[Layer], projected: Float[Array, "T B G"], states: Sequence[cells.State], drop: Callable):
    """A stack over all time, one fused scan a layer: the top one's hidden states [T, B, H] and each layer's last state.

    `projected` is the first layer's input; `drop` is what happens between layers.
    """
    hidden, last = None, []
    for layer, state in zip(layers, states, strict=True):
        steps = layer.scan(projected if hidden is None else layer.project(drop(hidden)), state)
        hidden = steps[0]
        last.append(tuple(component[-1] for component in steps))
    return hidden, last
