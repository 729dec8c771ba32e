"""Sequence packing: several sentence pairs in one row of a batch, with hardly any padding and one shape to compile.

A row has capacity for as many source tokens as target tokens. Each pair is a segment that attends only to itself
(ops/masks.py: `segments`), with positions from 0, so the loss equals that of unpacked pairs.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_jax.data.pair_streams import Batch, Examples
from attention_jax.data.pairs import pad_rows
from attention_jax.data.vocabulary import Vocabulary


class PackedPairs(NamedTuple):
    """N packed rows, as `Pairs` with one source and one target each, and the pair of each token."""

    source: np.ndarray
    """[N, S] int32: concatenated sources with their eos, padded at the end"""
    source_length: np.ndarray
    """[N] int32"""
    target: np.ndarray
    """[N, T + 1] int32: bos, then the targets with their eos; each target is predicted starting from bos"""
    target_length: np.ndarray
    """[N] int32: the tokens to predict"""
    source_segment: np.ndarray
    """[N, S] int32: 0 for the tokens of the first pair, 1 ...; each padding position is a segment by itself"""
    target_segment: np.ndarray
    """[N, T] int32: the same for the tokens to predict"""


def best_fit(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Assign pairs with `lengths` [N, 2] of source and target, at most `capacity`, to rows; return the pairs of each.

    Best-fit decreasing (Johnson et al. 1974) in two dimensions: the longest pair first, each to the row with space for
    source and target that has the least total space left.

    >>> best_fit(np.array([[3, 3], [6, 5], [7, 8], [4, 5]]), 10)
    [[2], [1, 3], [0]]
    """
    shortest = lengths.min(initial=capacity)
    rows, numbers = [], np.zeros(len(lengths), np.int64)  # rows that are not full: their numbers
    left, count = np.zeros((2, len(lengths)), np.int64), 0
    for pair in np.argsort(-lengths.max(1, initial=0), kind="stable").tolist():
        source, target = lengths[pair].tolist()
        fits = np.flatnonzero((left[0, :count] >= source) & (left[1, :count] >= target))
        if len(fits):
            slot = fits[np.argmin(left[0, fits] + left[1, fits])]
        else:
            slot, count = count, count + 1
            numbers[slot], left[:, slot] = len(rows), capacity
            rows.append([])
        rows[numbers[slot]].append(pair)
        left[:, slot] -= source, target
        if left[:, slot].min() < shortest:  # full: the last one moves to its slot
            count -= 1
            numbers[slot], left[:, slot] = numbers[count], left[:, count]
    return rows


def packing_padding(lengths: np.ndarray, capacity: int) -> float:
    """Return the fraction of padding, over sources and targets, after packing pairs of `lengths` [N, 2].

    >>> packing_padding(np.array([[3, 3], [7, 6], [5, 6]]), 10)
    0.25
    """
    rows = len(best_fit(lengths, capacity))
    return float(1.0 - lengths.sum() / max(2 * capacity * rows, 1))


@dataclass(frozen=True)
class Packing:
    """Batches of packed rows for the examples of a window (`PairStream.group`)."""

    capacity: int
    """Source tokens, and target tokens, of a row."""
    batch_size: int
    """Rows in a batch."""
    limit: int
    """The maximum number of tokens of a sentence, including eos; longer ones are truncated."""
    vocabularies: tuple[Vocabulary, Vocabulary]

    def __call__(self, examples: Examples, rng: np.random.Generator) -> list[Batch]:
        """Pack the examples into rows in random order; only the last batch is padded."""
        sides = [
            [(row if v.eos_id is None else [*row, v.eos_id])[: self.limit] for row in side]
            for v, side in zip(self.vocabularies, (examples.source, examples.target))
        ]
        lengths = np.array([[len(row) for row in side] for side in sides], np.int64).T
        rows = best_fit(lengths, self.capacity)
        rows = [rows[number] for number in rng.permutation(len(rows))]
        starts = range(0, max(len(rows), 1), self.batch_size)
        return [self._batch(sides, rows[start : start + self.batch_size]) for start in starts]

    def _batch(self, sides: list, rows: list[list[int]]) -> Batch:
        filled = rows + [[]] * (self.batch_size - len(rows))
        sources, targets = ([[side[pair] for pair in row] for row in filled] for side in sides)
        source, source_length, source_segment = concatenate(sources, self.vocabularies[0].pad_id, self.capacity)
        target, target_length, target_segment = concatenate(targets, self.vocabularies[1].pad_id, self.capacity)
        target = np.insert(target, 0, self.vocabularies[1].bos_id, axis=1)
        arrays = PackedPairs(source, source_length, target, target_length, source_segment, target_segment)
        return Batch(arrays._asdict(), (np.arange(self.batch_size) < len(rows)).astype(np.float32))


def concatenate(
    rows: list[list[list[int]]], pad: int | None, capacity: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return one side of packed rows: tokens [N, capacity], their numbers [N], and segments [N, capacity].

    >>> [array.tolist() for array in concatenate([[[5, 6], [7]]], 0, 5)]
    [[[5, 6, 7, 0, 0]], [3], [[0, 0, 1, 2, 3]]]
    """
    tokens, length = pad_rows([[token for sentence in row for token in sentence] for row in rows], pad, capacity)
    sizes = [[len(sentence) for sentence in row] + [1] * (capacity - sum(map(len, row))) for row in rows]
    segment = [np.repeat(np.arange(len(row), dtype=np.int32), row) for row in sizes]
    return tokens, length, np.stack(segment)
