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
from attention_jax.ops.normalizer_kinds import Exponential, Ordered, Threshold, after, equations_of, scale_of, values_of


def attend_by_tiles(combine: Combine, blocks: Blocks, floats: list, others: list, shift: jax.Array | None, top=None):
    """(output [Q, V], log-sum-exp [Q] or None) of the `Inputs` that `combine(floats, others)` returns. `shift` [Q] is
    that of the normalizer, the log-sum-exp for the softmax; None if it has none. That of a `Threshold` is relative to
    the largest scores `top` [Q]."""
    inputs = combine(floats, others)._replace(top=top)
    normalizer, precision = inputs.rules[2], precision_of(inputs)
    if isinstance(normalizer, Ordered):
        return _ordered(inputs, blocks).astype(inputs.value.dtype), None
    shift = jnp.zeros(inputs.query.shape[:1], precision) if shift is None else lax.stop_gradient(shift)
    if isinstance(normalizer, Threshold):
        shift = _moving(combine, blocks, floats, others, shift, top)

    def contribute(inputs, tile, scores, shift):
        allowed = scores != -jnp.inf
        values = values_of(inputs.rules[2], scores, allowed, shift)
        return pool(values, tile), values.sum(axis=1), allowed.sum(axis=1).astype(values.dtype)

    pooled, mass, count = _over_tiles(inputs, blocks, contribute, shift)
    out = (pooled * scale_of(normalizer, mass, count)[:, None]).astype(inputs.value.dtype)
    if not isinstance(normalizer, Exponential):
        return out, None
    some = mass != 0
    return out, jnp.where(some, shift + jnp.log(jnp.where(some, mass, 1.0)), jnp.inf)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _moving(combine, blocks, floats, others, shift, top):
    """Return `shift` with the derivative that keeps the sum of c(s - shift) constant."""
    return shift


@_moving.defjvp
def _moving_jvp(combine, blocks, primals, tangents):
    floats, others, shift, top = primals
    shift = _moving(combine, blocks, floats, others, shift, top)

    def equation(inputs, tile, scores, shift):
        return equations_of(inputs.rules[2], scores, scores != -jnp.inf, shift)

    def mass(floats, shift):
        contribute = lambda *tile: equation(*tile).sum(axis=1)
        return _over_tiles(combine(floats, others)._replace(top=top), blocks, contribute, shift)

    change = jax.jvp(lambda floats: mass(floats, shift), (floats,), (tangents[0],))[1]
    slope = -jax.jvp(lambda shift: mass(floats, shift), (shift,), (jnp.ones_like(shift),))[1]
    return shift, jnp.where(slope != 0, change / jnp.where(slope != 0, slope, 1.0), 0.0)


def _bounds(inputs, blocks):
    """Return the first and the last block of keys that each block of queries needs."""
    low, _, _, high = key_blocks(lax.stop_gradient(inputs), blocks)
    count = -(-inputs.query.shape[0] // blocks.query)
    return jnp.broadcast_to(jnp.asarray(low), (count,)), jnp.broadcast_to(jnp.asarray(high), (count,))


def _over_tiles(inputs: Inputs, blocks: Blocks, contribute, shift):
    """Sum `contribute(inputs, tile, scores, shift of the block's queries)` over the keys, for every query."""
    low, high = _bounds(inputs, blocks)
    precision = shift.dtype

    def compute(inputs, shift, i, j):
        tile = tile_of(inputs, blocks, i, j, True)
        scores = tile.scores(*tile.operands).astype(precision)
        return contribute(inputs, tile, scores, rows_of(shift, i, blocks.query))

    shapes = jax.eval_shape(compute, inputs, shift, 0, 0)
    zeros = vary_like(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes), (inputs, shift))

    @jax.checkpoint
    def needed(inputs, shift, i, j):
        worth = max_over_batch((low[i] <= j) & (j < high[i]))
        return lax.cond(worth, lambda: compute(inputs, shift, i, j), lambda: zeros)

    def rows(i):
        step = lambda total, j: (jax.tree.map(jnp.add, total, needed(inputs, shift, i, j)), None)
        return lax.scan(step, zeros, jnp.arange(-(-inputs.key.shape[0] // blocks.key)))[0]

    return jax.tree.map(partial(unblocked, inputs.query.shape[0]), lax.map(rows, jnp.arange(low.shape[0])))


def unblocked(total, x):
    """Reshape [blocks, q, ...] to [total, ...]; the last block repeats rows of the one before it."""
    size = x.shape[1]
    last = total - (x.shape[0] - 1) * size
    return jnp.concatenate([x[:-1].reshape(-1, *x.shape[2:]), x[-1, size - last :]])  # [total, ...]


def _ordered(inputs, blocks):
    low, high = _bounds(inputs, blocks)
    precision = precision_of(inputs)
    nothing = jnp.zeros((blocks.query,), precision), jnp.zeros((blocks.query, pooled_width(inputs)), precision)
    nothing = vary_like(nothing, inputs)

    def compute(inputs, passed, i, j):
        tile = tile_of(inputs, blocks, i, j, True)
        scores = tile.scores(*tile.operands).astype(precision)
        allowed = scores != -jnp.inf
        take, leave = inputs.rules[2].logs(scores, allowed)
        total = jnp.where(allowed, take + after(leave) + passed[:, None], 0.0)
        return leave.sum(axis=1), pool(jnp.where(allowed, jnp.exp(total), 0.0), tile)

    @jax.checkpoint
    def needed(inputs, passed, i, j):
        worth = max_over_batch((low[i] <= j) & (j < high[i]))
        return lax.cond(worth, lambda: compute(inputs, passed, i, j), lambda: nothing)

    def rows(i):
        def step(carry, j):
            leave, pooled = needed(inputs, carry[0], i, j)
            return (carry[0] + leave, carry[1] + pooled), None

        return lax.scan(step, nothing, jnp.arange(-(-inputs.key.shape[0] // blocks.key)), reverse=True)[0][1]

    return unblocked(inputs.query.shape[0], lax.map(rows, jnp.arange(low.shape[0])))
