"""A disk that is full: one line that names the file, and nothing half written."""

import errno
import os
from pathlib import Path

import pytest

from attention_jax.errors import InputError, explained
from attention_jax.files import temporary, write_json

ROOT = Path(__file__).resolve().parents[1]


def test_what_could_not_be_written_is_named_and_gone(tmp_path):
    write_json(tmp_path / "x.json", "old")
    with pytest.raises(InputError, match=r"x.json could not be written \(No space left"), explained():
        filled(tmp_path / "x.json", errno.ENOSPC)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == '"old"\n'


def filled(path: Path, number: int):
    """Half a file, then an error as a file that is open raises it: without a name."""
    with temporary(path) as part:
        part.write_text("half")
        raise OSError(number, os.strerror(number))
