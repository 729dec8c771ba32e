"""Lines of text from files as people have them - plain, packed, in a zip -, with errors that name the line."""

import bz2
import contextlib
import functools
import gzip
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Literal, NamedTuple

from attention_jax.data.pairs import Texts
from attention_jax.errors import InputError

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


class ParsedLines(NamedTuple):
    """The parsed lines of a file."""

    values: list
    numbers: list[int]
    """Line numbers, from 0"""
    complaints: list[str]
    """About the lines that were left out"""


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


def each_line(path: str, description: str) -> Iterator[bytes]:
    """The `raw_lines` of a file of any size, one after the other."""
    with open_unpacked(path, description) as file:
        yield from _lines_in(iter(functools.partial(file.read, BLOCK), b""), path)


def raw_lines(content: bytes, path: str) -> list[bytes]:
    """The lines of a text with their ends; split at newlines only.

    Raises InputError for content that is empty or no text in UTF-8 at all (`TextCheck`).
    """
    return list(_lines_in([content], path))


def _lines_in(blocks: Iterable[bytes], path: str) -> Iterator[bytes]:
    check, lines, tail = TextCheck(path), [], b""
    for block in blocks:
        check.block(block)
        yield from lines  # of the block before: of a file of one block none until all of it is checked
        *lines, tail = (tail + block).split(b"\n")
    check.end()
    if tail not in (b"", MARK.encode()):
        lines.append(tail)
    elif not check.newlines:
        raise InputError(f"{path} is empty; expected one sentence a line")
    yield from lines


def decode_lines(content: bytes, path: str) -> list[str]:
    """Lines of UTF-8 text, without their ends and without byte order marks; split at newlines only."""
    return [decode_line(line, f"{path} line {number}") for number, line in enumerate(raw_lines(content, path), 1)]


def parse_lines(lines: Iterable, parse: Callable, damaged: Literal["error", "skip"]) -> ParsedLines:
    """Apply `parse(line, number)` to each line, counted from 1.

    Raises the InputError of the first damaged line, or skips such lines.
    """
    result = ParsedLines([], [], [])
    for number, value in each_parsed(lines, parse, damaged, result.complaints):
        result.values.append(value)
        result.numbers.append(number)
    return result


def each_parsed(
    lines: Iterable, parse: Callable, damaged: Literal["error", "skip"], complaints: list[str]
) -> Iterator[tuple[int, object]]:
    """Yield the number, from 0, and the value of each line that can be parsed; adds to `complaints` what
    is wrong with a line that is skipped. Raises InputError if all of them would be."""
    usable = False
    for number, line in enumerate(lines, 1):
        try:
            value = parse(line, number)
        except InputError as error:
            if damaged != "skip":
                raise InputError(f"{error}; or leave out all such lines: --data.on-bad-record skip") from None
            complaints.append(str(error))
        else:
            usable = True
            yield number - 1, value
    if complaints and not usable:
        raise InputError(f"none of the {number:,} lines can be used; the first: {complaints[0]}")


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


def read_parallel(source_path: str, target_path: str) -> Texts:
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
    first, _, remainder = line.partition("\t")
    second = remainder.partition("\t")[0]
    if not (first.strip() and second.strip()):
        raise InputError(f"{location}: expected `source TAB target`, got {line[:60]!r}")
    return first, second


def read_columns(content: bytes, path: str) -> Texts:
    """Read a file of two tab-separated columns (a third column is ignored)."""
    source, target = [], []
    for number, line in enumerate(decode_lines(content, path), start=1):
        first, second = two_columns(line, f"{path} line {number}")
        source.append(first)
        target.append(second)
    return Texts(source, target)
