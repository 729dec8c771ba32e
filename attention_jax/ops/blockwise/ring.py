"""Sequence parallelism: `attend` where the sequence is sharded over the devices of a mesh axis (ring attention).

Every device keeps its queries. Blocks of keys and values, one per device, travel around the ring (Liu et al. 2023), so
that each device meets all of them and no device ever holds more than two. What a device does with a block is the
forward or backward pass of `ops/blockwise/softmax.py`. With O_b and L_b the output and the log-normalizer of the block
b of keys, the whole is a mean,

    L = log sum_b exp(L_b)    and    O = sum_b exp(L_b - L) O_b

The backward pass is a second tour, on which the gradients of keys and values travel with them. Differentiation of the
first tour by JAX would save the keys and values of every hop, so that each device would hold the whole sequence.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops.arrays import as_rules, as_tuple, is_array
from attention_jax.ops.attention import check_call, finish_softmax
from attention_jax.ops.biases import Bias
from attention_jax.ops.block_checks import check_tiles
from attention_jax.ops.blockwise import softmax
from attention_jax.ops.blockwise.score_blocks import (
    Gradients,
    Inputs,
    finite_where_unattended,
    partition,
    precision_of,
)
from attention_jax.ops.dispatch import choose_blocks
from attention_jax.ops.dropout import clip_rate, dropout_bits, is_zero
from attention_jax.ops.masks import Mask
from attention_jax.ops.meshes import vary_like, vary_together
from attention_jax.ops.normalizers import ScalableSoftmax, Softmax, as_normalizer, without_sink
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.pooling import Mean, Pool, as_pool
from attention_jax.ops.positions import as_positions
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scaled_logits import as_softmax
from attention_jax.ops.scores import ScaledDot, Score, prepare
from attention_jax.ops.trees import as_tree, name_of, pytree


def attend_sharded(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    axis_name: str,
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    normalizer: Softmax | ScalableSoftmax = Softmax(),
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

    The normalizer is the softmax, with or without a sink, or `ScalableSoftmax`, and `pool` is the mean: others need the
    keys more than once. Masks and biases are not arrays. There is no `query_offset`, `return_statistics` or
    `implementation`.

    Raises:
      InputError: outside of `shard_map`, for other normalizers, and for what `attend` does not take.

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
    _check_rules(bias, mask, normalizer, pool)
    bias, mask = as_rules(bias, mask, query, key, 0)
    check_tiles(as_tree(score), bias, mask, query.shape[1], key.shape[1])
    first = device_index * query.shape[0]
    query, score, bias, normalizer = as_softmax(
        query, as_tree(score), bias, mask, as_normalizer(normalizer), first, num_devices * key.shape[0]
    )
    if not (query.size and key.size and (value.size or return_log_sum_exp)):
        out = jnp.zeros((query.shape[0], value.shape[1]), value.dtype)
        empty = out, jnp.full(query.shape[:1], -jnp.inf, accumulator(query.dtype))
        return vary_like(empty if return_log_sum_exp else out, (query, key, value))
    words = None
    if rng is not None and not is_zero(dropout):
        query_words, key_words = dropout_bits(rng, num_devices * query.shape[0], num_devices * key.shape[0])
        query_words = lax.dynamic_slice_in_dim(query_words, first, query.shape[0])
        words = query_words, key_words, clip_rate(dropout)
    score, prepared_query, key = prepare(score, query, key)
    rules = score, bias, without_sink(normalizer)  # which is applied afterwards
    inputs = vary_together(
        Inputs(rules, prepared_query, key, value, None if bias is None else query, mask, words, first)
    )
    ring = Ring(axis_name, num_devices, tuple(choose_blocks(score, prepared_query, key, block_q, block_k).items()))
    floats, non_floats, combine = partition(inputs)
    out, log = finish_softmax(normalizer, *_attend(ring, combine, floats, non_floats))
    return (out, log) if return_log_sum_exp else out


def _check_rules(bias, mask, normalizer, pool):
    """Raise InputError for what needs the keys more than once, and for arrays as masks and biases."""
    if not isinstance(as_pool(pool), Mean):
        raise InputError(f"attend_sharded pools the mean alone, got {type(pool).__name__}: {GATHER}")
    if not isinstance(as_normalizer(normalizer), Softmax | ScalableSoftmax):
        name = name_of(as_tree(normalizer))
        raise InputError(f"attend_sharded computes the softmax, Softmax or ScalableSoftmax, got {name}: {GATHER}")
    if any(map(is_array, (*as_tuple(bias), *as_tuple(mask)))):
        raise InputError(
            "attend_sharded needs a bias and a mask of positions, got an array: write mask=dense(array), of the whole "
            "sequence, and a bias as a function of positions"
        )


GATHER = (
    "gather the keys and values with jax.lax.all_gather(x, axis_name, tiled=True), and call attend with query_offset"
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
    """(carry, bars) after `step(inputs with a block of keys, carry, bars)` for each block of keys; `bars` travel with
    it, and come home with it."""
    device_index, size = lax.axis_index(ring.axis_name).astype(int), inputs.key.shape[0]
    neighbors = [(i, (i + 1) % ring.devices) for i in range(ring.devices)]
    send = lambda tree: jax.tree.map(lambda x: lax.ppermute(x, ring.axis_name, neighbors), tree)
    score, bias, normalizer = inputs.rules

    def block_inputs(key, value, block):
        """The inputs with the keys of one device, whose first position in the whole sequence is block * size."""
        first, words = block * size, inputs.dropout
        if words is not None:  # random words of this device's queries [Q] and of all keys [n K]
            words = words[0], lax.dynamic_slice_in_dim(words[1], first, size), words[2]
        rules = score, None if bias is None else _ShiftedBias(bias, first), normalizer
        mask = None if inputs.mask is None else _ShiftedMask(inputs.mask, first)
        return finite_where_unattended(inputs._replace(rules=rules, key=key, value=value, mask=mask, dropout=words))

    def hop(n, state):
        # at hop n the block of the n-th device before this one is here; after n = devices hops each block is home
        (key, value), carry, bars = state  # [K, E] and [K, V]
        block = (device_index - n) % ring.devices
        next_block = send((key, value))  # before it is used: it travels while this device computes
        carry, bars = step(block_inputs(key, value, block), carry, bars)
        return next_block, carry, send(bars)  # the gradients of a block follow it, with what this device added

    carry, bars = vary_like((carry, bars), inputs)
    return lax.fori_loop(0, ring.devices, hop, ((inputs.key, inputs.value), carry, bars))[1:]


# --- forward ----------------------------------------------------------------------------------------------------------


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(ring, combine, floats, non_floats):
    """(output [Q, V], log-normalizer [Q]) of the `Inputs` that floats and others are; +inf for a query without keys."""
    return _forward(ring, combine, floats, non_floats)[0]


def _forward(ring, combine, floats, non_floats):
    inputs = combine(floats, non_floats)

    def step(visiting, carry, bars):
        out, log = carry  # O [Q, V] and L [Q] of the keys so far
        block_out, block_log = ring.compute(lambda blocks: softmax.forward(visiting, blocks)[0])
        block_log = jnp.where(block_log == jnp.inf, -jnp.inf, block_log)  # no key: fused has +inf
        total = jnp.logaddexp(log, block_log)  # L' = log(exp(L) + exp(L_b))
        finite = jnp.where(total == -jnp.inf, 0.0, total)  # no key so far: no inf - inf
        share = lambda log: jnp.exp(log - finite)[:, None]  # [Q, 1]
        return (out * share(log) + block_out.astype(out.dtype) * share(block_log), total), bars

    (queries, precision), width = (inputs.query.shape[0], precision_of(inputs)), inputs.value.shape[1]
    start = jnp.zeros((queries, width), precision), jnp.full((queries,), -jnp.inf, precision)
    (out, log), _ = _tour(ring, inputs, step, start)
    outputs = out.astype(inputs.value.dtype), jnp.where(log == -jnp.inf, jnp.inf, log)
    return outputs, (floats, non_floats, outputs)


# --- backward ---------------------------------------------------------------------------------------------------------


def _backward(ring, combine, residuals, output_bars):
    """The cotangents of `floats`. Those of the scores S of a block, dS = P (dP - rowsum(dO * O)) with P = exp(S - L),
    need O and L of all keys and nothing else of other blocks, so that each block is pulled back when it visits."""
    floats, non_floats, outputs = residuals
    inputs = combine(floats, non_floats)
    zeros = lambda tree: jax.tree.map(lambda x: jnp.zeros(x.shape, accumulator(x.dtype)), tree)
    add = lambda total, increment: jax.tree.map(jnp.add, total, increment)

    def step(visiting, resident, key_bars):
        block = ring.compute(lambda blocks: softmax.backward(visiting, blocks, outputs, (), output_bars))
        resident = add(resident, (block.rules, block.query, block.bias_query))  # stay on this device
        return resident, add(key_bars, (block.key, block.value))  # dK [K, E] and dV [K, V] travel with K and V

    start = zeros((partition(inputs.rules)[0], inputs.query, inputs.bias_query))
    (rules, query, bias_query), (key, value) = _tour(ring, inputs, step, start, zeros((inputs.key, inputs.value)))
    float_bars = jax.tree.leaves(Gradients(rules, query, key, value, bias_query))
    float_bars += [jnp.zeros_like(x) for x in floats[len(float_bars) :]]  # mask and dropout rate
    return [bar.astype(x.dtype) for bar, x in zip(float_bars, floats, strict=True)], None


_attend.defvjp(_forward, _backward)
