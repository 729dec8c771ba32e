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


def read_json(path: Path):
    """Read a JSON file; InputError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
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
    except ValueError:
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
    with temporary_file(path) as temporary_path:
        temporary_path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """Context with the name of a temporary file, which is renamed to `path` at the end, or removed on failure; makes
    the directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary_path = path.with_name(f"{path.stem}.{os.getpid()}.part{path.suffix}")
    try:
        yield temporary_path
        os.replace(temporary_path, path)
    finally:
        temporary_path.unlink(missing_ok=True)


def make_parent(path: Path, option: str):
    """Create the directory of the file given by `option` before the work begins; InputError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{option} needs a directory that can be written, got {path} ({error.strerror}); give another path"
        ) from error


@contextmanager
def directory_lock(directory: Path, wait: bool = True) -> Iterator[None]:
    """Wait until no other process is within this for the same directory, which must exist; without `wait`, InputError
    if one is. A file system that cannot lock directories, such as NFS, does without."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        with suppress(OSError):
            _lock(handle, directory, wait)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, directory: Path, wait: bool):
    try:
        fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"another process is at work in {directory}: wait until it has ended, or give another directory"
        ) from error
