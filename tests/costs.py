"""`pytest --costs`: what every test costs, as a table of tests, one of files and the peak memory of each worker.

A cost has four numbers: seconds by the clock, seconds of processor time (with the processes that the test waited
for), programs that XLA compiled or loaded, and the seconds that this took. Setup and teardown count as a part of
their test, so that a fixture of a module is paid for by its first test. `--costs N` prints N rows of each table,
`--costs 0` all.

With it a default test of more than `TEST_LIMIT` reference processor-seconds, and default tests of more than
`TIER_LIMIT` together, fail the run. A reference second is the time of a machine that does `calibrate` in
`REFERENCE_SECONDS`, so that a slow or busy machine fails nothing.
"""

import os
import resource
import sys
import time
from collections import defaultdict

import pytest

COMPILED = "/jax/core/compile/backend_compile_duration"
COLUMNS = ("seconds", "cpu", "programs", "compiling")
TEST_LIMIT, TIER_LIMIT = 10.0, 700.0
REFERENCE_SECONDS = 0.2


def calibrate() -> float:
    """Processor-seconds per reference second: products of matrices, and three programs that are traced and compiled;
    the least of three times, as the first one loads what compiles."""
    import jax
    import numpy as np

    seconds = []
    for attempt in (1, 2, 3):
        start = time.process_time()
        x = np.ones((512, 512), np.float32)
        for power in (1, 2, 3):
            x = np.tanh(x @ x)
            scale = os.getpid() / (3 * attempt + power)  # a program that no cache has, nor another attempt
            step = lambda carry, _, scale=scale: (jax.nn.softmax(carry @ carry) * scale, None)
            jax.jit(jax.grad(lambda x, step=step: jax.lax.scan(step, x, None, length=3)[0].sum())).lower(x).compile()
        seconds.append(time.process_time() - start)
    return min(seconds) / REFERENCE_SECONDS


class Meter:
    """The running totals of one worker: clock, processor time, programs and seconds of compilation."""

    def __init__(self):
        self.programs, self.compiling, self.listening = 0, 0.0, False

    def read(self) -> tuple[float, float, int, float]:
        """The totals so far; begins to listen to the compiler as soon as something has imported jax."""
        if not self.listening and "jax" in sys.modules:
            sys.modules["jax"].monitoring.register_event_duration_secs_listener(self.add)
            self.listening = True
        return time.perf_counter(), sum(os.times()[:4]), self.programs, self.compiling

    def add(self, event: str, seconds: float, **_):
        if event == COMPILED:
            self.programs += 1
            self.compiling += seconds


class Costs:
    """The plugin: each worker measures its tests, the reporting process adds the reports up."""

    def __init__(self, rows: int):
        self.rows, self.meter, self.start, self.rate = rows, Meter(), None, None
        self.tests, self.references, self.peaks = {}, {}, defaultdict(lambda: (0.0, ""))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item):
        self.rate = self.rate or calibrate()
        self.start = self.meter.read()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item, call):
        report = yield
        if call.when == "teardown":
            spent = [round(now - then, 3) for now, then in zip(self.meter.read(), self.start, strict=True)]
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # GB; Linux counts in KiB
            reference = 0.0 if item.get_closest_marker("slow") else spent[1] / self.rate
            worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
            report.user_properties.append(("costs", [spent, reference, peak, worker]))
        return report

    def pytest_runtest_logreport(self, report):
        for spent, reference, peak, worker in (value for name, value in report.user_properties if name == "costs"):
            self.tests[report.nodeid], self.references[report.nodeid] = spent, reference
            if peak > self.peaks[worker][0]:
                self.peaks[worker] = (peak, report.nodeid)

    def excess(self) -> list[str]:
        """A line for each limit that default tests exceed."""
        total, each = sum(self.references.values()), sorted(self.references.items(), key=lambda entry: -entry[1])
        tests = [
            f"{name}: {cost:.1f} reference seconds, at most {TEST_LIMIT}" for name, cost in each if cost > TEST_LIMIT
        ]
        return tests + [f"default tests: {total:.0f} reference seconds, at most {TIER_LIMIT}"] * (total > TIER_LIMIT)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if self.excess() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter):
        files = defaultdict(lambda: [0.0] * len(COLUMNS))
        for name, spent in self.tests.items():
            file = name.split("::")[0]
            files[file] = [a + b for a, b in zip(files[file], spent, strict=True)]
        for title, costs in (("file", files), ("test", self.tests)):
            total = [sum(column) for column in zip(*costs.values(), strict=True)] or [0.0] * len(COLUMNS)
            terminalreporter.section(f"costs by {title}")
            terminalreporter.write_line("".join(f"{name:>11}" for name in COLUMNS) + f"  {title}")
            ordered = sorted(costs.items(), key=lambda entry: -entry[1][1])
            for name, spent in [("all", total), *ordered[: self.rows or None]]:
                terminalreporter.write_line("".join(f"{number:11.1f}" for number in spent) + f"  {name}")
        for worker, (peak, test) in sorted(self.peaks.items()):
            terminalreporter.write_line(f"peak memory of {worker}: {peak:.2f} GB, first in {test}")
        terminalreporter.write_line(f"all default tests: {sum(self.references.values()):.0f} reference seconds")
        for line in self.excess():
            terminalreporter.write_line(f"too expensive: {line}", red=True)
