"""What is seen of a run while another process trains it."""

import io
import json
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from attention_jax.errors import InputError
from attention_jax.report import watch


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
    console.print(watch.progress_view(directory, rows, curves))
    return console.file.getvalue()


def test_training_run_is_reported_with_its_pace(run):
    assert not watch.status(run).over
    progress(run)
    words, over = watch.status(run)
    assert "step 30 of 60 (50%)" in words and "1 min 30 s" in words and "123 examples/s, 25%" in words and not over
    progress(run, state="trained")
    assert not watch.status(run).over


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
    assert words in watch.status(run).words and watch.status(run).over
    (run / "result.json").write_text(json.dumps({"seconds": 61.0}))
    assert watch.status(run) == ("ended after 1 min 1 s", True)


def test_resumed_finished_run_is_training(run):
    (run / "result.json").write_text(json.dumps({"seconds": 61.0}))
    progress(run)
    assert watch.status(run).words.startswith("step 30 of 60") and not watch.status(run).over
    progress(run, state="trained")
    assert watch.status(run).over


def test_a_process_on_another_machine_may_live(run):
    progress(run, process=ended_process_id(), host="another")
    assert not watch.status(run).over


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
    words, over = watch.status(run)
    assert over and words.startswith("its process has ended after step 30; continue with")
    progress(run, process=stranger, time=time.time())  # a number of its own, and written since
    assert not watch.status(run).over


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell the state of a process")
def test_a_process_that_has_ended_without_its_parents_notice_has_ended(run):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    while watch._process_start_time(ended.pid) != float("inf"):
        time.sleep(0.01)
    progress(run, process=ended.pid, time=time.time())
    assert watch.status(run).over
    ended.wait()


def test_a_run_that_has_long_said_nothing_is_told(run):
    """Of another machine nobody knows whether it has ended."""
    progress(run, host="another", time=time.time() - 7320)
    words, over = watch.status(run)
    assert words.endswith("; last heard of 2 h 2 min ago") and not over
    progress(run, time=time.time())
    assert "last heard" not in watch.status(run).words


def test_half_a_line_waits_for_its_end(run):
    path = run / "metrics.jsonl"
    assert watch.rows_of(path) == []
    path.write_text(call(1, 3.0) + call(2, 2.0)[:9])
    assert [row["step"] for row in watch.rows_of(path)] == [1]
    with path.open("a") as file:
        file.write(call(2, 2.0)[9:] + "{broken\n" + call(3, 1.0))
    assert [row["step"] for row in watch.rows_of(path)] == [1, 2, 3]


def test_table_has_last_and_best_metric_values(run):
    progress(run)
    (run / "samples.txt").write_text("1/2/99 -> 1999-01-02\n" * 9)
    rows = [json.loads(call(step, 10.0 / step)) for step in range(1, 30)]
    values = ((1, 10, 1.0, 0.5), (2, 20, 0.5, 0.75), (3, 30, 0.6, 0.7))
    rows += [json.loads(epoch(*row)) for row in values]
    output = render_text(run, rows)
    lines = {line.split()[0]: line.split()[1:] for line in output.splitlines() if len(line.split()) == 4}
    assert lines["valid.accuracy"] == ["0.7", "0.75", "▁█▆"] and lines["valid.loss"] == ["1.2", "1", "█▁▂"]
    assert output.count("1/2/99") == watch.SAMPLES and "epoch 3, 6 s of training" in output
    for width in (20, 40, 300):
        assert max(map(len, render_text(run, rows, width).splitlines())) <= width
    assert render_text(run, rows, curves=False).isascii()


def test_values_that_are_no_numbers_are_passed_over(run):
    rows = [{"step": 1, "loss": float("nan")}, {"step": 2, "loss": 3.0}, {"step": 3, "loss": float("inf")}]
    assert "inf" in render_text(run, rows) and "3" in render_text(run, rows)


def test_pipe_gets_epoch_lines_then_the_picture(run, capsys):
    def train():
        with (run / "metrics.jsonl").open("a") as file:
            for number in (1, 2):
                time.sleep(0.05)
                progress(run)
                file.write(call(10 * number, 1.0) + epoch(number, 10 * number, 1.0 / number, 0.5))
                file.flush()
        progress(run, state="trained")
        (run / "result.json").write_text(json.dumps({"seconds": 4.0}))

    training = threading.Thread(target=train)
    training.start()
    watch.follow(run, interval=0.01)
    training.join()
    output = capsys.readouterr().out
    assert output.count("step 10  epoch 1  seconds 2  train.loss 1") == output.count("step 20  epoch 2") == 1
    assert "ended after 4 s" in " ".join(output.split())
    assert "\x1b" not in output and output.isascii()


def test_what_is_no_run_is_one_line(tmp_path, run):
    with pytest.raises(InputError, match="there is no run in"):
        watch.follow(tmp_path / "nowhere", once=True)
    with pytest.raises(InputError, match="there is no run in"):
        watch.follow(tmp_path)


@pytest.mark.slow
def test_an_interrupt_ends_it_cleanly(tmp_path):
    """It waits for a run that is not there; then Ctrl-C."""
    command = [sys.executable, "launch.py", "watch", str(tmp_path / "later")]
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "there is no run yet" in watching.stdout.readline()
    watching.send_signal(2)
    output, errors = watching.communicate(timeout=120)
    assert watching.returncode == 130 and not errors
