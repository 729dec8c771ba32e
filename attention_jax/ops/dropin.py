"""`attend_heads` behind the signatures of other libraries: `attention_fn` for the attention modules of Flax (Linen and
NNX), and `dot_product_attention` in place of `jax.nn.dot_product_attention`.

A query that may attend to no key gets zero, as everywhere in this package; Flax and JAX give it the mean of all values,
except for queries beyond `query_seq_lengths`. Arguments that cannot be expressed raise InputError.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.ops.biases import Bias
from attention_jax.ops.dispatch import Implementation
from attention_jax.ops.dropout import is_zero
from attention_jax.ops.heads import attend_heads, head_weights
from attention_jax.ops.masks import Mask, causal, is_broadcastable, lengths, window
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.scores import ScaledDot, Score


def attention_fn(
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    implementation: Implementation | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Callable:
    """Return an `attention_fn` for the attention modules of Flax, Linen and NNX, whose attention is `attend_heads`.

    The function takes all arguments of Flax's `dot_product_attention`. For the same key, dropout drops different
    weights than Flax does. Sums are in float32 at least, with and without `force_fp32_for_softmax`.

    Args:
      score, normalizer: as in `attend_heads`. In a Linen module, a learned parameter is a leaf of the score:
        `jax.tree_util.Partial(function, self.param(...))`.
      bias, mask: as in `attend_heads`; the arrays that the module passes count in addition.
      implementation, block_q, block_k: as in `attend_heads`.

    Raises:
      InputError: from the function, for `precision` and for products other than `jnp.einsum`; and for a bias or mask of
        positions, `is_causal` too, where a module decodes (`decode=True`): it does not say where its query is.

    >>> import flax.linen as nn
    >>> layer = nn.MultiHeadDotProductAttention(2, attention_fn=attention_fn(mask=causal()))
    >>> layer.init_with_output(jax.random.key(0), jnp.ones((1, 3, 4)))[0].shape
    (1, 3, 4)
    """
    rules = {"score": score, "bias": bias, "mask": mask, "normalizer": normalizer}
    return partial(_attention, rules, {"implementation": implementation, "block_q": block_q, "block_k": block_k})


def _attention(
    rules,
    static,
    /,
    query: Float[Array, "*batch T H D"],
    key: Float[Array, "*batch S G E"],
    value: Float[Array, "*batch S G V"],
    bias=None,
    mask=None,
    broadcast_dropout=True,
    dropout_rng=None,
    dropout_rate=0.0,
    deterministic=False,
    dtype=None,
    precision=None,
    module=None,
    force_fp32_for_softmax=False,
    einsum_dot_general=None,
    qk_attn_weights_einsum=None,
    attn_weights_value_einsum=None,
    is_causal=False,
) -> Float[Array, "*batch T H V"]:
    """Attention with the arguments of Flax's `dot_product_attention`."""
    if precision not in (None, "default", jax.lax.Precision.DEFAULT):
        raise InputError(
            f"attention_fn needs precision=None, got {precision}: set jax.default_matmul_precision for the whole step"
        )
    if einsum_dot_general or qk_attn_weights_einsum or attn_weights_value_einsum:
        raise InputError("attention_fn takes no other products than jnp.einsum: leave the einsum arguments None")
    kind = jnp.result_type(query, key, value) if dtype is None else dtype
    batch, shape = query.shape[:-3], (*query.shape[:-1], value.shape[-1])
    if not query.ndim == key.ndim == value.ndim >= 3 or not batch == key.shape[:-3] == value.shape[:-3]:
        raise InputError(
            f"attention_fn needs query [..., T, H, D], key [..., S, G, E] and value [..., S, G, V], got {query.shape}, "
            f"{key.shape} and {value.shape}"
        )
    _check_positions(rules, is_causal, query.shape[-3], key.shape[-3])
    query, key, value = (_flatten_batch(x.astype(kind)) for x in (query, key, value))
    arrays = {"bias": _in_batch("bias", bias, batch), "mask": _in_batch("mask", mask, batch)}
    arrays["mask"] = None if mask is None else arrays["mask"].astype(bool)  # of numbers in Linen
    rules = rules | {"bias": _join_rules(rules["bias"], arrays["bias"])}
    rules = rules | {"mask": _join_rules(rules["mask"], arrays["mask"], causal() if is_causal else None)}
    if module is not None:
        weights = head_weights(query.swapaxes(1, 2), key.swapaxes(1, 2), rules)  # [B, H, T, S]
        module.sow("intermediates", "attention_weights", weights.reshape(*batch, *weights.shape[1:]).astype(kind))
    drop = {} if deterministic else _dropout(dropout_rate, dropout_rng, broadcast_dropout, query)
    return attend_heads(query, key, value, **rules, **static, **drop).reshape(shape)


def _check_positions(rules, is_causal, queries, keys):
    """Raise InputError for rules of positions in a decoding step, whose position is unknown."""
    if queries == 1 < keys and (is_causal or (rules["bias"], rules["mask"]) != (None, None)):
        raise InputError(
            "attention_fn cannot tell the position of a single query from its shape: with decode=True give no bias or "
            "mask of positions and no is_causal=True; the module's own mask is causal. Or call attend_heads with "
            "query_offset"
        )


def _join_rules(*rules):
    """A mask or bias of several parts; None of none."""
    rules = tuple(rule for rule in rules if rule is not None)
    return (rules if len(rules) > 1 else rules[0]) if rules else None


def _in_batch(name: str, array, batch: tuple[int, ...]):
    """An array that broadcasts to [*batch, H, T, S] as [B or 1, H or 1, T or 1, S or 1]; InputError for another."""
    if array is None:
        return None
    array = jnp.asarray(array)
    if array.ndim > len(batch) + 3 or not is_broadcastable(array.shape[:-3], batch):
        raise InputError(f"{name} must broadcast to [{', '.join(map(str, batch))}, H, T, S], got {list(array.shape)}")
    array = array.reshape((1,) * (len(batch) + 3 - array.ndim) + array.shape)
    if any(size != 1 for size in array.shape[:-3]):
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return _flatten_batch(array)


def _flatten_batch(x):
    """An array [*batch, ., ., .] with one batch axis, which may be empty."""
    return x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def _dropout(rate, rng, broadcast: bool, query) -> dict:
    """The arguments of `attend_heads` for dropout, the same in all sequences and heads if `broadcast`."""
    if is_zero(rate):
        return {}
    if rng is None:
        raise InputError(f"attention_fn needs a dropout_rng for dropout_rate={rate}: give one, or deterministic=True")
    if not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
        rng = jax.random.wrap_key_data(rng)
    each = (query.shape[0], query.shape[2])
    return {"dropout": rate, "rng": jnp.broadcast_to(rng, each) if broadcast else rng}


def dot_product_attention(
    query: Float[Array, "*B T N H"],
    key: Float[Array, "*B S K H"],
    value: Float[Array, "*B S K H"],
    bias=None,
    mask=None,
    *,
    scale: float | None = None,
    is_causal: bool = False,
    query_seq_lengths=None,
    key_value_seq_lengths=None,
    local_window_size: int | tuple[int, int] | None = None,
    implementation: str | None = None,
    return_residual: bool = False,
):
    """`jax.nn.dot_product_attention` by `attend_heads`: its arguments, for [B, T, N, H] or [T, N, H], and its result.

    `implementation` is one of `attend_heads`, or "xla", which is "plain". The residual, the log-sum-exp, has a
    gradient, and is -inf where a query may attend to no key. In half precision, a `scale` rounds the queries once.

    >>> x = jnp.ones((2, 3, 4, 8))
    >>> dot_product_attention(x, x, x, is_causal=True, local_window_size=(1, 0)).shape
    (2, 3, 4, 8)
    """
    query, key, value = map(jnp.asarray, (query, key, value))
    shape, arrays = query.shape, {"bias": bias, "mask": mask}
    if not query.ndim == key.ndim == value.ndim or query.ndim not in (3, 4):
        raise InputError(f"query must be [B, T, N, H] or [T, N, H], as key and value, got {query.ndim} axes")
    query, key, value = map(_flatten_batch, (query, key, value))
    bias, mask = (_in_batch(name, x, query.shape[:1]) for name, x in arrays.items())
    masks = [mask, causal() if is_causal else None, _local(local_window_size)]
    for sizes, rule in ((query_seq_lengths, _queries_before), (key_value_seq_lengths, lengths)):
        if sizes is not None:
            sizes = jnp.asarray(sizes)
            if sizes.shape != query.shape[:1] or not jnp.issubdtype(sizes.dtype, jnp.integer):
                raise InputError(
                    f"sequence lengths must be integers [B] = [{query.shape[0]}], got {sizes.dtype} {list(sizes.shape)}"
                )
            masks.append(rule(sizes))
    result = attend_heads(
        query if scale is None else query * jnp.asarray(scale * math.sqrt(query.shape[-1]), query.dtype),
        key,
        value,
        bias=bias,
        mask=_join_rules(*masks),
        return_log_sum_exp=return_residual,
        implementation="plain" if implementation == "xla" else implementation,
    )
    if not return_residual:
        return result.reshape(*shape[:-1], value.shape[-1])
    return result[0].reshape(*shape[:-1], value.shape[-1]), result[1].astype(key.dtype).reshape(shape[:-1])


def _local(size: int | tuple[int, int] | None) -> Mask | None:
    """Keys at most `left` positions before a query and `right` after it."""
    if size is None:
        return None
    left, right = (size, size) if isinstance(size, int) else size
    if left == right:
        return window(left)
    return window(max(left, right)) & jax.tree_util.Partial(_between, left, right)


def _between(left, right, query_positions, key_positions):
    ahead = key_positions[None, :] - query_positions[:, None]
    return (ahead >= -left) & (ahead <= right)


def _queries_before(sizes):
    """A mask of the first queries of each sequence."""
    return jax.tree_util.Partial(lambda size, rows, columns: (rows < size)[:, None], sizes)
