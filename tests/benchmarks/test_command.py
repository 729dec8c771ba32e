"""`launch.py bench` finds the benchmarks of the checkout that it stands in."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from attention_jax import catalog
from attention_jax.cli import commands
from attention_jax.errors import InputError
from attention_jax.report.style import fingerprint

ROOT = Path(__file__).resolve().parents[2]


def test_without_a_checkout_it_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(catalog, "ROOT", tmp_path / "experiments")
    with pytest.raises(InputError, match="bench needs a checkout") as error:
        commands.main(["bench", "date"])
    assert "\n" not in str(error.value)


def test_unknown_benchmark_error_lists_valid_names():
    command = [sys.executable, "launch.py", "bench", "dates"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    names = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert result.returncode == 2 and ", ".join(names) in result.stderr and result.stderr.count("\n") == 1


def test_attention_figure_matches_recorded_rows():
    results = ROOT / "experiments" / "results"
    with Image.open(results / "bench_attention.png") as picture:
        assert picture.text["Inputs"] == fingerprint(json.loads((results / "bench_attention.json").read_text()))
