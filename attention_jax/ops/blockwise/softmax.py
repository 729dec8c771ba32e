"""FlashAttention for any score, bias, mask and dropout: exact softmax attention block by block, in linear memory.

Forward: the online softmax (Milakov and Gimelshein 2018; Rabe and Staats 2021, algorithm 1; Dao et al. 2022,
algorithm 1). For each block of queries a loop over blocks of keys keeps the largest score m, the sum l of
exp(score - m) and the pooled values; what is saved for the backward pass is the output O and the
log-normalizer L = m + log l of each query.

Backward: with P = exp(S - L) and dP = dO V^T, the gradient of the scores is dS = P * (dP - rowsum(dO * O)) (Dao
et al. 2022, algorithm 4). The scores of each block are recomputed through `jax.vjp` of score and bias,
which propagates dS to the queries, the keys and all parameters. That is why any differentiable score works:
the algorithm treats the score as a black box.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.score_blocks import (
    add_tile,
    key_blocks,
    narrow,
    over_keys,
    over_queries,
    pool,
    precision_of,
    pull_pool,
    put_rows,
    rows_of,
    tile_of,
)
from attention_jax.ops.meshes import vary_like


class Largest(NamedTuple):
    """What the forward pass returns beside its outputs with `Blocks.keep_largest`; it has no derivative."""

    score: jax.Array  # [Q], -inf for fully masked queries


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("blocks", "grid"), inline=True)  # layers of one shape are traced once
def forward(inputs, blocks, grid=None):
    """Return ((output [Q, V], log-normalizer [Q]), () or `Largest`); +inf for fully masked queries. `grid` is
    unused."""
    queries, width = inputs.query.shape[0], inputs.value.shape[1]
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)

    def step(i, masked, j, carry):
        largest, total, pooled = carry
        tile = tile_of(inputs, blocks, i, j, masked)
        scores = tile.scores(*tile.operands).astype(precision)
        new = jnp.maximum(largest, scores.max(axis=1))
        reference = jnp.where(new == -jnp.inf, 0.0, new)  # nothing allowed so far
        if blocks.recompute_scores:
            operands, reference = lax.optimization_barrier((tile.operands, reference))
            scores = tile.scores(*operands).astype(precision)
        weights = _exp_below(scores, reference)
        shrink = jnp.exp(largest - reference)
        total = total * shrink + weights.sum(axis=1)
        return new, total, pooled * shrink[:, None] + pool(weights, tile)

    def rows(i, carry):
        zeros = vary_like(jnp.zeros((blocks.query, width + 2), precision), inputs)
        start = zeros[:, 0] - jnp.inf, zeros[:, 1], zeros[:, 2:]
        largest, total, pooled = over_keys(ranges, i, partial(step, i), start)
        some = total != 0  # true for NaN, which is kept
        divisor = jnp.where(some, total, 1.0)
        pooled = jnp.where(some[:, None], pooled / divisor[:, None], 0.0)
        log = jnp.where(some, largest + jnp.log(divisor), jnp.inf)
        found = (pooled.astype(inputs.value.dtype), log, *([largest] if blocks.keep_largest else []))
        return tuple(put_rows(x, new, i, blocks.query) for x, new in zip(carry, found, strict=True))

    start = jnp.zeros((queries, width), inputs.value.dtype), jnp.zeros((queries,), precision)
    start = (*start, start[1]) if blocks.keep_largest else start
    out, log, *largest = lax.fori_loop(0, -(-queries // blocks.query), rows, vary_like(start, inputs))
    return (out, log), Largest(*largest) if largest else ()


# --- backward ---------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="blocks", inline=True)
def backward(inputs, blocks, outputs, saved, bars):
    """Compute the cotangents, as `Gradients`, from those of output and log-normalizer."""
    (out, normalizer), (out_bar, normalizer_bar) = outputs, bars
    precision = normalizer.dtype
    ranges = key_blocks(inputs, blocks)
    delta = jnp.sum(out.astype(precision) * out_bar.astype(precision), axis=1)  # rowsum(dO * O) [Q]
    delta = delta - normalizer_bar  # the gradient of L is P

    def rows(i, fresh, row_bar, bars):
        row_normalizer = rows_of(normalizer, i, blocks.query)
        row_delta = jnp.where(fresh, rows_of(delta, i, blocks.query), 0.0)

        def step(masked, j, bars):
            tile = tile_of(inputs, blocks, i, j, masked)
            scores, pull = jax.vjp(tile.scores, *tile.operands)
            weights = narrow(_exp_below(scores.astype(precision), row_normalizer), row_bar.dtype)
            weights_bar, value_bar = pull_pool(weights, tile, row_bar, True)
            scores_bar = weights * (weights_bar - row_delta[:, None])
            return add_tile(bars, pull(scores_bar.astype(scores.dtype)), value_bar, j, blocks.key)

        return over_keys(ranges, i, step, bars)

    return over_queries(inputs, blocks, out_bar, rows)


def _exp_below(scores, bound):
    """Compute exp(scores [q, k] - bound [q]), where no score exceeds the bound.

    The minimum changes no number. Without it XLA may contract the last multiplication of a score with the difference
    (a fused multiply-add), which then keeps what rounding took from the bound: hundreds, where a score is about 1e10.
    """
    return jnp.exp(jnp.minimum(scores, bound[:, None]) - bound[:, None])
