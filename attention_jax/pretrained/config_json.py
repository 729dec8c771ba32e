"""The config.json of another library's weights: what its entries mean, contradictions with the tensors, assumptions.

`ENTRIES` says by family what an absent entry and null mean, `HARMLESS` which entries change nothing. The values are
those of transformers' configuration classes; tests/pretrained/test_entries.py compares them. An entry that is in
neither table is named in a note when a model is read.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from attention_jax.errors import InputError

REFUSED: Any = type("Refused", (), {"__repr__": lambda self: "REFUSED"})()
"""The meaning of null where the library refuses it, too."""
TENSORS: Any = type("Tensors", (), {"__repr__": lambda self: "TENSORS"})()
"""The meaning of an entry that is not there and follows from the shapes of the tensors."""


class Entry(NamedTuple):
    """What an entry means that is not there, and what null means."""

    absent: Any = TENSORS
    null: Any = REFUSED


def from_tensors(names: str) -> dict[str, Entry]:
    """Entries that must not be null and, where they are absent, follow from the shapes of the tensors."""
    return dict.fromkeys(names.split(), Entry())


NONE = Entry(None, None)
"""None has a meaning of its own, such as as many heads of keys as of queries, and is the default."""
ROPE = {
    "rope_parameters": NONE,
    "rope_scaling": NONE,
    "rope_theta": Entry(10_000.0),
    "original_max_position_embeddings": NONE,
}
SIZES = from_tensors("vocab_size hidden_size intermediate_size num_hidden_layers")
DECODER = SIZES | {
    "num_attention_heads": Entry(32),
    "num_key_value_heads": NONE,
    "head_dim": NONE,
    "hidden_act": Entry("silu"),
    "rms_norm_eps": Entry(1e-6),
    "tie_word_embeddings": Entry(False),
    "max_position_embeddings": Entry(2048),
    "eos_token_id": Entry(2, None),
    **ROPE,
}
QWEN = DECODER | {
    "num_key_value_heads": Entry(32, None),
    "max_position_embeddings": Entry(32_768),
    "use_sliding_window": Entry(False),
    "sliding_window": Entry(4096, None),
    "max_window_layers": Entry(28),
    "layer_types": NONE,
    "eos_token_id": NONE,
}
GEMMA = DECODER | {
    "num_attention_heads": Entry(8),
    "num_key_value_heads": Entry(4),
    "head_dim": Entry(256),
    "hidden_activation": Entry("gelu_pytorch_tanh"),
    "tie_word_embeddings": Entry(True),
    "attention_bias": Entry(False),
    "query_pre_attn_scalar": Entry(256),
    "sliding_window": Entry(4096, None),
    "layer_types": NONE,
    "attn_logit_softcapping": NONE,
    "final_logit_softcapping": NONE,
    "use_bidirectional_attention": Entry(False, False),
    "eos_token_id": Entry(1, None),
}
ENCODER = SIZES | {
    "num_attention_heads": Entry(12),
    "hidden_act": Entry("gelu"),
    "layer_norm_eps": Entry(1e-12),
}
BERT = ENCODER | {
    "max_position_embeddings": Entry(),
    "type_vocab_size": Entry(),
    "is_decoder": Entry(False),
    "add_cross_attention": Entry(False),
    "tie_word_embeddings": Entry(True),
}
ROBERTA = BERT | {"pad_token_id": Entry(1)}
VIT = ENCODER | {"qkv_bias": Entry(True)} | from_tensors("image_size patch_size num_channels")
T5 = {
    **from_tensors("vocab_size d_model d_kv d_ff num_layers"),
    "num_decoder_layers": NONE,
    "num_heads": Entry(8),
    "relative_attention_num_buckets": Entry(32),
    "relative_attention_max_distance": Entry(128),
    "layer_norm_epsilon": Entry(1e-6),
    "feed_forward_proj": Entry("relu"),
    "is_decoder": Entry(False),
    "is_gated_act": Entry(TENSORS, TENSORS),
    "tie_word_embeddings": Entry(True, True),
    "scale_decoder_outputs": Entry(TENSORS, False),  # without it as tie_word_embeddings says
}
ENTRIES: dict[str, dict[str, Entry]] = {
    "llama": DECODER | {"attention_bias": Entry(False), "mlp_bias": Entry(False)},
    "mistral": DECODER
    | {
        "num_key_value_heads": Entry(8),
        "max_position_embeddings": Entry(131_072),
        "sliding_window": Entry(4096, None),
    },
    "qwen2": QWEN,
    "qwen3": QWEN | {"head_dim": Entry(128), "attention_bias": Entry(False)},
    "gemma2": GEMMA
    | {
        "max_position_embeddings": Entry(8192),
        "attn_logit_softcapping": Entry(50.0, None),
        "final_logit_softcapping": Entry(30.0, None),
    },
    "gemma3_text": GEMMA
    | {
        "max_position_embeddings": Entry(131_072),
        "rope_theta": Entry(1_000_000.0),
        "rope_local_base_freq": Entry(10_000.0),
        "sliding_window_pattern": Entry(6),
    },
    "gpt2": {
        **from_tensors("vocab_size n_positions n_embd n_layer"),
        "n_head": Entry(12),
        "n_inner": NONE,
        "activation_function": Entry("gelu_new"),
        "layer_norm_epsilon": Entry(1e-5),
        "scale_attn_weights": Entry(True),
        "scale_attn_by_inverse_layer_idx": Entry(False),
        "add_cross_attention": Entry(False),
        "tie_word_embeddings": Entry(True),
        "eos_token_id": Entry(50_256, None),
    },
    "bert": BERT,
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), ROBERTA),
    "distilbert": {
        **from_tensors("vocab_size max_position_embeddings n_layers dim hidden_dim"),
        "n_heads": Entry(12),
        "activation": Entry("gelu"),
        "tie_word_embeddings": Entry(True),
    },
    "t5": T5,
    "mt5": T5
    | {
        "num_heads": Entry(6),
        "feed_forward_proj": Entry("gated-gelu"),
        "tie_word_embeddings": Entry(True),
    },
    "marian": {
        **from_tensors("vocab_size d_model encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim"),
        "decoder_vocab_size": Entry(TENSORS, TENSORS),
        "max_position_embeddings": Entry(),
        "encoder_attention_heads": Entry(16),
        "decoder_attention_heads": Entry(16),
        "activation_function": Entry("gelu"),
        "scale_embedding": Entry(False),
        "share_encoder_decoder_embeddings": Entry(True),
        "is_decoder": Entry(False),
        "tie_word_embeddings": Entry(True),
    },
    "umt5": T5 | {"num_heads": Entry(6), "feed_forward_proj": Entry("gated-gelu")},
    "clip_text_model": ENCODER
    | from_tensors("max_position_embeddings")
    | {
        "num_attention_heads": Entry(8),
        "hidden_act": Entry("quick_gelu"),
        "layer_norm_eps": Entry(1e-5),
        "projection_dim": Entry(512, None),
    },
    "clip": dict.fromkeys(("text_config", "text_config_dict", "vision_config", "logit_scale_init_value"), NONE)
    | {"projection_dim": Entry(512, None)},
    "vit": VIT,
    "deit": VIT,
}
"""{model_type: {entry: what it means if it is absent or null}}"""

HARMLESS: dict[str, str] = {
    r"_name_or_path|_commit_hash|architectures|model_type|transformers\w*_version|transformers.js_config|tags": "names",
    r"auto_map": "code in the repository, which is not executed; the library executes it on request",
    r"(torch_)?dtype|torchscript|use_bfloat16": "the type of the stored weights; load_pretrained(dtype=) chooses ours",
    r"\w*(drop|dropout|pdrop|dropout_prob|dropout_rate|layerdrop|drop_rate|drop_path_rate)": "training only",
    r"initializer_\w+|init_std|weight_init|gradient_checkpointing|tf_legacy_loss|finetuning_task": "training only",
    r"label2id|_?num_labels|label_names|label_descriptions|num_features": "names; the tensors have the number",
    r"id2label": "the names of classes, which predict prints",
    r"problem_type|function_to_apply": "what classify applies to the logits: class_function",
    r"use_cache|return_dict\w*|output_\w+|_?attn_implementation\w*|chunk_size_feed_forward|cache_implementation": "how "
    "the library computes the same, and what it returns",
    r"pretraining_tp|reorder_and_upcast_attn|is_llama_config": "how the library computes the same",
    r"\w*_token_ids?|tokenizer_class": "special tokens: the tokenizer reads them (pretrained/tokenizer.py)",
    r"(max|min)_length|(max|min)_new_tokens|do_sample|early_stopping|num_beams|num_beam_groups|diversity_penalty|"
    r"temperature|top_[kp]|typical_p|repetition_penalty|length_penalty|\w*no_repeat_ngram_size|num_return_sequences|"
    r"remove_invalid_values|exponential_decay_length_penalty|\w*suppress_tokens|renormalize_logits": "of generate, "
    "where there is no generation_config.json: pretrained/generation_config.py",
    r"task_specific_params|prefix": "of the library's pipelines for single tasks; its generate does not read them",
    r"summary_\w+|pooler_\w+|encoder_stride|predict_special_tokens": "of heads that are not in these files",
    r"is_encoder_decoder|n_special|n_ctx": "repeats what the family or another entry says",
    r"position_embedding_type|tie_weights_|static_position_embeddings": "compared where it is read",
    r"sinusoidal_pos_embds|embedding_size|dense_act_fn|_sliding_window_pattern": "how another value was computed",
    r"pretrained_cfg": "timm's recipe of images: pretrained/image_recipe.py",
}
"""{entries of config.json that do not change what a model computes of its inputs: why}; names are regular
expressions."""


class Facts:
    """The entries of a config.json; what an absent one and null mean is in `entries.ENTRIES`, by its model_type.

    >>> facts = Facts({"model_type": "gemma2", "attn_logit_softcapping": None})
    >>> facts.get("attn_logit_softcapping"), facts.get("final_logit_softcapping")
    (None, 30.0)
    """

    def __init__(self, values: Mapping[str, Any]):
        self.entries: Mapping[str, Entry] = ENTRIES.get(str(values.get("model_type")), {})
        self.values = {name: value for name, value in values.items() if value is not None or name in self.entries}
        self.read_names: set[str] = set()
        """The names that were read."""
        self.assumed: list[str] = []
        """What was assumed because nothing says it."""

    def get(self, name: str, published=None, text: str = ""):
        """The value of `name`; of one that is absent what the table says or, where it says nothing, `published`, the
        value of published models. This is noted as assumed, in the words of `text`, if given. InputError for null
        where it has no meaning."""
        self.read_names.add(name)
        if name not in self.values:
            self.assumed += [text] * bool(text)
            return self.absent(name, published)
        value = self.values[name]
        if value is None:
            value = self.entries[name].null
        if value is REFUSED:
            raise InputError(f"{name} in config.json must not be null: leave it out, or say what it is")
        return published if value is TENSORS else value

    def absent(self, name: str, published):
        """What an entry means that is not there."""
        absent = self.entries.get(name, Entry()).absent
        return published if absent is TENSORS else absent

    def require(self, family: str, values: Mapping[str, Any]):
        """Raise InputError unless the entries have these values: those that are supported, or that follow from the
        tensors."""
        for name, value in values.items():
            if (value_in_file := self.get(name, value)) != value:
                how = f"has {value_in_file!r}" if name in self.values else f"has none, which means {value_in_file!r}"
                raise InputError(f"{family}'s config.json must have {name} {value}, {how}")

    def unread(self) -> list[str]:
        """The entries that are set, that were not read, and that are not known to be harmless."""
        return [
            name
            for name, value in self.values.items()
            if value not in (None, False, 0, "", [], {}) and name not in self.read_names and not is_harmless(name)
        ]

    def note(self) -> str:
        """A note on what was assumed and not read; "" if there is nothing of either kind."""
        unread = ", ".join(self.unread())
        assumed = f"; assumed, as no config.json says it: {', '.join(self.assumed)}" if self.assumed else ""
        return assumed + (f"; not read in config.json: {unread}" if unread else "")


def is_harmless(name: str) -> bool:
    """Whether an entry of config.json is one of `HARMLESS`."""
    return any(re.fullmatch(pattern, name) for pattern in HARMLESS)


def heads_of(facts: Facts, name: str, width: int) -> int:
    """The number of heads: that of `facts`, or heads of 64 as in the published models."""
    usual = facts.absent(name, max(width // 64, 1))
    return int(facts.get(name, usual, f"{usual} head{'s' * (usual > 1)} of {width // usual}"))


def class_function(facts: Facts, classes: int) -> str:
    """What makes the logits of a classifier its answer: softmax, sigmoid, or none for a regression.

    This is what the pipelines of transformers do: `problem_type` decides, and without it one class has a sigmoid.
    Raises InputError for another problem_type, and for a function_to_apply that contradicts it.

    >>> [class_function(Facts({"problem_type": kind}), 3) for kind in (None, "multi_label_classification")]
    ['softmax', 'sigmoid']
    """
    kinds = {
        "regression": "none",
        "multi_label_classification": "sigmoid",
        "single_label_classification": "sigmoid" if classes == 1 else "softmax",
    }
    kind = facts.get("problem_type") or "single_label_classification"
    if kind not in kinds:
        raise InputError(f"problem_type in config.json must be {', '.join(kinds)}, is {kind!r}")
    choice = facts.get("function_to_apply")
    if choice is not None and str(choice).lower() not in (kinds[kind], "default"):
        raise InputError(
            f"function_to_apply {choice} in config.json contradicts its problem_type, which means {kinds[kind]}: leave "
            "one of them out"
        )
    return kinds[kind]


ACTIVATIONS = {"gelu": "gelu", "quick_gelu": "quick_gelu", "relu": "relu", "silu": "swish", "swish": "swish"}
ACTIVATIONS |= dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_tanh"), "gelu_tanh")
"""{Hugging Face's or timm's name of an activation: ours}"""


def activation(name: str) -> str:
    """Convert Hugging Face's or timm's name of an activation to ours; InputError if it is not supported."""
    if name not in ACTIVATIONS:
        raise InputError(f"the activation must be one of {', '.join(ACTIVATIONS)}, is {name!r} in config.json")
    return ACTIVATIONS[name]


def hf_activation(name: str, gelu_tanh: str = "gelu_new") -> str:
    """Convert our name of an activation to Hugging Face's, which has two for `gelu_tanh`."""
    return {"gelu_tanh": gelu_tanh, "swish": "silu"}.get(name, name)
