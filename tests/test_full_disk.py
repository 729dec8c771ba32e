"""A disk that is full: one line that names the file, and nothing half written."""

import errno
import os
from pathlib import Path

import pytest

from attention_jax.errors import InputError, explain_errors
from attention_jax.files import temporary_file, write_json

ROOT = Path(__file__).resolve().parents[1]


def test_failed_write_names_file_and_leaves_nothing(tmp_path):
    write_json(tmp_path / "x.json", "old")
    with pytest.raises(InputError, match=r"x.json could not be written \(No space left"), explain_errors():
        write_half(tmp_path / "x.json", errno.ENOSPC)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == '"old"\n'


def write_half(path: Path, number: int):
    """Half a file, then an error as a file that is open raises it: without a name."""
    with temporary_file(path) as temporary_path:
        temporary_path.write_text("half")
        raise OSError(number, os.strerror(number))
