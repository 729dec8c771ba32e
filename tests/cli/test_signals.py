"""SIGTERM ends every command with 143, wherever it comes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_jax.claims import catalog
from attention_jax.cli import command_options
from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory, lifecycle
from attention_jax.train.loop import Interrupt

ROOT = Path(__file__).resolve().parents[2]
TERMINATED = 128 + signal.SIGTERM
FRESH = {"JAX_ENABLE_COMPILATION_CACHE": "false"}
INSIDE = {
    "a callback of the garbage collector": """
def callback(phase, info):
    gc.callbacks.clear()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.01)
gc.callbacks.append(callback)
gc.collect()
""",
    "the end of an object": """
class Ended:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
Ended()
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


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("name", ["SIGHUP", "SIGUSR1"])
def test_termination_signals_clean_up(name):
    code = AROUND.format(INSIDE["plain code"].replace("SIGTERM", name))
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout) == (128 + signal.Signals[name], "cleaned up\n"), result.stderr


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


PLAIN = "plain code"


@pytest.mark.parametrize("place", [PLAIN, *(pytest.param(p, marks=pytest.mark.slow) for p in INSIDE if p != PLAIN)])
def test_sigterm_is_never_lost_and_cleans_up(place):
    code = AROUND.format(INSIDE[place].strip().replace("\n", "\n        "))
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert (result.returncode, result.stdout) == (TERMINATED, "cleaned up\n"), result.stderr


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


IN_C = """
import hashlib, os, signal, threading
from attention_jax.cli import signals
signals.GRACE = 1.0
signals.end_on_sigterm()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
hashlib.pbkdf2_hmac("sha256", b"key", b"salt", 100_000_000)  # a minute in which this thread runs no Python
"""
COMPILING = """
import os, signal, sys, threading, time
from attention_jax.cli import signals
signals.end_on_sigterm()
import jax, jax.numpy as jnp
def long(x):
    for _ in range(2000):
        x = jnp.sin(x @ x)
    return x
lowered = jax.jit(long).lower(jnp.ones((64, 64)))
def terminate():
    time.sleep(1)
    print("sent", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
threading.Thread(target=terminate).start()
try:
    lowered.compile()
finally:
    print("cleaned up")
"""


@pytest.mark.slow
def test_sigterm_ends_a_process_that_runs_no_python():
    start_times = os.times()
    result = subprocess.run([sys.executable, "-c", IN_C], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert result.returncode == TERMINATED and "--resume" in result.stderr
    assert os.times().children_user - start_times.children_user < 20  # computing time: the machine may be busy


@pytest.mark.slow
def test_sigterm_during_a_short_compilation_cleans_up():
    """Within the grace period, of which the test above has the end."""
    command = [sys.executable, "-c", COMPILING]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=os.environ | FRESH) as process:
        assert process.stdout.readline() == "sent\n"
        output = process.stdout.read()  # not communicate(), which loses what readline() has read ahead
        assert (process.wait(), output) == (TERMINATED, "cleaned up\n")


@pytest.mark.slow
def test_benchmark_keeps_output_on_sigterm():
    command = [sys.executable, "launch.py", "bench", "attention"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(15)  # it has begun to measure
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=120)
    assert process.returncode == TERMINATED and "see launch.py bench" not in error


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
