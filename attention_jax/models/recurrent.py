"""Recurrent layers: weights for `ops.cells`, stacks of them, and the encoder every recurrent model shares.

Inside this module time comes first ([T, B, D]), because a scan runs over it; tokens go in and memories come out batch first.
"""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops import cells
from attention_jax.ops.dropout import dropout
from attention_jax.ops.precision import matmul

GATES = {"lstm": 4, "gru": 3}
kernel_init = nn.initializers.lecun_normal()
"""Variance 1 / fan_in, as in "Deep Learning from Scratch 2" (there untruncated)."""


def used(rate: float | Array) -> bool:
    """Whether a rate of dropout may be other than zero (a traced one may)."""
    return not (isinstance(rate, int | float) and rate == 0)


class Embedding(nn.Module):
    """A table of token vectors, N(0, 0.01^2) as in "Deep Learning from Scratch 2" unless `scale` says otherwise."""

    vocab: int
    size: int
    scale: float = 0.01

    def setup(self):
        self.table = self.param("table", nn.initializers.normal(self.scale), (self.vocab, self.size))

    def __call__(self, tokens: Int[Array, "*shape"]) -> Float[Array, "*shape D"]:
        return self.table[tokens]


class Layer(nn.Module):
    """One LSTM or GRU layer in one direction. Inputs may come in parts (`sizes`), each multiplied by its rows of the kernel."""

    sizes: tuple[int, ...]
    hidden_size: int
    cell: str = "lstm"

    def setup(self):
        width = GATES[self.cell] * self.hidden_size
        self.input_kernel = self.param("input_kernel", kernel_init, (sum(self.sizes), width))
        self.recurrent_kernel = self.param("recurrent_kernel", kernel_init, (self.hidden_size, width))
        self.bias = self.param("bias", nn.initializers.zeros, (width,))
        if self.cell == "gru":
            self.inner_bias = self.param("inner_bias", nn.initializers.zeros, (self.hidden_size,))

    def kernel(self, part: int) -> Float[Array, "I G"]:
        """The rows of the input kernel that belong to one part of the input."""
        start = sum(self.sizes[:part])
        return self.input_kernel[start : start + self.sizes[part]]

    def project(self, x: Float[Array, "*shape I"], part: int = 0) -> Float[Array, "*shape G"]:
        """Multiply one part of the input by its weights; part 0 brings the bias."""
        y = matmul(x, self.kernel(part))
        return y + self.bias.reshape((1,) * (y.ndim - 1) + (-1,)) if part == 0 else y

    def lookup(self, table: Float[Array, "V I"], tokens: Int[Array, "*shape"]) -> Float[Array, "*shape G"]:
        """`project(table[tokens])`, projecting the table instead where it has fewer rows than there are tokens."""
        return self.project(table)[tokens] if table.shape[0] < tokens.size else self.project(table[tokens])

    def zero(self, batch: int) -> cells.State:
        """The state before the first step: (hidden, cell) for an LSTM, (hidden,) for a GRU."""
        return (jnp.zeros((batch, self.hidden_size), self.bias.dtype),) * (2 if self.cell == "lstm" else 1)

    def scan(self, projected: Float[Array, "T B G"], state: cells.State) -> tuple[Float[Array, "T B H"], ...]:
        """Run over a sequence of projected inputs; every step's state."""
        if self.cell == "lstm":
            return cells.lstm(projected, self.recurrent_kernel, state)
        return cells.gru(projected, self.recurrent_kernel, self.inner_bias, state)

    def step(self, projected: Float[Array, "B G"], state: cells.State) -> cells.State:
        """One step."""
        if self.cell == "lstm":
            return cells.lstm_step(projected, self.recurrent_kernel, state)
        return cells.gru_step(projected, self.recurrent_kernel, self.inner_bias, state)


def merge(forward, backward, how: str):
    """Join the two directions' [..., H]: "concat" -> [..., 2H], "sum" or "mean" -> [..., H]."""
    if how == "concat":
        return jnp.concatenate([forward, backward], axis=-1)
    return (forward + backward) * (0.5 if how == "mean" else 1.0)


class Encoder(nn.Module):
    """Embeds the source and runs a stack of recurrent layers over it.

    No step is masked: the forward direction's state is read at each row's last real token, and the backward direction
    reads the row reversed within its length, so the padding behind it is computed and never seen.
    `bidirectional`: "none", "first" (only the first layer, as GNMT, Wu et al. 2016) or "all".
    `residual` adds a layer's input to its output from the second layer on, where both have one width.
    """

    vocab: int
    embed_size: int
    hidden_size: int
    cell: str = "lstm"
    layers: int = 1
    bidirectional: str = "none"
    merge: str = "concat"
    residual: bool = False
    embed_dropout: float | Array = 0.0
    layer_dropout: float | Array = 0.0
    embed_scale: float = 0.01

    def setup(self):
        self.embed = Embedding(self.vocab, self.embed_size, self.embed_scale)
        sizes = [self.embed_size] + [self.output_size(i) for i in range(self.layers - 1)]
        self.forward = [Layer((size,), self.hidden_size, self.cell) for size in sizes]
        self.backward = [Layer((size,), self.hidden_size, self.cell) for i, size in enumerate(sizes) if self.two_way(i)]

    def two_way(self, layer: int) -> bool:
        """Whether this layer runs in both directions."""
        return self.bidirectional == "all" or (self.bidirectional == "first" and layer == 0)

    def output_size(self, layer: int = -1) -> int:
        """Width of a layer's output (of the last layer by default)."""
        return self.hidden_size * (2 if self.two_way(layer % self.layers) and self.merge == "concat" else 1)

    def __call__(self, source: Int[Array, "B S"], length: Int[Array, "B"], *, train: bool = False):
        """Return the top layer's hidden states [B, S, H'] and each layer's last state, directions merged: list of tuples."""
        rng = lambda: self.make_rng("dropout") if train else None
        dropped = train and used(self.embed_dropout)
        tokens, states = source.T, []
        x = (
            dropout(self.embed(tokens), self.embed_dropout, rng()) if dropped else None
        )  # None: gather from the projected table

        def run(layer, x, tokens):
            projected = layer.lookup(self.embed.table, tokens) if x is None else layer.project(x)
            return layer.scan(projected, layer.zero(source.shape[0]))

        for i, layer in enumerate(self.forward):
            out = run(layer, x, tokens)
            state = tuple(cells.at_length(s, length) for s in out)
            hidden = out[0]
            if self.two_way(i):
                turn = lambda y: cells.reverse_within(y, length)
                back = run(self.backward[i], None if x is None else turn(x), turn(tokens))
                state = tuple(merge(a, cells.at_length(b, length), self.merge) for a, b in zip(state, back))
                hidden = merge(hidden, turn(back[0]), self.merge)
            states.append(state)
            x = hidden + x if self.residual and i > 0 and x.shape == hidden.shape else hidden
            if i + 1 < self.layers:
                x = dropout(x, self.layer_dropout, rng())
        return x.swapaxes(0, 1), states
