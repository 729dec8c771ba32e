"""One process at a time works in a directory, also on a file system that locks only files, or nothing."""

import errno
import fcntl
import os
import stat
import threading
from pathlib import Path

import pytest

from attention_jax import files
from attention_jax.data.cache import derive_file
from attention_jax.errors import InputError
from attention_jax.files import directory_lock

FLOCK = fcntl.flock


def no_locks(number):
    """flock of a file system without them."""

    def flock(handle, operation):
        raise OSError(number, os.strerror(number))

    return flock


def locks_of_files(handle, operation):
    """flock of NFS, which needs a handle that can be written to."""
    if stat.S_ISDIR(os.fstat(handle).st_mode):
        raise OSError(errno.EBADF, "Bad file descriptor")
    FLOCK(handle, operation)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_data_without_file_locks_with_note(number, tmp_path, monkeypatch, capsys):
    """The cache of datasets can be written: it is not to be blamed."""
    files._tell_of_no_locks.cache_clear()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(fcntl, "flock", no_locks(number))
    (tmp_path / "text").write_text("abc")
    with derive_file([str(tmp_path / "text")], "tokens", ".tokens") as (path, temporary_path):
        temporary_path.write_text("made")
    assert Path(path).read_text() == "made"
    assert capsys.readouterr().err.count(f"has no locks ({os.strerror(number)})") == 1
    assert not list((tmp_path / "home").rglob(files.LOCK))


@pytest.mark.parametrize("flock", [FLOCK, locks_of_files], ids=["directories", "files alone"])
def test_lock_excludes_other_processes(flock, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(fcntl, "flock", flock)
    refused = pytest.raises(InputError, match="another process is at work")
    with directory_lock(tmp_path), refused, directory_lock(tmp_path, wait=False):
        pass
    with directory_lock(tmp_path, wait=False):
        assert not capsys.readouterr().err


def test_missing_directory_is_not_lockless(tmp_path):
    with pytest.raises(FileNotFoundError), directory_lock(tmp_path / "absent"):
        pass


def test_waiting_is_told_after_a_second(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "NOTE_SECONDS", 0.05)
    with directory_lock(tmp_path):
        waiting = threading.Thread(target=lambda: directory_lock(tmp_path).__enter__())
        waiting.start()
        waiting.join(0.5)
        assert waiting.is_alive() and capsys.readouterr().err == (
            f"waiting for another process, which is at work in {tmp_path}\n"
        )
    waiting.join()


def test_other_files_are_made_meanwhile(tmp_path, monkeypatch, capsys):
    """Each file of tokens has its own lock: one that takes hours, or was stopped, holds up no other."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    for name in "ab":
        (tmp_path / name).write_text(name)
    with derive_file([str(tmp_path / "a")], "tokens", ".tokens") as (_, first):
        first.write_text("made")
        make = lambda: derive_file([str(tmp_path / "b")], "tokens", ".tokens").__enter__()[1].touch()
        other = threading.Thread(target=make, daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive()
