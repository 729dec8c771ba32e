"""Exact attention block by block: memory linear in sequence length, for any score, bias, mask and dropout.

Forward: the online softmax (Milakov and Gimelshein 2018; Rabe and Staats 2021, algorithm 1; Dao et al. 2022,
algorithm 1). For each block of queries a loop over blocks of keys keeps the largest score m, the sum l of
exp(score - m) and the pooled values; what is saved for the backward pass is the output O and the
log-normaliser L = m + log l of each query.

Backward: with P = exp(S - L) and dP = dO V^T, the gradient of the scores is dS = P * (dP - rowsum(dO * O)) (Dao
et al. 2022, algorithm 4). The scores of each block are computed again through `jax.vjp` of score and bias,
which takes dS on to the queries, the keys and all parameters. That is why any differentiable score works:
nothing here knows what a score is.

Which keys are looked at, and where a mask has to be evaluated, is asked of the mask per block of queries (`Mask.reach`,
`Mask.open`). When lengths differ between vmapped examples, the blocks that ANY of them needs are computed.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.masks import Finite
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.precision import accumulator, over_rows
from attention_jax.ops.weight_dropout import dropout_factor


class Blocks(NamedTuple):
    """Static: how many queries and keys are worked on at a time."""

    query: int
    key: int
    again: bool = False
    """Scores are computed once for their largest and once more for the weights, so that they are never written."""


class Inputs(NamedTuple):
    """Everything traced."""

    rules: tuple  # (score, bias or None): callable pytrees
    query: jax.Array  # [Q, D] what the score sees
    key: jax.Array  # [K, E]
    value: jax.Array  # [K, V]
    bias_query: jax.Array | None  # [Q, F] what the bias sees
    mask: object  # Mask or None
    dropout: tuple | None  # random words [Q], [K] and the rate []
    offset: jax.Array | int  # position of the first query


Whole = Callable[[Inputs], jax.Array]
"""Inputs -> [Q, V] with the whole matrix of scores in memory."""


def blockwise(inputs: Inputs, blocks: Mapping[str, Blocks | None], whole: Whole) -> jax.Array:
    """softmax(score + bias, where=mask) @ value, [Q, V].

    `blocks` are those of each platform (`platforms.by_platform`). Where they are None, `whole` computes what no block
    is needed for, a second time for the gradient, so that all platforms save the same and nothing of size Q * K.
    """
    floats, others, join = _split(inputs)
    return _attend(tuple(blocks.items()), whole, join, floats, others)


# --- what has gradients and what has none -----------------------------------------------------------------------------


class Join(NamedTuple):
    """Puts the floating and the other leaves of a pytree together again. Hashable, so that it may be static."""

    structure: jax.tree_util.PyTreeDef
    is_float: tuple[bool, ...]

    def __call__(self, floats, others):
        floats, others = iter(floats), iter(others)
        return jax.tree.unflatten(self.structure, [next(floats if f else others) for f in self.is_float])


def _split(tree) -> tuple[list, list, Join]:
    leaves, structure = jax.tree.flatten(tree)
    leaves = [jnp.asarray(leaf) for leaf in leaves]
    is_float = tuple(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
    floats = [leaf for leaf, f in zip(leaves, is_float) if f]
    return floats, [leaf for leaf, f in zip(leaves, is_float) if not f], Join(structure, is_float)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(blocks, whole, join, floats, others):
    return _attend_fwd(blocks, whole, join, floats, others)[0]


def _attend_fwd(blocks, whole, join, floats, others):
    inputs = _shielded(join(floats, others))

    def run(blocks):
        if blocks is None:
            return whole(inputs), jnp.zeros(inputs.query.shape[:1], accumulator(inputs.value.dtype))
        return _forward(inputs, blocks)

    out, normaliser = by_platform(run, dict(blocks))
    return out, (*_split(inputs)[:2], out, normaliser)


def _attend_bwd(blocks, whole, join, saved, out_bar):
    floats, others, out, normaliser = saved

    def run(blocks):
        if blocks is None:
            return jax.vjp(lambda floats: whole(join(floats, others)), floats)[1](out_bar)[0]
        bars = jax.tree.leaves(_backward(join(floats, others), blocks, out, normaliser, out_bar))
        bars += [jnp.zeros_like(x) for x in floats[len(bars) :]]  # mask and dropout rate
        return [bar.astype(x.dtype) for bar, x in zip(bars, floats, strict=True)]

    return by_platform(run, dict(blocks)), None


_attend.defvjp(_attend_fwd, _attend_bwd)


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.jit, static_argnames="blocks", inline=True)  # layers of one shape are traced once
def _forward(inputs, blocks):
    """Output [Q, V] and log-normaliser [Q] (+inf where a query may attend to nothing)."""
    queries, width = inputs.query.shape[0], inputs.value.shape[1]
    precision = accumulator(inputs.value.dtype)
    ranges = _key_blocks(inputs, blocks)

    def step(i, masked, j, carry):
        largest, total, pooled = carry
        tile = _tile(inputs, blocks, i, j, masked)
        scores = tile.scores(*tile.operands).astype(precision)
        new = jnp.maximum(largest, scores.max(axis=1))
        reference = jnp.where(new == -jnp.inf, 0.0, new)  # nothing allowed so far
        if blocks.again:
            operands, reference = lax.optimization_barrier((tile.operands, reference))
            scores = tile.scores(*operands).astype(precision)
        weights = _exp_below(scores, reference)
        shrink = jnp.exp(largest - reference)
        total = total * shrink + weights.sum(axis=1)
        if tile.dropout is not None:
            weights = weights * tile.dropout.astype(precision)
        return new, total, pooled * shrink[:, None] + _matmul(weights.astype(tile.value.dtype), tile.value)

    def rows(i, carry):
        out, normaliser = carry
        zeros = jnp.zeros((blocks.query, width + 2), precision)
        start = zeros[:, 0] - jnp.inf, zeros[:, 1], zeros[:, 2:]
        largest, total, pooled = _over_keys(ranges, i, partial(step, i), start)
        some = total != 0  # true of NaN, which stays
        divisor = jnp.where(some, total, 1.0)
        pooled = jnp.where(some[:, None], pooled / divisor[:, None], 0.0)
        log = jnp.where(some, largest + jnp.log(divisor), jnp.inf)
        return _put(out, pooled.astype(out.dtype), i, blocks.query), _put(normaliser, log, i, blocks.query)

    start = jnp.zeros((queries, width), inputs.value.dtype), jnp.zeros((queries,), precision)
    return lax.fori_loop(0, -(-queries // blocks.query), rows, start)


# --- backward ---------------------------------------------------------------------------------------------------------


class Gradients(NamedTuple):
    """Accumulated in float32 at least, in the order in which the leaves of `Inputs` are flattened."""

    rules: list  # of the floating leaves of score and bias
    query: jax.Array
    key: jax.Array
    value: jax.Array
    bias_query: jax.Array | None


@partial(jax.jit, static_argnames="blocks", inline=True)
def _backward(inputs, blocks, out, normaliser, out_bar):
    precision = normaliser.dtype
    ranges = _key_blocks(inputs, blocks)
    delta = jnp.sum(out.astype(precision) * out_bar.astype(precision), axis=1)  # rowsum(dO * O) [Q]

    def zeros(x, rows=None):
        shape = x.shape if rows is None else (rows, *x.shape[1:])
        return jnp.zeros(shape, accumulator(x.dtype))

    def step(i, outer, masked, j, bars):
        row_bar, row_normaliser, row_delta = outer
        tile = _tile(inputs, blocks, i, j, masked)
        scores, pull = jax.vjp(tile.scores, *tile.operands)
        weights = _narrow(_exp_below(scores.astype(precision), row_normaliser), row_bar.dtype)
        weights_bar, pooling = _matmul(row_bar, tile.value.T), weights
        if tile.dropout is not None:
            factor = tile.dropout.astype(precision)
            weights_bar, pooling = weights_bar * factor, weights * factor
        scores_bar = weights * (weights_bar - row_delta[:, None])
        rules_bar, query_bar, key_bar, bias_query_bar = pull(scores_bar.astype(scores.dtype))
        value_bar = over_rows(pooling.astype(row_bar.dtype), row_bar)
        add = lambda total, more: total + more.astype(total.dtype)
        return Gradients(
            jax.tree.map(add, bars.rules, rules_bar),
            add(bars.query, query_bar),
            _add(bars.key, key_bar, j, blocks.key),
            _add(bars.value, value_bar, j, blocks.key),
            None if bias_query_bar is None else add(bars.bias_query, bias_query_bar),
        )

    def rows(i, bars):
        # the last block of queries may begin early: what it repeats has no gradient
        fresh = _start(i, blocks.query, inputs.query.shape[0]) + jnp.arange(blocks.query) >= i * blocks.query
        row_bar = _rows(out_bar, i, blocks.query)
        row_bar = jnp.where(fresh[:, None], row_bar, jnp.zeros_like(row_bar))
        outer = row_bar, _rows(normaliser, i, blocks.query), jnp.where(fresh, _rows(delta, i, blocks.query), 0.0)
        inner = bars._replace(query=zeros(inputs.query, blocks.query))
        if inputs.bias_query is not None:
            inner = inner._replace(bias_query=zeros(inputs.bias_query, blocks.query))
        inner = _over_keys(ranges, i, partial(step, i, outer), inner)
        query_bar = _add(bars.query, inner.query, i, blocks.query)
        bias_query_bar = None if inputs.bias_query is None else _add(bars.bias_query, inner.bias_query, i, blocks.query)
        return inner._replace(query=query_bar, bias_query=bias_query_bar)

    start = jax.tree.map(
        zeros, Gradients(_split(inputs.rules)[0], inputs.query, inputs.key, inputs.value, inputs.bias_query)
    )
    return lax.fori_loop(0, -(-inputs.query.shape[0] // blocks.query), rows, start)


# --- one block --------------------------------------------------------------------------------------------------------


class Tile(NamedTuple):
    """Block (i, j) of the matrix of scores: `scores(*operands)` is [q, k], -inf where forbidden."""

    scores: Callable
    operands: tuple
    value: jax.Array
    dropout: jax.Array | None


def _tile(inputs, blocks, i, j, masked):
    rules, others, join = _split(inputs.rules)
    query, key, value = (
        _rows(inputs.query, i, blocks.query),
        _rows(inputs.key, j, blocks.key),
        _rows(inputs.value, j, blocks.key),
    )
    bias_query = None if inputs.bias_query is None else _rows(inputs.bias_query, i, blocks.query)
    key_positions = _start(j, blocks.key, inputs.key.shape[0]) + jnp.arange(blocks.key)
    query_positions = inputs.offset + _start(i, blocks.query, inputs.query.shape[0]) + jnp.arange(blocks.query)
    allowed = None
    if masked:
        allowed = jnp.broadcast_to(
            (key_positions >= j * blocks.key)[None, :], (blocks.query, blocks.key)
        )  # nothing counts twice
        allowed = allowed if inputs.mask is None else allowed & inputs.mask(query_positions, key_positions)

    def scores(rules, query, key, bias_query):
        score, bias = join(rules, others)
        scores = score(query, key)
        if bias is not None:
            scores = scores + bias(bias_query, query_positions, key_positions).astype(scores.dtype)
        return scores if allowed is None else jnp.where(allowed, scores, -jnp.inf)

    dropout = None
    if inputs.dropout is not None:
        query_words, key_words, rate = inputs.dropout
        dropout = dropout_factor(_rows(query_words, i, blocks.query), _rows(key_words, j, blocks.key), rate)
    return Tile(scores, (rules, query, key, bias_query), value, dropout)


def _exp_below(scores, bound):
    """exp(scores [q, k] - bound [q]), where no score is above the bound.

    The minimum changes no number. Without it XLA may contract the last multiplication of a score with the difference
    (a fused multiply-add), which then keeps what rounding took from the bound: hundreds, where a score is about 1e10.
    """
    return jnp.exp(jnp.minimum(scores, bound[:, None]) - bound[:, None])


def _matmul(a, b):
    return jnp.matmul(a, b, preferred_element_type=accumulator(a.dtype))


def _narrow(x, dtype):
    """x rounded to `dtype`, in which it is stored, where it is, whatever the compiler would rather do."""
    return x if x.dtype == dtype else lax.optimization_barrier(x.astype(dtype)).astype(x.dtype)


def _start(i, size, total):
    """Where block i begins. The last one begins early enough to be whole."""
    return jnp.minimum(i * size, total - size)


def _rows(x, i, size):
    return lax.dynamic_slice_in_dim(x, _start(i, size, x.shape[0]), size)


def _put(x, rows, i, size):
    return lax.dynamic_update_slice_in_dim(x, rows, _start(i, size, x.shape[0]), 0)


def _add(x, rows, i, size):
    return _put(x, _rows(x, i, size) + rows.astype(x.dtype), i, size)


# --- NaN and infinity where nobody may look ---------------------------------------------------------------------------


def shield(x: jax.Array, alive: jax.Array) -> jax.Array:
    """Rows of x [N, D] that no allowed pair needs, made finite: 0 * NaN would be NaN."""
    return jnp.where(alive[:, None] | jnp.isfinite(x), x, jnp.ones_like(x))


def _shielded(inputs):
    """All rows that no allowed pair needs made finite, at the price of one look at the
    inputs where they are finite anyway."""
    if inputs.mask is None or isinstance(inputs.mask, Finite):
        return inputs
    arrays = inputs.query, inputs.key, inputs.value, inputs.bias_query
    finite = jnp.stack([jnp.isfinite(x).all() for x in jax.tree.leaves(arrays)]).all()

    def clean(arrays):
        query, key, value, bias_query = arrays
        asked, answered = _alive(inputs)
        bias_query = None if bias_query is None else shield(bias_query, asked)
        return shield(query, asked), shield(key, answered), shield(value, answered), bias_query

    query, key, value, bias_query = lax.cond(_most(~finite), clean, lambda arrays: arrays, arrays)
    return inputs._replace(query=query, key=key, value=value, bias_query=bias_query)


def _alive(inputs):
    """Which queries [Q] may attend to something, and which keys [K] something may attend to; some rows at a time."""
    queries, keys = inputs.query.shape[0], inputs.key.shape[0]
    size = max(1, min(queries, 2**20 // keys))

    def rows(i, carry):
        asked, answered = carry
        allowed = inputs.mask(inputs.offset + _start(i, size, queries) + jnp.arange(size), jnp.arange(keys))
        return _put(asked, allowed.any(axis=1), i, size), answered | allowed.any(axis=0)

    return lax.fori_loop(0, -(-queries // size), rows, (jnp.zeros((queries,), bool), jnp.zeros((keys,), bool)))


# --- which blocks -----------------------------------------------------------------------------------------------------


def _key_blocks(inputs, blocks):
    """For each block of queries: first and last block of keys to look at, and between
    them those where all is allowed."""
    queries, keys = inputs.query.shape[0], inputs.key.shape[0]
    count = -(-keys // blocks.key)
    if inputs.mask is None:
        return 0, keys // blocks.key, keys // blocks.key, count
    index = jnp.arange(-(-queries // blocks.query))
    first = inputs.offset + _start(index, blocks.query, queries)
    last = first + blocks.query - 1
    low, high = (jnp.broadcast_to(jnp.clip(x, 0, keys), first.shape) for x in inputs.mask.reach(first, last))
    open_low, open_high = (jnp.broadcast_to(jnp.clip(x, 0, keys), first.shape) for x in inputs.mask.open(first, last))
    low, high = -_most(-(low // blocks.key)), _most(-(-high // blocks.key))
    open_low, open_high = _most(-(-open_low // blocks.key)), -_most(-(open_high // blocks.key))
    high = jnp.maximum(low, high)
    open_low = jnp.clip(open_low, low, high)
    return low, open_low, jnp.clip(open_high, open_low, high), high


@jax.custom_batching.custom_vmap
def _most(x):
    """x, but under `jax.vmap` the largest of all examples, so that loop bounds stay the same for all."""
    return x


@_most.def_vmap
def _most_of_all(size, batched, x):
    return x.max(axis=0), False


def _over_keys(ranges, i, step, carry):
    """step(masked, j, carry) over all blocks j of keys, without mask where everything is allowed."""
    if isinstance(ranges[0], int):
        _, open_high, _, high = ranges
        carry = lax.fori_loop(0, open_high, partial(step, False), carry)
        return step(True, open_high, carry) if open_high < high else carry
    low, open_low, open_high, high = (bound[i] for bound in ranges)
    before = open_low - low
    masked = lambda n, carry: step(True, jnp.where(n < before, low + n, open_high + n - before), carry)
    carry = lax.fori_loop(0, before + high - open_high, masked, carry)
    return lax.fori_loop(open_low, open_high, partial(step, False), carry)
