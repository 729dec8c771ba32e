"""Sequence parallelism: `attend` where the sequence is sharded over the devices of a mesh axis (ring attention).

Every device keeps its queries. Blocks of keys and values, one per device, travel around the ring (Liu et al. 2023), so
that each device meets all of them and no device ever holds more than two. What a device does with a block is the
forward or backward pass of `ops/blockwise/softmax.py`, `ops/blockwise/local.py` or `ops/blockwise/ordered.py`; this
module combines the results:

* softmax: outputs are averaged with the weights exp(log-normalizer), which need not be known in advance;
* other `Local` normalizers: sums over the keys are added. A `Threshold` is found before, one tour of the keys for each
  step of Newton's method;
* `Ordered` normalizers: device i meets the blocks i, i - 1, ..., 0 and then n - 1, ..., i + 1. The two runs are
  accumulated separately, and the first is scaled by what the second leaves.

The backward pass is a second tour, on which the gradients of keys and values travel with them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops.arrays import as_rules, as_tuple, is_array
from attention_jax.ops.attention import check_call
from attention_jax.ops.biases import Bias
from attention_jax.ops.blockwise import local, ordered, softmax, top_k
from attention_jax.ops.blockwise.higher_order import merge_row_blocks
from attention_jax.ops.blockwise.score_blocks import (
    Gradients,
    Inputs,
    finite_where_unattended,
    key_blocks,
    over_keys,
    over_keys_reversed,
    partition,
    precision_of,
    rows_of,
    tile_of,
)
from attention_jax.ops.dispatch import choose_blocks
from attention_jax.ops.dropout import dropout_bits, is_zero
from attention_jax.ops.masks import Mask
from attention_jax.ops.meshes import vary_like, vary_together
from attention_jax.ops.normalizer_kinds import (
    Exponential,
    Local,
    Normalizer,
    Ordered,
    Sums,
    Threshold,
    find_threshold,
    has_factor,
    relative_to,
    scale_of,
    sums_of,
)
from attention_jax.ops.normalizers import Softmax, TopK, as_normalizer, without_sink
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.pooling import Mean, Pool, as_pool
from attention_jax.ops.positions import as_positions
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scaled_logits import as_softmax
from attention_jax.ops.scores import ScaledDot, Score, prepare
from attention_jax.ops.trees import as_tree, pytree
from attention_jax.ops.trials import check_tiles


def attend_sharded(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    axis_name: str,
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    pool: Pool = Mean(),
    dropout: Float[Array, ""] | float = 0.0,
    rng: Key[Array, ""] | None = None,
    return_log_sum_exp: bool = False,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "Q V"] | tuple[Float[Array, "Q V"], Float[Array, " Q"]]:
    """`attend` over a sequence that is sharded over the devices of the mesh axis `axis_name`: sequence parallelism.

    Call it inside `jax.shard_map`. On each of n devices, query [Q, D], key [K, E] and value
    [K, V] are its part of n Q queries and n K keys, in the order of the devices. The result is this device's part of
    what `attend` computes from the whole arrays: masks, biases and dropout depend on positions in the whole sequence.
    As there, no weights are dropped without `rng`. Use `jax.vmap` over batch and heads, and pad sequences that n does
    not divide, with the mask `lengths`.

    The other arguments are as in `attend`; score, bias, mask, normalizer and `rng` are equal on all devices. Memory
    is linear in Q + K, and each hop moves the (E + V) K numbers of one block. There is reverse mode, once. A gradient
    with respect to a leaf of score, bias or normalizer that is taken INSIDE `shard_map(..., check_vma=False)` is this
    device's part of a sum: apply `lax.psum`. Otherwise `jax.grad` does so by itself.

    Masks and biases are not arrays, and `pool` is the mean: others go through the keys more than once. There is no
    `query_offset`, `return_statistics` or `implementation`.

    Raises:
      InputError: outside of `shard_map`, and for what `attend` does not take.

    >>> from jax.sharding import AxisType, PartitionSpec
    >>> mesh = jax.make_mesh((1,), ("sequence",), axis_types=(AxisType.Auto,))
    >>> sharded = PartitionSpec("sequence")
    >>> ring = partial(attend_sharded, axis_name="sequence")
    >>> ring = jax.shard_map(ring, mesh=mesh, in_specs=sharded, out_specs=sharded)
    >>> ring(jnp.eye(1, 2), 9 * jnp.eye(2), jnp.array([[1.0], [2.0]])).round(2).tolist()
    [[1.0]]
    """
    num_devices, device_index = _device_place(axis_name)
    check_call(query, key, value, score, bias, mask, normalizer, dropout, block_q, block_k)
    _check_rules(bias, mask, pool)
    bias, mask = as_rules(bias, mask, query, key, 0)
    check_tiles(as_tree(score), bias, mask, query.shape[1], key.shape[1])
    first = device_index * query.shape[0]
    query, score, bias, normalizer = as_softmax(
        query, as_tree(score), bias, mask, as_normalizer(normalizer), first, num_devices * key.shape[0]
    )
    base = normalizer.of if isinstance(normalizer, TopK) else normalizer
    if not isinstance(base, Local | Ordered):
        raise InputError(
            f"attend_sharded needs a Pointwise, Ratio, Threshold or Ordered normalizer, got {type(base).__name__}"
        )
    if return_log_sum_exp and not isinstance(base, Softmax):
        raise InputError(f"return_log_sum_exp=True needs the softmax, got the normalizer {type(base).__name__}")
    if not (query.size and key.size and (value.size or return_log_sum_exp)):
        out = jnp.zeros((query.shape[0], value.shape[1]), value.dtype)
        empty = out, jnp.full(query.shape[:1], -jnp.inf, accumulator(query.dtype))
        return vary_like(empty if return_log_sum_exp else out, (query, key, value))
    words = None
    if rng is not None and not is_zero(dropout):
        query_words, key_words = dropout_bits(rng, num_devices * query.shape[0], num_devices * key.shape[0])
        query_words = lax.dynamic_slice_in_dim(query_words, first, query.shape[0])
        words = query_words, key_words, jnp.asarray(dropout, jnp.float32)
    score, prepared_query, key = prepare(score, query, key)
    rules = score, bias, without_sink(base)  # which is applied afterwards
    inputs = vary_together(
        Inputs(rules, prepared_query, key, value, None if bias is None else query, mask, words, first)
    )
    ring = Ring(axis_name, num_devices, tuple(choose_blocks(score, prepared_query, key, block_q, block_k).items()))
    if isinstance(normalizer, TopK) and normalizer.k < num_devices * key.shape[0]:
        inputs = inputs._replace(cut=_find_cut(ring, lax.stop_gradient(inputs), normalizer.k))
    floats, non_floats, combine = partition(inputs)
    out, log = _attend(ring, combine, floats, non_floats)
    if not isinstance(base, Softmax):
        return out
    log = jnp.where(log == jnp.inf, -jnp.inf, log)
    if base.sink is not None:
        mass = base.non_sink_mass(log)
        out = (out.astype(mass.dtype) * mass[:, None]).astype(out.dtype)
    return (out, log) if return_log_sum_exp else out


def _check_rules(bias, mask, pool):
    """Raise InputError for poolings other than the mean, and for arrays as masks and biases."""
    if not isinstance(as_pool(pool), Mean):
        raise InputError(
            f"attend_sharded pools the mean alone, got {type(pool).__name__}: gather the keys and values with "
            "jax.lax.all_gather(x, axis_name, tiled=True), and call attend with query_offset"
        )
    if any(map(is_array, (*as_tuple(bias), *as_tuple(mask)))):
        raise InputError(
            "attend_sharded needs a bias and a mask of positions, got an array: write mask=dense(array), of the whole "
            "sequence, and a bias as a function of positions"
        )


def _device_place(axis_name) -> tuple[int, Int[Array, ""]]:
    """The number of devices on the axis, and the index of this one."""
    try:
        return lax.axis_size(axis_name), lax.axis_index(axis_name).astype(int)
    except NameError:
        raise InputError(
            f"attend_sharded needs the mesh axis {axis_name!r}, which is not bound: call it inside "
            f"jax.shard_map over a mesh with that axis"
        ) from None


# --- around the ring --------------------------------------------------------------------------------------------------


class Ring(NamedTuple):
    """Static: the mesh axis, its devices, and the block sizes of each platform."""

    axis_name: str
    devices: int
    blocks: tuple

    def compute(self, run):
        """`run(blocks)` with the block sizes of the platform."""
        return by_platform(run, dict(self.blocks))


@pytree
@dataclass(frozen=True)
class _ShiftedMask(Mask):
    """A mask of keys that begin at position `first`."""

    mask: Mask
    first: Int[Array, ""]

    def __call__(self, query_positions, key_positions):
        return self.mask(query_positions, key_positions + self.first)

    def key_range(self, first, last):
        return tuple(as_positions(bound) - self.first for bound in self.mask.key_range(first, last))

    def unmasked_range(self, first, last):
        return tuple(as_positions(bound) - self.first for bound in self.mask.unmasked_range(first, last))


@pytree
@dataclass(frozen=True)
class _ShiftedBias(Bias):
    """A bias of keys that begin at position `first`."""

    bias: Bias
    first: Int[Array, ""]

    def __call__(self, query, query_positions, key_positions):
        return self.bias(query, query_positions, key_positions + self.first)


def _tour(ring: Ring, inputs: Inputs, step, carry, bars=()):
    """(carry, bars) after `step(inputs with a block of keys, whether it comes after this device's, carry, bars)` for
    each block; `bars` travel with it, and come home with it."""
    device_index, size = lax.axis_index(ring.axis_name).astype(int), inputs.key.shape[0]
    neighbors = [(i, (i + 1) % ring.devices) for i in range(ring.devices)]
    send = lambda tree: jax.tree.map(lambda x: lax.ppermute(x, ring.axis_name, neighbors), tree)
    score, bias, normalizer = inputs.rules

    def block_inputs(key, value, block):
        first, words = block * size, inputs.dropout
        if words is not None:
            words = words[0], lax.dynamic_slice_in_dim(words[1], first, size), words[2]
        rules = score, None if bias is None else _ShiftedBias(bias, first), normalizer
        mask = None if inputs.mask is None else _ShiftedMask(inputs.mask, first)
        return finite_where_unattended(inputs._replace(rules=rules, key=key, value=value, mask=mask, dropout=words))

    def hop(n, state):
        (key, value), carry, bars = state
        block = (device_index - n) % ring.devices
        next_block = send((key, value))  # while this block is used
        carry, bars = step(block_inputs(key, value, block), block > device_index, carry, bars)
        return next_block, carry, send(bars)

    carry, bars = vary_like((carry, bars), inputs)
    return lax.fori_loop(0, ring.devices, hop, ((inputs.key, inputs.value), carry, bars))[1:]


def _fold(ring: Ring, inputs: Inputs, step, carry, over=over_keys):
    """`carry`, arrays [Q, ...], after a tour on which step(inputs, blocks, i, masked, j, rows of carry) is called for
    all blocks j of keys, for each block i of queries."""
    return _tour(
        ring, inputs, lambda visiting, _, carry, bars: (_fold_block(ring, visiting, step, carry, over), ()), carry
    )[0]


def _fold_block(ring, inputs, step, carry, over=over_keys):
    queries = inputs.query.shape[0]

    def run(blocks):
        ranges = key_blocks(inputs, blocks)

        def rows(i):
            start = jax.tree.map(lambda x: rows_of(x, i, blocks.query), carry)
            return over(ranges, i, partial(step, inputs, blocks, i), start)

        return jax.tree.map(partial(merge_row_blocks, queries), lax.map(rows, jnp.arange(-(-queries // blocks.query))))

    return ring.compute(run)


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(ring, combine, floats, non_floats):
    """(output [Q, V], log-normalizer [Q] for the softmax, else None) of the `Inputs` that floats and others are."""
    return _attend_forward(ring, combine, floats, non_floats)[0]


def _attend_forward(ring, combine, floats, non_floats):
    inputs = combine(floats, non_floats)
    outputs, saved = _select_passes(inputs)[0](ring, inputs)
    return outputs, (floats, non_floats, outputs, saved)


def _select_passes(inputs):
    """The forward and the backward pass."""
    normalizer = inputs.rules[2]
    if isinstance(normalizer, Exponential):
        return _softmax_forward, _softmax_backward
    if isinstance(normalizer, Ordered):
        return _forward_of_ordered, _backward_of_ordered
    return _local_forward, _local_backward


def _zeros(inputs, width=None):
    """[Q] or [Q, width] in the precision of sums."""
    shape = inputs.query.shape[:1] if width is None else (inputs.query.shape[0], width)
    return vary_like(jnp.zeros(shape, precision_of(inputs)), inputs)


def _softmax_forward(ring, inputs):
    def step(visiting, later, carry, bars):
        out, log = carry
        block_out, block_log = ring.compute(lambda blocks: softmax.forward(visiting, blocks)[0])
        block_log = jnp.where(block_log == jnp.inf, -jnp.inf, block_log)  # no key: fused has +inf
        total = jnp.logaddexp(log, block_log)
        finite = jnp.where(total == -jnp.inf, 0.0, total)
        share = lambda log: jnp.exp(log - finite)[:, None]
        return (out * share(log) + block_out.astype(out.dtype) * share(block_log), total), bars

    start = _zeros(inputs, inputs.value.shape[1]), _zeros(inputs) - jnp.inf
    (out, log), _ = _tour(ring, inputs, step, start)
    return (out.astype(inputs.value.dtype), jnp.where(log == -jnp.inf, jnp.inf, log)), ()


def _local_forward(ring, inputs):
    normalizer, has_threshold = inputs.rules[2], isinstance(inputs.rules[2], Threshold)
    shift, top = _find_shift(ring, inputs) if has_threshold else (_zeros(inputs), None)
    if normalizer.rescales:
        raise_top = lambda *block: local.raise_top(block[-1], _scores(*block[:-1]))
        shift = _fold(ring, inputs._replace(value=inputs.value[:, :0]), raise_top, shift)
    inputs = inputs._replace(top=top)

    def step(visiting, blocks, i, masked, j, totals):
        return local.add_totals(visiting, blocks, i, rows_of(shift, i, blocks.query), None, masked, j, totals)

    queries, width = inputs.query.shape[0], inputs.value.shape[1]
    start = vary_like(local.start_totals(normalizer, queries, width, precision_of(inputs), False), inputs)
    totals = _fold(ring, inputs, step, start)
    scale = scale_of(normalizer, totals.denominator, totals.count, shift)
    pooled = totals.pooled * scale[:, None]
    dout_dtotal = local.dout_dtotal_of(totals) if has_threshold else None
    count = totals.count if has_factor(normalizer) else None
    return (pooled.astype(inputs.value.dtype), None), local.Saved(shift, scale, dout_dtotal, None, count, top)


def _scores(inputs, blocks, i, masked, j):
    tile = tile_of(inputs, blocks, i, j, masked)
    return tile.scores(*tile.operands).astype(precision_of(inputs))


def _find_shift(ring, inputs):
    """The threshold of each query [Q], relative to its largest score, and that [Q]."""
    normalizer, zero = inputs.rules[2], _zeros(inputs)
    inputs = inputs._replace(value=inputs.value[:, :0])  # need not travel

    def extent(visiting, blocks, i, masked, j, carry):
        smallest, largest, count = carry
        scores = _scores(visiting, blocks, i, masked, j)
        allowed = scores != -jnp.inf
        smallest = jnp.minimum(smallest, jnp.where(allowed, scores, jnp.inf).min(axis=1))
        return smallest, jnp.maximum(largest, scores.max(axis=1)), count + allowed.sum(axis=1).astype(zero.dtype)

    smallest, largest, count = _fold(ring, inputs, extent, (zero + jnp.inf, zero - jnp.inf, zero))
    top, inputs = largest, inputs._replace(top=largest)
    smallest, largest = (relative_to(top, x[:, None])[:, 0] for x in (smallest, largest))
    smallest, largest = (jnp.where(count > 0, x, 0.0) for x in (smallest, largest))

    def sums(t, low):
        def step(visiting, blocks, i, masked, j, carry):
            scores = _scores(visiting, blocks, i, masked, j)
            increment = sums_of(normalizer, scores, scores != -jnp.inf, rows_of(t, i, blocks.query))
            return jax.tree.map(jnp.add, carry, increment)

        return _fold(ring, inputs, step, Sums(zero, zero))

    all_done = lambda is_done: (
        lax.pmin(is_done.all().astype(jnp.int32), ring.axis_name) == 1
    )  # they take every tour together
    on_all_devices = lambda is_done: vary_like(all_done(is_done), inputs)
    return find_threshold(normalizer, sums, smallest, largest, jnp.maximum(count, 1), on_all_devices), top


def _find_cut(ring, inputs, k):
    """A number between the k-th largest score of each query and the next [Q]."""
    step = lambda visiting, blocks, i, masked, j, largest: top_k.update_largest(
        largest, _scores(visiting, blocks, i, masked, j)
    )
    start = _zeros(inputs, k + 1) - jnp.inf
    return top_k.cut_of(_fold(ring, inputs._replace(value=inputs.value[:, :0]), step, start))


def _forward_of_ordered(ring, inputs):
    def step(visiting, later, runs, bars):
        carry = jax.tree.map(lambda x: x[later.astype(int)], runs)
        carry = _fold_block(ring, visiting, ordered.add_block, carry, over_keys_reversed)
        return jax.tree.map(lambda x, new: x.at[later.astype(int)].set(new), runs, carry), bars

    start = jnp.stack(2 * [_zeros(inputs)]), jnp.stack(2 * [_zeros(inputs, inputs.value.shape[1])])
    (passed, pooled), _ = _tour(ring, inputs, step, start)
    earlier = pooled[0] * jnp.exp(passed[1])[:, None]
    return ((pooled[1] + earlier).astype(inputs.value.dtype), None), (passed[1], earlier)


# --- backward ---------------------------------------------------------------------------------------------------------


def _attend_backward(ring, combine, residuals, bars):
    floats, non_floats, outputs, saved = residuals
    inputs = combine(floats, non_floats)
    float_bars = jax.tree.leaves(_select_passes(inputs)[1](ring, inputs, outputs, saved, bars))
    float_bars += [jnp.zeros_like(x) for x in floats[len(float_bars) :]]  # mask, dropout rate and cut
    return [bar.astype(x.dtype) for bar, x in zip(float_bars, floats, strict=True)], None


_attend.defvjp(_attend_forward, _attend_backward)


def _gradients(ring, inputs, pull, carry=()):
    """`Gradients` from a tour: `pull(inputs with a block, whether it comes after this device's, carry)` returns
    the gradients through the block, and the carry."""
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, accumulator(x.dtype)), tree)
    add = lambda total, increment: jax.tree.map(jnp.add, total, increment)

    def step(visiting, later, carry, bars):
        (resident, inner), (key, value) = carry, bars
        block_gradients, inner = pull(visiting, later, inner)
        resident = add(resident, (block_gradients.rules, block_gradients.query, block_gradients.bias_query))
        return (resident, inner), (add(key, block_gradients.key), add(value, block_gradients.value))

    resident = zeros((partition(inputs.rules)[0], inputs.query, inputs.bias_query))
    ((rules, query, bias_query), _), (key, value) = _tour(
        ring, inputs, step, (resident, carry), zeros((inputs.key, inputs.value))
    )
    return Gradients(rules, query, key, value, bias_query)


def _softmax_backward(ring, inputs, outputs, saved, bars):
    pull = lambda blocks, visiting: softmax.backward(visiting, blocks, outputs, saved, bars)
    return _gradients(
        ring, inputs, lambda visiting, later, _: (ring.compute(lambda blocks: pull(blocks, visiting)), ())
    )


def _local_backward(ring, inputs, outputs, saved, bars):
    pull = lambda blocks, visiting: local.backward_of_keys(visiting, blocks, outputs, saved, bars)
    gradients = _gradients(
        ring, inputs, lambda visiting, later, _: (ring.compute(lambda blocks: pull(blocks, visiting)), ())
    )
    return local.add_extra(inputs, outputs, saved, bars, gradients)


def _backward_of_ordered(ring, inputs, outputs, saved, bars):
    passed, earlier = saved
    dot = lambda x: jnp.sum(x.astype(passed.dtype) * bars[0].astype(passed.dtype), axis=1)

    def pull(visiting, later, runs):
        passed, remaining = (x[later.astype(int)] for x in runs)
        gradients = ring.compute(lambda blocks: ordered.backward(visiting, blocks, outputs, (passed, remaining), bars))
        start = passed, _zeros(visiting, visiting.value.shape[1])
        passed, pooled = _fold_block(ring, visiting, ordered.add_block, start, over_keys_reversed)
        new = passed, remaining - dot(pooled)
        return gradients, jax.tree.map(lambda x, new: x.at[later.astype(int)].set(new), runs, new)

    runs = jnp.stack([passed, jnp.zeros_like(passed)]), jnp.stack([dot(earlier), dot(outputs[0])])
    return _gradients(ring, inputs, pull, runs)
