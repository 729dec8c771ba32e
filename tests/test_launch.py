"""The command line with real processes: what a user sees, right and wrong."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TINY = ["--data.examples", "600", "--model.hidden-size", "8", "--model.embed-size", "4", "--train.steps-per-call", "1"]


def launch(*arguments, timeout=300):
    return subprocess.run(
        [sys.executable, str(ROOT / "launch.py"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=ROOT,
    )


def refused(*arguments) -> str:
    """The one line of an error: exit code 2, nothing like a traceback."""
    done = launch(*arguments)
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished tiny run."""
    directory = tmp_path_factory.mktemp("runs") / "a"
    done = launch("train", "date_luong", *TINY, "--train.total-epochs", "2", "--out", directory)
    assert done.returncode == 0, done.stderr
    return directory


def test_help_answers_in_under_a_second():
    started = time.perf_counter()
    done = launch("--help")
    assert "reproduce" in done.stdout and done.returncode == 0
    assert time.perf_counter() - started < 1.0


def test_list_names_every_experiment():
    done = launch("list")
    assert all(path.stem in done.stdout for path in (ROOT / "experiments").glob("*.py")), done.stderr


def test_misspelt_names_are_suggested():
    assert "date_luong" in refused("train", "date_loung")
    assert "train" in refused("trian", "date_luong")
    assert "--model.hidden-size" in refused("train", "date_luong", "--model.hiden-size", "3")


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["--model.hidden-size", "big"], "--model.hidden-size"),
        (["--model.score", "dotty"], "scaled_dot"),
        (["--model.hidden-size", "0"], "at least 1"),
        (["--optim.learning-rate", "-1"], "positive"),
        (["--data.path", "no/such/file.txt"], "no/such/file.txt"),
        (["--out", "/proc/nowhere"], "writable"),
        (["--resume", "--out", "no/such/run"], "no/such/run"),
        (["--coordinator", "10.0.0.1:9000", "--hosts", "2"], "need --out"),
        (["--out", "no/such/run", "--hosts", "2"], "HOST:PORT of the first host"),
    ],
)
def test_bad_options_get_one_line(arguments, said):
    assert said in refused("train", "date_luong", *arguments)


def test_a_malformed_line_is_named(tmp_path):
    lines = [f"{'1/2/93':29}_1993-01-02"] * 20
    lines[12] = "no underscore here"
    (tmp_path / "date.txt").write_text("\n".join(lines) + "\n")
    assert "line 13" in refused("train", "date_luong", "--data.path", tmp_path / "date.txt", "--out", tmp_path / "r")


def test_a_finished_run_can_be_evaluated_asked_drawn_and_is_never_written_over(run):
    result = json.loads((run / "result.json").read_text())
    assert {"config.json", "environment.json", "metrics.jsonl", "result.json", "checkpoints", "figures"} <= {
        p.name for p in run.iterdir()
    }
    said = dict(line.split() for line in launch("evaluate", run).stdout.splitlines())
    assert float(said["test.exact_match"]) == pytest.approx(result["metrics"]["test.exact_match"])
    assert float(said["test.loss"]) == pytest.approx(result["metrics"]["test.loss"], rel=1e-4)
    told = launch("predict", run, "May 1, 1999", "--attention", run / "one.png")
    assert told.stdout.startswith("May 1, 1999 -> ") and (run / "one.png").stat().st_size > 5000, told.stderr
    assert "characters" in refused("predict", run, "5월 1일") or "vocabulary" in refused("predict", run, "5월 1일")
    before = (run / "result.json").read_bytes()
    assert "--resume" in refused("train", "date_luong", *TINY, "--out", run)
    assert (run / "result.json").read_bytes() == before


def test_a_file_is_translated_line_by_line(run, tmp_path):
    (tmp_path / "in.txt").write_text("May 1, 1999\n\n2/3/04\n")
    launch("translate", run, tmp_path / "in.txt", "--out", tmp_path / "out.txt")
    first, empty, last = (tmp_path / "out.txt").read_text().splitlines()
    assert empty == "" and len(first) == len(last) == 10
    assert launch("predict", run, "May 1, 1999").stdout == f"May 1, 1999 -> {first}\n"
    assert "no file to translate at" in refused("translate", run, tmp_path / "none.txt")
    assert "--out" in refused("translate", run, tmp_path / "in.txt", "--out", tmp_path / "none" / "out.txt")
    (tmp_path / "bad.txt").write_bytes(b"ok\n\xff\n")
    assert "line 2: not valid UTF-8" in refused("translate", run, tmp_path / "bad.txt")


def test_a_run_is_resumed_only_as_what_it_is(run):
    assert "model.hidden_size = 8" in refused(
        "train", "date_luong", "--resume", "--out", run, "--model.hidden-size", "16"
    )


def test_a_damaged_checkpoint_is_never_loaded(run, tmp_path):
    shutil.copytree(run, tmp_path / "c")
    for path in (tmp_path / "c" / "checkpoints").rglob("*"):
        if path.is_file() and "ocdbt" in str(path):
            path.write_bytes(path.read_bytes()[:20])
    assert "checkpoint" in refused(
        "train", "date_luong", "--resume", "--out", tmp_path / "c", "--train.total-epochs", "3"
    )


def parameters(directory: Path) -> dict:
    """The final parameters by name."""
    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    with ocp.StandardCheckpointer() as checkpointer:
        tree = checkpointer.restore((directory / "final").absolute())
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


@pytest.mark.slow
@pytest.mark.parametrize("name, code", [("SIGTERM", 130), ("SIGINT", 130), ("SIGKILL", -9)])
def test_interrupted_and_resumed_ends_in_the_same_parameters(tmp_path, run, name, code):
    """The process is stopped somewhere in its second epoch; the run then goes on with --resume."""
    command = [
        sys.executable,
        str(ROOT / "launch.py"),
        "train",
        "date_luong",
        *TINY,
        "--train.total-epochs",
        "2",
        "--out",
        str(tmp_path / "b"),
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
    )
    assert process.stdout.readline().startswith("epoch 1")
    process.send_signal(getattr(signal, name))
    _, said = process.communicate(timeout=300)
    if process.returncode != 0:  # it may have been faster than the signal
        assert process.returncode == code, said
        assert not (tmp_path / "b" / "result.json").exists()
        resumed = launch("train", "date_luong", "--resume", "--out", tmp_path / "b")
        assert resumed.returncode == 0, resumed.stderr
    ours, theirs = parameters(tmp_path / "b"), parameters(run)
    assert ours.keys() == theirs.keys() and all((ours[k] == theirs[k]).all() for k in ours)
