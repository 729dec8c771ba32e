"""The forward pass of a generated kernel for TPUs, by Pallas' Mosaic back end: the softmax of any score without sums
over features, under masks and biases whose parameters are numbers. It has never run on a TPU: it is compared in JAX's
interpreter, and compiled for v5e.

The grid has an axis of blocks of queries and one of blocks of keys, which a core goes through in order: the sums of the
online softmax stay in its memory (VMEM) from one block of keys to the next. Each block is the arithmetic of XLA's
blocks, `softmax.add_keys`, traced once and evaluated on tiles (`tiles.py`). Lengths are padded to whole blocks, and the
mask hides the keys that were added. Gradients are those of blocks in XLA.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas

from attention_jax.ops.blockwise import softmax
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, tile_at
from attention_jax.ops.kernels.generated.block_step import Step, Unsupported
from attention_jax.ops.kernels.generated.features import evaluate, has_loops
from attention_jax.ops.kernels.generated.tiles import widen
from attention_jax.ops.kernels.generated.triton import tile_shape
from attention_jax.ops.masks import Both, Lengths
from attention_jax.ops.meshes import struct_like, vary_together
from attention_jax.ops.normalizer_kinds import Exponential

LANES = 128
"""Numbers of a row of TPU registers: blocks have multiples of it, as log-normalizers are stored in rows."""


class Operands(NamedTuple):
    """The inputs by where a block finds them."""

    rows: list  # [Q, ...] cut into blocks of queries: the queries, and what the bias sees of them
    columns: list  # [K, ...] cut into blocks of keys: keys and values
    numbers: list  # in scalar memory: of the rules and of the mask, and the position of the first query
    structure: jax.tree_util.PyTreeDef  # of (rules, mask, offset), whose leaves are the numbers


def forward(inputs: Inputs, blocks: Blocks):
    """((output [Q, V], log-normalizer [Q]), (), None), as `softmax.forward`. Raises `Unsupported`."""
    from jax.experimental.pallas import tpu  # slow to import, and needed on TPUs alone

    _check(inputs, blocks)
    (size_q, size_k), queries, width = blocks.kernel[:2], inputs.query.shape[0], inputs.value.shape[1]
    operands = _split(inputs, size_k)
    body = _body(operands, _trace(operands, size_q, size_k), size_q, size_k)
    rows, columns = ([_pad(x, n) for x in arrays] for arrays, n in zip(operands, (size_q, size_k)))
    numbers = [widen(x, jnp.int32 if x.dtype == bool else x.dtype).reshape(1, 1) for x in operands.numbers]
    arrays = vary_together([*rows, *columns, *numbers])
    of_rows = lambda x: pallas.BlockSpec((size_q, x.shape[1]), lambda i, j: (i, 0))
    of_columns = lambda x: pallas.BlockSpec((size_k, x.shape[1]), lambda i, j: (j, 0))
    of_number = pallas.BlockSpec((1, 1), lambda i, j: (0, 0), memory_space=tpu.SMEM)
    out = jax.ShapeDtypeStruct((len(rows[0]), columns[1].shape[1]), inputs.value.dtype)
    log = jax.ShapeDtypeStruct((1, len(rows[0])), jnp.float32)
    out, log = pallas.pallas_call(
        body,
        name="attend",
        grid=(len(rows[0]) // size_q, len(columns[0]) // size_k),
        in_specs=[*map(of_rows, rows), *map(of_columns, columns), *[of_number] * len(numbers)],
        out_specs=[of_rows(out), pallas.BlockSpec((1, size_q), lambda i, j: (0, i))],
        out_shape=[struct_like(x, arrays) for x in (out, log)],
        scratch_shapes=[tpu.VMEM((size_q, n), jnp.float32) for n in (1, 1, out.shape[1])],  # m, l, sum of exp(S - m) v
        compiler_params=tpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
        interpret=blocks.kernel.interpret,
    )(*arrays)
    return (out[:queries, :width], log[0, :queries]), (), None


def _split(inputs: Inputs, size_k: int) -> Operands:
    mask, keys = inputs.mask, inputs.key.shape[0]
    if keys % size_k:
        mask = Lengths(jnp.int32(keys)) if mask is None else Both(mask, Lengths(jnp.int32(keys)))
    leaves, structure = jax.tree.flatten((inputs.rules, mask, inputs.offset))
    numbers = list(map(jnp.asarray, leaves))
    if arrays := [list(x.shape) for x in numbers if x.ndim]:
        raise Unsupported(f"takes numbers as parameters on a TPU, no arrays {arrays[0]}")
    rows = [x for x in (inputs.query, inputs.bias_query) if x is not None]
    return Operands(rows, [inputs.key, inputs.value], numbers, structure)


def _start(queries: int, width: int) -> softmax.Running:
    return softmax.start_rows(queries, width, jnp.float32, False)


def _trace(operands: Operands, size_q: int, size_k: int) -> Step:
    """The step (rows, columns, numbers, first query, first key, running) -> running."""

    def add_keys(rows, columns, numbers, first_query, first_key, running):
        rules, mask, offset = operands.structure.unflatten(numbers)
        block = Inputs(rules, rows[0], *columns, rows[1] if len(rows) > 1 else None, mask, None, offset)
        tile = tile_at(block, first_query, first_key, None if mask is None else first_key)
        return softmax.add_keys(tile, running)

    block_of = lambda arrays, size: [jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype) for x in arrays]
    tiles, number = (block_of(operands.rows, size_q), block_of(operands.columns, size_k)), jnp.int32(0)
    running = jax.eval_shape(lambda: _start(size_q, operands.columns[1].shape[1]))
    step = Step(add_keys, *tiles, operands.numbers, number, number, running)
    if step.constants or has_loops(step):
        raise Unsupported("sums over no features and closes over no arrays on a TPU")
    return step


def _body(operands: Operands, step: Step, size_q: int, size_k: int) -> Callable:
    """The kernel, of references to the operands, to the output and its log-normalizers, and to m, l and the sum of
    exp(S - m) v."""
    num_arrays, num_numbers = len(operands.rows) + len(operands.columns), len(operands.numbers)

    def kernel(*refs):
        arrays, numbers = refs[:num_arrays], [ref[0, 0] for ref in refs[num_arrays:][:num_numbers]]
        out, log, largest, total, pooled = refs[num_arrays + num_numbers :]
        i, j = pallas.program_id(0), pallas.program_id(1)

        def write(running):  # m [q] and l [q] as columns [q, 1]
            largest[...], total[...], pooled[...] = running.largest[:, None], running.total[:, None], running.pooled

        read = lambda: softmax.Running(largest[...][:, 0], total[...][:, 0], pooled[...], None)
        pallas.when(j == 0)(lambda: write(_start(*pooled.shape)))

        @pallas.when(_is_needed(operands.structure.unflatten(numbers), i * size_q, size_q, j * size_k, size_k))
        def _():
            tiles = [ref[...] for ref in arrays]
            write(evaluate(step, [], tiles, numbers, i * size_q, j * size_k, jax.tree.leaves(read())))

        @pallas.when(j == pallas.num_programs(1) - 1)
        def _():
            rows, row_log, _ = softmax.finish_rows(read())
            out[...], log[...] = rows.astype(out.dtype), row_log[None, :]

    return kernel


def _check(inputs, blocks):
    (size_q, size_k), (queries, keys) = blocks.kernel[:2], (inputs.query.shape[0], inputs.key.shape[0])
    reasons = {
        "computes the softmax of one pass on a TPU": not isinstance(inputs.rules[2], Exponential)
        or any(x is not None for x in (inputs.terms, inputs.dropout, inputs.cut))
        or blocks.keep_statistics,
        f"has blocks of multiples of {LANES} on a TPU, got {size_q} x {size_k}": size_q % LANES or size_k % LANES,
        f"has blocks of {size_q} x {size_k} on a TPU, got {queries} x {keys} pairs": queries < size_q or keys < size_k,
    }
    for reason, applies in reasons.items():
        if applies:
            raise Unsupported(reason)


def _is_needed(numbers, first_query, queries: int, first_key, keys: int):
    """Whether any query of a block may attend to a key of a block."""
    _, mask, offset = numbers
    if mask is None:
        return first_key >= 0
    low, high = mask.key_range(offset + first_query, offset + first_query + queries - 1)
    return (low < first_key + keys) & (high > first_key)


def _pad(x, rows: int):
    """An array with zeros up to a multiple of `rows`, and up to the width of a tile."""
    return jnp.pad(x, ((0, -len(x) % rows), (0, tile_shape(x.shape)[1] - x.shape[1])))
