"""Gemma 2 and the text models of Gemma 3 as Hugging Face has them: Llama's names (`llama_names`), with norms before and
after each sub-layer that multiply by 1 + w, a GELU, scaled embeddings, and layers of which some have a window.

Gemma 2 caps the scores of attention and the logits; Gemma 3 normalizes queries and keys, and layers with a window have
another base of rotary positions. Both divide scores by the root of `query_pre_attn_scalar`; where that is not the width
of a head, the quotient is multiplied into the queries.
"""

import numpy as np

from attention_jax import config
from attention_jax.config.per_layer import layer_list
from attention_jax.errors import InputError
from attention_jax.pretrained.facts import Facts
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.llama_names import (
    DECODER,
    HERE,
    THERE,
    DecoderNaming,
    activation,
    decoder_options,
    format_number,
    rotary_options,
    scaling_of,
    sliding_layers,
    window_mask,
)
from attention_jax.pretrained.naming import Arrays
from attention_jax.pretrained.qwen_names import QK_NORMS

GEMMA2 = (
    *DECODER,
    Row(f"{THERE}.post_attention_layernorm.weight", "d", f"{HERE}/attention_output_norm/scale", "d"),
    Row(f"{THERE}.pre_feedforward_layernorm.weight", "d", f"{HERE}/ffn_norm/scale", "d"),
    Row(f"{THERE}.post_feedforward_layernorm.weight", "d", f"{HERE}/ffn_output_norm/scale", "d"),
)
GEMMA3 = (*GEMMA2, *QK_NORMS)
GELU = {"gelu_pytorch_tanh": "geglu"}


def gemma_options(
    family: str, state_dict: Arrays, facts: Facts, every: int, local=(), **overrides
) -> config.LanguageModelConfig:
    """The options of a Gemma; `overrides` belong to a generation, every `every`-th layer has no window, and those with
    one have the options `local`."""
    facts.require(family, {"attention_bias": False, "use_bidirectional_attention": False})
    facts.read_names.add("hidden_act")  # an earlier name of hidden_activation, which the library does not read
    layers = count_layers("model.layers.", state_dict)
    usual = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
    narrow, keys = sliding_layers(family, facts.get("layer_types") or usual, layers), facts.get("sliding_window")
    if narrow and not keys:
        raise InputError(f"{family}'s config.json must have sliding_window, as layers {layer_list(narrow)} have one")
    cap = cap_of(family, facts, "attn_logit_softcapping")
    options = {
        "mlp_layer": activation(family, facts, "hidden_activation", GELU),
        "norm": "sandwich",
        "scale_embeddings": True,
        "score": f"soft_cap({format_number(cap)})" if cap else "scaled_dot",
        "logit_cap": cap_of(family, facts, "final_logit_softcapping"),
        "per_layer": f"{layer_list(narrow)}:{','.join([f'mask={window_mask(keys)}', *local])}" if narrow else "",
    }
    return decoder_options(family, state_dict, facts, **options, **overrides)


def cap_of(family: str, facts: Facts, name: str) -> float:
    """Return a cap in config.json; 0.0 (no cap) for null. InputError for a cap that is not positive."""
    cap = facts.get(name)
    if cap is not None and not float(cap) > 0:
        raise InputError(f"{family}'s {name} must be above 0, or null for none; got {cap!r}")
    return float(cap or 0.0)


class GemmaNaming(DecoderNaming):
    """What the conversions of Gemma have in common; they are read and not written."""

    read_only = True

    def finish(self, options: config.LanguageModelConfig, facts: Facts, params: Arrays) -> Arrays:
        """Add 1 to the scales, and divide scores by the root of `query_pre_attn_scalar`."""
        of_head = options.key_dim or options.hidden_size // options.num_heads
        ratio = (of_head / float(facts.get("query_pre_attn_scalar"))) ** 0.5
        # a norm of the queries undoes a factor before it
        queries = "/attention/query_norm/scale" if options.normalize_qk else "/attention/query/kernel"
        add_one = lambda array: array + np.float32(1)
        multiply_ratio = lambda array: array * np.float32(ratio)
        params = {name: array.then(add_one) if name.endswith("norm/scale") else array for name, array in params.items()}
        return {name: array.then(multiply_ratio) if name.endswith(queries) else array for name, array in params.items()}


class Gemma2Naming(GemmaNaming):
    """The conversion of a Gemma 2."""

    table = GEMMA2
    model_types = ("gemma2",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Gemma 2, in which every second layer has a window."""
        facts.read_names.add("sliding_window_pattern")  # the library does not read it
        return gemma_options("Gemma 2", state_dict, facts, 2, **rotary_options("Gemma 2", facts))


class Gemma3Naming(GemmaNaming):
    """The conversion of the text model of a Gemma 3."""

    table = GEMMA3
    model_types = ("gemma3_text",)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """The options of a Gemma 3: five of six layers have a window, with another base of the rotary positions."""
        by_kind = facts.get("rope_parameters") or {}
        if wrong := by_kind.keys() - {"sliding_attention", "full_attention"}:
            raise InputError(f"Gemma 3's rope_parameters must be by kind of layer; they have {sorted(wrong)[0]}")
        near = {"rope_theta": facts.get("rope_local_base_freq")} | (by_kind.get("sliding_attention") or {})
        far = {"rope_theta": facts.get("rope_theta")} | (by_kind.get("full_attention") or {})
        far |= facts.get("rope_scaling") or {}
        if scaling_of("Gemma 3", near, facts) != "none":
            raise InputError("Gemma 3's layers with a window must have rotary positions that are not scaled")
        rope = {"rope_theta": float(far["rope_theta"]), "rope_scaling": scaling_of("Gemma 3", far, facts)}
        local = [f"rope_theta={format_number(near['rope_theta'])}", "rope_scaling=none"]
        every = int(facts.get("sliding_window_pattern"))
        return gemma_options("Gemma 3", state_dict, facts, every, local, normalize_qk=True, **rope)


NAMINGS = {"gemma2": Gemma2Naming(), "gemma3": Gemma3Naming()}
