"""Which implementation `attend` takes, and how large its blocks are. Measured with
`python launch.py bench attention`."""

import math
from typing import Literal

import jax

from attention_jax import InputError
from attention_jax.ops import cudnn
from attention_jax.ops.fused import Blocks

Implementation = Literal["plain", "fused", "cudnn"]

FUSED_FROM = {"cpu": 256 * 256, "gpu": 1024 * 1024}
"""Pairs Q * K, times the score's `pair_cost`, from which "fused" is taken: where its gradient is clearly faster than
that of "plain". On 2 cores, 8 heads of 64: as fast at 64 x 64, 1.4x at 128 x 128, 1.5x at 256 x 256 and 5x at
512 x 512, compiling 3x as long."""

PAIRS_PER_BLOCK = {"cpu": 512 * 256, "gpu": 4096 * 512}
"""Pairs in one block of a score that costs 1 per pair; divided by the cost of others, but not below 64 x 64."""


def choose(query, key, value, score, bias, mask, dropout, query_offset, asked: Implementation | None) -> Implementation:
    """The rule, in order:

    1. what the caller asks for, if it can do the call;
    2. "cudnn" on a GPU, where it can express the call exactly (`cudnn.refusal`);
    3. "plain" where the matrix is small, else "fused".
    """
    if asked not in (None, "plain", "fused", "cudnn"):
        raise InputError(f'implementation must be "plain", "fused", "cudnn" or None, got {asked!r}')
    platform = jax.default_backend()
    if asked == "cudnn" or (asked is None and platform == "gpu"):
        refusal = cudnn.refusal(query, key, value, score, bias, mask, dropout, query_offset)
        if refusal is None:
            return "cudnn"
        if asked == "cudnn":
            raise InputError(f'implementation="cudnn" {refusal}: take "fused", or None to choose by itself')
    if asked is not None:
        return asked
    if min(query.shape[0], key.shape[0]) < 16:  # the weights are hardly more than the keys
        return "plain"
    pairs, threshold = query.shape[0] * key.shape[0], FUSED_FROM.get(platform, FUSED_FROM["gpu"])
    if pairs < 64 * 64:  # one block at most: there is nothing to save
        return "plain"
    return "fused" if pairs >= threshold or pairs * pair_cost(score, query, key) >= threshold else "plain"


def choose_blocks(score, query, key, block_q: int | None = None, block_k: int | None = None) -> Blocks:
    """Blocks as tall as wide or twice as tall, in powers of two, of about PAIRS_PER_BLOCK / `pair_cost` pairs.

    Tall, because a block of queries is loaded once and the keys go by. On 2 cores, gradient of 8 heads of 64,
    T = 2048: 512 x 256 0.121 s, 512 x 512 0.150, 256 x 256 0.164; `Additive` with 128 hidden units, 512 x 512:
    64 x 64 0.033 s, 32 x 32 0.050.
    """
    limit = PAIRS_PER_BLOCK.get(jax.default_backend(), PAIRS_PER_BLOCK["gpu"])
    pairs = max(limit // pair_cost(score, query, key), 64 * 64)
    width = 2 ** (int(math.log2(pairs)) // 2)
    height = 2 ** int(math.log2(pairs // width))
    return Blocks(block_q or height, block_k or width)


def pair_cost(score, query, key) -> int:
    """Elements that the score's largest intermediate has per pair: 1 for dot products, H for
    `Additive`. Read off its trace.

    >>> from jax import numpy as jnp
    >>> from attention_jax.ops.scores import Additive, ScaledDot
    >>> x = jnp.ones((100, 8))
    >>> pair_cost(ScaledDot(), x, x), pair_cost(Additive.init(jax.random.key(0), 8, 8, 32), x, x)
    (1, 32)
    """
    size = 64
    jaxpr = jax.make_jaxpr(score)(*(jax.ShapeDtypeStruct((size, x.shape[1]), x.dtype) for x in (query, key)))
    return max(1, _largest(jaxpr.jaxpr, size * max(query.shape[1], key.shape[1]) + 1) // size**2)


def _largest(jaxpr, floor: int) -> int:
    """The most elements of any result inside, if more than `floor`."""
    sizes = [floor - 1]
    for equation in jaxpr.eqns:
        sizes += [math.prod(getattr(out.aval, "shape", ())) for out in equation.outvars]
        sizes += [
            _largest(getattr(inner, "jaxpr", inner), floor)
            for inner in equation.params.values()
            if hasattr(inner, "eqns")
        ]
    return max(sizes)
