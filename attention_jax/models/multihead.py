"""Multi-head attention (Vaswani et al. 2017, section 3.2.2) on top of `ops.attend`, with key/value caches as plain
values.

`MultiHeadAttention` owns the projections. `attend` is written for one sequence and one head; `ops/heads.py` lifts it
over both. Hence the leaves of a `mask` have a leading batch axis, and the leaves of a `bias` or of a learned `score` a
leading head axis. Fewer heads of keys and values than of queries are grouped-query
attention (GQA), one is multi-query attention (MQA).

Parity with PyTorch 2.13 to 1e-5 is tested in tests/models/test_parity.py, with this table of names (kernels are
transposed, `x.weight` [out, in] -> `x.kernel` [in, out]; d = embed_dim, and in_proj stacks the rows of query, key and
value):

| here                                   | torch.nn                                                              |
|----------------------------------------|-----------------------------------------------------------------------|
| MultiHeadAttention query, key, value   | MultiheadAttention in_proj_weight[:d], [d:2d], [2d:], in_proj_bias    |
| - the same with different input widths | q_proj_weight, k_proj_weight, v_proj_weight (kdim, vdim)              |
| MultiHeadAttention out                 | MultiheadAttention out_proj                                           |
| EncoderLayer attention                 | TransformerEncoderLayer self_attn                                     |
| EncoderLayer ffn.hidden, ffn.out       | TransformerEncoderLayer linear1, linear2                              |
| EncoderLayer attention_norm, ffn_norm  | TransformerEncoderLayer norm1, norm2                                  |
| DecoderLayer attention, cross          | TransformerDecoderLayer self_attn, multihead_attn                     |
| DecoderLayer ffn.hidden, ffn.out       | TransformerDecoderLayer linear1, linear2                              |
| DecoderLayer attention_norm, cross_norm, ffn_norm | TransformerDecoderLayer norm1, norm2, norm3                |
| norm="pre" / "post"                    | norm_first=True / False                                               |
| activation="relu" / "gelu" (exact)     | activation="relu" / "gelu"                                            |
| mask=lengths(n)                        | key_padding_mask (True there = may NOT attend)                        |
| mask=causal()                          | attn_mask=generate_square_subsequent_mask(T)                          |
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.models.initializers import XAVIER, within
from attention_jax.models.named_scores import parse_normalizer, parse_pool, parse_score
from attention_jax.models.norms import EPSILON, RMSNorm
from attention_jax.models.parts import make_part_per_head
from attention_jax.models.position_encodings import RelativeBias
from attention_jax.models.taps import (
    is_set,
    is_traced,
    pool_with_weights,
    tap,
    tap_heads,
    tap_weights,
    trace_weights,
)
from attention_jax.ops.arrays import Sum
from attention_jax.ops.attention import Implementation, Options, attend, attend_head
from attention_jax.ops.biases import Bias
from attention_jax.ops.dropout import is_zero
from attention_jax.ops.heads import head_weights, over_heads
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.pooling import Pool
from attention_jax.ops.positions import rotary
from attention_jax.ops.precision import accumulator, affine
from attention_jax.ops.scores import Score


def _statistics(query, key, value, rules, rng, query_offset):
    """[largest logit, sum of entropies, sum of weights of the first key, number of queries that may attend to a key]
    of one head, [4]. Queries without a key have entropy and weight 0."""
    first_key = jnp.eye(key.shape[0], 1, dtype=accumulator(query.dtype))  # values: output = first key's weight
    attend_first = partial(attend, query, key, first_key, query_offset=query_offset, return_statistics=True)
    weight, statistics = attend_first(**rules)
    largest = statistics.largest
    if largest is None:
        largest = attend_first(**rules | {"normalizer": Softmax()})[1].largest
    has_keys = (largest != -jnp.inf).astype(largest.dtype)
    return jnp.stack([largest.max(), statistics.entropy.sum(), weight.sum(), has_keys.sum()])


def make_head_score(module: nn.Module, name: str, heads: int, size: int) -> Score:
    """The score called `name`; its leaves, if it has any, are parameters of `module` with one row per head."""
    return make_part_per_head(module, "score", parse_score(name), heads, size)


def make_head_normalizer(module: nn.Module, name: str, heads: int, size: int) -> Normalizer:
    """Create the normalizer `name`; its learned parameters, if any, belong to `module`, with a leading head axis."""
    return make_part_per_head(module, "normaliser", parse_normalizer(name), heads, size)


def make_head_pool(module: nn.Module, name: str, heads: int, size: int) -> Pool:
    """Create the pooling `name`; its learned parameters, if any, belong to `module`, with a leading head axis."""
    return make_part_per_head(module, "pool", parse_pool(name), heads, size)


def pool_width(pool: Pool, key_width: int, value_width: int) -> int:
    """The width of what a head pools.

    >>> from attention_jax.ops.pooling import Moments
    >>> pool_width(Moments(), 4, 8)
    16
    """

    key, value = (jax.ShapeDtypeStruct((1, width), jnp.float32) for width in (key_width, value_width))
    return jax.eval_shape(lambda key, value: attend(key, key, value, pool=pool), key, value).shape[1]


class MultiHeadAttention(nn.Module):
    """Multi-head attention with its projections (Vaswani et al. 2017, section 3.2.2).

    It is softmax(score(q W_q, k W_k)) v W_v for every head, concatenated and projected by W_o. Fewer heads of keys and
    values than of queries are grouped-query attention (GQA), one is multi-query attention (MQA).

    Query, key and value may have different widths; `hidden_size` is the output's, `key_dim` is
    the width of a head's queries and keys, `value_dim` of its values; 0 means hidden_size / num_heads. Leaves of `mask`
    have a leading batch axis, leaves of `bias` a leading head axis; both may be arrays, as in `ops.heads.attend_heads`.

    >>> model, x = MultiHeadAttention(num_heads=2, hidden_size=8), jnp.ones((3, 5, 8))
    >>> (out, weights), _ = model.init_with_output(jax.random.key(0), x, x, x, return_weights=True)
    >>> out.shape, weights.shape
    ((3, 5, 8), (3, 2, 5, 5))
    """

    num_heads: int
    hidden_size: int
    key_dim: int = 0
    value_dim: int = 0
    num_kv_heads: int = 0
    """Heads of keys and values (GQA; 1: MQA), each read by num_heads / num_kv_heads of queries; 0: as many as these."""
    score: str = "scaled_dot"
    """A name in `config.models.SCORES`, or package.file:Class."""
    normalizer: str = "softmax"
    """A name in `config.models.NORMALIZERS`, or package.file:Class."""
    head_pool: str = "mean"
    """A name in `config.models.POOLS`, or package.file:Class."""
    bias: str = "none"
    """A name in `config.models.BIASES`, or package.file:Class: added to the bias that a call has."""
    use_bias: bool = True
    rotary: bool = False
    rope_theta: float = 10_000.0
    """Base of the wavelengths of rotary positions."""
    rope_scaling: Callable | None = None
    """What their frequencies become (ops/positions.py)."""
    normalize_qk: bool = False
    """RMSNorm of each head's queries and keys, with one learned scale for all heads, before the rotation."""
    norm_epsilon: float = EPSILON
    """Of these norms."""
    output_gate: bool = False
    """Multiply the pooled values by sigmoid(x W_g + b_g) of the queries' inputs x, before W_o (Qiu et al. 2025, G1).
    """
    dropout: Float[Array, ""] | float = 0.0
    """Rate of attention weights to drop."""
    dtype: Any = jnp.float32
    implementation: Implementation | None = None
    """Of `attend`; None chooses by size and platform."""
    kernel_init: Any = XAVIER
    """Initializer of the kernels of the projections."""

    def __post_init__(self):
        heads, kv_heads = self.num_heads, self.num_kv_heads
        if heads < 1 or kv_heads < 0 or (kv_heads and heads % kv_heads):
            raise InputError(
                f"MultiHeadAttention needs num_heads >= 1, and a num_kv_heads that divides it, or 0; got {heads} and "
                f"{kv_heads}"
            )
        if not (self.key_dim and self.value_dim) and self.hidden_size % heads:
            raise InputError(
                f"MultiHeadAttention needs a num_heads that divides hidden_size, got {heads} and {self.hidden_size}: "
                "change one of them, or give key_dim and value_dim"
            )
        super().__post_init__()

    def setup(self):
        key_width = self.key_dim or self.hidden_size // self.num_heads
        value_width = self.value_dim or self.hidden_size // self.num_heads
        projection = lambda width: Linear(width, self.use_bias, self.dtype, self.kernel_init)
        self.query = projection(self.num_heads * key_width)
        kv_heads = self.num_kv_heads or self.num_heads
        self.key = projection(kv_heads * key_width)
        self.value = projection(kv_heads * value_width)
        self.out = projection(self.hidden_size)
        if self.normalize_qk:
            self.query_norm, self.key_norm = RMSNorm(self.norm_epsilon), RMSNorm(self.norm_epsilon)
        self.pool = make_head_pool(self, self.head_pool, self.num_heads, key_width)
        if self.output_gate:
            width = pool_width(jax.tree.map(lambda x: x[0], self.pool), key_width, value_width)
            self.gate = projection(self.num_heads * width)
        self.head_score = make_head_score(self, self.score, self.num_heads, key_width)
        self.head_normalizer = make_head_normalizer(self, self.normalizer, self.num_heads, key_width)
        if self.bias != "none":
            self.head_bias = RelativeBias(self.bias, self.num_heads, key_width, bidirectional=True)

    def __call__(self, query, key, value, *, bias=None, mask=None, train=False, return_weights=False):
        """[B, Q, Dq], [B, K, Dk], [B, K, Dv] -> output [B, Q, hidden_size] and, if `return_weights`, the weights
        [B, H, Q, K], else None."""
        kwargs = {"bias": self.add_bias(bias), "mask": mask, "train": train, "return_weights": return_weights}
        return self.attend(self.project_q(query), *self.project_kv(key, value), query, **kwargs)

    def add_bias(self, bias: Bias | None) -> Bias | None:
        """The sum of `bias` and of the layer's own, where it has one; leaves lead with the heads."""
        if self.bias == "none":
            return bias
        return self.head_bias() if bias is None else Sum((bias, self.head_bias()))

    def project_q(self, query: Float[Array, "B Q D"], offset=0) -> Float[Array, "B H Q E"]:
        """The queries of all heads; `offset` is the position of the first."""
        query = self._split_heads(self.query(query), self.num_heads)
        return self._rotate(self.query_norm(query) if self.normalize_qk else query, offset)

    def project_kv(self, key, value, offset=0) -> tuple[Float[Array, "B Hkv K E"], Float[Array, "B Hkv K V"]]:
        """The keys and values of all heads, as a KV cache holds them; `offset` is the position of the first."""
        kv_heads = self.num_kv_heads or self.num_heads
        key, value = self._split_heads(self.key(key), kv_heads), self._split_heads(self.value(value), kv_heads)
        return self._rotate(self.key_norm(key) if self.normalize_qk else key, offset), value

    def attend(
        self, query, key, value, inputs, *, bias=None, mask=None, query_offset=0, train=False, return_weights=False
    ):
        """Attention of projected queries over projected keys and values, then W_o: (output, weights or None). The
        output gate, if there is one, is computed from `inputs` [B, Q, Dq]."""
        query, key, value = (tap_heads(self, *pair) for pair in (("query", query), ("key", key), ("value", value)))
        rules = {"score": self.head_score, "bias": bias, "mask": mask, "normalizer": self.head_normalizer}
        rng = self.make_rng("dropout") if train and not is_zero(self.dropout) else None
        weights, pool_rules = None, rules | {"pool": self.pool}
        if is_set(self, "scores", "weights"):
            weights = tap_weights(self, query, key, rules, query_offset)
            pooled = pool_with_weights(weights, query, key, value, pool_rules, rng, self.dropout)
        else:
            attend_fn = partial(attend_head, Options(self.implementation), self.dropout)
            pooled = over_heads(attend_fn, query, key, value, pool_rules, rng, query_offset)  # [B, H, Q, V]
            if is_traced(self):
                trace_weights(self, query, key, rules, query_offset)
        if self.is_mutable_collection("attention_statistics") and not self.is_initializing():
            statistics = over_heads(_statistics, query, key, key, rules, query_offset=query_offset)  # [B, H, 4]
            sums = statistics[..., 1:].sum(axis=0)  # of all queries of the batch
            statistics = [statistics[..., :1].max(axis=0), sums[:, :2] / jnp.maximum(sums[:, 2:], 1)]
            self.sow("attention_statistics", "attention_statistics", jnp.concatenate(statistics, axis=1))  # [H, 3]
        pooled = pooled.swapaxes(1, 2).reshape(query.shape[0], query.shape[2], -1)  # [B, Q, H V]
        if self.output_gate:
            pooled = pooled * jax.nn.sigmoid(self.gate(inputs))
        pooled = tap(self, "head_output", pooled, self.num_heads)
        if not return_weights:
            return self.out(pooled), None
        if weights is not None:
            return self.out(pooled), weights
        return self.out(pooled), head_weights(query, key, rules, query_offset)

    def _split_heads(self, x, heads):
        """[B, T, H E] -> [B, H, T, E]."""
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def _rotate(self, x, offset):
        if not self.rotary:
            return x
        positions = jnp.arange(x.shape[2], dtype=jnp.int32) + offset
        rotate = partial(rotary, theta=self.rope_theta, scaling=self.rope_scaling)
        return jax.vmap(jax.vmap(rotate, in_axes=(0, None)), in_axes=(0, None))(x, positions)  # [B, H, T, E]


class Linear(nn.Module):
    """x W + b, Glorot-uniform W by default; computes in `dtype`, keeps float32 parameters."""

    features: int
    use_bias: bool = True
    dtype: Any = jnp.float32
    kernel_init: Any = XAVIER
    fan_in_bias: bool = False
    """Draw b uniformly within 1 / sqrt(D) instead of 0."""

    @nn.compact
    def __call__(self, x: Float[Array, "... D"]) -> Float[Array, "... F"]:
        kernel = self.param("kernel", self.kernel_init, (x.shape[-1], self.features))
        start = within(x.shape[-1] ** -0.5) if self.fan_in_bias else nn.initializers.zeros
        bias = self.param("bias", start, (self.features,)) if self.use_bias else None
        return affine(x.astype(self.dtype), kernel, bias)
