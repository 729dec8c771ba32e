"""Lines of text from files as people have them - plain, gzipped, in a zip -, with errors that name the line."""

import gzip
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

from attention_jax import InputError
from attention_jax.data.pairs import Texts


class Parsed(NamedTuple):
    """The parsed lines of a file."""

    values: list
    numbers: list[int]
    """Line numbers, from 0"""
    complaints: list[str]
    """About the lines that were left out"""


def existing(path: str, what: str) -> str:
    """Return `path` or `path` + ".gz", whichever exists."""
    for candidate in (path, path + ".gz"):
        if os.path.isfile(candidate):
            return candidate
    raise InputError(f"no {what} at {path} (nor {path}.gz): give the path of a file that exists")


def read_bytes(path: str, what: str, member: str = "") -> bytes:
    """The file's content, unpacked: of a .gz, or of the file called `member` in a .zip."""
    if not os.path.isfile(path):
        raise InputError(f"no {what} at {path}: give the path of a file that exists")
    try:
        if path.endswith(".zip") and not member:
            raise InputError(f"{path} is packed: unpack it and give the file that is in it")
        if path.endswith(".zip"):
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if os.path.basename(name) == member]
                if not names:
                    raise InputError(f"{path} holds no {member}; it holds {', '.join(archive.namelist()[:5])}")
                return archive.read(names[0])
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return file.read()
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path}: {error}") from error


def raw_lines(content: bytes, path: str) -> list[bytes]:
    """The lines of a text with their ends, without a byte order mark; split at newlines only."""
    lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    if not lines:
        raise InputError(f"{path} is empty; expected one sentence a line")
    return lines


def decode_lines(content: bytes, path: str) -> list[str]:
    """Lines of UTF-8 text, without their ends and without a byte order mark; split at newlines only."""
    return [decode_line(line, f"{path} line {number}") for number, line in enumerate(raw_lines(content, path), 1)]


def parsed(lines: Sequence, parse: Callable, damaged: Literal["error", "skip"]) -> Parsed:
    """Apply `parse(line, number)` to each line, counted from 1.

    Raises the InputError of the first damaged line, or skips such lines.
    """
    made = Parsed([], [], [])
    for number, line in enumerate(lines, 1):
        try:
            made.values.append(parse(line, number))
            made.numbers.append(number - 1)
        except InputError as error:
            if damaged != "skip":
                raise InputError(f"{error}; or leave out all such lines: --data.on-bad-record skip") from None
            made.complaints.append(str(error))
    return made


def decode_line(line: bytes, location: str) -> str:
    """Decode a line of UTF-8 text and remove its end; `location` is its name in error messages."""
    try:
        return line.decode("utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: not valid UTF-8 (byte {error.object[error.start]:#04x} at {error.start + 1}); "
            "save the file as UTF-8"
        ) from None


def read_lines(path: str, what: str) -> list[str]:
    """The lines of a text file; an empty file is an error."""
    return decode_lines(read_bytes(path, what), path)


def parallel(source_path: str, target_path: str) -> Texts:
    """Read two files with one sentence per line; both must have the same number of lines, none of them empty."""
    source, target = read_lines(source_path, "source file"), read_lines(target_path, "target file")
    check_equal((source_path, target_path), (len(source), len(target)))
    for path, lines in ((source_path, source), (target_path, target)):
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                raise InputError(f"{path} line {number} is empty; remove the pair from both files")
    return Texts(source, target)


def check_equal(paths: Sequence[str], counts: Iterable[int]):
    """Raise InputError unless parallel files have the same number of lines."""
    counts = list(counts)
    if len(set(counts)) > 1:
        (source, target), (of_source, of_target) = paths, counts
        raise InputError(
            f"source and target need equally many lines, but {source} has {of_source} and {target} {of_target}"
        )


def two_columns(line: str, location: str) -> tuple[str, str]:
    """Return the two columns before and after the first tab; a third column is ignored."""
    first, _, rest = line.partition("\t")
    second = rest.partition("\t")[0]
    if not (first.strip() and second.strip()):
        raise InputError(f"{location}: expected `source TAB target`, got {line[:60]!r}")
    return first, second


def columns(content: bytes, path: str) -> Texts:
    """Read a file of two tab-separated columns (a third column is ignored)."""
    source, target = [], []
    for number, line in enumerate(decode_lines(content, path), start=1):
        first, second = two_columns(line, f"{path} line {number}")
        source.append(first)
        target.append(second)
    return Texts(source, target)
