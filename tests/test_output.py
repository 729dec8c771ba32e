"""Standard output that its reader has left, as in `launch.py list | head`."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax.cli import command_options

ROOT = Path(__file__).resolve().parents[1]
TINY = (
    "--data.examples",
    "600",
    "--model.hidden-size",
    "8",
    "--model.embed-size",
    "4",
    "--train.total-epochs",
    "3",
    "--optim.warmup-steps",
    "9",
)


def launch(words: str, output: str) -> subprocess.CompletedProcess:
    """`launch.py WORDS` with the redirection `output` of the shell, as in "| true"."""
    command = f'"$@" {output}; exit ${{PIPESTATUS[0]}}'
    run = [sys.executable, "launch.py", *words.split()]
    return subprocess.run(["bash", "-c", command, "bash", *run], cwd=ROOT, capture_output=True, text=True)


def test_a_reader_that_leaves_ends_a_command_without_a_traceback():
    result = launch("--help", "| true")
    assert result.returncode in (0, 128 + signal.SIGPIPE) and not result.stderr


def test_signal_in_parser_is_not_option_error():
    def raise_sigterm(words):
        raise SystemExit(128 + signal.SIGTERM)

    with pytest.raises(SystemExit) as stop, pytest.MonkeyPatch.context() as patch:
        patch.setattr(command_options.tyro, "cli", lambda *_, **__: raise_sigterm(()))
        command_options.parse(command_options.Evaluate, ["x"])
    assert stop.value.code == 128 + signal.SIGTERM


TRAIN = f"train date_luong {' '.join(TINY)} --out OUT"


@pytest.mark.slow
def test_a_reader_that_leaves_does_not_end_a_training(tmp_path):
    result = launch(TRAIN.replace("OUT", str(tmp_path / "t")), "| head -n 1")
    assert "Traceback" not in result.stderr and "Exception ignored" not in result.stderr, result.stderr
    assert (tmp_path / "t" / "result.json").exists()
