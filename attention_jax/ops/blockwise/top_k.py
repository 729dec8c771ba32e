"""The k-th largest score of every query, block by block."""

from functools import partial

import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.score_blocks import key_blocks, over_keys, precision_of, put_rows, tile_of
from attention_jax.ops.meshes import vary_like


def find_cuts(inputs, blocks, k: int):
    """Compute a threshold [Q] below the k largest scores of each query, and above all others that do not tie with the
    k-th; -inf if at most k keys are allowed. It needs memory for k + 1 scores per query of a block.

    The threshold is halfway between the k-th and the next score, or a rounding error below the k-th where these tie,
    because the scores are recomputed by another program for the comparison and may differ by as much.
    """
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)

    def step(i, masked, j, largest):
        tile = tile_of(inputs, blocks, i, j, masked)
        scores = tile.scores(*tile.operands).astype(precision)
        return _update_largest(largest, scores)

    def rows(i, out):  # the k + 1 largest scores [q, k + 1] of a block of queries, over all keys, and their cut [q]
        start = vary_like(jnp.full((blocks.query, k + 1), -jnp.inf, precision), inputs)
        return put_rows(out, _cut_of(over_keys(ranges, i, partial(step, i), start)), i, blocks.query)

    queries = inputs.query.shape[0]
    start = vary_like(jnp.full((queries,), -jnp.inf, precision), inputs)
    return lax.fori_loop(0, -(-queries // blocks.query), rows, start)


def _update_largest(largest, scores):
    """Return the k + 1 largest per row of [q, k + 1] and [q, keys] together."""
    return lax.top_k(jnp.concatenate([largest, scores], axis=1), largest.shape[1])[0]


def _cut_of(largest):
    """The cuts [q], given the k + 1 largest scores [q, k + 1].

    >>> _cut_of(jnp.array([[2.0, -1.0], [3e38, -3e38], [2.0, -jnp.inf]])).tolist()
    [0.5, 0.0, -inf]
    """
    has_more_keys = largest[:, -1] != -jnp.inf  # than k keys are allowed
    last, following = (jnp.where(has_more_keys, x, 0.0) for x in (largest[:, -2], largest[:, -1]))
    margin = jnp.finfo(largest.dtype).eps * jnp.abs(last)
    halfway = following + (last / 2 - following / 2)  # the difference itself may be infinite
    return jnp.where(has_more_keys, jnp.where(following < last, halfway, last - margin), -jnp.inf)
