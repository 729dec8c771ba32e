"""Linear attention (and Performer): where a weight is a product of features, the sum over keys is computed once.

    weight(q, k) = phi(q) . phi(k) / sum_j phi(q) . phi(k_j)
    attend(q)    = phi(q) (sum_j phi(k_j) v_j^T) / phi(q) . sum_j phi(k_j)

(Katharopoulos et al. 2020, eq. 4-5). The score is log(phi(q) . phi(k)), so it is an ordinary score, and the
quadratic implementations of `attend` return the same values. With a causal mask the sums accumulate over positions,
which is a recurrent network whose state is a matrix (eq. 18-20): `recurrent`.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.blockwise.score_blocks import replace_nonfinite
from attention_jax.ops.masks import Causal, Lengths, split_mask, unsupported_mask_reason
from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.precision import accumulator
from attention_jax.ops.scores import Score
from attention_jax.ops.trees import pytree

CHUNK = 128
"""Positions of a causal call that are pooled together."""


class Features(Score):
    """log(phi(q) . phi(k)) for features phi that are not negative."""

    def features(self, x: Float[Array, "N D"]) -> Float[Array, "N F"]:
        """Return phi(x) for every row."""
        raise NotImplementedError

    def features_and_scale(self, x: Float[Array, "N D"]) -> tuple[Float[Array, "N F"], Float[Array, "N 1"] | float]:
        """Return (phi(x) exp(-c), c), with c per row or common to all, so that the features do not overflow."""
        return self.features(x), 0.0

    def __call__(self, query, key):
        (query, query_scale), (key, key_scale) = self.features_and_scale(query), self.features_and_scale(key)
        product = query @ key.T  # [Q, K]
        log = jnp.log(jnp.where(product > 0, product, 1.0)) + query_scale + jnp.reshape(key_scale, (1, -1))
        return jnp.where(product > 0, log, -jnp.inf)


@pytree
@dataclass(frozen=True)
class Elu(Features):
    """phi(x) = elu(x) + 1 (Katharopoulos et al. 2020, eq. 7)."""

    def features(self, x):
        return jax.nn.elu(x.astype(accumulator(x.dtype))) + 1


@pytree
@dataclass(frozen=True)
class PositiveFeatures(Features):
    """phi(x) = exp(W x - |x|^2 / 2) / sqrt(m): phi(q) . phi(k) is exp(q . k) in the mean over W ~ N(0, 1), `projection`
    [m, D] (Choromanski et al. 2021, lemma 1). Scaled dot products: divide queries and keys by D^(1/4).
    """

    projection: Float[Array, "M D"]

    def features(self, x):
        features, scale = self.features_and_scale(x)
        return features * jnp.exp(scale)

    def features_and_scale(self, x):
        """Divide the features by the largest of each row: exp overflows beyond 88 in float32 (their section 4.1)."""
        x = x.astype(accumulator(x.dtype))
        exponent = x @ self.projection.T - jnp.sum(x**2, axis=1, keepdims=True) / 2  # [N, M]
        largest = jax.lax.stop_gradient(exponent.max(axis=1, keepdims=True))
        return jnp.exp(exponent - largest) * self.projection.shape[0] ** -0.5, largest


def unsupported_reason(call) -> str | None:
    """Return why this implementation does not support a call, `dispatch.Call`; None if it does."""
    if not isinstance(call.score, Features):
        return f"needs a score that is a product of features (ops/linear.py), not {type(call.score).__name__}"
    if call.sink is not None:
        return "computes the softmax without a sink"
    if call.bias is not None or call.dropout is not None:
        return "is used without bias and without dropout"
    return unsupported_mask_reason(call.mask, call.query, call.key, call.query_offset)


def attend(
    query: Float[Array, "Q D"], key: Float[Array, "K D"], value: Float[Array, "K V"], score: Features, mask
) -> Float[Array, "Q V"]:
    """`ops.attention.attend` in time and memory linear in Q + K, for calls without an `unsupported_reason`."""
    masks_by_type = {type(rule): rule for rule in split_mask(mask)}
    is_real = (
        jnp.arange(key.shape[0]) < masks_by_type[Lengths].length
        if Lengths in masks_by_type
        else jnp.ones(key.shape[0], bool)
    )
    key, value = replace_nonfinite(key, is_real), replace_nonfinite(value, is_real)
    query, key = score.features_and_scale(query)[0], with_one_scale(score, key, is_real)  # [Q, F], [K, F]
    pooled = (_causal_sums if Causal in masks_by_type else _sums)(query, key, append_ones(value, query.dtype))
    return divide_by_mass(pooled).astype(value.dtype)


def with_one_scale(score: Features, key: Float[Array, "K D"], real) -> Float[Array, "K F"]:
    """Divide the key features by the largest of all `real` ones: a factor that all weights share cancels."""
    features, scale = score.features_and_scale(key)
    scale = jnp.broadcast_to(scale, (len(key), 1))  # [K, 1]
    largest = jnp.max(scale, initial=-jnp.inf, where=real[:, None])
    return jnp.where(real[:, None], features * jnp.exp(scale - jnp.where(jnp.isfinite(largest), largest, 0.0)), 0.0)


def append_ones(value: Float[Array, "K V"], dtype) -> Float[Array, "K V1"]:
    """Append a column of ones to the values, whose pooled value is the sum of the weights."""
    return jnp.concatenate([value.astype(dtype), jnp.ones((value.shape[0], 1), dtype)], axis=1)


def divide_by_mass(pooled: Float[Array, "Q V1"]) -> Float[Array, "Q V"]:
    """Divide the pooled values by the sum of the weights, the last column; zero where that sum is zero."""
    total = pooled[:, -1:]
    return jnp.where(total > 0, pooled[:, :-1] / jnp.where(total > 0, total, 1.0), 0.0)


def _sums(query, key, value):
    return query @ (key.T @ value)  # [Q, F] @ [F, V + 1]


def _causal_sums(query, key, value):
    """Compute causal sums in chunks: earlier chunks are summed in the state, pairs within a chunk are explicit."""
    size = max(1, min(CHUNK, len(query)))
    chunks = lambda x: jnp.pad(x, ((0, -len(x) % size), (0, 0))).reshape(-(-len(x) // size), size, x.shape[1])

    def chunk(state, rows):  # state [F, V + 1], rows [size, ...]
        query, key, value = rows
        return state + key.T @ value, query @ state + jnp.tril(query @ key.T) @ value

    state = vary_like(jnp.zeros((key.shape[1], value.shape[1]), query.dtype), (query, key, value))
    pooled = jax.lax.scan(chunk, state, (chunks(query), chunks(key), chunks(value)))[1]
    return pooled.reshape(-1, value.shape[1])[: len(query)]  # [Q, V + 1]


def recurrent(
    query: Float[Array, "T D"], key: Float[Array, "T D"], value: Float[Array, "T V"], score: Features
) -> Float[Array, "T V"]:
    """Causal linear attention one position at a time (Katharopoulos et al. 2020, eq. 16-20), as in decoding."""
    return loopable(_recurrent)(query, key, value, score)


def _recurrent(query, key, value, score):
    def step(state, row):  # state [F, V + 1]: the sums over the keys seen so far
        query, key, value = row
        state = state + jnp.outer(key, value)
        return state, query @ state

    real = jnp.ones(len(key), bool)
    rows = (
        score.features_and_scale(query)[0],
        with_one_scale(score, key, real),
        append_ones(value, accumulator(value.dtype)),
    )
    start = vary_like(jnp.zeros((rows[1].shape[1], rows[2].shape[1]), rows[1].dtype), rows)
    return divide_by_mass(jax.lax.scan(step, start, rows)[1])
