"""Graph attention networks (Velickovic et al. 2018): each node attends to its neighbors in a graph and to itself.

The details are those of the authors' code (github.com/PetarV-/GAT, execute_cora.py and utils/layers.py): each head has
its own dropout of the inputs, the projected vectors are dropped once more where they are values, and each head adds a
bias to what it has pooled.
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax import config
from attention_jax.models.multihead import Linear, head_score
from attention_jax.ops.dropout import dropout
from attention_jax.ops.edges import attend_edges, edge_weights


class WordProjection(nn.Module):
    """x W_h for every head h, where x [N, F] is mostly zero and W is `kernel` [F, H, U].

    The nonzero numbers of node n are values[n, i] in the columns words[n, i]; a value of 0 fills a shorter list. Each
    head has its own dropout of x.
    """

    features: int
    heads: int
    units: int
    dropout: Any

    @nn.compact
    def __call__(self, words: Int[Array, "N M"], values: Float[Array, "N M"], *, train=False) -> Float[Array, "N H U"]:
        glorot = nn.initializers.glorot_uniform(in_axis=0, out_axis=2, batch_axis=1)
        kernel = self.param("kernel", glorot, (self.features, self.heads, self.units))
        values = jnp.broadcast_to(values[:, :, None], (*values.shape, self.heads))  # [N, M, H]
        values = dropout(values, self.dropout, self.make_rng("dropout") if train else None)
        return jnp.einsum("nmh,nmhu->nhu", values, kernel[words])  # [N, H, U]


class GraphHeads(nn.Module):
    """softmax_j(score(W h_i, W h_j)) W h_j + b over the neighbors j of each node i (equations 3 and 4), H heads."""

    score: str
    """A name in `config.SCORES`, or package.file:Class."""
    dropout: Any
    attention_dropout: Any

    @nn.compact
    def __call__(
        self, projected: Float[Array, "N H U"], edges: Int[Array, "P 2"], *, train=False, return_weights=False
    ):
        """The projected nodes W h -> (output [N, H, U], edge weights [H, P] if `return_weights` else None)."""
        _, heads, units = projected.shape
        score, bias = (
            head_score(self, self.score, heads, units),
            self.param("bias", nn.initializers.zeros, (heads, units)),
        )
        vectors = projected.swapaxes(0, 1)  # [H, N, U]
        values = dropout(vectors, self.dropout, self.make_rng("dropout") if train else None)
        rngs = jax.random.split(self.make_rng("dropout"), heads) if train else None

        def pool(vectors, values, score, rng):
            rate = self.attention_dropout
            return attend_edges(vectors, vectors, values, edges, score=score, dropout=rate, rng=rng)

        pooled = jax.vmap(pool)(vectors, values, score, rngs)  # [H, N, U]
        weigh = lambda vectors, score: edge_weights(vectors, vectors, edges, score=score)
        return pooled.swapaxes(0, 1) + bias[None], jax.vmap(weigh)(vectors, score) if return_weights else None


class GraphAttention(nn.Module):
    """Two layers (section 3.3): concatenated heads with an ELU, then one head that outputs the class logits."""

    options: config.GraphAttentionConfig
    features: int
    classes: int

    @nn.compact
    def __call__(
        self,
        words: Int[Array, "N M"],
        values: Float[Array, "N M"],
        edges: Int[Array, "P 2"],
        *,
        train: bool = False,
        return_weights: bool = False,
    ) -> tuple[Float[Array, "N C"], dict]:
        """Logits, and with `return_weights` the weights of the edges: {"hidden": [H, P], "output": [1, P]}.

        `words` and `values` are those of `WordProjection`; node q attends to node k for each (q, k) in `edges`.
        """
        o = self.options
        heads = lambda name: GraphHeads(o.score, o.dropout, o.attention_dropout, name=name)
        projected = WordProjection(self.features, o.num_heads, o.hidden_size, o.dropout, name="hidden_projection")(
            words, values, train=train
        )
        hidden, hidden_weights = heads("hidden")(projected, edges, train=train, return_weights=return_weights)
        hidden = nn.elu(hidden).reshape(len(words), -1)  # [N, H U]
        hidden = dropout(hidden, o.dropout, self.make_rng("dropout") if train else None)
        projected = Linear(self.classes, use_bias=False, name="output_projection")(hidden)
        logits, output_weights = heads("output")(projected[:, None], edges, train=train, return_weights=return_weights)
        return logits[:, 0], {"hidden": hidden_weights, "output": output_weights} if return_weights else {}
