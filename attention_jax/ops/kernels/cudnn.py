"""NVIDIA's flash attention kernel for the calls that it supports: dot products in half precision, with structural
masks, and what is one in other words (`terms.py`).

It is reached through `jax.nn.dot_product_attention(implementation="cudnn")`, whose batching rules
(JAX 0.10 to 0.12) need every operand to be batched, and on its first axis. `_together` sees to that, so that
`jax.vmap` over any axis of some operands is right. Its gradient refuses odd lengths, so these are padded by a row. Its
log-sum-exp loses its gradient there and is never used.
"""

import functools

import jax
import jax.numpy as jnp

from attention_jax.ops.blockwise.score_blocks import replace_nonfinite
from attention_jax.ops.kernels.terms import as_product, hide, not_a_product
from attention_jax.ops.masks import Causal, Lengths, Window, split_mask

MASKS = (set(), {Causal}, {Lengths}, {Causal, Lengths}, {Causal, Window})


@functools.cache
def missing() -> str | None:
    """Return why JAX cannot trace cuDNN's kernel here, for any platform; None if its CUDA libraries are installed, with
    a GPU or without."""
    x = jax.ShapeDtypeStruct((1, 8, 1, 8), jnp.bfloat16)
    try:
        jax.eval_shape(functools.partial(jax.nn.dot_product_attention, implementation="cudnn"), x, x, x)
    except (RuntimeError, NotImplementedError) as error:  # no cuDNN, or one that is too old for the card
        return str(error)
    return None


def unsupported_reason(call) -> str | None:
    """Return why cuDNN cannot compute a call, `dispatch.Call`, exactly; None if it can."""
    query, key, value, score, bias, mask, _, query_offset, sink, *_ = call
    if missing() is not None:
        return f"needs an NVIDIA GPU's cuDNN, which JAX looks for while it traces ({missing()})"
    if not query.dtype == key.dtype == value.dtype or query.dtype not in (jnp.bfloat16, jnp.float16):
        return (
            "needs query, key and value all in bfloat16 or all in float16, "
            f"got {query.dtype}, {key.dtype} and {value.dtype}"
        )
    reason = not_a_product(call)
    if reason is not None:
        return reason
    if not (query.shape[0] and key.shape[0]):
        return f"needs queries and keys, got {query.shape[0]} and {key.shape[0]}"
    kinds = [type(rule) for rule in split_mask(mask)]
    if len(set(kinds)) < len(kinds) or set(kinds) not in MASKS:
        return "knows no masks but causal(), lengths(n), causal() & lengths(n) and causal() & window(w)"
    if mask is not None and not isinstance(mask, Lengths):  # causal
        if query.shape[0] != key.shape[0]:
            return f"needs as many queries as keys for a causal mask, got {query.shape[0]} and {key.shape[0]}"
        if not isinstance(query_offset, int) or query_offset:
            return "needs query_offset=0 for a causal mask"
        if sink is not None and Window in kinds:
            return "knows no sink beside a window"
    as_arrays = lambda *arrays: as_product(*arrays, score, bias, mask, sink)[:3]
    size = jax.eval_shape(as_arrays, query, key, value)[0].shape[1]
    return None if size <= 128 else f"needs head sizes up to 128, got {size} with all features"


def attend(query, key, value, score, bias, mask, sink=None):
    """softmax(score(query, key) + bias, where=mask) value [Q, V] by cuDNN, for a call without `unsupported_reason`.

    An odd number of queries or keys gets one more row of zeros. The row of the query is cut off, so that its cotangent
    is zero; the key is hidden by the causal mask or by the number of keys.
    """
    # 1. keys that no query may attend to, made finite: the kernel multiplies their values by the weight 0
    by_type = {type(rule): rule for rule in split_mask(mask)}
    (queries, features), keys, is_causal = (query.shape[0], value.shape[1]), key.shape[0], Causal in by_type
    num_keys = jnp.asarray(keys, jnp.int32)
    if Lengths in by_type:
        num_keys = jnp.clip(jnp.asarray(by_type[Lengths].length), 0, keys).astype(jnp.int32)
        is_real = jnp.arange(keys) < num_keys
        key, value = hide(key, is_real), replace_nonfinite(value, is_real)
    # 2. score and bias as one product, [Q, H] and [K, H]; a sink is one more row before the keys (causal: and queries)
    query, key, value, scale, attended = as_product(query, key, value, score, bias, mask, sink)
    first, num_keys, keys = query.shape[0] - queries, num_keys + (key.shape[0] - keys), key.shape[0]
    # 3. even lengths: under a causal mask the key of zeros comes after all queries, else `num_keys` does not count it
    has_lengths = Lengths in by_type or (keys % 2 == 1 and not is_causal)
    query, key, value = (jnp.pad(x, ((0, x.shape[0] % 2), (0, 0))) for x in (query, key, value))
    num_queries = jnp.asarray(query.shape[0], jnp.int32)
    query, key, value, num_queries, num_keys = _batch_inputs(query, key, value, num_queries, num_keys)
    out = jax.nn.dot_product_attention(
        query[None, :, None, :],  # [1, Q, 1, D], Q even
        key[None, :, None, :],  # [1, K, 1, D], K even
        value[None, :, None, :],  # [1, K, 1, V]
        is_causal=is_causal,
        query_seq_lengths=num_queries[None] if has_lengths else None,
        scale=scale,
        key_value_seq_lengths=jnp.maximum(num_keys, 1)[None] if has_lengths else None,
        local_window_size=(by_type[Window].width, 0) if Window in by_type else None,
        implementation="cudnn",
    )
    # 4. [1, Q, 1, H] -> [Q, V], without the rows and features that were added; 0 for queries without keys
    out = _batch_cotangent(out)[0, first : first + queries, 0, :features]  # [Q, V]
    if attended is not None:
        return jnp.where(attended[:, None], out, jnp.zeros_like(out))
    return jnp.where(num_keys > 0, out, jnp.zeros_like(out)) if Lengths in by_type else out


@jax.custom_batching.custom_vmap
def _together(*arrays):
    """The identity; under `jax.vmap` it batches all arrays on their first axis."""
    return arrays


@_together.def_vmap
def _together_batched(size, batched, *arrays):
    arrays = [x if b else jnp.broadcast_to(x[None], (size, *x.shape)) for x, b in zip(arrays, batched)]
    return _together(*arrays), (True,) * len(arrays)


@jax.custom_vjp
def _batch_inputs(query, key, value, query_length, key_length):
    return _together(query, key, value, query_length, key_length)


_batch_inputs.defvjp(lambda *arrays: (_together(*arrays), None), lambda _, bars: (*bars[:3], None, None))


@jax.custom_vjp
def _batch_cotangent(out):
    """The identity; its gradient is batched as the array is."""
    return out


_batch_cotangent.defvjp(lambda out: (out, out[:, :1]), lambda like, bar: (_together(bar, like)[0],))
