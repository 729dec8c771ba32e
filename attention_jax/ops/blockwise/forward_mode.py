"""Forward-mode differentiation of blockwise attention, in a single pass over the keys.

With the weights w_j = scale * f(s_j - t) of `ops/blockwise/local.py`, and O and O' as there, the tangent of the output
is

    dO = sum_j (scale * df_j (v_j - mean) + w_j dv_j)

where df_j are tangents with t held constant, and mean is O where the weights are divided by their sum, O' for a
`Threshold`, and else 0. It is the transpose of the rule of the backward pass. For the softmax t is the log-normalizer
L, scale is 1, and dL = sum_j df_j.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.local import per_scale
from attention_jax.ops.blockwise.score_blocks import (
    Blocks,
    Combine,
    Inputs,
    active_blocks,
    compute_or_zeros,
    key_blocks,
    max_over_batch,
    over_keys,
    pool,
    put_rows,
    rows_of,
    tile_of,
)
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import Threshold, rescale, terms_of


class Call(NamedTuple):
    """A call of blockwise attention, and the tangents `dots` of the leaves `moving` of its `floats`."""

    blocks: Blocks
    combine: Combine
    floats: list
    non_floats: list
    moving: tuple[int, ...]
    dots: list
    shift: jax.Array  # [Q] t of each query
    active: jax.Array | None  # which blocks have weights
    top: jax.Array | None  # [Q] the largest scores, to which t is relative, for a `Threshold`

    def inputs(self, moving_values=()) -> Inputs:
        """Return the inputs, with `moving_values` in the places of the moving leaves."""
        floats = list(self.floats)
        for place, x in zip(self.moving, moving_values):
            floats[place] = x
        return self.combine(floats, self.non_floats)._replace(top=self.top)

    def push(self, function):
        """Return the tangent of a function of the moving leaves."""
        return jax.jvp(function, (tuple(self.floats[n] for n in self.moving),), (tuple(self.dots),))[1]


class Totals(NamedTuple):
    """Sums over the keys, or their tangents."""

    pooled: jax.Array  # [Q, V]
    mass: jax.Array  # [Q] of f, or what a `Ratio` divides by


@partial(jax.jit, static_argnames=("combine", "blocks", "moving"), inline=True)
def output_tangents(
    blocks: Blocks, combine: Combine, floats, non_floats, outputs, saved, moving: tuple[int, ...], dots
):
    """Compute the tangents of `outputs`, (output [Q, V], log-normalizer [Q] or None), from the tangents `dots` of the
    leaves `moving` of `floats`. `saved` is the `Saved` of `ops/blockwise/local.py`, or () for the softmax."""
    out, log = outputs
    # exp(s_j - L) are the weights themselves, so that L is the shift of the softmax, with scale 1
    shift, active = saved.shift if log is None else log, getattr(saved, "active", None)
    active = None if active is None else active_blocks(active, combine(floats, non_floats), blocks)
    call = Call(blocks, combine, floats, non_floats, moving, dots, shift, active, getattr(saved, "top", None))
    return _output_tangents(call, outputs, saved, _sum_over_keys(call, *out.shape))


def _sum_over_keys(call, queries, width) -> Totals:
    """Compute the tangents of all sums, with t held constant."""
    ranges, size = key_blocks(call.inputs(), call.blocks), call.blocks.query

    # the sums of q queries, [q, V] and [q], over all blocks of keys, then into their rows of [Q, V] and [Q]

    def rows(i, totals):
        block_totals = over_keys(ranges, i, partial(_add_block, call, i), _zeros(call, size, width))
        return jax.tree.map(lambda x, rows: put_rows(x, rows, i, size), totals, block_totals)

    return lax.fori_loop(0, -(-queries // size), rows, _zeros(call, queries, width))


def _add_block(call, i, masked, j, totals):
    # the tangent of a sum is the sum of tangents, so that only those of one block of scores [q, k] are in memory
    compute = partial(call.push, partial(_block_sums, call, i, masked, j))
    increment = compute() if call.active is None else compute_or_zeros(max_over_batch(call.active[i, j]), compute)
    return jax.tree.map(jnp.add, totals, increment)


def _block_sums(call, i, masked, j, moving_values) -> Totals:
    """Compute the sums over the keys of block (i, j)."""
    inputs = call.inputs(moving_values)
    tile, normalizer = tile_of(inputs, call.blocks, i, j, masked), inputs.rules[2]
    scores, shift = tile.scores(*tile.operands).astype(call.shift.dtype), rows_of(call.shift, i, call.blocks.query)
    terms = terms_of(normalizer, scores, scores != -jnp.inf, shift)
    # sum_j f_j v_j [q, V]; sum_j f_j, or sum_j g_j of a `Ratio` that divides by another function, [q]
    return Totals(pool(terms[0], tile), terms[-1].sum(axis=1))


def _zeros(call, rows, width) -> Totals:
    zeros = Totals(jnp.zeros((rows, width), call.shift.dtype), jnp.zeros(rows, call.shift.dtype))
    return vary_like(zeros, call.inputs())


def _output_tangents(call, outputs, saved, totals):
    """Compute the tangents of the outputs from the tangents of the sums, now with dt."""
    (out, log), (pooled, mass), precision = outputs, totals, call.shift.dtype
    normalizer = call.inputs().rules[2]
    if normalizer.divides:  # O = pooled / (extra + mass): dO = scale (d pooled - O d(extra + mass))
        extra = call.push(lambda moving_values: jnp.asarray(call.inputs(moving_values).rules[2].extra(), precision))
        pooled = pooled - out.astype(precision) * (mass + rescale(normalizer, extra, call.shift))[:, None]
    if log is not None:  # the softmax, whose values are weights already: dL = sum_j df_j
        return pooled.astype(out.dtype), mass
    # O = scale sum_j f_j v_j: dO = scale d(sum_j f_j v_j) + (dscale / scale) O, where scale is a factor of the count
    pooled = pooled * saved.scale[:, None]
    if saved.count is not None:
        scale = call.push(lambda moving_values: call.inputs(moving_values).rules[2].factor(jnp.maximum(saved.count, 1)))
        pooled = pooled + out.astype(precision) * per_scale(scale, saved.scale)[:, None]
    if isinstance(normalizer, Threshold):  # dt = (sum_j df_j) / sum_j f'_j moves the output by -O' sum_j df_j
        pooled = pooled - saved.dout_dtotal.astype(precision) * mass[:, None]
    return pooled.astype(out.dtype), None
