"""Batch plans: the indices of the examples of every step of an epoch, computed on the host; devices gather them.

And what is batched together: buckets of similar lengths, rows into which several sentence pairs are packed, and the few
lengths of new texts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SHORTEST = 16
"""The smallest number of tokens to which new texts are padded."""
PACKED_TOGETHER = 2**13
"""Pairs that are packed at a time."""


class Chunk(NamedTuple):
    """K steps of one bucket: one compiled call. Batch size B is global."""

    bucket: int
    indices: np.ndarray
    """[K, B] int32: indices of examples of the bucket"""
    weight: np.ndarray
    """[K, B] float32: 0 for padding. A step whose weights are all 0 makes no update"""


def length_bucket(longest: int, limit: int | None = None) -> int:
    """Return the number of tokens to which new texts of at most `longest` are padded: a power of two, at least
    `SHORTEST`, or the `limit` of the model where that is smaller.

    Predictions of texts of any length so need few programs.

    >>> [length_bucket(longest, limit=100) for longest in (3, 16, 17, 65, 100)]
    [16, 16, 32, 100, 100]
    """
    length = max(1 << max(longest - 1, 0).bit_length(), SHORTEST)
    return max(longest, length if limit is None else min(length, limit))


def pad_rows(rows: Sequence[Sequence[int]], pad: int | None, width: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Rows of numbers as one array [N, width] int32 and their lengths [N] int32; longer rows are cut.

    >>> pad_rows([[5, 6, 7], [8]], 0)
    (array([[5, 6, 7],
           [8, 0, 0]], dtype=int32), array([3, 1], dtype=int32))
    """
    lengths = np.fromiter((len(row) for row in rows), np.int32, len(rows))
    width = int(lengths.max(initial=1)) if width is None else width
    array = np.full((len(rows), width), 0 if pad is None else pad, np.int32)
    for number, row in enumerate(rows):
        array[number, : len(row)] = row[:width]
    return array, np.minimum(lengths, np.int32(width))


def plan(
    seed: int, epoch: int, bucket_sizes: Sequence[int], batch_sizes: Sequence[int], steps_per_call: int
) -> list[Chunk]:
    """Return the chunks of one epoch in order; a pure function, so that a resumed run trains on the same batches.

    Every example occurs exactly once with weight 1. The examples of a bucket are permuted and divided into batches, of
    which the last is padded; batches are grouped in chunks of `steps_per_call` steps (fewer if a bucket has fewer, so
    that each bucket has one compiled shape); the chunks of all buckets are shuffled.

    >>> [chunk] = plan(seed=0, epoch=0, bucket_sizes=[5], batch_sizes=[2], steps_per_call=4)
    >>> chunk.indices.shape, sorted(chunk.indices[chunk.weight == 1].tolist()), chunk.weight.sum(1).tolist()
    ((3, 2), [0, 1, 2, 3, 4], [2.0, 2.0, 1.0])
    """
    rng = np.random.default_rng([seed, epoch])
    chunks = []
    for bucket, (rows, batch_size) in enumerate(zip(bucket_sizes, batch_sizes, strict=True)):
        steps = -(-rows // batch_size)
        chunk_steps = min(steps_per_call, steps)
        padded_size = -(-steps // max(chunk_steps, 1)) * chunk_steps * batch_size
        indices, weight = np.zeros(padded_size, np.int32), np.zeros(padded_size, np.float32)
        indices[:rows], weight[:rows] = rng.permutation(rows), 1.0
        shape = (-1, chunk_steps, batch_size)
        if rows:
            chunks += [Chunk(bucket, i, w) for i, w in zip(indices.reshape(shape), weight.reshape(shape))]
    return [chunks[number] for number in rng.permutation(len(chunks))]


def boundaries(source_length: np.ndarray, target_length: np.ndarray, max_buckets: int) -> list[int]:
    """The upper limits of at most `max_buckets` buckets of max(source, target) length, with the least padding possible.

    A bucket costs rows x (longest source + longest target); the cheapest division of the sorted lengths is found
    exactly, by dynamic programming.

    >>> boundaries(np.array([2, 2, 3, 9, 9]), np.array([2, 2, 3, 9, 9]), 2)
    [3, 9]
    """
    size = np.maximum(source_length, target_length)
    values = np.unique(size)
    rows = np.array([np.sum(size == value) for value in values])
    longest = np.array(
        [[lengths[size == value].max() for value in values] for lengths in (source_length, target_length)]
    )
    count = len(values)
    cost = np.full((count, count + 1), np.inf)  # cost[i, j]: one bucket of values[i:j]
    for start in range(count):
        widths = np.maximum.accumulate(longest[:, start:], axis=1).sum(0)
        cost[start, start + 1 :] = np.cumsum(rows[start:]) * widths
    best, choices = cost[0], [np.zeros(count + 1, int)]
    for _ in range(max_buckets - 1):
        through = best[:count, None] + cost  # the last bucket starts at each value
        through[0] = cost[0]
        choices.append(np.argmin(through, axis=0))
        best = np.min(through, axis=0)
    ends, end = [], count
    for choice in reversed(choices):
        ends.append(int(values[end - 1]))
        end = int(choice[end])
        if end == 0:
            break
    return ends[::-1]


def assign(source_length: np.ndarray, target_length: np.ndarray, max_buckets: int) -> list[np.ndarray]:
    """The rows of each bucket, ascending in length.

    >>> [rows.tolist() for rows in assign(np.array([9, 2, 3]), np.array([8, 2, 3]), 2)]
    [[1, 2], [0]]
    """
    size = np.maximum(source_length, target_length)
    limits = boundaries(source_length, target_length, max_buckets)
    bucket = np.searchsorted(limits, size)
    return [np.flatnonzero(bucket == number) for number in range(len(limits))]


def sentences_in_batch(widths: Sequence[int], batch_size: int, batch_tokens: int) -> tuple[int, ...]:
    """Return the batch size of each bucket: `batch_size` sentences, or as many as hold `batch_tokens` tokens with
    padding (a multiple of 8 where possible, which divides over devices).

    >>> sentences_in_batch([10, 40], 128, 0), sentences_in_batch([10, 40], 128, 1000)
    ((128, 128), (96, 24))
    """
    if not batch_tokens:
        return (batch_size,) * len(widths)
    counts = [max(batch_tokens // width, 1) for width in widths]
    return tuple(count // 8 * 8 or count for count in counts)


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


def pack(lengths: np.ndarray, capacity: int) -> tuple[np.ndarray, ...]:
    """Assign pairs of `lengths` [N, 2] to rows by `best_fit`, some thousands of random ones at a time.

    >>> sorted(row.tolist() for row in pack(np.array([[3, 3], [7, 6], [5, 6]]), 10))
    [[1, 0], [2]]
    """
    order = np.random.default_rng(0).permutation(len(lengths))
    blocks = [order[first : first + PACKED_TOGETHER] for first in range(0, len(order), PACKED_TOGETHER)]
    return tuple(block[row] for block in blocks for row in best_fit(lengths[block], capacity))
