"""Checkpoints through orbax: written in the background, committed by renaming, the last N and the best one kept.

A checkpoint is the training state as ordinary arrays plus a small JSON (the history so far), so that one written on
eight devices resumes on one. What orbax has not committed does not exist: a half-written checkpoint is never loaded.
"""

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from attention_jax import InputError

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax announces every step it takes


def host(tree):
    """A NumPy copy of every leaf (a copy: the next training step is given the device's buffers)."""
    return jax.tree.map(np.array, jax.device_get(tree))


def _read(read, where: str):
    """`read()`; whatever goes wrong becomes one InputError.

    Where one of orbax's readers fails, those it abandons complain from their threads, some of them later: they are not
    heard.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda *_: None
    try:
        value = read()
    except Exception as error:  # orbax, tensorstore and json each raise their own kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
        raise InputError(
            f"cannot read {where}: it is damaged or of another model ({reason}); delete it or start a new run"
        ) from error
    sys.unraisablehook = hook
    return value


def _read_like(like, read, where: str):
    """The tree that `read()` gives, which must have the shapes of `like`."""
    tree = _read(read, where)
    for (path, ours), theirs in zip(jax.tree.leaves_with_path(like), jax.tree.leaves(tree), strict=True):
        if np.shape(theirs) != np.shape(ours):
            name = f"{jax.tree_util.keystr(path)} must have shape {np.shape(ours)}, has {np.shape(theirs)}"
            raise InputError(f"{where} is of another model: {name}; use the run's own options")
    return tree


class Earlier(NamedTuple):
    """Runs that trained together in another directory, of which some go on here."""

    directory: Path
    members: list[int]
    """The places there of those that go on."""


class Checkpoints:
    """The checkpoints of one run, or of `runs` side by side, numbered by the optimizer steps of all of them together.

    Kept are as many of the last ones as `train` (a `config.Train`) needs, and for each of the first `best_of` runs the
    one after its best epoch. Where there is none yet, `earlier` may say where the runs have come from.
    """

    def __init__(self, directory: Path, train, best_of: int = 0, earlier: Earlier | None = None):
        best = [
            keep.BestN(get_metric_fn=lambda quality, m=str(m): quality[m], n=1, keep_checkpoints_without_metrics=False)
            for m in range(best_of)
        ]
        last = keep.LatestN(max(train.keep_last, train.average_last + 1, 1))
        self.directory, self.earlier, self.train = Path(directory).absolute(), earlier, train
        self.manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=keep.AnyPreservationPolicy([last, *best]),
                best_fn=lambda quality: max(quality.values()),  # makes orbax read the qualities; `best` decides
                cleanup_tmp_directories=True,
            ),
        )

    def save(self, number: int, saved, progress: dict, quality: list[float] | None = None):
        """Begin to write a saved state (returns before it is on disk), after an epoch with the quality of each run."""
        parts = ocp.args.Composite(state=ocp.args.StandardSave(saved), progress=ocp.args.JsonSave(progress))
        metrics = None if quality is None else {str(m): float(value) for m, value in enumerate(quality)}
        self.manager.save(number, args=parts, metrics=metrics, force=True)

    def numbers(self) -> list[int]:
        """The numbers of all committed checkpoints, oldest first."""
        self.manager.wait_until_finished()
        return sorted(self.manager.all_steps())

    def best(self, member: int = 0) -> int:
        """The number of the checkpoint after the best epoch of a run, the last one of equals."""
        quality = {number: self.manager.metrics(number) for number in self.numbers()}
        return max((values[str(member)], number) for number, values in quality.items() if values)[1]

    def last_epochs(self, count: int) -> list[int]:
        """The numbers of the checkpoints after the last `count` epochs."""
        at = {number: self.progress(number) for number in self.numbers()}
        last = max(progress["epoch"] for progress in at.values())
        return [n for n, progress in at.items() if not progress["chunk"] and progress["epoch"] > last - count]

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
        """Where to go on: at the latest checkpoint here, else at the one the runs have come from, else from `fresh`."""
        if numbers := self.numbers():
            return self.restore(numbers[-1], fresh)
        if self.earlier:
            with contextlib.closing(Checkpoints(self.earlier.directory, self.train)) as there:
                if numbers := there.numbers():
                    return there.some(numbers[-1], fresh, self.earlier.members)
        return fresh, {"epoch": 0, "chunk": 0, "runs": [None] * runs}

    def some(self, number: int, like, members: list[int]) -> tuple[Any, dict]:
        """`restore` for some of the runs side by side: every leaf has a leading axis of runs."""
        count = len(self.progress(number)["runs"])
        saved, progress = self.restore(number, jax.tree.map(lambda x: np.zeros((count, *x.shape[1:]), x.dtype), like))
        runs = [progress["runs"][member] for member in members]
        return jax.tree.map(lambda x: x[np.array(members)], saved), progress | {"runs": runs}

    def _name(self, number: int) -> str:
        return f"the checkpoint {self.directory / str(number)}"

    def close(self):
        self.manager.wait_until_finished()
        self.manager.close()


def save_params(directory: Path, params):
    """Write the parameters a run ended with, replacing those of an earlier end."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(directory).absolute(), host(params), force=True)


def load_params(directory: Path, like):
    """The parameters in `directory`, shaped as `like`; InputError if damaged or of another model."""
    with ocp.StandardCheckpointer() as checkpointer:
        read = lambda: checkpointer.restore(Path(directory).absolute(), _empty(like))
        return _read_like(like, read, f"the parameters in {directory}")


def _empty(like):
    return jax.tree.map(lambda x: np.zeros(np.shape(x), x.dtype), like)


def average(trees: list):
    """The mean of several trees of parameters, accumulated in float64 (Vaswani et al. 2017, section 6.1)."""
    return jax.tree.map(lambda *xs: np.mean(np.stack(xs).astype(np.float64), axis=0).astype(xs[0].dtype), *trees)
