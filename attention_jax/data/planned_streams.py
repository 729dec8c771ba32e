"""Streams in the order of `batches.plan`: batches equal those of the same data held in memory."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attention_jax.data import batches
from attention_jax.data.streams import Call, Share, Stream


@functools.lru_cache(maxsize=2)
def plan_epoch(*plan) -> list[batches.Chunk]:
    """Cached `batches.plan`, since a worker reads many chunks of an epoch."""
    return batches.plan(*plan)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedStream(Stream):
    """Examples in buckets, one window for each compiled call."""

    buckets: Sequence[Mapping[str, np.ndarray]]
    """{name: array [N, ...]} of the examples of each bucket; or what gives such an array if it is indexed by rows."""
    batch_sizes: tuple[int, ...]
    """Examples per batch of each bucket."""
    steps: int
    """Steps per call."""
    seed: int
    workers: int = 0

    @property
    def sizes(self) -> tuple[int, ...]:
        """Examples of each bucket."""
        return tuple(len(next(iter(columns.values()))) for columns in self.buckets)

    @property
    def bucket_steps(self) -> list[int]:
        """Steps of each bucket in an epoch."""
        return [-(-rows // batch_size) for rows, batch_size in zip(self.sizes, self.batch_sizes)]

    @property
    def epoch_steps(self) -> int:
        return sum(self.bucket_steps)

    @property
    def windows(self) -> int:
        return sum(-(-steps // self.steps) for steps in self.bucket_steps)

    def calls(self, epoch: int, window: int, share: Share) -> list[Call]:
        bucket, indices, weight = plan_epoch(self.seed, epoch, self.sizes, self.batch_sizes, self.steps)[window]
        rows = share.cut(indices).reshape(share.here, -1)  # [here, K * b]
        columns, damaged = self.examples(bucket, rows.reshape(-1), epoch)
        shaped = {name: column.reshape(*rows.shape, *column.shape[1:]) for name, column in columns.items()}
        return [Call(shaped, weight, damaged)]

    def largest(self) -> Call:
        chunks = plan_epoch(self.seed, 0, self.sizes, self.batch_sizes, self.steps)
        width = [sum(math.prod(x.shape[1:]) for x in columns.values()) for columns in self.buckets]
        window = max(range(self.windows), key=lambda window: chunks[window].indices.size * width[chunks[window].bucket])
        return self.calls(0, window, Share())[0]

    def examples(self, bucket: int, rows: np.ndarray, epoch: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return these rows of each column, and an error message for each example that was replaced."""
        return {name: column[rows] for name, column in self.buckets[bucket].items()}, ()
