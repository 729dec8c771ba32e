"""The language of the generated kernels: loads, stores, products and launches by Pallas' Triton back end.

Everything that depends on this language is here. JAX has deprecated it since 0.11: where it is gone, `missing` says so
and `attend` computes by blocks in XLA.

The rows of a tile are a power of two, of which all exist: the last block begins early where its size does not divide
the length. Its features are padded to a power of two, of at least 16, which is what matrix units multiply; what is
beyond the true number is zero after a load, and never stored.
"""

import functools
import math
import warnings
from collections.abc import Callable
from types import SimpleNamespace

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.kernels.generated.block_step import Equation
from attention_jax.ops.meshes import struct_like, vary_together

# jax warns when it imports this language, traces a kernel and lowers it, which is long after `launch`
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)
try:
    from jax.experimental import pallas
    from jax.experimental.pallas import triton
except ImportError:
    pallas = triton = None


def missing() -> str | None:
    """Return why this JAX cannot generate kernels; None if it can."""
    return None if triton is not None else "needs the Triton language of jax.experimental.pallas, which this JAX lacks"


def tile_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the tile that holds an array: powers of two of at least 16, or 1.

    >>> tile_shape((64, 1, 24)), tile_shape((3,)), tile_shape(())
    ((64, 1, 32), (16,), ())
    """
    return tuple(1 if n == 1 else max(16, 1 << (n - 1).bit_length()) for n in shape)


def inside(shape: tuple[int, ...], axes=None) -> jax.Array | None:
    """Which elements of a tile belong to an array of `shape`, along some axes; None if all do."""
    tile, masks = tile_shape(shape), []
    for axis in range(len(shape)) if axes is None else axes:
        if tile[axis] != shape[axis]:
            masks.append(lax.broadcasted_iota(jnp.int32, tile, axis) < shape[axis])
    return functools.reduce(jnp.logical_and, masks) if masks else None


def span(start, count: int):
    """The indices from `start` on."""
    return pallas.ds(jnp.asarray(start, jnp.int32), count)


class Shared:
    """An array that every program of the grid sees whole, such as a parameter."""

    def __init__(self, ref, shape: tuple[int, ...]):
        self.ref, self.shape = ref, shape

    def load(self) -> jax.Array:
        """The array as a tile."""
        return self.ref[0] if not self.shape else self.slice((0,) * len(self.shape), self.shape)

    def slice(self, starts: tuple, sizes: tuple[int, ...]) -> jax.Array:
        """A slice of the array as a tile."""
        place = tuple(span(start, n) for start, n in zip(starts, tile_shape(sizes)))
        return _load(self.ref, place, inside(sizes))

    def at(self, indices: tuple[jax.Array, ...], mask, fill) -> jax.Array:
        """The elements at indices, which are tiles of one shape; `fill` where `mask` is False."""
        return triton.load(self.ref.at[indices], mask=mask, other=fill)


class Rows:
    """`count` rows of an array [N, ...] from row `first`; `transposed` is its transpose, where that is used."""

    def __init__(self, ref, first, count: int, shape: tuple[int, ...], transposed=None):
        self.ref, self.first, self.count, self.transposed = ref, first, count, transposed
        self.shape, self.tile = (count, *shape[1:]), None

    def load_once(self) -> "Rows":
        """These rows, loaded before a loop that needs them in every turn."""
        self.tile = self.load()
        return self

    def load(self) -> jax.Array:
        """The rows as a tile."""
        return self.tile if self.tile is not None else _load(self.ref, self._place(), inside(self.shape))

    def column(self, feature) -> jax.Array:
        """One feature of the rows [count]."""
        return triton.load(self.transposed.at[feature, span(self.first, self.count)])

    def store(self, tile: jax.Array, first_new=None):
        """Write a tile; with `first_new` only the rows from that row of the array on, the others being another
        program's."""
        mask = inside(self.shape)
        if first_new is not None:
            new = self.first + lax.broadcasted_iota(jnp.int32, tile_shape(self.shape), 0) >= first_new
            mask = new if mask is None else mask & new
        triton.store(self.ref.at[self._place()], tile.astype(self.ref.dtype), mask=mask)

    def _place(self):
        return (span(self.first, self.count), *(span(0, n) for n in tile_shape(self.shape[1:])))


def store_entry(ref, index, shape: tuple[int, ...], tile: jax.Array):
    """Write a tile as entry `index` of an array [N, *shape]."""
    if not shape:
        ref[index] = tile
        return
    place = (index, *(span(0, n) for n in tile_shape(shape)))
    triton.store(ref.at[place], tile, mask=inside(shape))


def store_slice(ref, starts: tuple, tile: jax.Array, first_new: tuple):
    """Write a tile at `starts` of a matrix, but for the rows and columns before those of `first_new`, which count
    from the tile's first."""
    is_new = [lax.broadcasted_iota(jnp.int32, tile.shape, axis) >= first for axis, first in enumerate(first_new)]
    place = tuple(span(start, n) for start, n in zip(starts, tile.shape, strict=True))
    triton.store(ref.at[place], tile.astype(ref.dtype), mask=is_new[0] & is_new[1])


def _load(ref, place, mask):
    return triton.load(ref.at[place], mask=mask, other=None if mask is None else jnp.zeros((), ref.dtype))


def _unary(instruction: str, x: jax.Array) -> jax.Array:
    call = {"constraints": "=f,f", "pack": 1, "result_shape_dtypes": [jax.ShapeDtypeStruct(x.shape, x.dtype)]}
    return triton.elementwise_inline_asm(f"{instruction}.approx.ftz.f32 $0, $1;", args=[x], **call)[0]


INSTRUCTIONS = {
    # 2^(x log2 e), as CUDA's __expf: a relative error of 2 + 1.2 |x| units in the last place
    "exp": lambda x: _unary("ex2", x * math.log2(math.e)),
    # tanh x = 1 - 2 / (1 + e^(2x)), with an absolute error of 2e-7
    "tanh": lambda x: 1.0 - 2.0 * _unary("rcp", 1.0 + _unary("ex2", x * (2.0 * math.log2(math.e)))),
}
"""Functions that a card's unit for them computes in few instructions; the library's have 8 and 20."""


def as_instructions(equation: Equation) -> Equation:
    """An equation as a card computes it fastest, which JAX's interpreter does not know: `INSTRUCTIONS`, and products of
    float32 at the highest precision as three of TF32, on tensor cores."""
    if equation.name in INSTRUCTIONS and equation.outputs[0].aval.dtype.itemsize <= 4:
        function, bind = INSTRUCTIONS[equation.name], equation.primitive.bind
        of_tiles = lambda x, **params: function(x) if x.ndim else bind(x, **params)
        return equation._replace(primitive=SimpleNamespace(name=equation.name, bind=of_tiles))
    if equation.name == "dot_general" and equation.params["precision"] == (lax.Precision.HIGHEST,) * 2:
        three_products = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
        return equation._replace(params=equation.params | {"precision": three_products})
    return equation


def dot(a: jax.Array, b: jax.Array, precision) -> jax.Array:
    """The product of two tiles of one type, summed in float32."""
    precision = precision if a.dtype == jnp.float32 else None
    return lax.dot_general(a, b, (((1,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32)


program = lambda: pallas.program_id(0)


def launch(body: Callable, name: str, programs: int, outputs, operands, warps: int, stages: int, interpret: bool):
    """Run `body(operands, outputs)` in a grid of programs, with references in the place of arrays: pytrees of arrays
    and of `jax.ShapeDtypeStruct`s. A number is a reference to an array of one."""
    like, structure = jax.tree.flatten(outputs)
    arrays, operand_structure = jax.tree.flatten(operands)
    # of strong types: as a reference, a Python number's weak one reaches literals, which the language then mistypes
    arrays = vary_together([jnp.asarray(x, jnp.result_type(x)).reshape(jnp.shape(x) or 1) for x in arrays])
    like = [struct_like(x, arrays) for x in like]

    def kernel(*refs):
        body(operand_structure.unflatten(refs[: len(arrays)]), structure.unflatten(refs[len(arrays) :]))

    results = pallas.pallas_call(
        kernel,
        name=name,
        grid=(programs,),
        in_specs=[pallas.no_block_spec] * len(arrays),
        out_specs=[pallas.no_block_spec] * len(like),
        out_shape=like,
        interpret=interpret,
        compiler_params=None if interpret else triton.CompilerParams(num_warps=warps, num_stages=stages),
    )(*arrays)
    return structure.unflatten(results)
