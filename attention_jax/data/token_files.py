"""Tokens in files: a text is tokenized once, and its tokens are read by position while a model trains.

Such a file, in the data home, has the tokens of all training examples, and at its end the rest of the dataset.
"""

import itertools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import numpy as np

from attention_jax.config import Config
from attention_jax.data import pretrained_tokenizer, stored
from attention_jax.data.derived import derive_file
from attention_jax.data.line_index import open_once
from attention_jax.data.planned_streams import PlannedStream
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError

SAMPLE = 2**24
"""The number of characters on which sentencepiece is trained, approximately, of a text that has more."""


@dataclass(frozen=True, eq=False)
class TokenRows:
    """N rows of tokens in a file; indexed by rows, it gives an array [n, T] int32."""

    dtype: ClassVar = np.dtype(np.int32)
    path: str
    kind: str
    """The type of a token in the file"""
    start: range | np.ndarray
    """[N]: the position of each row in the file, in tokens"""
    width: int
    """T"""
    length: np.ndarray | None = None
    """[N]: the tokens of each row, which `pad` follows; None: T"""
    pad: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.width

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, rows: slice | np.ndarray | Sequence[int]) -> np.ndarray:
        numbers = range(len(self))[rows] if isinstance(rows, slice) else np.asarray(rows).tolist()
        tokens = np.full((len(numbers), self.width), self.pad, np.int32)
        for row, number in zip(tokens, numbers):
            values = self._read(int(self.start[number]), self.width if self.length is None else self.length[number])
            row[: len(values)] = values
        return tokens

    def _read(self, start: int, count: int) -> np.ndarray:
        size = np.dtype(self.kind).itemsize
        content = os.pread(open_once(self.path), count * size, start * size)
        if len(content) < count * size:
            raise InputError(f"{self.path} became shorter since it was written: delete it, so that it is made again")
        return np.frombuffer(content, self.kind)


def token_dtype(vocabulary: Vocabulary) -> str:
    """The type of a vocabulary's tokens in a file.

    >>> token_dtype(Vocabulary("ab"))
    'uint16'
    """
    return "uint16" if len(vocabulary) <= 2**16 else "int32"


def subsample_texts(texts: Iterable[str], characters: int) -> Iterator[str]:
    """Return every k-th of `texts` with so many characters in all, so that about `SAMPLE` of them are left.

    >>> list(subsample_texts("abc", 3)), list(subsample_texts("abc", 2 * SAMPLE))
    (['a', 'b', 'c'], ['a', 'c'])
    """
    return itertools.islice(texts, 0, None, max(-(-characters // SAMPLE), 1))


def token_file(path: str, options, write: Callable[[BinaryIO], Any]) -> tuple[str, Any]:
    """Return the file of the tokens of the text at `path`, and the rest of the dataset.

    `write` writes tokens and returns the rest; both are made once for each content of `path` and choice of `options`.
    """

    def write_all(to: Path):
        print(f"tokenizing {path} (once)", file=sys.stderr)
        with to.open("wb") as file:
            _append_dataset(file, write(file))

    if not os.path.isfile(path):
        raise InputError(f"no text file at {path}: give the file itself")
    words = [str(options), pretrained_tokenizer.stamps(options.pretrained)]
    cache_path = derive_file(path, "tokens", ".tokens", write_all, words)
    return cache_path, _read_dataset(cache_path)


def _append_dataset(file: BinaryIO, data):
    """Write a dataset to the end of a file: its arrays, where they are as JSON, and the length of this."""
    arrays, offsets = {}, {}
    content = stored.encode(data, arrays)
    for name, array in arrays.items():
        offsets[name] = file.tell(), str(array.dtype), array.shape
        file.write(array.tobytes())
    footer = json.dumps([content, offsets]).encode()
    file.write(footer + len(footer).to_bytes(8, "little"))


def _read_dataset(path: str):
    """The inverse of `_append_dataset`; InputError for a file that is not whole."""
    file, arrays = open_once(path), {}
    end = os.fstat(file).st_size - 8
    length = int.from_bytes(os.pread(file, 8, max(end, 0)), "little")
    try:
        content, offsets = json.loads(os.pread(file, length, end - length) if 0 < length <= end else b"")
    except ValueError as error:
        raise InputError(f"{path} is damaged: delete it, so that it is made again") from error
    for name, (offset, dtype, shape) in offsets.items():
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays[name] = np.frombuffer(os.pread(file, size, offset), dtype).reshape(shape)
    return stored.decode(content, arrays)


def stream_of(buckets: Sequence[Mapping[str, Any]], batch_sizes: Sequence[int], config: Config) -> PlannedStream | None:
    """Return the stream of the training examples of a task, whose "tokens" are `TokenRows`; None for other examples."""
    if not isinstance(buckets[0]["tokens"], TokenRows):
        return None
    return PlannedStream(
        buckets=buckets,
        batch_sizes=tuple(batch_sizes),
        steps=config.train.steps_per_call if len(buckets) == 1 else 1,
        seed=config.train.seed,
        workers=config.data.workers,
    )
