"""The state of a run while another process trains it."""

import io
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from attention_jax.cli import commands
from attention_jax.report import run_status
from attention_jax.report.run_status import status


def call(step, loss, epoch=0):
    return json.dumps({"step": step, "epoch": epoch, "train.loss": loss}) + "\n"


def epoch(number, step, loss, accuracy):
    row = {"step": step, "epoch": number, "seconds": 2.0 * number, "train.loss": loss, "valid.loss": 2 * loss}
    return json.dumps(row | {"valid.accuracy": accuracy}) + "\n"


@pytest.fixture
def run(tmp_path):
    """A run that has begun and written nothing yet."""
    directory = tmp_path / "toy"
    (directory / "figures").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"name": "toy"}))
    return directory


def progress(directory, **values):
    """A progress.json of this process, which is alive."""
    fields = {"state": "training", "step": 30, "total_steps": 60, "seconds_left": 90.0, "examples_per_second": 123.0}
    fields |= {"waiting_share": 0.25, "host": platform.node(), "process": os.getpid(), "time": time.time()}
    (directory / "progress.json").write_text(json.dumps(fields | values))


def ended_process_id() -> int:
    """The number of a process that has ended."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


def render_text(directory, rows, width=100, curves=True) -> str:
    """The picture as a terminal of so many characters shows it."""
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(run_status.progress_view(directory, rows, curves))
    return console.file.getvalue()


def test_training_run_is_reported_with_its_pace(run):
    assert status(run).startswith("not training yet")
    progress(run)
    words = status(run)
    assert "step 30 of 60 (50%)" in words and "1 min 30 s" in words and "123 examples/s, 25%" in words
    progress(run, state="trained")
    assert status(run).startswith("trained; evaluating")


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"state": "stopped"}, "interrupted at step 30; continue with `launch.py train toy --resume --out"),
        ({"state": "diverged"}, "diverged after step 30"),
        ({"process": None}, "its process has ended after step 30; continue with"),
    ],
)
def test_a_run_that_is_over_says_so(run, changes, words):
    progress(run, **(changes if "state" in changes else {"process": ended_process_id()}))
    assert words in status(run)
    (run / "result.json").write_text(json.dumps({"seconds": 61.0}))
    assert status(run) == "ended after 1 min 1 s"


def test_resumed_finished_run_is_training(run):
    (run / "result.json").write_text(json.dumps({"seconds": 61.0}))
    progress(run)
    assert status(run).startswith("step 30 of 60")
    progress(run, state="trained")
    assert status(run) == "ended after 1 min 1 s"


def test_a_process_on_another_machine_may_live(run):
    progress(run, process=ended_process_id(), host="another")
    assert status(run).startswith("step 30 of 60")


@pytest.fixture
def stranger():
    """A process that has nothing to do with the run."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell when a process started")
def test_a_process_that_was_given_the_number_later_is_not_the_run(run, stranger):
    """A file of yesterday, and the number in it is that of a process of today."""
    progress(run, process=stranger, time=time.time() - 86400)
    assert status(run).startswith("its process has ended after step 30; continue with")
    progress(run, process=stranger, time=time.time())  # a number of its own, and written since
    assert status(run).startswith("step 30 of 60")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell the state of a process")
def test_a_process_that_has_ended_without_its_parents_notice_has_ended(run):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while run_status._process_start_time(ended.pid) != float("inf"):
        time.sleep(0.01)
    progress(run, process=ended.pid, time=time.time())
    assert status(run).startswith("its process has ended")
    ended.wait()


def test_a_run_that_has_long_said_nothing_is_told(run):
    """Of another machine nobody knows whether it has ended."""
    progress(run, host="another", time=time.time() - 7320)
    assert status(run).endswith("; last heard of 2 h 2 min ago")
    progress(run, time=time.time())
    assert "last heard" not in status(run)


def test_half_a_line_waits_for_its_end(run):
    path = run / "metrics.jsonl"
    assert run_status.rows_of(path) == []
    path.write_text(call(1, 3.0) + call(2, 2.0)[:9])
    assert [row["step"] for row in run_status.rows_of(path)] == [1]
    with path.open("a") as file:
        file.write(call(2, 2.0)[9:] + "{broken\n" + call(3, 1.0))
    assert [row["step"] for row in run_status.rows_of(path)] == [1, 2, 3]


def test_table_has_last_and_best_metric_values(run):
    progress(run)
    (run / "samples.txt").write_text("1/2/99 -> 1999-01-02\n" * 9)
    rows = [json.loads(call(step, 10.0 / step)) for step in range(1, 30)]
    values = ((1, 10, 1.0, 0.5), (2, 20, 0.5, 0.75), (3, 30, 0.6, 0.7))
    rows += [json.loads(epoch(*row)) for row in values]
    output = render_text(run, rows)
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines() if len(line.split()) == 4}
    assert lines["valid.accuracy"] == ["0.7", "0.75", "▁█▆"] and lines["valid.loss"] == ["1.2", "1", "█▁▂"]
    assert output.count("1/2/99") == run_status.SAMPLES and "epoch 3, 6 s of training" in output
    for width in (20, 40, 300):
        assert max(map(len, render_text(run, rows, width).splitlines())) <= width
    assert render_text(run, rows, curves=False).isascii()


def test_values_that_are_no_numbers_are_passed_over(run):
    rows = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 3.0}, {"step": 3, "loss": float("inf")}]
    assert "inf" in render_text(run, rows) and "3" in render_text(run, rows)


def test_a_metric_that_was_never_a_number_is_shown(run):
    rows = [{"step": step, "train.loss": float("nan"), "valid.loss": 1.0 / step} for step in (1, 2)]
    [last, best, _] = [list(column.cells) for column in run_status.metrics_table(rows).columns[1:]]
    assert list(map(str, last)) == ["nan", "0.5"] and list(map(str, best)) == ["-", "0.5"]


def test_damaged_result_is_no_end(run):
    (run / "result.json").write_text('{"seconds": "x"}')
    assert "ended" not in run_status.status(run)


def test_list_prints_the_state_without_curves_in_a_pipe(run, capsys):
    progress(run)
    (run / "metrics.jsonl").write_text(call(10, 1.0) + epoch(1, 10, 1.0, 0.5))
    commands.main(["list", str(run)])
    output = capsys.readouterr().out
    assert "step 30 of 60" in " ".join(output.split()) and "valid.accuracy" in output
    assert "\x1b" not in output and output.isascii()
