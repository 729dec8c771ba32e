"""Lines of text from files as people have them, packed or in a zip, with errors that name the line."""

import bz2
import contextlib
import functools
import gzip
import lzma
import os
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from typing import BinaryIO

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
TO_UTF8 = "save the file as UTF-8, one of Excel or Windows by iconv -f cp1252 -t utf-8 FILE > NEW"
"""What to do about a file whose bytes are not UTF-8: left out, its lines with umlauts would be missing."""
BLOCK = 2**23
"""Bytes per read of a file that is read line by line."""


def to_nfc(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), in which an accented letter is spelled in one way.

    >>> to_nfc("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


class Rereadable:
    """Texts that are read from their file each time that they are iterated."""

    def __init__(self, read: Callable[[], Iterator]):
        self.read = read

    def __iter__(self) -> Iterator:
        return self.read()


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


def each_line(path: str, description: str, member: str = "") -> Iterator[bytes]:
    """The lines of a file of any size, one after the other, without newlines; split at newlines only.

    Raises InputError for a file that is empty or no text in UTF-8 at all (`_line_blocks`).
    """
    previous = []
    with open_unpacked(path, description, member) as file:
        for lines in _line_blocks(iter(functools.partial(file.read, BLOCK), b""), path):
            yield from previous  # of the block before: of a file of one block none until all of it is checked
            previous = lines
    yield from previous


def _line_blocks(blocks: Iterable[bytes], path: str) -> Iterator[list[bytes]]:
    """Yield the lines that end in each block of a text, and at last one without an end.

    Raises InputError for what makes no line usable, even if damaged ones are to be skipped: archives, other encodings,
    NUL bytes, and lines that end in carriage returns, as those of old Macs do; a .csv may have them in quotes.
    """
    newlines, returns, tail = 0, 0, None
    for block in blocks:
        if tail is None:
            _check_beginning(block, path)
        if b"\0" in block:
            line = 1 + newlines + block.count(b"\n", 0, block.index(b"\0"))
            raise InputError(
                f"{path} line {line} has a NUL byte, which is never text: the file is UTF-16, not UTF-8, or is "
                "damaged or no text file; save it as UTF-8"
            )
        newlines += block.count(b"\n")
        returns += block.count(b"\r") - block.count(b"\r\n")
        *lines, tail = ((tail or b"") + block).split(b"\n")
        yield lines
    if returns > newlines and form_of(path) != ".csv":
        raise InputError(
            f"{path} has {returns} carriage returns and {newlines} newlines: are its line ends those of an old Mac? "
            "Save it with newlines at the ends of lines"
        )
    if tail not in (None, b"", MARK.encode()):
        yield [tail]
    elif not newlines:
        raise InputError(f"{path} is empty; expected one sentence a line")


def _check_beginning(content: bytes, path: str):
    """Raise InputError if the content of a file is packed, UTF-16 or UTF-32."""
    if content.startswith(OTHER_MARKS):
        raise InputError(f"{path} is UTF-{32 if bytes(2) in content[:4] else 16}, not UTF-8: save it as UTF-8")
    for suffix, (_, beginning) in PACKED.items():
        if re.match(beginning, content):
            raise InputError(f"{path} is packed: unpack it, or give its name the ending {suffix}")
    for program, beginning in OTHERS_PACKED.items():
        if re.match(beginning, content):
            raise InputError(f"{path} is packed ({program}): unpack it and give the file that is in it")
    if content.startswith((b"PK\3\4", b"PK\5\6", b"PK\7\x08")):
        raise InputError(f"{path} is a zip archive or an office document: save it as a text file in UTF-8")


def stream_lines(file: BufferedIOBase, name: str) -> Iterator[list[str]]:
    """Yield the lines of a text as they arrive in a pipe, decoded; errors name the file `name` (`each_line`)."""
    number = 0
    for lines in _line_blocks(iter(lambda: file.read1(2**16), b""), name):
        yield [decode_line(line, f"{name} line {number + i}") for i, line in enumerate(lines, 1)]
        number += len(lines)


def decode_line(line: bytes, location: str) -> str:
    """Decode a line of UTF-8 text and remove its end and byte order marks; `location` is its name in error messages."""
    try:
        return line.decode("utf-8").rstrip("\r\n").replace(MARK, "")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{location}: not valid UTF-8 (byte {error.object[error.start]:#04x} at {error.start + 1}); {TO_UTF8}"
        ) from None


def read_lines(path: str, description: str) -> list[str]:
    """The lines of a text file without their ends and without byte order marks; InputError as in `each_line`."""
    return [decode_line(line, f"{path} line {number}") for number, line in enumerate(each_line(path, description), 1)]


def form_of(path: str) -> str:
    """Return the suffix of a file's name in lower case, of a packed file that before it.

    >>> form_of("A.TSV.GZ"), form_of("a.txt")
    ('.tsv', '.txt')
    """
    return suffix_of(os.path.splitext(path)[0] if suffix_of(path) in PACKED else path)
