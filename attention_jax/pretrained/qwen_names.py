"""Qwen 2 and 3 as Hugging Face has them: Llama's names (`llama_names`), with biases of queries, keys and values (2), or
with RMSNorm of each head's queries and keys (3). The layouts are those of `llama_names`.
"""

import numpy as np

from attention_jax import config
from attention_jax.config.per_layer import layer_list
from attention_jax.errors import InputError
from attention_jax.pretrained.facts import Facts
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.llama_names import (
    BIASES,
    DECODER,
    FFN_NORM,
    HAS,
    HERE,
    OUT_BIAS,
    QUERY_BIAS,
    SWISH,
    THERE,
    LlamaNaming,
    activation,
    decoder_options,
    rotary_options,
    sliding_layers,
    window_mask,
)
from attention_jax.pretrained.naming import Arrays, differing_flags

QK_NORMS = (
    Row(f"{THERE}.self_attn.q_norm.weight", "e", f"{HERE}/attention/query_norm/scale", "e"),
    Row(f"{THERE}.self_attn.k_norm.weight", "e", f"{HERE}/attention/key_norm/scale", "e"),
)
QWEN2 = (*DECODER, FFN_NORM, *BIASES)
QWEN3 = (*DECODER, FFN_NORM, *QK_NORMS, *BIASES, OUT_BIAS)


def window_options(family: str, state_dict: Arrays, facts: Facts) -> dict[str, str]:
    """Return the masks of a Qwen, in which some layers may have a window."""
    layers = count_layers("model.layers.", state_dict)
    used, keys, first = (facts.get(name) for name in ("use_sliding_window", "sliding_window", "max_window_layers"))
    keys = keys if used else None
    usual = ["sliding_attention" if keys and i >= first else "full_attention" for i in range(layers)]
    narrow = sliding_layers(family, facts.get("layer_types") or usual, layers)
    if narrow and not keys:
        raise InputError(
            f"{family}'s config.json must have sliding_window and use_sliding_window, as layer_types names such layers"
        )
    return {"per_layer": f"{layer_list(narrow)}:mask={window_mask(keys)}"} if narrow else {}


QWEN_HAS = HAS | {"mask": "none", "per_layer": "", "rope_scaling": "none"}


class Qwen2Naming(LlamaNaming):
    """The conversion of a Qwen 2 or 2.5."""

    table = QWEN2
    model_types = ("qwen2",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Qwen 2 or 2.5."""
        overrides = {"mlp_layer": activation("Qwen 2", facts, "hidden_act", SWISH), "use_bias": True}
        return decoder_options(
            "Qwen 2",
            state_dict,
            facts,
            **overrides,
            **rotary_options("Qwen 2", facts),
            **window_options("Qwen 2", state_dict, facts),
        )

    def missing_options(self, options: config.LanguageModelConfig) -> str:
        return ", ".join(differing_flags(options, QWEN_HAS | {"use_bias": True, "key_dim": 0, "value_dim": 0}))

    def finish(self, options: config.LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """Add output biases of zero: our attention has them if it has biases, Qwen 2's has not."""
        biases = {f"decoder/layer_{i}/attention/out/bias" for i in range(options.num_layers)}
        return {**params, **{name: np.zeros(options.hidden_size, np.float32) for name in biases}}

    def undo(self, options: config.LanguageModelConfig, params: Arrays) -> Arrays:
        """The inverse; InputError for a bias that is not zero, as after training."""
        biases = [name for name in params if name.endswith("/attention/out/bias")]
        if changed := [name for name in biases if np.any(params[name])]:
            raise InputError(f"qwen2 has no bias of the output of attention, and {changed[0]} is not zero")
        return {name: array for name, array in params.items() if name not in biases}

    def config_json(self, options: config.LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `Qwen2ForCausalLM`."""
        values = super().config_json(options, params)
        identity = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
        return {name: value for name, value in values.items() if name != "attention_bias"} | identity


class Qwen3Naming(LlamaNaming):
    """The conversion of a Qwen 3."""

    table = QWEN3
    model_types = ("qwen3",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Qwen 3."""
        facts.require("Qwen 3", {"attention_bias": QUERY_BIAS in state_dict})
        overrides = {"mlp_layer": activation("Qwen 3", facts, "hidden_act", SWISH), "normalize_qk": True}
        return decoder_options(
            "Qwen 3",
            state_dict,
            facts,
            **overrides,
            **rotary_options("Qwen 3", facts),
            **window_options("Qwen 3", state_dict, facts),
        )

    def missing_options(self, options: config.LanguageModelConfig) -> str:
        return ", ".join(differing_flags(options, QWEN_HAS | {"normalize_qk": True, "use_bias": False}))

    def config_json(self, options: config.LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `Qwen3ForCausalLM`."""
        values = super().config_json(options, params)
        identity = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
        return (
            {name: value for name, value in values.items() if name != "attention_bias"}
            | identity
            | {"attention_bias": False}
        )


NAMINGS = {"qwen2": Qwen2Naming(), "qwen3": Qwen3Naming()}
