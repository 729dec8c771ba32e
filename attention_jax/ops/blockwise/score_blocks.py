"""Blocks of the matrix of scores: which of them a call needs, and the scores of one, for any score, bias and mask.

`ops/blockwise/softmax.py` (softmax), `ops/blockwise/local.py` and `ops/blockwise/ordered.py` (other normalizers) are
built from these functions. A mask gives for each block of queries the range of keys that it needs, and the range in
which the mask need not be evaluated (`Mask.key_range`, `Mask.unmasked_range`). Where lengths differ between vmapped
examples, every block that ANY of them needs is computed.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from attention_jax.errors import InputError
from attention_jax.ops.dropout import dropout_factor
from attention_jax.ops.masks import AssumeFinite, is_broadcastable
from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.normalizer_kinds import relative_to
from attention_jax.ops.positions import as_positions
from attention_jax.ops.precision import accumulator, matmul_transposed, widest
from attention_jax.ops.trees import name_of


class KernelBlocks(NamedTuple):
    """The blocks of a generated kernel (ops/kernels/generated): powers of two."""

    query: int = 64
    key: int = 64
    warps: int = 4
    """Of 32 threads each, which share the work on a block."""
    feature_warps: int = 8
    """The same in loops over features."""
    stages: int = 2
    """Blocks that are loaded ahead."""
    interpret: bool = False
    """Whether JAX computes the kernel, on a CPU."""
    is_for_tpu: bool = False
    """By Pallas' Mosaic back end, which takes blocks alone; else for a GPU, by its Triton back end."""


class Blocks(NamedTuple):
    """Static block sizes: the numbers of queries and keys that are processed at a time."""

    query: int
    key: int
    recompute_scores: bool = False
    """Scores are computed once for their largest and once more for the weights, so that they are never written."""
    keep_statistics: bool = False
    """The forward pass also returns `Statistics`."""
    round_rows: bool = False
    """Gradients of queries, each complete after one block of them, are returned in the type of the queries."""
    pairs: int | None = None
    """The most pairs in the blocks of all examples that are vmapped together; None if blocks stay as they are."""
    cell: tuple[int, int] | None = None
    """Queries and keys of the smallest block of any platform and batch; None if blocks stay as they are."""
    kernel: KernelBlocks | None = None
    """The blocks of a generated kernel, which computes what it can; None for blocks in XLA alone."""

    def shrink_for_batch(self, examples: int) -> "Blocks":
        """The blocks of each of `examples` that are computed together: halved until they fit, down to one cell.

        >>> tuple(Blocks(1000, 512, pairs=2**20, cell=(64, 64)).shrink_for_batch(100)[:2])
        (128, 64)
        """
        size, least = [self.query, self.key], self.cell or (1, 1)  # the longer side is halved first
        while self.pairs and examples * size[0] * size[1] > self.pairs and (size[0] > least[0] or size[1] > least[1]):
            axis = 0 if size[1] <= least[1] or (size[0] > size[1] and size[0] > least[0]) else 1
            size[axis] = 2 ** ((size[axis] - 1).bit_length() - 1)  # the next power of two below
        return self._replace(query=size[0], key=size[1], pairs=None)


class Inputs(NamedTuple):
    """The traced inputs of an attention call."""

    rules: tuple  # (score, bias or None, normalizer): callable pytrees
    query: jax.Array  # [Q, D] what the score sees
    key: jax.Array  # [K, E]
    value: jax.Array  # [K, V]
    bias_query: jax.Array | None  # [Q, F] what the bias sees
    mask: object  # Mask or None
    dropout: tuple | None  # random words [Q], [K] and the rate []
    offset: jax.Array | int  # position of the first query
    cut: jax.Array | None = None  # [Q] scores below it are as good as masked
    top: jax.Array | None = None  # [Q] the largest scores; a `Threshold` sees scores relative to them
    terms: object = None  # `Terms` of ops/pooling.py, with leaves [Q, ...]: what is pooled instead of the values


class Gradients(NamedTuple):
    """Accumulated in float32 at least, in the order in which the leaves of `Inputs` are flattened."""

    rules: list  # of the floating leaves of score, bias and normalizer
    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias_query: jax.Array | None


class Statistics(NamedTuple):
    """What `attend` returns beside its outputs with `return_statistics`; it has no derivative."""

    largest: jax.Array | None
    """[Q], the largest score + bias over the keys that each query may attend to, -inf where there are none; None for
    other normalizers than the softmax."""
    entropy: jax.Array
    """[Q], -sum_j p_j log p_j in nats, of the weights before dropout, divided by their sum; 0 for a query without a
    key, and NaN where a weight is negative."""


# --- leaves with and without gradients --------------------------------------------------------------------------------


class Combine(NamedTuple):
    """Recombines the floating-point and the other leaves of a pytree. Hashable, so that it can be static."""

    structure: jax.tree_util.PyTreeDef
    is_float: tuple[bool, ...]

    def __call__(self, floats, non_floats):
        floats, non_floats = iter(floats), iter(non_floats)
        return jax.tree.unflatten(self.structure, [next(floats if f else non_floats) for f in self.is_float])


def partition(tree) -> tuple[list, list, Combine]:
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    is_float = tuple(jnp.issubdtype(leaf.dtype, jnp.inexact) for leaf in leaves)
    floats = [leaf for leaf, f in zip(leaves, is_float) if f]
    return floats, [leaf for leaf, f in zip(leaves, is_float) if not f], Combine(structure, is_float)


# --- one block --------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Which part of the matrix of scores `scores_of` computes, and what it needs there that has no gradient."""

    combine: Combine  # of the floating leaves of (score, bias, normalizer) with
    non_floats: list  # the other leaves
    query_positions: jax.Array  # [q]
    key_positions: jax.Array  # [k]
    allowed: jax.Array | None = None  # [q, k]
    cut: jax.Array | None = None  # [q]
    top: jax.Array | None = None  # [q]


def scores_of(place: Place, rules, query, key, bias_query):
    """Compute score + bias, [q, k], in float32 at least; -inf where forbidden."""
    score, bias, _ = place.combine(rules, place.non_floats)
    scores = widen_scores(score, score(query, key), query, key)
    if bias is not None:
        scores = add_bias(scores, bias, bias(bias_query, place.query_positions, place.key_positions))
    # the cut of `TopK` was found among scores as they are, so that it is applied before they are relative to another
    if place.cut is not None:
        scores = jnp.where(scores < place.cut[:, None].astype(scores.dtype), -jnp.inf, scores)  # NaN stays
    if place.top is not None:
        scores = relative_to(place.top.astype(scores.dtype), scores)
    return scores if place.allowed is None else jnp.where(place.allowed, scores, -jnp.inf)


def widen_scores(score, scores, query, key):
    """The `scores` of a score in float32 at least; InputError if they are complex, or not [Q, K], as [K] would
    broadcast without notice."""
    expected_shape = query.shape[0], key.shape[0]
    if getattr(scores, "shape", None) != expected_shape:
        raise InputError(
            f"the score {name_of(score)} must return logits [Q, K] = {list(expected_shape)} for query "
            f"{list(query.shape)} and key {list(key.shape)}, got {_describe_shape(scores)}"
        )
    _check_real("score", score, scores)
    scores = scores.astype(accumulator(scores.dtype))
    return vary_like(scores, query)  # a constant score does not vary over devices


def add_bias(scores, bias, bias_logits):
    """scores + the logits of a bias; InputError if these are complex or do not broadcast to [Q, K]."""
    if not hasattr(bias_logits, "shape") or not is_broadcastable(bias_logits.shape, scores.shape):
        raise InputError(
            f"the bias {name_of(bias)} must return an array that broadcasts to [Q, K] = {list(scores.shape)}, "
            f"got {_describe_shape(bias_logits)}"
        )
    _check_real("bias", bias, bias_logits)
    return scores + bias_logits.astype(scores.dtype)


def _check_real(kind, rule, logits):
    """Raise InputError for complex logits, which have no order, so no largest one."""
    if jnp.issubdtype(logits.dtype, jnp.complexfloating):
        raise InputError(
            f"the {kind} {name_of(rule)} must return real logits, got {logits.dtype}: take .real or jnp.abs of them"
        )


def _describe_shape(value):
    return list(value.shape) if hasattr(value, "shape") else f"a {type(value).__name__}"


class Tile(NamedTuple):
    """Block (i, j) of the matrix of scores: `scores(*operands)` is [q, k], -inf where forbidden."""

    scores: Callable
    operands: tuple
    value: jax.Array
    dropout: jax.Array | None
    terms: object


def tile_of(inputs, blocks, i, j, masked):
    """Block (i, j) of the matrix of scores; `masked` says that some of its pairs may not be allowed."""
    first_query = start_of(i, blocks.query, inputs.query.shape[0])
    first_key = start_of(j, blocks.key, inputs.key.shape[0])
    # rows q of block i and k of block j; rules, mask and dropout rate are whole, as functions of the positions
    of_queries = lambda x: jax.tree.map(lambda x: rows_of(x, i, blocks.query), x)
    of_keys = lambda x: rows_of(x, j, blocks.key)
    query_words, key_words, rate = (None, None, None) if inputs.dropout is None else inputs.dropout
    block = inputs._replace(
        query=of_queries(inputs.query),
        key=of_keys(inputs.key),
        value=of_keys(inputs.value),
        bias_query=of_queries(inputs.bias_query),
        dropout=None if inputs.dropout is None else (of_queries(query_words), of_keys(key_words), rate),
        cut=of_queries(inputs.cut),
        top=of_queries(inputs.top),
        terms=of_queries(inputs.terms),
    )
    return tile_at(block, first_query, first_key, j * blocks.key if masked else None)


def tile_at(block: Inputs, first_query, first_key, first_new_key=None, first_new_query=None) -> Tile:
    """The tile of a block of queries and a block of keys, `Inputs` with their rows alone, which are the rows from
    `first_query` and `first_key` of the call. With `first_new_key` the mask applies, and hides the keys before it,
    which the block before has counted: the last block begins early where its size does not divide the length. So it
    hides queries where their sums are over queries, with `first_new_query`."""
    rules, non_floats, combine = partition(block.rules)
    size = block.query.shape[0], block.key.shape[0]
    key_positions = first_key + jnp.arange(size[1])
    query_positions = block.offset + first_query + jnp.arange(size[0])
    allowed = None
    if first_new_key is not None:
        allowed = jnp.broadcast_to((key_positions >= first_new_key)[None, :], size)  # [q, k]
        if first_new_query is not None:
            allowed = allowed & (first_query + jnp.arange(size[0]) >= first_new_query)[:, None]
        allowed = allowed if block.mask is None else allowed & block.mask(query_positions, key_positions)
    place = Place(combine, non_floats, query_positions, key_positions, allowed, block.cut, block.top)
    dropout = None if block.dropout is None else dropout_factor(*block.dropout)
    operands = (rules, block.query, block.key, block.bias_query)
    return Tile(partial(scores_of, place), operands, block.value, dropout, block.terms)


def matmul(a, b):
    return jnp.matmul(a, b, preferred_element_type=accumulator(a.dtype))


def precision_of(inputs):
    """Return the type of scores, weights and sums: float64 if a query, key or value has it, else float32."""
    return accumulator(widest(inputs.query, inputs.key, inputs.value))


def pool(weights, tile):
    """Pool the values of a tile with `weights` [q, k], after dropout: [q, V]. The weights are not divided by their sum
    yet, and may be outside of the range of float16."""
    if tile.dropout is not None:
        weights = weights * tile.dropout.astype(weights.dtype)
    if tile.terms is not None:
        return pool_terms(weights, tile.value, tile.terms)
    pool_dtype = weights.dtype if tile.value.dtype in (jnp.float16, jnp.float32) else tile.value.dtype
    return matmul(weights.astype(pool_dtype), tile.value.astype(pool_dtype)).astype(weights.dtype)


def pool_terms(weights, value, terms):
    """Pool values [k, V] as `terms` of each query say, with `weights` [q, k]: [q, S]. Some queries at a time, whose
    differences from the values are in memory together."""
    dtype = weights.dtype
    value, terms = jax.tree.map(lambda x: x.astype(dtype), (value, terms))
    # for one query: its terms and weights [k] to S sums; the differences [k, V] are computed again for the gradient
    row = jax.checkpoint(lambda terms_and_weights: terms_and_weights[0](terms_and_weights[1], value))
    return in_rows(row, (terms, weights), value.size)


def in_rows(row, each, size):
    """Map `row` over the leading axis of `each`, some rows at a time, each of which needs `size` numbers of memory; all
    together where the length is left open by `jax.export`."""
    rows = jax.tree.leaves(each)[0].shape[0]
    together = max(1, 2**18 // max(1, size)) if isinstance(size, int) and isinstance(rows, int) else rows
    if not isinstance(rows, int) or together >= rows:
        return jax.vmap(row)(each)
    return lax.map(row, each, batch_size=together)


def largest_attended(inputs):
    """Compute the largest value [Q, V] of the keys that each query may attend to, -inf where there are none."""
    value = inputs.value
    if inputs.mask is None:
        return jnp.broadcast_to(value.max(axis=0, initial=-jnp.inf)[None], (inputs.query.shape[0], value.shape[1]))
    keys = jnp.arange(value.shape[0])

    def row(position):
        allowed = jnp.broadcast_to(inputs.mask(position[None], keys), (1, value.shape[0]))[0]
        return jnp.max(value, axis=0, where=allowed[:, None], initial=-jnp.inf)

    return in_rows(row, inputs.offset + jnp.arange(inputs.query.shape[0]), value.size)


def pooled_width(inputs) -> int:
    """The width of what is pooled: that of the values, or the number of sums of `terms`."""
    if inputs.terms is None:
        return inputs.value.shape[1]
    pool_all = lambda terms, value: pool_terms(
        jnp.ones((inputs.query.shape[0], value.shape[0]), value.dtype), value, terms
    )
    return jax.eval_shape(pool_all, inputs.terms, inputs.value).shape[1]


def pull_pool(weights, tile, row_bar, narrowed):
    """Return the cotangents of `weights` [q, k] before dropout, in their type, and of the values of a tile. `narrowed`
    says that the weights are within the range of float16."""
    if tile.terms is not None:
        pool_terms_of = lambda weights, value: pool(weights, tile._replace(value=value))
        return jax.vjp(pool_terms_of, weights, tile.value)[1](row_bar.astype(weights.dtype))
    pool_weights = weights  # P [q, k], for dV = P^T dO
    if narrowed or row_bar.dtype != jnp.float16:
        pool_weights = narrow(weights, row_bar.dtype)
    weights_bar = matmul(row_bar, tile.value.T).astype(weights.dtype)  # dP_ij = dO_i . v_j
    if tile.dropout is not None:  # O = (D * P) V: dP = D * (dO V^T) and dV = (D * P)^T dO
        factor = tile.dropout.astype(weights.dtype)
        weights_bar, pool_weights = weights_bar * factor, pool_weights * factor
    pool_dtype = row_bar.dtype if narrowed or row_bar.dtype != jnp.float16 else weights.dtype
    return weights_bar, matmul_transposed(pool_weights.astype(pool_dtype), row_bar.astype(pool_dtype))


def w_log_w_of(weights):
    """Compute the sum of w log w [q] over the keys, where 0 log 0 is 0, for `entropy_of`."""
    return jnp.sum(weights * jnp.log(jnp.where(weights == 0, 1.0, weights)), axis=1)


def entropy_of(mass, moment):
    """Compute the entropy [q] of weights w_j / sum(w) from the sums of w_j and of w_j log w_j, each [q], for weights of
    any scale: log(sum w) - sum(w log w) / sum w. It is 0 where all are 0, and NaN where one is negative."""
    # p = w / l with l = sum w: -sum p log p = -sum (w / l) (log w - log l) = log l - (sum w log w) / l
    divisor = jnp.where(mass != 0, mass, 1.0)
    return jnp.log(divisor) - moment / divisor


def narrow(x, dtype):
    """Round x to its storage type `dtype`; the barrier keeps the compiler from removing the conversion."""
    return x if x.dtype == dtype else lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)


def start_of(i, size, total):
    """Return the first row of block i. The last block begins early enough to be complete."""
    return jnp.minimum(i * size, total - size)


def rows_of(x, i, size):
    return lax.dynamic_slice_in_dim(x, start_of(i, size, x.shape[0]), size)


def put_rows(x, rows, i, size):
    return lax.dynamic_update_slice_in_dim(x, rows, start_of(i, size, x.shape[0]), 0)


def add_rows(x, rows, i, size):
    return put_rows(x, rows_of(x, i, size) + rows.astype(x.dtype), i, size)


# --- NaN and infinity in fully masked rows ----------------------------------------------------------------------------


def replace_nonfinite(x: jax.Array, is_attended: jax.Array) -> jax.Array:
    """Replace nonfinite numbers by 1 in the rows of x [N, D] that no allowed pair needs, since 0 * NaN is NaN."""
    return jnp.where(is_attended[:, None] | jnp.isfinite(x), x, jnp.ones_like(x))


def finite_where_unattended(inputs):
    """Make every row of `inputs` finite that no allowed pair needs. If they are finite already, this costs one pass
    over them."""
    if inputs.mask is None or isinstance(inputs.mask, AssumeFinite):
        return inputs
    arrays = inputs.query, inputs.key, inputs.value, inputs.bias_query
    # only arrays with NaN or infinity need to know which rows are attended to: a pass over all pairs of the mask
    finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(arrays)]).all()

    def clean(arrays):
        query, key, value, bias_query = arrays
        query_attends, key_is_attended = find_attended_positions(inputs)
        bias_query = None if bias_query is None else replace_nonfinite(bias_query, query_attends)
        return (
            replace_nonfinite(query, query_attends),
            replace_nonfinite(key, key_is_attended),
            replace_nonfinite(value, key_is_attended),
            bias_query,
        )

    query, key, value, bias_query = lax.cond(max_over_batch(~finite), clean, lambda arrays: arrays, arrays)
    return inputs._replace(query=query, key=key, value=value, bias_query=bias_query)


def find_attended_positions(inputs):
    """Compute masks of the queries [Q] that may attend to a key, and of the keys [K] that a query may attend to, in
    chunks of rows."""
    queries, keys = inputs.query.shape[0], inputs.key.shape[0]
    if not queries or not keys:
        return jnp.zeros((queries,), bool), jnp.zeros((keys,), bool)
    size = max(1, min(queries, 2**20 // keys))  # rows of the mask, [size, K], that are in memory together

    def rows(i, carry):
        query_attends, key_is_attended = carry
        allowed = inputs.mask(inputs.offset + start_of(i, size, queries) + jnp.arange(size), jnp.arange(keys))
        return put_rows(query_attends, allowed.any(axis=1), i, size), key_is_attended | allowed.any(axis=0)

    start = vary_like((jnp.zeros((queries,), bool), jnp.zeros((keys,), bool)), inputs)
    return lax.fori_loop(0, -(-queries // size), rows, start)


def count_keys(mask, offset, queries: int, keys: int):
    """Count the keys that each query may attend to by the mask, [Q], in chunks of rows; the first query is at position
    `offset`. A key whose score is -inf counts."""
    if mask is None:
        return jnp.full((queries,), keys, jnp.int32)
    has_size = isinstance(queries, int) and isinstance(keys, int)  # else exported with any length
    size = max(1, min(queries, 2**20 // max(keys, 1))) if has_size else queries

    def count_rows(mask, first, rows):
        return mask(first + jnp.arange(rows), jnp.arange(keys)).sum(axis=1, dtype=jnp.int32)

    def count(mask, offset):
        if not has_size or size >= queries:
            return count_rows(mask, offset, queries)
        step = lambda i, counts: put_rows(counts, count_rows(mask, offset + start_of(i, size, queries), size), i, size)
        start = vary_like(jnp.zeros((queries,), jnp.int32), (mask, offset))
        return lax.fori_loop(0, -(-queries // size), step, start)

    return loopable(count)(mask, offset)


# --- which blocks -----------------------------------------------------------------------------------------------------


def key_blocks(inputs, blocks, share_bound: Callable | None = None):
    """Return (low, open_low, open_high, high) for each block of queries: blocks low..high of keys have allowed pairs,
    and in open_low..open_high all pairs are allowed, so that the mask need not be evaluated there. `share_bound` is
    applied to the bounds, by default their `max_over_batch`: vmapped examples share one loop.

    A row of eight blocks for a causal window, with low 2, open_low 3, open_high 5 and high 6: `.` is skipped, in `m`
    the mask is evaluated, in `o` it is not.

        . . m o o m . .
    """
    share_bound = share_bound or max_over_batch
    queries, keys = inputs.query.shape[0], inputs.key.shape[0]
    count = -(-keys // blocks.key)
    if inputs.mask is None:
        return 0, 0, keys // blocks.key, count
    index = jnp.arange(-(-queries // blocks.query))  # of the blocks of queries, and so the shape of all that follow
    first = inputs.offset + start_of(index, blocks.query, queries)
    last = first + blocks.query - 1
    clip_to_keys = lambda x: jnp.broadcast_to(jnp.clip(as_positions(x), 0, keys), first.shape)
    # positions of keys: some query of the block may attend to low..high, all of them to all of open_low..open_high
    low, high = map(clip_to_keys, inputs.mask.key_range(first, last))
    open_low, open_high = map(clip_to_keys, inputs.mask.unmasked_range(first, last))
    # in blocks: each that has a key of low..high, and in the open range whole blocks alone; -max(-x) is the minimum
    # over examples: over every block that any of them needs, without the mask where all allow it
    low, high = -share_bound(-(low // blocks.key)), share_bound(-(-high // blocks.key))
    open_low, open_high = share_bound(-(-open_low // blocks.key)), -share_bound(-(open_high // blocks.key))
    high = jnp.maximum(low, high)
    open_low = jnp.clip(open_low, low, high)
    return low, open_low, jnp.clip(open_high, open_low, high), high


def active_cells(active, inputs, blocks):
    """Whether each cell may have a weight that is not zero, known of blocks: the derivatives may have other blocks."""
    overlaps = _overlaps(inputs, blocks)
    if overlaps is None:
        return active
    # blocks (i, j) that share a query and a key with cell (a, b): a count above 0 means that any of them is active
    return jnp.einsum("ia,ij,jb->ab", overlaps[0], active.astype(jnp.float32), overlaps[1]) > 0


def active_blocks(cells, inputs, blocks):
    """Whether any cell of each block may have a weight that is not zero."""
    overlaps = _overlaps(inputs, blocks)
    if overlaps is None:
        return cells
    # the transpose: cells (a, b) that share a query and a key with block (i, j)
    return jnp.einsum("ia,ab,jb->ij", overlaps[0], cells.astype(jnp.float32), overlaps[1]) > 0


def _overlaps(inputs, blocks):
    """Which cells each block has rows of, [blocks, cells], for queries and for keys; None if the blocks are cells."""
    if blocks.cell in (None, blocks[:2]):
        return None
    overlaps = []
    for x, size, cell in zip((inputs.query, inputs.key), blocks, blocks.cell):
        total = x.shape[0]
        first = np.minimum(np.arange(-(-total // size)) * size, total - size)[:, None]  # [blocks, 1] first rows
        start = np.arange(-(-total // cell)) * cell  # [cells]
        overlaps.append(((first < start + cell) & (start < first + size)).astype(np.float32))
    return overlaps


@jax.custom_batching.custom_vmap
def max_over_batch(x):
    """Return x, or under `jax.vmap` its maximum over the batch, so that all examples have the same loop bounds."""
    return x


@max_over_batch.def_vmap
def _max_over_batch_rule(size, batched, x):
    x = x.max(axis=0) if size else jnp.zeros(x.shape[1:], x.dtype)  # no example needs a block
    return max_over_batch(x), False  # over the batch of an outer `jax.vmap`, too


def over_keys(ranges, i, step, carry):
    """Loop step(masked, j, carry) over the blocks j of keys, without the mask where all pairs are allowed."""
    if isinstance(ranges[0], int):  # no mask: only an incomplete last block hides the keys that it repeats
        _, _, open_high, high = ranges
        carry = lax.fori_loop(0, open_high, partial(step, False), carry)
        return step(True, open_high, carry) if open_high < high else carry
    low, open_low, open_high, high = (bound[i] for bound in ranges)
    # the sums do not depend on the order of blocks: low..open_low and open_high..high first, then the open range
    num_masked_before = open_low - low  # one loop over the blocks with a mask on both sides of the open range
    step_masked = lambda n, carry: step(
        True, jnp.where(n < num_masked_before, low + n, open_high + n - num_masked_before), carry
    )
    carry = lax.fori_loop(0, num_masked_before + high - open_high, step_masked, carry)
    return lax.fori_loop(open_low, open_high, partial(step, False), carry)


def over_keys_reversed(ranges, i, step, carry):
    """Loop like `over_keys`, from the last block to the first."""

    def run(masked, first, stop, carry):
        return lax.fori_loop(0, stop - first, lambda n, carry: step(masked, stop - 1 - n, carry), carry)

    if isinstance(ranges[0], int):
        _, _, open_high, high = ranges
        carry = step(True, open_high, carry) if open_high < high else carry
        return run(False, 0, open_high, carry)
    # here the order counts: open_high..high, the open range, low..open_low, each from its last block on
    low, open_low, open_high, high = (bound[i] for bound in ranges)
    return run(True, low, open_low, run(False, open_low, open_high, run(True, open_high, high, carry)))


# --- gradients, block by block ----------------------------------------------------------------------------------------


def over_queries(inputs, blocks, out_bar, add_row) -> Gradients:
    """Accumulate gradients over the blocks of queries: `add_row(i, fresh, row_bar, bars)` adds to `bars`, `Gradients`
    whose query and bias_query have the rows of block i alone. The last block may begin early: `fresh` [q] marks the
    queries that no earlier block has, and the repeated rows must have no gradient."""
    size, queries = blocks.query, inputs.query.shape[0]

    def zeros(x, rows=None, kind=None):
        shape = x.shape if rows is None else (rows, *x.shape[1:])
        return vary_like(jnp.zeros(shape, kind or accumulator(x.dtype)), inputs)

    def rows(i, bars):
        # the rows that the last block repeats have dO = 0, so that no gradient counts twice
        fresh = start_of(i, size, queries) + jnp.arange(size) >= i * size
        row_bar = rows_of(out_bar, i, size)
        row_bar = jnp.where(fresh[:, None], row_bar, jnp.zeros_like(row_bar))
        # dQ of this block alone [q, D], dK [K, E] and dV [K, V] of all keys: in a row of blocks the queries stay
        inner = bars._replace(query=zeros(inputs.query, size))
        if inputs.bias_query is not None:
            inner = inner._replace(bias_query=zeros(inputs.bias_query, size))
        inner = add_row(i, fresh, row_bar, inner)
        query_bar = add_rows(bars.query, inner.query, i, size)
        if inputs.bias_query is None:
            return inner._replace(query=query_bar)
        return inner._replace(query=query_bar, bias_query=add_rows(bars.bias_query, inner.bias_query, i, size))

    rules = partition(inputs.rules)[0]
    start = jax.tree.map(zeros, Gradients(rules, inputs.query, inputs.key, inputs.value, inputs.bias_query))
    if blocks.round_rows:
        query, bias_query = jax.tree.map(lambda x: zeros(x, kind=x.dtype), (inputs.query, inputs.bias_query))
        start = start._replace(query=query, bias_query=bias_query)
    return lax.fori_loop(0, -(-queries // size), rows, start)


def add_tile(bars: Gradients, operand_bars, value_bar, j, size) -> Gradients:
    """Add the cotangents of the operands and values of a tile, in block j of the keys, to `bars`."""
    rules_bar, query_bar, key_bar, bias_query_bar = operand_bars  # of the leaves, [q, D], [k, E] and [q, F]
    add = lambda total, increment: total + increment.astype(total.dtype)
    return Gradients(
        jax.tree.map(add, bars.rules, rules_bar),
        add(bars.query, query_bar),
        add_rows(bars.key, key_bar, j, size),
        add_rows(bars.value, value_bar, j, size),
        None if bias_query_bar is None else add(bars.bias_query, bias_query_bar),
    )


def compute_or_zeros(is_needed, compute):
    """Return `compute()`, or zeros of its shapes."""
    zeros = lambda x: vary_like(jnp.zeros(x.shape, x.dtype), x)
    return lax.cond(is_needed, compute, lambda: jax.tree.map(zeros, jax.eval_shape(compute)))
