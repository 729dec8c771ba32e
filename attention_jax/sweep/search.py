"""Which points to try next, and which to give up: pure functions of a space, a seed and what is known so far.

Proposals are asked of optuna in a study that lives in memory and is filled with the history first, so that a sweep
that was killed and goes on asks the same question and gets the same answer as one that was not.
"""

import math
import warnings
from collections.abc import Sequence

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from attention_jax.sweep.space import Point, Space, Values, grid, is_finite

ETA = 3
"""Successive halving keeps one of so many (Li et al. 2018 advise 3 or 4)."""
STARTUP, BATCH = 10, 4
"""TPE: random points first, then so many proposals at a time, which train together."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in optuna's words."""

    def one(d):
        if isinstance(d, Values):
            return CategoricalDistribution(d.choices)
        return (
            IntDistribution(int(d.low), int(d.high), log=d.log)
            if d.whole
            else FloatDistribution(d.low, d.high, log=d.log)
        )

    return {name: one(dimension) for name, dimension in space.items()}


def resolve(method: str, space: Space) -> str:
    """ "auto" is a grid where there are only lists, else random search."""
    return ("grid" if is_finite(space) else "random") if method == "auto" else method


def rounds(method: str, trials: int) -> list[int]:
    """How many points each round proposes; a round sees the results of those before it.

    >>> rounds("random", 20), rounds("tpe", 20)
    ([20], [10, 4, 4, 2])
    """
    if method != "tpe" or trials <= STARTUP:
        return [trials]
    rest = trials - STARTUP
    return [STARTUP, *[min(BATCH, rest - i) for i in range(0, rest, BATCH)]]


def suggest(
    space: Space, method: str, seed: int, history: Sequence[tuple[Point, float | None]], count: int
) -> list[Point]:
    """The next `count` points, different from each other and from the history; fewer if a finite space is exhausted.

    `history` holds all (point, value) so far in order, smaller values being better; None is the value of a trial that
    failed.
    """
    size = len(grid(space)) if is_finite(space) else math.inf
    known = [point for point, _ in history]
    if method == "grid" or (method != "tpe" and size <= len(known) + count):
        return [point for point in grid(space) if point not in known][:count]
    asked, points = distributions(space), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna calls its quasi-random sampler and constant_liar experimental
        study = optuna.create_study(sampler=_sampler(method, seed, 0))
        for point, value in history:
            state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
            study.add_trial(optuna.trial.create_trial(params=point, distributions=asked, value=value, state=state))
        if (
            method == "qmc" and not history
        ):  # it takes the space from the first trial and would draw that one without the sequence
            first = {
                name: d.choices[0] if isinstance(d, CategoricalDistribution) else d.low for name, d in asked.items()
            }
            study.add_trial(optuna.trial.create_trial(params=first, distributions=asked, value=0.0))
        for attempt in range(100 * count):
            if len(points) == count or len(known) + len(points) >= size:
                break
            if method != "qmc":
                study.sampler = _sampler(method, seed, len(known) + attempt)
            point = dict(study.ask(asked).params)
            if point not in known + points:
                points.append(point)
    return points


def _sampler(method: str, seed: int, number: int) -> optuna.samplers.BaseSampler:
    """A fresh sampler for each question: what it says does not depend on how many were asked before a restart."""
    seed = (seed * 1_000_003 + number) % (1 << 31)
    if method == "tpe":
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True)
    return (
        optuna.samplers.QMCSampler(seed=seed, scramble=True)
        if method == "qmc"
        else optuna.samplers.RandomSampler(seed=seed)
    )


def brackets(method: str, epochs: int) -> list[list[int]]:
    """The epochs at which trials are compared, a list a bracket; the last is the end. Trial i is in bracket i mod n.

    Successive halving (Jamieson & Talwalkar 2016) is the bracket that begins with the shortest runs; Hyperband
    (Li et al. 2018, algorithm 1) runs all brackets, down to the one that never stops a run early.

    >>> brackets("halving", 9), brackets("hyperband", 9), brackets("random", 9)
    ([[1, 3, 9]], [[1, 3, 9], [3, 9], [9]], [[9]])
    """
    if method not in ("halving", "hyperband"):
        return [[epochs]]
    most = int(math.log(epochs, ETA) + 1e-9)
    rungs = [[max(1, round(epochs / ETA**k)) for k in range(s, -1, -1)] for s in range(most, -1, -1)]
    return rungs if method == "hyperband" else rungs[:1]


def survivors(values: Sequence[float], eta: int = ETA) -> list[int]:
    """The places of the best 1/eta of `values` (smaller is better, NaN is worst; earlier trials win ties), in order.

    >>> survivors([0.5, 0.1, 0.3, 0.2], 2)
    [1, 3]
    """
    order = sorted(range(len(values)), key=lambda i: (math.inf if math.isnan(values[i]) else values[i], i))
    return sorted(order[: max(1, math.ceil(len(values) / eta))])
