"""GPT-2 (Radford et al. 2019) as Hugging Face's GPT2LMHeadModel has it, and what its weights are called here.

Kernels are [in, out] there, too, and those of query, key and value are one matrix. Layouts: v tokens, n positions, d
width, m hidden units of the feed-forward, h heads of width e, s query, key and value.
"""

import re
from typing import ClassVar

import numpy as np

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.norms import EPSILON
from attention_jax.pretrained.facts import Facts, heads_of
from attention_jax.pretrained.layouts import Row, count_layers
from attention_jax.pretrained.naming import LAYERS, Arrays, Naming, differing_flags
from attention_jax.pretrained.vit_names import activation

THERE, HERE = "transformer.h.*", "decoder/layer_*"
GPT2 = (
    Row("transformer.wte.weight", "v d", "embedding/token/embedding", "v d"),
    Row("transformer.wpe.weight", "n d", "embedding/position/embedding", "n d"),
    Row(f"{THERE}.ln_1.weight", "d", f"{HERE}/attention_norm/scale", "d"),
    Row(f"{THERE}.ln_1.bias", "d", f"{HERE}/attention_norm/bias", "d"),
    Row(f"{THERE}.attn.c_attn.weight", "d (s h e)", f"{HERE}/attention/query|key|value/kernel", "s d (h e)"),
    Row(f"{THERE}.attn.c_attn.bias", "(s h e)", f"{HERE}/attention/query|key|value/bias", "s (h e)"),
    Row(f"{THERE}.attn.c_proj.weight", "(h e) d", f"{HERE}/attention/out/kernel", "(h e) d"),
    Row(f"{THERE}.attn.c_proj.bias", "d", f"{HERE}/attention/out/bias", "d"),
    Row(f"{THERE}.ln_2.weight", "d", f"{HERE}/ffn_norm/scale", "d"),
    Row(f"{THERE}.ln_2.bias", "d", f"{HERE}/ffn_norm/bias", "d"),
    Row(f"{THERE}.mlp.c_fc.weight", "d m", f"{HERE}/ffn/hidden/kernel", "d m"),
    Row(f"{THERE}.mlp.c_fc.bias", "m", f"{HERE}/ffn/hidden/bias", "m"),
    Row(f"{THERE}.mlp.c_proj.weight", "m d", f"{HERE}/ffn/out/kernel", "m d"),
    Row(f"{THERE}.mlp.c_proj.bias", "d", f"{HERE}/ffn/out/bias", "d"),
    Row("transformer.ln_f.weight", "d", "decoder/norm/scale", "d"),
    Row("transformer.ln_f.bias", "d", "decoder/norm/bias", "d"),
)
REQUIRED = {
    "layer_norm_epsilon": EPSILON,
    "tie_word_embeddings": True,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
}
"""The settings in config.json that have no other value here."""


HAS = {
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
    **LAYERS,
}
"""The options that have no other value there."""


class GPT2Naming(Naming):
    """The conversion of a GPT-2."""

    options_type = config.LanguageModelConfig
    table = GPT2
    mark = "transformer.h.0.attn.c_attn.weight"
    model_types = ("gpt2",)
    ignored: ClassVar = {
        r"lm_head\.weight": lambda state_dict, copy: state_dict["transformer.wte.weight"],
        r"transformer\.h\.\d+\.attn\.bias": lambda state_dict, mask: np.tril(np.ones(mask.shape, np.float32)),
        r"transformer\.h\.\d+\.attn\.masked_bias": lambda state_dict, value: None,
    }

    def normalize_name(self, name: str) -> str:
        return re.sub(r"^(wte|wpe|h|ln_f)\.", r"transformer.\1.", name)

    def infer_options(self, state_dict: Arrays, facts: Facts) -> config.LanguageModelConfig:
        """Infer the options from shapes and config.json; without the latter from the published models, 64 per head."""
        facts.get("layer_norm_epsilon", EPSILON, f"norms with epsilon {EPSILON:g}")
        facts.require("GPT-2", REQUIRED)
        positions, width = state_dict["transformer.wpe.weight"].shape
        layers, hidden = count_layers("transformer.h.", state_dict), len(state_dict["transformer.h.0.mlp.c_fc.bias"])
        sizes = {"n_embd": width, "n_layer": layers, "n_positions": positions}
        facts.require("GPT-2", sizes | {"vocab_size": len(state_dict["transformer.wte.weight"])})
        if (inner := facts.get("n_inner", hidden) or 4 * width) != hidden:
            raise InputError(
                f"GPT-2's config.json must have n_inner {hidden}, has {inner} (null and none are {4 * width})"
            )
        return config.LanguageModelConfig(
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

    def layout_sizes(self, options: config.LanguageModelConfig) -> dict[str, int]:
        """Return the layout sizes that follow from the options."""
        heads = {"h": options.num_heads, "e": options.hidden_size // options.num_heads}
        return heads | {"d": options.hidden_size, "m": options.mlp_dim, "s": 3}

    def build_module(self, options: config.LanguageModelConfig, params: Arrays) -> LanguageModel:
        """Return the model of these weights."""
        return LanguageModel(options, len(params["embedding/token/embedding"]))

    def missing_options(self, options: config.LanguageModelConfig) -> str:
        """Describe the options of our model that GPT-2 does not have."""
        return ", ".join(differing_flags(options, HAS))

    def config_json(self, options: config.LanguageModelConfig, params: Arrays, data=None) -> dict:
        """Build the config.json of a `GPT2LMHeadModel`; with the special tokens of the run's vocabulary, if any."""
        vocabulary = getattr(data, "vocabulary", None)
        names = {"gelu_tanh": "gelu_new", "swish": "silu"}
        return REQUIRED | {
            "architectures": ["GPT2LMHeadModel"],
            "model_type": "gpt2",
            "vocab_size": len(params["embedding/token/embedding"]),
            "n_positions": len(params["embedding/position/embedding"]),
            "n_embd": options.hidden_size,
            "n_layer": options.num_layers,
            "n_head": options.num_heads,
            "n_inner": options.mlp_dim,
            "activation_function": names.get(options.activation, options.activation),
            **{f"{name}_token_id": getattr(vocabulary, f"{name}_id", None) for name in ("bos", "eos", "pad")},
        }


NAMINGS = {"gpt2": GPT2Naming()}
