"""The way from the command line to an update of the parameters, as docs/design.md lists it."""

import re
import runpy
import sys
import traceback
from pathlib import Path

import optax
import pytest

from attention_jax.cli import commands

ROOT = Path(__file__).resolve().parents[2]
TRAIN = "train date_luong --data.examples 300 --model.hidden-size 4 --model.embed-size 4 --train.batch-size 30"


class Reached(Exception):
    """Carries the calls of this repository, [(file, function), ...], outermost first."""


def calls() -> list[tuple[str, str]]:
    """The present calls of functions of this repository, made by launch.py."""
    frames = [(Path(frame.filename), frame.name) for frame in traceback.extract_stack()]
    package_calls = [(path.relative_to(ROOT).as_posix(), name) for path, name in frames if path.is_relative_to(ROOT)]
    package_calls = package_calls[package_calls.index(("launch.py", "<module>")) + 1 :]
    return [(path, name) for path, name in package_calls if not path.startswith("tests/")]


def recorder() -> optax.GradientTransformation:
    """An optimizer whose first update ends the training."""

    def update(updates, state, params=None):
        raise Reached(calls())

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def trace_launch(monkeypatch, directory: Path, *options: str) -> list[tuple[str, str]]:
    """The calls from launch.py to where the training is ended."""
    words = ["launch.py", *TRAIN.split(), "--out", str(directory / "run"), *options]
    monkeypatch.setattr(sys, "argv", words)
    monkeypatch.setattr(commands, "end_on_signals", lambda: None)
    with pytest.raises(Reached) as reached:
        runpy.run_path(str(ROOT / "launch.py"), run_name="__main__")
    [traced_calls] = reached.value.args
    return traced_calls


def test_design_lists_the_calls_to_an_update(tmp_path, monkeypatch):
    traced_calls = trace_launch(monkeypatch, tmp_path, "--optim.name", f"{__name__}:recorder")
    assert len(traced_calls) <= 12 and len({path for path, _ in traced_calls}) <= 10
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```\n(attention_jax/cli/commands\.py .*?)^```$", text, re.DOTALL | re.MULTILINE)
    listed = [tuple(line.split()[:2]) for line in block.splitlines()]
    assert listed == traced_calls, "\n".join(f"{path:33}{name}" for path, name in traced_calls)
