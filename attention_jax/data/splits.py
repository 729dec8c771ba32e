"""Random splits by a seed, for a corpus without splits: no duplicates, and no source in two splits."""

from collections.abc import Mapping, Sequence

import numpy as np

from attention_jax.data.pairs import Texts


def split_by_source(
    source_keys: Sequence[str], target_keys: Sequence[str], sizes: Mapping[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return the row numbers of each split: the named ones with the given number of sources, and "train" with the rest.

    Pairs with equal keys count once. A source with several targets is in one part only: all its pairs in train, or the
    first of them in a held-out split.

    >>> splits = split_by_source(list("aabbcd"), list("uuvwxy"), {"test": 1}, seed=0)
    >>> {name: rows.tolist() for name, rows in splits.items()}
    {'train': [0, 2, 3, 5], 'test': [4]}
    """
    first_row = {}  # of each pair
    for row, pair in enumerate(zip(source_keys, target_keys)):
        first_row.setdefault(pair, row)
    first_of = {}  # the first row of each source
    for (source, _), row in first_row.items():
        first_of.setdefault(source, row)
    sources = list(first_of)
    order = np.random.default_rng(seed).permutation(len(sources))
    splits, start, held_out = {}, 0, set()
    for name, size in sizes.items():
        chosen = [sources[number] for number in order[start : start + size]]
        start += size
        held_out.update(chosen)
        splits[name] = np.array([first_of[source] for source in chosen], np.int64)
    train = [row for (source, _), row in first_row.items() if source not in held_out]
    return {"train": np.array(train, np.int64), **splits}


def take_rows(texts: Texts, rows: np.ndarray) -> Texts:
    """The pairs of these rows."""
    return Texts([texts.source[row] for row in rows], [texts.target[row] for row in rows])


def concatenate_pairs(texts: Texts, max_pairs: int, seed: int) -> Texts:
    """Return every pair, followed by concatenations of 2 to `max_pairs` randomly chosen pairs with each pair once: long
    sentences for a corpus that has few.

    >>> concatenate_pairs(Texts(["a", "b"], ["A", "B"]), max_pairs=2, seed=0)
    Texts(source=['a', 'b', 'a b'], target=['A', 'B', 'A B'])
    """
    rng = np.random.default_rng(seed)
    order, joined = rng.permutation(len(texts.source)), []
    while len(order):
        count = int(rng.integers(2, max_pairs + 1))
        joined.append(order[:count])
        order = order[count:]
    return Texts(*(side + [" ".join(side[row] for row in rows) for rows in joined] for side in texts))
