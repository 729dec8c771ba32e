"""Evaluation of a `Step` on tiles, with scores that are sums over features, one feature at a time.

The blocks of an L1 distance or of v . tanh(q + k) have an intermediate [queries, keys, features], as a tile too large
by the number of features. Its elements are functions of one feature, so it is computed in loops over the features: at
feature h a value [q, k, H] is a tile [q, k], and a row operand [q, H] the column h, from memory. A loop ends in sums:
over features (the score), over keys (the gradient of a query), over queries (that of a key) and over both (that of a
parameter). What a later loop needs of an earlier one's intermediate it computes again.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.kernels.generated.block_step import Equation, Step, Unsupported
from attention_jax.ops.kernels.generated.tiles import ELEMENTWISE, Tiles, as_tile, compute, elementwise, widen
from attention_jax.ops.kernels.generated.triton import Rows, Shared, tile_shape

UNROLL = 4
"""Features of one turn of the loop, where their number is a multiple: the language does not unroll loops."""


def evaluate(step: Step, constants: list, *args):
    """The results of a step, whose `args` have tiles, `Rows` and `Shared` in the place of arrays. Raises `Unsupported`
    for what a kernel cannot compute."""
    arguments = [x.load() if isinstance(x, Shared) and not x.shape else x for x in jax.tree.leaves(args)]
    tiles = Tiles(step, constants, arguments)
    for equation in group(step):
        if isinstance(equation, Loop):
            run(equation, tiles)
        else:
            tiles.set(equation, compute(equation, tiles))
    return step.structure.unflatten([as_tile(tiles[v], v.aval) for v in step.results])


class Loop(NamedTuple):
    """Sums that one loop over the features computes."""

    sums: list[Equation]
    sources: dict  # the equation of each value, by the value's id


def is_cube(v) -> bool:
    """Whether a value is an intermediate [queries, keys, features]; indices [queries, keys, axes] are none."""
    is_index = jnp.issubdtype(v.aval.dtype, jnp.integer)
    return len(v.aval.shape) == 3 and min(v.aval.shape) > 1 and not is_index


def has_loops(step: Step) -> bool:
    """Whether a step has intermediates [queries, keys, features]."""
    return any(is_cube(v) for equation in step.equations for v in equation.outputs)


def group(step: Step) -> list[Equation | Loop]:
    """The equations of a step, without intermediates, and with the sums of these in `Loop`s."""
    if not has_loops(step):
        return step.equations
    sources = {id(v): equation for equation in step.equations for v in equation.outputs}
    depths, levels = {}, {}  # of a value: how many loops have to end before it is known
    for equation in step.equations:
        depth = max((depths.get(id(v), 0) for v in equation.inputs), default=0)
        equations, sums = levels.setdefault(depth, ([], []))
        is_sum = any(map(is_cube, equation.inputs)) and not is_cube(equation.outputs[0])
        if is_sum:
            sums.append(equation)
        elif not is_cube(equation.outputs[0]):
            equations.append(equation)
        depths |= {id(v): depth + is_sum for v in equation.outputs}
    grouped = []
    for _, (equations, sums) in sorted(levels.items()):
        grouped += equations + ([Loop(sums, sources)] if sums else [])
    return grouped


def run(loop: Loop, tiles: Tiles):
    """Compute the sums of a loop."""
    [features] = {v.aval.shape[2] for equation in loop.sums for v in equation.inputs if is_cube(v)}
    unroll = UNROLL if features % UNROLL == 0 else 1

    def add(turn, totals):
        for n in range(unroll):
            columns = AtFeature(loop, tiles, turn * unroll + n)
            totals = [total + _term(equation, columns, tiles) for equation, total in zip(loop.sums, totals)]
        return totals

    start = [jnp.zeros(tile_shape(equation.outputs[0].aval.shape), jnp.float32) for equation in loop.sums]
    totals = lax.fori_loop(0, features // unroll, add, start)
    for equation, total in zip(loop.sums, totals):
        tiles.set(equation, widen(total, equation.outputs[0].aval.dtype))


class AtFeature:
    """Values at one feature: without their last axis."""

    def __init__(self, loop: Loop, tiles: Tiles, feature):
        self.sources, self.tiles, self.feature, self.columns = loop.sources, tiles, feature, {}

    def __getitem__(self, v) -> jax.Array:
        if id(v) not in self.columns:
            self.columns[id(v)] = self._column(v)
        return self.columns[id(v)]

    def _column(self, v):
        equation, shape = self.sources.get(id(v)), tile_shape(v.aval.shape[:-1])
        raw = self.tiles.raw(v) if equation is None else None
        if isinstance(raw, Rows) and raw.transposed is not None:
            return widen(raw.column(self.feature), v.aval.dtype)
        if isinstance(raw, Shared) and len(raw.shape) == 1:
            return raw.ref[self.feature]
        name = "" if equation is None else equation.name
        if name in ELEMENTWISE:
            operands = [self[x] if len(x.aval.shape) else self.tiles[x] for x in equation.inputs]
            return elementwise(equation, operands, shape)
        if name == "convert_element_type":
            return widen(self[equation.inputs[0]], v.aval.dtype)
        if name == "broadcast_in_dim":
            return self._broadcast(equation, shape)
        if name == "reshape" and equation.inputs[0].aval.shape[-1:] == v.aval.shape[-1:]:
            return jnp.reshape(self[equation.inputs[0]], shape)
        if name == "dot_general" and is_cube(v):
            return self._outer(equation)
        if is_cube(v):
            raise Unsupported(f"knows no {name} of a value [queries, keys, features]")
        is_feature = lax.broadcasted_iota(jnp.int32, tile_shape(v.aval.shape), len(shape)) == self.feature
        return widen(jnp.sum(jnp.where(is_feature, widen(self.tiles[v], v.aval.dtype), 0), axis=-1), v.aval.dtype)

    def _broadcast(self, equation, shape):
        [x], axes = equation.inputs, tuple(equation.params["broadcast_dimensions"])
        last = len(shape)  # the axis of features
        if last not in axes:
            return lax.broadcast_in_dim(widen(self.tiles[x], x.aval.dtype), shape, axes)
        size = x.aval.shape[-1]
        column = self[x] if size > 1 else jnp.reshape(self.tiles[x], tile_shape(x.aval.shape[:-1]))
        return lax.broadcast_in_dim(column, shape, axes[:-1])

    def _outer(self, equation):
        """The product of [q, k] and [H], the gradient of an intermediate that is multiplied by a vector and summed."""
        (matrix, vector), numbers = equation.inputs, equation.params["dimension_numbers"]
        if any(numbers[0]) or any(numbers[1]) or (len(matrix.aval.shape), len(vector.aval.shape)) != (2, 1):
            raise Unsupported("knows no such product with a value [queries, keys, features]")
        return self.tiles[matrix].astype(jnp.float32) * self[vector].astype(jnp.float32)


def _term(equation: Equation, columns: AtFeature, tiles: Tiles) -> jax.Array:
    """What one feature adds to a sum."""
    if equation.name == "reduce_sum":
        over, term = set(equation.params["axes"]), columns[equation.inputs[0]].astype(jnp.float32)
    elif equation.name == "dot_general":
        over, term = _term_of_product(equation, columns, tiles)
    else:
        raise Unsupported(f"knows no {equation.name} of a value [queries, keys, features]")
    for axis in sorted(over - {2}, reverse=True):
        term = term.sum(axis=axis)
    if 2 in over:
        return term
    result = tile_shape(equation.outputs[0].aval.shape)  # the features are its last axis
    is_feature = lax.broadcasted_iota(jnp.int32, result, len(result) - 1) == columns.feature
    return jnp.where(is_feature, term[..., None] if term.ndim else term, 0.0)


def _term_of_product(equation, columns, tiles):
    """The axes that a product sums over, and its factors' product at one feature."""
    (over, over_other), (batch, _) = equation.params["dimension_numbers"]
    cube, other = equation.inputs
    if not is_cube(cube):
        cube, other, over, over_other = other, cube, over_other, over
    over, shape = tuple(over), other.aval.shape
    if (is_cube(other) and tuple(batch) == (0, 1) and over == (2,)) or (over == (2,) and len(shape) == 1 and not batch):
        factor = columns[other]
    elif sorted(over) == [0, 1] and len(shape) == 2 and not batch and over == tuple(over_other):
        factor = tiles[other]
    else:
        raise Unsupported("knows no such product with a value [queries, keys, features]")
    return set(over), columns[cube].astype(jnp.float32) * factor.astype(jnp.float32)
