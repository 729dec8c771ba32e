"""Files in the data home: published ones that are downloaded, and those made of a user's files, once for each content;
and checksums of files."""

import contextlib
import glob
import hashlib
import itertools
import os
import shutil
import sys
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from attention_jax.errors import InputError
from attention_jax.files import data_home, directory_lock, explain_home_errors, temporary_file, write_atomically
from attention_jax.provenance import cores

LONG = 2**26
"""The bytes of files from which on their checksum is kept in the data home."""
BLOCK = 2**23
"""Bytes per read."""
TIMEOUT_SECONDS = 30
WAY_AROUND = "get the data elsewhere and give its place with --data.path"


@contextlib.contextmanager
def derive_file(
    paths: Sequence[str], directory: str, suffix: str, words: Sequence[str] = ()
) -> Iterator[tuple[str, Path | None]]:
    """Context with the name of a file in `directory` of the data home that is made of the files at `paths`, and the
    temporary file to make it in, or None if it is there.

    It is made once for each `file_stamp` of those files and each choice of `words`, by one process while others that
    need it wait; then those of earlier contents are removed.
    """
    home = os.path.join(data_home(), "attention_jax", directory)
    key = "\0".join([*map(os.path.abspath, paths), *words])
    name = os.path.join(home, hashlib.sha256(key.encode()).hexdigest()[:16])
    stamp = hashlib.sha256(" ".join(map(file_stamp, paths)).encode()).hexdigest()[:16]
    target = f"{name}-{stamp}{suffix}"
    if os.path.exists(target):
        yield target, None
        return
    with explain_home_errors(), file_lock(name):
        older = glob.glob(f"{glob.escape(name)}-*{suffix}")
        if target in older:
            yield target, None
            return
        with temporary_file(Path(target)) as temporary_path:
            yield target, temporary_path
        for file in older:
            with contextlib.suppress(FileNotFoundError):
                os.remove(file)


@contextlib.contextmanager
def file_lock(path: str) -> Iterator[None]:
    """Wait until no other process is within this for the same file, which need not exist."""
    name = f"{os.path.basename(path)}-{zlib.crc32(os.fsencode(os.path.realpath(path))):08x}"
    directory = Path(data_home(), "attention_jax", "locks", name)  # it stays: removed, it could be locked twice
    directory.mkdir(parents=True, exist_ok=True)
    with directory_lock(directory):
        yield


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


def digest(path: str, algorithm: str = "sha256") -> str:
    """Return the file's hexadecimal digest."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


@explain_home_errors()
def download(url: str, path: str, expected: str) -> str:
    """Download `url` to `path` unless the file exists; return `path`. One process does, while others wait.

    `expected` is the published digest, "sha256:..." or "sha1:...". An interrupted download leaves `path + ".part"`, and
    the next call requests only the rest; a file with a wrong digest is removed.

    Raises:
      InputError: the download failed; the message has a workaround.
    """
    if os.path.exists(path):
        return path
    with file_lock(path):
        if not os.path.exists(path):
            _download(url, path, *expected.split(":"))
    return path


def _download(url: str, path: str, algorithm: str, published: str):
    partial_path = path + ".part"
    os.makedirs(os.path.dirname(path), exist_ok=True)
    print(f"downloading {url}", file=sys.stderr)
    for attempt in range(2):
        try:
            _fetch(url, partial_path)
        except urllib.error.HTTPError as error:
            if error.code != 416 or attempt:
                raise InputError(f"{url} answered {error.code} {error.reason}; {WAY_AROUND}") from error
            # nothing left to send: the part is whole, or belongs to another version
            if digest(partial_path, algorithm) != published:
                os.remove(partial_path)
                continue
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
            raise InputError(f"cannot download {url} ({getattr(error, 'reason', error)}); {WAY_AROUND}") from error
        break
    actual = digest(partial_path, algorithm)
    if actual != published:
        os.remove(partial_path)
        raise InputError(
            f"{url} has {algorithm} {actual[:12]}..., expected {published[:12]}...: "
            f"it was changed or damaged on its way; {WAY_AROUND}"
        )
    os.replace(partial_path, path)


def _fetch(url: str, partial_path: str) -> None:
    """Append the missing bytes of `url` to `partial_path`; a server that cannot resume sends everything again."""
    size = os.path.getsize(partial_path) if os.path.exists(partial_path) else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={size}-"} if size else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as response:
        announced = response.headers.get("Content-Length")
        resumed = response.status == 206
        with open(partial_path, "ab" if resumed else "wb") as file:
            start = file.tell()
            shutil.copyfileobj(response, file, 1 << 20)
            received = file.tell() - start
    if announced is not None and received != int(announced):
        raise ConnectionError(f"the connection ended after {received} of {announced} bytes; run it again to resume")
