"""Checkpoints by time, in the background, on a full disk: least squares, whose numbers must not know of them."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from attention_jax.config import Optim, Train
from attention_jax.errors import InputError, Interrupted
from attention_jax.train.checkpoint import Checkpoints, load_params, read_checkpoint, save_params
from attention_jax.train.log import MetricsLog
from attention_jax.train.loop import train_one
from attention_jax.train.optimizer import optimizer
from attention_jax.train.step import init_state
from tests.train.test_loop import ADAM, least_squares, plan, read_log

FULL = OSError(errno.ENOSPC, "No space left on device")


def train_weights(directory: Path, train: Train, plan=plan):
    return train_one(least_squares(plan=plan), ADAM, train, directory, quiet=True)[1]["w"]


def numbers(directory: Path) -> list[int]:
    return sorted(int(path.name) for path in (directory / "checkpoints").iterdir())


def at_each(monkeypatch, visit):
    """A plan of two chunks that calls `visit(epoch, place)` when the loop takes one; what was saved is on the disk."""
    save = Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, *args: (save(self, *args), self.writing.result()))

    class Chunks(list):
        def __getitem__(self, place):
            visit(self.epoch, place)
            return super().__getitem__(place)

    def visiting_plan(epoch, steps_per_call):
        chunks = Chunks(plan(epoch, steps_per_call))
        chunks.epoch = epoch
        return chunks

    return visiting_plan


def test_a_checkpoint_of_november_2026_is_read(tmp_path):
    """Written with orbax 0.12.8 and jax 0.10.2 for a run of Adam with seed 7, by `Checkpoints.save` after step 4."""
    shutil.copytree(Path(__file__).with_name("stored_checkpoint"), tmp_path / "checkpoints")
    layer = {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.float32([0.5, -0.5, 0.0])}
    zeros = lambda tree: jax.tree.map(np.zeros_like, tree)
    like = jax.eval_shape(lambda: init_state(lambda rng: zeros({"layer": layer}), optimizer(Optim(), 10), 0))
    with contextlib.closing(Checkpoints(tmp_path / "checkpoints", Train(), best_of=1)) as checkpoints:
        state, progress = checkpoints.resume(like)
        assert checkpoints.best() == 4
    jax.tree.map(np.testing.assert_array_equal, state.params, {"layer": layer})
    np.testing.assert_array_equal(state.rng, jax.random.split(jax.random.PRNGKey(7))[1])
    assert not any(np.any(x) for x in jax.tree.leaves(state.opt_state)) and state.step == 0
    [run] = progress["runs"]
    assert (progress["epoch"], run["step"], run["seconds"], run["processor_seconds"]) == (1, 4, 1.5, 1.25)
    assert np.isnan(run["history"][0]["valid.loss"])
    _, params = read_checkpoint(tmp_path / "checkpoints")
    jax.tree.map(np.testing.assert_array_equal, params, {"layer": layer})


EACH_CALL = 1e-9


def test_checkpoint_is_due_after_interval_once_written(tmp_path):
    checkpoints = Checkpoints(tmp_path, Train())
    assert not checkpoints.due()
    checkpoints.began -= 595
    assert not checkpoints.due()
    checkpoints.began -= 5
    assert checkpoints.due()
    checkpoints.writing = Future()
    assert not checkpoints.due()
    checkpoints.close()
    never = Checkpoints(tmp_path, Train(save_minutes=0))
    never.began -= 1e9
    assert not never.due()
    never.close()


def test_timed_checkpoints_keep_epoch_checkpoints(tmp_path, monkeypatch):
    whole = train_weights(tmp_path / "whole", Train(total_epochs=3, average_last=2, save_minutes=0))
    saved_numbers = []
    visiting_plan = at_each(monkeypatch, lambda epoch, place: saved_numbers.append(numbers(tmp_path / "timed")))
    timed = train_weights(
        tmp_path / "timed", Train(total_epochs=3, average_last=2, save_minutes=EACH_CALL), visiting_plan
    )
    assert (timed == whole).all() and saved_numbers[-1] == [4, 8, 10] and numbers(tmp_path / "timed") == [8, 12]


def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, monkeypatch):
    release, save, written = threading.Event(), ocp.CheckpointManager.save, []

    def wait_and_save(*args, **kwargs):
        written.append(release.wait(20))
        return save(*args, **kwargs)

    monkeypatch.setattr(ocp.CheckpointManager, "save", wait_and_save)

    class Chunks(list):
        def __getitem__(self, place):
            if place == 1:
                release.set()
            return super().__getitem__(place)

    train_weights(tmp_path, Train(total_epochs=1, save_minutes=EACH_CALL), lambda *args: Chunks(plan(*args)))
    assert written == [True, True] and numbers(tmp_path) == [4]


def full_from(monkeypatch, first: int, last: float = float("inf")):
    """A disk without room for the checkpoints `first` to `last`; half of one is already written when that shows."""
    save = ocp.CheckpointManager.save

    def full(self, number, **kwargs):
        if not first <= number <= last:
            return save(self, number, **kwargs)
        (self.directory / f"{number}.orbax-checkpoint-tmp").mkdir()
        raise FULL

    monkeypatch.setattr(ocp.CheckpointManager, "save", full)


@pytest.mark.slow
def test_full_disk_keeps_older_checkpoint(tmp_path, monkeypatch, capsys):
    train = Train(total_epochs=4, save_minutes=0)
    whole = train_weights(tmp_path / "whole", train)
    with monkeypatch.context() as patch:
        full_from(patch, 8)
        assert (train_weights(tmp_path / "full", train) == whole).all()
    [line] = capsys.readouterr().err.splitlines()
    assert "8 could not be written (No space left on device;" in line and "checkpoint 4 stays" in line
    assert (train_weights(tmp_path / "full", train) == whole).all()  # from checkpoint 4 on
    assert numbers(tmp_path / "full") == [16]
    assert [line["step"] for line in read_log(tmp_path / "full")] == [
        line["step"] for line in read_log(tmp_path / "whole")
    ]


def test_when_there_is_room_again_checkpoints_are_written(tmp_path, monkeypatch, capsys):
    full_from(monkeypatch, 8, 12)
    train_weights(tmp_path, Train(total_epochs=4, save_minutes=0, average_last=3))
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 2 and "chosen without the checkpoints that could not be written, [8, 12]" in warnings[1]
    assert numbers(tmp_path) == [4, 16]


def test_the_last_checkpoint_is_missed_also_where_its_failure_takes_long(tmp_path, monkeypatch, capsys):
    full_from(monkeypatch, 16)
    save = ocp.CheckpointManager.save
    slow = lambda self, number, **args: time.sleep(0.5 * (number == 16)) or save(self, number, **args)
    monkeypatch.setattr(ocp.CheckpointManager, "save", slow)
    train_weights(tmp_path, Train(total_epochs=4, save_minutes=0, average_last=3))
    assert "chosen without the checkpoints that could not be written, [16]" in capsys.readouterr().err


@pytest.mark.parametrize("options", [{}, {"use_best": True}, {"average_last": 2}])
def test_training_continues_without_checkpoints_that_were_removed(options, tmp_path, monkeypatch, capsys):
    """It ends with its parameters, and says which checkpoints it lacks; the directory does not come again."""
    removed = at_each(monkeypatch, lambda epoch, place: epoch == 2 and shutil.rmtree(tmp_path / "checkpoints", True))
    train = Train(total_epochs=4, save_minutes=0, best_metric="valid.loss", **options)
    assert np.isfinite(train_weights(tmp_path, train, removed)).all() and not (tmp_path / "checkpoints").exists()
    warnings = capsys.readouterr().err
    assert "No such file" in warnings and ("chosen without the checkpoints" in warnings) == bool(options)


def test_interrupt_reports_unwritten_checkpoint(tmp_path, monkeypatch):
    full_from(monkeypatch, 2)
    visiting_plan = at_each(monkeypatch, lambda epoch, place: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted, match="the checkpoint of step 2 could not be written"):
        train_weights(tmp_path, Train(total_epochs=1), visiting_plan)


def test_unwritten_log_lines_are_retried(tmp_path):
    log = MetricsLog(tmp_path, 0, 0)
    file, room = log.file, [10, None, 10**6]

    class Disk:
        close = file.close

        def write(self, text):
            if (size := room.pop(0)) is None:
                raise FULL
            return file.write(text[:size])

    log.file = Disk()
    for step in range(3):
        log.write(step, loss=0.5)
    log.close()
    assert read_log(tmp_path) == [{"step": step, "loss": 0.5} for step in range(3)]


KILLED = """
import os, pytest, signal, sys
from pathlib import Path
from tests.train import test_checkpoint as here
directory = Path(sys.argv[1])
def visit(epoch, place):
    if (epoch, place) == (2, 1):
        os.kill(os.getpid(), signal.SIGKILL)
visiting_plan = here.at_each(pytest.MonkeyPatch(), visit)
here.train_weights(directory, here.Train(total_epochs=4, save_minutes=here.EACH_CALL), visiting_plan)
"""


@pytest.mark.slow
def test_killed_process_resumes_to_same_bits(tmp_path):
    whole = train_weights(tmp_path / "whole", Train(total_epochs=4))
    (tmp_path / "part").mkdir()
    root = Path(__file__).resolve().parents[2]
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "part")], cwd=root, timeout=120)
    assert killed.returncode == -signal.SIGKILL and 10 in numbers(tmp_path / "part")
    epochs = []
    visiting_plan = lambda epoch, steps: epochs.append(epoch) or plan(epoch, steps)
    assert (train_weights(tmp_path / "part", Train(total_epochs=4), visiting_plan) == whole).all()
    assert epochs[-2:] == [2, 3] and len(read_log(tmp_path / "part")) == len(read_log(tmp_path / "whole"))


def test_a_save_into_a_directory_that_cannot_be_made_leaves_no_thread(tmp_path):
    """The process would wait for one at its exit, for minutes after its last line."""
    (tmp_path / "file").touch()
    threads_before = set(threading.enumerate())
    with pytest.raises(InputError, match="could not be written to .*; make it writable and --resume"):
        save_params(tmp_path / "file" / "final", {"w": jnp.ones(3)})
    left = set(threading.enumerate()) - threads_before
    assert all(type(thread) is threading.Thread for thread in left), "those of executors end at the exit"


def test_parameters_of_another_shape_are_refused(tmp_path):
    save_params(tmp_path / "final", {"w": jnp.ones(3)})
    with pytest.raises(InputError, match="must have shape"):
        load_params(tmp_path / "final", {"w": jax.ShapeDtypeStruct((5,), jnp.float32)})
