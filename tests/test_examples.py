"""The examples of docs/examples: one model in four frameworks, trained with the same losses."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "docs" / "examples"
FRAMEWORKS = ("linen", "nnx_modules", "equinox_modules")


@pytest.fixture
def load(monkeypatch):
    """Import an example; the examples import their task by its name."""
    monkeypatch.syspath_prepend(EXAMPLES)
    yield importlib.import_module
    for name in ("task", "functions", *FRAMEWORKS):
        sys.modules.pop(name, None)


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_trains_like_plain_functions(name, load):
    """The same Transformer of one layer, one compiled step each; the loss falls to a third of that of guessing."""
    if name == "equinox_modules":
        pytest.importorskip("equinox", reason="the example of Equinox needs equinox")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        expected, actual = load("functions").main(), load(name).main()
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=1e-6)
    assert actual[-1] < 0.5 * np.log(12)


def test_the_examples_are_short():
    lengths = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in EXAMPLES.glob("*.py")}
    assert {*FRAMEWORKS, "functions", "task"} == {*lengths} and max(lengths.values()) <= 60
