"""Rows of text from files as people have them - lines, columns, JSON, packed or in a zip -, with errors that name the
line."""

import bz2
import contextlib
import csv
import functools
import gzip
import itertools
import json
import lzma
import math
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BufferedIOBase
from typing import Any, BinaryIO, Literal

from attention_jax.errors import InputError

JSON_LINES, CSV, PARQUET = (".jsonl", ".ndjson"), ".csv", ".parquet"
"""Suffixes of files that have rows with named columns."""
PACKED = {
    ".gz": (gzip.open, rb"\x1f\x8b\x08"),
    ".bz2": (bz2.open, rb"BZh[1-9]1AY&SY"),
    ".xz": (lzma.open, rb"\xfd7zXZ\0"),
}
"""{suffix: (the function that opens such a file, a pattern of the bytes that it begins with)}"""
OTHERS_PACKED = {
    "zstd": rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18",
    "lz4": rb"\x04\x22\x4d\x18|\x02\x21\x4c\x18",
    "7-Zip": rb"7z\xbc\xaf\x27\x1c",
    "RAR": rb"Rar!\x1a\x07",
    "lzip": rb"LZIP\x01",
    "LZMA": rb"\x5d\0\0",
    "lzop": rb"\x89LZO\0",
    "compress": rb"\x1f[\x9d\xa0\x1e]",
    "Snappy": rb"\xff\x06\0\0sNaPpY",
    "zlib": rb"\x78(\x01|\x9c|\xda[^\x80-\xbf])",
    "cabinet": rb"MSCF\0\0\0\0",
    "tar": rb"(?s).{257}ustar[\0 ]",
}
"""{program or format: a pattern of the beginning of its files}, which are not unpacked here"""
MARK = "\ufeff"
"""The byte order mark, which is no text: a file that was concatenated from several has one in its middle."""
OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")
"""The byte order marks of UTF-16 and UTF-32."""
BLOCK = 2**23
"""Bytes per read of a file that is read line by line."""


class Rereadable:
    """Texts that are read from their file each time that they are iterated."""

    def __init__(self, read: Callable[[], Iterator]):
        self.read = read

    def __iter__(self) -> Iterator:
        return self.read()


def existing_path(path: str, description: str) -> str:
    """Return `path`, or `path` with the suffix of a packed file, whichever exists."""
    for candidate in (path, *(path + suffix for suffix in PACKED)):
        if os.path.isfile(candidate):
            return candidate
    raise InputError(f"no {description} at {path} (nor {path}.gz): give the path of a file that exists")


def parse_paths(files: str) -> list[str]:
    """Return the names in a list with commas between them; the longest name that exists may have commas itself.

    >>> parse_paths("a.tsv, b.tsv,")
    ['a.tsv', 'b.tsv']
    """
    pieces, paths = files.split(","), []
    while pieces:
        joined = (count for count in range(len(pieces), 1, -1) if os.path.isfile(",".join(pieces[:count]).strip()))
        count = next(joined, 1)
        paths.append(",".join(pieces[:count]).strip())
        del pieces[:count]
    return [name for name in paths if name]


def suffix_of(path: str) -> str:
    """Return the suffix of a file's name in lower case.

    >>> suffix_of("A.TSV.GZ")
    '.gz'
    """
    return os.path.splitext(path)[1].lower()


@contextlib.contextmanager
def open_unpacked(path: str, description: str, member: str = "") -> Iterator[BinaryIO]:
    """A file to read from, unpacked: of a .gz, .bz2 or .xz, or the file called `member` in a .zip. Errors of reading
    are InputErrors."""
    if not os.path.isfile(path):
        raise InputError(f"no {description} at {path}: give the path of a file that exists")
    suffix = suffix_of(path)
    try:
        if suffix == ".zip" and not member:
            raise InputError(f"{path} is packed: unpack it and give the file that is in it")
        if suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if os.path.basename(name) == member]
                if not names:
                    raise InputError(f"{path} holds no {member}; it holds {', '.join(archive.namelist()[:5])}")
                with archive.open(names[0]) as file:
                    yield file
        else:
            with PACKED.get(suffix, (open, ""))[0](path, "rb") as file:
                yield file
    except (OSError, EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def read_bytes(path: str, description: str, member: str = "") -> bytes:
    """Read the whole content of a file (`open_unpacked`)."""
    with open_unpacked(path, description, member) as file:
        return file.read()


class TextCheck:
    """A check of a file's content, read in one or several blocks, for what makes no line of it usable.

    Such a file is an error as a whole, even if damaged lines are to be skipped.
    """

    def __init__(self, path: str):
        self.path, self.newlines, self.returns = path, 0, None

    def block(self, content: bytes):
        """Raise InputError if a block of the file is packed, is UTF-16 or UTF-32, or has NUL bytes."""
        if self.returns is None:
            self._check_beginning(content)
            self.returns = 0
        if b"\0" in content:
            line = 1 + self.newlines + content.count(b"\n", 0, content.index(b"\0"))
            raise InputError(
                f"{self.path} line {line} has a NUL byte, which is never text: the file is UTF-16, not UTF-8, or is "
                "damaged or no text file; save it as UTF-8"
            )
        self.newlines += content.count(b"\n")
        self.returns += content.count(b"\r") - content.count(b"\r\n")

    def _check_beginning(self, content: bytes):
        if content.startswith(OTHER_MARKS):
            width = 32 if b"\0\0" in content[:4] else 16
            raise InputError(f"{self.path} is UTF-{width}, not UTF-8: save it as UTF-8")
        for suffix, (_, beginning) in PACKED.items():
            if re.match(beginning, content):
                raise InputError(f"{self.path} is packed: unpack it, or give its name the ending {suffix}")
        for program, beginning in OTHERS_PACKED.items():
            if re.match(beginning, content):
                raise InputError(f"{self.path} is packed ({program}): unpack it and give the file that is in it")
        if content.startswith((b"PK\3\4", b"PK\5\6", b"PK\7\x08")):
            raise InputError(f"{self.path} is a zip archive or an office document: save it as a text file in UTF-8")

    def end(self):
        """Raise InputError if the lines end in carriage returns, as those of old Macs do."""
        if self.returns and self.returns > self.newlines:
            raise InputError(
                f"{self.path} has {self.returns} carriage returns and {self.newlines} newlines: are its line ends "
                "those of an old Mac? Save it with newlines at the ends of lines"
            )


def each_line(path: str, description: str, member: str = "") -> Iterator[bytes]:
    """The lines of a file of any size, one after the other, without newlines; split at newlines only.

    Raises InputError for a file that is empty or no text in UTF-8 at all (`TextCheck`).
    """
    with open_unpacked(path, description, member) as file:
        yield from _lines_in(iter(functools.partial(file.read, BLOCK), b""), path)


def _lines_in(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    previous = []
    for lines in _line_blocks(blocks, path):
        yield from previous  # of the block before: of a file of one block none until all of it is checked
        previous = lines
    yield from previous


def _line_blocks(blocks: Iterable[bytes], path: str) -> Iterator[list[bytes]]:
    """Yield the lines that end in each block of a text, checked (`TextCheck`), and at last one without an end."""
    check, tail = TextCheck(path), b""
    for block in blocks:
        check.block(block)
        *lines, tail = (tail + block).split(b"\n")
        yield lines
    check.end()
    if tail not in (b"", MARK.encode()):
        yield [tail]
    elif not check.newlines:
        raise InputError(f"{path} is empty; expected one sentence a line")


def stream_lines(file: BufferedIOBase, name: str) -> Iterator[list[str]]:
    """Yield the lines of a text as they arrive in a pipe, decoded; errors name the file `name` (`each_line`)."""
    number = 0
    for lines in _line_blocks(iter(lambda: file.read1(2**16), b""), name):
        yield [decode_line(line, f"{name} line {number + i}") for i, line in enumerate(lines, 1)]
        number += len(lines)


def decode_lines(content: bytes, path: str) -> list[str]:
    """Lines of UTF-8 text, without their ends and without byte order marks; InputError as in `each_line`."""
    return [decode_line(line, f"{path} line {number}") for number, line in enumerate(_lines_in([content], path), 1)]


def decode_line(line: bytes, location: str) -> str:
    """Decode a line of UTF-8 text and remove its end and byte order marks; `location` is its name in error messages."""
    try:
        return line.decode("utf-8").rstrip("\r\n").replace(MARK, "")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: not valid UTF-8 (byte {error.object[error.start]:#04x} at {error.start + 1}); "
            "save the file as UTF-8"
        ) from None


def read_lines(path: str, description: str) -> list[str]:
    """The lines of a text file; an empty file is an error."""
    return decode_lines(read_bytes(path, description), path)


def is_table(path: str) -> bool:
    """Whether a file has rows with named columns, by its name, which may be that of a packed file.

    >>> is_table("a.jsonl.gz"), is_table("A.Parquet"), is_table("b.csv"), is_table("a.tsv.gz")
    (True, True, True, False)
    """
    return form_of(path) in (*JSON_LINES, CSV, PARQUET)


def form_of(path: str) -> str:
    """Return the suffix of a file's name in lower case, of a packed file that before it.

    >>> form_of("A.TSV.GZ"), form_of("a.txt")
    ('.tsv', '.txt')
    """
    return suffix_of(os.path.splitext(path)[0] if suffix_of(path) in PACKED else path)


def read_rows(
    path: str | tuple[str, str],
    columns: Sequence[str],
    damaged: Literal["error", "skip"] = "error",
    complaints: list[str] | None = None,
    *,
    sentences: bool = False,
    member: str = "",
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line number, from 0, and the texts in `columns` of each row of a file.

    A JSON Lines, CSV or Parquet file has named columns; another file has a tab between columns, and for one column its
    lines. Two files have a column each. Rows of `sentences` may have further columns, and no text of them has a line
    break. A damaged row raises InputError, or is left out with its message in `complaints`.
    """
    name, number, reasons, usable = path if isinstance(path, str) else path[0], 0, [], False
    for number, record in _records(path, columns, member):
        try:
            if isinstance(record, tuple):
                row = tuple(_sentence(line, side, number) for line, side in zip(record, path))
            elif is_table(name):
                row = _fields(record, columns, f"{name} line {number}", sentences)
            else:
                row = split_columns(record, columns, f"{name} line {number}", sentences)
        except InputError as error:
            if damaged != "skip":
                raise InputError(f"{error}; or leave out all such lines: --data.on-bad-record skip") from None
            reasons.append(str(error))
        else:
            usable = True
            yield number - 1, row
    if reasons and not usable:
        raise InputError(f"none of the {number:,} lines can be used; the first: {reasons[0]}")
    if complaints is not None:
        complaints += reasons


def _records(path: str | tuple[str, str], columns: Sequence[str], member: str) -> Iterator[tuple[int, Any]]:
    """Yield the line number, from 1, and what is there: a line, a line of each of two files, {column: value}, or the
    error of a line that cannot be read."""
    if not isinstance(path, str):
        yield from _line_pairs(*path)
    elif form_of(path) == PARQUET:
        yield from enumerate(_parquet_rows(path, columns), 1)
    elif form_of(path) == CSV:
        yield from _csv_records(path, columns)
    else:
        yield from enumerate(each_line(path, "file of texts", member), 1)


def _line_pairs(source_path: str, target_path: str) -> Iterator[tuple[int, tuple[bytes, bytes]]]:
    source, target = each_line(source_path, "source file"), each_line(target_path, "target file")
    for number, pair in enumerate(itertools.zip_longest(source, target), 1):
        if None in pair:
            longer = number + sum(1 for _ in itertools.chain(source, target))
            counts = [number - 1 if line is None else longer for line in pair]
            raise InputError(
                f"source and target need equally many lines, but {source_path} has {counts[0]} and {target_path} "
                f"{counts[1]}"
            )
        yield number, pair


def _sentence(line: bytes, path: str, number: int) -> str:
    text = decode_line(line, f"{path} line {number}")
    if not text.strip():
        raise InputError(f"{path} line {number} is empty; remove the pair from both files")
    return text


def split_columns(line: bytes, columns: Sequence[str], location: str, spare: bool = False) -> tuple[str, ...]:
    """Return the texts of a line with a tab between columns, or of one column the line; `spare` ignores further
    columns. InputError for a missing column.

    >>> split_columns(b"one\\tun", ("source", "target"), "a.tsv line 1")
    ('one', 'un')
    """
    text = decode_line(line, location)
    if len(columns) == 1:
        return (text,)
    fields = text.split("\t")
    fields = fields[: len(columns)] if spare else fields
    if len(fields) != len(columns) or not all(map(str.strip, fields)):
        raise InputError(f"{location}: expected `{' TAB '.join(columns)}`, got {text[:60]!r}")
    return tuple(fields)


def _fields(row: Any, columns: Sequence[str], location: str, sentences: bool) -> tuple[str, ...]:
    """The values of `columns` in a row of a table, or in a line of JSON, as texts."""
    if isinstance(row, InputError):
        raise row
    if isinstance(row, bytes):
        line = decode_line(row, location)
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise InputError(f"{location}: expected a JSON object with {', '.join(columns)}, got {line[:60]!r}")
    return tuple(_field(row, name, location, sentences) for name in columns)


def _field(row: dict, name: str, location: str, sentences: bool) -> str:
    """A value as text; a name with dots is that of a field in a field."""
    value = row
    for key in [name] if name in row else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    infinite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or infinite:
        raise InputError(
            f"{location}: expected a text or a number in the column {name}, got {str(value)[:60]!r}; the columns are "
            f"{', '.join(row)[:200]}"
        )
    text = str(value)
    if not text.strip():
        raise InputError(f"{location}: the column {name} is empty")
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise InputError(f"{location}: the column {name} has a NUL, half of a character or bytes that are not UTF-8")
    if sentences and len(text.splitlines()) > 1:
        raise InputError(f"{location}: the column {name} has a line break; a sentence is one line")
    return text


def csv_rows(path: str) -> Iterator[tuple[int, list[str] | InputError]]:
    """Yield the line number, from 1, and the fields of each row of comma-separated values (RFC 4180), or its error."""
    csv.field_size_limit(2**31 - 1)
    decode = lambda line: f"{line.decode(errors='surrogateescape')}\n".replace(MARK, "")
    lines = map(decode, each_line(path, "file of texts"))
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            yield number, InputError(f"{path} line {number}: {error}; a text with quotes or commas is in double quotes")
            continue
        if fields is None:
            break
        yield number, [field.rstrip("\r\n") for field in fields]


def _csv_records(path: str, columns: Sequence[str]) -> Iterator[tuple[int, dict | InputError]]:
    """The rows below the header of a CSV file."""
    names = None
    for number, fields in csv_rows(path):
        if isinstance(fields, InputError):
            yield number, fields
        elif names is None:
            names = [name.strip() for name in fields]
            if not {*columns} <= {*names}:
                raise InputError(f"{path} needs the columns {', '.join(columns)}, it has {', '.join(names)[:200]}")
        elif len(fields) != len(names):
            message = f"{path} line {number}: expected {len(names)} columns as in line 1, got {len(fields)}"
            yield number, InputError(message)
        else:
            yield number, dict(zip(names, fields))


def _parquet_rows(path: str, columns: Sequence[str]) -> Iterator[dict]:
    """The rows of a Parquet file, read a batch at a time."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if not os.path.isfile(path):
        raise InputError(f"no file of texts at {path}: give the path of a file that exists")
    empty = True
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            top_columns = [name if name in names else name.partition(".")[0] for name in columns]
            if not {*top_columns} <= {*names}:
                raise InputError(f"{path} needs the columns {', '.join(columns)}, it has {', '.join(names)[:200]}")
            for batch in file.iter_batches(1024, columns=list(dict.fromkeys(top_columns))):
                empty = empty and not batch.num_rows
                yield from batch.to_pylist()
    except InputError:
        raise
    except (arrow.ArrowException, OSError, OverflowError, ValueError) as error:  # the last two: no value of Python's
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    if empty:
        raise InputError(f"{path} is empty; expected rows with the columns {', '.join(columns)}")
