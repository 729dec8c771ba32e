"""Llama and Mistral as Hugging Face has them, and what their weights are called here: Llama 1 to 3.2, SmolLM,
TinyLlama, Mistral with its window, and all others whose config.json says llama or mistral.

Kernels are [out, in] there. Layouts: v tokens, d width, m hidden units of the feed-forward, h heads of queries and g of
keys and values, of width e. `qwen_names` and `gemma_names` add to this table.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.pretrained.facts import Facts
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import Arrays, Naming, differing_flags

THERE, HERE = "model.layers.*", "decoder/layer_*"
TOKENS, HEAD = "model.embed_tokens.weight", "lm_head.weight"
DECODER = (
    Row(TOKENS, "v d", "embedding/token/embedding", "v d"),
    Row(f"{THERE}.input_layernorm.weight", "d", f"{HERE}/attention_norm/scale", "d"),
    Row(f"{THERE}.self_attn.q_proj.weight", "(h e) d", f"{HERE}/attention/query/kernel", "d (h e)"),
    Row(f"{THERE}.self_attn.k_proj.weight", "(g e) d", f"{HERE}/attention/key/kernel", "d (g e)"),
    Row(f"{THERE}.self_attn.v_proj.weight", "(g e) d", f"{HERE}/attention/value/kernel", "d (g e)"),
    Row(f"{THERE}.self_attn.o_proj.weight", "d (h e)", f"{HERE}/attention/out/kernel", "(h e) d"),
    Row(f"{THERE}.mlp.gate_proj.weight", "m d", f"{HERE}/ffn/gate/kernel", "d m"),
    Row(f"{THERE}.mlp.up_proj.weight", "m d", f"{HERE}/ffn/hidden/kernel", "d m"),
    Row(f"{THERE}.mlp.down_proj.weight", "d m", f"{HERE}/ffn/out/kernel", "m d"),
    Row("model.norm.weight", "d", "decoder/norm/scale", "d"),
    Row(HEAD, "v d", "kernel", "d v"),
)
"""What all of these families have."""
FFN_NORM = Row(f"{THERE}.post_attention_layernorm.weight", "d", f"{HERE}/ffn_norm/scale", "d")
BIASES = (
    Row(f"{THERE}.self_attn.q_proj.bias", "(h e)", f"{HERE}/attention/query/bias", "(h e)"),
    Row(f"{THERE}.self_attn.k_proj.bias", "(g e)", f"{HERE}/attention/key/bias", "(g e)"),
    Row(f"{THERE}.self_attn.v_proj.bias", "(g e)", f"{HERE}/attention/value/bias", "(g e)"),
)
OUT_BIAS = Row(f"{THERE}.self_attn.o_proj.bias", "d", f"{HERE}/attention/out/bias", "d")
LLAMA = (*DECODER, FFN_NORM, *BIASES, OUT_BIAS)
FIXED = {"mlp_bias": False, "rope_interleaved": False, "partial_rotary_factor": 1.0}
"""The settings in config.json that have no other value here."""


def decoder_options(family: str, state_dict: Arrays, facts: Facts, **overrides) -> config.LanguageModelConfig:
    """The options that follow from what all of these families have; `overrides` are the options of the family.

    Raises InputError for a config.json that contradicts the tensors.
    """
    facts.require(family, FIXED)
    width, layers, hidden = (
        state_dict[TOKENS].shape[1],
        count_layers("model.layers.", state_dict),
        state_dict[GATE].shape[0],
    )
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": hidden}
    facts.require(family, sizes | {"vocab_size": len(state_dict[TOKENS])})
    heads = int(facts.get("num_attention_heads"))
    of_head = int(facts.get("head_dim") or width // heads)
    if of_head < 1:
        raise InputError(f"{family}'s config.json must have num_attention_heads for {width} channels, has {heads}")
    of_keys = int(facts.get("num_key_value_heads") or heads)
    if heads % of_keys:
        raise InputError(f"{family}'s num_attention_heads must be divisible by num_key_value_heads: {heads}, {of_keys}")
    options = {
        "num_layers": layers,
        "hidden_size": width,
        "num_heads": heads,
        "num_kv_heads": of_keys % heads,  # as many as of queries are 0
        "mlp_dim": hidden,
        "key_dim": 0 if of_head * heads == width else of_head,
        "value_dim": 0 if of_head * heads == width else of_head,
        "norm_layer": "rms",
        "norm_epsilon": float(facts.get("rms_norm_eps")),
        "use_bias": QUERY_BIAS in state_dict,
        "tied_embeddings": HEAD not in state_dict,
        "scale_embeddings": False,
        "output_bias": False,
        "mlp_layer": "swiglu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return config.LanguageModelConfig(**options | overrides)


GATE, QUERY_BIAS = f"{THERE}.mlp.gate_proj.weight".replace("*", "0"), BIASES[0].tensor.replace("*", "0")


def activation(family: str, facts: Facts, name: str, supported: Mapping[str, str]) -> str:
    """The feed-forward layer of the activation in config.json; InputError for one that is not `supported`."""
    value = facts.get(name)
    if value not in supported:
        raise InputError(f"{family}'s config.json must have {name} {' or '.join(supported)}, has {value!r}")
    return supported[value]


SWISH = {"silu": "swiglu", "swish": "swiglu"}


def rotary_options(family: str, facts: Facts) -> dict[str, Any]:
    """The options of rotary positions in config.json, as transformers 5 writes them or as earlier ones did.

    >>> newer, older = {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, {"rope_theta": 1e6}
    >>> [rotary_options("Llama", Facts({"model_type": "llama"} | entry))["rope_theta"] for entry in (newer, older, {})]
    [500000.0, 1000000.0, 10000.0]
    """
    newer, older = facts.get("rope_parameters") or {}, facts.get("rope_scaling")
    entry, theta = older or newer, facts.get("rope_theta")
    return {"rope_theta": float(entry.get("rope_theta", theta)), "rope_scaling": scaling_of(family, entry, facts)}


def scaling_of(family: str, entry: Mapping[str, Any], facts: Facts) -> str:
    """`rope_scaling` of an entry in config.json; InputError for a kind that is not known.

    >>> facts = Facts({"model_type": "llama"})
    >>> scaling_of("", {"type": "linear", "factor": 2.0}, facts), scaling_of("", {"rope_type": "default"}, facts)
    ('linear(2)', 'none')
    """
    length = entry.get("original_max_position_embeddings", facts.get("max_position_embeddings"))
    entry = {**entry, "original_max_position_embeddings": facts.get("original_max_position_embeddings") or length}
    kind = entry.get("rope_type", entry.get("type", "default"))
    if entry.get("partial_rotary_factor", 1.0) != 1.0:
        raise InputError(f"{family}'s rotary positions must rotate all channels, not {entry['partial_rotary_factor']}")
    names = {
        "default": (),
        "linear": ("factor",),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    }
    if kind not in names or not {*names[kind]} <= entry.keys():
        lacks = f"{kind} without {', '.join(sorted({*names[kind]} - entry.keys()))}" if kind in names else kind
        raise InputError(f"{family}'s rotary positions must be scaled by {', '.join(names)}; got {lacks}")
    return f"{kind}({', '.join(format_number(entry[name]) for name in names[kind])})" if names[kind] else "none"


def format_number(value: float) -> str:
    """A number as an argument of an option.

    >>> format_number(8.0), format_number(0.5)
    ('8', '0.5')
    """
    return str(int(value) if value == int(value) else float(value))


def window_mask(keys: int) -> str:
    """The mask of a sliding window, which counts a position itself there: 512 keys are at most 511 away.

    >>> window_mask(512)
    'window(511)'
    """
    return f"window({int(keys) - 1})"


def sliding_layers(family: str, kinds: list[str], layers: int) -> list[int]:
    """The layers of a sliding window in `layer_types`; InputError for a list of another length or another kind."""
    if len(kinds) != layers or {*kinds} - {"full_attention", "sliding_attention"}:
        raise InputError(
            f"{family}'s layer_types must be full_attention or sliding_attention for each of {layers} layers; got "
            f"{len(kinds)} of {', '.join(sorted(map(str, {*kinds})))}"
        )
    return [layer for layer, kind in enumerate(kinds) if kind == "sliding_attention"]


HAS = {
    "score": "scaled_dot",
    "normalizer": "softmax",
    "head_pool": "mean",
    "norm": "pre",
    "norm_layer": "rms",
    "mlp_layer": "swiglu",
    "position_embedding": "rotary",
    "output_gate": False,
    "normalize_qk": False,
    "scale_embeddings": False,
    "output_bias": False,
    "logit_cap": 0.0,
    "per_layer": "",
}
"""The options of a Llama that have no other value there."""
NO_BUFFERS = {r".*\.rotary_emb\.inv_freq": lambda state_dict, buffer: None}


class DecoderNaming(Naming):
    """What all of these families have in common."""

    options_type = config.LanguageModelConfig
    mark = TOKENS
    ignored = NO_BUFFERS

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

    def layout_sizes(self, options: config.LanguageModelConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        heads = {"h": options.num_heads, "g": options.num_kv_heads or options.num_heads}
        width = options.key_dim or options.hidden_size // options.num_heads
        return heads | {"e": width, "d": options.hidden_size, "m": options.mlp_dim}

    def build_module(self, options: config.LanguageModelConfig, params: Arrays) -> LanguageModel:
        """Return the model of these weights."""
        return LanguageModel(options, len(params["embedding/token/embedding"]))


class LlamaNaming(DecoderNaming):
    """The conversion of a Llama."""

    table = LLAMA
    model_types = ("llama",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Llama."""
        facts.require("Llama", {"attention_bias": QUERY_BIAS in state_dict})
        gated = activation("Llama", facts, "hidden_act", SWISH)
        return decoder_options("Llama", state_dict, facts, mlp_layer=gated, **rotary_options("Llama", facts))

    def missing_options(self, options: config.LanguageModelConfig) -> str:
        """Describe the options of our model that Llama does not have."""
        return ", ".join(differing_flags(options, HAS | {"mask": "none"}))

    def config_json(self, options: config.LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `LlamaForCausalLM`."""
        sizes, name = self.layout_sizes(options), options.rope_scaling.partition("(")[0]
        arguments = [float(x) for x in re.findall(r"[\d.]+", options.rope_scaling.partition("(")[2])]
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        rope = {"rope_type": "default" if name == "none" else name} | dict(zip(keys, arguments))
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": len(params["embedding/token/embedding"]),
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
            "rope_parameters": rope | {"rope_theta": options.rope_theta},
        }


class MistralNaming(DecoderNaming):
    """The conversion of a Mistral, which is read and not written."""

    table = LLAMA
    model_types = ("mistral",)
    read_only = True

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Mistral, whose layers all have the same window, if any."""
        gated = activation("Mistral", facts, "hidden_act", SWISH)
        keys = facts.get("sliding_window")
        overrides = {"mask": "none" if keys is None else window_mask(keys)} | rotary_options("Mistral", facts)
        return decoder_options("Mistral", state_dict, facts, mlp_layer=gated, **overrides)


NAMINGS = {"llama": LlamaNaming(), "mistral": MistralNaming()}
