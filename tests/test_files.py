"""Files: what is written comes back, no error of a disk leaves half a file, one process at a time works."""

import errno
import math
import os
from pathlib import Path

import pytest

from attention_jax.errors import InputError, explain_errors
from attention_jax.files import directory_lock, metrics_row, read_json, temporary_file, write_json


def test_numbers_that_are_not_finite_come_back(tmp_path):
    values = {"test.loss": math.inf, "history": [-math.inf, 0.5, None]}
    assert read_json(write_json(tmp_path / "x.json", values)) == values
    row = metrics_row('{"step": 1, "train.loss": NaN}')
    assert math.isnan(row["train.loss"]) and metrics_row('{"step": 1, "train.loss": null}') is None


@pytest.mark.parametrize("text", ["{", "", "\x00"])
def test_damaged_json_is_one_line(text, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match="x.json is damaged"):
        read_json(tmp_path / "x.json")


def test_failed_write_names_file_and_leaves_nothing(tmp_path):
    write_json(tmp_path / "x.json", "old")
    with pytest.raises(InputError, match=r"could not be .*written \(No space left"), explain_errors():
        write_half(tmp_path / "x.json")
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == '"old"\n'


def write_half(path: Path):
    """Half a file, then an error as a file that is open raises it on a full disk: without a name."""
    with temporary_file(path) as temporary_path:
        temporary_path.write_text("half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "number, advice",
    [
        (errno.ENOSPC, "free disk space"),
        (errno.EDQUOT, "free disk space"),
        (errno.EACCES, "make it accessible"),
        (errno.EROFS, "--resume if it was training"),
    ],
)
def test_file_system_errors_name_the_file(number, advice):
    with pytest.raises(InputError, match=rf"checkpoints/4 .*\({os.strerror(number)}\): .*{advice}"), explain_errors():
        raise OSError(number, os.strerror(number), "checkpoints/4")


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EBADF, errno.EPIPE])
def test_a_defect_keeps_its_traceback(number):
    with pytest.raises(OSError, match=os.strerror(number)) as raised, explain_errors():
        raise OSError(number, os.strerror(number), "ours.json")
    assert not isinstance(raised.value, InputError)


def test_lock_excludes_other_processes(tmp_path):
    refused = pytest.raises(InputError, match="another process is at work")
    with directory_lock(tmp_path), refused, directory_lock(tmp_path, wait=False):
        pass
    with directory_lock(tmp_path, wait=False):
        pass
    with pytest.raises(FileNotFoundError), directory_lock(tmp_path / "absent"):
        pass
