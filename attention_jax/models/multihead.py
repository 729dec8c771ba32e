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
from dataclasses import dataclass, field
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
from attention_jax.models.position_encodings import CONTEXTUAL, LAYER_BIASES, RelativeBias, check_bias
from attention_jax.models.taps import (
    Unnormalized,
    is_set,
    is_traced,
    pool_with_weights,
    tap,
    tap_heads,
    tap_weights,
    trace_weights,
)
from attention_jax.ops.arrays import as_tuple, is_array
from attention_jax.ops.attention import Implementation, Options, attend, attend_head
from attention_jax.ops.biases import ALiBi, Bias, Forget, T5Bias, contextual_bias
from attention_jax.ops.dropout import is_zero
from attention_jax.ops.head_outputs import exclude_own, subtract_maps
from attention_jax.ops.heads import PerSequence, head_weights, over_heads
from attention_jax.ops.kernels.terms import terms_of_bias
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.pooling import Pool
from attention_jax.ops.positions import rotary
from attention_jax.ops.precision import accumulator, affine
from attention_jax.ops.scores import Score
from attention_jax.ops.trees import as_tree, pytree


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


LAMBDA = 0.8
"""The constant of the factor of the second map in differential attention, and what 1 less is the factor of its
output."""


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


def _check_types(attention):
    """Raise InputError for options of other types; a method would run interceptors of Flax before there is a module."""
    for option in ("score", "normalizer", "head_pool", "bias"):
        if not isinstance(name := getattr(attention, option), str):
            raise InputError(
                f"{option} of MultiHeadAttention must be a name or package.file:Class, from which the module makes "
                f"parameters, got a {type(name).__name__}: ops.heads.attend_heads takes such objects"
            )
    check_bias(attention.bias)
    for option in ("use_bias", "rotary", "normalize_qk", "output_gate", "differential", "exclusive"):
        if not isinstance(value := getattr(attention, option), bool):
            raise InputError(f"{option} of MultiHeadAttention must be True or False, got {value!r}")
    if attention.rope_scaling is not None and not callable(attention.rope_scaling):
        raise InputError(
            "rope_scaling of MultiHeadAttention must be a function of frequencies, such as "
            f"ops.positions.LinearScaling(8.0), got {attention.rope_scaling!r}"
        )


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
    differential: bool = False
    """Two maps for each head, of half its queries and keys each, of which the second is subtracted (Ye et al. 2024):
    scores, weights, queries and keys have 2 num_heads."""
    exclusive: bool = False
    """Self-attention alone: remove from the output of a head its component along the value of the query's own position
    (Zhai 2026)."""
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
        width = self.key_dim or self.hidden_size // heads
        change = "change --model." + ("key-dim" if self.key_dim else "hidden-size or --model.num-heads")
        if self.differential and width % 2:
            raise InputError(
                f"differential attention needs an even width of queries and keys, which its two maps share, got "
                f"{width}: {change}"
            )
        if self.rotary and width // (1 + self.differential) < 2:
            raise InputError(
                f"--model.position-embedding rotary needs maps of at least 2 dimensions, a pair, got queries and keys "
                f"of {width}" + (f", shared by two maps: {change}" if self.differential else f": {change}")
            )
        if self.exclusive and self.head_pool != "mean":
            raise InputError(f"exclusive attention needs the pooling mean, got --model.head-pool {self.head_pool}")
        _check_types(self)
        super().__post_init__()

    def setup(self):
        key_width = self.key_dim or self.hidden_size // self.num_heads
        value_width = self.value_dim or self.hidden_size // self.num_heads
        projection = lambda width: Linear(width, self.use_bias, self.dtype, self.kernel_init)
        self.query = projection(self.num_heads * key_width)
        kv_heads, maps = self.num_kv_heads or self.num_heads, 1 + self.differential
        self.key = projection(kv_heads * key_width)
        self.value = projection(kv_heads * value_width)
        self.out = projection(self.hidden_size)
        if self.normalize_qk:
            self.query_norm, self.key_norm = RMSNorm(self.norm_epsilon), RMSNorm(self.norm_epsilon)
        sizes = maps * self.num_heads, key_width // maps
        self.pool = make_head_pool(self, self.head_pool, *sizes)
        if self.output_gate:
            width = pool_width(jax.tree.map(lambda x: x[0], self.pool), sizes[1], value_width)
            self.gate = projection(self.num_heads * width)
        self.head_score = make_head_score(self, self.score, *sizes)
        self.head_normalizer = make_head_normalizer(self, self.normalizer, *sizes)
        if self.bias == "forget":
            self.forget_gate = Linear(sizes[0], True, self.dtype, self.kernel_init)
        elif self.bias == "cope":
            self.position_table = self.param("position_table", nn.initializers.zeros, (CONTEXTUAL, sizes[1]))
        elif self.bias != "none":
            self.head_bias = RelativeBias(self.bias, *sizes, bidirectional=True)
        if self.differential:
            draw = nn.initializers.normal(0.1)
            self.lambdas = [self.param(f"lambda_{name}", draw, (2, sizes[1])) for name in ("query", "key")]
            self.head_norm = RMSNorm(EPSILON)

    def __call__(self, query, key, value, *, bias=None, mask=None, train=False, return_weights=False):
        """[B, Q, Dq], [B, K, Dk], [B, K, Dv] -> output [B, Q, hidden_size] and, if `return_weights`, the weights
        [B, H, Q, K], else None."""
        if query.shape[1] != key.shape[1] and (self.exclusive or self.bias in ("forget", "cope")):
            raise InputError(
                "exclusive attention and the biases forget and cope are for self-attention, with as many queries as "
                f"keys, got {query.shape[1]} and {key.shape[1]}"
            )
        bias = self.add_bias(bias, self.forget(key))
        kwargs = {"bias": bias, "mask": mask, "train": train, "return_weights": return_weights}
        return self.attend(self.project_q(query), *self.project_kv(key, value), query, **kwargs)

    def add_bias(self, bias: Bias | None, log_gates: Float[Array, "B H T"] | None) -> tuple | None:
        """`bias`, whose leaves lead with the heads, and the layer's own, where it has one; `log_gates` are those of
        `forget`. That of contextual positions needs queries and keys, and is added in `attend`."""
        biases = as_tuple(bias) if bias is not None else ()
        if self.bias not in LAYER_BIASES:
            biases += (self.head_bias(),)
        if self.rotary:
            biases = tuple(map(self._with_unrotated_query, biases))
        if log_gates is not None:
            biases += (PerSequence(Forget(jnp.cumsum(log_gates, axis=2))),)
        return biases or None

    def _with_unrotated_query(self, bias):
        if isinstance(bias, PerSequence):
            return PerSequence(self._with_unrotated_query(bias.rule))
        reads_query = not (is_array(bias) or isinstance(bias, ALiBi | T5Bias | Forget))
        return UnrotatedQueryBias(as_tree(bias), self.rope_theta, self.rope_scaling) if reads_query else bias

    def forget(self, inputs: Float[Array, "B T D"]) -> Float[Array, "B H T"] | None:
        """The logarithms of the forget gates sigmoid(x w + b) of each position, for each map; None without them."""
        if self.bias != "forget":
            return None
        logits = self.forget_gate(inputs)
        return jax.nn.log_sigmoid(logits.astype(accumulator(logits.dtype))).swapaxes(1, 2)

    def project_q(self, query: Float[Array, "B Q D"], offset=0) -> Float[Array, "B H Q E"]:
        """The queries of all heads; `offset` is the position of the first."""
        query = self._split_heads(self.query(query), self.num_heads * (1 + self.differential))
        query = self.query_norm(query) if self.normalize_qk else query
        return self._rotate(query, offset)

    def project_kv(self, key, value, offset=0) -> tuple[Float[Array, "B Hkv K E"], Float[Array, "B Hkv K V"]]:
        """The keys and values of all heads, as a KV cache holds them; `offset` is the position of the first."""
        kv_heads = self.num_kv_heads or self.num_heads
        key = self._split_heads(self.key(key), kv_heads * (1 + self.differential))
        value = self._split_heads(self.value(value), kv_heads)
        key = self.key_norm(key) if self.normalize_qk else key
        return self._rotate(key, offset), value

    def attend(
        self,
        query,
        key,
        value,
        inputs,
        *,
        bias=None,
        mask=None,
        position=0,
        hypotheses=1,
        train=False,
        return_weights=False,
    ):
        """Attention of projected queries over projected keys and values, then W_o: (output, weights or None). The
        output gate, if there is one, is computed from `inputs` [B, Q, Dq]. `position` is that of the first query; in
        beam search all queries are there, one for each of the `hypotheses`, and a cache has their keys there."""
        query, key, value = (tap_heads(self, *pair) for pair in (("query", query), ("key", key), ("value", value)))
        if self.exclusive:
            own_value = jax.lax.dynamic_slice_in_dim(value, position * hypotheses, query.shape[2], axis=2)
        if self.differential:
            key, value = _expand_groups(key, value, self.num_heads)
        bias = self._with_contextual_bias(bias, query, key, mask, position, hypotheses)
        rules = {"score": self.head_score, "bias": bias, "mask": mask, "normalizer": self.head_normalizer}
        rng = self.make_rng("dropout") if train and not is_zero(self.dropout) else None
        weights, pool_rules = None, rules | {"pool": self.pool}
        if is_set(self, "scores", "weights"):
            weights = tap_weights(self, query, key, rules)
            pooled = pool_with_weights(weights, query, key, value, pool_rules, rng, self.dropout)
        else:
            attend_fn = partial(attend_head, Options(self.implementation), self.dropout)
            pooled = over_heads(attend_fn, query, key, value, pool_rules, rng)  # [B, H, Q, V]
            if is_traced(self):
                trace_weights(self, query, key, rules)
        if self.is_mutable_collection("attention_statistics") and not self.is_initializing():
            statistics = over_heads(_statistics, query, key, key, rules)  # [B, H, 4]
            sums = statistics[..., 1:].sum(axis=0)  # of all queries of the batch
            statistics = [statistics[..., :1].max(axis=0), sums[:, :2] / jnp.maximum(sums[:, 2:], 1)]
            self.sow("attention_statistics", "attention_statistics", jnp.concatenate(statistics, axis=1))  # [H, 3]
        if self.differential:
            pooled = jax.vmap(subtract_maps, in_axes=(0, None))(pooled, self._lambda())  # [B, H, Q, V]
        if self.exclusive:
            pooled = exclude_own(pooled, jnp.repeat(own_value, self.num_heads // own_value.shape[1], axis=1))
        if self.differential:
            pooled = self.head_norm(pooled) * (1 - LAMBDA)
        pooled = pooled.swapaxes(1, 2).reshape(query.shape[0], query.shape[2], -1)  # [B, Q, H V]
        if self.output_gate:
            pooled = pooled * jax.nn.sigmoid(self.gate(inputs))
        pooled = tap(self, "head_output", pooled, self.num_heads)
        if not return_weights:
            return self.out(pooled), None
        if weights is not None:
            return self.out(pooled), weights
        return self.out(pooled), head_weights(query, key, rules)

    def _lambda(self) -> Float[Array, ""]:
        """exp(q_1 . k_1) - exp(q_2 . k_2) + LAMBDA, the factor of the second map (Ye et al. 2024, eq. 2). The paper's
        constant grows with depth from 0.2 towards 0.8; layers that are scanned have one."""
        first, second = jnp.exp(jnp.sum(self.lambdas[0] * self.lambdas[1], axis=1))
        return first - second + LAMBDA

    def _with_contextual_bias(self, bias, query, key, mask, position, hypotheses) -> tuple | None:
        """The biases and, if the layer has it, that of contextual positions; positions as in `attend`."""
        if self.bias != "cope":
            return bias
        rules = {"score": self.head_score, "bias": None, "mask": mask, "normalizer": Unnormalized()}
        logits = head_weights(query, key, rules)
        query = self._rotate(query, position, hypotheses, inverse=True)
        contextual = jax.vmap(jax.vmap(contextual_bias, in_axes=(0, 0, None)), in_axes=(0, 0, None))
        return (*(bias or ()), contextual(query, logits, self.position_table))  # [B, H, Q, K]

    def _split_heads(self, x, heads):
        """[B, T, H E] -> [B, H, T, E]."""
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)

    def _rotate(self, x, offset, hypotheses=1, inverse=False):
        """Rotate queries or keys at positions from `offset` on, of as many `hypotheses` at each, or undo it."""
        if not self.rotary:
            return x
        positions = jnp.arange(x.shape[2], dtype=jnp.int32) // hypotheses + offset
        rotate = partial(rotary, theta=self.rope_theta, scaling=self.rope_scaling, inverse=inverse)
        return jax.vmap(jax.vmap(rotate, in_axes=(0, None)), in_axes=(0, None))(x, positions)  # [B, H, T, E]


def _expand_groups(key, value, heads: int) -> tuple[Float[Array, "B 2H K E"], Float[Array, "B 2H K V"]]:
    """Keys [B, 2 Hkv, K, E] and values [B, Hkv, K, V] for both maps of every head: the first map of a head reads the
    first of the keys that its group shares, the second the second. They are copied, keys of groups too."""
    group = heads // value.shape[1]
    pairs = key.reshape(key.shape[0], -1, 2, *key.shape[2:])  # [B, Hkv, 2, K, E]
    pairs = jnp.repeat(pairs, group, axis=1)  # [B, H, 2, K, E]
    return pairs.reshape(key.shape[0], 2 * heads, *key.shape[2:]), jnp.repeat(value, 2 * group, axis=1)


@pytree
@dataclass(frozen=True)
class UnrotatedQueryBias(Bias):
    """Evaluates `bias` on the queries before their rotation; on rotated ones it would depend on absolute positions."""

    bias: Bias
    theta: float = field(metadata={"static": True})
    scaling: Callable | None = field(metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        query = rotary(query, query_positions, self.theta, self.scaling, inverse=True)
        return self.bias(query, query_positions, key_positions)

    def terms(self, query_positions, key_positions, causal):
        return terms_of_bias(self.bias, query_positions, key_positions, causal)


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
