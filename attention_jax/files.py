"""Atomic file writes, locks and paths, with the standard library only: a sweep's scheduler does not import JAX."""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attention_jax.errors import InputError


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
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is damaged ({' '.join(str(error).split())}): put it back, or delete it") from error


def read_object(path: Path) -> dict:
    """`read_json` of a file that holds an object."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InputError(f"{path} is damaged (it holds no object): put it back, or delete it")
    return value


def metrics_row(line: str | bytes) -> dict | None:
    """Parse a line of metrics.jsonl, {"step": 3, "train.loss": 0.5}; None if it is damaged or incomplete.

    >>> metrics_row('{"step": 3, "train.loss": 0.5}'), metrics_row('{"step": 3, "tr'), metrics_row("[3]")
    ({'step': 3, 'train.loss': 0.5}, None, None)
    """
    try:
        row = json.loads(line)
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
    return write_atomically(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> Path:
    """Write `text` to a file, which is the old one or the whole new one; make its directory."""
    with temporary(path) as part:
        part.write_text(text, encoding="utf-8")
    return path


@contextmanager
def temporary(path: Path) -> Iterator[Path]:
    """Context with the name of a temporary file, which is renamed to `path` at the end, or removed on failure.

    The directory is created. An OSError without a file name gets that of `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part{path.suffix}")  # a different one for each process
    try:
        yield part
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            error.filename = str(path)
        raise


def make_parent(path: Path, option: str):
    """Create the directory of the file given by `option` before the work begins; InputError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{option} needs a directory that can be written, got {path} ({error.strerror}); give another path"
        ) from error


def closed_home(reason: object) -> InputError:
    """The error of a data home that cannot be written."""
    return InputError(f"cannot write to {data_home()}, where datasets are cached ({reason}); set TFDS_DATA_DIR")


@contextmanager
def home_written() -> Iterator[None]:
    """Context, or decorator, in which an OSError about a file in the data home, or a directory above it, is an
    InputError."""
    try:
        yield
    except OSError as error:
        home, where = os.path.abspath(data_home()), os.path.abspath(str(error.filename))
        if not error.filename or os.path.commonpath([home, where]) not in (home, where):
            raise
        raise closed_home(error.strerror) from error


@contextmanager
def one_at_a_time(directory: Path, wait: bool = True) -> Iterator[None]:
    """Wait until no other process is within this for the same directory, which must exist; without `wait`, InputError
    if one is. A file system that cannot lock does without."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"another process is at work in {directory}: wait until it has ended, or give another directory"
            ) from error
        except OSError:
            pass
        yield
    finally:
        os.close(handle)
