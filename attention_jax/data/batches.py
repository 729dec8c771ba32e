"""Batch plans: the indices of the examples of every step of an epoch, computed on the host; devices gather them."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Chunk(NamedTuple):
    """K steps of one bucket: one compiled call. Batch size B is global."""

    bucket: int
    indices: np.ndarray
    """[K, B] int32: indices of examples of the bucket"""
    weight: np.ndarray
    """[K, B] float32: 0 for padding. A step whose weights are all 0 makes no update"""


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
