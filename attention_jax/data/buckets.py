"""Length buckets: pairs of similar length are batched together, with few shapes to compile and little padding."""

from collections.abc import Sequence

import numpy as np


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
    best, choices = cost[0], []
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
    if end:
        ends.append(int(values[end - 1]))
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
