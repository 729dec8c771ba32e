"""`Task`: the seam that joins data, model, loss and evaluation. One file a family; the loop knows only this tuple.

Families are separate files (the design's single `tasks.py` would hold five), and each is imported only when it is asked for.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from attention_jax.config import named


class Task(NamedTuple):
    """A family of models on a dataset, as pure functions and the training data."""

    init: Callable[[Any], Any]  # rng -> parameters
    loss: Callable[[Any, dict, Any], tuple]  # (params, batch, rng) -> (sum, count, {name: (sum, count)}); traced
    buckets: tuple[dict, ...]  # training rows grouped by shape: {name: array [rows, ...]}
    plan: Callable[[int, int], list]  # (epoch, steps_per_call) -> [(bucket, indices [K, B], weight [K, B]), ...]
    evaluate: Callable[[Any, bool], dict]  # (params, full) -> {"valid.loss": ..., ...}; full at the end of a run
    report: Callable[[Any, Any], list]  # (params, directory) -> paths of the figures it drew
    predict: Callable[..., list]  # (params, texts, figure path or None) -> outputs, one line each
    describe: Callable[[], dict]  # facts of the data and the model for result.json


@functools.lru_cache(maxsize=2)
def load_once(load, *settings):
    """`load(*settings)`, remembered: the tasks of a sweep share one copy of their data."""
    return load(*settings)


def build(config) -> Task:
    """The task of a configuration, chosen by the type of its model."""
    return named(config.model.task)(config)
