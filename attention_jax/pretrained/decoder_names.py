"""Decoder-only families as Hugging Face has them, and what their weights are called here: GPT-2, Llama, Mistral, Qwen
and Gemma. The layouts are those of `naming`.

Llama's names are those of all but GPT-2: Qwen adds biases of queries, keys and values (2) or RMSNorm of each head's
queries and keys (3), Gemma norms before and after each sub-layer. Kernels are [out, in] there, and [in, out] in GPT-2.
"""

import math
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from attention_jax.config import LanguageModelConfig
from attention_jax.config.per_layer import layer_list
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.norms import EPSILON
from attention_jax.models.position_encodings import rope_scaling
from attention_jax.pretrained.config_json import Facts, activation, heads_of, hf_activation
from attention_jax.pretrained.naming import (
    LAYERS,
    Arrays,
    Naming,
    Row,
    attention_names,
    count_layers,
    layer_rows,
    norm_rows,
)

HERE = "decoder/layer_*"
GPT2_LAYER = {
    "attention_norm": "ln_1",
    "attention/out": "attn.c_proj",
    "ffn_norm": "ln_2",
    "ffn/hidden": "mlp.c_fc",
    "ffn/out": "mlp.c_proj",
}
GPT2 = (
    Row("transformer.wte.weight", "v d", "embedding/token/embedding", "v d"),
    Row("transformer.wpe.weight", "n d", "embedding/position/embedding", "n d"),
    Row("transformer.h.*.attn.c_attn.weight", "d (s h e)", f"{HERE}/attention/query|key|value/kernel", "s d (h e)"),
    Row("transformer.h.*.attn.c_attn.bias", "(s h e)", f"{HERE}/attention/query|key|value/bias", "s (h e)"),
    *(row._replace(tensor_layout=row.param_layout) for row in layer_rows("transformer.h.*", HERE, GPT2_LAYER)),
    *norm_rows("transformer.ln_f", "decoder/norm"),
)
TOKENS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
GATE, QUERY_BIAS = "model.layers.0.mlp.gate_proj.weight", "model.layers.0.self_attn.q_proj.bias"
DECODER_LAYER = {
    "attention_norm": "input_layernorm",
    **attention_names("self_attn.{}_proj", *"qkvo"),
    "ffn/gate": "mlp.gate_proj",
    "ffn/hidden": "mlp.up_proj",
    "ffn/out": "mlp.down_proj",
}
FFN_NORM = {"ffn_norm": "post_attention_layernorm"}
QK_NORMS = {"attention/query_norm": "self_attn.q_norm", "attention/key_norm": "self_attn.k_norm"}
SANDWICH = {
    "attention_output_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_output_norm": "post_feedforward_layernorm",
}
INPUTS = ("attention/query", "attention/key", "attention/value")
ATTENTION = (*INPUTS, "attention/out")
OUTPUT_BIAS = "/attention/out/bias"


def decoder_table(norms: Mapping[str, str], biased: Container[str] = ()) -> tuple[Row, ...]:
    """Rows of a family other than GPT-2: the names of those `norms` that not all have, and what has a bias."""
    return (
        Row(TOKENS, "v d", "embedding/token/embedding", "v d"),
        *layer_rows("model.layers.*", HERE, DECODER_LAYER | norms, biased),
        *norm_rows("model.norm", "decoder/norm", bias=False),
        Row(HEAD, "v d", "kernel", "d v"),
    )


DEPTH = {"value_residual": False, "value_embeddings": False, "attention_residuals": False}
"""What layers read from earlier ones and from tokens, which the other libraries do not have."""


class LanguageModelNaming(Naming):
    """What the conversions of all decoder-only families have in common."""

    options_type = LanguageModelConfig

    def build_module(self, options: LanguageModelConfig, params: Arrays) -> LanguageModel:
        """Return the model of these weights."""
        return LanguageModel(options, len(params["embedding/token/embedding"]))


# --- GPT-2 (Radford et al. 2019) --------------------------------------------------------------------------------------

GPT2_CONFIG = {
    "layer_norm_epsilon": EPSILON,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""The settings in config.json that have no other value here."""


class GPT2Naming(LanguageModelNaming):
    """The conversion of a GPT2LMHeadModel."""

    table = GPT2
    mark = "transformer.h.0.attn.c_attn.weight"
    model_types = ("gpt2",)
    copies: ClassVar = {
        r"lm_head\.weight": lambda state_dict, copy: state_dict["transformer.wte.weight"],
        r"transformer\.h\.\d+\.attn\.bias": lambda state_dict, mask: np.tril(np.ones(mask.shape, np.float32)),
        r"transformer\.h\.\d+\.attn\.masked_bias": lambda state_dict, value: None,
    }
    fixed_options: ClassVar = {
        "norm": "pre",
        "position_embedding": "learned",
        "tied_embeddings": True,
        "scale_embeddings": False,
        "output_bias": False,
        "use_bias": True,
        "key_dim": 0,
        "value_dim": 0,
        "norm_epsilon": EPSILON,
        "logit_cap": 0.0,
        "per_layer": "",
        "scan_layers": False,
        **DEPTH,
        **LAYERS,
    }

    def normalize_name(self, name: str) -> str:
        return re.sub(r"^(wte|wpe|h|ln_f)\.", r"transformer.\1.", name)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> LanguageModelConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        facts.get("layer_norm_epsilon", EPSILON, f"norms with epsilon {EPSILON:g}")
        facts.require("GPT-2", GPT2_CONFIG)
        positions, width = state_dict["transformer.wpe.weight"].shape
        layers, hidden = count_layers("transformer.h.", state_dict), len(state_dict["transformer.h.0.mlp.c_fc.bias"])
        sizes = {"n_embd": width, "n_layer": layers, "n_positions": positions}
        facts.require("GPT-2", sizes | {"vocab_size": len(state_dict["transformer.wte.weight"])})
        if (inner := facts.get("n_inner", hidden) or 4 * width) != hidden:
            raise InputError(
                f"GPT-2's config.json must have n_inner {hidden}, has {inner} (null and none are {4 * width})"
            )
        return LanguageModelConfig(
            layers,
            width,
            heads_of(facts, "n_head", width),
            hidden,
            activation=activation(facts.get("activation_function", "gelu_new", "activation gelu_new")),
            position_embedding="learned",
            scale_embeddings=False,
            output_bias=False,
            max_length=positions,
        )

    def config_json(self, options: LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `GPT2LMHeadModel`; with the special tokens of the run's vocabulary, if any."""
        vocabulary = getattr(data, "vocabulary", None)
        return GPT2_CONFIG | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": len(params["embedding/token/embedding"]),
            "n_positions": len(params["embedding/position/embedding"]),
            "n_embd": options.hidden_size,
            "n_layer": options.num_layers,
            "n_head": options.num_heads,
            "n_inner": options.mlp_dim,
            "activation_function": hf_activation(options.activation),
            **{f"{name}_token_id": getattr(vocabulary, f"{name}_id", None) for name in ("bos", "eos", "pad")},
        }


# --- what the config.json of the other families says -----------------------------------------------------------------


def format_number(value: float | bool | None) -> str:
    """A number, True, False or None as an argument of an option.

    >>> format_number(8.0), format_number(0.5), format_number(None)
    ('8', '0.5', 'None')
    """
    if value is None or isinstance(value, bool):
        return str(value)
    return str(int(value) if value == int(value) else float(value))


def rotary_options(family: str, facts: Facts) -> dict[str, Any]:
    """The options of rotary positions in config.json, as transformers 5 writes them or as earlier ones did.

    >>> newer, older = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 1e6}
    >>> [rotary_options("Llama", Facts({"model_type": "llama"} | entry))["rope_theta"] for entry in (newer, older, {})]
    [500000.0, 1000000.0, 10000.0]
    """
    newer, older = facts.get("rope_parameters") or {}, facts.get("rope_scaling")
    entry, theta = older or newer, facts.get("rope_theta")
    fraction = float(entry.get(FRACTION, facts.get(FRACTION, 1.0)))
    if not 0 < fraction <= 1:
        raise InputError(f"{family}'s {FRACTION} must be above 0 and at most 1, got {fraction:g}")
    scaling = scaling_of(family, entry, facts)
    return {"rope_theta": float(entry.get("rope_theta", theta)), "rope_scaling": scaling, "rope_fraction": fraction}


FRACTION, LENGTH = "partial_rotary_factor", "original_max_position_embeddings"
SCALINGS = {
    "default": {},
    "linear": {"factor": "factor"},
    "llama3": {"factor": "factor", "low": "low_freq_factor", "high": "high_freq_factor", "original": LENGTH},
    "yarn": {
        "factor": "factor",
        "original": LENGTH,
        "fast": "beta_fast",
        "slow": "beta_slow",
        "amplitude": "attention_factor",
        "truncate": "truncate",
    },
}
"""{kind of scaled rotary positions: {argument of its class, in their order: name in config.json}}"""
YARN = {"beta_fast": 32, "beta_slow": 1, "attention_factor": None, "truncate": True}
"""What is meant where the entry has no such name."""


def scaling_of(family: str, entry: Mapping[str, Any], facts: Facts) -> str:
    """`rope_scaling` of an entry in config.json; InputError for a kind that is not known.

    >>> facts = Facts({"model_type": "llama"})
    >>> scaling_of("", {"type": "linear", "factor": 2.0}, facts), scaling_of("", {"rope_type": "default"}, facts)
    ('linear(2)', 'none')
    """
    length = entry.get(LENGTH, facts.get("max_position_embeddings"))
    entry = {**entry, LENGTH: facts.get(LENGTH) or length}
    kind = entry.get("rope_type", entry.get("type", "default"))
    entry = yarn_entry(family, entry) if kind == "yarn" else entry
    names = {*SCALINGS.get(kind, {}).values()}
    if kind not in SCALINGS or not names <= entry.keys():
        lacks = f"{kind} without {', '.join(sorted(names - entry.keys()))}" if kind in SCALINGS else kind
        raise InputError(f"{family}'s rotary positions must be scaled by {', '.join(SCALINGS)}; got {lacks}")
    values = [entry[name] for name in SCALINGS[kind].values()]
    if kind == "yarn" and values[2:] == [*YARN.values()]:
        values = values[:2]
    return f"{kind}({', '.join(map(format_number, values))})" if values else "none"


def yarn_entry(family: str, entry: Mapping[str, Any]) -> dict[str, Any]:
    """An entry of YaRN with all that `YARN` has; InputError for a name that has no meaning there.

    The amplitude is 0.1 m ln(factor) + 1 with m = `mscale`, divided by the same with m = `mscale_all_dim`, if the entry
    has both.

    >>> yarn_entry("", {"factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": None})["attention_factor"]
    1.0
    """
    scales, common = ("mscale", "mscale_all_dim"), ("rope_type", "type", "rope_theta", FRACTION)
    if unknown := sorted(entry.keys() - {*SCALINGS["yarn"].values(), *scales, *common}):
        raise InputError(f"{family}'s rotary positions have {', '.join(unknown)} in config.json, which yarn has not")
    entry = YARN | {name: value for name, value in entry.items() if value is not None}
    if entry["attention_factor"] is None and all(entry.get(name) for name in scales):
        above, below = (0.1 * entry[name] * math.log(entry["factor"]) + 1 for name in scales)
        entry["attention_factor"] = above / below
    return entry


def scaling_entry(option: str) -> dict[str, Any]:
    """The entry in config.json of an option `rope_scaling`; InputError for a scaling that transformers does not have.

    >>> scaling_entry("linear(2)")
    {'rope_type': 'linear', 'factor': 2.0}
    """
    kind, scaling = "default" if option == "none" else option.partition("(")[0], rope_scaling(option)
    if kind not in SCALINGS:
        raise InputError(f"transformers scales rotary positions by {', '.join(SCALINGS)}, got {option}")
    values = {name: getattr(scaling, argument) for argument, name in SCALINGS[kind].items()}
    return {"rope_type": kind} | {name: x if isinstance(x, bool) else float(x) for name, x in values.items()}


def window_layers(family: str, facts: Facts, usual: list[str], needed: Sequence[str], *local: str) -> str:
    """`per_layer` of the layers that have a sliding window and the options `local`, by layer_types or `usual`.

    A window counts a position itself: 512 keys are at most 511 away. Raises InputError for layer_types of another
    length or kind, and for windows without one of the entries `needed`.

    >>> kinds = ["sliding_attention", "full_attention"]
    >>> facts = Facts({"model_type": "gemma2", "sliding_window": 512})
    >>> window_layers("Gemma 2", facts, kinds, ["sliding_window"], "rope_scaling=none")
    '0:mask=window(511),rope_scaling=none'
    """
    kinds = facts.get("layer_types") or usual
    if len(kinds) != len(usual) or {*kinds} - {"full_attention", "sliding_attention"}:
        raise InputError(
            f"{family}'s layer_types must be full_attention or sliding_attention for each of {len(usual)} layers; got "
            f"{len(kinds)} of {', '.join(sorted(map(str, {*kinds})))}"
        )
    layers = layer_list([layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"])
    if layers and not all([facts.get(name) for name in needed]):
        raise InputError(f"{family}'s config.json must have {' and '.join(needed)}, as layers {layers} have one")
    options = [f"mask=window({int(facts.get('sliding_window')) - 1})", *local] if layers else []
    return f"{layers}:{','.join(options)}" if layers else ""


def cap_of(family: str, facts: Facts, name: str) -> float:
    """Return a cap in config.json; 0.0 (no cap) for null. InputError for a cap that is not positive."""
    cap = facts.get(name)
    if cap is not None and not float(cap) > 0:
        raise InputError(f"{family}'s {name} must be above 0, or null for none; got {cap!r}")
    return float(cap or 0.0)


# --- Llama, Mistral, Qwen, Gemma --------------------------------------------------------------------------------------


class DecoderNaming(LanguageModelNaming):
    """What the conversions of all families but GPT-2 have in common."""

    family: str
    """Its name in messages."""
    architecture: str
    """The class in the library."""
    mark = TOKENS
    copies: ClassVar = {r".*\.rotary_emb\.inv_freq": lambda state_dict, buffer: None}
    gated_layers: tuple[str, Mapping[str, str]] = ("hidden_act", {"silu": "swiglu", "swish": "swiglu"})
    """The entry of the activation, and {its values: our feed-forward layers}."""

    def normalize_name(self, name: str) -> str:
        """The names of a model without its head have no prefix."""
        return re.sub(r"^(embed_tokens|layers|norm)\.", r"model.\1.", name)

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        """Leave out the head if it is tied to the embeddings. InputError for weights without a config.json, as
        shapes do not show the heads."""
        if not facts.entries:
            raise InputError(
                "it needs its config.json, with num_attention_heads: copy the whole directory of the model"
            )
        tied = facts.get("tie_word_embeddings")
        if HEAD not in state_dict and not tied:
            raise InputError(f"{HEAD} is missing, and config.json does not say that it is tied to the embeddings")
        if HEAD not in state_dict or not tied:
            return state_dict
        if not np.array_equal(state_dict[HEAD], state_dict[TOKENS]):
            raise InputError(f"{HEAD} must be tied to {TOKENS}, as config.json says, and differs from it")
        return {name: array for name, array in state_dict.items() if name != HEAD}

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        """Return the options that differ between the families."""
        return {}

    def config_json(self, options: LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build what the config.json of another model of this family may have otherwise."""
        return {"architectures": [self.architecture], "vocab_size": len(params["embedding/token/embedding"])}

    def infer_options(self, state_dict: Arrays, facts: Facts) -> LanguageModelConfig:
        """Infer the options from shapes and config.json; InputError where these contradict each other."""
        family_options = self.family_options(state_dict, facts)
        entry, layers_by_activation = self.gated_layers
        if (act := facts.get(entry)) not in layers_by_activation:
            accepted = " or ".join(layers_by_activation)
            raise InputError(f"{self.family}'s config.json must have {entry} {accepted}, has {act!r}")
        facts.require(self.family, {"mlp_bias": False, "rope_interleaved": False})
        layers, hidden = count_layers("model.layers.", state_dict), state_dict[GATE].shape[0]
        width = state_dict[TOKENS].shape[1]
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": hidden}
        facts.require(self.family, sizes | {"vocab_size": len(state_dict[TOKENS])})
        heads = int(facts.get("num_attention_heads"))
        head_width = int(facts.get("head_dim") or width // heads)
        if head_width < 1:
            raise InputError(
                f"{self.family}'s config.json must have num_attention_heads for {width} channels, has {heads}"
            )
        kv_heads = int(facts.get("num_key_value_heads") or heads)
        if heads % kv_heads:
            raise InputError(
                f"{self.family}'s num_attention_heads must be divisible by num_key_value_heads: {heads}, {kv_heads}"
            )
        options = {
            "num_layers": layers,
            "hidden_size": width,
            "num_heads": heads,
            "num_kv_heads": kv_heads % heads,  # as many as of queries are 0
            "mlp_dim": hidden,
            "key_dim": 0 if head_width * heads == width else head_width,
            "value_dim": 0 if head_width * heads == width else head_width,
            "norm_layer": "rms",
            "norm_epsilon": float(facts.get("rms_norm_eps")),
            "use_bias": QUERY_BIAS in state_dict,
            "tied_embeddings": HEAD not in state_dict,
            "scale_embeddings": False,
            "output_bias": False,
            "mlp_layer": layers_by_activation[act],
            "dropout": 0.0,
            "attention_dropout": 0.0,
        }
        return LanguageModelConfig(**options | family_options)


class LlamaNaming(DecoderNaming):
    """The conversion of a Llama: Llama 1 to 3.2, SmolLM, TinyLlama, and all others whose config.json says llama."""

    family = "Llama"
    architecture = "LlamaForCausalLM"
    table = decoder_table(FFN_NORM, ATTENTION)
    model_types: tuple[str, ...] = ("llama",)
    fixed_options: ClassVar = {
        "attention": "multi_head",
        "score": "scaled_dot",
        "normalizer": "softmax",
        "head_pool": "mean",
        "bias": "none",
        "norm": "pre",
        "norm_layer": "rms",
        "mlp_layer": "swiglu",
        "position_embedding": "rotary",
        "output_gate": False,
        "differential": False,
        "differential_v2": False,
        "exclusive": False,
        "rope_fraction": 1.0,
        **DEPTH,
        "normalize_qk": False,
        "scale_embeddings": False,
        "output_bias": False,
        "logit_cap": 0.0,
        "per_layer": "",
        "mask": "none",
    }

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        facts.require(self.family, {"attention_bias": QUERY_BIAS in state_dict})
        return rotary_options(self.family, facts)

    def config_json(self, options: LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a model of this family."""
        sizes = self.layout_sizes(options)
        return super().config_json(options, params) | {
            "model_type": self.model_types[0],
            "hidden_size": options.hidden_size,
            "intermediate_size": options.mlp_dim,
            "num_hidden_layers": options.num_layers,
            "num_attention_heads": options.num_heads,
            "num_key_value_heads": sizes["g"],
            "head_dim": sizes["e"],
            "hidden_act": "silu",
            "rms_norm_eps": options.norm_epsilon,
            "attention_bias": options.use_bias,
            "tie_word_embeddings": options.tied_embeddings,
            "rope_parameters": scaling_entry(options.rope_scaling) | {"rope_theta": options.rope_theta},
        }


class MistralNaming(DecoderNaming):
    """The conversion of a Mistral, whose layers all have the same window, if any; without the original config.json it
    is not written."""

    family = "Mistral"
    architecture = "MistralForCausalLM"
    table = LlamaNaming.table
    model_types = ("mistral",)
    read_only = True

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        keys = facts.get("sliding_window")
        return {"mask": "none" if keys is None else f"window({int(keys) - 1})"} | rotary_options(self.family, facts)


class QwenNaming(LlamaNaming):
    """What the conversions of Qwen have in common: some layers may have a window."""

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        layers = count_layers("model.layers.", state_dict)
        windows, first = ("use_sliding_window", "sliding_window"), facts.get("max_window_layers")
        used = all([facts.get(name) for name in windows])
        usual = ["sliding_attention" if used and i >= first else "full_attention" for i in range(layers)]
        return rotary_options(self.family, facts) | {"per_layer": window_layers(self.family, facts, usual, windows)}


class Qwen2Naming(QwenNaming):
    """The conversion of a Qwen 2 or 2.5."""

    family = "Qwen 2"
    architecture = "Qwen2ForCausalLM"
    table = decoder_table(FFN_NORM, INPUTS)
    model_types = ("qwen2",)
    fixed_options: ClassVar = {
        **LlamaNaming.fixed_options, "rope_scaling": "none", "use_bias": True, "key_dim": 0, "value_dim": 0
    }  # fmt: skip

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        return super().family_options(state_dict, facts) | {"use_bias": True}

    def finish(self, options: LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """Add output biases of zero: our attention has them if it has biases, Qwen 2's has not."""
        biases = {f"decoder/layer_{i}/attention/out/bias" for i in range(options.num_layers)}
        return {**params, **{name: np.zeros(options.hidden_size, np.float32) for name in biases}}

    def undo(self, options: LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """The inverse; InputError for a bias that is not zero, as after training."""
        biases = [name for name in params if name.endswith(OUTPUT_BIAS)]
        if changed := [name for name in biases if np.any(params[name])]:
            raise InputError(
                f"qwen2 has no bias of the output of attention, and {changed[0]} is not zero: llama has one, and all "
                "else of a model without windows"
            )
        return {name: array for name, array in params.items() if name not in biases}

    def config_json(self, options: LanguageModelConfig, params: Arrays, data=None) -> dict:
        values = super().config_json(options, params)
        return {name: value for name, value in values.items() if name != "attention_bias"}


class Qwen3Naming(QwenNaming):
    """The conversion of a Qwen 3."""

    family = "Qwen 3"
    architecture = "Qwen3ForCausalLM"
    table = decoder_table(FFN_NORM | QK_NORMS, ATTENTION)
    model_types = ("qwen3",)
    fixed_options: ClassVar = {
        **LlamaNaming.fixed_options, "rope_scaling": "none", "normalize_qk": True, "use_bias": False
    }  # fmt: skip

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        facts.require(self.family, {"attention_bias": QUERY_BIAS in state_dict})
        return super().family_options(state_dict, facts) | {"normalize_qk": True}


class GemmaNaming(DecoderNaming):
    """What the conversions of Gemma have in common; without the original config.json they are not written.

    Norms multiply by 1 + w, the feed-forward layer is gated by a GELU, embeddings are scaled, and some of the layers
    have a window. Scores are divided by the root of `query_pre_attn_scalar`; where that is not the width of a head,
    the quotient is multiplied into the queries.
    """

    read_only = True
    gated_layers = "hidden_activation", {"gelu_pytorch_tanh": "geglu"}

    def window_options(self, state_dict: Arrays, facts: Facts, every: int, *local: str) -> dict[str, Any]:
        """The options that both generations have: every `every`-th layer has no window, and those with one have the
        options `local`."""
        facts.require(self.family, {"attention_bias": False, "use_bidirectional_attention": False})
        facts.read_names.add("hidden_act")  # an earlier name of hidden_activation, which the library does not read
        layers = count_layers("model.layers.", state_dict)
        usual = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
        return {
            "norm": "sandwich",
            "scale_embeddings": True,
            "logit_cap": cap_of(self.family, facts, "final_logit_softcapping"),
            "per_layer": window_layers(self.family, facts, usual, ["sliding_window"], *local),
        }

    def finish(self, options: LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """Add 1 to the scales, and divide scores by the root of `query_pre_attn_scalar`."""
        ratio, queries = self.query_factor(options, facts)
        add_one = lambda array: array + np.float32(1)
        multiply_ratio = lambda array: array * ratio
        params = {name: array.then(add_one) if name.endswith("norm/scale") else array for name, array in params.items()}
        return {name: array.then(multiply_ratio) if name.endswith(queries) else array for name, array in params.items()}

    def query_factor(self, options: LanguageModelConfig, facts: Facts) -> tuple[np.float32, str]:
        """Return the factor of the scores and the end of the name of what it is multiplied into: a norm of the queries
        undoes a factor before it."""
        head_width = options.key_dim or options.hidden_size // options.num_heads
        ratio = (head_width / float(facts.get("query_pre_attn_scalar"))) ** 0.5
        queries = "/attention/query_norm/scale" if options.normalize_qk else "/attention/query/kernel"
        return np.float32(ratio), queries

    def undo(self, options: LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """The inverse, rounded to float32."""
        ratio, queries = self.query_factor(options, facts)
        params = {name: array / ratio if name.endswith(queries) else array for name, array in params.items()}
        return {name: array - np.float32(1) if name.endswith("norm/scale") else array for name, array in params.items()}


class Gemma2Naming(GemmaNaming):
    """The conversion of a Gemma 2, in which every second layer has a window, and scores and logits are capped."""

    family = "Gemma 2"
    architecture = "Gemma2ForCausalLM"
    table = decoder_table(SANDWICH)
    model_types = ("gemma2",)

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        facts.read_names.add("sliding_window_pattern")  # the library does not read it
        cap = cap_of(self.family, facts, "attn_logit_softcapping")  # transformers does not apply that of Gemma 3
        score = {"score": f"soft_cap({format_number(cap)})"} if cap else {}
        return self.window_options(state_dict, facts, 2) | rotary_options(self.family, facts) | score


class Gemma3Naming(GemmaNaming):
    """The conversion of the text model of a Gemma 3: queries and keys are normalized, and five of six layers have a
    window and another base of the rotary positions."""

    family = "Gemma 3"
    architecture = "Gemma3ForCausalLM"
    table = decoder_table(SANDWICH | QK_NORMS)
    model_types = ("gemma3_text",)

    def family_options(self, state_dict: Arrays, facts: Facts) -> dict[str, Any]:
        by_kind = facts.get("rope_parameters") or {}
        if wrong := by_kind.keys() - {"sliding_attention", "full_attention"}:
            raise InputError(f"Gemma 3's rope_parameters must be by kind of layer; they have {sorted(wrong)[0]}")
        near = {"rope_theta": facts.get("rope_local_base_freq")} | (by_kind.get("sliding_attention") or {})
        far = {"rope_theta": facts.get("rope_theta")} | (by_kind.get("full_attention") or {})
        far |= facts.get("rope_scaling") or {}
        if {x.get(FRACTION, facts.get(FRACTION, 1.0)) for x in (near, far)} != {1.0}:
            raise InputError(f"Gemma 3's rotary positions must rotate all channels: a {FRACTION} below 1 is not read")
        if scaling_of("Gemma 3", near, facts) != "none":
            raise InputError("Gemma 3's layers with a window must have rotary positions that are not scaled")
        rope = {"rope_theta": float(far["rope_theta"]), "rope_scaling": scaling_of("Gemma 3", far, facts)}
        local = f"rope_theta={format_number(near['rope_theta'])}", "rope_scaling=none"
        every = int(facts.get("sliding_window_pattern"))
        return self.window_options(state_dict, facts, every, *local) | {"normalize_qk": True} | rope


NAMINGS = {
    "gpt2": GPT2Naming(),
    "llama": LlamaNaming(),
    "mistral": MistralNaming(),
    "qwen2": Qwen2Naming(),
    "qwen3": Qwen3Naming(),
    "gemma2": Gemma2Naming(),
    "gemma3": Gemma3Naming(),
}
