"""Search: an Optuna study with its samplers.

The study is never restored. A sweep is a deterministic function of its settings and of the results of its runs, so the
same command proposes the same points again and finds the results of finished runs (driver.py).
"""

from pathlib import Path

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from attention_jax.errors import InputError
from attention_jax.sweep.plan import Settings
from attention_jax.sweep.space import Point, Space, Values, grid, is_finite

NAME = "sweep"
"""The name of the study in its journal."""
STARTUP, BATCH = 10, 4
"""TPE: the number of random points at the start, and of the points per round, which train together."""

optuna.logging.set_verbosity(optuna.logging.WARNING)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space in Optuna's terms."""

    def distribution(d):
        if isinstance(d, Values):
            return CategoricalDistribution(d.choices)
        return IntDistribution(int(d.low), int(d.high), d.log) if d.whole else FloatDistribution(d.low, d.high, d.log)

    return {name: distribution(dimension) for name, dimension in space.items()}


def new_study(settings: Settings, journal: Path | None = None) -> optuna.Study:
    """Create a study without trials, in memory or in a new journal, a file that every Optuna tool can read."""
    seed, storage = settings.config.train.seed, None
    if journal:
        for suffix in ("", ".lock"):  # with the lock of a process that was killed
            journal.with_name(journal.name + suffix).unlink(missing_ok=True)
        storage = JournalStorage(JournalFileBackend(str(journal)))
    tpe = settings.method == "tpe"
    sampler = TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True) if tpe else RandomSampler(seed)
    direction = "minimize" if settings.lower else "maximize"
    study = optuna.create_study(study_name=NAME, storage=storage, sampler=sampler, direction=direction)
    every = grid(settings.space) if is_finite(settings.space) else []
    if settings.method == "grid" or len(every) <= settings.trials:
        for point in every[: settings.trials]:
            study.enqueue_trial(point)
    return study


def load_study(journal: Path) -> optuna.Study:
    """Load the study from a journal, to which a running sweep may still append; InputError if it is damaged."""
    try:
        return optuna.load_study(study_name=NAME, storage=JournalStorage(JournalFileBackend(str(journal))))
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise InputError(f"{journal} is damaged ({error!r}): the command of the sweep writes it again") from error


def points(study: optuna.Study) -> dict[int, Point]:
    """Return {number: point} of the proposed trials, without repeated points."""
    points_by_number: dict[int, Point] = {}
    for trial in study.get_trials(deepcopy=False):
        if trial.state != TrialState.WAITING and trial.params not in points_by_number.values():
            points_by_number[trial.number] = trial.params
    return points_by_number


def ask(study: optuna.Study, space: Space, count: int) -> dict[int, optuna.Trial]:
    """Propose up to `count` trials at new points, {number: trial}; fewer if 100 attempts find no new one."""
    tried, proposed = list(points(study).values()), {}
    for _ in range(100 * count):
        if len(proposed) == count:
            break
        trial = study.ask(distributions(space))
        if trial.params in tried:
            study.tell(trial, state=TrialState.FAIL)
            continue
        tried.append(trial.params)
        proposed[trial.number] = trial
    return proposed


def rounds(method: str, trials: int) -> list[int]:
    """Return the number of points of each round; a round uses the results of those before it.

    >>> rounds("random", 20), rounds("tpe", 20)
    ([20], [10, 4, 4, 2])
    """
    if method != "tpe" or trials <= STARTUP:
        return [trials]
    remaining = trials - STARTUP
    return [STARTUP, *[min(BATCH, remaining - i) for i in range(0, remaining, BATCH)]]
