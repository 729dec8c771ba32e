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

from attention_jax.files import data_home, directory_lock, explain_home_errors, temporary_file, write_atomically
from attention_jax.provenance import cores

LONG = 2**26
"""The bytes of files from which on their checksum is kept in the data home."""
BLOCK = 2**23
"""Bytes per read."""


@explain_home_errors()
def derive_file(
    path: str, directory: str, suffix: str, write: Callable[[Path], object], words: Sequence[str] = ()
) -> str:
    """Return a file in `directory` of the data home that `write` makes of the file at `path`.

    It is made once for each `file_stamp` of that file and each choice of `words`, by one process while others wait;
    then those of earlier contents are removed.
    """
    home = os.path.join(data_home(), "attention_jax", directory)
    key = "\0".join([os.path.abspath(path), *words])
    name = os.path.join(home, hashlib.sha256(key.encode()).hexdigest()[:16])
    target = f"{name}-{file_stamp(path)}{suffix}"
    if os.path.exists(target):
        return target
    os.makedirs(home, exist_ok=True)
    with directory_lock(Path(home)):
        older = glob.glob(f"{glob.escape(name)}-*{suffix}")
        if target not in older:
            with temporary_file(Path(target)) as temporary_path:
                write(temporary_path)
            for file in older:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(file)
    return target


def file_stamp(path: str) -> str:
    """The size of a file and the times of the last change of its content and of its entry, by which its content is
    recognized: copying and unpacking may put the former back, not the latter."""
    status = os.stat(path)
    return f"{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}"


def checksum(paths: Callable[[], Iterable[str]], description: str) -> str:
    """Return a checksum of the bytes of files in their order, whatever their names; `paths()` begins again. A file that
    cannot be read has a value that no readable file has.

    It is computed once for each `file_stamp` of them if they are large; a line with the `description` then says so.
    """
    count = size = 0
    stamps = hashlib.sha256()
    for path in paths():
        count += 1
        stamps.update(os.fsencode(os.path.abspath(path)) + b"\0")
        with contextlib.suppress(OSError):
            size += os.path.getsize(path)
            stamps.update(f"{os.stat(path).st_ino}-{file_stamp(path)}\0".encode())
    if size < LONG:
        return _checksum(paths())
    cache_path = Path(data_home(), "attention_jax", "checksums", stamps.hexdigest()[:16])
    if cache_path.exists():
        return cache_path.read_text()
    print(f"reading {description}, {count:,} files, for their checksum (once)", file=sys.stderr)
    computed = _checksum(paths())
    with contextlib.suppress(OSError):  # else it is computed again the next time
        write_atomically(cache_path, computed)
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
