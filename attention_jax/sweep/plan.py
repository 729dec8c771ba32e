"""Settings of a sweep, and the states of its trials, which are read from their run directories.

The sweep's directory has settings.json, journal.log (the Optuna study), groups/ (input of the workers), and
trials/0007/seed0 (runs).
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import config as configs
from attention_jax.errors import InputError, lower_is_better
from attention_jax.files import read_json
from attention_jax.runs import directory as run_directory
from attention_jax.sweep.space import Point, Space, format_space, parse


class Settings(NamedTuple):
    """The settings of a sweep, which cannot change when it resumes."""

    config: configs.Config
    space: Space
    method: str
    trials: int
    seeds: int
    metric: str

    @property
    def lower(self) -> bool:
        """Whether smaller values of the metric are better."""
        return lower_is_better(self.metric)

    def sign(self, value: float) -> float:
        """`value` so that smaller is better."""
        return value if self.lower else -value


class Trial(NamedTuple):
    """A point of the search space, and the state of its runs."""

    number: int
    point: Point
    state: str
    """done, failed, running or waiting."""
    value: float | None
    """The mean of the metric over the seeds, after their last epochs if the trial is not done."""
    values: list[float]
    reason: str
    directories: list[Path]
    histories: list[list[dict]]
    results: list[dict | None]


def settings_json(settings: Settings) -> dict:
    """The contents of settings.json."""
    return settings._asdict() | {"config": configs.to_json(settings.config), "space": format_space(settings.space)}


def read_settings(directory: Path, trust_code: bool = False, like: configs.Config | None = None) -> Settings:
    """The settings of the sweep in `directory`; `trust_code` and `like` are for `config.check_trusted`."""
    path = Path(directory) / "settings.json"
    if not path.exists():
        raise InputError(
            f"{directory} is not a sweep: it has no settings.json; give a directory that `launch.py sweep` made"
        )
    values = read_json(path)
    configs.check_trusted(values, path, trust_code, like)
    try:
        config = configs.from_json(values["config"])
        return Settings(**values | {"config": config, "space": parse(config, values["space"])})
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise InputError(
            f"{path} is damaged or of another version ({' '.join(str(error).split())}); "
            "start a new sweep with another --out DIR"
        ) from error


def trial_directory(directory: Path, trial: int, seed: int) -> Path:
    """The directory of one run of a trial."""
    return directory / "trials" / f"{trial:04d}" / f"seed{seed}"


def run_config(settings: Settings, point: Point, seed: int) -> configs.Config:
    """The configuration of one run."""
    return configs.replace(settings.config, **point, **{"train.seed": seed})


def seeds(settings: Settings) -> list[int]:
    """Return the seeds of each trial, which count up from the experiment's seed."""
    return list(range(settings.config.train.seed, settings.config.train.seed + settings.seeds))


def is_late(settings: Settings, trial: Trial) -> bool:
    """Whether a trial has its result from a second attempt, of which the study must not know: TPE has proposed later
    points without it, and a resumed sweep has to propose the same ones."""
    return settings.method == "tpe" and any((path / run_directory.FAILURES[1]).exists() for path in trial.directories)


def rank_value(settings: Settings, trial: Trial) -> float | None:
    """The value of a trial that has ended for the search: worse than any number if it diverged, None if it failed for
    another reason, which says nothing about its point."""
    if trial.state == "failed" and (all(trial.results) or any(map(run_directory.has_diverged, trial.directories))):
        return settings.sign(math.inf)
    return trial.value if trial.state == "done" else None


def metric_value(settings: Settings, result: dict | None, history: Sequence[dict]) -> float | None:
    """The metric of one run: of its result, or after its last epoch. InputError if the run does not have it."""
    metrics = {**(history[-1] if history else {}), **(result["metrics"] if result else {})}
    if settings.metric in metrics:
        return float(metrics[settings.metric])
    if result:
        names = [name for name in metrics if name not in ("epoch", "step", "seconds")]
        raise InputError(f"--metric must be one of {', '.join(names)}; got {settings.metric}")
    return None


def trials(directory: Path, settings: Settings, points: Mapping[int, Point]) -> list[Trial]:
    """Return the states of the trials at `points`."""
    listed = []
    for number, point in points.items():
        directories = [trial_directory(directory, number, seed) for seed in seeds(settings)]
        results = [run_directory.read_result(path) for path in directories]
        histories = [run_directory.read_history(path) for path in directories]
        reasons = [run_directory.read_failure(path) for path in directories]
        reason = next((f"seed {seed}: {text}" for seed, text in zip(seeds(settings), reasons) if text), "")
        values = [value for r, h in zip(results, histories) if (value := metric_value(settings, r, h)) is not None]
        if reason:
            state = "failed"
        elif all(results):
            state = "done"
        else:
            state = "running" if any((path / "config.json").exists() for path in directories) else "waiting"
        value = sum(values) / len(values) if len(values) == settings.seeds else None
        if state == "done" and (value is None or not math.isfinite(value)):
            state, reason, value = "failed", f"its {settings.metric} is {value}", None
        listed.append(Trial(number, point, state, value, values, reason, directories, histories, results))
    return listed
