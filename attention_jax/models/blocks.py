"""Transformer blocks: residual connections (post-norm, pre-norm, sandwich), feed-forward, encoder and decoder layers.

Dropout is applied at the paper's three positions (Vaswani et al. 2017, section 5.4, and its code): on every sub-layer's
output before it is added, on the sum of embeddings and positions (models/transformer.py), and, with separate rates,
inside the sub-layers on attention weights and on the feed-forward network's hidden units.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attention_jax.config import ModelOptions, build_from_name
from attention_jax.config.models import MASKS, MLPS, NORMS, Activation, NormPlacement, PositionEmbedding
from attention_jax.config.per_layer import options_by_layer
from attention_jax.errors import InputError
from attention_jax.models.attention_layers import attend_with_entries, attention_class, call_attention, check_cache
from attention_jax.models.initializers import FAN_IN, XAVIER
from attention_jax.models.multihead import Linear, MultiHeadAttention
from attention_jax.models.named_scores import check_pool, parse_score
from attention_jax.models.norms import EPSILON
from attention_jax.models.parts import ConstantPart, parse_part
from attention_jax.models.position_encodings import (
    RelativeBias,
    check_bias,
    custom_positions,
    relative_biases,
    rope_scaling,
)
from attention_jax.models.taps import tap
from attention_jax.ops.attention import Implementation
from attention_jax.ops.biases import Bias
from attention_jax.ops.depth import attend_over_depth
from attention_jax.ops.dropout import dropout, is_zero
from attention_jax.ops.masks import AssumeFinite, Mask, as_mask, causal
from attention_jax.ops.normalizer_kinds import suffix_sum
from attention_jax.ops.precision import accumulator, is_half
from attention_jax.ops.shared import BeamKVCache
from attention_jax.ops.trees import pytree

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu": partial(jax.nn.gelu, approximate=False),
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "swish": jax.nn.swish,
}
"""Activation functions by the names of `config.models.Activation`."""
NEEDS_ROTARY = "needs --model.position-embedding rotary"


@dataclass(frozen=True)
class Block:
    """The hyperparameters that all layers of a Transformer share."""

    hidden_size: int
    """Width of the residual stream, d_model."""
    num_heads: int
    mlp_dim: int
    """Hidden units of the feed-forward sub-layer, d_ff."""
    key_dim: int = 0
    """Per head, d_k; 0 means hidden_size / num_heads."""
    value_dim: int = 0
    """Per head, d_v; 0 means hidden_size / num_heads."""
    norm: NormPlacement = "pre"
    norm_epsilon: float = EPSILON
    activation: Activation = "gelu"
    position_embedding: PositionEmbedding = "none"
    attention: str = "multi_head"
    """A name in `config.models.ATTENTIONS`, or package.file:Module."""
    score: str = "scaled_dot"
    """A name in `config.models.SCORES`, or package.file:Class; like those of the other parts."""
    normalizer: str = "softmax"
    """A name in `config.models.NORMALIZERS`."""
    head_pool: str = "mean"
    """A name in `config.models.POOLS`."""
    mask: str = "none"
    """Mask of self-attention, a name in `config.models.MASKS`, in addition to causal and padding masks."""
    bias: str = "none"
    """Bias of self-attention beside the positions, a name in `config.models.BIASES`."""
    norm_layer: str = "layer"
    """A name in `config.models.NORMS`."""
    mlp_layer: str = "dense"
    """A name in `config.models.MLPS`."""
    num_kv_heads: int = 0
    output_gate: bool = False
    differential: bool = False
    differential_v2: bool = False
    exclusive: bool = False
    rope_theta: float = 10_000.0
    rope_scaling: str = "none"
    rope_fraction: float = 1.0
    normalize_qk: bool = False
    """These nine as in `config.models.TransformerLayers`."""
    value_residual: bool = False
    value_embeddings: bool = False
    attention_residuals: bool = False
    """These three as in `config.LanguageModelConfig`."""
    mixes_values: bool = False
    """Set by `of_layers` in all layers but the first of a stack with `value_residual`, whose values they read."""
    use_bias: bool = True
    """Bias terms of the attention projections."""
    per_layer: str = ""
    """Options of single layers, as in `config.LanguageModelConfig`."""
    mlp_bias: bool = True
    """Bias terms of the dense feed-forward layers."""
    self_attention_init: Literal["xavier", "fan_in"] = "xavier"
    mlp_init: Literal["xavier", "relu"] = "xavier"
    dropout_embeddings: bool = True
    """These three as in `config.TransformerConfig`."""
    dropout: Any = 0.0
    """Residual dropout rate; like the other two rates, a float or a traced scalar."""
    attention_dropout: Any = 0.0
    mlp_dropout: Any = 0.0
    dtype: Any = jnp.float32
    """Type of the computation; parameters are always float32."""
    implementation: Implementation | None = None
    """Of `attend`; None chooses by size and platform."""

    @classmethod
    def of(cls, options: ModelOptions, **fixed) -> "Block":
        """The block of a model: every field that `options` has under the same name, with `fixed` taking precedence, and
        the defaults above for the rest. Raises InputError for a scaling of rotary positions that no layer has."""
        positions = getattr(options, "position_embedding", "learned")  # of an encoder of masked words
        by_layer = options_by_layer(getattr(options, "per_layer", ""), getattr(options, "num_layers", 0))
        kinds = {values.get("position_embedding", positions) for values in by_layer} | {positions}
        if options.rope_scaling != "none" and "rotary" not in kinds:
            raise InputError(f"--model.rope-scaling {NEEDS_ROTARY}, got {positions}: give --model.rope-scaling none")
        names = {f.name for f in fields(cls)} & {f.name for f in fields(options)}
        shared = {name: getattr(options, name) for name in names} | fixed
        return cls(**shared | {"dtype": jnp.dtype(shared["dtype"])})

    def __post_init__(self):
        size, heads = self.hidden_size, self.num_heads
        if size % heads and not (self.key_dim and self.value_dim):
            raise InputError(f"--model.hidden-size must be a multiple of --model.num-heads, got {size} and {heads}")
        if self.num_heads % (self.num_kv_heads or self.num_heads):
            raise InputError(f"--model.num-kv-heads must divide the {self.num_heads} heads, got {self.num_kv_heads}")
        parse_score(self.score)
        check_pool(self.head_pool, self.normalizer)
        custom_positions(self.position_embedding)
        check_bias(self.bias)
        rope_scaling(self.rope_scaling)
        if self.attention_residuals and self.norm == "post":
            raise InputError("--model.attention-residuals have no sum that --model.norm post could normalize: give pre")
        try:  # the mask on one entry of a cache, traced without being computed
            jax.eval_shape(self.mask_entries, jnp.ones((1, 1, 1), bool), jnp.int32(0))
        except TypeError as error:
            raise InputError(f"--model.mask must be a mask, such as window(128), got {self.mask}: {error}") from error
        for option, names in {"norm_layer": NORMS, "mlp_layer": MLPS}.items():
            kind = build_from_name(getattr(self, option), names)
            if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
                raise InputError(f"--model.{option.replace('_', '-')} must be a Flax module, got {kind!r}")
        attention_class(self)

    def of_layers(self, count: int) -> Iterator["Block"]:
        """Iterate over the blocks of `count` layers, with the options that `per_layer` gives them.

        Raises InputError for a layer that does not exist, and for an option or a value that a layer cannot have.
        """
        base, blocks = replace(self, per_layer=""), {}
        for i, values in enumerate(options_by_layer(self.per_layer, count)):
            values = values | {"mixes_values": self.value_residual and i > 0}
            key = tuple(sorted(values.items()))
            if key not in blocks:
                blocks[key] = base._with_options(values)
            yield blocks[key]

    def _with_options(self, values: dict[str, Any]) -> "Block":
        """This block with other options of one layer; those of `per_layer` are text."""
        values = dict(values)
        try:
            if "rope_theta" in values:
                values["rope_theta"] = float(values["rope_theta"])
                if not 1 < values["rope_theta"] < float("inf"):
                    raise InputError(f"rope_theta must be above 1, got {values['rope_theta']:g}")
            if values.get("position_embedding", "none") not in ("none", "rotary"):
                raise InputError(f"position_embedding must be none or rotary, got {values['position_embedding']}")
            block = replace(self, **values)
            if values.get("rope_scaling", "none") != "none" and block.position_embedding != "rotary":
                raise InputError(f"rope_scaling {NEEDS_ROTARY}, got {block.position_embedding}: give rope_scaling=none")
            return block
        except (InputError, ValueError) as error:
            raise InputError(f"--model.per-layer: {error}") from error

    @property
    def num_maps(self) -> int:
        """Attention maps of a layer: two for each head of differential attention."""
        return self.num_heads * (2 if self.differential or self.differential_v2 else 1)

    @property
    def map_widths(self) -> tuple[int, int]:
        """The widths (of keys and queries, of values) of one map."""
        width = self.hidden_size // self.num_heads
        return (self.key_dim or width) // (1 + self.differential), self.value_dim or width

    def self_attention(self) -> nn.Module:
        """Create the layer of self-attention, called by `attention_layers.call_attention`."""
        kind, arguments = attention_class(self)
        is_multi_head = issubclass(kind, MultiHeadAttention)
        return self.multi_head(kind, arguments) if is_multi_head else kind(self, **arguments)

    def multi_head(
        self, kind: type[MultiHeadAttention] = MultiHeadAttention, arguments: Mapping[str, Any] = {}
    ) -> MultiHeadAttention:
        """Create a multi-head attention layer with this block's sizes, and `arguments` for fields of its own."""
        return kind(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            hidden_size=self.hidden_size,
            key_dim=self.key_dim,
            value_dim=self.value_dim,
            score=self.score,
            normalizer=self.normalizer,
            head_pool=self.head_pool,
            bias=self.bias,
            use_bias=self.use_bias,
            rotary=self.position_embedding == "rotary",
            rope_theta=self.rope_theta,
            rope_scaling=rope_scaling(self.rope_scaling),
            rope_fraction=self.rope_fraction,
            normalize_qk=self.normalize_qk,
            norm_epsilon=self.norm_epsilon,
            output_gate=self.output_gate,
            differential=self.differential,
            differential_v2=self.differential_v2,
            exclusive=self.exclusive,
            value_residual=self.mixes_values,
            value_embeddings=self.value_embeddings,
            kernel_init=FAN_IN if self.self_attention_init == "fan_in" else XAVIER,
            dropout=self.attention_dropout,
            dtype=self.dtype,
            implementation=self.implementation,
            **arguments,
        )

    def cross_attention(self) -> MultiHeadAttention:
        """Create cross-attention over an encoder's output, without rotary positions, bias and own values, since queries
        and keys belong to different sequences; its kernels are Glorot-uniform."""
        return self.multi_head().clone(rotary=False, bias="none", exclusive=False, kernel_init=XAVIER)

    def feed_forward(self) -> nn.Module:
        """Create the feed-forward layer, called as layer(x, train=False)."""
        return build_from_name(self.mlp_layer, MLPS)(self)

    def normalization(self, name: str | None = None) -> nn.Module:
        """Create a normalization layer of this block."""
        return build_from_name(self.norm_layer, NORMS)(self.norm_epsilon, name=name)

    def self_mask(self, mask: Mask | None, batch_size: int) -> Mask | None:
        """Combine `mask`, whose leaves have a leading batch axis, with the block's self-attention mask."""
        block_mask = self._block_mask()
        if block_mask is None:
            return mask
        block_mask = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (batch_size, *jnp.shape(leaf))), block_mask
        )  # leaves [B, ...]
        return block_mask if mask is None else mask & block_mask

    def mask_entries(self, entries: Bool[Array, "B k Tk"], position: Int[Array, ""]) -> Bool[Array, "B k Tk"]:
        """Restrict the `entries` of a cache, k per position, to those that the block's mask allows for `position`."""
        block_mask, (_, hypotheses, length) = self._block_mask(), entries.shape
        return (
            entries
            if block_mask is None
            else entries & block_mask(position[None], jnp.arange(length) // hypotheses)[None]
        )

    def _block_mask(self) -> Mask | None:
        if self.mask == "none":
            return None
        if self.mask.partition("(")[0] not in MASKS and ":" not in self.mask:
            raise InputError(f"--model.mask must be none, {', '.join(MASKS)} or package.file:Class, got {self.mask!r}")
        parsed = parse_part("mask", self.mask, MASKS, Mask, as_mask)
        if not isinstance(parsed, ConstantPart):
            raise InputError(f"--model.mask {self.mask} must not have init: a mask has no gradient, so use a bias")
        return parsed.value

    def empty_cache(self, batch_size: int, max_length: int, layers: int | None = None) -> tuple[BeamKVCache, ...]:
        """Create an empty KV cache of a self-attention layer: zeros, keys [B, Hkv, E, T], values [B, Hkv, T, V] and, of
        forget gates, logarithms [B, H, 1, T] in float32 at least; of several `layers`, with a leading axis."""
        check_cache(self)
        leading = (batch_size,) if layers is None else (layers, batch_size)
        empty = lambda axis, dtype, *shape: BeamKVCache(jnp.zeros((*leading, *shape), dtype), axis)
        kv_heads, (key_width, value_width) = self.num_kv_heads or self.num_heads, self.map_widths
        keys = empty(-1, self.dtype, kv_heads * (1 + self.differential), key_width, max_length)
        values = empty(-2, self.dtype, kv_heads, max_length, value_width)
        if self.bias != "forget":
            return keys, values
        return keys, values, empty(-1, accumulator(self.dtype), self.num_maps, 1, max_length)

    def relative_biases(self, layers: int, bidirectional: bool) -> list[RelativeBias]:
        """Create the relative position biases of a stack of this block's self-attention layers."""
        sizes, fan_in = (self.num_maps, self.map_widths[0]), self.self_attention_init == "fan_in"
        return relative_biases(self.position_embedding, *sizes, layers, bidirectional, fan_in)


class FeedForward(nn.Module):
    """max(0, x W_1 + b_1) W_2 + b_2 (Vaswani et al. 2017, eq. 2), or with another activation."""

    block: Block

    def setup(self):
        block, relu = self.block, self.block.mlp_init == "relu"
        kernel = nn.initializers.variance_scaling(2.0, "fan_avg", "uniform") if relu else XAVIER
        self.hidden = Linear(block.mlp_dim, block.mlp_bias, block.dtype, kernel, fan_in_bias=relu)
        self.out = Linear(block.hidden_size, block.mlp_bias, block.dtype, fan_in_bias=relu)

    def __call__(self, x: Float[Array, "B T D"], *, train: bool = False) -> Float[Array, "B T D"]:
        rate = self.block.mlp_dropout
        rng = self.make_rng("dropout") if train and not is_zero(rate) else None
        # a = x W_1 + b_1, [B, T, M]; then f(a) W_2 + b_2
        finish = nn.remat(FeedForward._finish) if is_half(self.block.dtype) else FeedForward._finish
        return finish(self, self.hidden(x), rate, rng)

    def _finish(self, x, rate, rng):
        """Apply activation, dropout and the second layer. In half precision only the first matmul's output is saved for
        the gradient; the other arrays of this width (GELU, its error function, a float32 copy) are recomputed."""
        return self.out(dropout(tap(self, "mlp_hidden", self.activate(x)), rate, rng))

    def activate(self, x):
        """The activation; attributions of `interpret` hold its quotient by x constant."""
        return ACTIVATIONS[self.block.activation](x)


class GatedFeedForward(nn.Module):
    """Base class: (f(x W) * x V) W_2, without biases (Shazeer 2020, eq. 6); `gate` is W, `hidden` V and `out` W_2."""

    block: Block
    gate_activation: ClassVar[Activation]

    @nn.compact
    def __call__(self, x: Float[Array, "B T D"], *, train: bool = False) -> Float[Array, "B T D"]:
        linear = lambda name, width: Linear(width, use_bias=False, dtype=self.block.dtype, name=name)
        # (f(x W) * x V) W_2, [B, T, D] -> [B, T, M] -> [B, T, D]
        gate = ACTIVATIONS[self.gate_activation](linear("gate", self.block.mlp_dim)(x))
        x = tap(self, "mlp_hidden", gate * linear("hidden", self.block.mlp_dim)(x))
        return linear("out", self.block.hidden_size)(apply_dropout(self, x, self.block.mlp_dropout, train))


class SwiGLU(GatedFeedForward):
    """f is the swish (Llama, Qwen)."""

    gate_activation = "swish"


class GEGLU(GatedFeedForward):
    """f is the tanh approximation of the GELU (T5 1.1, Gemma)."""

    gate_activation = "gelu_tanh"


def apply_dropout(module: nn.Module, x: Array, rate, train: bool) -> Array:
    """Apply dropout with the module's "dropout" random stream, in training only."""
    return dropout(x, rate, module.make_rng("dropout")) if train and not is_zero(rate) else x


OUTPUT_TAPS = {"attention": "attention_output", "cross": "cross_attention_output", "ffn": "mlp_output"}
"""The taps of what a sub-layer adds to the residual stream."""


def make_norms(module: nn.Module, *sublayers: str):
    """Give `module`, in its setup, the norms of its sub-layers: attention_norm for "attention", and in a sandwich
    attention_output_norm beside it; with attention residuals their queries, attention_depth_query."""
    for name in sublayers:
        setattr(module, f"{name}_norm", module.block.normalization())
        if module.block.norm == "sandwich":
            setattr(module, f"{name}_output_norm", module.block.normalization())
        if module.block.attention_residuals:
            setattr(module, f"{name}_depth_query", depth_query(module, f"{name}_depth_query"))


def depth_query(module: nn.Module, name: str) -> Float[Array, "D"]:
    """A query of attention residuals, a parameter of `module`: 0 at first, where all outputs have the same weight."""
    return module.param(name, nn.initializers.zeros, (module.block.hidden_size,))


def sublayer_input(module: nn.Module, name: str, x):
    """The input of the sub-layer `name`: x in post-norm, else norm(x); with attention residuals of what attention over
    the outputs so far, x [B, T, S, D], reads."""
    if module.block.attention_residuals:
        x = attend_over_depth(getattr(module, f"{name}_depth_query"), x, module.block.norm_epsilon)
    return x if module.block.norm == "post" else getattr(module, f"{name}_norm")(x)


def add_residual(module: nn.Module, name: str, x, y, train: bool):
    """The residual connection around the sub-layer `name` with output y: x + drop(y) in pre-norm, norm(x + drop(y)) in
    post-norm, and x + drop(norm(y)) in a sandwich; with attention residuals the output joins those so far."""
    placement = module.block.norm
    # sandwich: the norm of what the sub-layer adds
    y = getattr(module, f"{name}_output_norm")(y) if placement == "sandwich" else y
    y = tap(module, OUTPUT_TAPS[name], y)
    y = apply_dropout(module, y, module.block.dropout, train)
    if module.block.attention_residuals:
        return jnp.concatenate([x, y[:, :, None]], axis=2)  # [B, T, S + 1, D]
    # post: the norm of the sum
    return getattr(module, f"{name}_norm")(x + y) if placement == "post" else x + y


def check_bidirectional(block: Block):
    """Raise InputError for a bias that a layer whose queries attend to later keys cannot have."""
    if block.bias == "cope":
        raise InputError(
            "--model.bias cope counts the keys between a key and its query, so that it needs causal layers, as of a "
            "language model; this one has an encoder: use another bias, such as forget"
        )


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward, each inside a residual connection."""

    block: Block

    def setup(self):
        check_bidirectional(self.block)
        self.attention, self.ffn = self.block.self_attention(), self.block.feed_forward()
        make_norms(self, "attention", "ffn")

    def __call__(
        self, x: Float[Array, "B T D"], mask=None, bias=None, train: bool = False, return_weights: bool = False
    ):
        """Return (output [B, T, D], weights [B, H, T, T] or None)."""
        x = tap(self, "residual_in", x)
        h = sublayer_input(self, "attention", x)
        mask = self.block.self_mask(mask, x.shape[0])
        # x = x + Attention(h); x = x + FFN(h'), where h and h' are x or its norm by the placement of the norms
        flags = {"train": train, "return_weights": return_weights}
        y, weights = call_attention(self.attention, h, h, mask=mask, bias=bias, **flags)
        x = add_residual(self, "attention", x, y, train)
        y = self.ffn(sublayer_input(self, "ffn", x), train=train)
        return tap(self, "residual_out", add_residual(self, "ffn", x, y, train)), weights


@pytree
@dataclass(frozen=True)
class AncestorMask(AssumeFinite):
    """The entries of a `BeamKVCache` that each hypothesis may attend to, `entries` [k, T k].

    `attend` evaluates consecutive positions, so a slice of the matrix is enough; a gather, as in `Dense`, takes half as
    long as the attention. Caches are finite everywhere.
    """

    entries: Bool[Array, "k Tk"]

    def __call__(self, query_positions, key_positions):
        # rows are hypotheses and columns entries of the cache, both as `attend` counts positions in its blocks
        first = query_positions[0], key_positions[0]
        return lax.dynamic_slice(self.entries, first, (len(query_positions), len(key_positions)))


@pytree
@dataclass(frozen=True)
class BeamBias(Bias):
    """`bias` over a `BeamKVCache`: all k queries are at one `position`, and key j is at position j // k."""

    bias: Bias
    position: Int[Array, ""]
    hypotheses: int = field(metadata={"static": True})

    def __call__(self, query, query_positions, key_positions):
        return self.bias(query, jnp.full_like(query_positions, self.position), key_positions // self.hypotheses)


def write_cache(cache, key, value, log_gates, position) -> tuple[BeamKVCache, ...]:
    """The cache with keys [B, Hkv, T, E], values [B, Hkv, T, V] and, of forget gates, logarithms [B, H, T] from
    `position` on."""
    # [B, Hkv, E, T], [B, Hkv, T, V], [B, H, 1, T]: the layouts of `Block.empty_cache`
    entries = key.swapaxes(2, 3), value, *(() if log_gates is None else (log_gates[:, :, None],))
    return tuple(array.write(entry, position) for array, entry in zip(cache, entries, strict=True))


def step_biases(maps: int, biases: tuple[Bias, ...], cache, entries: Bool[Array, "B k Tk"], position) -> tuple | None:
    """The biases of self-attention for k hypotheses at one position over a cache, and that of its forget gates."""
    over_cache = tuple(BeamBias(bias, jnp.full((maps,), position), entries.shape[1]) for bias in biases)
    of_gates = tuple(forget_between(gates.entries[:, :, 0], entries) for gates in cache[2:])  # [B, H, k, T k]
    return over_cache + of_gates or None


def forget_between(log_gates: Float[Array, "B H Tk"], entries: Bool[Array, "B k Tk"]) -> Float[Array, "B H k Tk"]:
    """The bias of forget gates (`ops.biases.Forget`) for k hypotheses after their last position: the sum of `log_gates`
    over the positions behind a key, of the `entries` that are ancestors of a hypothesis.

    >>> forget_between(jnp.array([[[-1.0, -2.0, -4.0]]]), jnp.array([[[True, True, False]]])).tolist()
    [[[[-2.0, 0.0, 0.0]]]]
    """
    _, hypotheses, count = entries.shape
    # entry j of the cache is position j // k of hypothesis j % k; each position has one ancestor of a hypothesis
    ancestors = jnp.where(entries[:, None], log_gates[:, :, None], 0.0)  # [B, H, k, T k]
    by_position = ancestors.reshape(*ancestors.shape[:3], count // hypotheses, hypotheses).sum(axis=-1)  # [B, H, k, T]
    # the sum behind each position, the same for its k entries
    return jnp.repeat(suffix_sum(by_position), hypotheses, axis=3)  # [B, H, k, T k]


def split_stream(layer: nn.Module, x):
    """(what the sub-layers of a decoder layer read, the first layer's values or None), from what the layer is given."""
    x, first_value = x if layer.block.value_residual else (x, None)
    return x if layer.block.attention_residuals else tap(layer, "residual_in", x), first_value


def join_stream(layer: nn.Module, x, value, first_value):
    """The inverse, for the next layer: of a layer with these values, which are the first ones if it mixes none in."""
    x = x if layer.block.attention_residuals else tap(layer, "residual_out", x)
    return (x, first_value if layer.block.mixes_values else value) if layer.block.value_residual else x


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention over `memory` if `cross`, then feed-forward.

    `memory` is (keys [B, Hkv, S, E], values [B, Hkv, S, V], mask) as projected by `project`; without `cross` it is
    the layer's value embeddings [B, T, Hkv V], or None. x is the residual stream [B, T, D], the outputs so far
    [B, T, S, D] of attention residuals, or with value residuals a pair of either and the first layer's values.
    """

    block: Block
    cross: bool = True

    def setup(self):
        self.attention, self.ffn = self.block.self_attention(), self.block.feed_forward()
        make_norms(self, "attention", "ffn")
        if self.cross:
            self.cross_attention = self.block.cross_attention()
            make_norms(self, "cross")

    def __call__(self, x: Float[Array, "B T D"], mask, bias=None, memory=None, train=False, return_weights=False):
        """Return (output [B, T, D], self-attention weights or None, cross-attention weights [B, H, T, S] or None)."""
        return self._run(x, mask, bias, memory, train, return_weights)[:3]

    def _run(self, x, mask, bias, memory, train=False, return_weights=False):
        """What `__call__` returns and, for a cache, (keys, values, logarithms of forget gates or None)."""
        # causal self-attention, then what `_finish` adds: cross-attention over the memory, feed-forward
        x, first_value = split_stream(self, x)
        h, flags = sublayer_input(self, "attention", x), {"train": train, "return_weights": return_weights}
        rules = {"mask": self.block.self_mask(mask, x.shape[0]), "bias": bias}
        y, self_weights, entries = attend_with_entries(self.attention, h, first_value, memory, **rules, **flags)
        x, cross_weights = self._finish(add_residual(self, "attention", x, y, train), memory, train, return_weights)
        return join_stream(self, x, entries[1], first_value), self_weights, cross_weights, entries

    def project(self, states: Float[Array, "B S D"]):
        """Project the memory to the keys and values of the cross-attention, once per sentence."""
        return self.cross_attention.project_kv(states, states)

    def prefill(self, x: Float[Array, "B P D"], bias, memory, cache):
        """The first positions at once: (output [B, P, D], None, the cache with their entries)."""
        x, _, _, entries = self._run(x, causal(), bias, memory)
        return x, None, write_cache(cache, *entries, 0)

    def step(self, x: Float[Array, "R 1 D"], cache, position, entries, bias=None, memory=None, return_weights=False):
        """One position of R = B k hypotheses: (output, cache, own weights [R, H, 1, T], cross weights [R, H, 1, S]).

        `cache` is that of `Block.empty_cache`, keys [B, Hkv, E, T k] and values [B, Hkv, T k, V]; `entries` [B, k, T k]
        marks what each hypothesis may attend to. The k hypotheses of a sentence are k queries of one attention.
        """
        # 1. rows are hypotheses, R = B k: residual stream, norms and projections know no beams
        (x, first_value), hypotheses = split_stream(self, x), entries.shape[1]
        h = sublayer_input(self, "attention", x)
        # 2. [R, H, 1, E] -> [B, H, k, E]: the k hypotheses of a sentence become queries of one attention over its cache
        query = _join_hypotheses(self.attention.project_q(h, position), hypotheses)  # [B, H, k, E]
        own_key, own_value = self.attention.project_kv(h, h, position, first_value, memory)
        key, value = (_join_hypotheses(y, hypotheses) for y in (own_key, own_value))
        h = h.reshape(-1, hypotheses, h.shape[-1])  # [B, k, D], as y
        # 3. entries position * k, ..., position * k + k - 1 of the cache are theirs; the mask leaves each its ancestors
        cache = write_cache(cache, key, value, self.attention.forget(h), position)
        biases = step_biases(self.block.num_maps, self.attention.add_bias(bias, None) or (), cache, entries, position)
        rules = {"bias": biases, "mask": AncestorMask(self.block.mask_entries(entries, position))}
        rules |= {"return_weights": return_weights, "position": position, "hypotheses": hypotheses}
        # 4. attention: outputs [B, k, D], as rows [R, 1, D]; weights [B, H, k, T k] -> [R, H, 1, T k] -> [R, H, 1, T]
        y, self_weights = self.attention.attend(query, cache[0].entries.swapaxes(2, 3), cache[1].entries, h, **rules)
        self_weights = _weights_by_position(_weights_by_hypothesis(self_weights, x.shape[0]), hypotheses)
        x = add_residual(self, "attention", x, y.reshape(-1, 1, y.shape[-1]), False)
        x, cross_weights = self._finish(x, memory, return_weights=return_weights)
        return join_stream(self, x, own_value, first_value), cache, self_weights, cross_weights

    def _finish(self, x, memory, train=False, return_weights=False):
        """Apply the sub-layers after self-attention: (output, cross-attention weights or None)."""
        x, weights = self._attend_to(x, *memory, train, return_weights) if self.cross else (x, None)
        return add_residual(self, "ffn", x, self.ffn(sublayer_input(self, "ffn", x), train=train), train), weights

    def _attend_to(self, x: Float[Array, "R T D"], keys, values, mask, train, return_weights):
        """Apply cross-attention; in beam search the k hypotheses of a sentence share its memory, R = B k."""
        # [R, T, D] -> [B, k T, D]: the hypotheses of a sentence are more queries over one memory, which is not copied
        inputs = sublayer_input(self, "cross", x).reshape(keys.shape[0], -1, x.shape[-1])  # [B, k T, D]
        query = self.cross_attention.project_q(inputs)  # [B, H, k T, E]
        flags = {"mask": mask, "train": train, "return_weights": return_weights}
        y, weights = self.cross_attention.attend(query, keys, values, inputs, **flags)
        x = add_residual(self, "cross", x, y.reshape(x.shape), train)
        return x, _weights_by_hypothesis(weights, x.shape[0])


def _join_hypotheses(x: Float[Array, "R H 1 E"], hypotheses: int) -> Float[Array, "B H k E"]:
    """Reshape the k hypotheses of a sentence to k positions of one sequence."""
    # [B k, H, 1, E] -> [B, k, H, E] -> [B, H, k, E]
    return x.reshape(-1, hypotheses, x.shape[1], x.shape[3]).swapaxes(1, 2)


def _weights_by_hypothesis(weights: Float[Array, "B H kT S"] | None, rows: int) -> Float[Array, "R H T S"] | None:
    """Reshape the attention weights of a sentence's k T queries, if there are any, to those of its k hypotheses."""
    if weights is None:
        return None
    # [B, H, k T, S] -> [B, H, k, T, S] -> [B, k, H, T, S] -> [R, H, T, S]
    b, h, _, s = weights.shape
    return weights.reshape(b, h, rows // b, -1, s).swapaxes(1, 2).reshape(rows, h, -1, s)


def _weights_by_position(weights: Float[Array, "R H 1 Tk"] | None, hypotheses: int) -> Float[Array, "R H 1 T"] | None:
    """Sum the weights, if there are any, over the k cache entries of each position, of which only one is nonzero."""
    return None if weights is None else weights.reshape(*weights.shape[:3], -1, hypotheses).sum(axis=-1)
