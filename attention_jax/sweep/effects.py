"""The effects of the options of a sweep: importances where the trials suffice, else differences of means."""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optuna

from attention_jax.report.intervals import student
from attention_jax.report.tables import number, span
from attention_jax.sweep.plan import Settings, Trial
from attention_jax.sweep.space import Values, short_names

ENOUGH = 20
"""Trials from which on importances are computed; they compare the best tenth of the trials with all."""


class Effect(NamedTuple):
    """The difference of the metric between two values of an option, the other options being equal."""

    option: str
    value: int | float | bool | str
    baseline: int | float | bool | str
    difference: float
    interval95: tuple[float, float] | None
    """None if the runs leave no degree of freedom for the noise."""


def importances(study: optuna.Study, trials: Sequence[Trial]) -> dict[str, float]:
    """Return the importance of each option (PED-ANOVA, Watanabe et al. 2023); {} with fewer trials than ENOUGH."""
    values = [trial.value for trial in trials if trial.state == "done"]
    if len(values) < ENOUGH or len(set(values)) < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the evaluator is experimental
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(value) for name, value in shares.items() if math.isfinite(value)}


def effects(settings: Settings, trials: Sequence[Trial]) -> list[Effect]:
    """Return the difference between each listed value of an option and its first one, with Student's 95 % interval.

    They are the coefficients of the least-squares fit of an additive model to the metric of every run: in a full grid,
    the differences of means. There are none where an option has a range, or where trials are missing that distinguish
    two options.
    """
    if not all(isinstance(dimension, Values) for dimension in settings.space.values()):
        return []
    choices = [(name, value) for name, dimension in settings.space.items() for value in dimension.choices[1:]]
    runs = [(trial.point, value) for trial in trials if trial.state == "done" for value in trial.values]
    design = np.array([[1.0, *(point[name] == value for name, value in choices)] for point, _ in runs])
    if not (choices and len(runs)) or np.linalg.matrix_rank(design) <= len(choices):
        return []
    values = np.array([value for _, value in runs])
    slopes = np.linalg.lstsq(design, values)[0]
    freedom, halves = len(runs) - design.shape[1], [None] * len(choices)
    if freedom:
        variance = np.sum((values - design @ slopes) ** 2) / freedom
        halves = student(freedom) * np.sqrt(variance * np.diag(np.linalg.inv(design.T @ design))[1:])
    return [
        Effect(
            name,
            value,
            settings.space[name].choices[0],
            float(slope),
            None if half is None else (float(slope - half), float(slope + half)),
        )
        for (name, value), slope, half in zip(choices, slopes[1:], halves, strict=True)
    ]


def lines(study: optuna.Study, settings: Settings, trials: Sequence[Trial]) -> list[str]:
    """Return what `importances` or else `effects` found, in words."""
    if shares := importances(study, trials):
        return ["importance: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items())]
    short = dict(zip(settings.space, short_names(settings.space)))
    texts = []
    for name, value, baseline, difference, interval in effects(settings, trials):
        around = f"{span(*interval)}, 95 %" if interval else "one run each: no interval"
        change = f"{short[name]} {value} instead of {baseline}"
        texts.append(f"{change} changes {settings.metric} by {number(difference)} ({around})")
    return texts
