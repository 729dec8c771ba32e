"""Runs of different configurations side by side: a table, one figure, LaTeX and CSV.

Runs that differ in the seed alone are one variant. What names a variant are the options in which the runs differ.
"""

import csv
import dataclasses
import io
import math
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax import config as configs
from attention_jax.errors import InputError, lower_is_better
from attention_jax.files import read_object
from attention_jax.report.forest import Row
from attention_jax.report.intervals import Interval, clip_to_scale, mean_half_width
from attention_jax.report.tables import Table, number, span
from attention_jax.runs import directory as run_directory
from attention_jax.sweep.space import label

SEED, VARIANT = "train.seed", "variant"
"""The options that tell runs of a variant apart, and that recorded runs have in place of a configuration."""
NOT_STORED = "not stored"
"""The value of an option that a configuration lacks and others of its type have, if its type has no default."""


class Run(NamedTuple):
    """A run that has ended; one that diverged has no metrics."""

    options: dict[str, Any]
    """By their dotted names, {"model.score": "dot"}."""
    seed: int
    metrics: dict[str, float]
    history: list[dict]
    data: str = ""
    """The fingerprint of the data it read, if that is stored."""


class Variant(NamedTuple):
    """What the runs of one variant have of a metric."""

    name: str
    values: dict[int, float]
    """By seed; of a diverged run, infinity of the worse sign."""
    mean: float
    interval: tuple[float, float] | None
    """Student's 95 % interval of the mean over seeds, within the scale of the metric; None of one seed."""
    median: float


def load_runs(paths: Sequence[str]) -> list[Run]:
    """The runs in run directories, in directories of runs or of a sweep, and in recorded results (NAME.json).

    A run that failed or has not ended is left out, with a note. Raises InputError for a path without runs.
    """
    runs = []
    for path in map(Path, paths):
        if path.suffix == ".json" and path.is_file():
            results = read_object(path)
            recorded = results.get("runs")
            for run in recorded if isinstance(recorded, list) else (recorded,):
                run = run_directory.check_result(run, path)
                options = {VARIANT: run.get("variant") or results.get("experiment", path.stem)}
                runs.append(Run(options, run.get("seed", 0), run["metrics"], run["history"]))
            continue
        if (path / "config.json").exists():
            directories = [path]
        else:
            directories = [file.parent for name in ("*", "trials/*/*") for file in path.glob(f"{name}/config.json")]
        if not directories:
            raise InputError(f"compare needs runs, a directory of them, a sweep or results NAME.json; {path} is none")
        for directory in sorted(directories, key=by_number):
            result, config = run_directory.read_result(directory), read_object(directory / "config.json")
            if result is None and not run_directory.has_diverged(directory):
                why = run_directory.read_failure(directory)
                state = f"failed ({why})" if why else "has not ended"
                print(f"note: {directory} {state} and is left out", file=sys.stderr)
                continue
            options, metrics = flatten(config), result["metrics"] if result else {}
            history, data = run_directory.read_history(directory), run_directory.read_facts(directory)
            runs.append(Run(options, options.pop(SEED, 0), metrics, history, str(data.get("fingerprint", ""))))
    return runs


def by_number(path: Path) -> list:
    """The sort key of a path by which numbers in its names are in their order.

    >>> [str(path) for path in sorted([Path("a/10"), Path("a/b"), Path("a/9")], key=by_number)]
    ['a/9', 'a/10', 'a/b']
    """
    return [(0, int(text), "") if text.isdecimal() else (1, 0, text) for text in re.split(r"(\d+)", str(path))]


def flatten(values: Mapping, prefix: str = "") -> dict[str, Any]:
    """The options in a config.json by their dotted names, with the defaults of those that it does not store.

    >>> options = flatten({"type": "Config", "model": {"type": "ViTConfig", "score": "dot"}})
    >>> options["model"], options["model.score"], options["model.patch_size"], options["optim.b2"]
    ('ViTConfig', 'dot', 2, 0.999)
    """
    options = {}
    for name, value in (defaults_of(values.get("type")) | values).items():
        if isinstance(value, Mapping):
            options |= {prefix + name: value.get("type", "")} | flatten(value, f"{prefix}{name}.")
        elif name != "type" or not prefix:
            options[prefix + name] = str(value) if isinstance(value, list) else value
    return options


def defaults_of(kind: str | None) -> dict[str, Any]:
    """The defaults of a type of options as config.json has them; {} of a type that is not imported."""
    fields = dataclasses.fields(configs.Options.kinds[kind]) if kind in configs.Options.kinds else ()
    makers = {f.name: f.default_factory for f in fields if f.default_factory is not dataclasses.MISSING}
    defaults = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    values = defaults | {name: configs.to_json(make()) for name, make in makers.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def group_runs(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{name of a variant: its runs}, in the order of `runs`.

    An option that some configurations of a type store has the value NOT_STORED in those that do not. Runs with the same
    options that read different data, from files that have changed, are variants of their own.
    """
    names = dict.fromkeys(name for run in runs for name in run.options)
    owner = lambda run, name: (run.options.get(name.rpartition(".")[0] or "type"), name)
    stored = {owner(run, name) for run in runs for name in run.options}
    points = [{name: run.options.get(name, NOT_STORED) for name in names if owner(run, name) in stored} for run in runs]
    varied = [name for name in names if len({point[name] for point in points if name in point}) > 1]
    groups: dict[str, list[Run]] = {}
    for run, options in zip(runs, points):
        point = {name: options[name] for name in varied if name in options}
        name = point[VARIANT] if [*point] == [VARIANT] else label(point, exact=True)
        groups.setdefault(name or "all runs", []).append(run)
    changed = {name for name, members in groups.items() if len({run.data for run in members}) > 1}
    groups, by_options = {}, groups
    for name, members in by_options.items():
        for run in members:
            groups.setdefault(f"{name}, data {run.data[:8] or 'unknown'}" if name in changed else name, []).append(run)
    return groups


def run_value(run: Run, metric: str) -> float:
    """The metric of a run; of one that diverged it is worse than any number."""
    value = float(run.metrics.get(metric, math.nan))
    return value if math.isfinite(value) else math.inf if lower_is_better(metric) else -math.inf


def summarize_variant(name: str, runs: Sequence[Run], metric: str) -> Variant:
    """The metric of one variant; of several runs of a seed the last counts."""
    values = {run.seed: run_value(run, metric) for run in runs}
    if len(values) < len(runs):
        print(f"note: {name} has {len(runs)} runs of {len(values)} seeds; the last of each counts", file=sys.stderr)
    mean = statistics.fmean(values.values())
    half = mean_half_width([*values.values()]) if math.isfinite(mean) else None
    interval = None if half is None else clip_to_scale(Interval(mean - half, mean + half, ""), metric, mean)[:2]
    return Variant(name, values, mean, interval, statistics.median(values.values()))


def seed_difference(variant: Variant, base: Variant) -> tuple[float, float | None] | None:
    """(mean, half the width of its 95 % interval, None of one) of the differences in the seeds that both have; None if
    there are none, or a run of them diverged."""
    differences = [value - base.values[seed] for seed, value in variant.values.items() if seed in base.values]
    if not differences or not all(map(math.isfinite, differences)):
        return None
    return statistics.fmean(differences), mean_half_width(differences)


def compare(paths: Sequence[str], metric: str = "") -> tuple[dict[str, list[Run]], list[Variant], str]:
    """The runs by variant, what they have of `metric`, and its name; by default that of test, else of validation."""
    runs = load_runs(paths)
    measured = [run.metrics for run in runs if run.metrics]
    if not measured:
        raise InputError("compare needs a run that has ended" + " and has not diverged" * bool(runs))
    if len(kinds := sorted({run.options["data"] for run in runs if "data" in run.options})) > 1:
        raise InputError(f"compare needs runs on the same kind of data, got {', '.join(kinds)}: give fewer directories")
    shared = [name for name in measured[0] if all(name in metrics for metrics in measured)]
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
        diverged = sum(map(math.isinf, variant.values.values()))
        seeds = f"{len(variant.values)}" + (f" ({diverged} diverged)" if diverged else "")
        rows.append((variant.name, seeds, mean, number(variant.median), difference))
    columns = ("variant", "seeds", f"{metric}, mean (95 %)", "median", "minus the first (95 %)")
    return Table("", columns, rows, right=columns[1:])


def difference_rows(variants: Sequence[Variant]) -> list[Row]:
    """The forest plot's rows: the differences of the variants to the first one, whose row is empty; none of one."""
    first, *later = variants
    rows = [Row(first.name, "", math.nan, None, "")]
    for variant in later:
        pair = seed_difference(variant, first)
        absent = "diverged" if first.values.keys() & variant.values.keys() else "no shared seed"
        rows.append(Row(variant.name, "", *(pair or (math.nan, None)), "" if pair else absent))
    return rows if later else []


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
    writer.writerows(
        (name, run.seed, run.metrics.get(metric, math.nan)) for name, runs in groups.items() for run in runs
    )
    return text.getvalue()


def curves_of(
    groups: Mapping[str, Sequence[Run]], variants: Sequence[Variant], metric: str, curve: str = ""
) -> dict[str, tuple[list, list[list[float]]]]:
    """{variant: (epochs, values [seeds, epochs])} of the variants whose histories have the metric `curve`; InputError
    if none has it. Without `curve` they are of `metric`, whose final values are a curve of one point if no history has
    it, as of a test split."""
    curves, metric, final = {}, curve or metric, [] if curve else variants
    for name, runs in groups.items():
        rows = [{row["epoch"]: row.get(metric, math.nan) for row in run.history} for run in runs]
        epochs = sorted({epoch for values in rows for epoch, value in values.items() if not math.isnan(value)})
        if epochs:
            curves[name] = epochs, [[values.get(epoch, math.nan) for epoch in epochs] for values in rows]
    for variant in () if curves else final:
        if values := [[value] for value in variant.values.values() if math.isfinite(value)]:
            curves[variant.name] = [0], values
    if not curves:
        names = dict.fromkeys(name for runs in groups.values() for run in runs for row in run.history for name in row)
        raise InputError(f"--curve must be a metric of the epochs, {', '.join(names)}; got {metric}")
    return curves
