"""`python -m pytest -m gpu` where no test of a GPU can run: it is never green."""

import subprocess
import sys
from pathlib import Path

import pytest
from cards import is_requested, verdict

HERE = Path(__file__).parent
SUITE = """
import pytest

@pytest.mark.gpu
@pytest.mark.parametrize("n", range(3))
def test_that_needs_a_card(n):
    if n >= {runs}:
        pytest.skip("jax sees no card")

def test_that_needs_none():
    pass
"""
PLUGIN = """
import pytest
from cards import Cards

def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a card")
    config.pluginmanager.register(Cards(config.getoption("markexpr"), card={card}))
"""


def run(place, *options, runs=0, card=False) -> tuple[int, str]:
    """The exit code and the last lines of a suite in which `runs` of 3 tests find a card."""
    (place / "conftest.py").write_text(PLUGIN.format(card=card))
    (place / "test_suite.py").write_text(SUITE.format(runs=runs))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(place), *options]
    environment = {"PYTHONPATH": str(HERE), "PATH": "/usr/bin:/bin"}
    result = subprocess.run(
        [*command, str(place)], capture_output=True, text=True, cwd=place, env=environment, timeout=99
    )
    return result.returncode, result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("runs", "card", "code", "line"),
    [
        (0, False, 5, "3 tests need a GPU, and this machine has none: nothing was tested"),
        (0, True, 1, "this machine has a GPU, but jax does not use it, and none of 3 tests ran"),
        (2, True, 0, "2 of 3 tests that need a GPU ran"),
    ],
)
def test_gpu_run_without_gpu_tests_fails(tmp_path, runs, card, code, line, workers):
    returned, text = run(tmp_path, "-m", "gpu", "-n", workers, runs=runs, card=card)
    assert (returned, line in text) == (code, True), text


def test_gpu_tests_are_deselected_by_default(tmp_path):
    returned, text = run(tmp_path, "-n", "0", card=True)
    assert returned == 0 and "1 passed, 3 deselected" in text and "GPU" not in text


@pytest.mark.parametrize(
    ("expression", "requested"),
    [("gpu", True), ("gpu and not slow", True), ("slow or gpu", True), ("not gpu", False), ("not slow", False)],
)
def test_what_asks_for_the_tests_of_a_card(expression, requested):
    assert is_requested(expression) is requested


def test_the_line_says_what_hides_the_card(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert "JAX_PLATFORMS is set" in verdict(3, 0, card=True)[0]
    monkeypatch.delenv("JAX_PLATFORMS")
    assert "jax[cuda12]" in verdict(3, 0, card=True)[0]
