"""The TPU flash attention kernel for the calls that it supports: dot products in bfloat16, with structural masks.

It is JAX's own, `jax.experimental.pallas.ops.tpu.flash_attention`, which is written for [B, H, T, D]; under `jax.vmap`
Pallas adds an axis to its grid for each axis of `attend`'s caller. Its sibling `splash_attention` is not taken: it has
no scale, so that queries would be rounded once more, and writes a causal mask out block by block when it is traced (9 s
for 32,768 queries).
"""

import jax.numpy as jnp

from attention_jax.ops.blockwise.score_blocks import replace_nonfinite
from attention_jax.ops.masks import Causal, Lengths, parts, unsupported_mask
from attention_jax.ops.scores import Dot, ScaledDot

BLOCKS = (512, 256, 128)
"""Of queries and of keys: the first that divides both lengths."""


def not_products(query, key, value, score, bias, dropout) -> str | None:
    """Return why a call is not a dot product in bfloat16, the only score of the TPU kernels; None if it is."""
    if type(score) not in (Dot, ScaledDot):
        return f"computes dot products, scaled or not, but not {type(score).__name__}"
    if bias is not None or dropout is not None:
        return "is used without bias and without dropout"
    if not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        return f"needs query, key and value in bfloat16, got {query.dtype}, {key.dtype} and {value.dtype}"
    return None


def unsupported_reason(query, key, value, score, bias, mask, dropout, query_offset) -> str | None:
    """Return why the kernel cannot compute this call exactly; None if it can."""
    unusual = not_products(query, key, value, score, bias, dropout)
    if unusual is not None:
        return unusual
    width = query.shape[1]
    if not width == key.shape[1] == value.shape[1] or width % (8 if width < 128 else 128):
        return (
            "needs one head size, a multiple of 8 below 128 or of 128, "
            f"got {width}, {key.shape[1]} and {value.shape[1]}"
        )
    if query.shape[0] % BLOCKS[-1] or key.shape[0] % BLOCKS[-1]:
        return f"needs lengths that {BLOCKS[-1]} divides, got {query.shape[0]} queries and {key.shape[0]} keys"
    return unsupported_mask(mask, query, key, query_offset)


def attend(query, key, value, score, mask):
    """softmax(score(query, key), where=mask) value, [Q, V]; the call must have passed `unsupported_reason`."""
    from jax.experimental.pallas.ops.tpu import flash_attention as library  # Pallas is slow to import

    given = {type(part): part for part in parts(mask)}
    queries, keys, length, segments = query.shape[0], key.shape[0], None, None
    if Lengths in given:
        length = jnp.asarray(given[Lengths].length)
        real = jnp.arange(keys) < length
        query = replace_nonfinite(query, jnp.broadcast_to(length > 0, queries))
        key, value = replace_nonfinite(key, real), replace_nonfinite(value, real)
        segments = library.SegmentIds(jnp.ones((1, queries), jnp.int32), real.astype(jnp.int32)[None])
    block = next(size for size in BLOCKS if queries % size == 0 and keys % size == 0)
    out = library.flash_attention(
        *(x[None, None] for x in (query, key, value)),  # [1, 1, T, D]
        segment_ids=segments,
        causal=Causal in given,
        sm_scale=query.shape[1] ** -0.5 if type(score) is ScaledDot else 1.0,
        block_sizes=library.BlockSizes(block, block, block, 1, *(block,) * 7),
    )[0, 0]  # [Q, V]
    return out if length is None else jnp.where(length > 0, out, jnp.zeros_like(out))
