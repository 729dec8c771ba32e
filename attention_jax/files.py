"""Atomic file writes, locks and paths, with the standard library only: a sweep's scheduler does not import JAX."""

import fcntl
import json
import math
import os
import shutil
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from attention_jax.errors import InputError

LOCK = ".lock"
"""The file that is locked where directories cannot be."""
NOTE_SECONDS = 1.0
"""Seconds of waiting for another process after which a note says so."""


def data_home() -> str:
    """Return the cache directory of datasets: `TFDS_DATA_DIR`, by default ~/tensorflow_datasets (read at each call)."""
    return os.path.expanduser(os.environ.get("TFDS_DATA_DIR", os.path.join("~", "tensorflow_datasets")))


def is_utf8(text: str) -> bool:
    """Whether `text` can be written as UTF-8: a command line or a path may have bytes that cannot.

    >>> is_utf8("é"), is_utf8(chr(0xDCE9))
    (True, False)
    """
    return text == text.encode(errors="replace").decode()


def check_regular(path: Path):
    """Raise InputError for a pipe, a socket or a device, from which reading might never end; missing files pass."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path} must be a file; it is a directory, a pipe or a device: put the file back")


def read_json(path: Path):
    """Read a file of `write_json`; InputError if it is damaged."""
    check_regular(path)
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({' '.join(str(error).split())}): put it back, or delete it") from error


def has_keys(path: Path, keys: Iterable[str]) -> bool:
    """Whether a file holds a JSON object with these keys: it is of this package, whatever its version."""
    with suppress(OSError, ValueError, RecursionError):
        value = json.loads(path.read_text(encoding="utf-8"))
        return isinstance(value, dict) and {*keys} <= value.keys()
    return False


def read_object(path: Path) -> dict:
    """`read_json` of a file that holds an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged (it holds no object): put it back, or delete it")
    return value


def to_json(value, indent: int | None = None) -> str:
    """Return `value` as JSON, which has neither NaN nor infinities: in an object they become null, and its entry
    "not_finite" has their values by their places, as JSON pointers (RFC 6901).

    >>> to_json({"step": 3, "train.loss": float("nan")})
    '{"step": 3, "train.loss": null, "not_finite": {"/train.loss": "NaN"}}'
    >>> from_json(to_json({"values": [1.0, float("-inf")]}))
    {'values': [1.0, -inf]}
    """
    options = {"indent": indent, "ensure_ascii": False, "allow_nan": False}
    try:
        return json.dumps(value, **options)
    except ValueError:
        return json.dumps(replace_numbers(value), **options)


def from_json(text: str | bytes):
    """Parse JSON of `to_json`; ValueError if it is damaged."""
    return restore_numbers(json.loads(text))


def replace_numbers(value: dict) -> dict:
    """Return the JSON values that `to_json` writes."""
    places: dict[str, str] = {}
    replaced = _replace_numbers(value, "", places)
    return {**replaced, "not_finite": places} if places else replaced


def _replace_numbers(value, pointer: str, places: dict[str, str]):
    """Replace numbers that are not finite by None, and add them to `places`."""
    if isinstance(value, float) and not math.isfinite(value):
        places[pointer] = json.dumps(float(value))  # NaN, Infinity or -Infinity
        return None
    if isinstance(value, Mapping):
        escape_pointer = lambda name: str(name).replace("~", "~0").replace("/", "~1")
        return {name: _replace_numbers(x, f"{pointer}/{escape_pointer(name)}", places) for name, x in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_numbers(x, f"{pointer}/{index}", places) for index, x in enumerate(value)]
    return value


def restore_numbers(value):
    """Return parsed JSON with the numbers that its entry "not_finite" has; ValueError if that is damaged."""
    if not isinstance(value, dict) or "not_finite" not in value:
        return value
    key = lambda place, name: int(name) if isinstance(place, list) else name
    try:
        for pointer, number in value.pop("not_finite").items():
            *parents, last = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
            place = value
            for name in parents:
                place = place[key(place, name)]
            if place[key(place, last)] is not None:
                raise LookupError(pointer)
            place[key(place, last)] = float(number)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError(f'its "not_finite" is wrong: {type(error).__name__} {error}') from error
    return value


def metrics_row(line: str | bytes) -> dict | None:
    """Parse a line of metrics.jsonl, {"step": 3, "train.loss": 0.5}; None if it is damaged or incomplete.

    >>> metrics_row('{"step": 3, "train.loss": 0.5}'), metrics_row('{"step": 3, "tr'), metrics_row("[3]")
    ({'step': 3, 'train.loss': 0.5}, None, None)
    """
    try:
        row = from_json(line)
    except (ValueError, RecursionError):
        return None
    numbers = isinstance(row, dict) and all(isinstance(value, int | float) for value in row.values())
    return row if numbers and "step" in row and ("epoch" in row or "seconds" not in row) else None


def is_of_attention(row: dict) -> bool:
    """Whether a line of metrics.jsonl has the statistics of `--train.log-attention`, one number for each head.

    >>> is_of_attention({"step": 3, "attention.encoder.0.entropy": 1.5}), is_of_attention({"step": 3})
    (True, False)
    """
    return any(name.startswith("attention.") for name in row)


def write_json(path: Path, value) -> Path:
    """Write `value` so that the file is either the old one or the whole new one, never a half; make its directory."""
    return write_atomically(path, to_json(value, indent=1) + "\n")


def write_atomically(path: Path, text: str) -> Path:
    """Write `text` to a file, which is the old one or the whole new one; make its directory."""
    with temporary_file(path) as temporary_path:
        temporary_path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Context with the name of a temporary file or directory, which is renamed to `path` at the end, or removed on
    failure.

    The directory is created, and removed on failure if it was. A symbolic link is followed, and a device or a pipe is
    written to. An OSError without a file name gets the name of `path`.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        yield path
        return
    path = Path(os.path.realpath(path))
    fresh = _make_parents(path)
    name = f"{zlib.crc32(os.fsencode(path.name)):08x}.{os.getpid()}.part"  # of this file and process, and short
    temporary_path = path.with_name(name + path.suffix)
    try:
        yield temporary_path
        os.replace(temporary_path, path)
    except BaseException as error:
        with suppress(OSError):
            shutil.rmtree(temporary_path) if temporary_path.is_dir() else temporary_path.unlink(missing_ok=True)
            remove_empty(fresh)
        if isinstance(error, OSError) and error.filename in (None, str(temporary_path)):
            error.filename = str(path)
        raise


def missing(directory: Path) -> list[Path]:
    """Return which of `directory` and its parents do not exist, the innermost first.

    >>> missing(Path("/"))
    []
    """
    return [path for path in (directory, *directory.parents) if not path.exists()]


def _make_parents(path: Path) -> list[Path]:
    """Create the directories that a file lies in; return those that were not there."""
    fresh = missing(path.parent)
    path.parent.mkdir(parents=True, exist_ok=True)
    return fresh


def remove_empty(directories: list[Path]):
    """Remove directories, the innermost first, up to one that another process has filled."""
    with suppress(OSError):
        for directory in directories:
            directory.rmdir()


def directory_removed_error(directory: Path) -> InputError:
    """The error of a run or a sweep whose directory is no longer there."""
    return InputError(
        f"{directory} was removed or replaced while it was written to, so the work there has stopped: "
        "start it again, with another --out DIR if the directory is of something else now"
    )


def check_output(path: Path | str, kind: str, option: str = "--out", force: bool = False, entries=frozenset()):
    """Raise InputError if a "file" or a "directory" must not be written at `path`, a place that a user has named.

    A file must not exist, unless `force` replaces it or it is a device or a pipe. A directory must not exist, or have
    only `entries`. Symbolic links are followed. Nothing is made: call it before the work begins.
    """
    path, has_slash, place = Path(path), os.fspath(path).endswith(os.sep), Path(os.path.realpath(path))
    above = next((parent for parent in place.parents if parent.exists()), place)
    written = path if path.is_dir() else above
    foreign = sorted({*os.listdir(path)} - entries) if kind == "directory" and path.is_dir() else []
    if not is_utf8(str(place)):
        problem = "it must be UTF-8"
    elif (home := os.path.expanduser(path)) != os.fspath(path):
        problem = f"the shell did not replace its ~, write {home}"
    elif kind == "file" and (path.is_dir() or has_slash):
        problem = "it must be a file, and is a directory"
    elif kind == "directory" and path.exists() and not path.is_dir():
        problem = "it must be a directory, and is a file"
    elif path.is_file() and not force:
        problem = "it exists already, and --force replaces it"
    elif foreign:
        problem = f"it must be new or empty, and has {foreign[0]} ({len(foreign)} of something else)"
    elif path.exists() and not path.is_file() and not path.is_dir():
        return
    elif not (written.is_dir() and os.access(written, os.W_OK | os.X_OK)):
        problem = f"{written} is not a directory that can be written"
    else:
        return
    raise InputError(f"{option} cannot be {path}: {problem}; give another path")


def check_output_files(force: bool, **paths: str):
    """`check_output` of the files that options of a command name, such as out="fig.png"; "" is none. That their
    directories can be made is tried.

    Raises InputError also for two of the same name, and for `force` without any.
    """
    places = {f"--{name}": path for name, path in paths.items() if path}
    for option, path in places.items():
        check_output(path, "file", option, force)
        try:
            remove_empty(_make_parents(Path(path)))
        except OSError as error:
            raise InputError(f"{option} cannot be {path} ({error.strerror}): give another path") from error
    if len({os.path.realpath(path) for path in places.values()}) < len(places):
        raise InputError(f"{' and '.join(places)} need different files, got {' and '.join(places.values())}")
    if force and not places:
        raise InputError(f"--force replaces the file of {' or '.join(f'--{name}' for name in paths)}: leave it out")


def home_write_error(reason: object) -> InputError:
    """The error of a data home that cannot be written."""
    return InputError(f"cannot write to {data_home()}, where datasets are cached ({reason}); set TFDS_DATA_DIR")


@contextmanager
def explain_home_errors() -> Iterator[None]:
    """Context, or decorator, in which an OSError about a file in the data home, or a directory above it, is an
    InputError."""
    try:
        yield
    except OSError as error:
        home, where = os.path.abspath(data_home()), os.path.abspath(str(error.filename))
        if not error.filename or os.path.commonpath([home, where]) not in (home, where):
            raise
        raise home_write_error(error.strerror) from error


@contextmanager
def directory_lock(directory: Path, wait: bool = True) -> Iterator[None]:
    """Wait until no other process is within this for the same directory, which must exist; without `wait`, InputError
    if one is.

    NFS locks no directories, but a file in them. A file system that locks neither does without; a note says so, and
    another one that this is waiting.
    """
    handles = [os.open(directory, os.O_RDONLY)]
    try:
        try:
            _lock(handles[0], directory, wait)
        except OSError:
            try:
                handles.append(os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o666))
                _lock(handles[1], directory, wait)
            except OSError as error:
                with suppress(OSError):
                    (directory / LOCK).unlink()
                _tell_of_no_locks(str(directory), error.strerror)
        yield
    finally:
        for handle in handles:
            os.close(handle)


def _lock(handle: int, directory: Path, wait: bool):
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        if not wait:
            raise InputError(
                f"another process is at work in {directory}: wait until it has ended, or give another directory"
            ) from error
        note = f"waiting for another process, which is at work in {directory}"
        timer = threading.Timer(NOTE_SECONDS, print, (note,), {"file": sys.stderr, "flush": True})
        timer.daemon = True
        timer.start()
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        finally:
            timer.cancel()


@cache
def _tell_of_no_locks(directory: str, reason: str):
    print(
        f"note: the file system of {directory} has no locks ({reason}): let one process at a time work there",
        file=sys.stderr,
    )
