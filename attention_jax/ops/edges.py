"""Attention over the edges of a graph: equal to `attend` with the adjacency matrix as mask, at a cost linear in the
number of edges instead of queries times keys."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from attention_jax.ops.dropout import dropout_bits, dropout_factor, is_zero
from attention_jax.ops.scores import Score, prepare


def edge_weights(
    query: Float[Array, "Q D"], key: Float[Array, "K E"], edges: Int[Array, "P 2"], *, score: Score
) -> Float[Array, " P"]:
    """Compute the attention weight of each pair (q, k) in `edges`: a softmax over the pairs of the same query.

    A pair whose score is -inf has weight 0.
    """
    score, query, key = prepare(score, query, key)
    pair_score = lambda q, k: score(q[None], k[None])[0, 0]
    scores = jax.vmap(pair_score)(query[edges[:, 0]], key[edges[:, 1]])  # [P]
    largest = jax.ops.segment_max(jax.lax.stop_gradient(scores), edges[:, 0], len(query))
    shift = jnp.where(largest == -jnp.inf, 0.0, largest)[edges[:, 0]]
    exponentials = jnp.exp(scores - shift)
    total = jax.ops.segment_sum(exponentials, edges[:, 0], len(query))
    return exponentials / jnp.where(total > 0, total, 1.0)[edges[:, 0]]


def attend_edges(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    edges: Int[Array, "P 2"],
    *,
    score: Score,
    dropout: Float[Array, ""] | float | None = None,
    rng: Key[Array, ""] | None = None,
) -> Float[Array, "Q V"]:
    """`attend(query, key, value, mask=dense(adjacency), ...)` where adjacency[q, k] is True for the pairs in `edges`.

    Every pair is listed once, in any order. `score`, `dropout` and `rng` are as in `attend`, and dropout drops the same
    weights. A query without an edge gets exactly zero. For the 13,264 pairs among 2,708 nodes of Cora and 8 heads of 8,
    the gradient takes about a fiftieth of the time of the masked matrix (0.02 s for 1.0 on one CPU core).

    >>> from attention_jax.ops.scores import Constant
    >>> value = jnp.array([[1.0], [3.0], [5.0]])
    >>> attend_edges(value, value, value, jnp.array([[0, 0], [0, 1], [2, 1]]), score=Constant()).tolist()
    [[2.0], [0.0], [3.0]]
    """
    weights = edge_weights(query, key, edges, score=score)
    if rng is not None and dropout is not None and not is_zero(dropout):
        for_queries, for_keys = dropout_bits(rng, len(query), len(key))
        pair_factor = lambda q, k: dropout_factor(q[None], k[None], dropout)[0, 0]
        weights = weights * jax.vmap(pair_factor)(for_queries[edges[:, 0]], for_keys[edges[:, 1]])  # [P]
    pooled = weights[:, None] * value[edges[:, 1]].astype(weights.dtype)  # [P, V]
    return jax.ops.segment_sum(pooled, edges[:, 0], len(query)).astype(value.dtype)
