"""Logits times a factor of their query, for any score and bias: the scalable softmax as the softmax of another call.

softmax(s log(n_i) z_ij) of the logits z = score + bias is what every implementation of the softmax computes from other
queries: those of a score that is linear in the query are multiplied by s log(n_i), and any other score and bias read
the factor from further features of the query, through which its gradient flows.
"""

from dataclasses import dataclass, field

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.biases import Bias
from attention_jax.ops.blockwise.score_blocks import add_bias, count_keys, widen_scores
from attention_jax.ops.kernels.terms import FACTORS, three_parts
from attention_jax.ops.masks import Mask
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import ScalableSoftmax, Softmax
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scores import Bilinear, Dot, ScaledDot, Score, prepare_key, prepare_query
from attention_jax.ops.trees import describes_call, pytree

LINEAR = Dot, ScaledDot, Bilinear
"""Scores whose logits are linear in the query."""


def as_softmax(
    query: Float[Array, "Q D"],
    score: Score,
    bias: Bias | None,
    mask: Mask | None,
    normalizer: Normalizer,
    query_offset: Int[Array, ""] | int,
    keys: int,
) -> tuple[Float[Array, "Q F"], Score, Bias | None, Normalizer]:
    """(query, score, bias, normalizer) of the call with the softmax that has the same weights, for a `ScalableSoftmax`
    over `keys` keys; the same four for any other normalizer.

    The count of keys is that of the mask, from positions alone, and has no gradient; a query multiplied in half
    precision is rounded once.
    """
    if not isinstance(normalizer, ScalableSoftmax):
        return query, score, bias, normalizer
    dtype = accumulator(query.dtype)
    factor = normalizer.factor(count_keys(mask, query_offset, query.shape[0], keys), dtype)  # [Q]
    if bias is None and type(score) in LINEAR:
        return (query.astype(dtype) * factor[:, None]).astype(query.dtype), score, None, Softmax()
    columns = _in_parts(factor, query.dtype)
    query, channels = jnp.concatenate([query, columns], axis=1), columns.shape[1]  # [Q, D + channels]
    return query, ScaledScore(score, channels), None if bias is None else ScaledBias(bias, channels), Softmax()


def _in_parts(factor: Float[Array, " Q"], dtype) -> Float[Array, "Q P"]:
    """The factor as features of `dtype`: itself, or in half precision the three parts of which it is the sum."""
    if factor.dtype == dtype:
        return factor[:, None]
    return jnp.stack(three_parts(factor, dtype), axis=1)


def _split(query: Float[Array, "Q F"], channels: int) -> tuple[Float[Array, "Q D"], Float[Array, " Q"]]:
    """The query of a call, and the factor of its logits."""
    width, dtype = query.shape[1] - channels, accumulator(query.dtype)
    constants = jnp.asarray(FACTORS if channels > 1 else (1.0,), dtype)
    return query[:, :width], (query[:, width:].astype(dtype) * constants[None, :]).sum(axis=1)


def _times(logits: Float[Array, "Q K"], factor: Float[Array, " Q"]) -> Float[Array, "Q K"]:
    """The product; a logit of -inf, whose weight is 0, stays -inf whatever the factor."""
    finite = logits != -jnp.inf
    return jnp.where(finite, jnp.where(finite, logits, 0.0) * factor.astype(logits.dtype)[:, None], -jnp.inf)


@pytree
@dataclass(frozen=True)
class ScaledScore(Score):
    """A score times the factor in the last `channels` features of the query.

    >>> query, key = jnp.array([[2.0, 1.0, 10.0]]), jnp.array([[3.0, 4.0]])
    >>> ScaledScore(Dot(), 1)(query, key).tolist()
    [[100.0]]
    """

    score: Score
    channels: int = field(metadata={"static": True})

    def __call__(self, query, key):
        query, factor = _split(query, self.channels)
        return _times(widen_scores(self.score, self.score(query, key), query, key), factor)

    def prepare_key(self, key):
        score, key = prepare_key(self.score, key)
        return ScaledScore(score, self.channels), key

    def prepare_query(self, query):
        inner = query[:, : query.shape[1] - self.channels]
        score, prepared = prepare_query(self.score, inner)
        if prepared is inner:
            return ScaledScore(score, self.channels), query
        columns = query[:, query.shape[1] - self.channels :].astype(prepared.dtype)
        return ScaledScore(score, self.channels), jnp.concatenate([prepared, columns], axis=1)

    def terms(self, query, key):
        """Those of the score, if it is a product of features alone."""
        query, factor = _split(query, self.channels)
        terms = self.score.terms(query, key) if describes_call(self.score, "terms") else None
        if terms is None or terms.key_term is not None or terms.query_term is not None:
            return None
        scaled = terms.query.astype(factor.dtype) * factor[:, None]
        return terms._replace(query=scaled.astype(terms.query.dtype))


@pytree
@dataclass(frozen=True)
class ScaledBias(Bias):
    """A bias times the factor in the last `channels` features of the query.

    >>> from attention_jax.ops.biases import ALiBi
    >>> ScaledBias(ALiBi(1.0), 1)(jnp.array([[7.0, 10.0]]), jnp.array([2]), jnp.arange(2)).tolist()
    [[-20.0, -10.0]]
    """

    bias: Bias
    channels: int = field(metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        query, factor = _split(query, self.channels)
        zeros = jnp.zeros((query_positions.shape[0], key_positions.shape[0]), factor.dtype)
        return _times(add_bias(zeros, self.bias, self.bias(query, query_positions, key_positions)), factor)
