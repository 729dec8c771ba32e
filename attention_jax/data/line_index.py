"""Random access to the lines of large text files: an index of where the lines begin is built once and cached."""

import bisect
import functools
import os
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.data.derived import derive_file
from attention_jax.data.text_files import BLOCK, PACKED, TextCheck, check_equal, decode_line, suffix_of, two_columns
from attention_jax.data.text_tables import as_json_lines, is_table, parse_pair
from attention_jax.errors import InputError

LONG = 2**26
"""The size in bytes from which on indexing prints a line."""


class Lines(NamedTuple):
    """The lines of one file, each read by two system calls; the index is memory-mapped."""

    path: str
    offsets: str
    """The file of its index: int64 [N + 1], where each line begins, and the file's size"""
    count: int
    """N"""
    name: str
    """The file that the user gave, for messages"""

    def read(self, number: int) -> str:
        """Line `number`, from 0. Raises InputError for one that is empty, not UTF-8, or no longer there."""
        first, end = struct.unpack("<qq", os.pread(open_once(self.offsets), 16, 8 * number))
        line = os.pread(open_once(self.path), end - first, first)
        location = f"{self.name} line {number + 1}"
        if len(line) < end - first:
            raise InputError(f"{location}: the file became shorter since it was indexed; leave it unchanged")
        text = decode_line(line, location)
        if not text.strip():
            raise InputError(f"{location} is empty; remove the pair from both files")
        return text


@functools.cache
def open_once(path: str) -> int:
    """Open a file for the whole training: a file removed meanwhile can still be read."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from error


def index_lines(path: str, original: str = "") -> Lines:
    """Index the lines of the file at `path`, made from the file `original`, if any; the index is cached in the
    data home by size and modification time."""
    if not os.path.isfile(path):
        raise InputError(f"no text file at {path}: give the file itself")
    if suffix_of(path) in (*PACKED, ".zip"):
        raise InputError(f"{path} is packed, and lines of it cannot be read by number: unpack it")
    offsets = derive_file(path, "lines", ".offsets", lambda to: _write_offsets(path, to))
    count = os.path.getsize(offsets) // 8 - 1
    if count < 1:
        raise InputError(f"{path} is empty; expected one sentence a line")
    return Lines(path, offsets, count, original or path)


def _write_offsets(path: str, to: Path):
    check = TextCheck(path)
    if os.path.getsize(path) >= LONG:
        print(f"reading {path} for where its lines begin (once)", file=sys.stderr)
    with open(path, "rb", buffering=0) as file, open(to, "wb") as out:
        start = 3 if file.read(3) == b"\xef\xbb\xbf" else 0  # a byte order mark is no text
        file.seek(start)
        end, last = start, start  # of what was read, and of its last whole line
        if os.path.getsize(path) > start:
            out.write(np.array([start], np.int64).tobytes())
        while block := file.read(BLOCK):
            check.block(block)
            line_starts = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + (end + 1)
            out.write(line_starts.astype(np.int64).tobytes())
            end += len(block)
            last = int(line_starts[-1]) if len(line_starts) else last
        if last < end:
            out.write(np.array([end], np.int64).tobytes())
    check.end()


class PairLines(NamedTuple):
    """Pairs of sentences in files, numbered through all of them."""

    files: tuple[tuple[Lines, ...], ...]
    """(source, target) of each pair of files; or (both,), two columns with a tab between them"""
    ends: tuple[int, ...]
    """The number of pairs up to the end of each file."""
    columns: tuple[str, str] = ("source", "target")
    """The names of the two columns in a table."""

    def read(self, number: int) -> tuple[str, str]:
        """Return source and target; InputError with file and line if they cannot be read."""
        lines, row = self._find(number)
        if is_table(lines[0].name):
            return parse_pair(lines[0].read(row), self.columns, self.location(number))
        if len(lines) == 1:
            return two_columns(lines[0].read(row), self.location(number))
        return lines[0].read(row), lines[1].read(row)

    def location(self, number: int) -> str:
        """Return the (source) file and line of a pair, for messages."""
        lines, row = self._find(number)
        return f"{lines[0].name} line {row + 1}"

    def _find(self, number: int) -> tuple[tuple[Lines, ...], int]:
        index = bisect.bisect_right(self.ends, number)
        return self.files[index], number - (self.ends[index - 1] if index else 0)


def index_pairs(files: Sequence[tuple[str, ...]], columns: tuple[str, str] = ("source", "target")) -> PairLines:
    """Index the pairs of (source file, target file), or of files of two columns (file,), in order; `columns` are those
    of tables."""
    lines = lambda path: index_lines(as_json_lines(path, columns), path)
    indexed = tuple(tuple(map(lines, paths)) for paths in files)
    for lines in indexed:
        check_equal([side.path for side in lines], [side.count for side in lines])
    return PairLines(indexed, tuple(np.cumsum([lines[0].count for lines in indexed]).tolist()), columns)
