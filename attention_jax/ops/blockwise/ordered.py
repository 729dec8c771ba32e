"""Attention block by block for normalizers of the kind `Ordered`, such as stick-breaking.

w_j = exp(take_j + sum_{i > j} leave_i). Forward: one pass over the keys from last to first, which carries a, the sum of
`leave` over the keys passed. Backward: the same pass again. With dP_j = dO . v_j,

    d take_j  = w_j dP_j
    d leave_i = sum_{j < i} w_j dP_j = dO . O - sum_{j >= i} w_j dP_j

so a query needs a single additional running sum; `jax.vjp` of (take, leave) does the rest. Blocks that come when
nothing is left, in none of the vmapped examples, are skipped.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.score_blocks import (
    Statistics,
    add_tile,
    compute_or_zeros,
    entropy_of,
    key_blocks,
    max_over_batch,
    over_keys_reversed,
    over_queries,
    partition,
    pool,
    pooled_width,
    precision_of,
    pull_pool,
    put_rows,
    rows_of,
    tile_of,
    w_log_w_of,
)
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import suffix_sum


@partial(jax.jit, static_argnames="blocks", inline=True)
def forward(inputs, blocks):
    """Return ((output [Q, V], None), (), `Statistics` or None): only the output is saved."""
    queries, width = inputs.query.shape[0], pooled_width(inputs)
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)

    def rows(i, carry):
        # a [q] and sum_j w_j v_j [q, V]; for the entropy also the sums of w_j and of w_j log w_j [q]
        start = jnp.zeros((blocks.query,), precision), jnp.zeros((blocks.query, width), precision)
        start = (*start, start[0], start[0]) if blocks.keep_statistics else start
        add = partial(_add_block, inputs, blocks, i)
        _, pooled, *sums = over_keys_reversed(ranges, i, add, vary_like(start, inputs))
        block_outputs = pooled.astype(inputs.value.dtype), Statistics(None, entropy_of(*sums)) if sums else None
        return jax.tree.map(lambda x, new: put_rows(x, new, i, blocks.query), carry, block_outputs)

    out = jnp.zeros((queries, width), inputs.value.dtype)
    start = out, Statistics(None, jnp.zeros((queries,), precision)) if blocks.keep_statistics else None
    out, statistics = lax.fori_loop(0, -(-queries // blocks.query), rows, vary_like(start, inputs))
    return (out, None), (), statistics


def _add_block(inputs, blocks, i, masked, j, carry):
    """Return (passed [q], pooled [q, V]) after block j of the keys; if `carry` has them, also the sums of the weights
    w and of w log w, each [q]."""

    def add(carry):
        passed, pooled, *sums = carry
        tile = tile_of(inputs, blocks, i, j, masked)
        scores = tile.scores(*tile.operands).astype(passed.dtype)
        weights, leave = _weights(inputs.rules[2], scores, passed)  # [q, k] each
        new_carry = passed + leave.sum(axis=1), pooled + pool(weights, tile)
        return (*new_carry, sums[0] + weights.sum(axis=1), sums[1] + w_log_w_of(weights)) if sums else new_carry

    return lax.cond(_has_stick_left(carry[0]), add, lambda carry: carry, carry)


def _weights(normalizer, scores, passed):
    """Compute the weights of a block, and its `leave`; `passed` [q] is the sum of `leave` over the keys after it."""
    allowed = scores != -jnp.inf
    take, leave = normalizer.logs(scores, allowed)
    return jnp.where(allowed, jnp.exp(take + suffix_sum(leave) + passed[:, None]), 0.0), leave


def _has_stick_left(passed):
    return max_over_batch((jnp.exp(passed) != 0).any())  # true of NaN


@partial(jax.jit, static_argnames="blocks", inline=True)
def backward(inputs, blocks, outputs, saved, bars):
    """Compute the cotangents of the inputs, as `Gradients`, from the cotangent of the output."""
    out, out_bar = outputs[0], bars[0]
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)
    total = jnp.sum(out.astype(precision) * out_bar.astype(precision), axis=1)  # dO . O [Q]
    first = jnp.zeros_like(total)

    def rows(i, fresh, row_bar, bars):
        def step(masked, j, carry):
            # a [q], the sum of `leave` over the keys passed, and the sum of w dP over the keys to come [q]
            passed, remaining, bars = carry
            compute = partial(_pull_tile, inputs, blocks, i, j, masked, row_bar, passed, remaining)
            *tile_bars, leave, take_bar = compute_or_zeros(_has_stick_left(passed), compute)
            return passed + leave, remaining - take_bar, add_tile(bars, *tile_bars, j, blocks.key)

        remaining = jnp.where(fresh, rows_of(total, i, blocks.query), 0.0)
        start = rows_of(first, i, blocks.query), remaining, bars
        return over_keys_reversed(ranges, i, step, start)[2]

    return over_queries(inputs, blocks, out_bar, rows)


def _pull_tile(inputs, blocks, i, j, masked, row_bar, passed, remaining):
    """Compute the cotangents of a tile's operands and values, and the sums of `leave` and w dP over its keys [q]."""
    tile = tile_of(inputs, blocks, i, j, masked)
    _, non_floats, combine = partition(inputs.rules)

    def logs(rules, *operands):
        scores = tile.scores(rules, *operands).astype(passed.dtype)
        allowed = scores != -jnp.inf
        return vary_like(combine(rules, non_floats)[2].logs(scores, allowed), passed), allowed

    (take, leave), pull, allowed = jax.vjp(logs, *tile.operands, has_aux=True)  # [q, k] each
    weights = jnp.where(allowed, jnp.exp(take + suffix_sum(leave) + passed[:, None]), 0.0)
    weights_bar, value_bar = pull_pool(weights, tile, row_bar, False)
    take_bar = weights * weights_bar  # d take_j = w_j dP_j
    # d leave_i = sum_{j < i} w_j dP_j: what remains of dO . O after the keys j >= i
    leave_bar = remaining[:, None] - suffix_sum(take_bar) - take_bar
    return pull((take_bar, leave_bar)), value_bar, leave.sum(axis=1), take_bar.sum(axis=1)
