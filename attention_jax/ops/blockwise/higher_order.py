"""Blockwise attention that JAX can differentiate in every mode and to any order.

`ops/blockwise/softmax.py`, `ops/blockwise/local.py` and `ops/blockwise/ordered.py` are faster, but their loops have no
reverse mode. Here a scan runs over all blocks of keys, each under `jax.checkpoint`, and its carry is only accumulated:
derivatives recompute the scores of a block and store none. The `shift`, which couples the keys of a query, comes from
the forward pass of those modules; its derivative follows from the equation that it solves (implicit differentiation).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.score_blocks import (
    Blocks,
    Combine,
    Inputs,
    key_blocks,
    max_over_batch,
    pool,
    pooled_width,
    precision_of,
    rows_of,
    tile_of,
)
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import (
    Exponential,
    Ordered,
    Threshold,
    scale_of,
    suffix_sum,
    terms_of,
    values_of,
)


def attend_by_tiles(
    combine: Combine, blocks: Blocks, floats: list, non_floats: list, shift: jax.Array | None, top=None
):
    """(output [Q, V], log-sum-exp [Q] or None) of the `Inputs` that `combine(floats, non_floats)` returns. `shift`
    [Q] is t of the normalizer, for the softmax the log-sum-exp, or None where it is 0. For a `Threshold`, t is relative
    to the largest scores `top` [Q]."""
    inputs = combine(floats, non_floats)._replace(top=top)
    normalizer, precision = inputs.rules[2], precision_of(inputs)
    if isinstance(normalizer, Ordered):
        return _attend_ordered(inputs, blocks).astype(inputs.value.dtype), None
    # 1. t [Q], a constant: cancels in a `Ratio` and is 0 in a `Pointwise`; that of a `Threshold` moves with the scores
    shift = jnp.zeros(inputs.query.shape[:1], precision) if shift is None else lax.stop_gradient(shift)
    if isinstance(normalizer, Threshold):
        shift = _implicit_shift(combine, blocks, floats, non_floats, shift, top)

    # 2. the sums over the keys of f_j v_j [Q, V], of f_j (or g_j) [Q], and the number of keys [Q]
    def contribute(inputs, tile, scores, shift):
        allowed = scores != -jnp.inf
        terms = terms_of(inputs.rules[2], scores, allowed, shift)
        return pool(terms[0], tile), terms[-1].sum(axis=1), allowed.sum(axis=1).astype(terms[0].dtype)

    pooled, mass, count = _sum_over_tiles(inputs, blocks, contribute, shift)
    # 3. O = scale sum_j f_j v_j
    out = (pooled * scale_of(normalizer, mass, count, shift)[:, None]).astype(inputs.value.dtype)
    if not isinstance(normalizer, Exponential):
        return out, None
    # L = t + log sum_j exp(s_j - t) is t again, as the value of a function of the scores that can be differentiated
    has_mass = mass != 0
    return out, jnp.where(has_mass, shift + jnp.log(jnp.where(has_mass, mass, 1.0)), jnp.inf)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _implicit_shift(combine, blocks, floats, non_floats, shift, top):
    """Return `shift` with the derivative that keeps the sum of f(s - shift) constant."""
    return shift


@_implicit_shift.defjvp
def _implicit_shift_jvp(combine, blocks, primals, tangents):
    floats, non_floats, shift, top = primals
    shift = _implicit_shift(combine, blocks, floats, non_floats, shift, top)

    def equation(inputs, tile, scores, shift):
        return values_of(inputs.rules[2], scores, scores != -jnp.inf, shift)

    def mass(floats, shift):
        contribute = lambda *tile: equation(*tile).sum(axis=1)
        return _sum_over_tiles(combine(floats, non_floats)._replace(top=top), blocks, contribute, shift)

    # sum_j f(s_j - t) = 1: 0 = (its change with t held) - slope * dt
    change = jax.jvp(lambda floats: mass(floats, shift), (floats,), (tangents[0],))[1]
    slope = -jax.jvp(lambda shift: mass(floats, shift), (shift,), (jnp.ones_like(shift),))[1]
    return shift, jnp.where(slope != 0, change / jnp.where(slope != 0, slope, 1.0), 0.0)


def _key_block_bounds(inputs, blocks):
    """Return the first and the last block of keys that each block of queries needs."""
    low, _, _, high = key_blocks(lax.stop_gradient(inputs), blocks)
    count = -(-inputs.query.shape[0] // blocks.query)
    return jnp.broadcast_to(jnp.asarray(low), (count,)), jnp.broadcast_to(jnp.asarray(high), (count,))


def _sum_over_tiles(inputs: Inputs, blocks: Blocks, contribute, shift):
    """Sum `contribute(inputs, tile, scores, shift of the block's queries)` over the keys, for every query."""
    low, high = _key_block_bounds(inputs, blocks)
    precision = shift.dtype

    def compute(inputs, shift, i, j):
        tile = tile_of(inputs, blocks, i, j, True)
        scores = tile.scores(*tile.operands).astype(precision)
        return contribute(inputs, tile, scores, rows_of(shift, i, blocks.query))

    # of one block of scores [q, k]: sums over its keys, [q, V] or [q]
    shapes = jax.eval_shape(compute, inputs, shift, 0, 0)
    zeros = vary_like(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), (inputs, shift))

    @jax.checkpoint  # reverse mode stores no scores [q, k], only the number j of each step
    def compute_if_needed(inputs, shift, i, j):
        is_needed = max_over_batch((low[i] <= j) & (j < high[i]))
        return lax.cond(is_needed, lambda: compute(inputs, shift, i, j), lambda: zeros)

    def rows(i):
        # a scan over the blocks j of keys, whose carry is only added to: its value is not stored for each step
        step = lambda total, j: (jax.tree.map(jnp.add, total, compute_if_needed(inputs, shift, i, j)), None)
        return lax.scan(step, zeros, jnp.arange(-(-inputs.key.shape[0] // blocks.key)))[0]

    # [blocks, q, ...] to [Q, ...]
    return jax.tree.map(partial(_merge_row_blocks, inputs.query.shape[0]), lax.map(rows, jnp.arange(low.shape[0])))


def _merge_row_blocks(total, x):
    """Reshape [blocks, q, ...] to [total, ...]; the last block repeats rows of the one before it."""
    size = x.shape[1]
    last = total - (x.shape[0] - 1) * size
    return jnp.concatenate([x[:-1].reshape(-1, *x.shape[2:]), x[-1, size - last :]])  # [total, ...]


def _attend_ordered(inputs, blocks):
    low, high = _key_block_bounds(inputs, blocks)
    precision = precision_of(inputs)
    zeros = jnp.zeros((blocks.query,), precision), jnp.zeros((blocks.query, pooled_width(inputs)), precision)
    zeros = vary_like(zeros, inputs)

    def compute(inputs, passed, i, j):
        tile = tile_of(inputs, blocks, i, j, True)
        scores = tile.scores(*tile.operands).astype(precision)
        allowed = scores != -jnp.inf
        take, leave = inputs.rules[2].logs(scores, allowed)  # [q, k] each
        # log w_j = take_j + sum of leave_i over the later keys, of this block and of those passed
        total = jnp.where(allowed, take + suffix_sum(leave) + passed[:, None], 0.0)
        return leave.sum(axis=1), pool(jnp.where(allowed, jnp.exp(total), 0.0), tile)

    @jax.checkpoint
    def compute_if_needed(inputs, passed, i, j):
        is_needed = max_over_batch((low[i] <= j) & (j < high[i]))
        return lax.cond(is_needed, lambda: compute(inputs, passed, i, j), lambda: zeros)

    def rows(i):
        def step(carry, j):  # from the last block to the first; passed [q] is stored for each step
            leave, pooled = compute_if_needed(inputs, carry[0], i, j)
            return (carry[0] + leave, carry[1] + pooled), None

        return lax.scan(step, zeros, jnp.arange(-(-inputs.key.shape[0] // blocks.key)), reverse=True)[0][1]

    return _merge_row_blocks(inputs.query.shape[0], lax.map(rows, jnp.arange(low.shape[0])))
