"""Training data that are read while a model trains: rows of a file of tokens, or image files.

A text is tokenized once into a flat int32 array, in memory or in a memory-mapped file. Examples are rows of it, by
their positions: windows of a text, padded sentences, or several packed sentences. Their order is that of
`batches.plan`, so a streamed run trains on the batches of one in memory, and resumes from the number of a call.
"""

import collections
import functools
import io
import itertools
import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np

from attention_jax.config import Config
from attention_jax.data import batches, stored
from attention_jax.data.cache import derive_file
from attention_jax.errors import InputError
from attention_jax.provenance import cores

LARGEST_RESIDENT = 2**30
"""The largest training arrays, in bytes, that `--data.stream auto` keeps on the device."""
CALL_BYTES = 2**24
"""The maximum number of bytes of a streamed call of several steps."""
TEXT_IN_MEMORY = 16
"""Bytes of Python objects for each byte of a text file, approximately."""


def is_streamed(stream: Literal["auto", "always", "never"], size: int) -> bool:
    """Whether training arrays of `size` bytes are streamed.

    >>> is_streamed("auto", 2**30), is_streamed("auto", 2**30 + 1), is_streamed("always", 1)
    (False, True, True)
    """
    return stream == "always" or (stream == "auto" and size > LARGEST_RESIDENT)


def steps_in_call(row_bytes: int, batch_size: int, max_steps: int) -> int:
    """Return the number of steps of a streamed call: at most `max_steps`, with at most `CALL_BYTES` of examples.

    >>> steps_in_call(3 * 224 * 224, 1024, 32), steps_in_call(3 * 32 * 32, 128, 32)
    (1, 32)
    """
    return int(np.clip(CALL_BYTES // (row_bytes * batch_size), 1, max_steps))


class Tokens(NamedTuple):
    """The tokens of a dataset."""

    data: Any
    """The dataset without them"""
    array: np.ndarray
    """[M] int32"""
    streamed: bool


def load_tokens(
    stream: str, paths: Sequence[str], words: Sequence[str], write: Callable[[bool, BinaryIO], Any]
) -> Tokens:
    """Return the tokens of the texts in `paths`, and the dataset without them. `write` is given whether they are
    streamed and a file; it writes them to the file, as int32, and returns the dataset.

    Streamed tokens are in a memory-mapped file in the data home, made once for each content of `paths` and choice of
    `words`, with the dataset behind them as a zip file, which is read from its end. Others are in memory, as generated
    ones, without `paths`, always are.
    """
    size = sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
    if not paths or not is_streamed(stream, TEXT_IN_MEMORY * size):
        file = io.BytesIO()
        return Tokens(write(False, file), np.frombuffer(file.getbuffer(), np.int32), streamed=False)
    if missing := [path for path in paths if not os.path.isfile(path)]:
        raise InputError(f"no text file at {missing[0]}: give the file itself")
    with derive_file(paths, "tokens", ".tokens", ["in NFC, with a zip file", *words]) as (path, temporary_path):
        if temporary_path:
            print(f"tokenizing {', '.join(paths)} (once)", file=sys.stderr)
            with temporary_path.open("wb") as file:
                arrays, data = {}, write(True, file)
                content = json.dumps([file.tell() // 4, stored.encode(data, arrays)])
                np.savez(file, content=content, **arrays)
    try:
        with open(path, "rb") as file, np.lib.npyio.NpzFile(file) as arrays:
            count, content = json.loads(arrays["content"].item())
            return Tokens(stored.decode(content, arrays), np.memmap(path, np.int32, "r", shape=(count,)), streamed=True)
    except (ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is damaged: delete it, so that it is made again") from error


@dataclass(frozen=True, eq=False)
class TokenRows:
    """N rows of a flat array of tokens; indexed by rows, it gives an array [n, T] int32."""

    dtype: ClassVar = np.dtype(np.int32)
    tokens: np.ndarray
    """[M] int32"""
    start: np.ndarray
    """[N]: the position of each row in `tokens`"""
    length: int | np.ndarray
    """The tokens of a row, or of each [N], which `pad` follows"""
    width: int
    """T"""
    pad: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: slice | np.ndarray | Sequence[int]) -> np.ndarray:
        length = self.length if isinstance(self.length, int) else self.length[rows][:, None]
        column = np.arange(self.width)
        position = self.start[rows][:, None] + column  # [n, T]
        return np.where(column < length, self.tokens.take(position, mode="clip"), np.int32(self.pad))


@dataclass(frozen=True, eq=False)
class PackedRows:
    """N rows that each hold several sentences, one after the other; indexed as `TokenRows`.

    With `segments`, a row has for each token the number of its sentence in the row, and further ones for padding.
    """

    dtype: ClassVar = np.dtype(np.int32)
    sentences: TokenRows
    groups: tuple[np.ndarray, ...]
    """The sentences of each row"""
    width: int
    begin: tuple[int, ...] = ()
    """The tokens before the sentences of each row"""
    segments: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.groups)

    def __getitem__(self, rows: slice | np.ndarray | Sequence[int]) -> np.ndarray:
        numbers = range(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows).tolist()
        return np.stack([self._row(self.groups[number]) for number in numbers])

    def _row(self, group: np.ndarray) -> np.ndarray:
        start, length = self.sentences.start[group], self.sentences.length[group]
        padding = self.width - len(self.begin) - int(length.sum())
        if self.segments:
            return np.repeat(np.arange(len(group) + padding, dtype=np.int32), [*length, *[1] * padding])
        pieces = [self.sentences.tokens[at : at + count] for at, count in zip(start, length)]
        return np.concatenate([np.array(self.begin, np.int32), *pieces, np.full(padding, self.sentences.pad, np.int32)])


class Share(NamedTuple):
    """The part of a global batch that one host computes: the blocks `first` to `first + here` of `of` equal ones."""

    first: int = 0
    here: int = 1
    of: int = 1

    def cut(self, rows: np.ndarray) -> np.ndarray:
        """Divide batches over devices: [K, B] -> [here, K, b] with b = B / of, zero padded if `of` does not divide B.

        >>> Share(first=1, here=1, of=2).cut(np.array([[1, 2, 3]])).tolist()
        [[[3, 0]]]
        """
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % self.of)))
        blocks = rows.reshape(len(rows), self.of, -1).swapaxes(0, 1)
        return blocks[self.first : self.first + self.here]


class Call(NamedTuple):
    """The examples of one compiled call."""

    bucket: dict[str, np.ndarray]
    """{name: [here, K * b, ...]}: the examples of this host's devices, in the order of the steps."""
    weight: np.ndarray
    """[K, B] float32, of all hosts; 0 for padding."""
    damaged: tuple[str, ...] = ()
    """An error message for each example that was unreadable and replaced."""


class Stream:
    """Base class of data that are read during training."""

    calls: int
    """Compiled calls in an epoch."""
    epoch_steps: int
    """Training steps in an epoch."""
    workers: int = 0
    """Threads that read ahead; 0: one for each core, at most 8."""

    def call(self, epoch: int, number: int, share: Share) -> Call:
        """Return the examples of a call, a function of the arguments alone."""
        raise NotImplementedError

    def largest(self) -> Call:
        """Return a call of the largest size, for all hosts; by default the first."""
        return self.call(0, 0, Share())

    def read(self, share: tuple[int, int, int], epoch: int, number: int, epochs: int) -> Iterator[tuple[int, Call]]:
        """Iterate over (number, call) from a position to the end of `epochs`, read ahead in order by threads."""
        share, threads = Share(*share), self.workers or min(cores(), 8)
        pool, waiting = ThreadPoolExecutor(threads), collections.deque()
        positions = iter(range(epoch * self.calls + number, epochs * self.calls))
        try:
            while True:
                for position in itertools.islice(positions, threads + 1 - len(waiting)):
                    at = divmod(position, self.calls)
                    waiting.append((at[1], pool.submit(self.call, *at, share)))
                if not waiting:
                    return
                first, call = waiting.popleft()
                yield first, call.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


@functools.lru_cache(maxsize=2)
def plan_epoch(*plan) -> list[batches.Chunk]:
    """Cached `batches.plan`, since an epoch is read call by call."""
    return batches.plan(*plan)


@dataclass(frozen=True, eq=False, kw_only=True)
class PlannedStream(Stream):
    """Examples in buckets, in the order in which they would be trained on in memory (`batches.plan`)."""

    buckets: Sequence[Mapping[str, Any]]
    """{name: array [N, ...]} of the examples of each bucket; or what gives such an array if it is indexed by rows."""
    batch_sizes: tuple[int, ...]
    """Examples per batch of each bucket."""
    steps: int = 1
    """Steps per call."""
    seed: int = 0
    workers: int = 0

    @property
    def plan(self) -> tuple:
        """The arguments of `batches.plan` after seed and epoch."""
        sizes = tuple(len(next(iter(columns.values()))) for columns in self.buckets)
        return sizes, self.batch_sizes, self.steps

    @property
    def epoch_steps(self) -> int:
        return sum(-(-rows // batch_size) for rows, batch_size in zip(*self.plan[:2]))

    @property
    def calls(self) -> int:
        return sum(-(-rows // (batch_size * self.steps)) for rows, batch_size in zip(*self.plan[:2]))

    def call(self, epoch: int, number: int, share: Share) -> Call:
        bucket, indices, weight = plan_epoch(self.seed, epoch, *self.plan)[number]
        rows = share.cut(indices).reshape(share.here, -1)  # [here, K * b]
        columns, damaged = self.examples(bucket, rows.reshape(-1), epoch)
        shaped = {name: column.reshape(*rows.shape, *column.shape[1:]) for name, column in columns.items()}
        return Call(shaped, weight, damaged)

    def examples(self, bucket: int, rows: np.ndarray, epoch: int) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        """Return these rows of each column, and an error message for each example that was replaced."""
        return {name: column[rows] for name, column in self.buckets[bucket].items()}, ()

    def largest(self) -> Call:
        chunks = plan_epoch(self.seed, 0, *self.plan)
        width = [sum(math.prod(x.shape[1:]) for x in columns.values()) for columns in self.buckets]
        number = max(range(self.calls), key=lambda number: chunks[number].indices.size * width[chunks[number].bucket])
        return self.call(0, number, Share())


def stream_of(buckets: Sequence[Mapping[str, Any]], batch_sizes: Sequence[int], config: Config) -> PlannedStream | None:
    """Return the stream of the training examples of a task whose columns are rows of tokens; None for arrays."""
    if all(isinstance(column, np.ndarray) for column in buckets[0].values()):
        return None
    steps = config.train.steps_per_call if len(buckets) == 1 else 1
    options = {"steps": steps, "seed": config.train.seed, "workers": config.data.workers}
    return PlannedStream(buckets=buckets, batch_sizes=tuple(batch_sizes), **options)
