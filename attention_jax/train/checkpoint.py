"""Asynchronous checkpoints with orbax, which keep the latest ones and the best one.

A checkpoint is the training state as ordinary arrays plus a small JSON (the history so far), so that one written on
eight devices resumes on one. Orbax commits by renaming: a half-written checkpoint is never loaded. Host 0 writes, and
all hosts read.
"""

import contextlib
import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from attention_jax.errors import InputError
from attention_jax.files import replace_numbers, restore_numbers
from attention_jax.train import hosts

logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax logs every step, and the errors that it raises


def to_host(tree):
    """Copy every leaf to a NumPy array (a copy: the next training step donates the device's buffers)."""
    return jax.tree.map(np.array, jax.device_get(tree))


@contextlib.contextmanager
def _suppress_thread_errors():
    """Suppress exceptions that orbax's orphaned threads raise after one of them has failed, but not the SystemExit of
    signals.py."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: hook(lost) if isinstance(lost.exc_value, SystemExit) else None
    yield
    sys.unraisablehook = hook


def _reason(error: Exception) -> str:
    if os.strerror(errno.ENOSPC) in str(error):
        return os.strerror(errno.ENOSPC)
    if isinstance(error, InputError):
        return str(error)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _read(read, where: str):
    """Return `read()`; any exception becomes an InputError."""
    try:
        with _suppress_thread_errors():
            return read()
    except Exception as error:  # orbax, tensorstore and json each raise their own kinds
        raise InputError(
            f"cannot read {where}: it is damaged or of another model ({_reason(error)}); delete it or start a new run"
        ) from error


def _read_like(like, read, where: str):
    """Return the tree `read()`; InputError unless it has the shapes of `like`."""
    tree = _read(read, where)
    for (path, expected), stored in zip(jax.tree.leaves_with_path(like), jax.tree.leaves(tree), strict=True):
        if np.shape(stored) != np.shape(expected):
            name = f"{jax.tree_util.keystr(path)} must have shape {np.shape(expected)}, has {np.shape(stored)}"
            raise InputError(f"{where} is of another model: {name}; use the run's own options")
    return tree


class LastEpochs(NamedTuple):
    """Orbax preservation policy: keep the last `n` checkpoints written after an epoch, which are those with metrics."""

    n: int

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """Whether to keep each checkpoint, oldest first."""
        epoch_ends = [index for index, checkpoint in enumerate(checkpoints) if checkpoint.metrics is not None]
        last = epoch_ends[max(len(epoch_ends) - self.n, 0) :]
        return [index in last for index in range(len(checkpoints))]


class Checkpoints:
    """The checkpoints of a run, numbered by its optimizer steps.

    It keeps as many of the latest ones as `train` (a `config.Train`) needs, and for each of the first `best_of`
    qualities (several, if the run is a population) the one after its best epoch.
    """

    def __init__(self, directory: Path, train, best_of: int = 0):
        best = [
            keep.BestN(get_metric_fn=lambda quality, m=str(m): quality[m], n=1, keep_checkpoints_without_metrics=False)
            for m in range(best_of)
        ]
        self.policies = [keep.LatestN(max(train.keep_last, 1)), LastEpochs(train.average_last), *best]
        self.directory, self.train = Path(directory).absolute(), train
        self.directory.mkdir(parents=True, exist_ok=True)
        self.manager = self._open()
        self.writer, self.writing = ThreadPoolExecutor(1, "checkpoints"), Future()
        self.writing.set_result(None)
        self.began, self.failing, self.failed_saves = time.monotonic(), False, []

    def _open(self) -> ocp.CheckpointManager:
        """Open the directory without half-written checkpoints. Each host has its own manager, without barriers."""
        process = jax.process_index()
        multiprocessing = ocp.options.MultiprocessingOptions(process, {process}, f"host{process}")
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=keep.AnyPreservationPolicy(self.policies),
                best_fn=lambda quality: max(quality.values()),  # makes orbax read the qualities; `best` decides
                create=False,
                cleanup_tmp_directories=hosts.is_primary(),
                enable_async_checkpointing=False,  # `writer` is in the background already
                multiprocessing_options=multiprocessing,
            ),
        )

    def due(self) -> bool:
        """Whether this is host 0, and its last save is finished and began `save_minutes` ago or earlier."""
        waited = time.monotonic() - self.began
        return hosts.is_primary() and 0 < 60 * self.train.save_minutes <= waited and self.writing.done()

    def save(self, number: int, saved, progress: dict, qualities: Sequence[float] | None = None):
        """Start writing a state fetched from the devices; after an epoch, with its `qualities`.

        Returns before it is on the disk, but waits for an earlier save. A failure prints one warning and leaves earlier
        checkpoints as they are.
        """
        self.began = time.monotonic()
        if hosts.is_primary():
            self.writing.result()
            self.writing = self.writer.submit(self._write, number, saved, progress, qualities)

    def _write(self, number: int, saved, progress: dict, qualities: Sequence[float] | None):
        progress = ocp.args.JsonSave(replace_numbers(progress))
        args = ocp.args.Composite(state=ocp.args.StandardSave(saved), progress=progress)
        metrics = None if qualities is None else {str(m): clip_quality(value) for m, value in enumerate(qualities)}
        if number in self.manager.all_steps():
            return  # it has not trained since
        try:
            self.directory.stat()  # orbax would make a new one
            with _suppress_thread_errors():
                self.manager.save(number, args=args, metrics=metrics, force=True)
            self.failing = False
        except Exception as error:  # orbax and tensorstore each raise their own kinds
            with contextlib.suppress(OSError, ValueError):
                self.manager = self._open()
            self._warn(number, error)
            self.failing, self.failed_saves = True, [*self.failed_saves, number]

    def _warn(self, number: int, error: Exception):
        """Print one warning for a series of failed saves."""
        if self.failing:
            return
        stays, free = None, ""
        with contextlib.suppress(OSError):  # the directory was removed
            stays = max(self.manager.all_steps(), default=None)
            free = f"; {shutil.disk_usage(self.directory).free / 1e6:.0f} MB are free"
        print(
            f"warning: {self._name(number)} could not be written ({_reason(error)}{free}); training continues, "
            + ("and there is none yet" if stays is None else f"and checkpoint {stays} stays"),
            file=sys.stderr,
        )

    def numbers(self) -> list[int]:
        """Return the numbers of all committed checkpoints, oldest first, after waiting for a save in progress."""
        self.writing.result()
        return hosts.broadcast(sorted(self.manager.all_steps()))

    def missing_numbers(self) -> list[int]:
        """Return the numbers of the checkpoints that could not be written, after waiting for a save in progress."""
        self.writing.result()
        return self.failed_saves

    def best(self, member: int = 0) -> int | None:
        """Return the number of the checkpoint of the best quality, or None."""
        quality = {number: self.manager.metrics(number) for number in self.numbers()}
        epoch_ends = [(values[str(member)], number) for number, values in quality.items() if values]
        return max(epoch_ends)[1] if epoch_ends else None

    def last_epochs(self, count: int) -> list[int]:
        """Return the numbers of the checkpoints of the last `count` epochs, without those that failed to be written."""
        epochs = lambda number: max(len(run["history"]) for run in self.progress(number)["runs"])
        at = {number: epochs(number) for number in self.numbers() if self.manager.metrics(number)}
        return [number for number, epoch in at.items() if epoch > max(at.values()) - count]

    def progress(self, number: int) -> dict:
        """Return {"epoch", "chunk", "runs": [`Run.progress()`]}; InputError if damaged."""
        args = ocp.args.Composite(progress=ocp.args.JsonRestore())
        read = lambda: restore_numbers(self.manager.restore(number, args=args).progress)
        return _read(read, self._name(number))

    def restore(self, number: int, like) -> tuple[Any, dict]:
        """Return a state with the shapes of `like`, and the progress; InputError if damaged or of another model."""
        progress = self.progress(number)
        args = ocp.args.Composite(state=ocp.args.StandardRestore(_empty(like)))
        return _read_like(like, lambda: self.manager.restore(number, args=args).state, self._name(number)), progress

    def resume(self, fresh) -> tuple[Any, dict]:
        """Return state and progress of the latest checkpoint, or `fresh` at the beginning."""
        if numbers := self.numbers():
            return self.restore(numbers[-1], fresh)
        return fresh, {"epoch": 0, "chunk": 0, "runs": [None]}

    def _name(self, number: int) -> str:
        return f"the checkpoint {self.directory / str(number)}"

    def close(self):
        self.writer.shutdown()
        self.manager.close()


def save_params(directory: Path, params):
    """Write a run's final parameters, replacing earlier ones; InputError if that fails.

    An asynchronous checkpointer starts its threads first: they would wait minutes for a directory that cannot be made,
    and the process for them.
    """
    try:
        with _suppress_thread_errors(), ocp.Checkpointer(ocp.StandardCheckpointHandler()) as checkpointer:
            checkpointer.save(Path(directory).absolute(), args=ocp.args.StandardSave(to_host(params)), force=True)
    except Exception as error:  # orbax and tensorstore each raise their own kinds
        for leftover in Path(directory).parent.glob(f"{Path(directory).name}.orbax-checkpoint-tmp*"):
            shutil.rmtree(leftover, ignore_errors=True)
        reason = _reason(error)
        advice = "free disk space" if reason == os.strerror(errno.ENOSPC) else "make it writable"
        raise InputError(
            f"the parameters could not be written to {directory} ({reason}); {advice} and --resume"
        ) from error


def load_params(directory: Path, like):
    """Return the parameters in `directory` with the shapes of `like`; InputError if damaged or of another model."""
    with ocp.StandardCheckpointer() as checkpointer:
        read = lambda: checkpointer.restore(Path(directory).absolute(), _empty(like))
        return _read_like(like, read, f"the parameters in {directory}")


def read_params(directory: Path):
    """Return the parameters in `directory`, of any model; InputError if damaged."""
    where = f"the parameters in {directory}"
    with ocp.StandardCheckpointer() as checkpointer:
        metadata = _read(lambda: checkpointer.metadata(Path(directory).absolute()).item_metadata, where)
    like = _read(lambda: _tree_of(metadata), where)
    return load_params(directory, like)


def _tree_of(metadata):
    """The tree of shapes in orbax's metadata; it is None if orbax could not read a file."""
    if metadata is None:
        raise InputError("a file is incomplete or missing")
    return metadata.tree


def read_checkpoint(directory: Path, like=None) -> tuple[str, Any]:
    """Return (description, parameters) of a run: of its best epoch or, before the first epoch ends, of its latest
    checkpoint.

    The directory is opened for reading only, so the run may train meanwhile. The parameters must have the shapes of
    `like`, if it is given.

    Raises:
      InputError: the checkpoint is damaged or of another model.
    """
    options = ocp.CheckpointManagerOptions(read_only=True, best_fn=lambda quality: max(quality.values()))
    with contextlib.closing(ocp.CheckpointManager(Path(directory).absolute(), options=options)) as manager:
        quality = {number: (manager.metrics(number) or {}).get("0") for number in manager.all_steps()}
    evaluated = [(value, number) for number, value in quality.items() if value is not None]
    number, newest = max(evaluated)[1] if evaluated else max(quality), max(quality)
    description = f"its best epoch, step {number} (the newest checkpoint is of step {newest})"
    if not evaluated:
        description = f"its newest checkpoint, step {number}, as no epoch has ended"
    state = read_params(Path(directory) / str(number) / "state")
    if like is None:
        return description, state["params"]
    return description, _read_like(like, lambda: state["params"], f"the checkpoint {Path(directory) / str(number)}")


def clip_quality(quality: float) -> float:
    """Return a quality as a number that JSON has: an infinite one becomes the largest number of its sign.

    >>> clip_quality(float("-inf")), clip_quality(0.5)
    (-1.7976931348623157e+308, 0.5)
    """
    return float(np.clip(quality, -sys.float_info.max, sys.float_info.max))


def _empty(like):
    return jax.tree.map(lambda x: np.zeros(np.shape(x), x.dtype), like)


def average(trees: list):
    """Average several trees of parameters in float64 (Vaswani et al. 2017, section 6.1)."""
    return jax.tree.map(lambda *xs: np.mean(np.stack(xs).astype(np.float64), axis=0).astype(xs[0].dtype), *trees)
