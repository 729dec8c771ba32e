"""The TPU flash attention kernel for the calls that it supports: dot products in bfloat16, with structural masks, and
what is one in other words (`terms.py`).

It is JAX's own, `jax.experimental.pallas.ops.tpu.flash_attention`, which is written for [B, H, T, D]; under `jax.vmap`
Pallas adds an axis to its grid for each axis of `attend`'s caller. Its sibling `splash_attention` is not taken: it has
no scale, so that queries would be rounded once more, and writes a causal mask out block by block when it is traced (9 s
for 32,768 queries).
"""

import jax
import jax.numpy as jnp

from attention_jax.ops.blockwise.score_blocks import replace_nonfinite
from attention_jax.ops.kernels.terms import as_product, hide, not_a_product
from attention_jax.ops.masks import Causal, Lengths, split_mask, unsupported_mask_reason

BLOCKS = (512, 256, 128)
"""Of queries and of keys: the first that divides both lengths."""


def unsupported_reason(call) -> str | None:
    """Return why the kernel cannot compute a call, `dispatch.Call`, exactly; None if it can."""
    query, key, value, score, bias, mask, _, query_offset, sink, *_ = call
    if not query.dtype == key.dtype == value.dtype == jnp.bfloat16:
        return f"needs query, key and value in bfloat16, got {query.dtype}, {key.dtype} and {value.dtype}"
    reason = not_a_product(call)
    if reason is not None:
        return reason
    if sink is not None:
        return "knows no sink"
    if query.shape[0] % BLOCKS[-1] or key.shape[0] % BLOCKS[-1]:
        return f"needs lengths that {BLOCKS[-1]} divides, got {query.shape[0]} queries and {key.shape[0]} keys"
    reason = unsupported_mask_reason(mask, query, key, query_offset)
    if reason is not None:
        return reason
    as_arrays = lambda *arrays: as_product(*arrays, score, bias, mask)[:3]
    size = jax.eval_shape(as_arrays, query, key, value)[0].shape[1]
    return f"needs head sizes up to 128 or multiples of 128, got {size}" if size > 128 and size % 128 else None


def attend(query, key, value, score, bias, mask):
    """softmax(score(query, key) + bias, where=mask) value, [Q, V], for a call without `unsupported_reason`."""
    from jax.experimental.pallas.ops.tpu import flash_attention as library  # Pallas is slow to import

    by_type = {type(rule): rule for rule in split_mask(mask)}
    queries, keys, features, length, segments = query.shape[0], *value.shape, None, None
    if Lengths in by_type:  # all queries are in segment 1, as are the real keys; keys behind them are in segment 0
        length = jnp.asarray(by_type[Lengths].length)
        real = jnp.arange(keys) < length
        query = replace_nonfinite(query, jnp.broadcast_to(length > 0, queries))
        key, value = hide(key, real), replace_nonfinite(value, real)
        segments = library.SegmentIds(jnp.ones((1, queries), jnp.int32), real.astype(jnp.int32)[None])
    query, key, value, scale, attended = as_product(query, key, value, score, bias, mask)
    # the features of the terms widen queries, keys and values to one size H, of which the output's first V are read
    block = next(size for size in BLOCKS if queries % size == 0 and keys % size == 0)
    out = library.flash_attention(
        *(x[None, None] for x in (query, key, value)),  # [1, 1, T, D]
        segment_ids=segments,
        causal=Causal in by_type,
        sm_scale=scale,
        block_sizes=library.BlockSizes(block, block, block, 1, *(block,) * 7),
    )[0, 0, :, :features]  # [Q, V]
    if attended is not None:
        return jnp.where(attended[:, None], out, jnp.zeros_like(out))
    return out if length is None else jnp.where(length > 0, out, jnp.zeros_like(out))
