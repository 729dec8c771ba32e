"""Checkpoints through orbax: written by a thread, committed by renaming, the last ones and the best one kept.

A checkpoint is the training state as ordinary arrays plus a small JSON (the history so far), so that one written on
eight devices resumes on one. What orbax has not committed does not exist: a half-written checkpoint is never loaded.
Of several hosts the first writes, and all read.
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

from attention_jax import InputError
from attention_jax.train import hosts

logging.getLogger("absl").setLevel(logging.CRITICAL)  # orbax announces every step it takes, and errors it raises


def host(tree):
    """A NumPy copy of every leaf (a copy: the next training step is given the device's buffers)."""
    return jax.tree.map(np.array, jax.device_get(tree))


@contextlib.contextmanager
def _others_unheard():
    """Where one of orbax's threads fails, those it abandons complain, some of them later: they are not heard. A
    SystemExit is no complaint (signals.py)."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda lost: hook(lost) if isinstance(lost.exc_value, SystemExit) else None
    yield
    sys.unraisablehook = hook


def _reason(error: Exception) -> str:
    if os.strerror(errno.ENOSPC) in str(error):
        return os.strerror(errno.ENOSPC)
    return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _read(read, where: str):
    """`read()`; whatever goes wrong becomes one InputError."""
    try:
        with _others_unheard():
            return read()
    except Exception as error:  # orbax, tensorstore and json each raise their own kinds
        raise InputError(
            f"cannot read {where}: it is damaged or of another model ({_reason(error)}); delete it or start a new run"
        ) from error


def _read_like(like, read, where: str):
    """The tree that `read()` gives, which must have the shapes of `like`."""
    tree = _read(read, where)
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(like), jax.tree.leaves(tree), strict=True):
        if np.shape(theirs) != np.shape(ours):
            name = f"{jax.tree_util.keystr(path)} must have shape {np.shape(ours)}, has {np.shape(theirs)}"
            raise InputError(f"{where} is of another model: {name}; use the run's own options")
    return tree


class LastEpochs(NamedTuple):
    """Keep the last `n` of the checkpoints that were written after an epoch, those that have a quality."""

    n: int

    def should_preserve(self, checkpoints, *, context) -> list[bool]:
        """One answer for each of orbax's checkpoints, which come oldest first."""
        after = [place for place, checkpoint in enumerate(checkpoints) if checkpoint.metrics is not None]
        last = after[max(len(after) - self.n, 0) :]
        return [place in last for place in range(len(checkpoints))]


class Checkpoints:
    """The checkpoints of one run, or of `runs` side by side, numbered by the optimizer steps of all of them together.

    Kept are as many of the last ones as `train` (a `config.Train`) needs, and for each of the first `best_of` runs the
    one after its best epoch. Where there is none yet, runs side by side may have begun in directories of their own.
    """

    def __init__(self, directory: Path, train, best_of: int = 0, begun: Sequence[Path] = ()):
        best = [
            keep.BestN(get_metric_fn=lambda quality, m=str(m): quality[m], n=1, keep_checkpoints_without_metrics=False)
            for m in range(best_of)
        ]
        self.kept = [keep.LatestN(max(train.keep_last, 1)), LastEpochs(train.average_last), *best]
        self.directory, self.begun, self.train = Path(directory).absolute(), begun, train
        self.directory.mkdir(parents=True, exist_ok=True)
        self.manager = self._open()
        self.writer, self.writing = ThreadPoolExecutor(1, "checkpoints"), Future()
        self.writing.set_result(None)
        self.began, self.failing, self.lost = time.monotonic(), False, []

    def _open(self) -> ocp.CheckpointManager:
        """orbax's view of what is on the disk, without what was half-written. A host's own: nobody waits in it."""
        here = jax.process_index()
        alone = ocp.options.MultiprocessingOptions(here, {here}, f"host{here}")
        return ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=keep.AnyPreservationPolicy(self.kept),
                best_fn=lambda quality: max(quality.values()),  # makes orbax read the qualities; `best` decides
                create=False,
                cleanup_tmp_directories=hosts.first(),
                enable_async_checkpointing=False,  # `writer` is in the background already
                multiprocessing_options=alone,
            ),
        )

    def due(self) -> bool:
        """Whether the first host, on which this is, began its last save `save_minutes` ago and has ended it."""
        waited = time.monotonic() - self.began
        return hosts.first() and 0 < 60 * self.train.save_minutes <= waited and self.writing.done()

    def save(self, number: int, saved, progress: dict, quality: list[float] | None = None):
        """Begin to write a saved state, after an epoch with the quality of each run.

        Returns before it is on the disk; where an earlier one is still being written, that is waited for. What cannot
        be written is said, and the checkpoints there are stay.
        """
        self.began = time.monotonic()
        if hosts.first():
            self.writing.result()
            self.writing = self.writer.submit(self._write, number, saved, progress, quality)

    def _write(self, number: int, saved, progress: dict, quality: list[float] | None):
        parts = ocp.args.Composite(state=ocp.args.StandardSave(saved), progress=ocp.args.JsonSave(progress))
        metrics = None if quality is None else {str(m): float(value) for m, value in enumerate(quality)}
        if number in self.manager.all_steps():
            return  # no run has trained since: going on from there comes to the same
        try:
            with _others_unheard():
                self.manager.save(number, args=parts, metrics=metrics, force=True)
            self.failing = False
        except Exception as error:  # orbax and tensorstore each raise their own kinds
            with contextlib.suppress(OSError):
                self.manager = self._open()
            self._complain(number, error)
            self.failing, self.lost = True, [*self.lost, number]

    def _complain(self, number: int, error: Exception):
        """One line for all that fail one after another."""
        if not self.failing:
            stays = max(self.manager.all_steps(), default=None)
            print(
                f"warning: {self._name(number)} could not be written ({_reason(error)}; "
                f"{shutil.disk_usage(self.directory).free / 1e6:.0f} MB are free); training goes on, "
                + ("and there is none yet" if stays is None else f"and checkpoint {stays} stays"),
                file=sys.stderr,
            )

    def numbers(self) -> list[int]:
        """The numbers of all committed checkpoints, oldest first; waits for the one that is being written."""
        self.writing.result()
        return hosts.agree(sorted(self.manager.all_steps()))

    def best(self, member: int = 0) -> int | None:
        """The number of the checkpoint after the best epoch of a run, the last one of equals; None if there is none."""
        quality = {number: self.manager.metrics(number) for number in self.numbers()}
        after = [(values[str(member)], number) for number, values in quality.items() if values]
        return max(after)[1] if after else None

    def last_epochs(self, count: int) -> list[int]:
        """The numbers of the checkpoints after the last `count` epochs, of those that could be written."""
        epochs = lambda number: max(len(run["history"]) for run in self.progress(number)["runs"])
        at = {number: epochs(number) for number in self.numbers() if self.manager.metrics(number)}
        return [number for number, epoch in at.items() if epoch > max(at.values()) - count]

    def progress(self, number: int) -> dict:
        """{"epoch", "chunk", "runs": [what each run remembers]}; InputError if damaged or of another format."""
        parts = ocp.args.Composite(progress=ocp.args.JsonRestore())
        progress = _read(lambda: self.manager.restore(number, args=parts).progress, self._name(number))
        if "runs" not in progress:
            raise InputError(
                f"{self._name(number)} is of an earlier version, whose unfinished runs cannot go on; "
                "delete it or start a new run"
            )
        return progress

    def restore(self, number: int, like) -> tuple[Any, dict]:
        """The saved state, shaped as `like`, and the progress; InputError if damaged or of another model."""
        progress = self.progress(number)
        parts = ocp.args.Composite(state=ocp.args.StandardRestore(_empty(like)))
        return _read_like(like, lambda: self.manager.restore(number, args=parts).state, self._name(number)), progress

    def resume(self, fresh, runs: int) -> tuple[Any, dict]:
        """Where to go on: at the latest checkpoint here, else where the runs have begun, else from `fresh`."""
        if numbers := self.numbers():
            return self.restore(numbers[-1], fresh)
        return joined(self.begun, self.train, fresh) or (fresh, {"epoch": 0, "chunk": 0, "runs": [None] * runs})

    def _name(self, number: int) -> str:
        return f"the checkpoint {self.directory / str(number)}"

    def close(self):
        self.writer.shutdown()
        self.manager.close()


def part(saved, progress: dict, directories: Sequence[Path], train):
    """Write a checkpoint of each of the runs side by side, as it would be of that run alone."""
    for member, (directory, run) in enumerate(zip(directories, progress["runs"], strict=True)):
        with contextlib.closing(Checkpoints(directory, train)) as own:
            own.save(run["step"], jax.tree.map(lambda x, m=member: x[m], saved), progress | {"runs": [run]})


def joined(directories: Sequence[Path], train, like) -> tuple[Any, dict] | None:
    """What `part` wrote, side by side again; None where a run has no checkpoint or they are of several epochs."""
    read = []
    for directory in directories if all(map(Path.is_dir, directories)) else ():
        with contextlib.closing(Checkpoints(directory, train)) as own:
            read += [own.restore(number, jax.tree.map(lambda x: x[0], like)) for number in own.numbers()[-1:]]
    at = [{**progress, "runs": None} for _, progress in read]
    if not read or len(read) < len(directories) or any(place != at[0] for place in at):
        return None
    runs = [run for _, progress in read for run in progress["runs"]]
    return jax.tree.map(lambda *xs: np.stack(xs), *[saved for saved, _ in read]), at[0] | {"runs": runs}


def save_params(directory: Path, params):
    """Write the parameters a run ended with, replacing those of an earlier end; InputError where that fails."""
    try:
        with _others_unheard(), ocp.StandardCheckpointer() as checkpointer:
            checkpointer.save(Path(directory).absolute(), host(params), force=True)
    except Exception as error:  # orbax and tensorstore each raise their own kinds
        raise InputError(
            f"the parameters could not be written to {directory} ({_reason(error)}); make room and --resume"
        ) from error


def load_params(directory: Path, like):
    """The parameters in `directory`, shaped as `like`; InputError if damaged or of another model."""
    with ocp.StandardCheckpointer() as checkpointer:
        read = lambda: checkpointer.restore(Path(directory).absolute(), _empty(like))
        return _read_like(like, read, f"the parameters in {directory}")


def read_params(directory: Path):
    """The parameters in `directory`, whatever their model; InputError if damaged."""
    where = f"the parameters in {directory}"
    with ocp.StandardCheckpointer() as checkpointer:
        like = _read(lambda: checkpointer.metadata(Path(directory).absolute()).item_metadata.tree, where)
    return load_params(directory, like)


def read_checkpoint(directory: Path, like) -> tuple[int, Any]:
    """(number, parameters) of a run's best epoch, or of its latest checkpoint if no epoch has ended; InputError if it
    is damaged or of another model. Nothing is written: the run may go on meanwhile."""
    options = ocp.CheckpointManagerOptions(read_only=True, best_fn=lambda quality: max(quality.values()))
    with contextlib.closing(ocp.CheckpointManager(Path(directory).absolute(), options=options)) as manager:
        quality = {number: (manager.metrics(number) or {}).get("0") for number in manager.all_steps()}
    known = [(value, number) for number, value in quality.items() if value is not None]
    number = max(known)[1] if known else max(quality)
    state = read_params(Path(directory) / str(number) / "state")
    return number, _read_like(like, lambda: state["params"], f"the checkpoint {Path(directory) / str(number)}")


def _empty(like):
    return jax.tree.map(lambda x: np.zeros(np.shape(x), x.dtype), like)


def average(trees: list):
    """The mean of several trees of parameters, accumulated in float64 (Vaswani et al. 2017, section 6.1)."""
    return jax.tree.map(lambda *xs: np.mean(np.stack(xs).astype(np.float64), axis=0).astype(xs[0].dtype), *trees)
