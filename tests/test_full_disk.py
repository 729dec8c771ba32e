"""A disk that is full while data are prepared: one line that names the file or the place, and nothing half written.

A limit on the size of the files of a process stands for the disk where the test may not mount a small one.
"""

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax import InputError
from attention_jax.errors import explained
from attention_jax.files import whole, write_json

ROOT = Path(__file__).resolve().parents[1]


def limited():
    """In a new process: no file may be longer than 100 kB, and to try is an OSError."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def parts(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and path.name != ".lock"]


def test_what_could_not_be_written_is_named_and_gone(tmp_path):
    write_json(tmp_path / "x.json", "old")
    with pytest.raises(InputError, match=r"x.json could not be written \(No space left"), explained():
        filled(tmp_path / "x.json", errno.ENOSPC)
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"] and (tmp_path / "x.json").read_text() == '"old"\n'


def filled(path: Path, number: int):
    """Half a file, then an error as a file that is open raises it: without a name."""
    with whole(path) as part:
        part.write_text("half")
        raise OSError(number, os.strerror(number))


PREPARED = {
    "a data set": "date_luong --data.examples 20000",
    "an index of lines": "translate_files --data.stream always --data.tsv-file {pairs} --train.max-steps 1",
}


@pytest.mark.parametrize("what", PREPARED)
def test_a_disk_that_is_full_while_data_are_prepared_leaves_nothing(tmp_path, what):
    (tmp_path / "pairs.tsv").write_text("".join(f"{i} a b\t{i} c\n" for i in range(20_000)))
    words = PREPARED[what].format(pairs=tmp_path / "pairs.tsv").split()
    command = [sys.executable, str(ROOT / "launch.py"), "train", *words, "--out", str(tmp_path / "runs" / "x")]
    environment = os.environ | {"TFDS_DATA_DIR": str(tmp_path / "cache"), "JAX_ENABLE_COMPILATION_CACHE": "false"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, preexec_fn=limited
    )
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and last.startswith("error: ") and str(tmp_path / "cache") in last, done.stderr
    assert "Traceback" not in done.stderr
    assert not parts(tmp_path / "cache") and not (tmp_path / "runs").exists()
