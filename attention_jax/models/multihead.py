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
    head_scores,
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
from attention_jax.ops.depth import mix_values
from attention_jax.ops.dropout import is_zero
from attention_jax.ops.head_outputs import exclude_own, subtract_maps
from attention_jax.ops.heads import PerSequence, head_weights, over_heads
from attention_jax.ops.kernels.terms import terms_of_bias
from attention_jax.ops.normalizers import Softmax
from attention_jax.ops.pooling import Pool
from attention_jax.ops.positions import rotary
from attention_jax.ops.precision import accumulator, affine
from attention_jax.ops.trees import as_tree, pytree


def _statistics(query, key, value, rules, rng, query_offset):
    """[largest logit, sum of entropies, sum of weights of the first key, number of queries that may attend to a key]
    of one head, [4]. Queries without a key have entropy and weight 0."""
    # with the values (1, 0, 0, ...) the output of a query is its weight of the first key, [Q, 1]
    first_key = jnp.eye(key.shape[0], 1, dtype=accumulator(query.dtype))  # values: output = first key's weight
    attend_first = partial(attend, query, key, first_key, query_offset=query_offset, return_statistics=True)
    weight, statistics = attend_first(**rules)
    # the largest logit of each query [Q]; where the normalizer has none, from a softmax; -inf without a key
    largest = statistics.largest
    if largest is None:
        largest = attend_first(**rules | {"normalizer": Softmax()})[1].largest
    has_keys = (largest != -jnp.inf).astype(largest.dtype)
    return jnp.stack([largest.max(), statistics.entropy.sum(), weight.sum(), has_keys.sum()])


def _sow_statistics(module: nn.Module, query, key, rules):
    """Store [largest logit, mean entropy, mean weight of the first key] of each head, [H, 3]."""
    statistics = over_heads(_statistics, query, key, key, rules)  # [B, H, 4]
    # means over the queries that have a key: sums of entropies and first weights, divided by their number
    sums = statistics[..., 1:].sum(axis=0)  # of all queries of the batch
    statistics = [statistics[..., :1].max(axis=0), sums[:, :2] / jnp.maximum(sums[:, 2:], 1)]
    module.sow("attention_statistics", "attention_statistics", jnp.concatenate(statistics, axis=1))


LAMBDA = 0.8
"""The constant of the factor of the second map in differential attention, and what 1 less is the factor of its
output."""


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
    flags = ("use_bias", "rotary", "normalize_qk", "output_gate", "differential", "differential_v2", "exclusive")
    for option in (*flags, "value_residual", "value_embeddings"):
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
    rope_fraction: float = 1.0
    """The share of the channels of a head, from the first on, that they rotate."""
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
    differential_v2: bool = False
    """Two maps for each head, with queries of full width each and the keys of the head, of which the second is
    subtracted by a factor sigmoid(x W) of each query and head (Ye et al. 2026): scores, weights and queries have
    2 num_heads."""
    exclusive: bool = False
    """Self-attention alone: remove from the output of a head its component along the value of the query's own position
    (Zhai 2026)."""
    value_residual: bool = False
    """Self-attention behind another layer: values are l_1 v + l_2 v_1, with the values v_1 of the first layer, which
    calls of `project_kv` have (Zhou et al. 2025)."""
    value_embeddings: bool = False
    """Self-attention: add to the values of a position an embedding of its token, times 2 sigmoid(x W), which calls of
    `project_kv` have."""
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
        if self.differential and self.differential_v2:
            raise InputError("differential attention has one version: leave out --model.differential, or _v2")
        channels = width // (1 + self.differential)
        rotated = int(channels * self.rope_fraction)
        if self.rotary and self.rope_fraction != 1 and (rotated < 2 or rotated % 2):
            raise InputError(
                f"--model.rope-fraction must rotate an even number of the {channels} channels of a head, got "
                f"{self.rope_fraction}, which rotates {rotated}"
            )
        if self.rotary and channels < 2:
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
        # projections: D to all heads side by side; with differential attention a head has two maps of half its width E
        projection = lambda width: Linear(width, self.use_bias, self.dtype, self.kernel_init)
        self.query = projection(self.num_heads * key_width)
        kv_heads = self.num_kv_heads or self.num_heads
        self.key = projection(kv_heads * key_width)
        self.value = projection(kv_heads * value_width)
        self.out = projection(self.hidden_size)
        if self.normalize_qk:
            self.query_norm, self.key_norm = RMSNorm(self.norm_epsilon), RMSNorm(self.norm_epsilon)
        map_width = key_width // (1 + self.differential)  # the two maps of a head share its width, those of v2 do not
        num_maps = self.num_heads * (2 if self.differential or self.differential_v2 else 1)
        sizes = num_maps, map_width
        # the parts of a map: pooling, score, normalizer, with a leading axis of maps
        self.pool = make_part_per_head(self, "pool", parse_pool(self.head_pool), *sizes)
        if self.output_gate:
            width = pool_width(jax.tree.map(lambda x: x[0], self.pool), map_width, value_width)
            self.gate = projection(self.num_heads * width)
        self.head_score = make_part_per_head(self, "score", parse_score(self.score), *sizes)
        # "normaliser" is a parameter path of saved runs
        self.head_normalizer = make_part_per_head(self, "normaliser", parse_normalizer(self.normalizer), *sizes)
        # the layer's own bias of the scores
        if self.bias == "forget":
            self.forget_gate = Linear(num_maps, True, self.dtype, self.kernel_init)
        elif self.bias == "cope":
            self.position_table = self.param("position_table", nn.initializers.zeros, (CONTEXTUAL, map_width))
        elif self.bias != "none":
            self.head_bias = RelativeBias(self.bias, *sizes, bidirectional=True)
        # lambda = exp(q_1 . k_1) - exp(q_2 . k_2) + LAMBDA, and the norm of each head after the subtraction
        if self.differential:
            draw = nn.initializers.normal(0.1)
            self.lambdas = [self.param(f"lambda_{name}", draw, (2, map_width)) for name in ("query", "key")]
            self.head_norm = RMSNorm(EPSILON)
        if self.differential_v2:
            self.second_query = projection(self.num_heads * key_width)
            self.second_factor = Linear(self.num_heads, False, self.dtype, self.kernel_init)
        if self.value_residual:
            self.value_mix = self.param("value_mix", lambda rng: jnp.array([1.0, 0.0]))  # l_1, l_2
        if self.value_embeddings:
            self.embedding_gate = Linear(kv_heads, False, self.dtype, nn.initializers.zeros)

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
            # log gates f: the bias of query i and key j is f_j+1 + ... + f_i, a difference of running sums [B, H, T]
            biases += (PerSequence(Forget(jnp.cumsum(log_gates, axis=2))),)
        return biases or None

    def _with_unrotated_query(self, bias):
        if isinstance(bias, PerSequence):
            return PerSequence(self._with_unrotated_query(bias.rule))
        reads_query = not (is_array(bias) or isinstance(bias, ALiBi | T5Bias | Forget))
        rotation = self.rope_theta, self.rope_scaling, self.rope_fraction
        return UnrotatedQueryBias(as_tree(bias), *rotation) if reads_query else bias

    def forget(self, inputs: Float[Array, "B T D"]) -> Float[Array, "B H T"] | None:
        """The logarithms of the forget gates sigmoid(x w + b) of each position, for each map; None without them."""
        if self.bias != "forget":
            return None
        logits = self.forget_gate(inputs)
        return jax.nn.log_sigmoid(logits.astype(accumulator(logits.dtype))).swapaxes(1, 2)

    def project_q(self, query: Float[Array, "B Q D"], offset=0) -> Float[Array, "B H Q E"]:
        """The queries of all heads; `offset` is the position of the first."""
        # [B, Q, D] -> [B, Q, H E] -> [B, H, Q, E]
        heads = self._split_heads(self.query(query), self.num_heads * (1 + self.differential))
        if self.differential_v2:
            pairs = [heads, self._split_heads(self.second_query(query), self.num_heads)]
            heads = jnp.stack(pairs, axis=2).reshape(heads.shape[0], -1, *heads.shape[2:])  # maps 2 h and 2 h + 1
        heads = self.query_norm(heads) if self.normalize_qk else heads
        return self._rotate(heads, offset)

    def project_kv(
        self, key, value, offset=0, first_value=None, embedding=None
    ) -> tuple[Float[Array, "B Hkv K E"], Float[Array, "B Hkv K V"]]:
        """The keys and values of all heads, as a KV cache holds them; `offset` is the position of the first.

        `first_value` [B, Hkv, K, V] are the values of the first layer at these positions (`value_residual`), and
        `embedding` [B, K, Hkv V] those of their tokens (`value_embeddings`), which the values of the first layer have.
        """
        # [B, K, D] -> [B, K, Hkv E] -> [B, Hkv, K, E]; values have no second map
        kv_heads, inputs = self.num_kv_heads or self.num_heads, value
        key = self._split_heads(self.key(key), kv_heads * (1 + self.differential))
        value = self._split_heads(self.value(value), kv_heads)
        if self.value_embeddings:
            gate = 2 * jax.nn.sigmoid(self.embedding_gate(inputs)).swapaxes(1, 2)[..., None]  # [B, Hkv, K, 1]
            value = value + gate * self._split_heads(embedding, kv_heads)
        if self.value_residual:
            value = mix_values(value, first_value, self.value_mix)
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
        # 1. queries, keys and values, [B, H, Q, E], [B, Hkv, K, E], [B, Hkv, K, V]
        query, key, value = (tap_heads(self, *pair) for pair in (("query", query), ("key", key), ("value", value)))
        if self.exclusive:
            # in decoding the cache has keys and values of all positions, so the queries' own begin at `position`
            own_value = jax.lax.dynamic_slice_in_dim(value, position * hypotheses, query.shape[2], axis=2)
        if self.differential:
            key, value = _expand_groups(key, value, self.num_heads)
        # 2. the rules of the heads: score, biases, mask, normalizer
        bias = self._with_contextual_bias(bias, query, key, mask, position, hypotheses)
        rules = {"score": self.head_score, "bias": bias, "mask": mask, "normalizer": self.head_normalizer}
        rng = self.make_rng("dropout") if train and not is_zero(self.dropout) else None
        # 3. attention of each head
        pooled, weights = self.attend_heads(query, key, value, rules, rng, return_weights)
        # 4. what changes the output of a head: A_1 V - lambda A_2 V, then without its part along the own value v,
        # o - (o . v) v / |v|^2
        pooled = self._subtract_maps(pooled, inputs)  # [B, H, Q, V]
        if self.exclusive:
            pooled = exclude_own(pooled, jnp.repeat(own_value, self.num_heads // own_value.shape[1], axis=1))
        if self.differential:
            # the paper's scale, so that gradients are those of a Transformer (eq. 3)
            pooled = self.head_norm(pooled) * (1 - LAMBDA)
        # 5. heads side by side, [B, H, Q, V] -> [B, Q, H V]; the gate; W_o
        pooled = pooled.swapaxes(1, 2)
        pooled = pooled.reshape(*pooled.shape[:2], pooled.shape[2] * pooled.shape[3])  # [B, Q, H V]
        if self.output_gate:
            pooled = pooled * jax.nn.sigmoid(self.gate(inputs))
        pooled = tap(self, "head_output", pooled, self.num_heads)
        return self.out(pooled), weights

    def attend_heads(self, query, key, value, rules, rng=None, return_weights=False):
        """What the heads pool, [B, H, Q, V], and, if `return_weights`, their weights [B, H, Q, K], else None, of
        queries [B, H, Q, E], keys [B, Hkv, K, E] and values [B, Hkv, K, V]: the step that a subclass replaces.

        `rules` are score, bias, mask and normalizer, as in `ops.heads.over_heads`; `rng` is that of dropout.
        """
        weights, pool_rules = None, rules | {"pool": self.pool}
        # by the [Q, K] matrix only if something replaces its scores or weights
        if is_set(self, "scores", "weights"):
            weights = tap_weights(self, query, key, rules)
            pooled = pool_with_weights(weights, query, key, value, pool_rules, rng, self.dropout)
        else:
            attend_fn = partial(attend_head, Options(self.implementation), self.dropout)
            pooled = over_heads(attend_fn, query, key, value, pool_rules, rng)  # [B, H, Q, V]
            if is_traced(self):
                trace_weights(self, query, key, rules)
        if self.is_mutable_collection("attention_statistics") and not self.is_initializing():
            _sow_statistics(self, query, key, rules)
        if return_weights and weights is None:
            weights = head_weights(query, key, rules)
        return pooled, weights if return_weights else None

    def _subtract_maps(self, pooled: Float[Array, "B H2 Q V"], inputs: Float[Array, "B Q D"]):
        """What each head has pooled, with the second of its maps subtracted if it has two."""
        if self.differential:  # [B, 2 H, Q, V] -> [B, H, Q, V]
            return jax.vmap(subtract_maps, in_axes=(0, None))(pooled, self._lambda())
        if self.differential_v2:
            logits = self.second_factor(inputs).swapaxes(1, 2)[..., None]  # [B, H, Q, 1]
            return jax.vmap(subtract_maps)(pooled, jax.nn.sigmoid(logits.astype(accumulator(logits.dtype))))
        return pooled

    def _lambda(self) -> Float[Array, ""]:
        """exp(q_1 . k_1) - exp(q_2 . k_2) + LAMBDA, the factor of the second map (Ye et al. 2024, eq. 2). The paper's
        constant grows with depth from 0.2 towards 0.8; layers that are scanned have one."""
        # lambdas are [2, E], rows of the first and the second map
        first, second = jnp.exp(jnp.sum(self.lambdas[0] * self.lambdas[1], axis=1))
        return first - second + LAMBDA

    def _with_contextual_bias(self, bias, query, key, mask, position, hypotheses) -> tuple | None:
        """The biases and, if the layer has it, that of contextual positions; positions as in `attend`."""
        if self.bias != "cope":
            return bias
        # a contextual position is a sum of sigmoids of the logits between a key and its query, so the scores come
        # first; queries meet the table of positions as they were before the rotation
        logits = head_scores(query, key, {"score": self.head_score, "bias": None, "mask": mask})
        query = self._rotate(query, position, hypotheses, inverse=True)
        contextual = jax.vmap(jax.vmap(contextual_bias, in_axes=(0, 0, None)), in_axes=(0, 0, None))
        return (*(bias or ()), contextual(query, logits, self.position_table))  # [B, H, Q, K]

    def _split_heads(self, x, heads):
        """[B, T, H E] -> [B, H, T, E]."""
        return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).swapaxes(1, 2)

    def _rotate(self, x, offset, hypotheses=1, inverse=False):
        """Rotate queries or keys at positions from `offset` on, of as many `hypotheses` at each, or undo it."""
        if not self.rotary:
            return x
        # the k hypotheses of a beam are consecutive rows of one position
        positions = jnp.arange(x.shape[2], dtype=jnp.int32) // hypotheses + offset
        kwargs = {"theta": self.rope_theta, "scaling": self.rope_scaling, "fraction": self.rope_fraction}
        rotate = partial(rotary, **kwargs, inverse=inverse)
        return jax.vmap(jax.vmap(rotate, in_axes=(0, None)), in_axes=(0, None))(x, positions)  # [B, H, T, E]


def _expand_groups(key, value, heads: int) -> tuple[Float[Array, "B 2H K E"], Float[Array, "B 2H K V"]]:
    """Keys [B, 2 Hkv, K, E] and values [B, Hkv, K, V] for both maps of every head: the first map of a head reads the
    first of the keys that its group shares, the second the second. They are copied, keys of groups too."""
    group = heads // value.shape[1]
    # keys of a group are (first map, second map); repeating pairs keeps the two of a head together
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
    fraction: float = field(metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        query = rotary(query, query_positions, self.theta, self.scaling, inverse=True, fraction=self.fraction)
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
