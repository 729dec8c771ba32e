"""Attention block by block for every `Local` normalizer: memory linear in sequence length, one rule for the gradient.

The weights of a `Local` normalizer (ops/normalizer_kinds.py) are w_j = scale * f(s_j - shift), with two numbers for
each query. Forward: pass over the keys for the shift (a `Threshold` needs one for the extent of the scores and one for
each step of Newton's method, a `Ratio` that rescales one for the largest score, others none), then one pass that pools
the values and sums f.

Backward: let dP_j = dO . v_j. Then df_j = scale * (dP_j - delta) with

    delta = dO . O      for a `Ratio`, with the output O
    delta = dO . O'     for a `Threshold`, with O' = sum_j f'_j v_j / sum_j f'_j
    delta = 0           else

and `jax.vjp` of f propagates it to the scores and the leaves of the normalizer, `jax.vjp` of the scores to queries,
keys and all other leaves. A `Ratio` whose divisor sums another function g than f has df_j = scale * dP_j and
dg_j = -scale * delta. The second row is the gradient of entmax (Peters et al. 2019, proposition 2); for f = exp it
is that of the softmax.

Blocks in which all weights are zero are skipped in every pass after the one that finds them, if the normalizer is
`sparse`; under `jax.vmap`, if they are zero in all examples.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise.score_blocks import (
    Blocks,
    Inputs,
    Statistics,
    Tile,
    active_blocks,
    active_cells,
    add_tile,
    compute_or_zeros,
    entropy_of,
    key_blocks,
    max_over_batch,
    over_keys,
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
from attention_jax.ops.normalizer_kinds import (
    Sums,
    Threshold,
    find_threshold,
    has_factor,
    has_summand,
    relative_to,
    rescale,
    scale_of,
    sums_of,
    terms_of,
    values_of,
)


class Saved(NamedTuple):
    """Residuals of the forward pass besides the output."""

    shift: jax.Array  # [Q] t, or m of a `Ratio` that rescales
    scale: jax.Array  # [Q] c_i of docs/fused.md
    dout_dtotal: jax.Array | None = None  # [Q, V] O' of docs/fused.md, for a Threshold
    active: jax.Array | None = None  # bool: the cells with a weight that is not zero, if the normalizer is sparse
    count: jax.Array | None = None  # [Q] keys that are allowed, for a normalizer with a `factor`
    top: jax.Array | None = None  # [Q] the largest score, for a Threshold, whose shift is relative to it


class Totals(NamedTuple):
    """Sums over the keys j, for a block of queries; the gradients are with respect to the scores, for a `Threshold`."""

    pooled: jax.Array  # [q, V] sum of f_j v_j
    mass: jax.Array  # [q] sum of f_j
    count: jax.Array  # [q] number of allowed keys
    pooled_grad: jax.Array | None = None  # [q, V] sum of f'_j v_j
    mass_grad: jax.Array | None = None  # [q] sum of f'_j
    active: jax.Array | None = None  # bool [blocks of keys]
    w_log_w: jax.Array | None = None  # [q] sum of f_j log f_j
    summands: jax.Array | None = None  # [q] sum of `summand`, where it is not f

    @property
    def denominator(self):
        """The sum [q] by which a `Ratio` divides, without `extra`."""
        return self.mass if self.summands is None else self.summands


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="blocks", inline=True)
def forward(inputs, blocks):
    """Return ((output [Q, V], None), `Saved`, `Statistics` or None)."""
    normalizer = inputs.rules[2]
    queries, width = inputs.query.shape[0], pooled_width(inputs)
    precision = precision_of(inputs)
    ranges = key_blocks(inputs, blocks)
    has_threshold = isinstance(normalizer, Threshold)
    grid = -(-queries // blocks.query), -(-inputs.key.shape[0] // blocks.key)

    def rows(i, carry):
        out, saved, statistics = carry
        # 1. the shift [q] of these queries, which needs all scores: t of a `Threshold`, m of a `Ratio` that rescales
        shifted, shift, tops, count = _find_shift(inputs, blocks, ranges, i, saved.top, precision)
        # 2. the sums over the keys of f_j v_j [q, V], of f_j [q] and of what the gradient needs
        start = start_totals(normalizer, blocks.query, width, precision, blocks.keep_statistics)
        start = start._replace(active=jnp.zeros(grid[1:], bool) if normalizer.sparse else None)
        add = partial(_add_totals, shifted, blocks, i, shift, tops)
        totals = over_keys(ranges, i, add, vary_like(start, inputs))
        # 3. the output scale * sum_j f_j v_j [q, V], and what the gradient needs of it
        pooled, new, new_statistics = finish_rows(
            normalizer, totals, totals.count if count is None else count, shift, saved.count is not None
        )
        write_rows = lambda whole, rows: put_rows(whole, rows.astype(whole.dtype), i, blocks.query)
        new = jax.tree.map(write_rows, saved._replace(active=None, top=None), new)
        active = None if saved.active is None else saved.active.at[i].set(totals.active)
        statistics = jax.tree.map(write_rows, statistics, new_statistics)
        return write_rows(out, pooled), new._replace(active=active, top=shifted.top), statistics

    zero_number = jnp.zeros((queries,), precision)
    out_dtype = inputs.value.dtype if inputs.value.dtype == jnp.bfloat16 else precision  # as the output is rounded
    saved = Saved(
        shift=zero_number,
        scale=zero_number,
        dout_dtotal=jnp.zeros((queries, width), out_dtype) if has_threshold else None,
        active=jnp.zeros(grid, bool) if normalizer.sparse else None,
        count=zero_number if has_factor(normalizer) else None,
        top=zero_number if has_threshold else None,
    )
    statistics = Statistics(None, zero_number) if blocks.keep_statistics else None
    start = jnp.zeros((queries, width), inputs.value.dtype), saved, statistics
    out, saved, statistics = lax.fori_loop(0, grid[0], rows, vary_like(start, inputs))
    if saved.active is not None:
        saved = saved._replace(active=active_cells(saved.active, inputs, blocks))
    return (out, None), saved, statistics


def start_totals(normalizer, queries: int, width: int, precision, keep_statistics: bool) -> Totals:
    """Return the sums over no key."""
    vector, number = jnp.zeros((queries, width), precision), jnp.zeros((queries,), precision)
    has_threshold = isinstance(normalizer, Threshold)
    return Totals(
        pooled=vector,
        mass=number,
        count=number,
        pooled_grad=vector if has_threshold else None,
        mass_grad=number if has_threshold else None,
        w_log_w=number if keep_statistics else None,
        summands=number if has_summand(normalizer) else None,
    )


def finish_rows(normalizer, totals, count, shift, keep_count: bool):
    """Return the output [q, V], `Saved`, and `Statistics` or None of a block of queries with `count` keys."""
    # w_j = scale * f_j: the scale is known only after the pass, and multiplies the sum, O = scale * sum_j f_j v_j
    scale = scale_of(normalizer, totals.denominator, count, shift)
    pooled = totals.pooled * scale[:, None]
    dout_dtotal = None if totals.pooled_grad is None else _dout_dtotal_of(totals)
    statistics = None if totals.w_log_w is None else Statistics(None, entropy_of(totals.mass, totals.w_log_w))
    return pooled, Saved(shift, scale, dout_dtotal, count=totals.count if keep_count else None), statistics


def all_active(inputs, blocks):
    """`Saved.active` where it is not known which cells have weights."""
    grid = -(-inputs.query.shape[0] // blocks.query), -(-inputs.key.shape[0] // blocks.key)
    return active_cells(vary_like(jnp.ones(grid, bool), inputs), inputs, blocks)


def _dout_dtotal_of(totals):
    """Compute O' [q, V], the derivative of the output O with respect to the total of 1 that sum_j f(s_j - t) must have.

    If the total grows by e, the sum follows by dt = -e / sum_j f'_j, and O by -dt * (sum_j f'_j v_j): O' is the mean of
    the values weighted by f'.
    """
    is_solvable = totals.mass_grad != 0  # else no key is above the threshold, and the weights do not move
    divisor = jnp.where(is_solvable, totals.mass_grad, 1.0)[:, None]
    return jnp.where(is_solvable[:, None], totals.pooled_grad / divisor, 0.0)


def _add_totals(inputs, blocks, i, shift, tops, masked, j, totals):
    """Add the sums over block j of the keys to `totals`."""
    normalizer = inputs.rules[2]

    def add(totals):
        increment, active = totals_of(
            tile_of(inputs, blocks, i, j, masked), normalizer, shift, totals.w_log_w is not None
        )
        sums = jax.tree.map(jnp.add, totals._replace(active=None), increment)
        return sums._replace(active=None if totals.active is None else totals.active.at[j].set(active))

    if tops is None:
        return add(totals)
    # f is increasing: where it is 0 for the largest score of a query in the block, it is 0 for the others [q, k]
    return lax.cond(_has_nonzero(partial(values_of, normalizer), tops, j, shift), add, lambda totals: totals, totals)


def totals_of(tile: Tile, normalizer, shift, with_w_log_w: bool):
    """Compute the sums over the keys of a tile, and whether any of its weights is not zero."""
    scores = tile.scores(*tile.operands).astype(shift.dtype)  # s_j [q, k]
    allowed = scores != -jnp.inf
    pooled_grad = mass_grad = None
    if isinstance(normalizer, Threshold):  # O' needs the sums of f'_j v_j [q, V] and of f'_j [q], too
        f = partial(values_of, normalizer)
        values, values_grad = _with_derivative(f, scores, allowed, shift)  # f_j and f'_j [q, k]
        pooled_grad, mass_grad, summands = pool(values_grad, tile), values_grad.sum(axis=1), ()
    else:
        values, *summands = terms_of(normalizer, scores, allowed, shift)
    totals = Totals(
        pooled=pool(values, tile),
        mass=values.sum(axis=1),
        count=allowed.sum(axis=1).astype(shift.dtype),
        pooled_grad=pooled_grad,
        mass_grad=mass_grad,
        w_log_w=w_log_w_of(values) if with_w_log_w else None,
        summands=summands[0].sum(axis=1) if summands else None,
    )
    return totals, (values != 0).any()


def _with_derivative(function, scores, allowed, shift):
    """Return function(scores - shift) and its derivative: a tangent -1 of the shift is 1 of the argument."""
    return jax.jvp(lambda shift: function(scores, allowed, shift), (shift,), (-jnp.ones_like(shift),))


def _has_nonzero(function, tops, j, shift):
    """Whether any key of block j has a value that is not zero. `tops` are the largest scores of blocks [q, blocks]."""
    top = lax.dynamic_slice_in_dim(tops, j, 1, axis=1)
    return max_over_batch((function(top, top != -jnp.inf, shift) != 0).any())


class Row(NamedTuple):
    """A block of queries in the passes for its shift."""

    inputs: Inputs
    blocks: Blocks
    ranges: tuple  # of its keys: `key_blocks`
    i: jax.Array | int
    precision: jnp.dtype


def _find_shift(inputs, blocks, ranges, i, top, precision):
    """Compute the shift of a block of queries. For a `Ratio` that rescales it is max(0, largest score). For a
    `Threshold` it is relative to the largest score of each query, which is put into `top` [Q]: return (inputs with
    `top`, shift, largest score of each block of keys, number of keys)."""
    normalizer, row = inputs.rules[2], Row(inputs, blocks, ranges, i, precision)
    zero = jnp.zeros((blocks.query,), precision)
    if normalizer.rescales:
        add = lambda masked, j, top: raise_top(top, _row_scores(row, masked, j))
        return inputs, over_keys(ranges, i, add, vary_like(zero, inputs)), None, None
    if not isinstance(normalizer, Threshold):
        return inputs, zero, None, None
    zero = vary_like(zero, inputs)
    # first pass: the smallest score [q] and the number of keys [q], and the largest score of each block [q, blocks]
    tops = jnp.full((blocks.query, -(-inputs.key.shape[0] // blocks.key)), -jnp.inf, precision)
    start = zero + jnp.inf, zero, vary_like(tops, inputs)
    smallest, count, tops = over_keys(ranges, i, partial(_add_extent, row), start)
    largest = tops.max(axis=1)
    # from here on scores are relative to the largest one of their query: t has the precision of their differences
    shifted = inputs._replace(top=put_rows(top, largest, i, blocks.query))
    tops = relative_to(largest, tops)
    smallest, largest = relative_extent(smallest, largest, count)
    # one more pass for each step of Newton's method, over the blocks whose largest score has f > 0
    sums = partial(_sums_at, row._replace(inputs=shifted), tops, zero)
    return shifted, find_threshold(normalizer, sums, smallest, largest, jnp.maximum(count, 1)), tops, count


def _row_scores(row, masked, j):
    tile = tile_of(row.inputs, row.blocks, row.i, j, masked)
    return tile.scores(*tile.operands).astype(row.precision)


def _add_extent(row, masked, j, carry):
    """Add block j of the keys to (smallest score [q], number of keys [q], largest scores of blocks [q, blocks])."""
    smallest, count, tops = carry
    block_smallest, block_count, top = extent_of(_row_scores(row, masked, j))
    tops = lax.dynamic_update_slice_in_dim(tops, top[:, None], j, axis=1)
    return jnp.minimum(smallest, block_smallest), count + block_count.astype(row.precision), tops


def raise_top(top, scores):
    """Return the larger one of `top` [q] and the largest of the scores [q, k] of each query."""
    return jnp.maximum(top, scores.max(axis=1))


def extent_of(scores):
    """Return the smallest score [q] of the keys that a query may attend to, their number and their largest score."""
    allowed = scores != -jnp.inf
    return jnp.where(allowed, scores, jnp.inf).min(axis=1), allowed.sum(axis=1), scores.max(axis=1)


def relative_extent(smallest, largest, count):
    """Return the smallest and the largest score [q] relative to the largest, 0 for queries without keys."""
    relative = (relative_to(largest, x[:, None])[:, 0] for x in (smallest, largest))
    return tuple(jnp.where(count > 0, x, 0.0) for x in relative)


def _sums_at(row, tops, zero, t, low):
    """Compute the sums over the keys at the shift t; a block in which all are zero at the shift `low` is left out."""
    return over_keys(row.ranges, row.i, partial(_add_sums, row, tops, t, low), Sums(zero, zero))


def _add_sums(row, tops, t, low, masked, j, carry):
    normalizer = row.inputs.rules[2]

    def add(carry):
        scores = _row_scores(row, masked, j)
        return jax.tree.map(jnp.add, carry, sums_of(normalizer, scores, scores != -jnp.inf, t))

    # f is increasing and t >= low: where f is 0 for the largest score of the block at `low`, the block adds 0 at t
    is_needed = _has_nonzero(partial(values_of, normalizer), tops, j, low)
    return lax.cond(is_needed, add, lambda carry: carry, carry)


# --- backward ---------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="blocks", inline=True)
def backward(inputs, blocks, outputs, saved, bars):
    """Compute the cotangents of the inputs, as `Gradients`, from the cotangent of the output."""
    return add_extra(inputs, outputs, saved, bars, _backward_of_keys(inputs, blocks, outputs, saved, bars))


def add_extra(inputs, outputs, saved, bars, gradients):
    """Add to `gradients` that of the leaves on which `scale` depends besides the keys: of `extra`, where the weights
    are divided by extra + sum of f, or of `factor`, where scale = factor(count)."""
    normalizer, divides = inputs.rules[2], inputs.rules[2].divides
    if not divides and saved.count is None:
        return gradients
    rules, non_floats, combine = partition(inputs.rules)
    # c enters each output through `scale` alone: dL/dc = sum_i (dO_i . O_i) / scale_i dscale_i/dc
    delta = _dot(saved.shift.dtype, outputs[0], bars[0])  # dO . O [Q]
    extra = lambda rules: vary_like(jnp.asarray(combine(rules, non_floats)[2].extra(), delta.dtype), inputs)
    factor = lambda rules: combine(rules, non_floats)[2].factor(jnp.maximum(saved.count, 1))
    # O = scale * sum_j f_j v_j: with scale = 1 / (extra + sum of f), dO/d extra = -scale * O; with a factor, O / scale
    bar = -rescale(normalizer, delta * saved.scale, saved.shift).sum() if divides else per_scale(delta, saved.scale)
    (rules_bar,) = jax.vjp(extra if divides else factor, rules)[1](bar)
    return gradients._replace(rules=jax.tree.map(lambda a, b: a + b.astype(a.dtype), gradients.rules, rules_bar))


def _dot(precision, x, out_bar):
    return jnp.sum(x.astype(precision) * out_bar.astype(precision), axis=1)


def _backward_of_keys(inputs, blocks, outputs, saved, bars):
    """Compute the cotangents through the keys: of queries, keys, values, and the leaves of the rules."""
    out_bar, inputs = bars[0], inputs._replace(top=saved.top)
    ranges = key_blocks(inputs, blocks)
    active = None if saved.active is None else active_blocks(saved.active, inputs, blocks)
    delta = delta_of(inputs.rules[2], outputs, saved, bars)  # [Q], a sum over all keys that each block needs

    def rows(i, fresh, row_bar, bars):
        # rows that the last block repeats: with dO = 0 and delta = 0 all of df_j is 0
        row_delta = None if delta is None else jnp.where(fresh, rows_of(delta, i, blocks.query), 0.0)
        shift, scale = (rows_of(x, i, blocks.query) for x in (saved.shift, saved.scale))

        def step(masked, j, bars):
            # where every f of a block is 0, so is every f': no gradient reaches its scores or values
            tile = lambda: tile_of(inputs, blocks, i, j, masked)
            compute = lambda: pull_tile(tile(), inputs.rules, row_bar, shift, scale, row_delta)
            tile_bars = compute() if active is None else compute_or_zeros(max_over_batch(active[i, j]), compute)
            return add_tile(bars, *tile_bars, j, blocks.key)

        return over_keys(ranges, i, step, bars)

    return over_queries(inputs, blocks, out_bar, rows)


def delta_of(normalizer, outputs, saved, bars):
    """Compute the sum over all keys in the gradient of one score, known before the loop over them: dO . O [Q] of the
    divisor or dO . O' [Q] of t, None where there is neither."""
    mean = outputs[0] if normalizer.divides else saved.dout_dtotal
    return None if mean is None else _dot(saved.shift.dtype, mean, bars[0])


def per_scale(x, scale):
    """Compute x / scale, and 0 where all weights are 0."""
    return jnp.where(scale != 0, x / jnp.where(scale != 0, scale, 1.0), 0.0)


def pull_tile(tile: Tile, rules, row_bar, shift, scale, delta):
    """Compute the cotangents of a tile's operands and values; `delta` [q] is that of `delta_of`."""
    _, non_floats, combine = partition(rules)

    def terms(rules, *operands):
        normalizer = combine(rules, non_floats)[2]
        scores = tile.scores(rules, *operands).astype(shift.dtype)
        return terms_of(normalizer, scores, scores != -jnp.inf, shift)

    # f_ij, and g_ij of a `Ratio` that divides by another sum, [q, k]; the scores are recomputed, the shift is constant
    (values, *summands), pull = jax.vjp(terms, *tile.operands)
    weights_bar, value_bar = pull_pool(values * scale[:, None], tile, row_bar, False)  # dP_ij = dO_i . v_j [q, k]
    if summands:
        # df_ij = scale_i dP_ij and dg_ij = -scale_i delta_i: the divisor is a sum of g alone
        bars = weights_bar, jnp.broadcast_to(-delta[:, None], weights_bar.shape)
    else:
        bars = (weights_bar if delta is None else weights_bar - delta[:, None],)  # df_ij = scale_i (dP_ij - delta_i)
    return pull(tuple(bar * scale[:, None] for bar in bars)), value_bar
