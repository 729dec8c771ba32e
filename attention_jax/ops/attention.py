"""`attend`: attention as a differentiable lookup - score, mask, normalise, pool - for any score, in one signature."""

from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax import InputError
from attention_jax.ops.biases import Bias
from attention_jax.ops.masks import Mask
from attention_jax.ops.scores import ScaledDot, Score

Implementation = Literal["plain", "fused"]


def masked_softmax(scores: Float[Array, "... Q K"], mask: Bool[Array, "... Q K"] | None = None) -> Float[Array, "... Q K"]:
    """Softmax over the keys that `mask` allows (all, if None): the only place where a mask meets a score.

    Forbidden keys, and those whose score is -inf, weigh exactly 0 and receive no gradient. A row without any allowed key is
    all zeros, with zero gradient: neither NaN nor a mean over what was forbidden.

    >>> masked_softmax(jnp.zeros((2, 2)), jnp.array([[True, True], [False, False]])).tolist()
    [[0.5, 0.5], [0.0, 0.0]]
    """
    allowed = scores != -jnp.inf
    allowed = allowed if mask is None else allowed & mask
    scores = jnp.where(allowed, scores, 0.0)  # whatever was forbidden, NaN included, is gone: forward and backward
    return jax.nn.softmax(scores, axis=-1, where=allowed)


def attend(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    value: Float[Array, "K V"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    dropout: Float[Array, ""] | float | None = None,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | int = 0,
    implementation: Implementation | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "Q V"]:
    """Pool the values by how well their keys answer each query: `softmax(score(query, key) + bias, where=mask) @ value`.

    For ONE sequence and one head: `jax.vmap` over batch and heads (and over whatever leaves of score, bias and mask differ there).

    * `score`, `bias`, `mask`: callable pytrees, see attention_jax/ops/{scores,biases,masks}.py. True in a mask = may attend.
    * `dropout`: the share of weights to drop (Vaswani et al. 2017, 5.4); nothing is dropped without `rng`. Which weights are dropped
      depends on `rng` and on the positions alone: not on the implementation, not on the blocks.
    * `query_offset`: the position of the first query (keys start at 0), for decoding with a cache.
    * A query that may attend to nothing gets exactly zero, and zero gradients. NaN or infinity in a key or value
      that no query may attend to has no effect.

    >>> attend(jnp.array([[1.0, 0.0]]), jnp.array([[9.0, 0.0], [0.0, 9.0]]), jnp.array([[1.0], [2.0]])).round(2).tolist()
    [[1.0]]
    """
    _check(query, key, value)
    if mask is not None:
        query, key, value = _shield(query, key, value, mask, query_offset)
    return _plain(query, key, value, score, bias, mask, dropout, rng, query_offset)


def attention_weights(
    query: Float[Array, "Q D"],
    key: Float[Array, "K E"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    query_offset: Int[Array, ""] | int = 0,
) -> Float[Array, "Q K"]:
    """The weights that `attend` would pool with, for looking at: they take Q * K memory.

    >>> attention_weights(jnp.ones((1, 2)), jnp.ones((4, 2))).tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    query_positions, key_positions = query_offset + jnp.arange(query.shape[0]), jnp.arange(key.shape[0])
    scores = score(query, key)
    if bias is not None:
        scores = scores + bias(query, query_positions, key_positions).astype(scores.dtype)
    return masked_softmax(scores, None if mask is None else mask(query_positions, key_positions))


def dropout_words(rng: Key[Array, ""], queries: int, keys: int) -> tuple[Array, Array]:
    """Random words, one per query and one per key, that together decide what is dropped."""
    for_queries, for_keys = jax.random.split(rng)
    return jax.random.bits(for_queries, (queries,), jnp.uint32), jax.random.bits(for_keys, (keys,), jnp.uint32)


def dropout_factor(query_words: Array, key_words: Array, rate: Array | float, dtype) -> Float[Array, "Q K"]:
    """0 where dropped, 1 / (1 - rate) where kept. The bits of a pair are a hash of its two words, so that any block of the matrix
    can be had at any time: a blockwise forward and its backward pass, and the plain computation, agree bit for bit."""
    x = query_words[:, None] ^ key_words[None, :]
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)  # Wellons' "lowbias32" finaliser
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    uniform = (x >> 8).astype(jnp.float32) * 2.0**-24
    return jnp.where(uniform >= rate, 1.0 / (1.0 - rate), 0.0).astype(dtype)


def _plain(query, key, value, score, bias, mask, dropout, rng, query_offset):
    weights = attention_weights(query, key, score=score, bias=bias, mask=mask, query_offset=query_offset)
    if rng is not None and dropout is not None:
        weights = weights * dropout_factor(*dropout_words(rng, *weights.shape), dropout, weights.dtype)
    return jnp.einsum("qk,kv->qv", weights.astype(value.dtype), value, preferred_element_type=weights.dtype).astype(value.dtype)


def _shield(query, key, value, mask, query_offset):
    """Replace what takes no part in any allowed pair, if it is not finite: 0 * NaN would be NaN."""
    allowed = mask(query_offset + jnp.arange(query.shape[0]), jnp.arange(key.shape[0]))
    asked, answered = allowed.any(axis=1)[:, None], allowed.any(axis=0)[:, None]

    def finite(x, alive):
        return jnp.where(alive | jnp.isfinite(x), x, jnp.ones_like(x))

    return finite(query, asked), finite(key, answered), finite(value, answered)


def _check(query, key, value):
    if not query.ndim == key.ndim == value.ndim == 2 or key.shape[0] != value.shape[0]:
        raise InputError(
            f"attend needs query [Q, D], key [K, D] and value [K, V], got {query.shape}, {key.shape} and {value.shape}; "
            "vmap it over batch and heads"
        )
