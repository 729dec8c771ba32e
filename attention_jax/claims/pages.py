"""`make results` (`python -m attention_jax.claims.pages`): write the pages of the record from the recorded results.

These are docs/results.md, a page docs/results/NAME.md for each experiment, docs/results/checks.md, the table of
docs/replication.md, the costs in docs/reproduce.md, the numbers of docs/d2l.md, and README's results.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from attention_jax.claims.catalog import CHAPTERS, ROOT, Experiment, load_experiment, names
from attention_jax.claims.claim_tables import (
    grid_table,
    replication_table,
    survival_line,
    with_rank,
    withdrawn_table,
    withdrawn_today,
)
from attention_jax.claims.comparison import elsewhere
from attention_jax.claims.findings import Finding, findings
from attention_jax.claims.judged import Judged, judged
from attention_jax.claims.record import recorded_runs
from attention_jax.claims.results_page import readme_section, results_page
from attention_jax.claims.verdicts import bounds, ours, with_caveats
from attention_jax.config import Claim
from attention_jax.files import write_atomically
from attention_jax.report.tables import Table, markdown, number, span

GENERATED, README_START, README_END = "<!-- generated -->\n", "<!-- results -->\n", "<!-- end of results -->"
COSTS_START, D2L_START, TABLE_END = "<!-- costs -->\n", "<!-- d2l -->\n", "<!-- end -->"


def figures(experiment: Experiment) -> list[Path]:
    """The recorded figures of an experiment, that of its page first."""
    found = sorted(experiment.results.glob(f"{experiment.name}-*.png"))
    own, *learning = (
        experiment.results / f"{experiment.name}{ending}.png" for ending in ("", "-learning_curves", "-learning_curve")
    )
    return [path for path in (own, *learning) if path.exists()] + [path for path in found if path not in learning]


def figure(experiment: Experiment) -> list[str]:
    """The figure of an experiment's page with its caption, and links to the others."""
    paths = [f"../../experiments/results/{path.name}" for path in figures(experiment)]
    others = ", ".join(f"[{Path(path).stem.partition('-')[2].replace('_', ' ')}]({path})" for path in paths[1:])
    return [
        *([f"![{experiment.name}]({paths[0]})"] if paths else []),
        *([f"*{experiment.about('Figure')}*"] if experiment.about("Figure") else []),
        *([f"More figures: {others}."] if others else []),
    ]


def notes(doc: str) -> str:
    """The paragraphs of a docstring after its first one and its lines "Word: text"."""
    return "\n\n".join(part for part in doc.split("\n\n")[1:] if not part.startswith("Chapter: "))


def claims_now(rows: Sequence[Judged]) -> str:
    lines = []
    for one in rows:
        claim = one.claim
        cells = (claim.kind, bounds(claim), number(claim.published), with_rank(claim, one.runs))
        lines.append((claim.text, *cells, with_caveats(claim, one.runs)))
    columns = ("claim", "kind", "bound", "published", "ours", "verdict")
    return markdown(Table("", columns, lines, right=("published", "ours")))


def differences(rows: Sequence[Judged]) -> str:
    """What differs from the sources, one line for each difference."""
    texts = {}
    for one in rows:
        if one.claim.differs:
            texts.setdefault(one.claim.differs, []).append(one.claim.text)
    return "\n".join(f"* {'; '.join(of)}: {differs}" for differs, of in texts.items())


def about_finding(finding: Finding) -> str:
    return f"* **{finding.title}**: {finding.status}. {finding.cause}. Left, or would settle it: {finding.settles}."


def provenance(claim: Claim) -> tuple[str, str]:
    """The source with its range, and when the bound was set."""
    spread = f"range of the source: {span(*claim.spread)}" if claim.spread else ""
    since = claim.since if claim.bounded else ""
    known = f"known at that time: {claim.after}" if claim.after else ""
    return "; ".join(filter(None, [claim.source, spread])), "; ".join(filter(None, [since, known]))


def history(experiment: Experiment, rows: Sequence[Judged], runs: Sequence[Mapping]) -> str:
    """Original and replicated numbers, sources, days of the bounds, and withdrawn bounds, folded."""
    lines = [
        (
            one.claim.text,
            with_rank(one.claim, one.original),
            with_rank(one.claim, one.replication),
            *provenance(one.claim),
        )
        for one in rows
    ]
    columns = ("claim", "original", "fresh seeds", "source", "bound set")
    parts = [markdown(Table("", columns, lines, right=columns[1:3]))] if rows else []
    if experiment.withdrawn:
        parts += ["Withdrawn bounds, with the status that today's numbers would give them:"]
        parts += [markdown(withdrawn_table(withdrawn_today(experiment, runs)))]
    return "\n\n".join(["<details>\n<summary>History</summary>", *parts, "</details>"]) if parts else ""


def plans(experiment: Experiment) -> str:
    """The runs that are too large for the machines of this record."""
    return "\n".join(
        f"* {plan.text}: {number(plan.published)} ({plan.source}), bound {bounds(plan)}; differs in: {plan.differs}"
        for plan in experiment.plans
    )


def page_of(
    experiment: Experiment, rows: Sequence[Judged], runs: Sequence[Mapping], known: Sequence[Finding] = ()
) -> str:
    """Write docs/results/NAME.md: the question, a figure, claims as `rows`, measurements of all `runs`, differences,
    command and cost, and at the end the history."""
    mine = [finding for finding in known if finding.experiment == experiment.name]
    grids = [f"{grid.caption}:\n\n{markdown(grid_table(grid, runs))}" for grid in experiment.grids]
    parts = {
        "Claims": [claims_now(rows)] if rows else [],
        "Findings": ["\n".join(map(about_finding, mine))] if mine else [],
        "Plans": [plans(experiment)] if experiment.plans else [],
        "Measurements": grids,
        "What differs from the source": [differences(rows)] if differences(rows) else [],
        "Run it": [
            f"```\n{experiment.about('Command')}\n```",
            *(f"{word}: {experiment.about(word)}" for word in ("Cost", "Data", "Source") if experiment.about(word)),
        ],
        "Notes": [notes(experiment.doc)] if notes(experiment.doc) else [],
    }
    texts = [f"# {experiment.name}", experiment.claim, *figure(experiment)]
    for title, part in parts.items():
        texts += [f"## {title}", *part] if part else []
    return "\n\n".join(filter(None, [*texts, history(experiment, rows, runs)])) + "\n"


def checks_page(results: Path) -> str:
    """Write docs/results/checks.md: the tables of `reproduce --check` on other machines."""
    tables = [f"## {table.title}\n\n{markdown(table)}" for table in elsewhere(results)]
    about = "Recorded runs that `python launch.py reproduce --check` repeated elsewhere ([how](../reproduce.md))."
    return "\n\n".join(["# Re-runs on other machines", about, *tables]) + "\n"


def replication_page(rows: Sequence[Judged]) -> str:
    """Write the generated part of docs/replication.md: the counts, and the verdicts that changed or are the first."""
    summary = fill(survival_line(rows) or "No claim has been replicated yet.", 100)
    return f"{summary}\n\n{markdown(replication_table(rows))}"


def between(text: str, start: str, end: str, new: str) -> str:
    """The text with `new` between two markers."""
    before, _, rest = text.partition(start)
    return f"{before}{start}{new}\n{end}{rest.partition(end)[2]}"


def costs_table(experiments: Sequence[Experiment]) -> Table:
    """Tabulate the minutes of the experiments of each chapter, the cheapest first."""
    lines = []
    for chapter in CHAPTERS:
        inside = [one for one in experiments if one.about("Chapter") == chapter and one.minutes is not None]
        costs = [f"`{one.name}` {number(one.minutes)}" for one in sorted(inside, key=lambda one: one.minutes)]
        lines.append((chapter, ", ".join(costs)))
    return Table("", ("chapter", "minutes on one core, all variants and seeds"), lines)


def d2l_table(rows: Sequence[Judged]) -> Table:
    """Tabulate the claims with a number of "Dive into Deep Learning": theirs with its range, ours, and the verdict."""
    lines = []
    for one in rows:
        claim, section = one.claim, re.match(r"d2l ([\d.]+)", one.claim.source)
        if section and claim.published and claim.kind != "exact":
            around = f" ({span(*claim.spread)})" if claim.spread else ""
            page = f"[{one.experiment}](results/{one.experiment}.md)"
            numbers = f"{number(claim.published)}{around}", ours(claim, one.runs)
            lines.append((section[1], claim.text, page, *numbers, claim.kind, one.verdict))
    lines.sort(key=lambda line: [int(part) for part in line[0].split(".")])
    columns = ("d2l", "what", "experiment", "theirs", "ours", "kind", "verdict")
    return Table("", columns, lines, right=("theirs", "ours"))


def write_pages(root: Path = ROOT.parent):
    """Write the pages into README.md and docs/ of a directory."""
    experiments = [load_experiment(name) for name in names()]
    runs = {experiment.name: recorded_runs(experiment.name, experiment.results) for experiment in experiments}
    by_name = {experiment.name: judged(experiment, runs[experiment.name]) for experiment in experiments}
    rows = [one for some in by_name.values() for one in some]
    known, docs = findings(rows), root / "docs"
    pages = {f"results/{e.name}.md": page_of(e, by_name[e.name], runs[e.name], known) for e in experiments}
    pages |= {"results.md": results_page(experiments, rows), "results/checks.md": checks_page(ROOT / "results")}
    kept = (docs / "replication.md").read_text(encoding="utf-8").partition(GENERATED)[0]
    pages["replication.md"] = f"{kept}{GENERATED}{replication_page(rows)}\n"
    (docs / "results").mkdir(exist_ok=True)
    for stale in {path.name for path in (docs / "results").glob("*.md")} - {Path(name).name for name in pages}:
        (docs / "results" / stale).unlink()
    for name, text in pages.items():
        write_atomically(docs / name, text)
    tables = {"reproduce.md": (COSTS_START, costs_table(experiments)), "d2l.md": (D2L_START, d2l_table(rows))}
    for name, (start, table) in tables.items():
        if (docs / name).exists():
            text = (docs / name).read_text(encoding="utf-8")
            write_atomically(docs / name, between(text, start, TABLE_END, markdown(table)))
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    write_atomically(readme, between(text, README_START, README_END, readme_section(rows)))


if __name__ == "__main__":
    write_pages()
