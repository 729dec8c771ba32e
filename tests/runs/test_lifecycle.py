"""The life of a run: what is refused before it starts, and a signal while it is finished."""

import errno
import functools
import json
import math
import os
import shutil
import signal
import time
import types

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from attention_jax import tasks, train_run
from attention_jax.config import Config, Dates, Decode, LuongSeq2seqConfig, Train, replace
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import write_json
from attention_jax.runs import directory as run_directory, lifecycle, saved
from attention_jax.runs.api import LoadedRun
from attention_jax.tasks import Evaluation
from attention_jax.train.checkpoint import save_params
from attention_jax.train.run import Run

TRAIN = Train(total_epochs=1, max_steps=1, best_metric="train.loss")
TINY = Config(
    "tiny", Dates(examples=100), LuongSeq2seqConfig(hidden_size=4, embed_size=4), train=TRAIN, decode=Decode()
)


def test_interrupt_waits_for_final_evaluation(tmp_path, monkeypatch):
    """A caller with several runs would begin the next one."""

    def finish(config, task, run, params):
        os.kill(os.getpid(), signal.SIGINT)
        write_json(tmp_path / "run" / "result.json", {})
        return {}

    monkeypatch.setattr(lifecycle, "finish", finish)
    with pytest.raises(Interrupted):
        lifecycle.start(TINY, tmp_path / "run", quiet=True)
    assert (tmp_path / "run" / "result.json").exists(), "what has been trained is evaluated"


def test_a_run_is_not_resumed_with_fewer_steps(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 384, "epoch": 0, "train.loss": 1.0}\n{"step": 4')
    with pytest.raises(InputError, match="has 384 steps behind it, got 100"):
        run_directory.check_longer(replace(TINY, **{"train.max_steps": 100}), tmp_path)
    run_directory.check_longer(replace(TINY, **{"train.max_steps": 384}), tmp_path)


def test_unfinished_run_is_not_plotted(tmp_path):
    with pytest.raises(InputError, match="needs a run that has ended, which .* has not"):
        LoadedRun(tmp_path, TINY, None).evaluate(figures=True)
    assert not list(tmp_path.iterdir())


def test_a_run_may_be_anywhere(tmp_path):
    """In a directory with spaces and letters beyond ASCII, reached by a link."""
    (tmp_path / "eine Übung, 1").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "eine Übung, 1", target_is_directory=True)
    run = train_run(TINY, tmp_path / "link" / "run é", study=lambda config, directory: {"x": 1.0}, quiet=True)
    assert run.result["metrics"] == {"x": 1.0}
    assert (tmp_path / "eine Übung, 1" / "run é" / "result.json").is_file()


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_run_without_checkpoint_keeps_log(tmp_path, monkeypatch, capsys):
    """It was trained to its end: its metrics and its configuration stay, and it can be resumed."""
    with monkeypatch.context() as patch, pytest.raises(InputError, match="free disk space and --resume"):
        patch.setattr(ocp.CheckpointManager, "save", full)
        patch.setattr(ocp.Checkpointer, "save", full)
        lifecycle.start(TINY, tmp_path / "run", quiet=True)
    assert [row["epoch"] for row in run_directory.read_history(tmp_path / "run")] == [1]
    assert not [path for path in (tmp_path / "run").rglob("*") if "tmp" in path.name or "part" in path.name]
    logged = [row["train.loss"] for row in run_directory.read_rows(tmp_path / "run")]
    result = lifecycle.start(TINY, tmp_path / "run", resume=True, quiet=True)
    assert result["steps"] == 1
    assert [row["train.loss"] for row in run_directory.read_rows(tmp_path / "run")] == logged


def test_untrained_run_leaves_no_files(tmp_path):
    created = tmp_path.stat()
    for name in ("mine", "of another run"):
        (tmp_path / "parent" / name).mkdir(parents=True)
    run_directory.withdraw([tmp_path / "parent" / "of another run", tmp_path / "parent"], created)
    assert (tmp_path / "parent" / "of another run").exists(), "it came to the place of a run that was removed"
    run_directory.withdraw([tmp_path / "nothing"], created)
    created = (tmp_path / "parent" / "mine").stat()
    run_directory.withdraw([tmp_path / "parent" / "mine", tmp_path / "parent"], created)
    assert [path.name for path in (tmp_path / "parent").iterdir()] == ["of another run"]


def test_study_in_removed_directory_writes_nothing(tmp_path):
    def study(config, directory):
        shutil.rmtree(directory)
        return {"x": 1.0}

    with pytest.raises(InputError, match="run was removed or replaced"):
        lifecycle.start(TINY, tmp_path / "run", study=study, quiet=True)
    assert not (tmp_path / "run").exists()


def test_seconds_of_a_study_include_interrupted_processes(tmp_path):
    """Two processes of 0.3 s each, of which the first is stopped (0.6 seconds)."""

    def study(config, directory, stop):
        time.sleep(0.3)
        if stop:
            raise Interrupted(1)
        return {"x": 1.0}

    with pytest.raises(Interrupted):
        lifecycle.start(TINY, tmp_path / "run", study=functools.partial(study, stop=True), quiet=True)
    result = lifecycle.start(
        TINY, tmp_path / "run", study=functools.partial(study, stop=False), resume=True, quiet=True
    )
    assert 0.6 <= result["seconds"] < 1.2 and not (tmp_path / "run" / "interrupted.json").exists()


@pytest.mark.parametrize("loss", [math.nan, math.inf, 1e20])
def test_nonfinite_final_loss_is_divergence(loss, tmp_path):
    task = types.SimpleNamespace(evaluate=lambda params, full: Evaluation({"valid.loss": loss, "test.loss": loss}, {}))
    run = Run(TRAIN, None, 1, tmp_path, quiet=True)
    run.begin(None)
    run.close()
    with pytest.raises(Diverged, match="at step 0"):
        lifecycle.finish(TINY, task, run, {})
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == "diverged"
    assert not (tmp_path / "result.json").exists() and not (tmp_path / "final").exists()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite_parameters_are_rejected(value, tmp_path):
    """Such as a version left that did not check them: `evaluate`, `look`, `export` and `--from` read them here."""
    save_params(tmp_path / "final", {"a": np.ones(2, np.float32), "b": {"c": np.array([1.0, value], np.float32)}})
    with pytest.raises(InputError, match=r"not finite \(b/c\)"):
        saved.read_parameters(tmp_path, TINY)


@pytest.mark.slow
@pytest.mark.parametrize("beam", [1, 2])
def test_attention_of_nonfinite_parameters_is_one_line(beam):
    task = tasks.build(replace(TINY, **{"decode.beam_size": beam}))
    params = jax.tree.map(lambda x: np.full(x.shape, np.nan, x.dtype), jax.eval_shape(task.init, jax.random.PRNGKey(0)))
    with pytest.raises(InputError, match="parameters are not finite"):
        task.attention_maps(params, ["May 1, 1999"])
