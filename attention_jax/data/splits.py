"""Random splits by a seed, for a corpus without splits: no duplicates, and no text in two splits."""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b

import numpy as np

SPLITS = ("train", "valid", "test")


def split_normalized(text: str, tokenizer: str) -> list[str]:
    """Return what is between the spaces of a text; sentencepiece reads compatible characters alike (NFKC).

    >>> split_normalized(" two  \uff57ords ", "sentencepiece")
    ['two', 'words']
    """
    return (unicodedata.normalize("NFKC", text) if tokenizer == "sentencepiece" else text).split()


def text_digest(text: str) -> int:
    """Return 64 bits of a digest of a text, by which texts are compared."""
    return int.from_bytes(blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest())


def text_digests(texts: Iterable[str]) -> np.ndarray:
    """Return the `text_digest` of each text [N]."""
    return np.fromiter(map(text_digest, texts), np.uint64)


def occurs_in(texts: Iterable[str], corpus: Iterable[str]) -> np.ndarray:
    """Return which of the texts [N] also occur among the others."""
    return np.isin(text_digests(texts), text_digests(corpus))


def split_by_source(
    source_keys: Sequence, target_keys: Sequence, sizes: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return the row numbers of each split: the named ones with the given number of sources, and "train" with the rest.

    Pairs with equal keys count once. A source with several targets is in one split only: all its pairs in train, or the
    first of them in a held-out split.

    >>> splits = split_by_source(list("aabbcd"), list("uuvwxy"), {"test": 1}, seed=0)
    >>> {name: rows.tolist() for name, rows in splits.items()}
    {'train': [0, 2, 3, 5], 'test': [4]}
    """
    _, first, source = np.unique(np.asarray(source_keys), return_index=True, return_inverse=True)
    targets, target = np.unique(np.asarray(target_keys), return_inverse=True)
    _, first_of_pair = np.unique(source * len(targets) + target, return_index=True)
    sources = np.sort(first)  # the first row of each source
    order = np.random.default_rng(seed).permutation(len(sources))
    ends = np.cumsum([0, *sizes.values()])
    splits = {name: sources[order[start:end]] for name, start, end in zip(sizes, ends, ends[1:])}
    held_out = np.isin(source, source[sources[order[: ends[-1]]]])
    return {"train": np.sort(first_of_pair[~held_out[first_of_pair]]), **splits}


def split_by_label(label: np.ndarray, fraction: float) -> dict[str, np.ndarray]:
    """Return indices of "train", "valid" and "test"; the latter two have this fraction of every class: at least one
    each of classes with three texts, and always one for training.

    >>> {name: len(rows) for name, rows in split_by_label(np.array([0] * 20 + [1] * 3 + [2]), 0.1).items()}
    {'train': 18, 'valid': 3, 'test': 3}
    """
    rng, splits = np.random.default_rng(0), {name: [] for name in SPLITS}
    for number in np.unique(label):
        rows = rng.permutation(np.flatnonzero(label == number))
        num_held_out = min(max(round(len(rows) * fraction), 1), (len(rows) - 1) // 2)
        splits["valid"].append(rows[:num_held_out])
        splits["test"].append(rows[num_held_out : 2 * num_held_out])
        splits["train"].append(rows[2 * num_held_out :])
    return {name: np.sort(np.concatenate(rows)) for name, rows in splits.items()}
