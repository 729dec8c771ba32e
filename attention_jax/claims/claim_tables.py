"""Tables of claims and thresholds beside the recorded runs: for `launch.py reproduce`, `list` and the pages."""

from collections import Counter
from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.claim import Grid, Quantity
from attention_jax.claims.verdicts import (
    JudgedClaim,
    bounds_text,
    is_met,
    source_text,
    value_text,
    verdict_with_reason,
)
from attention_jax.report.tables import Table, number

BASES = {
    "printed": "numbers that a source prints",
    "decoded": "curves that were decoded",
    "code": "our runs of a source's code",
    "count": "counts",
    "order": "orders",
}
"""The groups of claims, in words."""
VERDICTS = ("agree", "differ", "same sign", "opposite", "undecided", "not run")


def group_of(row: JudgedClaim) -> str:
    """The group of a claim: "order", or where the published number comes from."""
    return "order" if row.claim.sign else row.claim.basis


def claims_table(rows: Sequence[JudgedClaim]) -> Table:
    """Tabulate claims: the source's number, ours, and the verdict."""
    lines = [
        (row.claim.text, source_text(row.claim), value_text(row.claim, row.runs), verdict_with_reason(row))
        for row in rows
    ]
    return Table("", ("claim", "source", "this code", "verdict"), lines, right=("source", "this code"))


def rerun_table(rows: Sequence[JudgedClaim], recorded: Mapping[str, Sequence[Mapping]]) -> Table:
    """Tabulate the claims of new runs next to the recorded ones, `recorded`, {experiment: runs}."""
    lines = []
    for row in rows:
        numbers = value_text(row.claim, recorded[row.experiment]), value_text(row.claim, row.runs)
        lines.append((row.claim.text, source_text(row.claim), *numbers, verdict_with_reason(row)))
    columns = ("claim", "source", "recorded", "these runs", "verdict")
    return Table("", columns, lines, right=columns[1:4])


def thresholds_table(experiment: Experiment, runs: Sequence[Mapping]) -> Table:
    """Tabulate the thresholds of an experiment: bound, median of the runs, and whether it is met."""
    state = {True: "met", False: "not met", None: "not run"}
    lines = [
        (threshold.text, bounds_text(threshold), value_text(threshold, runs), state[is_met(threshold, runs)])
        for threshold in experiment.thresholds
    ]
    return Table("", ("threshold", "bound", "this code", "state"), lines, right=("bound", "this code"))


def variants_table(experiment: Experiment, runs: Sequence[Mapping]) -> Table | None:
    """Tabulate the metrics that claims and thresholds name, one row a variant; None for fewer than two variants."""
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    metrics = list(dict.fromkeys(quantity.metric for quantity in (*experiment.claims, *experiment.thresholds)))
    if len(variants) < 2 or not metrics:
        return None
    lines = [(variant or "-", *(median_text(metric, variant, runs) for metric in metrics)) for variant in variants]
    return Table(experiment.name, ("variant", *metrics), lines, right=tuple(metrics))


def median_text(metric: str, variant: str, runs: Sequence[Mapping], minus: str | None = None) -> str:
    """The median of a metric with its range."""
    return value_text(Quantity(text=metric, metric=metric, source="", variant=variant, minus=minus), runs)


def grid_table(grid: Grid, runs: Sequence[Mapping]) -> Table:
    """Tabulate a grid of measurements, one row a variant."""
    cells = lambda variant: (median_text(metric, variant, runs, grid.minus) for metric in grid.columns.values())
    lines = [(variant or "-", *cells(variant)) for variant in grid.variants]
    return Table(grid.caption, ("variant", *grid.columns), lines, right=tuple(grid.columns))


def counts_table(rows: Sequence[JudgedClaim]) -> Table:
    """Count verdicts by group."""
    counts = Counter((group_of(row), row.verdict) for row in rows)
    verdicts = [verdict for verdict in VERDICTS if any(counts[group, verdict] for group in BASES)]
    line = lambda name, groups: (name, *(str(sum(counts[group, v] for group in groups)) for v in verdicts))
    lines = [line(name, (group,)) for group, name in BASES.items() if any(counts[group, v] for v in verdicts)]
    return Table("", ("claims about", *verdicts), [*lines, line("all", BASES)], right=tuple(verdicts))


def tally_line(rows: Sequence[JudgedClaim]) -> str:
    """Count verdicts in a sentence."""
    counts = Counter(row.verdict for row in rows)
    numbers, orders = ("agree", "differ"), ("same sign", "opposite")
    undecided = Counter(bool(row.claim.sign) for row in rows if row.verdict == "undecided")
    words = lambda names, left: ", ".join([*(f"{counts[name]} {name}" for name in names), f"{left} undecided"])
    return f"Numbers: {words(numbers, undecided[False])}. Orders: {words(orders, undecided[True])}."


def check_tables(checks: Sequence[Mapping], machine) -> tuple[Table, Table]:
    """Tabulate `reproduce --check` on other machines: the counts of each check.json, and the numbers that differ.

    `machine` formats an environment. The recorded values are from the day of the check.
    """
    counts, differences = [], []
    for check in checks:
        numbers = [entry for entry in check["numbers"] if entry["verdict"] != "a time"]
        where = machine(check["runs"][0]["environment"]["here"])
        equal = sum(entry["recorded"] == entry["here"] for entry in numbers)
        wrong = [entry for entry in numbers if entry["verdict"] == "differs"]
        counts.append((where, *map(str, (len(check["runs"]), len(numbers), equal, len(wrong)))))
        for entry in wrong:
            name = entry.get("claim") or entry["metric"]
            values = number(entry["recorded"]), number(entry["here"])
            differences.append((where, entry["experiment"], name, str(entry["seed"]), *values))
    columns = ("machine", "runs", "numbers", "same bits", "differ")
    about = ("machine", "experiment", "number", "seed", "recorded", "re-run")
    return Table("", columns, counts, right=columns[1:]), Table("", about, differences, right=about[3:])
