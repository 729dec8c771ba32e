"""Attention of decoder states over encoder states, as a callable from queries to weights. The keys are projected once
per batch of sentences, before the decoder's scan."""

from dataclasses import dataclass, replace

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax import config
from attention_jax.models.named_scores import make_rules, prepare_keys
from attention_jax.ops.biases import Bias
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.recurrent.deferred import DeferredWeight
from attention_jax.ops.scores import Additive, Score, prepare_key, prepare_query
from attention_jax.ops.trees import pytree


@pytree
@dataclass(frozen=True)
class Alignment:
    """Global attention: alpha_i = softmax_j score(s_i, h_j) over a sentence (Bahdanau et al. 2015, eq. 6), or with
    another normalizer."""

    score: Score  # the score that remains after `prepare_key`
    key: Float[Array, "B S F"]
    length: Int[Array, " B"]
    bias: Bias | None
    normalizer: Normalizer

    def __call__(self, query: Float[Array, "B D"], time: Int[Array, " B"] | None = None) -> Float[Array, "B S"]:
        """Return the attention weights [B, S] of one query per sentence; the target position `time` is not used."""
        return self.weights(query, self.token_mask)

    def weights(self, query: Float[Array, "B D"], allowed: Bool[Array, "B S"]) -> Float[Array, "B S"]:
        """Return the attention weights [B, S] of one query per sentence over its `allowed` source positions."""
        scores = self.scores(query)
        return self.normalizer.weights(scores, (scores != -jnp.inf) & allowed)

    def scores(self, query: Float[Array, "B D"]) -> Float[Array, "B S"]:
        """Return the scores of all source positions."""
        score, prepared = prepare_query(self.score, query)
        scores = jax.vmap(score)(prepared[:, None], self.key)[:, 0]  # [B, 1, S] -> [B, S]
        if self.bias is None:
            return scores
        positions = jnp.zeros(1, jnp.int32), jnp.arange(self.key.shape[1])
        return scores + jax.vmap(lambda query: self.bias(query, *positions))(query[:, None])[:, 0]

    @property
    def token_mask(self) -> Bool[Array, "B S"]:
        """Return the padding mask of the source: True for tokens."""
        return jnp.arange(self.key.shape[1])[None] < self.length[:, None]


class Scorer(nn.Module):
    """Owns the weights of the score between decoder states and annotations, and of its normalizer."""

    options: config.BahdanauConfig | config.LuongConfig | config.GNMTConfig
    key_size: int

    def setup(self):
        self.rules = make_rules(self, self.options, self.options.hidden_size, self.key_size)

    def prepare(self, annotations: Float[Array, "B S C"]) -> Float[Array, "B S F"]:
        """Compute the part of the score that depends only on the keys, once per source sentence."""
        return prepare_keys(self.rules.score, annotations)

    def __call__(self, key: Float[Array, "B S F"], length: Int[Array, " B"]) -> Alignment:
        """Return the alignment over sentences with these prepared keys and lengths."""
        score, _ = prepare_key(self.rules.score, jnp.zeros((1, self.key_size)))  # what remains after it
        if isinstance(score, Additive):
            score = replace(score, query_kernel=DeferredWeight(score.query_kernel))
        return Alignment(score, key, length, self.rules.bias, self.rules.normalizer)
