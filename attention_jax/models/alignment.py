"""Where a decoder looks in the source: a score, and for local attention a window that moves with the target.

Luong et al. (2015), section 3.2. With D = `window_size`, source length S and target position t:
  "all"         global attention;
  "monotonic"   (local-m) only the source positions within D of p = t;
  "predictive"  (local-p) only those within D of p = S sigmoid(v_p . tanh(W_p h)), eq. 9, and every weight
                is multiplied by exp(-(s - p)^2 / (2 sigma^2)) with sigma = D / 2, eq. 10 (it is not renormalised).
"""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.models.named_scores import make_score
from attention_jax.ops.attention import masked_softmax


def weigh(
    shared,
    window: str,
    window_size: int,
    query: Float[Array, "B Q D"],
    target: Int[Array, "B Q"],
    projected: Float[Array, "B Q F"] | None = None,
) -> Float[Array, "B Q S"]:
    """The attention weights of queries at the target positions `target`: a pure function of what `Alignment.share` gives.

    `projected` is what the score compares instead of `query`, if its query side has been multiplied already.
    """
    score, key, length = shared["score"], shared["key"], shared["length"]
    scores = jax.vmap(lambda q, k: score(q, k))(query if projected is None else projected, key)  # [B, Q, S]
    source = jnp.arange(key.shape[1])
    allowed = (source[None, :] < length[:, None])[:, None, :]
    if window == "all":
        return masked_softmax(scores, jnp.broadcast_to(allowed, scores.shape))
    source = source.astype(jnp.float32)[None, None, :]
    if window == "monotonic":
        centre = jnp.broadcast_to(target.astype(jnp.float32)[:, :, None], (*scores.shape[:2], 1))
    else:
        where = jnp.tanh(query @ shared["position_kernel"]) @ shared["position_vector"]  # [B, Q, 1]
        centre = jax.nn.sigmoid(where) * length.astype(jnp.float32)[:, None, None]
    distance = source - centre
    weights = masked_softmax(scores, allowed & (jnp.abs(distance) <= window_size))
    if window == "monotonic":
        return weights
    return weights * jnp.exp(-jnp.square(distance) / (2.0 * (window_size / 2.0) ** 2))


class Alignment(nn.Module):
    """Owns the weights of the score and of the predictive window."""

    query_size: int
    key_size: int
    hidden_size: int
    score: str = "additive"
    window: str = "all"
    window_size: int = 10

    def setup(self):
        self.whole = make_score(self, self.score, self.query_size, self.key_size, self.hidden_size)
        self.prepared, _ = self.whole.prepare_key(jnp.zeros((1, self.key_size)))  # what is left for prepared keys
        if self.window == "predictive":
            glorot = nn.initializers.glorot_uniform()
            self.position_kernel = self.param("position_kernel", glorot, (self.query_size, self.hidden_size))
            self.position_vector = self.param("position_vector", glorot, (self.hidden_size, 1))

    def prepare(self, hidden: Float[Array, "B S K"]) -> Float[Array, "B S F"]:
        """The keys: what the score makes of the source once, before any query."""
        return jax.vmap(lambda key: self.whole.prepare_key(key)[1])(hidden)

    def share(self, memory) -> dict:
        """What `weigh` needs: the score that is left for prepared keys, the keys, the lengths, and the window's weights."""
        shared = {"score": self.prepared, "key": memory["key"], "length": memory["length"]}
        if self.window == "predictive":
            shared |= {"position_kernel": self.position_kernel, "position_vector": self.position_vector}
        return shared
