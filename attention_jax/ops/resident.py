"""TPU attention kernel for short sequences, each held entirely in VMEM: sentences, and images, whose 196 patches are
not a multiple of the tile size 128.

A program of the kernel processes some sequences and 128 of their channels, which are one head or several narrow ones,
from the layout [B, T, H D] of a projection. Weights never reach HBM, forward or backward: the gradient reads query,
key, value and the output's gradient, and recomputes the weights and the row sums of the softmax. Matmuls have the size
of the matrix unit: neighbouring heads are separated by zeroed channels, and several sequences shorter than 128 are
joined, separated by a mask. Hence an unmasked NaN spreads to the sequences joined with its own; a masked NaN has no
effect.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from attention_jax.ops.flash import not_products
from attention_jax.ops.masks import Causal, Lengths, parts, unsupported_mask
from attention_jax.ops.score_blocks import replace_nonfinite
from attention_jax.ops.scores import ScaledDot

UNIT = 128
"""Rows and columns that are multiplied at a time; channels in a program."""
TILE = 16
"""Sublanes of a bfloat16 tile: rows that are stored together."""
LONGEST = 640
"""Maximum number of queries or keys, for which a few float32 arrays [Q, K] fit into 16 MiB of VMEM with the rest."""
ROWS = 1024
"""Of queries or keys in a program, if a sequence has fewer."""


def unsupported_reason(query, key, value, score, bias, mask, dropout, query_offset) -> str | None:
    """Return why the kernel cannot compute this call exactly; None if it can."""
    unusual = not_products(query, key, value, score, bias, dropout)
    if unusual is not None:
        return unusual
    if not query.shape[1] == key.shape[1] == value.shape[1] or UNIT % query.shape[1]:
        return f"needs one head size that divides {UNIT}, got {query.shape[1]}, {key.shape[1]} and {value.shape[1]}"
    lengths = query.shape[0], key.shape[0]
    if any(length > LONGEST or (length < UNIT and length % TILE) for length in lengths):
        return (
            f"holds up to {LONGEST} queries and keys, below {UNIT} a multiple of {TILE}, "
            f"got {lengths[0]} queries and {lengths[1]} keys"
        )
    return unsupported_mask(mask, query, key, query_offset)


def attend(query: Float[Array, "Q D"], key: Float[Array, "K D"], value: Float[Array, "K D"], score, mask):
    """softmax(score(query, key), where=mask) value, [Q, D]; the call must have passed `unsupported_reason`."""
    given = {type(part): part for part in parts(mask)}
    scale, real = query.shape[1] ** -0.5 if type(score) is ScaledDot else 1.0, None
    if Lengths in given:
        real = (jnp.arange(key.shape[0]) < given[Lengths].length).astype(jnp.int32)[None]
    return _attend(scale, Causal in given, query, key, value, real)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(scale, causal, *inputs):
    return _attend_forward(scale, causal, *inputs)[0]


def _attend_forward(scale, causal, query, key, value, real):
    if real is not None:  # what this changes has no gradient, so that only what it makes is kept
        there = real[0] > 0
        query = replace_nonfinite(query, jnp.broadcast_to(there[0], query.shape[:1]))
        key, value = replace_nonfinite(key, there), replace_nonfinite(value, there)
    return _run(_forward, scale, causal, (0,), real, query, key, value)[0], (query, key, value, real)


def _attend_backward(scale, causal, saved, out_bar):
    *arrays, real = saved
    return *_run(_backward, scale, causal, (0, 1, 2), real, *arrays, out_bar), None


_attend.defvjp(_attend_forward, _attend_backward)


# --- from [T, D] to [B, T, H D] ---------------------------------------------------------------------------------------


def _run(kernel, scale, causal, like, real, *arrays):
    """Run `kernel` over arrays [T, D] and the key padding mask `real` [1, K], or None; the results have the shapes of
    the arrays at the indices `like`. Axes that `jax.vmap` adds are heads, then sequences."""
    call = functools.partial(_call, kernel, scale, causal, like, real is not None)
    return _over_heads(call)(*([] if real is None else [real]), *arrays)


def _over_heads(function, axes=2):
    """Convert a function of arrays [B, H, T, D] to one of [T, D], to which `jax.vmap` adds heads, then the batch."""
    if not axes:
        return function
    outer = _over_heads(function, axes - 1)

    @jax.custom_batching.custom_vmap
    def one(*arrays):
        return [y[0] for y in outer(*(x[None] for x in arrays))]

    @one.def_vmap
    def all_of_them(size, batched, *arrays):
        arrays = [x if b else jnp.broadcast_to(x[None], (size, *x.shape)) for x, b in zip(arrays, batched)]
        results = outer(*arrays)
        return results, [True] * len(results)

    return one


def _call(kernel, scale, causal, like, has_real, *arrays):
    """Call the kernel on arrays [B, H, T, D]; if `has_real`, the first is the padding mask [B, H, 1, K]."""
    from jax.experimental import pallas as pl  # slow to import

    real, arrays = (arrays[0], arrays[1:]) if has_real else (None, arrays)
    batch, heads, _, width = arrays[0].shape
    arrays = [_beside(x, -heads % (UNIT // width)) for x in arrays]  # [B, T, H D]
    longest = max(x.shape[1] for x in arrays)
    joined = _divisor(batch, max(1, UNIT // longest))
    together = joined * _divisor(batch // joined, max(1, ROWS // (joined * longest)))
    block = lambda x: pl.BlockSpec((together, x.shape[1], UNIT), lambda i, j: (i, 0, j))
    specs = [block(x) for x in arrays]
    if has_real:
        real = jnp.pad(real[:, :, 0], ((0, 0), (0, -heads % (UNIT // width)), (0, 0)))
        real = real.reshape(batch // joined, joined, -1, UNIT // width, real.shape[2])
        real = real.transpose(0, 2, 3, 1, 4).reshape(*real.shape[:1], *real.shape[2:4], -1)  # [B/j, H/h, h, j K]
        specs = [pl.BlockSpec((together // joined, 1, *real.shape[2:]), lambda i, j: (i, j, 0, 0)), *specs]
    results = pl.pallas_call(
        functools.partial(kernel, Inside(width, scale, causal, joined, has_real)),
        grid=(batch // together, arrays[0].shape[2] // UNIT),
        in_specs=specs,
        out_specs=[block(arrays[place]) for place in like],
        out_shape=[jax.ShapeDtypeStruct(arrays[place].shape, arrays[place].dtype) for place in like],
    )(*([real] if has_real else []), *arrays)
    return [y.reshape(*y.shape[:2], -1, width).swapaxes(1, 2)[:, :heads] for y in results]


def _divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number up to a limit; 1 for a symbolic dimension of an exported program."""
    return 1 if not isinstance(number, int) else max(n for n in range(1, limit + 1) if number % n == 0)


def _beside(x: Float[Array, "B H T D"], spare: int) -> Float[Array, "B T HD"]:
    """Concatenate the heads along the channels, followed by `spare` heads of zeros."""
    x = jnp.pad(x, ((0, 0), (0, spare), (0, 0), (0, 0))) if spare else x
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


# --- inside of the kernel ---------------------------------------------------------------------------------------------


class Inside(NamedTuple):
    """Static description of a kernel program's references [N, T, 128]."""

    width: int
    """Width of a head."""
    scale: float
    causal: bool
    joined: int
    """Sequences that are multiplied as one."""
    has_real: bool
    """Whether the first reference is the padding mask [N / joined, 1, heads, joined K], 0 for padding."""


def _forward(inside, *references):
    real, (query, key, value, out) = (references[0], references[1:]) if inside.has_real else (None, references)

    def group(n, _):
        q, k, v = (_rows(x, n, inside) for x in (query, key, value))
        pooled = jnp.zeros(q.shape, jnp.float32)
        for head, mine in enumerate(_heads(inside.width)):
            exp, total = _exponentials(jnp.where(mine, q, 0), k, _allowed(inside, q, k, real, n, head), inside.scale)
            pooled = jnp.where(mine, _product(exp.astype(v.dtype), v, 1, 0) / total, pooled)
        _put(out, pooled, n, inside)

    lax.fori_loop(0, query.shape[0] // inside.joined, group, None)


def _backward(inside, *references):
    real, references = (references[0], references[1:]) if inside.has_real else (None, references)
    query, key, value, out_bar, *results = references

    def group(n, _):
        q, k, v, bar = (_rows(x, n, inside) for x in (query, key, value, out_bar))
        bars = [jnp.zeros(x.shape, jnp.float32) for x in (q, k, v)]
        for head, mine in enumerate(_heads(inside.width)):
            exp, total = _exponentials(jnp.where(mine, q, 0), k, _allowed(inside, q, k, real, n, head), inside.scale)
            weights = exp / total
            weights_bar = _product(jnp.where(mine, bar, 0), v, 1, 1)
            scores_bar = weights * (weights_bar - (weights * weights_bar).sum(axis=1, keepdims=True))
            scores_bar, weights = ((x.astype(q.dtype)) for x in (scores_bar * inside.scale, weights))
            new = _product(scores_bar, k, 1, 0), _product(scores_bar, q, 0, 0), _product(weights, bar, 0, 0)
            bars = [jnp.where(mine, y, x) for x, y in zip(bars, new)]
        for ref, rows in zip(results, bars):
            _put(ref, rows, n, inside)

    lax.fori_loop(0, query.shape[0] // inside.joined, group, None)


def _rows(reference, n, inside):
    """Return the n-th group of joined sequences, [joined T, 128]."""
    return reference[_group(n, inside)].reshape(-1, UNIT)


def _put(reference, rows, n, inside):
    reference[_group(n, inside)] = rows.astype(reference.dtype).reshape(inside.joined, -1, UNIT)


def _group(n, inside):
    from jax.experimental import pallas as pl

    return pl.ds(n * inside.joined, inside.joined)


def _heads(width):
    """Return the channel mask [1, 128] of each head."""
    channel = lax.broadcasted_iota(jnp.int32, (1, UNIT), 1)
    return [(channel >= first) & (channel < first + width) for first in range(0, UNIT, width)]


def _allowed(inside, q, k, real, n, head):
    """Return the mask of allowed pairs, [joined Q, joined K]; None if all are allowed."""
    shape, conditions = (q.shape[0], k.shape[0]), []
    row, column = (lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (0, 1))
    if inside.joined > 1:
        conditions.append(_sequence(row, shape[0], inside.joined) == _sequence(column, shape[1], inside.joined))
    if inside.causal:
        conditions.append(row >= column)
    if real is not None:
        conditions.append(jnp.broadcast_to(real[n, 0, head : head + 1, :], shape) > 0)
    return functools.reduce(jnp.logical_and, conditions) if conditions else None


def _sequence(place, size, joined):
    """Return the index of the joined sequence that each row or column belongs to."""
    return sum((place >= first).astype(jnp.int32) for first in range(size // joined, size, size // joined))


def _exponentials(q, k, allowed, scale):
    """Compute exp(score - row maximum) [Q, K], and its sums over the keys [Q, 1], 1 where no key is allowed."""
    scores = _product(q, k, 1, 1) * scale
    if allowed is None:
        exp = jnp.exp(scores - scores.max(axis=1, keepdims=True))
        return exp, exp.sum(axis=1, keepdims=True)
    scores = jnp.where(allowed, scores, jnp.finfo(jnp.float32).min)
    exp = jnp.where(allowed, jnp.exp(scores - scores.max(axis=1, keepdims=True)), 0.0)
    return exp, jnp.maximum(exp.sum(axis=1, keepdims=True), 1.0)  # the largest adds 1


def _product(a, b, over_a: int, over_b: int):
    """Contract one axis of each matrix, accumulated in float32; bfloat16 operands need no precision setting."""
    over = (((over_a,), (over_b,)), ((), ()))
    return lax.dot_general(a, b, over, precision=lax.Precision.DEFAULT, preferred_element_type=jnp.float32)
