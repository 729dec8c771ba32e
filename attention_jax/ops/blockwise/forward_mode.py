"""Forward-mode differentiation of blockwise attention, in a single pass over the keys.

With the weights w_j = scale * f(s_j - t) of `ops/blockwise/local.py`, and O and O' as there, the tangent of the output
is

    dO = sum_j (scale * df_j (v_j - O) + w_j dv_j) - O' sum_j dc_j

where df_j and dc_j are tangents with t held constant, and O is subtracted only where the weights are divided by their
sum. It is the transpose of the rule of the backward pass. For the softmax t is the log-normalizer L, scale is 1, and
dL = sum_j df_j.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.local import per_scale
from attention_jax.ops.blockwise.score_blocks import (
    Blocks,
    Combine,
    if_worth,
    key_blocks,
    max_over_batch,
    over_keys,
    pool,
    put_rows,
    rows_of,
    tile_of,
)
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import Threshold, equations_of, values_of


@partial(jax.jit, static_argnames=("combine", "blocks", "moving"), inline=True)
def tangents(blocks: Blocks, combine: Combine, floats, others, outputs, saved, moving: tuple[int, ...], dots):
    """Compute the tangents of `outputs`, (output [Q, V], log-normalizer [Q] or None), from those of the leaves `moving`
    of `floats`. `saved` is the `Saved` of `ops/blockwise/local.py`, or () for the softmax."""
    out, log = outputs
    top = getattr(saved, "top", None)
    inputs = combine(floats, others)._replace(top=top)
    normalizer, shift = inputs.rules[2], saved.shift if log is None else log
    rooted, precision = isinstance(normalizer, Threshold), shift.dtype
    active = getattr(saved, "active", None)
    ranges = key_blocks(inputs, blocks)
    push = lambda function: jax.jvp(function, (tuple(floats[n] for n in moving),), (tuple(dots),))[1]

    def with_moving(some):
        moved = list(floats)
        for place, x in zip(moving, some, strict=True):
            moved[place] = x
        return combine(moved, others)._replace(top=top)

    def sums(i, masked, j, some):
        inputs = with_moving(some)
        tile = tile_of(inputs, blocks, i, j, masked)
        scores, row_shift = tile.scores(*tile.operands).astype(precision), rows_of(shift, i, blocks.query)
        allowed = scores != -jnp.inf
        values = values_of(inputs.rules[2], scores, allowed, row_shift)
        equation = equations_of(inputs.rules[2], scores, allowed, row_shift).sum(axis=1) if rooted else None
        return pool(values, tile), values.sum(axis=1), equation

    def add(i, masked, j, totals):
        compute = partial(push, partial(sums, i, masked, j))
        found = compute() if active is None else if_worth(max_over_batch(active[i, j]), compute)
        return jax.tree.map(jnp.add, totals, found)

    def empty(rows):
        numbers = jnp.zeros(rows, precision)
        zeros = jnp.zeros((rows, out.shape[1]), precision), numbers, numbers if rooted else None
        return vary_like(zeros, inputs)

    def rows(i, whole):
        found = over_keys(ranges, i, partial(add, i), empty(blocks.query))
        return jax.tree.map(lambda x, rows: put_rows(x, rows, i, blocks.query), whole, found)

    queries = out.shape[0]
    pooled, mass, equation = lax.fori_loop(0, -(-queries // blocks.query), rows, empty(queries))
    if normalizer.divides:
        extra = push(lambda some: jnp.asarray(with_moving(some).rules[2].extra(), precision))
        pooled = pooled - out.astype(precision) * (mass + extra)[:, None]
    if log is not None:
        return pooled.astype(out.dtype), mass
    pooled = pooled * saved.scale[:, None]
    if saved.count is not None:
        scale = push(lambda some: with_moving(some).rules[2].factor(jnp.maximum(saved.count, 1)))
        pooled = pooled + out.astype(precision) * per_scale(scale, saved.scale)[:, None]
    return (pooled - saved.turn * equation[:, None] if rooted else pooled).astype(out.dtype), None
