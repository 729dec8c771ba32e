"""A signal ends every command with 128 and its number, wherever it comes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from attention_jax import catalog
from attention_jax.cli import command_options
from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory, lifecycle
from attention_jax.signals import Interrupt

ROOT = Path(__file__).resolve().parents[1]
TERMINATED = 128 + signal.SIGTERM
INSIDE = {
    "a callback of the garbage collector": """
def callback(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
gc.callbacks.append(callback)
gc.collect()
""",
    "a thread that orbax abandons": """
from attention_jax.train.checkpoint import _suppress_thread_errors
with _suppress_thread_errors():
    class Ended:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
    Ended()
""",
    "plain code": "os.kill(os.getpid(), signal.SIGTERM)",
}
AROUND = """
import gc, os, signal, sys, time
from attention_jax.cli import commands
def bad_moment(words):
    try:
        {}
        time.sleep(30)
    finally:
        print("cleaned up")
commands.COMMANDS["list"] = bad_moment
sys.argv = ["launch.py", "list"]
commands.run()
"""


def test_nohup_keeps_its_meaning():
    old_handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt() as interrupt:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupt.requested
            os.kill(os.getpid(), signal.SIGUSR1)
            assert interrupt.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, old_handler)


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize(
    "name, place",
    [
        ("SIGHUP", "plain code"),
        pytest.param("SIGTERM", "a callback of the garbage collector", marks=pytest.mark.slow),
        pytest.param("SIGUSR1", "a thread that orbax abandons", marks=pytest.mark.slow),
    ],
)
def test_a_signal_is_never_lost_and_cleans_up(name, place):
    code = AROUND.format(INSIDE[place].strip().replace("SIGTERM", name).replace("\n", "\n        "))
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout) == (128 + signal.Signals[name], "cleaned up\n"), result.stderr


def test_a_benchmark_runs_outside_of_the_parser(capsys):
    def benchmark(rounds: int = 3):
        """Measure."""
        print("measuring", file=sys.stderr)
        sys.exit(TERMINATED + rounds)

    call = command_options.parse_call(benchmark, ["--rounds", "4"], "bench", "x")
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == TERMINATED + 4 and capsys.readouterr().err == "measuring\n"
    with pytest.raises(InputError, match="--rounds.*see launch.py bench x --help"):
        command_options.parse_call(benchmark, ["--rounds", "many"], "bench", "x")


def test_a_training_stopped_while_it_reads_leaves_nothing(tmp_path, monkeypatch):
    def raise_sigterm(*_, **__):
        raise SystemExit(TERMINATED)

    config = catalog.load_experiment("date_luong").smoke()
    monkeypatch.setattr("attention_jax.tasks.build", raise_sigterm)
    (tmp_path / "mine").mkdir()
    for directory in (tmp_path / "runs" / "dates" / "001", tmp_path / "mine"):
        with pytest.raises(SystemExit):
            lifecycle.start(config, directory, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"], "a directory of the user's is kept"
    monkeypatch.undo()
    monkeypatch.setattr("attention_jax.train.loop.train_one", raise_sigterm)
    for resume in (False, True):
        with pytest.raises(SystemExit):
            lifecycle.start(config, tmp_path / "runs" / "dates", resume=resume, quiet=True)
    assert run_directory.read_config(tmp_path / "runs" / "dates") == config


def test_second_interrupt_ends_at_once():
    code = """
import os, signal, time
from attention_jax.signals import Interrupt
with Interrupt() as interrupt:
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGINT)
    print(interrupt.requested, flush=True)
    os.kill(os.getpid(), signal.SIGINT)
    print("goes on")
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "True\n", "")
