"""The forward pass of a generated kernel: each program has a block of queries and goes through the keys.

The arithmetic of a block is that of the blocks in XLA, `softmax.add_keys` and `local.totals_of` of `ops/blockwise`: it
is traced (`block_step.py`) and evaluated on tiles (`features.py`, `tiles.py`) in the loops of `walk.py`.
"""

from functools import partial

import jax
import jax.numpy as jnp

from attention_jax.ops.blockwise import local, softmax
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, Statistics
from attention_jax.ops.kernels.generated import tpu
from attention_jax.ops.kernels.generated.block_step import Step, Unsupported
from attention_jax.ops.kernels.generated.features import evaluate
from attention_jax.ops.kernels.generated.triton import Shared, tile_shape
from attention_jax.ops.kernels.generated.walk import Walk, add, struct, with_enough_rows
from attention_jax.ops.normalizer_kinds import Exponential, Local, Sums, Threshold, find_threshold, has_factor, sums_of


@partial(jax.jit, static_argnames="blocks", inline=True)
def forward(inputs: Inputs, blocks: Blocks):
    """((output [Q, V], log-normalizer [Q] or None), residuals, `Statistics` or None), as `softmax.forward` and
    `local.forward` of `ops/blockwise` return them. Raises `Unsupported`."""
    if blocks.kernel.is_for_tpu:
        return tpu.forward(inputs, blocks)
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
    start = lambda width: softmax.start_rows(walk.block[0], width, jnp.float32, blocks.keep_statistics)
    walk.trace(
        "add", lambda block, running: softmax.add_keys(block.tile, running), jax.eval_shape(lambda: start(width))
    )
    vector = struct(queries)
    statistics = Statistics(vector, vector) if blocks.keep_statistics else None
    like = struct(queries, width, dtype=inputs.value.dtype), vector, statistics

    def body(refs, outputs, i):
        running = walk.over_keys(refs, "add", i, start(tile_shape((width,))[0]))
        walk.write(outputs, like, 0, i, softmax.finish_rows(running))

    out, log, statistics = walk.launch("attend", body, 0, like)
    return (out, log), (), statistics


def _forward_local(inputs, blocks):
    queries, width, dtype = inputs.query.shape[0], inputs.value.shape[1], inputs.value.dtype
    normalizer = inputs.rules[2]
    has_threshold, keep_count = isinstance(normalizer, Threshold), has_factor(normalizer)
    # the largest score and the shift of a query are known only in the kernel, which gives them to the steps
    unknown = jnp.zeros((queries,), jnp.float32)
    walk = Walk(inputs, blocks.kernel, unknown if has_threshold else None, (unknown,))
    size = walk.block[0]
    start = lambda width: local.start_totals(normalizer, size, width, jnp.float32, blocks.keep_statistics)
    increment = lambda block: local.totals_of(block.tile, block.rules[2], *block.residuals, blocks.keep_statistics)[0]
    walk.trace("totals", lambda block, totals: add(totals, increment(block)), jax.eval_shape(lambda: start(width)))
    scores_of = lambda block: block.tile.scores(*block.tile.operands).astype(jnp.float32)
    if normalizer.rescales:
        walk.trace("top", lambda block, top: local.raise_top(top, scores_of(block)), struct(size))
    if has_threshold:
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
    statistics = Statistics(None, vector) if blocks.keep_statistics else None
    like = struct(queries, width, dtype=dtype), saved, statistics, vector if has_threshold else None
    leaves, structure = jax.tree.flatten(inputs.rules)

    def body(refs, outputs, i):
        loaded = [Shared(ref, x.shape).load() for ref, x in zip(refs["shared"], leaves)]  # rules are the first
        normalizer, zero, top = structure.unflatten(loaded)[2], jnp.zeros((size,), jnp.float32), None
        shift = walk.over_keys(refs, "top", i, zero, residuals=(zero,)) if normalizer.rescales else zero
        if has_threshold:
            extent = zero + jnp.inf, zero, zero - jnp.inf
            smallest, count, top = walk.over_keys(refs, "extent", i, extent, top=zero, residuals=(zero,))
            sums = lambda shift, _: walk.over_keys(refs, "sums", i, Sums(zero, zero), top=top, residuals=(shift,))
            extent = evaluate(relative_extent, [], smallest, top, count)
            all_done = lambda is_done: jnp.min(is_done.astype(jnp.int32)) > 0
            shift = find_threshold(normalizer, sums, *extent, jnp.maximum(count, 1), all_done)
        totals = walk.over_keys(refs, "totals", i, start(tile_shape((width,))[0]), top=top, residuals=(shift,))
        results = local.finish_rows(normalizer, totals, totals.count, shift, keep_count)
        walk.write(outputs, like, 0, i, (*results, top))

    out, saved, statistics, top = walk.launch("attend", body, 0, like)
    return (out, None), saved._replace(top=top), statistics


def _extend(extent, scores):
    (smallest, count, largest), (new_smallest, new_count, top) = extent, local.extent_of(scores)
    return jnp.minimum(smallest, new_smallest), count + new_count.astype(count.dtype), jnp.maximum(largest, top)


def _sums(block, scores):
    return sums_of(block.rules[2], scores, scores != -jnp.inf, *block.residuals)
