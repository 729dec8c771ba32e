"""Tables of claims with their verdicts: for `launch.py reproduce`, and for the pages that `make results` writes."""

import typing
from collections import Counter
from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.judged import JudgedClaim, judge_claims
from attention_jax.claims.verdicts import (
    MET,
    Verdict,
    all_equal,
    bounds_text,
    caveats,
    claim_value,
    higher_is_better,
    judge,
    lacks_commit,
    meets_bounds,
    value_text,
    values_by_seed,
    verdict_with_caveats,
)
from attention_jax.config import Claim, Grid, Withdrawn
from attention_jax.report.tables import Table, number, span

KINDS = ("same protocol", "other protocol", "exact", "order", "aim", "measurement")
VERDICTS = typing.get_args(Verdict)


def judge_withdrawn(
    experiment: Experiment, runs: Sequence[Mapping], seeds: Mapping | None = None
) -> list[tuple[Withdrawn, str, str]]:
    """Return each withdrawn bound with its current value and status, on the runs that would decide a claim."""
    judged_claims = judge_claims(experiment, runs, seeds, [bound.on_record for bound in experiment.withdrawn])
    return [(bound, *current_state(bound, row.runs)) for bound, row in zip(experiment.withdrawn, judged_claims)]


def value_cell(claim: Claim, runs: Sequence[Mapping]) -> str:
    """Return the judged value, with its rank among the seeds if it is not the median."""
    value, seeds = number(claim_value(claim, runs)), len(values_by_seed(claim, runs))
    return f"{value} (rank {claim.seeds_needed} of {seeds})" if claim.seeds_needed and seeds else value


def value_with_rank(claim: Claim, runs: Sequence[Mapping]) -> str:
    """Return the median with its range, and the judged value if that is another seed's."""
    judged_seed = f"; judged: {value_cell(claim, runs)}" if claim.seeds_needed and values_by_seed(claim, runs) else ""
    return f"{value_text(claim, runs)}{judged_seed}"


def claims_table(rows: Sequence[JudgedClaim], sources: bool = False) -> Table:
    """Tabulate claims; `sources` adds a column with source, differences in protocol, and date of the bound."""
    columns = ("experiment", "claim", "kind", "bound", "published", "original", "replication", "judged", "verdict")
    lines = []
    for row in rows:
        claim = row.claim
        cells = (claim.text, claim.kind, bounds_text(claim), number(claim.published), value_text(claim, row.original))
        cells += (
            value_text(claim, row.replication),
            value_cell(claim, row.runs),
            verdict_with_caveats(claim, row.runs),
        )
        lines.append((row.experiment, *cells, *([source_cell(claim)] if sources else [])))
    return Table("", columns + ("source",) * sources, lines, right=("published", "original", "replication", "judged"))


def rerun_table(rows: Sequence[JudgedClaim], recorded: Mapping[str, Sequence[Mapping]]) -> Table:
    """Tabulate the claims of new runs next to the earlier runs, `recorded`, {experiment: runs}."""
    columns = ("experiment", "claim", "bound", "published", "recorded", "this run", "verdict")
    lines = []
    for row in rows:
        claim = row.claim
        cells = (claim.text, bounds_text(claim), number(claim.published), value_text(claim, recorded[row.experiment]))
        lines.append(
            (row.experiment, *cells, value_text(claim, row.original), verdict_with_caveats(claim, row.original))
        )
    table = Table("", columns, lines, right=("published", "recorded", "this run"))
    return drop_column(table, "experiment") if len({row.experiment for row in rows}) == 1 else table


def variants_table(experiment: Experiment, runs: Sequence[Mapping]) -> Table | None:
    """Tabulate the metrics that an experiment's claims name, one row per variant; None for fewer than two variants."""
    variants = list(dict.fromkeys(run["variant"] for run in runs))
    metrics = list(dict.fromkeys(claim.metric for claim in experiment.claims))
    if len(variants) < 2 or not metrics:
        return None
    cell = lambda variant, metric: value_text(Claim("", metric, None, "", variant=variant, kind="measurement"), runs)
    lines = [(variant or "-", *(cell(variant, metric) for metric in metrics)) for variant in variants]
    return Table(experiment.name, ("variant", *metrics), lines, right=tuple(metrics))


def source_cell(claim: Claim) -> str:
    """Describe the source, the differences in protocol, and when the bound was set."""
    spread = f"range of the source: {span(*claim.spread)}" if claim.spread else ""
    differs = f"differs: {claim.differs}" if claim.differs else ""
    since = f"bound set {claim.since}" if claim.since and claim.has_bounds else ""
    known_results = f"known at that time: {claim.after}" if claim.after else ""
    return "; ".join(text for text in (claim.source, spread, differs, since, known_results) if text)


def counts_table(rows: Sequence[JudgedClaim]) -> Table:
    """Cross-tabulate kinds and verdicts."""
    counts = Counter((row.claim.kind, row.verdict) for row in rows)
    verdicts = [verdict for verdict in VERDICTS if any(counts[kind, verdict] for kind in KINDS)]
    line = lambda name, kinds: (name, *(str(sum(counts[kind, verdict] for kind in kinds)) for verdict in verdicts))
    lines = [line(kind, (kind,)) for kind in KINDS if any(counts[kind, verdict] for verdict in verdicts)]
    return Table("", ("kind", *verdicts), [*lines, line("all", KINDS)], right=tuple(verdicts))


def caveats_line(rows: Sequence[JudgedClaim]) -> str:
    """Count the claims that are met, undecided and missed, and their caveats."""
    counts = Counter(caveat for row in rows for caveat in caveats(row.claim, row.runs))
    listed = ", ".join(f"{caveat} ({counts[caveat]})" for caveat in sorted(counts))
    return f"{tally_line(rows)} Caveats: {listed or 'none'}."


def tally_line(rows: Sequence[JudgedClaim]) -> str:
    """Count the claims that are met, undecided and missed in a sentence."""
    verdicts = Counter(row.verdict for row in rows)
    met = sum(verdicts[verdict] for verdict in MET)
    undecided, missed = verdicts["undecided"], verdicts["missed"]
    total = met + undecided + missed
    return f"Of {total} judged claims, {met} are met, {undecided} undecided and {missed} missed."


def survival_line(rows: Sequence[JudgedClaim]) -> str:
    """Count the verdicts that the replication kept or changed. A claim whose number is the same for every fresh
    seed is counted only if its verdict changed.

    Empty if nothing has been replicated.
    """
    replicated = [row for row in rows if row.is_replicated]
    if not replicated:
        return ""
    same = lambda row: all_equal([*values_by_seed(row.claim, row.replication).values()])
    varied = [row for row in replicated if row.verdicts_agree is False or not same(row)]
    unchanged, changed, first = ([row for row in varied if row.verdicts_agree is kind] for kind in (True, False, None))
    change = Counter(f"{judge(row.claim, row.original)[1]} to {row.verdict}" for row in changed)
    listed = ", ".join(f"{name} ({count})" for name, count in sorted(change.items()))
    total = sum(row.is_registered for row in rows)
    return (
        f"Replication with fresh seeds: {len(replicated)} of {total} registered claims so far. "
        f"{len(replicated) - len(varied)} of them have the same number for every fresh seed. Of the other "
        f"{len(varied)}, "
        f"{len(unchanged)} keep the verdict of the original runs, {len(first)} had no original run under the current "
        f"protocol, and {len(changed)} change it{': ' if listed else ''}{listed}."
    )


def current_state(bound: Withdrawn, runs: Sequence[Mapping]) -> tuple[str, str]:
    """The current value, and whether the withdrawn bound and its bar, the threshold for "beaten", would be met."""
    value = claim_value(bound.on_record, runs)
    if value is None:
        return "-", "not run"
    states = [("met" if meets_bounds(bound, value) else "missed")] if bound.has_bounds else []
    if bound.bar is not None:
        states.append(
            "bar met" if (value >= bound.bar if higher_is_better(bound) else value <= bound.bar) else "bar not met"
        )
    return number(value), ", ".join(states)


def withdrawal_table(withdrawn: Sequence[tuple[Withdrawn, str, str]]) -> Table:
    """Tabulate bounds that were committed once and no longer apply, with the current value of their metric."""
    lines = []
    for bound, value, state in withdrawn:
        threshold = (
            f"bar {'>=' if higher_is_better(bound) else '<='} {number(bound.bar)}" if bound.bar is not None else ""
        )
        bound_text = ", ".join(text for text in (bounds_text(bound) if bound.has_bounds else "", threshold) if text)
        lines.append(
            (
                bound.text,
                bound_text,
                number(bound.published),
                f"{bound.since} to {bound.until}",
                value,
                state,
                bound.reason,
            )
        )
    columns = ("withdrawn bound", "bound", "published", "in force", "current value", "status", "reason")
    return Table("", columns, lines, right=("published", "current value"))


def grid_table(grid: Grid, runs: Sequence[Mapping]) -> Table:
    """Tabulate a grid of measurements, one row per variant; "(no commit)" marks a cell with a run that names none."""

    def cell(variant: str, metric: str) -> str:
        claim = Claim(variant, metric, None, "", variant=variant, minus=grid.minus, kind="measurement")
        return value_text(claim, runs) + (" (no commit)" if lacks_commit(claim, runs) else "")

    lines = [
        (variant or "-", *(cell(variant, metric) for metric in grid.columns.values())) for variant in grid.variants
    ]
    return Table(grid.caption, ("variant", *grid.columns), lines, right=tuple(grid.columns))


def drop_column(table: Table, column: str) -> Table:
    """The table without one of its columns."""
    at = table.columns.index(column)
    return Table(
        table.title,
        table.columns[:at] + table.columns[at + 1 :],
        [line[:at] + line[at + 1 :] for line in table.rows],
        table.right,
    )


def replication_table(rows: Sequence[JudgedClaim]) -> Table:
    """Tabulate original and replicated results of the claims whose complete replication changes the verdict of the
    original runs, or gives the first one."""
    lines = []
    for row in rows:
        if not row.is_replicated or row.verdicts_agree:
            continue
        claim, change = row.claim, "first run" if row.verdicts_agree is None else "changed"
        cells = (bounds_text(claim), number(claim.published), value_with_rank(claim, row.original))
        cells += (value_with_rank(claim, row.replication),)
        verdicts = (verdict_with_caveats(claim, row.original), verdict_with_caveats(claim, row.replication))
        lines.append((row.experiment, claim.text, *cells, *verdicts, change))
    columns = ("experiment", "claim", "bound", "published", "original", "replication")
    columns += ("original verdict", "replicated verdict", "change")
    return Table("", columns, lines, right=("published", "original", "replication"))
