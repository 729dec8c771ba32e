"""The trials and the time of a sweep, before it runs."""

import glob
import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax import config as configs
from attention_jax.claims import record
from attention_jax.files import read_json
from attention_jax.report.tables import Table, number, show
from attention_jax.sweep import plan
from attention_jax.sweep.plan import Settings
from attention_jax.sweep.space import short_names

PLACES = ("runs/{name}/*", "runs/sweeps/{name}/trials/*/*", "runs/reproduce/*/{name}/*", "{directory}/trials/*/*")
"""Where runs of an experiment are by default."""


class Pace(NamedTuple):
    """The pace of a finished run."""

    epoch: float
    """Seconds of an epoch."""
    steps: float
    """Steps of an epoch; 0 if they are not known."""
    once: float
    """Seconds before the first epoch's share, most of them of compilation."""


def pace(history: Sequence[Mapping], seconds: float) -> Pace:
    """Return the pace of a run; of a single epoch, compilation cannot be distinguished.

    >>> pace([{"epoch": 1, "step": 10, "seconds": 30.0}, {"epoch": 3, "step": 30, "seconds": 34.0}], 36.0)
    Pace(epoch=2.0, steps=10.0, once=28.0)
    """
    first, last = history[0], history[-1]
    steps, timed = last.get("step", 0) / last["epoch"], "seconds" in first and last["epoch"] > first["epoch"]
    if not timed:
        return Pace(seconds / last["epoch"], steps, 0.0)
    epoch = (last["seconds"] - first["seconds"]) / (last["epoch"] - first["epoch"])
    return Pace(epoch, steps, max(0.0, first["seconds"] - epoch * first["epoch"]))


def epochs(train: configs.Train, steps: float) -> float:
    """Return the number of epochs of a run, where one has that many steps."""
    return min(train.total_epochs, train.max_steps / steps) if train.max_steps and steps else train.total_epochs


def newest_run(name: str, directory: Path) -> tuple[dict, str] | None:
    """Return the newest run of an experiment in PLACES, else the last recorded one, and where it is."""
    places = [place.format(name=name, directory=glob.escape(str(directory))) for place in PLACES]
    paths = {path for place in places for path in glob.glob(f"{place}/result.json")}
    for path in map(Path, sorted(paths, key=os.path.getmtime, reverse=True)):
        if (run := read_json(path)).get("history"):
            return run, str(path)
    recorded = [run for run in record.load_recorded_runs(name) if run.get("history")]
    return (recorded[-1], f"experiments/results/{name}.json") if recorded else None


def print_estimate(settings: Settings, points: Sequence[dict], directory: Path):
    """Print the trials for `--dry-run`, with an estimate of their time from the newest run of the experiment."""
    name = settings.config.name
    cells = [[number(v) if isinstance(v, float) else str(v) for v in point.values()] for point in points]
    rows = [(str(index), *values) for index, values in enumerate(cells)]
    show(Table(f"Sweep of {name}", ("trial", *short_names(settings.space)), rows, right=("trial",)))
    later_note = f" ({settings.trials} in all; later ones depend on results)" if len(points) < settings.trials else ""
    print(f"{len(points)} trials{later_note} x {settings.seeds} seeds by {settings.method}, for {settings.metric}")
    if not (reference := newest_run(name, directory)):
        places = ", ".join(place.format(name=name, directory=directory) for place in PLACES)
        print(f"time: unknown, as no run of {name} is in {places}; `launch.py train {name}` would tell")
        return
    run, where = reference
    epoch, steps, once = pace(run["history"], run["seconds"])
    lengths = [epochs(plan.run_config(settings, point, 0).train, steps) for point in points]
    minutes = epoch * statistics.fmean(lengths) * settings.trials * settings.seeds / 60
    compiled = f", and {once:.0f} s more for each program that is compiled" if once else ""
    print(
        f"time: about {minutes:.1f} minutes, one run after another as in {where}{compiled}; populations, --jobs and "
        "pruning shorten it"
    )
