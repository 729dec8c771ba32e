"""`launch.py bench` finds the benchmarks of the checkout that it stands in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_checkout_it_is_one_line(tmp_path):
    shutil.copy(ROOT / "launch.py", tmp_path)
    command = [sys.executable, "launch.py", "bench", "date"]
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "checkout" in done.stderr


def test_an_unknown_benchmark_is_one_line_with_those_that_there_are():
    command = [sys.executable, "launch.py", "bench", "dates"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert done.returncode == 2 and ", ".join(names) in done.stderr and done.stderr.count("\n") == 1
