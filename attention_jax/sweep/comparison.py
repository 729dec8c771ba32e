"""Runs of different configurations side by side: a table, one figure, LaTeX and CSV.

Runs that differ in the seed alone are one variant. What names a variant are the options in which the runs differ.
"""

import csv
import io
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax.errors import InputError
from attention_jax.files import read_object
from attention_jax.report.intervals import Interval, clip_to_scale, mean_half_width
from attention_jax.report.tables import Table, number, span
from attention_jax.runs import directory as run_directory
from attention_jax.sweep.space import label

SEED, VARIANT = "train.seed", "variant"
"""The options that tell runs of a variant apart, and that recorded runs have in place of a configuration."""


class Run(NamedTuple):
    """A run that has ended."""

    options: dict[str, Any]
    """By their dotted names, {"model.score": "dot"}."""
    seed: int
    metrics: dict[str, float]
    history: list[dict]


class Variant(NamedTuple):
    """What the runs of one variant have of a metric."""

    name: str
    values: dict[int, float]
    """By seed."""
    mean: float
    interval: tuple[float, float] | None
    """Student's 95 % interval of the mean over seeds, within the scale of the metric; None of one seed."""
    median: float


def load_runs(paths: Sequence[str]) -> list[Run]:
    """The runs in run directories, in directories of runs or of a sweep, and in recorded results (NAME.json).

    A run that has not ended is left out, with a note. Raises InputError for a path without runs.
    """
    runs = []
    for path in map(Path, paths):
        if path.suffix == ".json" and path.is_file():
            results = read_object(path)
            recorded = [run for run in results.get("runs", ()) if not run.get("diverged")]
            names = [{VARIANT: run["variant"] or results["experiment"]} for run in recorded]
            runs += [Run(name, r["seed"], r["metrics"], r["history"]) for name, r in zip(names, recorded)]
            continue
        if (path / "config.json").exists():
            directories = [path]
        else:
            directories = [file.parent for name in ("*", "trials/*/*") for file in path.glob(f"{name}/config.json")]
        if not directories:
            raise InputError(f"compare needs runs, a directory of them, a sweep or results NAME.json; {path} is none")
        for directory in sorted(directories):
            result, config = run_directory.read_result(directory), read_object(directory / "config.json")
            if result is None:
                print(f"note: {directory} has not ended and is left out", file=sys.stderr)
                continue
            options = flatten(config)
            runs.append(Run(options, options.pop(SEED, 0), result["metrics"], result["history"]))
    return runs


def flatten(values: Mapping, prefix: str = "") -> dict[str, Any]:
    """The options in a config.json by their dotted names.

    >>> flatten({"type": "Config", "model": {"type": "ViTConfig", "score": "dot"}})
    {'type': 'Config', 'model': 'ViTConfig', 'model.score': 'dot'}
    """
    options = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            options |= {prefix + name: value.get("type", "")} | flatten(value, f"{prefix}{name}.")
        elif name != "type" or not prefix:
            options[prefix + name] = str(value) if isinstance(value, list) else value
    return options


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{name of a variant: its runs}, in the order of `runs`.

    An option that some configurations of a type do not store, as they are older, names no variant.
    """
    names = dict.fromkeys(name for run in runs for name in run.options)

    def has_every_run_of_type(name: str) -> bool:
        owner = name.rpartition(".")[0] or "type"
        stored = {(run.options.get(owner), name in run.options) for run in runs}
        return len({kind for kind, _ in stored}) == len(stored)

    comparable = [name for name in names if has_every_run_of_type(name)]
    varied = [name for name in comparable if len({run.options[name] for run in runs if name in run.options}) > 1]
    groups: dict[str, list[Run]] = {}
    for run in runs:
        point = {name: run.options[name] for name in varied if name in run.options}
        name = point[VARIANT] if [*point] == [VARIANT] else label(point, exact=True)
        groups.setdefault(name or "all runs", []).append(run)
    return groups


def summarize_variant(name: str, runs: Sequence[Run], metric: str) -> Variant:
    """The metric of one variant; of several runs of a seed the last counts."""
    values = {run.seed: float(run.metrics[metric]) for run in runs}
    if len(values) < len(runs):
        print(f"note: {name} has {len(runs)} runs of {len(values)} seeds; the last of each counts", file=sys.stderr)
    mean, half = statistics.fmean(values.values()), mean_half_width([*values.values()])
    interval = None if half is None else clip_to_scale(Interval(mean - half, mean + half, ""), metric, mean)[:2]
    return Variant(name, values, mean, interval, statistics.median(values.values()))


def seed_difference(variant: Variant, base: Variant) -> tuple[float, float | None] | None:
    """(mean, half the width of its 95 % interval, None of one) of the differences in the seeds that both have."""
    differences = [value - base.values[seed] for seed, value in variant.values.items() if seed in base.values]
    return (statistics.fmean(differences), mean_half_width(differences)) if differences else None


def compare(paths: Sequence[str], metric: str = "") -> tuple[dict[str, list[Run]], list[Variant], str]:
    """The runs by variant, what they have of `metric`, and its name; by default that of test, else of validation."""
    runs = load_runs(paths)
    if not runs:
        raise InputError("compare needs a run that has ended")
    if len(kinds := sorted({run.options["data"] for run in runs if "data" in run.options})) > 1:
        raise InputError(f"compare needs runs on the same kind of data, got {', '.join(kinds)}: give fewer directories")
    shared = [name for name in runs[0].metrics if all(name in run.metrics for run in runs)]
    metric = metric or next(
        (n for split in ("test.", "valid.", "") for n in reversed(shared) if n.startswith(split)), ""
    )
    if metric not in shared:
        raise InputError(f"--metric must be one that all runs have, {', '.join(shared)}; got {metric or 'none'}")
    groups = group_runs(runs)
    return groups, [summarize_variant(name, of_variant, metric) for name, of_variant in groups.items()], metric


def table(variants: Sequence[Variant], metric: str) -> Table:
    """A row for each variant; differences to the first one are paired by seed."""
    rows = []
    for variant in variants:
        mean = number(variant.mean) + (f" ({span(*variant.interval)})" if variant.interval else "")
        pair = None if variant is variants[0] else seed_difference(variant, variants[0])
        difference = "-"
        if pair is not None:
            middle, half = pair
            difference = number(middle) + (
                "" if half is None else f" ({number(middle - half)} to {number(middle + half)})"
            )
        rows.append((variant.name, str(len(variant.values)), mean, number(variant.median), difference))
    columns = ("variant", "seeds", f"{metric}, mean (95 %)", "median", "minus the first (95 %)")
    return Table("", columns, rows, right=columns[1:])


def latex(table: Table) -> str:
    r"""The table in LaTeX, for the package booktabs.

    >>> print(latex(Table("", ("name", "x"), [("a_b", "5 %")], right=("x",))))
    \begin{tabular}{lr}
    \toprule
    name & x \\
    \midrule
    a\_b & 5 \% \\
    \bottomrule
    \end{tabular}
    """
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    escape = lambda text: "".join(special.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
    line = lambda cells: " & ".join(map(escape, cells)) + r" \\"
    columns = "".join("r" if column in table.right else "l" for column in table.columns)
    head, body = line(table.columns), [line(row) for row in table.rows]
    lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
    return "\n".join([*lines, r"\end{tabular}"])


def comma_separated(groups: Mapping[str, Sequence[Run]], metric: str) -> str:
    """A line for each run, with all digits: variant, seed, metric."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("variant", "seed", metric))
    writer.writerows((name, run.seed, run.metrics[metric]) for name, runs in groups.items() for run in runs)
    return text.getvalue()


def curves_of(groups: Mapping[str, Sequence[Run]], metric: str) -> dict[str, tuple[list, list[list[float]]]]:
    """{variant: (epochs, values [seeds, epochs])} of the variants whose histories have the metric; InputError if none
    has it."""
    curves = {}
    for name, runs in groups.items():
        rows = [{row["epoch"]: row.get(metric, math.nan) for row in run.history} for run in runs]
        epochs = sorted({epoch for values in rows for epoch, value in values.items() if not math.isnan(value)})
        if epochs:
            curves[name] = epochs, [[values.get(epoch, math.nan) for epoch in epochs] for values in rows]
    if not curves:
        names = dict.fromkeys(name for runs in groups.values() for run in runs for row in run.history for name in row)
        raise InputError(f"--curve must be a metric of the epochs, {', '.join(names)}; got {metric}")
    return curves
