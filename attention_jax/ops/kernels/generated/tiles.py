"""The equations of a `Step` on tiles, inside of a kernel.

One call, from the score to the tile: attend(query, key, value, score=SoftCap(30.0), mask=causal(),
implementation="kernel") for 1,023 tokens of width 64.

1. `ops/attention.py` asks `dispatch.choose_implementation`, and `_prepare_blocks` adds blocks of 64 x 64.
2. `derivatives.attend_in_blocks` takes `forward_pass.forward`, and for a gradient `gradient_passes.backward`.
3. `_forward_softmax` makes a `Walk`: `split` says what is cut into blocks of queries, of keys, or not at all.
4. `Walk.trace` makes a `Step` of `softmax.add_keys`, the arithmetic of XLA's blocks, too, at the shapes of a block:

       a:f32[64,64] = dot_general query:bf16[64,64] key:bf16[64,64]    scores.ScaledDot
       b:f32[64,64] = mul a 0.125
       c:f32[64,64] = tanh (div b 30.0)                                scores.SoftCap
       d:f32[64,64] = select_n allowed -inf (mul c 30.0)               score_blocks.scores_of; only in `Traced.partial`
       e:f32[64]    = reduce_max d                                     softmax.add_keys: m, exp(S - m), l, P V

5. `Walk.launch` runs 16 programs, times those of vmaps; the last one begins at query 959, so that its rows exist.
6. In a program `Walk.over_keys` loops over the blocks of keys that the mask allows; each turn is `Walk.compute`.
7. `features.evaluate` goes through the equations: `compute` below gives `a` to `_dot_general`, which calls
   `triton.dot`, and `c` to `elementwise`; on a card its tanh is that of `triton.INSTRUCTIONS`.
8. After the loop `softmax.finish_rows` divides by l, and `Walk.write` stores the rows that no other program has.

Tiles have axes padded to powers of two, so sums and products leave out what is beyond the true shapes, at which the
step was traced. What is computed in half precision stays in float32: only the factors of a product of matrices, which
becomes the language's `dot`, and what is stored are rounded. XLA, too, keeps excess precision between operations.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from attention_jax.ops.kernels.generated.block_step import Equation, Step, Unsupported
from attention_jax.ops.kernels.generated.triton import Rows, Shared, dot, inside, tile_shape
from attention_jax.ops.precision import is_half

ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bitcast_convert_type", "cbrt", "ceil", "clamp", "clz", "cos", "cosh", "div", "eq", "erf_inv", "exp", "exp2",
    "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "nextafter", "not", "one_minus_square", "or", "pow", "rem", "rsqrt", "select_n", "shift_left",
    "shift_right_arithmetic", "shift_right_logical", "sign", "sin", "sinh", "sqrt", "square", "sub", "tan", "tanh",
    "xor",
}  # fmt: skip
"""Primitives that the language computes element by element."""

TABLE = 64
"""Entries up to which a table that is read by index has a gradient: each costs a sum over the pairs."""


class Tiles:
    """The values of a step's equations: tiles, `Rows` and `Shared` arrays that are not loaded yet, and numbers."""

    def __init__(self, step: Step, constants: list, arguments: list):
        self.values = dict(zip(map(id, step.arguments), arguments, strict=True))
        self.values |= dict(zip(map(id, step.constants), constants, strict=True))

    def raw(self, v):
        """A value as it is, perhaps not loaded."""
        return v.val if isinstance(v, Literal) else self.values[id(v)]

    def __getitem__(self, v):
        """A value as a tile, or a number. It is not kept: what is loaded in a loop does not exist after it."""
        value = self.raw(v)
        return value.load() if isinstance(value, Rows | Shared) else value

    def set(self, equation: Equation, *results):
        self.values.update(zip(map(id, equation.outputs), results, strict=True))


def widen(value, dtype):
    """A value of a type, in float32 where that is half precision."""
    return jnp.asarray(value, jnp.float32 if _is_half(dtype) else dtype)


def as_tile(value, aval):
    """A number as the tile of an array."""
    value = widen(value, aval.dtype)
    return jnp.broadcast_to(value, tile_shape(aval.shape)) if value.ndim < aval.ndim else value


def compute(equation: Equation, tiles: Tiles):
    """The result of one equation."""
    if equation.name in RULES:
        return RULES[equation.name](equation, tiles)
    if equation.name not in ELEMENTWISE:
        raise Unsupported(f"knows no {equation.name}")
    return elementwise(equation, [tiles[v] for v in equation.inputs], tile_shape(equation.outputs[0].aval.shape))


def elementwise(equation: Equation, operands: list, shape: tuple[int, ...]):
    """Apply a primitive element by element to operands of a shape, or numbers."""
    types = [v.aval.dtype for v in equation.inputs]
    if equation.name == "bitcast_convert_type" and not isinstance(operands[0], jax.Array):
        return np.asarray(operands[0], types[0]).view(equation.params["new_dtype"])  # jax 0.12 lowers no number
    as_type = jnp.asarray if equation.name == "bitcast_convert_type" else widen
    operands = [jnp.broadcast_to(as_type(x, dtype), shape) for x, dtype in zip(operands, types, strict=True)]
    return equation.primitive.bind(*operands, **equation.params)


def _is_half(dtype) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and is_half(dtype)


def fill_beyond(x, shape, axes, value):
    """A tile of an array of `shape`, with `value` beyond the array along some axes."""
    mask = inside(shape, axes)
    return x if mask is None else jnp.where(mask, x, jnp.asarray(value, x.dtype))


# --- rules ------------------------------------------------------------------------------------------------------------


def _convert(equation, tiles):
    return widen(tiles[equation.inputs[0]], equation.params["new_dtype"])


def _broadcast(equation, tiles):
    x, dimensions = tiles[equation.inputs[0]], equation.params["broadcast_dimensions"]
    return lax.broadcast_in_dim(jnp.asarray(x), tile_shape(equation.params["shape"]), dimensions)


def _iota(equation, tiles):
    dtype, dimension = equation.params["dtype"], equation.params["dimension"]
    return lax.broadcasted_iota(dtype, tile_shape(equation.params["shape"]), dimension)


def _reshape(equation, tiles):
    shape, new_shape = equation.inputs[0].aval.shape, equation.outputs[0].aval.shape
    if [n for n in shape if n > 1] != [n for n in new_shape if n > 1]:
        raise Unsupported(f"does not reshape {list(shape)} to {list(new_shape)}")
    return jnp.reshape(tiles[equation.inputs[0]], tile_shape(new_shape))


def _reduce(equation, tiles):
    kind, axes, [v] = equation.name.removeprefix("reduce_"), equation.params["axes"], equation.inputs
    x, is_bool = widen(tiles[v], v.aval.dtype), v.aval.dtype == jnp.bool_
    x = x.astype(jnp.int32) if is_bool else x
    limits = jnp.iinfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.integer) else None
    highest, lowest = (limits.max, limits.min) if limits else (jnp.inf, -jnp.inf)
    reduction = {"sum": jnp.sum, "max": jnp.max, "or": jnp.max, "min": jnp.min, "and": jnp.min}[kind]
    x = fill_beyond(x, v.aval.shape, axes, {jnp.sum: 0, jnp.max: lowest, jnp.min: highest}[reduction])
    for axis in sorted(axes, reverse=True):
        x = jnp.reshape(x, x.shape[:axis] + x.shape[axis + 1 :]) if x.shape[axis] == 1 else reduction(x, axis=axis)
    return x > 0 if is_bool else x


def _round(equation, tiles):
    """Round to the nearest whole number, halves to the even one."""
    [v] = equation.inputs
    x = jnp.asarray(tiles[v])
    if equation.params["rounding_method"] != lax.RoundingMethod.TO_NEAREST_EVEN or _is_half(v.aval.dtype):
        raise Unsupported("rounds only float32, halves to even numbers")
    whole = jnp.floor(x)
    is_odd = whole - 2 * jnp.floor(whole / 2) == 1
    return whole + ((x - whole > 0.5) | ((x - whole == 0.5) & is_odd)).astype(x.dtype)


def _dot_general(equation, tiles):
    (over_a, over_b), (batch_a, batch_b) = equation.params["dimension_numbers"]
    sides = []  # (tile, true shape, axes to sum over) of both factors, without axes of one
    for v, over, batch in zip(equation.inputs, (over_a, over_b), (batch_a, batch_b)):
        shape = v.aval.shape
        keep = [axis for axis in range(len(shape)) if shape[axis] > 1]  # axes of one change nothing
        x = jnp.reshape(tiles[v], tile_shape([shape[axis] for axis in keep]))
        if any(axis in keep for axis in batch):
            raise Unsupported("multiplies no batches of matrices in a block")
        sides.append((x, tuple(shape[axis] for axis in keep), [keep.index(axis) for axis in over if axis in keep]))
    result, types = equation.outputs[0].aval, [v.aval.dtype for v in equation.inputs]
    # types differ in JAX's derivative of a product in half precision: the narrow one, as in FlashAttention
    factor_type = min(types, key=lambda dtype: dtype.itemsize)
    product = _product(*sides, factor_type, equation.params["precision"])
    return jnp.reshape(widen(product, result.dtype), tile_shape(result.shape))


def _product(left, right, factor_type, precision):
    """The product of two tiles (array, true shape, axes to sum over), without axes of one."""
    (a, shape_a, over_a), (b, shape_b, over_b) = left, right
    # a tile is larger than its array where that is no power of two: what is beyond adds 0 to the sum
    a, b = fill_beyond(a, shape_a, over_a, 0), fill_beyond(b, shape_b, over_b, 0)
    if a.ndim == b.ndim == 2 and len(over_a) == 1:  # [m, n] [n, p], after transposing what is summed over elsewhere
        a, b = a.T if over_a == [0] else a, b.T if over_b == [1] else b
        return dot(a.astype(factor_type), b.astype(factor_type), precision)
    a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    if not over_a and a.ndim + b.ndim <= 2:  # an outer product, or one with a number
        return a[:, None] * b[None, :] if a.ndim == b.ndim == 1 else a * b
    if len(over_a) == a.ndim == b.ndim and over_a == over_b:  # over all axes: a number
        return jnp.sum(a * b)
    if len(over_a) == 1 and (a.ndim, b.ndim) == (2, 1):  # a matrix and a vector, and the other way round
        return jnp.sum(a * (b[None, :] if over_a == [1] else b[:, None]), axis=over_a[0])
    if len(over_a) == 1 and (a.ndim, b.ndim) == (1, 2):
        return jnp.sum(b * (a[None, :] if over_b == [1] else a[:, None]), axis=over_b[0])
    raise Unsupported(f"multiplies no arrays {list(shape_a)} and {list(shape_b)} in this way")


def _slice(equation, tiles):
    shape, new_shape = equation.inputs[0].aval.shape, equation.outputs[0].aval.shape
    x, starts = tiles.raw(equation.inputs[0]), equation.params["start_indices"]
    if equation.params["strides"] not in (None, (1,) * len(shape)):
        raise Unsupported("slices no array in strides")
    if isinstance(x, Shared):
        return x.slice(starts, new_shape)
    x = tiles[equation.inputs[0]]
    for axis, (size, new_size) in enumerate(zip(shape, new_shape)):
        if new_size not in (1, size):
            raise Unsupported(f"does not slice {list(shape)} to {list(new_shape)}")
        if new_size != size:  # a tile has no slices: the sum over one entry
            is_entry = lax.broadcasted_iota(jnp.int32, x.shape, axis) == starts[axis]
            x = jnp.sum(jnp.where(is_entry, x, jnp.zeros_like(x)), axis=axis, keepdims=True)
    return x


def _pad(equation, tiles):
    """One entry of an axis among equal others, such as the zeros in the gradient of `_slice`."""
    v, padding = equation.inputs
    shape, new_shape = v.aval.shape, equation.outputs[0].aval.shape
    x, tile = tiles[v], tile_shape(new_shape)
    for axis, (low, high, interior) in enumerate(equation.params["padding_config"]):
        if not low and not high and not interior:
            continue
        if shape[axis] != 1 or not 0 <= low < new_shape[axis]:
            raise Unsupported(f"does not pad {list(shape)} to {list(new_shape)}")
        x = jnp.broadcast_to(x, x.shape[:axis] + tile[axis : axis + 1] + x.shape[axis + 1 :])
        x = jnp.where(lax.broadcasted_iota(jnp.int32, x.shape, axis) == low, x, jnp.asarray(tiles[padding], x.dtype))
    return x


def _dynamic_slice(equation, tiles):
    x, shape, sizes = tiles.raw(equation.inputs[0]), equation.inputs[0].aval.shape, equation.params["slice_sizes"]
    if not isinstance(x, Shared):
        raise Unsupported("slices no array that it has computed at a place that it computes")
    starts = [tiles[v] for v in equation.inputs[1:]]
    return x.slice([jnp.clip(i, 0, n - size) for i, n, size in zip(starts, shape, sizes)], sizes)


def _concatenate(equation, tiles):
    """Indices side by side, for `_gather`: they stay a tuple of tiles."""
    axis = equation.params["dimension"]
    if any(v.aval.shape[axis] != 1 for v in equation.inputs) or axis != equation.outputs[0].aval.ndim - 1:
        raise Unsupported("knows no concatenate")
    return tuple(jnp.reshape(tiles[v], tiles[v].shape[:-1]) for v in equation.inputs)


def _indices(v, tiles) -> tuple:
    indices = tiles.raw(v)
    return indices if isinstance(indices, tuple) else (jnp.reshape(tiles[v], tiles[v].shape[:-1]),)


def _gather(equation, tiles):
    numbers, shape = equation.params["dimension_numbers"], equation.inputs[0].aval.shape
    x, axes = tiles.raw(equation.inputs[0]), tuple(range(len(shape)))
    plain = numbers.collapsed_slice_dims == numbers.start_index_map == axes and not numbers.offset_dims
    if not isinstance(x, Shared) or not plain or equation.inputs[1].aval.shape[-1] != len(shape):
        raise Unsupported("reads by index only single numbers, of arrays that it is given")
    indices, dtype = _indices(equation.inputs[1], tiles), equation.outputs[0].aval.dtype
    mask = None  # [q, k], of the indices within the array
    if equation.params["mode"] == lax.GatherScatterMode.FILL_OR_DROP:
        for i, n in zip(indices, shape):
            mask = (i >= 0) & (i < n) if mask is None else mask & (i >= 0) & (i < n)
    fill = equation.params["fill_value"]
    if fill is None and mask is not None:
        fill = jnp.nan if jnp.issubdtype(dtype, jnp.floating) else _fill_of_integers(dtype)
    fill = None if mask is None else jnp.full(indices[0].shape, fill, x.ref.dtype)
    return x.at(tuple(jnp.clip(i, 0, n - 1) for i, n in zip(indices, shape)), mask, fill)


def _fill_of_integers(dtype):
    if dtype == jnp.bool_:
        return True
    return jnp.iinfo(dtype).min if jnp.issubdtype(dtype, jnp.signedinteger) else jnp.iinfo(dtype).max


def _scatter_add(equation, tiles):
    """The gradient of reading a short table by index: the sum of the updates of each entry."""
    shape, x = equation.inputs[0].aval.shape, tiles[equation.inputs[0]]
    numbers = equation.params["dimension_numbers"]
    if len(shape) > 1 or shape[0] > TABLE or numbers.update_window_dims or numbers.inserted_window_dims != (0,):
        raise Unsupported(f"has no gradient of a table of more than {TABLE} numbers that is read by index")
    [indices], updates = _indices(equation.inputs[1], tiles), tiles[equation.inputs[2]]
    if equation.params["mode"] != lax.GatherScatterMode.FILL_OR_DROP:
        indices = jnp.clip(indices, 0, shape[0] - 1)
    entries = lax.iota(jnp.int32, tile_shape(shape)[0])

    # a tile has no entries that could be added to: the loop sums over the updates of entry n, for each n
    def add(n, total):
        entry = jnp.where(indices == n, updates, jnp.zeros_like(updates))
        for _ in range(entry.ndim):
            entry = entry.sum(axis=-1)
        return jnp.where(entries == n, total + entry, total)

    return lax.fori_loop(0, shape[0], add, as_tile(x, equation.inputs[0].aval))


RULES = {
    "broadcast_in_dim": _broadcast, "concatenate": _concatenate, "convert_element_type": _convert,
    "dot_general": _dot_general, "dynamic_slice": _dynamic_slice, "gather": _gather, "iota": _iota, "pad": _pad,
    "reduce_and": _reduce, "reduce_max": _reduce, "reduce_min": _reduce, "reduce_or": _reduce, "reduce_sum": _reduce,
    "reshape": _reshape, "round": _round, "scatter-add": _scatter_add, "slice": _slice, "squeeze": _reshape,
    "transpose": lambda equation, tiles: lax.transpose(tiles[equation.inputs[0]], equation.params["permutation"]),
}  # fmt: skip
