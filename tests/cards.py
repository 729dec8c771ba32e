"""`pytest -m gpu`: the tests that need a GPU run where there is one, and never pass in silence where none of them ran.

They run on request only, as they need the card for themselves. On a machine without a card the run says how many tests
need one and ends with pytest's exit code 5, "no tests ran"; where there is a card and none of them ran, it fails.
"""

import os
import re
from pathlib import Path

import pytest

NO_TESTS_RAN = int(pytest.ExitCode.NO_TESTS_COLLECTED)


def is_requested(expression: str) -> bool:
    """Whether `-m expression` asks for the tests of a GPU.

    >>> is_requested("gpu and not slow"), is_requested("not gpu"), is_requested("not slow"), is_requested("")
    (True, False, False, False)
    """
    return re.search(r"(?<!not )\bgpu\b", expression) is not None


def has_card() -> bool:
    """Whether this machine has a GPU of NVIDIA or AMD, whatever jax sees."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/kfd").exists() or Path("/dev/dxg").exists()


def verdict(needed: int, ran: int, card: bool) -> tuple[str, int]:
    """The line that sums up a run of the tests that need a GPU, and its exit code.

    >>> verdict(90, 0, card=False)
    ('90 tests need a GPU, and this machine has none: nothing was tested', 5)
    """
    if ran:
        return f"{ran} of {needed} tests that need a GPU ran", 0
    if not card:
        return f"{needed} tests need a GPU, and this machine has none: nothing was tested", NO_TESTS_RAN
    why = "JAX_PLATFORMS is set" if os.environ.get("JAX_PLATFORMS") else 'is jax installed as "jax[cuda12]"?'
    return f"this machine has a GPU, but jax does not use it, and none of {needed} tests ran: {why}", 1


class Cards:
    """Deselects the tests of a GPU unless they are asked for, and then counts those that ran: in the process that
    collects the reports, which are those of all workers under pytest-xdist."""

    def __init__(self, expression: str, card: bool):
        self.requested, self.card = is_requested(expression), card
        self.needed, self.ran = set(), set()

    def pytest_collection_modifyitems(self, config, items):
        if not self.requested:
            needing = [item for item in items if item.get_closest_marker("gpu")]
            items[:] = [item for item in items if not item.get_closest_marker("gpu")]
            config.hook.pytest_deselected(items=needing)

    def pytest_runtest_logreport(self, report):
        if "gpu" in report.keywords:
            self.needed.add(report.nodeid)
            if report.failed or (report.when == "call" and report.passed):
                self.ran.add(report.nodeid)

    def sum_up(self) -> tuple[str, int]:
        return verdict(len(self.needed), len(self.ran), self.card)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session):
        if self.requested and self.needed and session.exitstatus == 0 and not hasattr(session.config, "workerinput"):
            session.exitstatus = self.sum_up()[1]

    @pytest.hookimpl(trylast=True)  # below the durations
    def pytest_terminal_summary(self, terminalreporter):
        if self.requested and self.needed:
            terminalreporter.line(self.sum_up()[0])
