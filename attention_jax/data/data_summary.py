"""Summary statistics of user data, for facts.json and for the line that is printed before training."""

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from attention_jax.data.vocabulary import Tokenizer, Vocabulary


def length_facts(tokens: np.ndarray, unit: str = "tokens", counts: np.ndarray | None = None) -> dict[str, float]:
    """Return the mean and the maximum of lengths, each of which occurs `counts` times.

    >>> length_facts(np.array([2, 3])), length_facts(np.array([2, 3]), counts=np.array([1, 3]))
    ({'mean_tokens': 2.5, 'longest_tokens': 3}, {'mean_tokens': 2.8, 'longest_tokens': 3})
    """
    mean = float(np.average(tokens, weights=counts))
    return {f"mean_{unit}": round(mean, 1), f"longest_{unit}": int(tokens.max())}


def class_facts(names: Sequence[str], label: np.ndarray) -> dict:
    """Return the number of classes, the least and the most frequent class, the fraction of the latter, which is the
    majority-class accuracy, and the ratio of their counts.

    >>> facts = class_facts(("cat", "dog", "owl"), np.array([0, 0, 1, 2, 2, 2]))
    >>> facts["rarest_class"], facts["largest_class"], facts["largest_class_share"], facts["class_imbalance"]
    ('dog (1)', 'owl (3)', 0.5, 3.0)
    """
    counts = np.bincount(label, minlength=len(names))
    least, most = int(counts.argmin()), int(counts.argmax())
    return {
        "classes": len(names),
        "rarest_class": f"{names[least]} ({counts[least]})",
        "largest_class": f"{names[most]} ({counts[most]})",
        "largest_class_share": round(float(counts[most] / counts.sum()), 4),
        "class_imbalance": round(float(counts[most] / max(counts[least], 1)), 1),
    }


def damage_facts(complaints: Sequence[str]) -> dict:
    """Return the number of damaged lines that were skipped, and the reason for the first one; {} without any.

    >>> damage_facts([]), damage_facts(["a.tsv line 3 is empty"])
    ({}, {'damaged_lines': 1, 'first_damaged_line': 'a.tsv line 3 is empty'})
    """
    return {"damaged_lines": len(complaints), "first_damaged_line": complaints[0]} if complaints else {}


def fingerprint(items: Iterable[str | np.ndarray]) -> str:
    """Return a 32-bit checksum of texts, and of arrays with their shapes, in hexadecimal.

    >>> fingerprint(["a", "b"]), fingerprint(["ab"])
    ('18572a97', '014a983e')
    >>> fingerprint([np.zeros(2)]) == fingerprint([np.zeros((2, 1))])
    False
    """
    digits = 0
    for item in items:
        if isinstance(item, np.ndarray):
            digits = zlib.crc32(np.ascontiguousarray(item).data, digits)
            item = str(item.shape)
        digits = zlib.crc32(item.encode(errors="surrogateescape") + b"\n", digits)
    return f"{digits:08x}"


def contents(data) -> Iterator[str | np.ndarray]:
    """The texts and arrays inside of tuples, lists and mappings, one after the other.

    >>> [*contents({"b": ("x", 1), "a": [np.arange(2)]})]
    ['x', array([0, 1])]
    """
    if isinstance(data, str | np.ndarray):
        yield data
    elif isinstance(data, tuple | list | Mapping):
        for value in data.values() if isinstance(data, Mapping) else data:
            yield from contents(value)


def tokenization(data) -> Iterator[str]:
    """The tokens of the vocabularies of a dataset in their order, and what else its tokenizers have read from files.

    >>> [*tokenization((Vocabulary("ba"), np.zeros(2)))]
    ['b', 'a']
    """
    for value in data if isinstance(data, tuple) else ():
        if isinstance(value, Vocabulary):
            yield from value.tokens
        elif isinstance(value, Tokenizer):
            yield from _rules(value)


def _rules(tokenizer: Tokenizer) -> Iterator[str]:
    """The merges or the tokenizer.json of a tokenizer; the pieces of a sentencepiece model are in the vocabulary, and
    its bytes may name the file in which it was trained."""
    match tokenizer.recipe:
        case ("bpe", merges):
            yield from map(" ".join, merges)
        case ("pretrained", content, _):
            yield content.decode()
        case (_, Tokenizer() as inner):
            yield from _rules(inner)
