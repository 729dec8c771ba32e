"""FlashAttention for any score, bias, mask and dropout: exact softmax attention block by block, in linear memory.

Forward: the online softmax (Milakov and Gimelshein 2018; Rabe and Staats 2021, algorithm 1; Dao et al. 2022,
algorithm 1). For each block of queries a loop over blocks of keys keeps the largest score m, the sum l of
exp(score - m) and the pooled values; what is saved for the backward pass is the output O and the
log-normalizer L = m + log l of each query. For the entropy log l - e / l of the weights it also keeps the sum e of
exp(score - m) (score - m): neither term is negative, so that nothing cancels however large the scores are.

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
    Statistics,
    Tile,
    add_tile,
    entropy_of,
    key_blocks,
    narrow,
    over_keys,
    over_queries,
    pool,
    pooled_width,
    precision_of,
    pull_pool,
    put_rows,
    rows_of,
    tile_of,
)
from attention_jax.ops.meshes import vary_like

# --- forward ----------------------------------------------------------------------------------------------------------


class Running(NamedTuple):
    """What the online softmax knows of a block of queries after some of the keys."""

    largest: jax.Array  # [q] m
    total: jax.Array  # [q] l, the sum of exp(S - m)
    pooled: jax.Array  # [q, V] the sum of exp(S - m) v
    moment: jax.Array | None  # [q] e, the sum of exp(S - m) (S - m), for the entropy


def start_rows(queries: int, width: int, precision, keep_statistics: bool) -> Running:
    """Return the sums over no key."""
    zero = jnp.zeros((queries,), precision)
    return Running(zero - jnp.inf, zero, jnp.zeros((queries, width), precision), zero if keep_statistics else None)


def add_keys(tile: Tile, running: Running, recompute_scores: bool = False) -> Running:
    """Add the keys of a tile to the running sums."""
    largest, total, pooled, moment = running
    scores = tile.scores(*tile.operands).astype(largest.dtype)
    new_largest = jnp.maximum(largest, scores.max(axis=1))  # m' = max(m, max_j S_ij)
    reference = jnp.where(new_largest == -jnp.inf, 0.0, new_largest)  # no key allowed so far: no inf - inf
    if recompute_scores:  # the barrier keeps XLA from reusing the scores, which it would write to memory
        operands, reference = lax.optimization_barrier((tile.operands, reference))
        scores = tile.scores(*operands).astype(largest.dtype)
    weights = _exp_below(scores, reference)  # exp(S - m') [q, k]
    shrink = jnp.exp(largest - reference)  # exp(m - m'): earlier sums are relative to the earlier maximum m
    shrunk_total = total * shrink
    total = shrunk_total + weights.sum(axis=1)  # l' = exp(m - m') l + sum_j exp(S_ij - m')
    if moment is not None:  # e' = exp(m - m') (e + (m - m') l) + sum_j exp(S_ij - m') (S_ij - m')
        block_moment = _times_log(weights, _below(scores, reference)).sum(axis=1)
        moment = moment * shrink + _times_log(shrunk_total, largest - reference) + block_moment
    return Running(new_largest, total, pooled * shrink[:, None] + pool(weights, tile), moment)


def finish_rows(running: Running):
    """Return the output [q, V], the log-normalizer [q], +inf for fully masked queries, and `Statistics` or None."""
    largest, total, pooled, moment = running
    has_keys = total != 0  # true for NaN, which is kept
    divisor = jnp.where(has_keys, total, 1.0)
    pooled = jnp.where(has_keys[:, None], pooled / divisor[:, None], 0.0)
    log = jnp.where(has_keys, largest + jnp.log(divisor), jnp.inf)  # L = m + log l; +inf makes P = exp(S - L) zero
    return pooled, log, None if moment is None else Statistics(largest, entropy_of(total, moment))


@partial(jax.jit, static_argnames="blocks", inline=True)  # layers of one shape are traced once
def forward(inputs, blocks):
    """Return ((output [Q, V], log-normalizer [Q]), (), `Statistics` or None); +inf for fully masked queries."""
    queries, width = inputs.query.shape[0], pooled_width(inputs)
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)

    def rows(i, carry):
        # 1. m, l [q] and sum_j exp(S_ij - m) v_j [q, V] over all blocks of keys, 2. O [q, V] and L [q], into rows i
        start = vary_like(start_rows(blocks.query, width, precision, blocks.keep_statistics), inputs)
        step = lambda masked, j, running: add_keys(
            tile_of(inputs, blocks, i, j, masked), running, blocks.recompute_scores
        )
        pooled, log, statistics = finish_rows(over_keys(ranges, i, step, start))
        block_outputs = pooled.astype(inputs.value.dtype), log, statistics
        return jax.tree.map(lambda x, new: put_rows(x, new, i, blocks.query), carry, block_outputs)

    out, log = jnp.zeros((queries, width), inputs.value.dtype), jnp.zeros((queries,), precision)
    start = out, log, Statistics(log, log) if blocks.keep_statistics else None
    out, log, statistics = lax.fori_loop(0, -(-queries // blocks.query), rows, vary_like(start, inputs))
    return (out, log), (), statistics


# --- backward ---------------------------------------------------------------------------------------------------------


def pull_tile(tile: Tile, row_bar, log, delta):
    """Compute the cotangents of a tile's operands and values, from dO [q, V], L [q] and rowsum(dO * O) [q]."""
    scores, pull = jax.vjp(tile.scores, *tile.operands)  # recomputes S of the block; any score function
    weights = narrow(_exp_below(scores.astype(log.dtype), log), row_bar.dtype)
    weights_bar, value_bar = pull_pool(weights, tile, row_bar, True)  # dP = dO V^T [q, k], dV = P^T dO [k, V]
    scores_bar = weights * (weights_bar - delta[:, None])  # dS = P (dP - delta)
    return pull(scores_bar.astype(scores.dtype)), value_bar


def delta_of(outputs, bars):
    """Compute rowsum(dO * O) [Q], minus the cotangent of L: dL/dS = P, so it adds P times itself to dS."""
    (out, log), (out_bar, log_bar) = outputs, bars
    return jnp.sum(out.astype(log.dtype) * out_bar.astype(log.dtype), axis=1) - log_bar


@partial(jax.jit, static_argnames="blocks", inline=True)
def backward(inputs, blocks, outputs, saved, bars):
    """Compute the cotangents of the inputs, as `Gradients`, from the cotangents of output and log-normalizer."""
    log, delta, ranges = outputs[1], delta_of(outputs, bars), key_blocks(inputs, blocks)

    def rows(i, fresh, row_bar, bars):
        row_log = rows_of(log, i, blocks.query)
        # rows that the last block repeats: dO = 0, hence dP = 0, and with delta = 0 dS = 0
        row_delta = jnp.where(fresh, rows_of(delta, i, blocks.query), 0.0)

        def step(masked, j, bars):
            tile = tile_of(inputs, blocks, i, j, masked)
            return add_tile(bars, *pull_tile(tile, row_bar, row_log, row_delta), j, blocks.key)

        return over_keys(ranges, i, step, bars)

    return over_queries(inputs, blocks, bars[0], rows)


def _times_log(weights, logs):
    """Compute weights * logs, and 0 where a weight is 0, whose logarithm may be -inf."""
    return weights * jnp.where(weights == 0, 0.0, logs)


def _exp_below(scores, bound):
    """Compute exp(scores [q, k] - bound [q]), where no score exceeds the bound."""
    return jnp.exp(_below(scores, bound))


def _below(scores, bound):
    """Compute scores [q, k] - bound [q], where no score exceeds the bound.

    The minimum changes no number. Without it XLA may contract the last multiplication of a score with the difference
    (a fused multiply-add), which then keeps what rounding took from the bound: hundreds, where a score is about 1e10.
    """
    return jnp.minimum(scores, bound[:, None]) - bound[:, None]
