"""The answer of a sweep, from its directory alone, any time: sweep.json, table, figures, importances, one command."""

import math
import shlex
import statistics
import warnings
from collections.abc import Sequence
from pathlib import Path

from attention_jax import catalogue, config as configs, ledger
from attention_jax.files import read_json, write_json
from attention_jax.report.intervals import student
from attention_jax.report.tables import Table, number, show
from attention_jax.sweep import plan, worker
from attention_jax.sweep.plan import Settings, Trial
from attention_jax.sweep.space import Range, Values, label, short_names

CURVES = 6
"""Trials whose learning curves are drawn."""


def interval(values: Sequence[float]) -> float | None:
    """Half the width of the 95 % confidence interval of the mean (Student's t); None for one value.

    >>> round(interval([1.0, 2.0, 3.0]), 3), interval([1.0])
    (2.484, None)
    """
    n = len(values) - 1
    if n < 1:
        return None
    return student(n) * statistics.stdev(values) / math.sqrt(n + 1)


def best(settings: Settings, trials: Sequence[Trial]) -> Trial | None:
    """The finished trial of the best mean."""
    done = [trial for trial in trials if trial.state == "done"]
    return min(done, key=lambda trial: settings.sign(trial.value), default=None)


def ranked(settings: Settings, trials: Sequence[Trial]) -> list[Trial]:
    """Best first; then the pruned, the unfinished and the failed."""
    order = ("done", "pruned", "running", "waiting", "failed")
    return sorted(
        trials, key=lambda t: (order.index(t.state), math.inf if t.value is None else settings.sign(t.value), t.number)
    )


def in_words(settings: Settings, trial: Trial) -> str:
    """A trial and its value in a few words."""
    return f"{settings.metric} {_value(trial)} with {label(trial.point)}"


def _value(trial: Trial) -> str:
    half = interval(trial.values)
    return number(trial.value) + (f" +- {half:.2g}" if trial.value is not None and half is not None else "")


def seconds(trial: Trial) -> float:
    """Of all its runs so far."""
    return sum((r["seconds"] if r else h[-1]["seconds"] if h else 0.0) for r, h in zip(trial.results, trial.histories))


def parameters(trial: Trial) -> int | None:
    """How many parameters the model has, once a run has ended."""
    return next((r["parameters"] for r in trial.results if r and "parameters" in r), None)


def table(settings: Settings, trials: Sequence[Trial]) -> Table:
    """All trials, best first."""
    rows = []
    for trial in ranked(settings, trials):
        cells = [number(v) if isinstance(v, float) else str(v) for v in trial.point.values()]
        state = (
            trial.state
            if not trial.reason
            else trial.reason
            if trial.state == "pruned"
            else f"{trial.state}: {trial.reason}"
        )
        rows.append(
            (str(trial.number), *cells, _value(trial), number(parameters(trial)), f"{seconds(trial):.1f}", state)
        )
    value = settings.metric + (f", mean of {settings.seeds} seeds +- 95 %" if settings.seeds > 1 else "")
    columns = ("trial", *short_names(settings.space), value, "parameters", "seconds", "state")
    return Table(f"Sweep of {settings.config.name}", columns, rows, right=("trial", value, "parameters", "seconds"))


def mean_curve(settings: Settings, trial: Trial) -> dict[int, float]:
    """The metric after each epoch that all seeds have behind them, their mean."""
    rows = zip(*trial.histories)
    return {
        row[0]["epoch"]: statistics.fmean(r[settings.metric] for r in row)
        for row in rows
        if all(settings.metric in r for r in row)
    }


def command(settings: Settings, trial: Trial) -> str:
    """The `train` command that repeats the first seed of a trial."""
    config = plan.run_config(settings, trial.point, plan.seeds(settings)[0])
    words = []
    for name, (_, value) in configs.differences(catalogue.load_experiment(config.name).config(), config).items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            head, _, last = option.rpartition(".")
            words.append(f"--{head}.{last}" if value else f"--{head}.no-{last}")
        else:
            words += [f"--{option}", *(map(str, value) if isinstance(value, tuple) else [str(value)])]
    return shlex.join(["python", "launch.py", "train", config.name, *words])


def importances(settings: Settings, trials: Sequence[Trial]) -> dict[str, float]:
    """How much each parameter matters for a better trial (PED-ANOVA, Watanabe et al. 2023); {} with fewer than 4."""
    import optuna

    from attention_jax.sweep.search import distributions

    done = [trial for trial in trials if trial.state == "done"]
    if len(done) < 4 or len({trial.value for trial in done}) < 2:
        return {}
    asked = distributions(settings.space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # experimental
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(0))
        for trial in done:
            study.add_trial(
                optuna.trial.create_trial(params=trial.point, distributions=asked, value=settings.sign(trial.value))
            )
        shares = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    return {name: float(value) for name, value in shares.items() if math.isfinite(value)}


def figures(directory: Path, settings: Settings, trials: Sequence[Trial]) -> list[Path]:
    """Slices, parallel coordinates and learning curves, of what there is so far."""
    from attention_jax.report.figures import parallel_coordinates, sweep_slices, trial_curves

    short = dict(zip(settings.space, short_names(settings.space)))
    log = [short[name] for name, dimension in settings.space.items() if _spans_decades(dimension)]
    shown = [
        {"params": {short[n]: v for n, v in t.point.items()}, "value": t.value if t.state == "done" else None}
        for t in trials
    ]
    paths = []
    if any(trial["value"] is not None for trial in shown):
        paths.append(sweep_slices(shown, directory / "figures" / "slices.png", metric=settings.metric, log=log))
        paths.append(
            parallel_coordinates(
                shown, directory / "figures" / "parallel_coordinates.png", metric=settings.metric, log=log
            )
        )
    curves = {}
    for trial in [t for t in ranked(settings, trials) if t.state != "failed" and any(t.histories)][:CURVES]:
        epochs = sorted({row["epoch"] for history in trial.histories for row in history if settings.metric in row})
        values = [
            {row["epoch"]: row.get(settings.metric, math.nan) for row in history}
            for history in trial.histories
            if history
        ]
        if epochs:
            curves[label(trial.point)] = (epochs, [[row.get(epoch, math.nan) for epoch in epochs] for row in values])
    if curves:
        paths.append(trial_curves(curves, directory / "figures" / "learning_curves.png", ylabel=settings.metric))
    return paths


def _spans_decades(dimension: Range | Values) -> bool:
    """Whether a parameter wants a logarithmic axis."""
    if isinstance(dimension, Range):
        return dimension.log
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in dimension.choices)
    return numbers and max(dimension.choices) >= 8 * min(dimension.choices)


def as_json(settings: Settings, trials: Sequence[Trial]) -> dict:
    """sweep.json."""
    top = best(settings, trials)
    rows = [
        {
            "trial": t.number, "params": t.point, "state": t.state, "reason": t.reason,
            "value": t.value, "values": t.values, "interval95": interval(t.values),
            "parameters": parameters(t), "seconds": round(seconds(t), 2),
            "runs": ["/".join(d.parts[-3:]) for d in t.directories],
        }
        for t in ranked(settings, trials)
    ]  # fmt: skip
    return {
        **{k: v for k, v in plan.settings_json(settings).items() if k != "config"},
        "experiment": settings.config.name,
        "ranking": rows,
        "best": top.number if top else None,
        "command": command(settings, top) if top else None,
        "importances": importances(settings, trials),
    }


def write(directory: Path, settings: Settings, trials: Sequence[Trial]):
    """Write sweep.json and the figures, and print the table, the importances and the best trial's command."""
    values = as_json(settings, trials)
    write_json(directory / "sweep.json", values)
    paths = figures(directory, settings, trials)
    show(table(settings, trials))
    states = [trial.state for trial in trials]
    print(", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states)) or "no trial yet")
    print("".join(f"{line}\n" for line in worker.slow(directory)), end="")
    if values["importances"]:
        print("importance: " + ", ".join(f"{name} {share:.2f}" for name, share in values["importances"].items()))
    if values["command"]:
        print(f"the best trial again: {values['command']}")
    print(f"in {directory}: sweep.json, " + ", ".join(str(path.relative_to(directory)) for path in paths))


def record(directory: Path, settings: Settings, trials: Sequence[Trial], words: Sequence[str]):
    """Keep every finished run in experiments/results/NAME.json, its point as its variant, with the `words` of the
    command, and the figures beside it."""
    experiment = catalogue.load_experiment(settings.config.name)
    command = " ".join(["python launch.py sweep", *ledger.shown(words)])
    for trial in trials:
        for run_directory, result in zip(trial.directories, trial.results):
            if result:
                run = {"variant": label(trial.point, exact=True)} | {
                    k: v for k, v in result.items() if k != "experiment"
                }
                ledger.record(settings.config.name, run | ledger.origin(experiment, run_directory, command))
    ledger.keep_figures(settings.config.name, directory)


def report(directory: Path, trust_code: bool = False):
    """Write the answer again; the sweep may still be running. `trust_code` is that of `plan.read_settings`."""
    directory = Path(directory).absolute()
    settings = plan.read_settings(directory, trust_code)
    write(directory, settings, plan.trials(directory, settings, plan.read_rounds(directory)))


def estimate(settings: Settings) -> tuple[float, str] | None:
    """Seconds of all runs, one after another, by a recorded or finished run of the experiment, and which that was."""
    name = settings.config.name
    known = [(run, f"experiments/results/{name}.json") for run in ledger.recorded(name)["runs"]]
    for path in sorted(Path("runs", name).glob("*/result.json")):
        known.append((read_json(path), str(path)))
    known = [(run, where) for run, where in known if run.get("history")]
    if not known:
        return None
    run, where = known[-1]
    return run["seconds"] / len(
        run["history"]
    ) * settings.config.train.total_epochs * settings.trials * settings.seeds, where


def announce(settings: Settings, points: Sequence[dict]):
    """What `--dry-run` prints: the trials, and how long they might take."""
    rows = [
        (str(i), *(number(v) if isinstance(v, float) else str(v) for v in point.values()))
        for i, point in enumerate(points)
    ]
    show(Table(f"Sweep of {settings.config.name}", ("trial", *short_names(settings.space)), rows, right=("trial",)))
    more = f" ({settings.trials} in all; later ones depend on results)" if len(points) < settings.trials else ""
    print(f"{len(points)} trials{more} x {settings.seeds} seeds by {settings.method}, for {settings.metric}")
    time = estimate(settings)
    if time is None:
        print(
            f"time: unknown, as no run of {settings.config.name} has ended here; "
            f"`launch.py train {settings.config.name}` would tell"
        )
    else:
        pruned = " at most (trials are pruned)" if settings.method in ("halving", "hyperband") else ""
        print(
            f"time: about {time[0] / 60:.1f} minutes{pruned}, one run after another as in {time[1]}; "
            "populations and --jobs shorten it"
        )
