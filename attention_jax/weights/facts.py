"""The config.json beside another library's weights: what it says, what it contradicts, and what has to be assumed."""

import re
from collections.abc import Mapping
from typing import Any

from attention_jax.errors import InputError

HARMLESS = "|".join(
    [
        r"_name_or_path|architectures|auto_map|transformers\w*_version|(torch_)?dtype|torchscript|use_bfloat16",
        r"model_type|tf_legacy_loss|finetuning_task|problem_type|task_specific_params|tokenizer_class|prefix",
        r"id2label|label2id|_?num_labels|label_names|label_descriptions|pretrained_cfg|num_features|tags",
        r"\w*(drop|dropout|pdrop|dropout_prob|dropout_rate|layerdrop|drop_rate|drop_path_rate)|initializer_\w+|init_std|weight_init",
        r"gradient_checkpointing|use_cache|return_dict\w*|output_\w+|_?attn_implementation\w*|chunk_size_feed_forward",
        r"\w*_token_ids?|(max|min)_length|max_new_tokens|do_sample|early_stopping|num_beams|num_beam_groups",
        r"diversity_penalty|temperature|top_[kp]|typical_p|repetition_penalty|length_penalty|\w*no_repeat_ngram_size",
        r"bad_words_ids|num_return_sequences|remove_invalid_values|exponential_decay_length_penalty|\w*suppress_tokens",
        r"summary_\w+|pooler_\w+|encoder_stride|is_encoder_decoder|n_special|predict_special_tokens",
        r"reorder_and_upcast_attn|n_ctx|pretraining_tp|cache_implementation|is_llama_config|transformers.js_config",
    ]
)
"""Keys of config.json that do not change what a model computes from its inputs: training, generation, names."""


class Facts:
    """The entries of a config.json; a missing entry and null are the same."""

    def __init__(self, values: Mapping[str, Any]):
        self.values = {name: value for name, value in values.items() if value is not None}
        self.known: set[str] = set()
        """The names that were read."""
        self.assumed: list[str] = []
        """What was assumed because nothing says it."""

    def get(self, name: str, default, text: str = ""):
        """The value of `name`, or `default`; the latter is noted as assumed, in the words of `text`, if given."""
        self.known.add(name)
        if name not in self.values and text:
            self.assumed.append(text)
        return self.values.get(name, default)

    def usual(self, published, library):
        """The default of an entry: that of the library whose config.json does not have it, or without a config.json
        that of the published models."""
        return library if "model_type" in self.values else published

    def require(self, what: str, values: Mapping[str, Any]):
        """Raise InputError unless the entries that exist have these values: those that are supported, or that follow
        from the tensors."""
        for name, value in values.items():
            if self.get(name, value) != value:
                raise InputError(f"{what}'s config.json must have {name} {value}, has {self.values[name]!r}")

    def unread(self) -> list[str]:
        """The entries that are set, that were not read, and that are not known to be harmless."""
        return [
            name
            for name, value in self.values.items()
            if value not in (False, 0, "", [], {}) and name not in self.known and not re.fullmatch(HARMLESS, name)
        ]

    def said(self) -> str:
        """A note on what was assumed and not read; "" if there is nothing of either kind."""
        unread = ", ".join(self.unread())
        assumed = f"; assumed, as no config.json says it: {', '.join(self.assumed)}" if self.assumed else ""
        return assumed + (f"; not read in config.json: {unread}" if unread else "")


def heads_of(facts: Facts, name: str, width: int, library: int) -> int:
    """The number of heads: that of `facts`, the default of the library, or heads of 64 as in the published models."""
    usual = facts.usual(max(width // 64, 1), library)
    return int(facts.get(name, usual, f"{usual} head{'s' * (usual > 1)} of {width // usual}"))
