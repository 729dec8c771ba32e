"""Attention by generated kernels: the passes over blocks of queries and keys, forward and backward.

The arithmetic of a block is that of the blocks in XLA, `ops/blockwise/softmax.py` and `ops/blockwise/local.py`: the
functions there are traced (`block_step.py`) and evaluated on tiles (`features.py`, `tiles.py`). Here are the loops
around it:

* forward, and for the gradient of the queries: a program has a block of queries and goes through the keys;
* for the gradient of keys, values and parameters: a program has a block of keys and goes through the queries. Each
  writes its own sums of the parameters' gradients, which XLA adds: nothing depends on the order of programs.

Blocks that the mask forbids are skipped, and the mask is evaluated in partial ones alone, by the ranges of
`score_blocks.key_blocks`. A last block begins early, so that all of its rows exist; its keys that the block before has
counted are hidden, and its rows that the block before writes are not written. Under `jax.vmap` the grid has one more
axis.
"""

import functools
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.arrays import ArrayBias, ArrayMask
from attention_jax.ops.blockwise import local, softmax
from attention_jax.ops.blockwise.score_blocks import (
    Blocks,
    Gradients,
    Inputs,
    KernelBlocks,
    Statistics,
    Tile,
    key_blocks,
    over_keys,
    partition,
    tile_at,
)
from attention_jax.ops.kernels.generated.block_step import Step, Unsupported
from attention_jax.ops.kernels.generated.features import evaluate, has_loops
from attention_jax.ops.kernels.generated.triton import (
    Rows,
    Whole,
    launch,
    program,
    store_entry,
    store_slice,
    tile_shape,
)
from attention_jax.ops.masks import Both, Lengths
from attention_jax.ops.normalizer_kinds import Exponential, Local, Sums, Threshold, find_threshold, has_factor, sums_of

LEAST = 16
"""Rows of the smallest block; shorter arrays are lengthened."""

LARGEST_LEAF = 4096
"""Numbers of a parameter up to which each program holds its sum of the gradient in registers."""


# --- operands ---------------------------------------------------------------------------------------------------------


def split(inputs: Inputs) -> tuple:
    """The arrays that are cut into blocks of queries, those cut into blocks of keys, and those that are not cut."""
    query_words, key_words, rate = inputs.dropout or (None, None, None)
    rows = inputs.query, inputs.bias_query, inputs.cut, inputs.top, query_words
    return rows, (inputs.key, inputs.value, key_words), (inputs.rules, inputs.mask, rate, inputs.offset)


def join(rows, keys, whole) -> Inputs:
    """The inverse of `split`."""
    (query, bias_query, cut, top, query_words), (key, value, key_words), (rules, mask, rate, offset) = rows, keys, whole
    dropout = None if query_words is None else (query_words, key_words, rate)
    return Inputs(rules, query, key, value, bias_query, mask, dropout, offset, cut, top)


def lengthen(tree, rows: int):
    """Arrays with copies of their last row, up to `rows`."""
    pad = lambda x: jnp.pad(x, ((0, max(0, rows - x.shape[0])),) + ((0, 0),) * (x.ndim - 1), mode="edge")
    return jax.tree.map(pad, tree)


def lengthen_arrays(rules, size: int):
    """Rules whose arrays [Q, K] in place of a mask or a bias have at least `size` rows and columns, or one."""
    is_array = lambda rule: isinstance(rule, ArrayMask | ArrayBias)
    pad = lambda x: jnp.pad(x, [(0, max(0, size - n) if n > 1 else 0) for n in x.shape]) if x.ndim else x
    return jax.tree.map(lambda rule: jax.tree.map(pad, rule) if is_array(rule) else rule, rules, is_leaf=is_array)


def with_enough_rows(inputs: Inputs) -> Inputs:
    """Inputs of at least `LEAST` queries and keys, of which the added keys are hidden."""
    rows, keys, (rules, mask, rate, offset) = split(inputs)
    count = inputs.key.shape[0]
    if count < LEAST:
        mask = Lengths(jnp.int32(count)) if mask is None else Both(mask, Lengths(jnp.int32(count)))
    rules, mask = lengthen_arrays((rules, mask), LEAST)
    return join(lengthen(rows, LEAST), lengthen(keys, LEAST), (rules, mask, rate, offset))


class Block(NamedTuple):
    """What a step sees of a block of queries and a block of keys."""

    tile: Tile
    rules: tuple  # (score, bias, normalizer)
    residuals: tuple  # arrays [q, ...] from the forward pass


class Walk:
    """The walk of a kernel's programs over blocks: its operands, its steps and its loops.

    A step is a function (`Block`, carry) -> carry of arrays. It is traced by `trace`, outside of the kernel, and
    computed by `over_keys` or `over_queries`, in it. `top` [Q] and `residuals` have a row per query.
    """

    def __init__(self, inputs: Inputs, kernel: KernelBlocks, top=None, residuals: tuple = ()):
        rows, self.keys, self.whole = split(inputs)
        self.rows, self.kernel = (*rows, top, residuals), kernel
        self.columns = inputs.query.T, inputs.key.T
        self.lengths = inputs.query.shape[0], inputs.key.shape[0]
        self.block = tuple(min(size, 1 << (n.bit_length() - 1)) for size, n in zip(kernel[:2], self.lengths))
        self.programs = tuple(-(-n // size) for n, size in zip(self.lengths, self.block))
        self.key_ranges = key_blocks(inputs, Blocks(*self.block), lambda bound: bound)
        self.steps = {}
        if any(x.size >= 2**31 for x in jax.tree.leaves((self.rows, self.keys, self.whole))):
            raise Unsupported("indexes arrays of less than 2^31 numbers")

    def trace(self, name: str, step: Callable, carry, with_top: bool = True, over_queries: bool = False):
        """Trace a step for blocks in which all pairs are allowed, and for others. In a loop `over_queries` the others
        hide the queries that an earlier block has."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        like = lambda x, size=None: jax.ShapeDtypeStruct((size, *x.shape[1:]) if size else x.shape, x.dtype)

        def run(masked, rows, keys, whole, first_query, first_key, new_query, new_key, carry):
            *rows, top, residuals = rows
            inputs = join(rows, keys, whole)._replace(top=top if with_top else None)
            new_query = new_query if over_queries and self.lengths[0] % self.block[0] else None
            tile = tile_at(inputs, first_query, first_key, new_key if masked else None, new_query)
            return step(Block(tile, inputs.rules, residuals), carry)

        of_queries, of_keys = (partial(like, size=size) for size in self.block)
        block = jax.tree.map(of_queries, self.rows), jax.tree.map(of_keys, self.keys), jax.tree.map(like, self.whole)
        carry = jax.tree.map(like, carry)
        self.steps[name] = [Step(partial(run, masked), *block, *[number] * 4, carry) for masked in (False, True)]

    def launch(self, name: str, body: Callable, by: int, outputs):
        """Run `body(refs, outputs, index)` for each block of queries (`by` 0) or of keys (1)."""
        ranges = self.query_ranges if by else self.key_ranges
        by_features = any(has_loops(step) for pair in self.steps.values() for step in pair)
        operands = {
            "rows": jax.tree.leaves(self.rows),
            "keys": jax.tree.leaves(self.keys),
            "whole": jax.tree.leaves(self.whole),
            "constants": {
                name: [[c.array for c in step.constants] for step in pair] for name, pair in self.steps.items()
            },
            "columns": self.columns if by_features else None,
            "ranges": None if isinstance(ranges[0], int) else ranges,
        }
        run = lambda refs, outputs: body(refs, outputs, program())
        warps = self.kernel.key_warps if by or by_features else self.kernel.warps
        return launch(run, name, self.programs[by], outputs, operands, warps, self.kernel.stages, self.kernel.interpret)

    def first(self, axis: int, index):
        """The first row of a block of queries (axis 0) or keys (1)."""
        return jnp.minimum(index * self.block[axis], self.lengths[axis] - self.block[axis])

    def cut(self, refs: dict, axis: int, index) -> list[Rows]:
        """A block of the queries' arrays (axis 0) or of the keys' (1)."""
        kind, arrays, first = ("rows", "keys")[axis], (self.rows, self.keys)[axis], self.first(axis, index)
        pairs = zip(refs[kind], jax.tree.leaves(arrays), strict=True)
        rows = [Rows(ref, first, self.block[axis], x.shape) for ref, x in pairs]
        if refs["columns"] is not None:  # queries and keys are the first
            rows[0].columns = refs["columns"][axis]
        return rows

    def compute(self, refs: dict, name: str, masked: bool, i, j, rows: list, keys: list, carry):
        """One step, in a kernel."""
        step = self.steps[name][masked]
        whole = [Whole(ref, x.shape) for ref, x in zip(refs["whole"], jax.tree.leaves(self.whole), strict=True)]
        constants = refs["constants"][name][masked]
        constants = [Whole(ref, c.aval.shape) for ref, c in zip(constants, step.constants, strict=True)]
        place = self.first(0, i), self.first(1, j), i * self.block[0], j * self.block[1]
        place = [jnp.asarray(x, jnp.int32) for x in place]
        return evaluate(step, constants, rows, keys, whole, place, jax.tree.leaves(carry))

    def over_keys(self, refs: dict, name: str, i, carry, row_tiles=()):
        """Compute a step for all blocks of keys that a block of queries needs; `row_tiles` replace the last rows, `top`
        and the residuals."""
        rows = [x.load_once() for x in self.cut(refs, 0, i)]
        row_tiles = jax.tree.leaves(row_tiles)
        rows[len(rows) - len(row_tiles) :] = row_tiles
        step = lambda masked, j, carry: self.compute(refs, name, masked, i, j, rows, self.cut(refs, 1, j), carry)
        return over_keys(refs["ranges"] or self.key_ranges, i, step, carry)

    def over_queries(self, refs: dict, name: str, j, carry, store: Callable):
        """Compute a step, which returns (carry, update), for all blocks of queries that need a block of keys, and call
        `store(i, update)` for each."""
        keys = [x.load_once() for x in self.cut(refs, 1, j)]

        def step(masked, i, carry):
            carry, update = self.compute(refs, name, masked, i, j, self.cut(refs, 0, i), keys, carry)
            store(i, update)
            return carry

        return over_keys(refs["ranges"] or self.query_ranges, j, step, carry)

    def write(self, refs, arrays, axis: int, index, tiles):
        """Write tiles to a block of rows of each array."""
        first, first_new = self.first(axis, index), index * self.block[axis]
        store = lambda ref, x, tile: Rows(ref, first, self.block[axis], x.shape).store(tile, first_new)
        jax.tree.map(store, refs, arrays, tiles)

    @functools.cached_property
    def query_ranges(self):
        """The ranges of blocks of queries that each block of keys needs, as `key_blocks` has those of keys."""
        queries, keys = self.programs
        num_whole = self.lengths[0] // self.block[0]  # a last block that begins early is not open
        if isinstance(self.key_ranges[0], int) and self.lengths[1] % self.block[1] == 0:
            return 0, num_whole, num_whole, queries
        bounds = (jnp.broadcast_to(jnp.asarray(bound, jnp.int32), (queries,))[:, None] for bound in self.key_ranges)
        (low, open_low, open_high, high), j = bounds, jnp.arange(keys, dtype=jnp.int32)[None, :]
        i = jnp.arange(queries, dtype=jnp.int32)[:, None]
        is_needed = (low <= j) & (j < high)  # [blocks of queries, blocks of keys]
        is_open = is_needed & (open_low <= j) & (j < open_high) & (i < num_whole)
        first, stop = jnp.where(is_needed, i, queries).min(axis=0), jnp.where(is_needed, i + 1, 0).max(axis=0)
        stop = jnp.maximum(first, stop)
        open_first = jnp.clip(jnp.where(is_open, i, queries).min(axis=0), first, stop)
        open_stop = jnp.where(~is_open & (i >= open_first[None, :]), i, queries).min(axis=0)  # the end of the first run
        return first, open_first, jnp.clip(open_stop, open_first, stop), stop


def add(carry, increment):
    """Add to sums, in their types."""
    return jax.tree.map(lambda x, y: x + y.astype(x.dtype), carry, increment)


def zeros(tree):
    """Tiles of zeros in float32, for arrays of these shapes."""
    return jax.tree.map(lambda x: jnp.zeros(tile_shape(x.shape), jnp.float32), tree)


def struct(*shape: int, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="blocks", inline=True)
def forward(inputs: Inputs, blocks: Blocks):
    """((output [Q, V], log-normalizer [Q] or None), residuals, `Statistics`), as `softmax.forward` and `local.forward`
    of `ops/blockwise` return them. Raises `Unsupported`."""
    if inputs.terms is not None:
        raise Unsupported("sums values alone, not the terms of a pooling")
    normalizer, queries = inputs.rules[2], inputs.query.shape[0]
    if not isinstance(normalizer, Local):
        raise Unsupported(f"knows no normalizer {type(normalizer).__name__}")
    run = _forward_softmax if isinstance(normalizer, Exponential) else _forward_local
    results = run(with_enough_rows(inputs), blocks)
    outputs, saved, statistics = jax.tree.map(lambda x: x[:queries], results)
    if isinstance(saved, local.Saved) and normalizer.sparse:
        saved = saved._replace(active=local.all_active(inputs, blocks))
    return outputs, saved, statistics


def _forward_softmax(inputs, blocks):
    walk, (queries, width) = Walk(inputs, blocks.kernel), (inputs.query.shape[0], inputs.value.shape[1])
    start = lambda width: softmax.start_rows(walk.block[0], width, jnp.float32, blocks.keep_entropy)
    walk.trace(
        "add", lambda block, running: softmax.add_keys(block.tile, running), jax.eval_shape(lambda: start(width))
    )
    vector = struct(queries)
    statistics = Statistics(vector if blocks.keep_largest else None, vector if blocks.keep_entropy else None)
    like = struct(queries, width, dtype=inputs.value.dtype), vector, statistics

    def body(refs, outputs, i):
        running = walk.over_keys(refs, "add", i, start(tile_shape((width,))[0]))
        walk.write(outputs, like, 0, i, softmax.finish_rows(running, blocks.keep_largest))

    out, log, statistics = walk.launch("attend", body, 0, like)
    return (out, log), (), statistics


def _forward_local(inputs, blocks):
    (queries, width), normalizer, dtype = (
        (inputs.query.shape[0], inputs.value.shape[1]),
        inputs.rules[2],
        inputs.value.dtype,
    )
    has_threshold, keep_count = isinstance(normalizer, Threshold), has_factor(normalizer)
    # the largest score and the shift of a query are known only in the kernel, which gives them to the steps
    unknown = jnp.zeros((queries,), jnp.float32)
    walk = Walk(inputs, blocks.kernel, unknown if has_threshold else None, (unknown,))
    size = walk.block[0]
    start = lambda width: local.start_totals(size, width, jnp.float32, has_threshold, blocks.keep_entropy)
    increment = lambda block: local.totals_of(block.tile, block.rules[2], *block.residuals, blocks.keep_entropy)[0]
    walk.trace("totals", lambda block, totals: add(totals, increment(block)), jax.eval_shape(lambda: start(width)))
    if has_threshold:
        scores_of = lambda block: block.tile.scores(*block.tile.operands).astype(jnp.float32)
        walk.trace(
            "extent", lambda block, extent: _extend(extent, scores_of(block)), (struct(size),) * 3, with_top=False
        )
        walk.trace("sums", lambda block, sums: add(sums, _sums(block, scores_of(block))), Sums(*(struct(size),) * 2))
    relative_extent = Step(local.relative_extent, *(struct(size),) * 3)
    vector = struct(queries)
    dout_dtotal = struct(queries, width, dtype=dtype if dtype == jnp.bfloat16 else jnp.float32)
    if not has_threshold:
        dout_dtotal = None
    saved = local.Saved(vector, vector, dout_dtotal, None, vector if keep_count else None, None)
    statistics = Statistics(entropy=vector if blocks.keep_entropy else None)
    like = struct(queries, width, dtype=dtype), saved, statistics, vector if has_threshold else None
    leaves, structure = jax.tree.flatten(inputs.rules)

    def body(refs, outputs, i):
        loaded = [Whole(ref, x.shape).load() for ref, x in zip(refs["whole"], leaves)]  # rules are the first
        normalizer, zero, top = structure.unflatten(loaded)[2], jnp.zeros((size,), jnp.float32), None
        shift = zero
        if has_threshold:
            extent = zero + jnp.inf, zero, zero - jnp.inf
            smallest, count, top = walk.over_keys(refs, "extent", i, extent, (zero, zero))
            sums = lambda shift, _: walk.over_keys(refs, "sums", i, Sums(zero, zero), (top, shift))
            extent = evaluate(relative_extent, [], smallest, top, count)
            all_done = lambda is_done: jnp.min(is_done.astype(jnp.int32)) > 0
            shift = find_threshold(normalizer, sums, *extent, jnp.maximum(count, 1), all_done)
        totals = walk.over_keys(refs, "totals", i, start(tile_shape((width,))[0]), (top, shift))
        results = local.finish_rows(normalizer, totals, totals.count, shift, keep_count)
        walk.write(outputs, like, 0, i, (*results, top))

    out, saved, statistics, top = walk.launch("attend", body, 0, like)
    return (out, None), saved._replace(top=top), statistics


def _extend(extent, scores):
    (smallest, count, largest), (new_smallest, new_count, top) = extent, local.extent_of(scores)
    return jnp.minimum(smallest, new_smallest), count + new_count.astype(count.dtype), jnp.maximum(largest, top)


def _sums(block, scores):
    return sums_of(block.rules[2], scores, scores != -jnp.inf, *block.residuals)


# --- backward ---------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames=("blocks", "moving"), inline=True)
def backward(inputs: Inputs, blocks: Blocks, outputs, saved, bars, moving: tuple[int, ...]) -> Gradients:
    """The cotangents of the inputs from those of the outputs, as `softmax.backward` and `local.backward` return them.
    Of the floating leaves of the rules only those at the places `moving` have one, the others zero. Raises
    `Unsupported`."""
    normalizer, (queries, keys) = inputs.rules[2], (inputs.query.shape[0], inputs.key.shape[0])
    outputs, saved = lengthen((outputs, saved), LEAST)
    bars = jax.tree.map(lambda x: jnp.pad(x, ((0, max(0, LEAST - queries)),) + ((0, 0),) * (x.ndim - 1)), bars)
    if isinstance(normalizer, Exponential):
        top, residuals = None, (outputs[1], softmax.delta_of(outputs, bars))
        pull = lambda block, row_bar, log, delta: softmax.pull_tile(block.tile, row_bar, log, delta)
    else:
        top, residuals = saved.top, (saved.shift, saved.scale, *local.deltas_of(normalizer, outputs, saved, bars))
        pull = lambda block, *residuals: local.pull_tile(block.tile, block.rules, *residuals)
    walk = Walk(with_enough_rows(inputs), blocks.kernel, top, (bars[0], *residuals))
    query_bar, bias_query_bar = jax.tree.map(lambda x: x[:queries], _pull_by_queries(walk, pull))
    key_bar, value_bar, rules_bar = _pull_by_keys(walk, pull, moving)
    rules_bar = [bar[tuple(map(slice, x.shape))] for bar, x in zip(rules_bar, partition(inputs.rules)[0])]
    gradients = Gradients(rules_bar, query_bar, key_bar[:keys], value_bar[:keys], bias_query_bar)
    return (
        gradients if isinstance(normalizer, Exponential) else local.add_extra(inputs, outputs, saved, bars, gradients)
    )


def _pull_by_queries(walk, pull):
    """The cotangents of the queries, as the score and the bias see them."""
    query, bias_query, *_ = walk.rows
    like = query, bias_query

    def step(block, carry):
        (_, query_bar, _, bias_query_bar), _ = pull(block, *block.residuals)
        return add(carry, (query_bar, bias_query_bar))

    rows = jax.tree.map(lambda x: struct(walk.block[0], *x.shape[1:]), like)
    walk.trace("queries", step, rows)

    def body(refs, outputs, i):
        walk.write(outputs, like, 0, i, walk.over_keys(refs, "queries", i, zeros(rows)))

    outputs = jax.tree.map(lambda x: struct(*x.shape, dtype=x.dtype), like)
    return walk.launch("query_gradient", body, 0, outputs)


def _pull_by_keys(walk, pull, moving):
    """The cotangents of keys, values and the floating leaves of the rules: of small leaves a sum in each program, of
    an array [Q, K], such as a bias, the block that a step has read."""
    (key, value, _), leaves = walk.keys, partition(walk.whole[0])[0]
    moving = [n for n in moving if n < len(leaves)]
    large = [n for n in moving if leaves[n].shape == walk.lengths]
    small = [n for n in moving if n not in large]
    if any(leaves[n].size > LARGEST_LEAF for n in small):
        raise Unsupported(f"has no gradient of parameters of more than {LARGEST_LEAF:,} numbers")

    def step(block, carry):
        (rules_bar, _, key_bar, _), value_bar = pull(block, *block.residuals)
        return add(carry, (key_bar, value_bar, [rules_bar[n] for n in small])), [rules_bar[n] for n in large]

    of_keys = [struct(walk.block[1], *x.shape[1:]) for x in (key, value)]
    rows = (*of_keys, [struct(*leaves[n].shape) for n in small])
    walk.trace("keys", step, rows, over_queries=True)
    for traced in walk.steps["keys"]:
        traced.open_updates(len(large))
    like = [struct(*x.shape, dtype=x.dtype) for x in (key, value)]
    partial_sums = [struct(walk.programs[1], *leaves[n].shape) for n in small]
    arrays = [struct(*leaves[n].shape) for n in large]

    def body(refs, outputs, j):
        def store(i, updates):
            first_new = [
                index * size - walk.first(axis, index) for axis, (index, size) in enumerate(zip((i, j), walk.block))
            ]
            for ref, (tile, *starts) in zip(outputs[2], updates, strict=True):
                store_slice(ref, starts, tile, first_new)

        def store_zeros(i, _):
            tile, starts = jnp.zeros(walk.block, jnp.float32), (walk.first(0, i), walk.first(1, j))
            store(i, [(tile, *starts)] * len(large))

        if large and refs["ranges"]:
            first, _, _, stop = (bound[j] for bound in refs["ranges"])
            lax.fori_loop(0, first, store_zeros, None)
            lax.fori_loop(stop, walk.programs[0], store_zeros, None)
        key_bar, value_bar, sums = walk.over_queries(refs, "keys", j, zeros(rows), store)
        walk.write(outputs[0], like, 1, j, [key_bar, value_bar])
        for ref, tile, n in zip(outputs[1], sums, small):
            store_entry(ref, j, leaves[n].shape, tile)

    results = walk.launch("key_gradient", body, 1, (like, partial_sums, arrays))
    (key_bar, value_bar), sums, updates = results
    rules_bar = [jnp.zeros(x.shape, jnp.float32) for x in leaves]
    for n, x in zip(small + large, [x.sum(axis=0) for x in sums] + updates):
        rules_bar[n] = x
    return key_bar, value_bar, rules_bar
