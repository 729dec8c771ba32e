"""Several pairs in a row: hardly any padding, and one shape to compile.

A row has room for as many tokens of sources as of targets. Its pairs stand one after the other, each a segment that
attends to itself alone (ops/masks.py: `segments`) at positions of its own, so the loss is that of the pairs by
themselves.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attention_jax.data.pair_streams import Batch, Examples
from attention_jax.data.pairs import pad_rows
from attention_jax.data.vocabulary import Vocabulary


class PackedPairs(NamedTuple):
    """N rows of several pairs, as `Pairs` that have a source and a target each, and where which pair is."""

    source: np.ndarray
    """[N, S] int32: sources with their eos one after the other, padded at the end"""
    source_length: np.ndarray
    """[N] int32"""
    target: np.ndarray
    """[N, T + 1] int32: bos, then the targets with their eos; each is to be predicted from a bos of its own"""
    target_length: np.ndarray
    """[N] int32: the tokens to predict"""
    source_segment: np.ndarray
    """[N, S] int32: 0 for the tokens of the first pair, 1 ...; each position that fills the row is one by itself"""
    target_segment: np.ndarray
    """[N, T] int32: the same for the tokens to predict"""


def best_fit(lengths: np.ndarray, room: int) -> list[list[int]]:
    """The pairs of each row, for pairs of `lengths` [N, 2] of source and target, none of them above `room`.

    Best fit decreasing (Johnson et al. 1974) on both sides at once: the longest first, each to the row that has room
    for its source and its target and, of both together, least room left.

    >>> best_fit(np.array([[3, 3], [6, 5], [7, 8], [4, 5]]), 10)
    [[2], [1, 3], [0]]
    """
    shortest = lengths.min(initial=room)
    rows, numbers = [], np.zeros(len(lengths), np.int64)  # rows that are not full: their numbers, what is left of them
    left, count = np.zeros((2, len(lengths)), np.int64), 0
    for pair in np.argsort(-lengths.max(1, initial=0), kind="stable").tolist():
        source, target = lengths[pair].tolist()
        fits = np.flatnonzero((left[0, :count] >= source) & (left[1, :count] >= target))
        if len(fits):
            place = fits[np.argmin(left[0, fits] + left[1, fits])]
        else:
            place, count = count, count + 1
            numbers[place], left[:, place] = len(rows), room
            rows.append([])
        rows[numbers[place]].append(pair)
        left[:, place] -= source, target
        if left[:, place].min() < shortest:  # full: the last one takes its place
            count -= 1
            numbers[place], left[:, place] = numbers[count], left[:, count]
    return rows


def packed_padding(lengths: np.ndarray, room: int) -> float:
    """The share of positions, of sources and targets together, that hold padding once pairs of `lengths` [N, 2] are
    packed.

    >>> packed_padding(np.array([[3, 3], [7, 6], [5, 6]]), 10)
    0.25
    """
    rows = len(best_fit(lengths, room))
    return float(1.0 - lengths.sum() / max(2 * room * rows, 1))


@dataclass(frozen=True)
class Packing:
    """The batches of a window's examples, of packed rows, as `PairStream.group` makes them."""

    room: int
    """Tokens of a row, a side."""
    batch_size: int
    """Rows in a batch."""
    limit: int
    """Most tokens of a sentence, its end mark counted; longer ones are cut."""
    vocabularies: tuple[Vocabulary, Vocabulary]

    def __call__(self, examples: Examples, rng: np.random.Generator) -> list[Batch]:
        """Rows at random; only the last batch is not full."""
        sides = [
            [(row if v.eos_id is None else [*row, v.eos_id])[: self.limit] for row in side]
            for v, side in zip(self.vocabularies, (examples.source, examples.target))
        ]
        lengths = np.array([[len(row) for row in side] for side in sides], np.int64).T
        rows = best_fit(lengths, self.room)
        rows = [rows[number] for number in rng.permutation(len(rows))]
        starts = range(0, max(len(rows), 1), self.batch_size)
        return [self._batch(sides, rows[start : start + self.batch_size]) for start in starts]

    def _batch(self, sides: list, rows: list[list[int]]) -> Batch:
        filled = rows + [[]] * (self.batch_size - len(rows))
        sources, targets = ([[side[pair] for pair in row] for row in filled] for side in sides)
        source, source_length, source_segment = joined(sources, self.vocabularies[0].pad_id, self.room)
        target, target_length, target_segment = joined(targets, self.vocabularies[1].pad_id, self.room)
        target = np.insert(target, 0, self.vocabularies[1].bos_id, axis=1)
        arrays = PackedPairs(source, source_length, target, target_length, source_segment, target_segment)
        return Batch(arrays._asdict(), (np.arange(self.batch_size) < len(rows)).astype(np.float32))


def joined(rows: list[list[list[int]]], pad: int | None, room: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One side of packed rows: tokens [N, room], how many there are [N], and of which sentence each is [N, room].

    >>> [array.tolist() for array in joined([[[5, 6], [7]]], 0, 5)]
    [[[5, 6, 7, 0, 0]], [3], [[0, 0, 1, 2, 3]]]
    """
    tokens, length = pad_rows([[token for sentence in row for token in sentence] for row in rows], pad, room)
    sizes = [[len(sentence) for sentence in row] + [1] * (room - sum(map(len, row))) for row in rows]
    segment = [np.repeat(np.arange(len(row), dtype=np.int32), row) for row in sizes]
    return tokens, length, np.stack(segment)
