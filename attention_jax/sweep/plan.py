"""What a sweep's directory says: its settings, its rounds, and how its trials stand. Reading only needs the directory.

DIR/settings.json, rounds/000.json (points, groups, comparisons), groups/000-001.json, trials/0007/seed0 (run
directories).
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import InputError, config as configs, lower_is_better, runs
from attention_jax.files import read_json, write_json
from attention_jax.sweep.search import ETA, brackets, survivors
from attention_jax.sweep.space import Point, Space, parse, spelled


class Settings(NamedTuple):
    """What makes a sweep this sweep: it goes on only with the same ones."""

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


class Round(NamedTuple):
    """Points that were proposed together."""

    first: int
    points: list[Point]
    groups: list[list[tuple[int, int]]]
    """Runs (trial, seed) that train together."""
    stages: list[tuple[int, list[int]]]
    """(epoch, trials that go on to it), for each comparison that was begun."""


class Trial(NamedTuple):
    """A point of the space and how its runs stand."""

    number: int
    point: Point
    state: str
    """done, failed, pruned, running or waiting."""
    value: float | None
    """Mean of the metric over the seeds (after the last epoch there is, unless done)."""
    values: list[float]
    reason: str
    directories: list[Path]
    histories: list[list[dict]]
    results: list[dict | None]


def settings_json(settings: Settings) -> dict:
    return settings._asdict() | {"config": configs.to_json(settings.config), "space": spelled(settings.space)}


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
            "start the sweep anew with another --out DIR"
        ) from error


def read_rounds(directory: Path) -> list[Round]:
    """All rounds that were begun."""
    return [Round(**read_json(path)) for path in sorted((Path(directory) / "rounds").glob("[0-9]*.json"))]


def write_round(directory: Path, number: int, round_: Round):
    write_json(directory / "rounds" / f"{number:03d}.json", round_._asdict())


def run_directory(directory: Path, trial: int, seed: int) -> Path:
    return directory / "trials" / f"{trial:04d}" / f"seed{seed}"


def run_config(settings: Settings, point: Point, seed: int) -> configs.Config:
    """The configuration of one run; seeds count up from the experiment's own."""
    return configs.replace(settings.config, **point, **{"train.seed": seed})


def seeds(settings: Settings) -> list[int]:
    return list(range(settings.config.train.seed, settings.config.train.seed + settings.seeds))


def measured(settings: Settings, result: dict | None, history: Sequence[dict]) -> float | None:
    """The metric of one run: of its result, or after its last epoch. InputError if the run does not have it."""
    metrics = {**(history[-1] if history else {}), **(result["metrics"] if result else {})}
    if settings.metric in metrics:
        return float(metrics[settings.metric])
    if result or (history and settings.method in ("halving", "hyperband")):
        names = [name for name in metrics if name not in ("epoch", "step", "seconds")]
        raise InputError(f"--metric must be one of {', '.join(names)}; got {settings.metric}")
    return None


def trials(directory: Path, settings: Settings, rounds: Sequence[Round]) -> list[Trial]:
    """How all trials stand, read off their run directories."""
    listed = []
    for round_ in rounds:
        active = round_.stages[-1][1]
        for number, point in enumerate(round_.points, round_.first):
            directories = [run_directory(directory, number, seed) for seed in seeds(settings)]
            results = [runs.read_result(path) for path in directories]
            histories = [runs.history(path) for path in directories]
            reasons = [runs.failure(path) for path in directories]
            reason = next((f"seed {seed}: {text}" for seed, text in zip(seeds(settings), reasons) if text), "")
            values = [value for r, h in zip(results, histories) if (value := measured(settings, r, h)) is not None]
            if reason:
                state = "failed"
            elif all(results):
                state = "done"
            elif number not in active:
                state, reason = "pruned", f"pruned after epoch {max((len(h) for h in histories), default=0)}"
            else:
                state = "running" if any((path / "config.json").exists() for path in directories) else "waiting"
            value = sum(values) / len(values) if len(values) == settings.seeds else None
            if state == "done" and (value is None or not math.isfinite(value)):
                state, reason, value = "failed", f"its {settings.metric} is {value}", None
            listed.append(Trial(number, point, state, value, values, reason, directories, histories, results))
    return listed


def rungs(settings: Settings) -> list[int]:
    """All epochs at which trials are compared; the last one is the end."""
    return sorted(
        {epoch for bracket in brackets(settings.method, settings.config.train.total_epochs) for epoch in bracket}
    )


def go_on(settings: Settings, trials: Sequence[Trial], active: Sequence[int], epoch: int) -> list[int]:
    """Which of the `active` trials go on beyond `epoch`: not the failed, the best 1/eta where a bracket compares."""
    chosen, all_brackets = [], brackets(settings.method, settings.config.train.total_epochs)
    for place, bracket in enumerate(all_brackets):
        mine = [
            t for t in trials if t.number in active and t.number % len(all_brackets) == place and t.state != "failed"
        ]
        if epoch in bracket[:-1] and mine:
            best = survivors([settings.sign(math.nan if t.value is None else t.value) for t in mine], ETA)
            mine = [mine[i] for i in best]
        chosen += [trial.number for trial in mine]
    return sorted(chosen)
