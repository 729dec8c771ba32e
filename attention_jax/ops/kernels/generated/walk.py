"""The loops of a generated kernel over blocks of queries and keys, and its operands.

A program of the grid has a block of queries and goes through the blocks of keys, or has a block of keys and goes
through those of queries. Blocks that the mask forbids are skipped, and the mask is evaluated in partial ones alone, by
the ranges of `score_blocks.key_blocks`. A last block begins early, so that all of its rows exist: its rows that the
block before has counted are hidden, and not written again. Under `jax.vmap` the grid has one more axis.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from attention_jax.ops.arrays import ArrayBias, ArrayMask
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, KernelBlocks, Tile, key_blocks, over_keys, tile_at
from attention_jax.ops.kernels.generated.block_step import Step, Traced, Unsupported
from attention_jax.ops.kernels.generated.features import evaluate, has_loops
from attention_jax.ops.kernels.generated.triton import Rows, Shared, as_instructions, launch, program, tile_shape
from attention_jax.ops.masks import Both, Lengths

LEAST = 16
"""Rows of the smallest block; shorter arrays are lengthened."""


class OfQueries(NamedTuple):
    """What is cut into blocks of queries, [Q, ...]: arrays of `Inputs`, and what the forward pass has found."""

    query: Any
    bias_query: Any
    cut: Any
    query_words: Any  # of dropout
    top: Any = None
    residuals: tuple = ()


class OfKeys(NamedTuple):
    """What is cut into blocks of keys, [K, ...]."""

    key: Any
    value: Any
    key_words: Any


class Whole(NamedTuple):
    """What every block sees whole; of an `ArrayBias` [Q, K] it sees its block (`Walk.pairs`)."""

    rules: tuple  # (score, bias, normalizer)
    mask: Any
    rate: Any  # of dropout
    offset: Any


def split(inputs: Inputs) -> tuple[OfQueries, OfKeys, Whole]:
    """The inputs by how they are cut into blocks."""
    query_words, key_words, rate = inputs.dropout or (None, None, None)
    rows = OfQueries(inputs.query, inputs.bias_query, inputs.cut, query_words)
    return rows, OfKeys(inputs.key, inputs.value, key_words), Whole(inputs.rules, inputs.mask, rate, inputs.offset)


def join(rows: OfQueries, keys: OfKeys, shared: Whole) -> Inputs:
    """The inverse of `split`."""
    dropout = None if rows.query_words is None else (rows.query_words, keys.key_words, shared.rate)
    arrays = rows.query, keys.key, keys.value, rows.bias_query
    return Inputs(shared.rules, *arrays, shared.mask, dropout, shared.offset, rows.cut, rows.top)


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
    rows, keys, shared = split(inputs)
    count, mask = inputs.key.shape[0], inputs.mask
    if count < LEAST:
        mask = Lengths(jnp.int32(count)) if mask is None else Both(mask, Lengths(jnp.int32(count)))
    rules, mask = lengthen_arrays((inputs.rules, mask), LEAST)
    return join(lengthen(rows, LEAST), lengthen(keys, LEAST), shared._replace(rules=rules, mask=mask))


class Block(NamedTuple):
    """What a step sees of a block of queries and a block of keys."""

    tile: Tile
    rules: tuple  # (score, bias, normalizer)
    residuals: tuple  # arrays [q, ...] from the forward pass


class Walk:
    """The operands of one kernel, the steps that are traced before it, and the loops over blocks in it.

    A step is a function (`Block`, carry) -> carry of arrays. It is traced by `trace`, outside of the kernel, and
    computed by `over_keys` or `over_queries`, in it. `top` [Q] and `residuals` have a row per query.
    """

    def __init__(self, inputs: Inputs, kernel: KernelBlocks, top=None, residuals: tuple = ()):
        rows, self.keys, self.shared = split(inputs)
        self.rows, self.kernel = rows._replace(top=top, residuals=residuals), kernel
        self.transposed = inputs.query.T, inputs.key.T
        self.lengths = inputs.query.shape[0], inputs.key.shape[0]
        self.block = tuple(min(size, 1 << (n.bit_length() - 1)) for size, n in zip(kernel[:2], self.lengths))
        self.programs = tuple(-(-n // size) for n, size in zip(self.lengths, self.block))
        self.key_ranges = key_blocks(inputs, Blocks(*self.block), lambda bound: bound)
        self.steps: dict[str, Traced] = {}
        self.is_cut = lambda rule: isinstance(rule, ArrayBias) and rule.added.shape == self.lengths
        biases = jax.tree.leaves(self.shared.rules, is_leaf=self.is_cut)
        self.pairs = [rule.added for rule in biases if self.is_cut(rule)]  # cut into blocks of queries and keys
        if any(x.size >= 2**31 for x in jax.tree.leaves((self.rows, self.keys, self.shared))):
            raise Unsupported("indexes arrays of less than 2^31 numbers")

    def trace(self, name: str, step: Callable, carry, with_top: bool = True, over_queries: bool = False):
        """Trace a step for blocks in which all pairs are allowed, and for others. In a loop `over_queries` the others
        hide the queries that an earlier block has."""
        number = jax.ShapeDtypeStruct((), jnp.int32)
        like = lambda x, size=None: jax.ShapeDtypeStruct((size, *x.shape[1:]) if size else x.shape, x.dtype)

        def run(masked, rows, keys, shared, tiles, first_query, first_key, new_query, new_key, carry):
            tiles = iter(tiles)
            with_tile = lambda rule: replace(rule, added=next(tiles)) if self.is_cut(rule) else rule
            rules = jax.tree.map(with_tile, shared.rules, is_leaf=self.is_cut)
            rows = rows if with_top else rows._replace(top=None)
            inputs = join(rows, keys, shared._replace(rules=rules))
            new_query = new_query if over_queries and self.lengths[0] % self.block[0] else None
            tile = tile_at(inputs, first_query, first_key, new_key if masked else None, new_query)
            return step(Block(tile, rules, rows.residuals), carry)

        of_queries, of_keys = (partial(like, size=size) for size in self.block)
        block = jax.tree.map(of_queries, self.rows), jax.tree.map(of_keys, self.keys), jax.tree.map(like, self.shared)
        tiles, carry = [struct(*self.block, dtype=x.dtype) for x in self.pairs], jax.tree.map(like, carry)
        steps = [Step(partial(run, masked), *block, tiles, *[number] * 4, carry) for masked in (False, True)]
        if not self.kernel.interpret:
            for step in steps:
                step.equations = list(map(as_instructions, step.equations))
        self.steps[name] = Traced(*steps)

    def launch(self, name: str, body: Callable, by: int, outputs):
        """Run `body(refs, outputs, index)` for each block of queries (`by` 0) or of keys (1)."""
        ranges = self.query_ranges if by else self.key_ranges
        by_features = any(map(has_loops, jax.tree.leaves(self.steps)))
        operands = {
            "rows": self.rows,
            "keys": self.keys,
            "shared": jax.tree.leaves(self.shared),
            "pairs": self.pairs,
            "constants": jax.tree.map(lambda step: [c.array for c in step.constants], self.steps),
            "transposed": self.transposed if by_features else None,
            "ranges": None if isinstance(ranges[0], int) else ranges,
        }
        run = lambda refs, outputs: body(refs, outputs, program())
        warps = self.kernel.feature_warps if by_features else self.kernel.warps
        return launch(run, name, self.programs[by], outputs, operands, warps, self.kernel.stages, self.kernel.interpret)

    def first(self, axis: int, index):
        """The first row of a block of queries (axis 0) or keys (1)."""
        return jnp.minimum(index * self.block[axis], self.lengths[axis] - self.block[axis])

    def rows_of(self, refs: dict, axis: int, index) -> OfQueries | OfKeys:
        """A block of the arrays of queries (axis 0) or of keys (1), of `Rows`."""
        first, arrays = self.first(axis, index), (self.rows, self.keys)[axis]
        of_ref = lambda ref, x: Rows(ref, first, self.block[axis], x.shape)
        rows = jax.tree.map(of_ref, refs[("rows", "keys")[axis]], arrays)
        (rows.key if axis else rows.query).transposed = refs["transposed"] and refs["transposed"][axis]
        return rows

    def compute(self, refs: dict, name: str, masked: bool, i, j, rows: OfQueries, keys: OfKeys, carry):
        """One step, in a kernel."""
        step = self.steps[name][masked]
        shared = [Shared(ref, x.shape) for ref, x in zip(refs["shared"], jax.tree.leaves(self.shared), strict=True)]
        constants = refs["constants"][name][masked]
        constants = [Shared(ref, c.aval.shape) for ref, c in zip(constants, step.constants, strict=True)]
        place = self.first(0, i), self.first(1, j), i * self.block[0], j * self.block[1]
        place = [jnp.asarray(x, jnp.int32) for x in place]
        tiles = [Shared(ref, x.shape).slice(place[:2], self.block) for ref, x in zip(refs["pairs"], self.pairs)]
        return evaluate(step, constants, rows, keys, shared, tiles, place, jax.tree.leaves(carry))

    def over_keys(self, refs: dict, name: str, i, carry, **tiles):
        """Compute a step for all blocks of keys that a block of queries needs; `tiles` replace fields of its rows."""
        rows = jax.tree.map(lambda x: x.load_once(), self.rows_of(refs, 0, i))._replace(**tiles)
        step = lambda masked, j, carry: self.compute(refs, name, masked, i, j, rows, self.rows_of(refs, 1, j), carry)
        return over_keys(refs["ranges"] or self.key_ranges, i, step, carry)

    def over_queries(self, refs: dict, name: str, j, carry, store: Callable):
        """Compute a step, which returns (carry, update), for all blocks of queries that need a block of keys, and call
        `store(i, update)` for each."""
        keys = jax.tree.map(lambda x: x.load_once(), self.rows_of(refs, 1, j))

        def step(masked, i, carry):
            carry, update = self.compute(refs, name, masked, i, j, self.rows_of(refs, 0, i), keys, carry)
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
        # the same pairs of blocks, by columns: the bounds of each row i [queries, 1] against j [1, keys]
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
