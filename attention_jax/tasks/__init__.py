"""`Task`: the seam that joins data, model, loss and evaluation. One class a family; the loop knows only these names.

Each family is a file, imported only when it is asked for.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from attention_jax.config import Config, named
from attention_jax.report.attended import Looked


class Evaluation(NamedTuple):
    """What an evaluation found."""

    metrics: dict[str, float]
    """{"valid.loss": ..., ...}"""
    written: dict[str, np.ndarray]
    """What the model wrote for each split it was made to write for: tokens [N, T], without bos. A report reads it."""
    samples: tuple[str, ...] = ()
    """A few lines of it, for who watches the training."""


class Task(Protocol):
    """A family of models on a dataset. Nothing in it changes once it is made.

    The families are frozen dataclasses that are equal to themselves only (`eq=False`): compiled functions are cached by
    method, and a bound method is equal to another one if their objects are. `loss` is traced, also with tracers in
    `config`.
    """

    config: Config
    data: Any
    model: Any
    """The Flax module."""

    @property
    def said(self) -> str:
        """What was understood of a user's data, in a line that is said before training. A family may leave it out."""

    @property
    def buckets(self) -> tuple[dict[str, np.ndarray], ...]:
        """The training rows grouped by shape: {name: array [rows, ...]}."""

    def init(self, rng) -> Any:
        """Fresh parameters."""

    def loss(self, params, batch: dict, rng) -> tuple[Any, Any, dict]:
        """(sum, count, {name: (sum, count)}) of a batch: rows of a bucket, and "weight" [B], 0 for a row that is
        padding."""

    def plan(self, epoch: int, steps_per_call: int) -> list:
        """The compiled calls of an epoch: [(bucket, indices [K, B], weight [K, B]), ...]."""

    def evaluate(self, params, full: bool) -> Evaluation:
        """On held-out data, briefly after an epoch and in `full` at the end of a run."""

    def metric_names(self, full: bool) -> list[str]:
        """The metrics that `evaluate(params, full)` may give. A family may leave it out: then an option that names a
        metric which does not exist is refused only after the first epoch."""

    def evaluated_with(self) -> dict[str, tuple[Callable, dict[str, np.ndarray], int]]:
        """The functions that `evaluate` runs over held-out rows, {"evaluation" or "decoding": (function of (params,
        batch), arrays of the largest split, rows a batch)}: what there is to compile besides training."""

    def report(self, params, evaluation: Evaluation, directory: Path) -> list[Path]:
        """Draw figures in `directory` and write texts beside it; the paths of the figures. `evaluation` is a full
        one."""

    def predict(self, params, texts: list[str], figure: Path | None) -> list[str]:
        """One line for each text; with `figure` what the model looks at is drawn there."""

    def looked(self, params, texts: list[str]) -> tuple[Looked, ...]:
        """Where the model looks at each text, or at some held-out inputs without any; () if it has no attention."""

    def describe(self) -> dict:
        """Facts of the data and the model for result.json."""


@functools.lru_cache(maxsize=2)
def load_once(load: Callable, *settings):
    """`load(*settings)`, remembered: the tasks of a sweep share one copy of their data."""
    return load(*settings)


def build(config: Config) -> Task:
    """The task of a configuration, which its model's options name."""
    if config.model is None or config.data is None:
        raise InputError(f"training {config.name} needs data and a model; its configuration lacks one of them")
    return named(config.model.task)(config)


def build_model(config: Config, *sizes):
    """The Flax module that holds the model's options; `sizes` are what the data decide."""
    return named(config.model.module)(config.model, *sizes)


@functools.partial(jax.jit, static_argnames=("model", "shape"))
def initial(model, rng, shape: tuple[int, ...]):
    """Fresh parameters of a model that reads one array of this shape."""
    return model.init(rng, jnp.zeros(shape))["params"]
