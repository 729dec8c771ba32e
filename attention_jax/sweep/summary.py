"""Summary of a finished or running sweep: sweep.json, table, figures, the best trial's command."""

import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import optuna

from attention_jax import catalog, config as configs
from attention_jax.claims import record as records
from attention_jax.errors import InputError
from attention_jax.files import write_json
from attention_jax.report.intervals import Interval, clip_to_scale, mean_half_width
from attention_jax.report.tables import Table, number, show, span
from attention_jax.runs import lifecycle
from attention_jax.sweep import plan, search
from attention_jax.sweep.plan import Settings, Trial
from attention_jax.sweep.space import Point, grid, label, parse, short_names, spans_decades

CURVES = 6
"""The number of trials whose learning curves are plotted."""


def current_trials(directory: Path, settings: Settings, study: optuna.Study) -> list[Trial]:
    """Return the states of all trials of the study."""
    return plan.trials(directory, settings, search.points(study))


def best_trial(settings: Settings, trials: Sequence[Trial]) -> Trial | None:
    """The finished trial of the best mean."""
    finished = [trial for trial in trials if trial.state == "done"]
    return min(finished, key=lambda trial: settings.sign(trial.value), default=None)


def rank_trials(settings: Settings, trials: Sequence[Trial]) -> list[Trial]:
    """Best first; then the unfinished and the failed."""
    order = ("done", "running", "waiting", "failed")
    rank = lambda value: math.inf if value is None or math.isnan(value) else settings.sign(value)
    return sorted(trials, key=lambda t: (order.index(t.state), rank(t.value), t.number))


def in_words(settings: Settings, trial: Trial) -> str:
    """A trial and its value in a few words."""
    return f"{settings.metric} {_value(settings, trial)} with {label(trial.point)}"


def _value(settings: Settings, trial: Trial) -> str:
    half = mean_half_width(trial.values)
    if trial.value is None or half is None:
        return number(trial.value)
    low, high, _ = clip_to_scale(Interval(trial.value - half, trial.value + half, ""), settings.metric, trial.value)
    return f"{number(trial.value)} ({span(low, high)})"


def seconds(trial: Trial) -> float:
    """Return the seconds of all runs of a trial so far."""
    return sum((r["seconds"] if r else h[-1]["seconds"] if h else 0.0) for r, h in zip(trial.results, trial.histories))


def processor_seconds(trial: Trial) -> float:
    """Return the processor seconds of all runs of a trial; NaN if some are unknown, as before they have ended."""
    return sum(r.get("processor_seconds", math.nan) if r else math.nan for r in trial.results)


def parameters(trial: Trial) -> int | None:
    """Return the number of the model's parameters, or None before a run has ended."""
    return next((r["parameters"] for r in trial.results if r and "parameters" in r), None)


def table(settings: Settings, trials: Sequence[Trial]) -> Table:
    """All trials, best first."""
    rows = []
    for trial in rank_trials(settings, trials):
        point = [number(v) if isinstance(v, float) else str(v) for v in trial.point.values()]
        size, state = parameters(trial), ": ".join(filter(None, (trial.state, trial.reason)))
        times = f"{seconds(trial):.1f}", f"{processor_seconds(trial):.1f}".replace("nan", "-")
        rows.append((str(trial.number), *point, _value(settings, trial), number(size), *times, state))
    value = settings.metric + (f", mean of {settings.seeds} seeds (95 %)" if settings.seeds > 1 else "")
    columns = ("trial", *short_names(settings.space), value, "parameters", "seconds", "CPU-s", "state")
    return Table(f"Sweep of {settings.config.name}", columns, rows, right=("trial", *columns[-5:-1]))


def show_points(settings: Settings, points: Sequence[Point]):
    """Print the trials for `--dry-run`."""
    cells = [[number(v) if isinstance(v, float) else str(v) for v in point.values()] for point in points]
    rows = [(str(index), *values) for index, values in enumerate(cells)]
    show(Table(f"Sweep of {settings.config.name}", ("trial", *short_names(settings.space)), rows, right=("trial",)))
    later_note = f" ({settings.trials} in all; later ones depend on results)" if len(points) < settings.trials else ""
    print(f"{len(points)} trials{later_note} x {settings.seeds} seeds by {settings.method}, for {settings.metric}")


def command(settings: Settings, trial: Trial) -> str:
    """The `train` command that repeats the first seed of a trial."""
    config = plan.run_config(settings, trial.point, plan.seeds(settings)[0])
    experiment = catalog.load_experiment(config.name)
    weights = "" if experiment.study else config.train.init_weights  # a study reads them in its own way
    words = ["--from", weights] if weights else []
    for name, (_, value) in configs.differences(lifecycle.with_weights(weights, experiment.config()), config).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            head, _, last = option.rpartition(".")
            words.append(f"--{head}.{last}" if value else f"--{head}.no-{last}")
        else:
            words += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join(["python", "launch.py", "train", config.name, *words])


def figures(stem: str, settings: Settings, trials: Sequence[Trial]) -> list[Path]:
    """Plot slices, parallel coordinates and learning curves of the results so far, in files that begin with `stem`.

    The curves are those of the best trials; there are none if the metric is of a test split, which ranks no trials.
    """
    from attention_jax.report.curves import lines
    from attention_jax.report.panels import parallel_coordinates, sweep_slices

    names, paths = short_names(settings.space), []
    log = [name for name, dimension in zip(names, settings.space.values()) if spans_decades(dimension)]
    trial_rows = [
        {"params": dict(zip(names, trial.point.values()))}
        | ({"value": trial.value, "values": trial.values} if trial.state == "done" else {"value": None})
        for trial in trials
    ]
    if any(trial["value"] is not None for trial in trial_rows):
        axes = {"metric": settings.metric, "log": log, "inputs": trial_rows}
        paths.append(sweep_slices(trial_rows, f"{stem}slices.png", **axes))
        paths.append(parallel_coordinates(trial_rows, f"{stem}parallel_coordinates.png", **axes))
    curves, selects = {}, not settings.metric.startswith("test")
    for trial in [trial for trial in rank_trials(settings, trials) if selects and trial.state != "failed"]:
        curves_by_seed = [
            {row["epoch"]: row.get(settings.metric, math.nan) for row in rows} for rows in trial.histories if rows
        ]
        if epochs := sorted({epoch for values in curves_by_seed for epoch in values}):
            curves[label(trial.point)] = (
                epochs,
                [[values.get(epoch, math.nan) for epoch in epochs] for values in curves_by_seed],
            )
    if curves:
        best_curves = dict(list(curves.items())[:CURVES])
        axes = {"xlabel": "epoch", "ylabel": settings.metric, "inputs": best_curves}
        paths.append(lines(best_curves, f"{stem}learning_curves.png", **axes))
    return paths


def as_json(settings: Settings, trials: Sequence[Trial]) -> dict:
    """sweep.json."""
    top = best_trial(settings, trials)
    rows = [
        {
            "trial": t.number, "params": t.point, "state": t.state, "reason": t.reason,
            "value": t.value, "values": t.values, "interval95": mean_half_width(t.values),
            "parameters": parameters(t), "seconds": round(seconds(t), 2),
            "runs": ["/".join(d.parts[-3:]) for d in t.directories],
        }
        for t in rank_trials(settings, trials)
    ]  # fmt: skip
    return {
        **{k: v for k, v in plan.settings_json(settings).items() if k != "config"},
        "experiment": settings.config.name,
        "ranking": rows,
        "best": top.number if top else None,
        "command": command(settings, top) if top else None,
        "failures": failures(trials),
    }


def failures(trials: Sequence[Trial]) -> dict[str, list[int]]:
    """Return {reason: numbers of the trials that failed for it}."""
    reasons: dict[str, list[int]] = {}
    for trial in trials:
        if trial.state == "failed":
            reasons.setdefault(trial.reason, []).append(trial.number)
    return reasons


def write(directory: Path, settings: Settings, trials: Sequence[Trial]):
    """Write sweep.json and the figures, and print the table and the best trial's command."""
    values = as_json(settings, trials)
    write_json(directory / "sweep.json", values)
    paths = figures(f"{directory}/figures/", settings, trials)
    show(table(settings, trials))
    states = [trial.state for trial in trials]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no trial yet")
    for reason, numbers in values["failures"].items():
        print(f"{len(numbers)} failed, trial{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {reason}")
    if any(trial.state == "failed" and not all(trial.results) for trial in trials):
        print("the same command trains failed trials again, unless they diverged")
    if values["command"]:
        print(f"the best trial again: {values['command']}")
    print(f"in {directory}: " + ", ".join(["sweep.json", *(str(path.relative_to(directory)) for path in paths)]))


def variant(settings: Settings, point: Point) -> str:
    """Return the name of a point in records: the experiment's variant with the same options, else its label."""
    config = configs.replace(settings.config, **point)
    variants = catalog.load_experiment(config.name).variants().items()
    return next((name for name, variant_config in variants if variant_config == config), label(point, exact=True))


def record(directory: Path, settings: Settings, trials: Sequence[Trial], words: Sequence[str]):
    """Keep every finished run in experiments/results/NAME.json, with the `words` of the command, and the figures."""
    name = settings.config.name
    experiment = catalog.load_experiment(name)
    finished = [
        (trial, run_directory, result)
        for trial in trials
        for run_directory, result in zip(trial.directories, trial.results)
        if result
    ]
    for _, run_directory, _ in finished:
        records.check_run(experiment, run_directory)
    for trial, run_directory, result in finished:
        values = {key: value for key, value in result.items() if key != "experiment"}
        origin = records.run_origin(experiment, run_directory, ["sweep", *words])
        records.record_run(name, {"variant": variant(settings, trial.point)} | values | origin)
    records.draw_recorded(experiment)
    draw(experiment, f"{experiment.results / name}-")


def load_recorded_trials(experiment: catalog.Experiment) -> tuple[Settings, list[Trial]]:
    """The settings and trials of an experiment's recorded grid; no trials if nothing is recorded.

    The metric is the one that the sweep selects by, of the recorded runs that have it. If none has it, as with runs
    from before there were validation data, it is that of the test split. A point of which a run diverged has failed.
    """
    config = experiment.config()
    metric, all_runs = config.train.best_metric, records.runs_by_variant(experiment)
    runs = {
        variant: [run for run in variant_runs if metric in run["metrics"]] for variant, variant_runs in all_runs.items()
    }
    runs = {variant: variant_runs for variant, variant_runs in runs.items() if variant_runs}
    if not runs:
        metric, runs = f"test.{metric.rpartition('.')[2]}", all_runs
    space, seeds = parse(config, experiment.sweep()), max(map(len, runs.values()), default=0)
    settings = Settings(config, space, "grid", len(runs), seeds, metric)
    trials = []
    for point in grid(space):
        if point_runs := runs.get(variant(settings, point)):
            values, histories = [run["metrics"][metric] for run in point_runs], [run["history"] for run in point_runs]
            diverged = any(run.get("diverged") for run in all_runs[variant(settings, point)])
            state, mean = ("failed", None) if diverged else ("done", statistics.fmean(values))
            trials.append(Trial(len(trials), point, state, mean, values, "", [], histories, point_runs))
    return settings, trials


def draw(experiment: catalog.Experiment, stem: str) -> list[Path]:
    """Plot the recorded trials of an experiment's own grid."""
    settings, trials = load_recorded_trials(experiment)
    return figures(stem, settings, trials) if trials else []


def draw_all():
    """`make figures`: the figures of all recorded sweeps, from the stored data alone."""
    for name in catalog.experiment_names():
        experiment = catalog.load_experiment(name)
        if experiment.about("Chapter") == "sweeps":
            draw(experiment, f"{experiment.results / name}-")


def report(directory: Path, like: configs.Config | None = None):
    """Rewrite the summary; the sweep may still be running. `like`, that of `plan.read_settings`, has its experiment."""
    directory = Path(directory).absolute()
    settings = plan.read_settings(directory, like=like)
    if like is not None and like.name != settings.config.name:
        raise InputError(
            f"{directory} is a sweep of {settings.config.name}, not of {like.name}: give its own --out DIR"
        )
    journal = directory / "journal.log"
    study = search.load_study(journal) if journal.exists() else search.new_study(settings)
    write(directory, settings, current_trials(directory, settings, study))


if __name__ == "__main__":
    draw_all()
