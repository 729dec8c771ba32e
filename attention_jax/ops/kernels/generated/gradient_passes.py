"""The gradient of a generated kernel, in two passes: for queries, and for keys, values and parameters.

The arithmetic of a block is that of the blocks in XLA, `softmax.pull_tile` and `local.pull_tile` of `ops/blockwise`.
Each program of the second pass, which has a block of keys, writes its own sums of the parameters' gradients, and XLA
adds these: the result does not depend on the order of programs.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise import local, softmax
from attention_jax.ops.blockwise.score_blocks import Blocks, Gradients, Inputs, partition
from attention_jax.ops.kernels.generated.block_step import Unsupported
from attention_jax.ops.kernels.generated.triton import store_entry, store_slice
from attention_jax.ops.kernels.generated.walk import LEAST, Walk, add, lengthen, struct, with_enough_rows, zeros
from attention_jax.ops.normalizer_kinds import Exponential

LARGEST_LEAF = 4096
"""Numbers of a parameter up to which each program holds its sum of the gradient in registers."""


@partial(jax.jit, static_argnames=("blocks", "moving"), inline=True)
def backward(inputs: Inputs, blocks: Blocks, outputs, saved, bars, moving: tuple[int, ...]) -> Gradients:
    """The cotangents of the inputs from those of the outputs, as `softmax.backward` and `local.backward` return them.
    Of the floating leaves of the rules only those at the places `moving` have one, the others zero. Raises
    `Unsupported`."""
    if blocks.kernel.is_for_tpu:
        raise Unsupported("has no gradient on a TPU")
    normalizer, (queries, keys) = inputs.rules[2], (inputs.query.shape[0], inputs.key.shape[0])
    outputs, saved = lengthen((outputs, saved), LEAST)
    bars = jax.tree.map(lambda x: jnp.pad(x, ((0, max(0, LEAST - queries)),) + ((0, 0),) * (x.ndim - 1)), bars)
    if isinstance(normalizer, Exponential):
        top, residuals = None, (outputs[1], softmax.delta_of(outputs, bars))
        pull = lambda block, row_bar, log, delta: softmax.pull_tile(block.tile, row_bar, log, delta)
    else:
        top, residuals = saved.top, (saved.shift, saved.scale, local.delta_of(normalizer, outputs, saved, bars))
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
    like = walk.rows.query, walk.rows.bias_query

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
    (key, value, _), leaves = walk.keys, partition(walk.shared.rules)[0]
    moving = [n for n in moving if n < len(leaves)]
    large = [n for n in moving if any(leaves[n] is x for x in walk.pairs)]
    small = [n for n in moving if n not in large]
    if any(leaves[n].size > LARGEST_LEAF for n in small):
        raise Unsupported(f"has no gradient of parameters of more than {LARGEST_LEAF:,} numbers")

    def step(block, carry):
        (rules_bar, _, key_bar, _), value_bar = pull(block, *block.residuals)
        return add(carry, (key_bar, value_bar, [rules_bar[n] for n in small])), [rules_bar[n] for n in large]

    of_keys = [struct(walk.block[1], *x.shape[1:]) for x in (key, value)]
    rows = (*of_keys, [struct(*leaves[n].shape) for n in small])
    walk.trace("keys", step, rows, over_queries=True)
    like = [struct(*x.shape, dtype=x.dtype) for x in (key, value)]
    partial_sums = [struct(walk.programs[1], *leaves[n].shape) for n in small]
    arrays = [struct(*leaves[n].shape) for n in large]

    def body(refs, outputs, j):
        def store(i, tiles):  # block (i, j) of the gradient of each array [Q, K], which no other program writes
            starts = walk.first(0, i), walk.first(1, j)
            first_new = [index * size - start for index, size, start in zip((i, j), walk.block, starts)]
            for ref, tile in zip(outputs[2], tiles, strict=True):
                store_slice(ref, starts, tile, first_new)

        def store_zeros(i, _):
            store(i, [jnp.zeros(walk.block, jnp.float32)] * len(large))

        if large and refs["ranges"]:  # blocks that the mask forbids are not visited: their gradient is zero
            first, _, _, stop = (bound[j] for bound in refs["ranges"])
            lax.fori_loop(0, first, store_zeros, None)
            lax.fori_loop(stop, walk.programs[0], store_zeros, None)
        key_bar, value_bar, sums = walk.over_queries(refs, "keys", j, zeros(rows), store)
        walk.write(outputs[0], like, 1, j, [key_bar, value_bar])
        for ref, tile, n in zip(outputs[1], sums, small):
            store_entry(ref, j, leaves[n].shape, tile)

    results = walk.launch("key_gradient", body, 1, (like, partial_sums, arrays))
    # dK [K, E], dV [K, V]; the sums of each program [programs, ...] are added up here
    (key_bar, value_bar), sums, updates = results
    rules_bar = [jnp.zeros(x.shape, jnp.float32) for x in leaves]
    for n, x in zip(small + large, [x.sum(axis=0) for x in sums] + updates):
        rules_bar[n] = x
    return key_bar, value_bar, rules_bar
