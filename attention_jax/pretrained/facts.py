"""The config.json of another library's weights: its entries, contradictions with the tensors, and assumptions."""

import re
from collections.abc import Mapping
from typing import Any

from attention_jax.errors import InputError
from attention_jax.pretrained.entries import ENTRIES, HARMLESS, REFUSED, TENSORS, Entry


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
        absent = self.entries[name].absent if name in self.entries else TENSORS
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
