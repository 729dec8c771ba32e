"""Files in the data home that are made of a user's files, once for each content, and checksums of such files."""

import contextlib
import glob
import hashlib
import itertools
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attention_jax.files import data_home, home_written, one_at_a_time, temporary, write_atomically
from attention_jax.provenance import cores

LONG = 2**26
"""The bytes of files from which on their checksum is kept in the data home."""
BLOCK = 2**23
"""Bytes per read."""


@home_written()
def derived(path: str, directory: str, suffix: str, write: Callable[[Path], object], words: Sequence[str] = ()) -> str:
    """Return a file in `directory` of the data home that `write` makes of the file at `path`.

    It is made once for each `stamp` of that file, and for each choice of `words`, by one process while others wait;
    then those of earlier contents are removed.
    """
    home = os.path.join(data_home(), "attention_jax", directory)
    key = "\0".join([os.path.abspath(path), *words])
    name = os.path.join(home, hashlib.sha256(key.encode()).hexdigest()[:16])
    made = f"{name}-{stamp(path)}{suffix}"
    if os.path.exists(made):
        return made
    os.makedirs(home, exist_ok=True)
    with one_at_a_time(Path(home)):
        older = glob.glob(f"{glob.escape(name)}-*{suffix}")
        if made not in older:
            with temporary(Path(made)) as part:
                write(part)
            for file in older:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(file)
    return made


def stamp(path: str) -> str:
    """The size of a file and the times of the last change of its content and of its entry, by which its content is
    recognized: copying and unpacking may put the former back, not the latter."""
    status = os.stat(path)
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def checksum(paths: Callable[[], Iterable[str]], what: str) -> str:
    """Return a checksum of the bytes of files in their order, whatever their names; `paths()` begins again. A file that
    cannot be read counts as one of its own kind.

    It is computed once for each `stamp` of them if they are large; a line then says so, with `what` they are.
    """
    count = size = 0
    stamps = hashlib.sha256()
    for path in paths():
        count += 1
        stamps.update(os.fsencode(os.path.abspath(path)) + b"\0")
        with contextlib.suppress(OSError):
            size += os.path.getsize(path)
            stamps.update(f"{os.stat(path).st_ino}-{stamp(path)}\0".encode())
    if size < LONG:
        return _checksum(paths())
    kept = Path(data_home(), "attention_jax", "checksums", stamps.hexdigest()[:16])
    if kept.exists():
        return kept.read_text()
    print(f"reading {what}, {count:,} files, for their checksum (once)", file=sys.stderr)
    computed = _checksum(paths())
    with contextlib.suppress(OSError):  # else it is computed again the next time
        write_atomically(kept, computed)
    return computed


def _checksum(paths: Iterable[str]) -> str:
    digits, paths = 0, iter(paths)
    with ThreadPoolExecutor(cores()) as pool:
        while block := list(itertools.islice(paths, 4096)):
            for of_file in pool.map(_file_checksum, block):
                digits = zlib.crc32(of_file.to_bytes(5, "little"), digits)
    return f"{digits:08x}"


def _file_checksum(path: str) -> int:
    digits = 0
    try:
        with open(path if os.path.isfile(path) else os.devnull, "rb", buffering=0) as file:  # a pipe might never end
            while block := file.read(BLOCK):
                digits = zlib.crc32(block, digits)
    except OSError:
        return 2**32
    return digits
