"""Serialization of preprocessing for a run: vocabularies, tokenizers, names, normalization and a few examples.

Only the types below, and named tuples that are `storable`, are read back: a file cannot name code to import. Whoever
reads one imports the module of its type first.
"""

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from attention_jax import config as configs
from attention_jax.data import tokenizers
from attention_jax.data.vocabulary import Tokenizer, Vocabulary
from attention_jax.errors import InputError

TYPES: dict[str, type] = {}
"""The named tuples that are `storable`, by name."""
TOKENIZERS = {
    "whitespace": tokenizers.whitespace,
    "character": tokenizers.character,
    "words": tokenizers.words,
    "spacy": tokenizers.spacy,
    "bpe": tokenizers.bpe_of_merges,
    "sentencepiece": lambda model: tokenizers.sentencepiece_model(model)[0],
    "lowercased": tokenizers.lowercase_tokenizer,
    "reversed": tokenizers.reverse_tokenizer,
    "padded": tokenizers.fixed_width_tokenizer,
    "stripped": tokenizers.stripping_tokenizer,
    "lines": tokenizers.line_tokenizer,
    "words and marks": tokenizers.words_and_marks,
    "letters": tokenizers.letters,
    "pretrained": tokenizers.tokenizer_of_json,
}
"""The function that makes a tokenizer of each recipe (`Tokenizer.recipe`)."""
SPECIAL = ("pad", "bos", "eos", "unk")
Kind = TypeVar("Kind", bound=type)


class NotStored(Exception):
    """Raised for data of a type that a run cannot store, such as a custom tokenizer."""


def storable(kind: Kind) -> Kind:
    """Register a named tuple of a dataset, which runs can then store: `@storable class Points(NamedTuple)`."""
    TYPES[kind.__name__] = kind
    return kind


def encode(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """A dataset as plain JSON values; arrays go into `arrays` under names. Raises NotStored."""
    inside = lambda values: [encode(each, arrays) for each in values]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, Tokenizer):
        if value.recipe[:1] not in [(name,) for name in TOKENIZERS]:
            raise NotStored("a tokenizer without a recipe")
        return {"tokenizer": inside(value.recipe)}
    if isinstance(value, Vocabulary):
        return {"vocabulary": value.tokens} | {name: getattr(value, f"{name}_id") for name in SPECIAL}
    if isinstance(value, configs.Sampling):
        return {"sampling": vars(value)}
    if type(value) in TYPES.values():
        return {"type": type(value).__name__, "fields": encode(value._asdict(), arrays)}
    if isinstance(value, Mapping):
        return {"mapping": {name: encode(each, arrays) for name, each in value.items()}}
    if type(value) in (tuple, list):
        return {"tuple": inside(value)} if isinstance(value, tuple) else inside(value)
    raise NotStored(type(value).__name__)


def decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Invert `encode`; InputError, KeyError, TypeError or ValueError for values that `encode` did not write."""
    inside = lambda values: [decode(each, arrays) for each in values]
    if isinstance(value, list):
        return inside(value)
    if not isinstance(value, dict):
        return value
    kind, content = next(iter(value.items()))
    match kind:
        case "array":
            return arrays[content]
        case "bytes":
            return base64.b64decode(content)
        case "tokenizer":
            name, *arguments = inside(content)
            return TOKENIZERS[name](*arguments)
        case "vocabulary":
            special = {name: None if value[name] is None else content[value[name]] for name in SPECIAL}
            return Vocabulary(content, **special)
        case "sampling":
            return configs.Sampling(**content)
        case "type":
            return TYPES[content](**decode(value["fields"], arrays))
        case "mapping":
            return {name: decode(each, arrays) for name, each in content.items()}
        case "tuple":
            return tuple(inside(content))
    raise InputError(f"unknown kind of stored value: {kind!r}")
