"""SIGTERM ends every command with 143, wherever it comes."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attention_jax import InputError, cli

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
    "the end of an object": """
class Ended:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
Ended()
""",
    "a thread that orbax abandons": """
from attention_jax.train.checkpoint import _others_unheard
with _others_unheard():
    class Ended:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.01)
    Ended()
""",
    "plain code": "os.kill(os.getpid(), signal.SIGTERM)",
}
AROUND = """
import gc, os, runpy, signal, sys, time
from attention_jax import cli
def bad_moment(words):
    try:
        {}
        time.sleep(30)
    finally:
        print("cleaned up")
code = open("launch.py").read().replace('"list": list_experiments', '"list": bad_moment')
sys.argv = ["launch.py", "list"]
exec(compile(code, "launch.py", "exec"), globals() | {{"__name__": "__main__", "__file__": "launch.py"}})
"""


@pytest.mark.parametrize("place", INSIDE)
def test_sigterm_is_never_lost_and_cleans_up(place):
    code = AROUND.format(INSIDE[place].strip().replace("\n", "\n        "))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=25)
    assert (done.returncode, done.stdout) == (TERMINATED, "cleaned up\n"), done.stderr


def test_a_benchmark_runs_outside_of_the_parser(capsys):
    def benchmark(rounds: int = 3):
        """Measure."""
        print("measuring", file=sys.stderr)
        sys.exit(TERMINATED + rounds)

    call = cli.parse_call(benchmark, ["--rounds", "4"], "bench", "x")
    with pytest.raises(SystemExit) as stop:
        call()
    assert stop.value.code == TERMINATED + 4 and capsys.readouterr().err == "measuring\n"
    with pytest.raises(InputError, match="--rounds.*see launch.py bench x --help"):
        cli.parse_call(benchmark, ["--rounds", "many"], "bench", "x")


@pytest.mark.slow
def test_a_benchmark_ends_at_sigterm_and_keeps_what_it_said():
    command = [sys.executable, "launch.py", "bench", "attention"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        time.sleep(15)  # it has begun to measure
        process.send_signal(signal.SIGTERM)
        _, error = process.communicate(timeout=120)
    assert process.returncode == TERMINATED and "see launch.py bench" not in error
