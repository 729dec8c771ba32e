"""Tables of claims with their verdicts: for `launch.py reproduce`, and for the pages that `make results` writes."""

import typing
from collections import Counter
from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.judged import Judged, judged
from attention_jax.claims.verdicts import (
    MET,
    Verdict,
    alike,
    bounds,
    by_seed,
    caveats,
    judge,
    judged_value,
    ours,
    upward,
    with_caveats,
    within,
    without_commit,
)
from attention_jax.config import Claim, Grid, Withdrawn
from attention_jax.report.tables import Table, number, span

KINDS = ("same protocol", "other protocol", "exact", "order", "aim", "measurement")
VERDICTS = typing.get_args(Verdict)


def withdrawn_today(
    experiment: Experiment, runs: Sequence[Mapping], seeds: Mapping | None = None
) -> list[tuple[Withdrawn, str, str]]:
    """Return each withdrawn bound with its current value and status, on the runs that would decide a claim."""
    today = judged(experiment, runs, seeds, [bound.on_record for bound in experiment.withdrawn])
    return [(bound, *state_today(bound, one.runs)) for bound, one in zip(experiment.withdrawn, today)]


def judged_cell(claim: Claim, runs: Sequence[Mapping]) -> str:
    """Return the judged value, with its rank among the seeds if it is not the median."""
    value, seeds = number(judged_value(claim, runs)), len(by_seed(claim, runs))
    return f"{value} (rank {claim.seeds_needed} of {seeds})" if claim.seeds_needed and seeds else value


def with_rank(claim: Claim, runs: Sequence[Mapping]) -> str:
    """Return the median with its range, and the judged value if that is another seed's."""
    judged_seed = f"; judged: {judged_cell(claim, runs)}" if claim.seeds_needed and by_seed(claim, runs) else ""
    return f"{ours(claim, runs)}{judged_seed}"


def claims_table(rows: Sequence[Judged], sources: bool = False) -> Table:
    """Tabulate claims; `sources` adds a column with source, differences in protocol, and date of the bound."""
    columns = ("experiment", "claim", "kind", "bound", "published", "original", "replication", "judged", "verdict")
    lines = []
    for one in rows:
        claim = one.claim
        cells = (claim.text, claim.kind, bounds(claim), number(claim.published), ours(claim, one.original))
        cells += (ours(claim, one.replication), judged_cell(claim, one.runs), with_caveats(claim, one.runs))
        lines.append((one.experiment, *cells, *([source_cell(claim)] if sources else [])))
    return Table("", columns + ("source",) * sources, lines, right=("published", "original", "replication", "judged"))


def rerun_table(rows: Sequence[Judged], recorded: Mapping[str, Sequence[Mapping]]) -> Table:
    """Tabulate claims of new runs beside the `recorded` runs, by experiment, that there were before."""
    columns = ("experiment", "claim", "bound", "published", "recorded", "this run", "verdict")
    lines = []
    for one in rows:
        claim = one.claim
        cells = (claim.text, bounds(claim), number(claim.published), ours(claim, recorded[one.experiment]))
        lines.append((one.experiment, *cells, ours(claim, one.original), with_caveats(claim, one.original)))
    table = Table("", columns, lines, right=("published", "recorded", "this run"))
    return without(table, "experiment") if len({one.experiment for one in rows}) == 1 else table


def variants_table(experiment: Experiment, runs: Sequence[Mapping]) -> Table | None:
    """Tabulate the metrics that an experiment's claims name, one row per variant; None for fewer than two variants."""
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    metrics = list(dict.fromkeys(claim.metric for claim in experiment.claims))
    if len(variants) < 2 or not metrics:
        return None
    cell = lambda variant, metric: ours(Claim("", metric, None, "", variant=variant, kind="measurement"), runs)
    lines = [(variant or "-", *(cell(variant, metric) for metric in metrics)) for variant in variants]
    return Table(experiment.name, ("variant", *metrics), lines, right=tuple(metrics))


def source_cell(claim: Claim) -> str:
    """Describe the source, the differences in protocol, and when the bound was set."""
    spread = f"range of the source: {span(*claim.spread)}" if claim.spread else ""
    differs = f"differs: {claim.differs}" if claim.differs else ""
    since = f"bound set {claim.since}" if claim.since and claim.bounded else ""
    after = f"known at that time: {claim.after}" if claim.after else ""
    return "; ".join(part for part in (claim.source, spread, differs, since, after) if part)


def counts_table(rows: Sequence[Judged]) -> Table:
    """Cross-tabulate kinds and verdicts."""
    counts = Counter((one.claim.kind, one.verdict) for one in rows)
    shown = [verdict for verdict in VERDICTS if any(counts[kind, verdict] for kind in KINDS)]
    line = lambda name, kinds: (name, *(str(sum(counts[kind, verdict] for kind in kinds)) for verdict in shown))
    lines = [line(kind, (kind,)) for kind in KINDS if any(counts[kind, verdict] for verdict in shown)]
    return Table("", ("kind", *shown), [*lines, line("all", KINDS)], right=tuple(shown))


def caveats_line(rows: Sequence[Judged]) -> str:
    """Count the claims that are met, undecided and missed, and their caveats."""
    counts = Counter(caveat for one in rows for caveat in caveats(one.claim, one.runs))
    listed = ", ".join(f"{caveat} ({counts[caveat]})" for caveat in sorted(counts))
    return f"{balance(rows)} Caveats: {listed or 'none'}."


def balance(rows: Sequence[Judged]) -> str:
    """Count the claims that are met, undecided and missed in a sentence."""
    verdicts = Counter(one.verdict for one in rows)
    met = sum(verdicts[verdict] for verdict in MET)
    undecided, missed = verdicts["undecided"], verdicts["missed"]
    total = met + undecided + missed
    return f"Of {total} judged claims, {met} are met, {undecided} undecided and {missed} missed."


def survival_line(rows: Sequence[Judged]) -> str:
    """Count the verdicts that the replication kept or changed; of the claims whose number is the same for every fresh
    seed, only those with another verdict.

    Empty if nothing has been replicated.
    """
    replicated = [one for one in rows if one.replicated]
    if not replicated:
        return ""
    same = lambda one: alike([*by_seed(one.claim, one.replication).values()])
    varied = [one for one in replicated if one.survived is False or not same(one)]
    kept, changed, first = ([one for one in varied if one.survived is kind] for kind in (True, False, None))
    change = Counter(f"{judge(one.claim, one.original)[1]} to {one.verdict}" for one in changed)
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(change.items()))
    total = sum(one.registered for one in rows)
    return (
        f"Replication with fresh seeds: {len(replicated)} of {total} registered claims so far. "
        f"{len(replicated) - len(varied)} of them have the same number for every fresh seed. Of the other "
        f"{len(varied)}, "
        f"{len(kept)} keep the verdict of the original runs, {len(first)} had no original run under the current "
        f"protocol, and {len(changed)} change it{': ' if listed else ''}{listed}."
    )


def state_today(bound: Withdrawn, runs: Sequence[Mapping]) -> tuple[str, str]:
    """The current value, and whether the withdrawn bound and its bar, the threshold for "beaten", would be met."""
    value = judged_value(bound.on_record, runs)
    if value is None:
        return "-", "not run"
    states = [("met" if within(bound, value) else "missed")] if bound.bounded else []
    if bound.bar is not None:
        states.append("bar met" if (value >= bound.bar if upward(bound) else value <= bound.bar) else "bar not met")
    return number(value), ", ".join(states)


def withdrawn_table(withdrawn: Sequence[tuple[Withdrawn, str, str]]) -> Table:
    """Tabulate bounds that were committed once and no longer apply, with the current value of their metric."""
    lines = []
    for bound, value, state in withdrawn:
        threshold = f"bar {'>=' if upward(bound) else '<='} {number(bound.bar)}" if bound.bar is not None else ""
        shown = ", ".join(part for part in (bounds(bound) if bound.bounded else "", threshold) if part)
        lines.append(
            (bound.text, shown, number(bound.published), f"{bound.since} to {bound.until}", value, state, bound.reason)
        )
    columns = ("withdrawn bound", "bound", "published", "in force", "current value", "status", "reason")
    return Table("", columns, lines, right=("published", "current value"))


def grid_table(grid: Grid, runs: Sequence[Mapping]) -> Table:
    """Tabulate a grid of measurements, one row per variant; "(no commit)" marks a cell with a run that names none."""

    def cell(variant: str, metric: str) -> str:
        claim = Claim(variant, metric, None, "", variant=variant, minus=grid.minus, kind="measurement")
        return ours(claim, runs) + (" (no commit)" if without_commit(claim, runs) else "")

    lines = [
        (variant or "-", *(cell(variant, metric) for metric in grid.columns.values())) for variant in grid.variants
    ]
    return Table(grid.caption, ("variant", *grid.columns), lines, right=tuple(grid.columns))


def without(table: Table, column: str) -> Table:
    """The table without one of its columns."""
    at = table.columns.index(column)
    return Table(
        table.title,
        table.columns[:at] + table.columns[at + 1 :],
        [line[:at] + line[at + 1 :] for line in table.rows],
        table.right,
    )


def replication_table(rows: Sequence[Judged]) -> Table:
    """Tabulate original and replicated results of the claims whose complete replication changes the verdict of the
    original runs, or gives the first one."""
    lines = []
    for one in rows:
        if not one.replicated or one.survived:
            continue
        claim, change = one.claim, "first run" if one.survived is None else "changed"
        cells = (bounds(claim), number(claim.published), with_rank(claim, one.original))
        cells += (with_rank(claim, one.replication),)
        verdicts = (with_caveats(claim, one.original), with_caveats(claim, one.replication))
        lines.append((one.experiment, claim.text, *cells, *verdicts, change))
    columns = ("experiment", "claim", "bound", "published", "original", "replication")
    columns += ("original verdict", "replicated verdict", "change")
    return Table("", columns, lines, right=("published", "original", "replication"))
