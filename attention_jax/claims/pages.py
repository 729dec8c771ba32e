"""Tables of the recorded results: claims with verdicts, withdrawn bounds, measurements, and the replication.

`launch.py reproduce` prints it; `make results` (`python -m attention_jax.claims.pages`) writes docs/results.md,
docs/replication.md and README's numbers from experiments/results/*.json, and the costs in docs/reproduce.md.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from attention_jax.claims.catalog import CHAPTERS, ROOT, Experiment, load_experiment, names
from attention_jax.claims.comparison import elsewhere
from attention_jax.claims.judged import Judged, judged
from attention_jax.claims.record import recorded_runs
from attention_jax.claims.verdicts import (
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
from attention_jax.files import write_atomically
from attention_jax.report.tables import Table, markdown, number, span

KINDS = ("same protocol", "other protocol", "exact", "order", "aim", "measurement")
VERDICTS = ("reproduced", "beaten", "above", "below", "holds", "missed", "measured", "not run")


def withdrawn_today(
    experiment: Experiment, runs: Sequence[Mapping], seeds: Mapping | None = None
) -> list[tuple[Withdrawn, str, str]]:
    """Return each withdrawn bound with its current value and status, on the runs that would decide a claim."""
    today = judged(experiment, runs, seeds, [bound.on_record for bound in experiment.withdrawn])
    return [(bound, *state_today(bound, one.runs)) for bound, one in zip(experiment.withdrawn, today)]


def judged_cell(claim: Claim, runs: Sequence[Mapping]) -> str:
    """Return the judged value, with its rank among the seeds if it is not the median."""
    value, seeds = number(judged_value(claim, runs)), len(by_seed(claim, runs))
    return f"{value} (seed {claim.seeds_needed} of {seeds})" if claim.seeds_needed and seeds else value


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
    """Count the claims that are met and missed, and their caveats."""
    counts = Counter(caveat for one in rows for caveat in caveats(one.claim, one.runs))
    total = sum(one.verdict not in ("measured", "not run") for one in rows)
    missed = sum(one.verdict == "missed" for one in rows)
    listed = ", ".join(f"{caveat} ({counts[caveat]})" for caveat in sorted(counts))
    return f"Of {total} judged claims, {total - missed} are met and {missed} missed. Caveats: {listed or 'none'}"


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


def section(experiment: Experiment, rows: Sequence[Judged], runs: Sequence[Mapping]) -> str:
    """Write an experiment's section of docs/results.md: its claims as `rows`, with measurements of all `runs`."""
    table = claims_table(rows, sources=True)
    parts = [f"### {experiment.name}", experiment.claim]
    parts += [markdown(without(table, "experiment"))] if rows else []
    parts += [f"{grid.caption}:\n\n{markdown(grid_table(grid, runs))}" for grid in experiment.grids]
    if experiment.withdrawn:
        parts += [f"Withdrawn bounds:\n\n{markdown(withdrawn_table(withdrawn_today(experiment, runs)))}"]
    return "\n\n".join(parts)


def without(table: Table, column: str) -> Table:
    """The table without one of its columns."""
    at = table.columns.index(column)
    return Table(
        table.title,
        table.columns[:at] + table.columns[at + 1 :],
        [line[:at] + line[at + 1 :] for line in table.rows],
        table.right,
    )


def page(
    experiments: Sequence[Experiment], rows: Mapping[str, Sequence[Judged]], runs: Mapping[str, Sequence[Mapping]]
) -> str:
    """Write the generated part of docs/results.md: counts, then the experiments by chapter.

    `rows` are the judged claims and `runs` the recorded runs, by experiment.
    """
    everything = [one for some in rows.values() for one in some]
    withdrawn = [state for one in experiments for _, _, state in withdrawn_today(one, runs[one.name])]
    parts = [markdown(counts_table(everything)), fill(f"{caveats_line(everything)}.", 100)]
    parts += [fill(survival_line(everything), 100)] if survival_line(everything) else []
    missed = sum("missed" in state for state in withdrawn)
    parts += [f"Withdrawn bounds: {len(withdrawn)}; the current results would miss {missed} of them."]
    for chapter in CHAPTERS:
        inside = [e for e in experiments if e.about("Chapter") == chapter and (rows[e.name] or e.withdrawn or e.grids)]
        parts += [f"## {chapter[0].upper()}{chapter[1:]}"] if inside else []
        parts += [section(experiment, rows[experiment.name], runs[experiment.name]) for experiment in inside]
    return "\n\n".join(parts)


def replication_table(rows: Sequence[Judged]) -> Table:
    """Tabulate original and replicated results of every claim whose replication is complete."""
    lines = []
    for one in rows:
        if not one.replicated:
            continue
        claim, change = one.claim, {True: "kept", False: "changed", None: "first run"}[one.survived]
        cells = (bounds(claim), number(claim.published), with_rank(claim, one.original))
        cells += (with_rank(claim, one.replication),)
        verdicts = (with_caveats(claim, one.original), with_caveats(claim, one.replication))
        lines.append((one.experiment, claim.text, *cells, *verdicts, change))
    columns = ("experiment", "claim", "bound", "published", "original", "replication")
    columns += ("original verdict", "replicated verdict", "change")
    return Table("", columns, lines, right=("published", "original", "replication"))


def replication_page(rows: Sequence[Judged]) -> str:
    """Write the generated part of docs/replication.md."""
    summary = fill(survival_line(rows) or "No claim has been replicated yet.", 100)
    return f"{summary}\n\n{markdown(replication_table(rows))}"


def readme_line(one: Judged) -> str:
    """Write a claim's row in README's table of results."""
    claim, runs = one.claim, one.runs
    cells = (claim.kind, bounds(claim), number(claim.published), with_rank(claim, runs), with_caveats(claim, runs))
    return "| " + " | ".join((one.experiment, claim.text, *cells)) + " |"


def readme_counts(experiments: Sequence[Experiment], rows: Sequence[Judged]) -> str:
    """Write README's counts of verdicts, caveats and withdrawn bounds, and where the reproduced and missed ones are."""
    withdrawn = sum(len(experiment.withdrawn) for experiment in experiments)
    lines = [f"{caveats_line(rows)}. Withdrawn bounds: {withdrawn}.", survival_line(rows)]
    lines += [f"Reproduced: {by_experiment(rows, 'reproduced')}.", f"Missed: {by_experiment(rows, 'missed')}."]
    return "\n\n".join([markdown(counts_table(rows)), *(fill(line, 100) for line in lines if line)])


def by_experiment(rows: Sequence[Judged], verdict: str) -> str:
    """Count the claims with a verdict in each experiment, such as "`ntm_copy` 1, `ntm_init` 2"."""
    counts = Counter(one.experiment for one in rows if one.verdict == verdict)
    return ", ".join(f"`{name}` {count}" for name, count in sorted(counts.items())) or "none"


def fresh_readme(text: str, experiments: Sequence[Experiment], rows: Sequence[Judged]) -> str:
    """Update README's table of results and the counts between its two comment markers."""
    lines = {f"| {one.experiment} | {one.claim.text} |": readme_line(one) for one in rows}
    starts = lambda line: "|".join(line.split("|")[:3]) + "|"
    text = "\n".join(lines.get(starts(line), line) for line in text.split("\n"))
    before, _, rest = text.partition("<!-- counts -->\n")
    return (
        f"{before}<!-- counts -->\n{readme_counts(experiments, rows)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    )


def costs_table(experiments: Sequence[Experiment]) -> Table:
    """Tabulate the minutes of the experiments of each chapter, the cheapest first."""
    lines = []
    for chapter in CHAPTERS:
        inside = [one for one in experiments if one.about("Chapter") == chapter and one.minutes is not None]
        costs = [f"`{one.name}` {number(one.minutes)}" for one in sorted(inside, key=lambda one: one.minutes)]
        lines.append((chapter, ", ".join(costs)))
    return Table("", ("chapter", "minutes on one quiet core, all variants and seeds"), lines)


def write_pages(root: Path = ROOT.parent):
    """Update README and the generated parts of docs/results.md, docs/replication.md and docs/reproduce.md."""
    experiments = [load_experiment(name) for name in names()]
    runs = {experiment.name: recorded_runs(experiment.name, experiment.results) for experiment in experiments}
    by_name = {experiment.name: judged(experiment, runs[experiment.name]) for experiment in experiments}
    rows = [one for some in by_name.values() for one in some]
    others = [f"\n## {table.title}\n\n{markdown(table)}\n" for table in elsewhere(ROOT / "results")]
    results = f"{page(experiments, by_name, runs)}\n" + "".join(others)
    for name, generated in (("results", results), ("replication", f"{replication_page(rows)}\n")):
        path = root / "docs" / f"{name}.md"
        kept = path.read_text(encoding="utf-8").partition("<!-- generated -->\n")[0]
        write_atomically(path, f"{kept}<!-- generated -->\n{generated}")
    reproduce = root / "docs" / "reproduce.md"
    before, _, rest = reproduce.read_text(encoding="utf-8").partition("<!-- costs -->\n")
    costs, after = markdown(costs_table(experiments)), rest.partition("<!-- end -->")[2]
    write_atomically(reproduce, f"{before}<!-- costs -->\n{costs}\n<!-- end -->{after}")
    readme = root / "README.md"
    write_atomically(readme, fresh_readme(readme.read_text(encoding="utf-8"), experiments, rows))


if __name__ == "__main__":
    write_pages()
