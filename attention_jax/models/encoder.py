"""The encoder of all recurrent sequence-to-sequence models. Its inputs and outputs are batch-major."""

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Int

from attention_jax.models.recurrent import Embedding, Layer
from attention_jax.ops.dropout import dropout, is_zero
from attention_jax.ops.recurrent import cells


def merge_directions(forward, backward, how: str):
    """Join the two directions' [..., H]: "concat" -> [..., 2H], "sum" or "mean" -> [..., H]."""
    if how == "concat":
        return jnp.concatenate([forward, backward], axis=-1)
    return (forward + backward) * (0.5 if how == "mean" else 1.0)


class Encoder(nn.Module):
    """Embeds the source and runs a stack of recurrent layers over it.

    No step is masked: the forward state is read at each sequence's last token (or, with `state` "last_step", at the
    last step, padding or not), and the backward direction runs over the sequence reversed within its length, so padding
    comes last and its states are discarded.
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
    state: str = "last_token"
    forget_bias: float = 0.0
    recurrent_bias: bool = False

    def setup(self):
        self.embed = Embedding(self.vocab, self.embed_size, self.embed_scale)
        sizes = [self.embed_size] + [self.output_size(i) for i in range(self.layers - 1)]
        layer = lambda size: Layer((size,), self.hidden_size, self.cell, self.forget_bias, self.recurrent_bias)
        self.forward = [layer(size) for size in sizes]
        self.backward = [layer(size) for i, size in enumerate(sizes) if self.is_bidirectional(i)]

    def is_bidirectional(self, layer: int) -> bool:
        """Whether this layer runs in both directions."""
        return self.bidirectional == "all" or (self.bidirectional == "first" and layer == 0)

    def output_size(self, layer: int = -1) -> int:
        """Width of a layer's output (of the last layer by default)."""
        return self.hidden_size * (2 if self.is_bidirectional(layer % self.layers) and self.merge == "concat" else 1)

    def __call__(self, source: Int[Array, "B S"], length: Int[Array, "B"], *, train: bool = False):
        """Return the top layer's hidden states [B, S, H'] and each layer's last state, directions merged: list of
        tuples.
        """
        rng = lambda: self.make_rng("dropout") if train else None
        has_dropout = train and not is_zero(self.embed_dropout)
        tokens, states = source.T, []  # tokens [S, B]
        x = (
            dropout(self.embed(tokens), self.embed_dropout, rng()) if has_dropout else None
        )  # None: gather from the projected table

        def run(layer, x, tokens):
            projected = layer.lookup(self.embed.table, tokens) if x is None else layer.project(x)
            return layer.scan(projected, layer.zero_state(source.shape[0]))

        for i, layer in enumerate(self.forward):
            forward_states = run(layer, x, tokens)
            state = tuple(s[-1] if self.state == "last_step" else cells.at_length(s, length) for s in forward_states)
            hidden = forward_states[0]
            if self.is_bidirectional(i):
                reverse = lambda y: cells.reverse_within(y, length)
                backward_states = run(self.backward[i], None if x is None else reverse(x), reverse(tokens))
                state = tuple(
                    merge_directions(a, cells.at_length(b, length), self.merge) for a, b in zip(state, backward_states)
                )
                hidden = merge_directions(hidden, reverse(backward_states[0]), self.merge)
            states.append(state)
            x = hidden + x if self.residual and i > 0 and x.shape == hidden.shape else hidden
            if i + 1 < self.layers:
                x = dropout(x, self.layer_dropout, rng())
        return x.swapaxes(0, 1), states  # [B, S, H']
