"""Checkpoints through orbax: written in the background, committed by renaming, the last N and the best one kept.

A checkpoint is the training state as ordinary arrays plus a small JSON (the history so far), so that one written on
eight devices resumes on one. What orbax has not committed does not exist: a half-written checkpoint is never loaded.
"""

import logging
import sys
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep

from attention_jax import InputError

logging.getLogger("absl").setLevel(logging.ERROR)  # orbax announces every step it takes


def host(tree):
    """A NumPy copy of every leaf (a copy: the next training step is given the device's buffers)."""
    return jax.tree.map(np.array, jax.device_get(tree))


def _checked(read, like, where: str):
    """`read()`, whose tree must have the shapes of `like`; whatever goes wrong becomes one InputError.

    Where one of orbax's readers fails, those it abandons complain from their threads, some of them later: they are not heard.
    """
    hook, sys.unraisablehook = sys.unraisablehook, lambda *_: None
    try:
        tree, *rest = read()
        sys.unraisablehook = hook
    except Exception as error:  # orbax, tensorstore and json each raise their own kinds
        reason = " ".join(str(error).split())[:120]
        raise InputError(
            f"cannot read {where}: it is damaged or of another model ({type(error).__name__}: {reason}); delete it or start a new run"
        ) from error
    for (path, want), got in zip(jax.tree.leaves_with_path(like), jax.tree.leaves(tree), strict=True):
        if np.shape(got) != np.shape(want):
            name = jax.tree_util.keystr(path)
            raise InputError(
                f"{where} is of another model: {name} must have shape {np.shape(want)}, has {np.shape(got)}; use the run's own options"
            )
    return tree, *rest


class Checkpoints:
    """The checkpoints of one run, numbered by optimizer step."""

    def __init__(self, directory: Path, keep_last: int = 1):
        best = keep.BestN(get_metric_fn=lambda metrics: metrics["quality"], n=1, keep_checkpoints_without_metrics=False)
        policy = keep.AnyPreservationPolicy([keep.LatestN(max(keep_last, 1)), best])
        self.directory = Path(directory).absolute()
        self.manager = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=policy, best_fn=lambda metrics: metrics["quality"], cleanup_tmp_directories=True
            ),
        )

    def save(self, state, progress: dict, quality: float | None = None):
        """Begin to write `state` (returns before it is on disk). The best checkpoint is the one of the highest `quality`."""
        state = host(state)
        parts = ocp.args.Composite(state=ocp.args.StandardSave(state), progress=ocp.args.JsonSave(progress))
        self.manager.save(
            int(state.step), args=parts, metrics=None if quality is None else {"quality": quality}, force=True
        )

    def steps(self) -> list[int]:
        """The optimizer steps of all committed checkpoints, oldest first."""
        self.manager.wait_until_finished()
        return sorted(self.manager.all_steps())

    def best(self) -> int:
        """The step of the checkpoint of the highest quality."""
        self.manager.wait_until_finished()
        return self.manager.best_step()

    def restore(self, step: int, like):
        """State (NumPy leaves, shaped as `like`) and progress at `step`; InputError if damaged or of another model."""
        target = jax.tree.map(lambda x: np.zeros(np.shape(x), x.dtype), like)

        def read():
            parts = ocp.args.Composite(state=ocp.args.StandardRestore(target), progress=ocp.args.JsonRestore())
            loaded = self.manager.restore(step, args=parts)
            return loaded.state, loaded.progress

        return _checked(read, like, f"the checkpoint {self.directory / str(step)}")

    def close(self):
        self.manager.wait_until_finished()
        self.manager.close()


def save_params(directory: Path, params):
    """Write the parameters a run ended with, replacing those of an earlier end."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(Path(directory).absolute(), host(params), force=True)


def load_params(directory: Path, like):
    """The parameters in `directory`, shaped as `like`; InputError if damaged or of another model."""
    target = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), like)
    with ocp.StandardCheckpointer() as checkpointer:
        return _checked(
            lambda: (checkpointer.restore(Path(directory).absolute(), target),), like, f"the parameters in {directory}"
        )[0]


def average(states: list):
    """The mean of the parameters of several states, accumulated in float64 (Vaswani et al. 2017, section 6.1)."""
    trees = [state.params for state in states]
    return jax.tree.map(lambda *xs: np.mean(np.stack(xs).astype(np.float64), axis=0).astype(xs[0].dtype), *trees)
