"""`make results` (`python -m attention_jax.claims.pages`): write the pages of the record from the recorded results.

These are docs/results.md, a page docs/results/NAME.md for each experiment, docs/results/checks.md, the table of
docs/replication.md, the costs in docs/reproduce.md, the numbers of docs/d2l.md, and README's results.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from attention_jax.claims.catalog import CHAPTERS, ROOT, Experiment, experiment_names, load_experiment
from attention_jax.claims.claim_tables import (
    grid_table,
    judge_withdrawn,
    replication_table,
    survival_line,
    value_with_rank,
    withdrawal_table,
)
from attention_jax.claims.comparison import check_tables
from attention_jax.claims.findings import Finding, load_findings
from attention_jax.claims.judged import JudgedClaim, judge_claims
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.results_page import readme_section, results_page
from attention_jax.claims.verdicts import bounds_text, value_text, verdict_with_caveats
from attention_jax.config import Claim
from attention_jax.files import write_atomically
from attention_jax.report.tables import Table, markdown, number, span

GENERATED, README_START, README_END = "<!-- generated -->\n", "<!-- results -->\n", "<!-- end of results -->"
COSTS_START, D2L_START, TABLE_END = "<!-- costs -->\n", "<!-- d2l -->\n", "<!-- end -->"


def figure_paths(experiment: Experiment) -> list[Path]:
    """The recorded figures of an experiment; the figure of its page comes first."""
    all_figures = sorted(experiment.results.glob(f"{experiment.name}-*.png"))
    main_figure, *learning = (
        experiment.results / f"{experiment.name}{ending}.png" for ending in ("", "-learning_curves", "-learning_curve")
    )
    return [path for path in (main_figure, *learning) if path.exists()] + [
        path for path in all_figures if path not in learning
    ]


def figure_lines(experiment: Experiment) -> list[str]:
    """The figure of an experiment's page with its caption, and links to the others."""
    paths = [f"../../experiments/results/{path.name}" for path in figure_paths(experiment)]
    links = ", ".join(f"[{Path(path).stem.partition('-')[2].replace('_', ' ')}]({path})" for path in paths[1:])
    return [
        *([f"![{experiment.name}]({paths[0]})"] if paths else []),
        *([f"*{experiment.about('Figure')}*"] if experiment.about("Figure") else []),
        *([f"More figures: {links}."] if links else []),
    ]


def notes(doc: str) -> str:
    """The paragraphs of a docstring after its first one and its lines "Word: text"."""
    return "\n\n".join(paragraph for paragraph in doc.split("\n\n")[1:] if not paragraph.startswith("Chapter: "))


def claims_markdown(rows: Sequence[JudgedClaim]) -> str:
    lines = []
    for row in rows:
        claim = row.claim
        cells = (claim.kind, bounds_text(claim), number(claim.published), value_with_rank(claim, row.runs))
        lines.append((claim.text, *cells, verdict_with_caveats(claim, row.runs)))
    columns = ("claim", "kind", "bound", "published", "ours", "verdict")
    return markdown(Table("", columns, lines, right=("published", "ours")))


def differences_text(rows: Sequence[JudgedClaim]) -> str:
    """What differs from the sources, one line for each difference."""
    texts = {}
    for row in rows:
        if row.claim.differs:
            texts.setdefault(row.claim.differs, []).append(row.claim.text)
    return "\n".join(f"* {'; '.join(of)}: {differs}" for differs, of in texts.items())


def about_finding(finding: Finding) -> str:
    return f"* **{finding.title}**: {finding.status}. {finding.cause}. Left, or would settle it: {finding.settles}."


def claim_provenance(claim: Claim) -> tuple[str, str]:
    """The source with its range, and when the bound was set."""
    spread = f"range of the source: {span(*claim.spread)}" if claim.spread else ""
    since = claim.since if claim.has_bounds else ""
    known_results = f"known at that time: {claim.after}" if claim.after else ""
    return "; ".join(filter(None, [claim.source, spread])), "; ".join(filter(None, [since, known_results]))


def history_section(experiment: Experiment, rows: Sequence[JudgedClaim], runs: Sequence[Mapping]) -> str:
    """Original and replicated numbers, sources, days of the bounds, and withdrawn bounds, folded."""
    lines = [
        (
            row.claim.text,
            value_with_rank(row.claim, row.original),
            value_with_rank(row.claim, row.replication),
            *claim_provenance(row.claim),
        )
        for row in rows
    ]
    columns = ("claim", "original", "fresh seeds", "source", "bound set")
    sections = [markdown(Table("", columns, lines, right=columns[1:3]))] if rows else []
    if experiment.withdrawn:
        sections += ["Withdrawn bounds, with the status that today's numbers would give them:"]
        sections += [markdown(withdrawal_table(judge_withdrawn(experiment, runs)))]
    return "\n\n".join(["<details>\n<summary>History</summary>", *sections, "</details>"]) if sections else ""


def plans_text(experiment: Experiment) -> str:
    """The runs that are too large for the machines of this record."""
    return "\n".join(
        f"* {plan.text}: {number(plan.published)} ({plan.source}), bound {bounds_text(plan)}; "
        f"differs in: {plan.differs}"
        for plan in experiment.plans
    )


def page_of(
    experiment: Experiment, rows: Sequence[JudgedClaim], runs: Sequence[Mapping], findings: Sequence[Finding] = ()
) -> str:
    """Write docs/results/NAME.md: the question, a figure, claims as `rows`, measurements of all `runs`, differences,
    command and cost, and at the end the history."""
    mine = [finding for finding in findings if finding.experiment == experiment.name]
    grids = [f"{grid.caption}:\n\n{markdown(grid_table(grid, runs))}" for grid in experiment.grids]
    sections = {
        "Claims": [claims_markdown(rows)] if rows else [],
        "Findings": ["\n".join(map(about_finding, mine))] if mine else [],
        "Plans": [plans_text(experiment)] if experiment.plans else [],
        "Measurements": grids,
        "What differs from the source": [differences_text(rows)] if differences_text(rows) else [],
        "Run it": [
            f"```\n{experiment.about('Command')}\n```",
            *(f"{word}: {experiment.about(word)}" for word in ("Cost", "Data", "Source") if experiment.about(word)),
        ],
        "Notes": [notes(experiment.doc)] if notes(experiment.doc) else [],
    }
    texts = [f"# {experiment.name}", experiment.claim, *figure_lines(experiment)]
    for title, content in sections.items():
        texts += [f"## {title}", *content] if content else []
    return "\n\n".join(filter(None, [*texts, history_section(experiment, rows, runs)])) + "\n"


def checks_page(results: Path) -> str:
    """Write docs/results/checks.md: the tables of `reproduce --check` on other machines."""
    tables = [f"## {table.title}\n\n{markdown(table)}" for table in check_tables(results)]
    about = "Recorded runs that `python launch.py reproduce --check` repeated elsewhere ([how](../reproduce.md))."
    return "\n\n".join(["# Re-runs on other machines", about, *tables]) + "\n"


def replication_page(rows: Sequence[JudgedClaim]) -> str:
    """Write the generated part of docs/replication.md: the counts, and the verdicts that changed or are the first."""
    summary = fill(survival_line(rows) or "No claim has been replicated yet.", 100)
    return f"{summary}\n\n{markdown(replication_table(rows))}"


def replace_between(text: str, start: str, end: str, new: str) -> str:
    """The text with `new` between two markers."""
    head, _, tail = text.partition(start)
    return f"{head}{start}{new}\n{end}{tail.partition(end)[2]}"


def costs_table(experiments: Sequence[Experiment]) -> Table:
    """Tabulate the minutes of the experiments of each chapter, the cheapest first."""
    lines = []
    for chapter in CHAPTERS:
        inside = [
            experiment
            for experiment in experiments
            if experiment.about("Chapter") == chapter and experiment.minutes is not None
        ]
        costs = [
            f"`{experiment.name}` {number(experiment.minutes)}"
            for experiment in sorted(inside, key=lambda row: row.minutes)
        ]
        lines.append((chapter, ", ".join(costs)))
    return Table("", ("chapter", "minutes on one core, all variants and seeds"), lines)


def d2l_table(rows: Sequence[JudgedClaim]) -> Table:
    """Tabulate the claims with a number of "Dive into Deep Learning": theirs with its range, ours, and the verdict."""
    lines = []
    for row in rows:
        claim, section = row.claim, re.match(r"d2l ([\d.]+)", row.claim.source)
        if section and claim.published and claim.kind != "exact":
            around = f" ({span(*claim.spread)})" if claim.spread else ""
            page = f"[{row.experiment}](results/{row.experiment}.md)"
            numbers = f"{number(claim.published)}{around}", value_text(claim, row.runs)
            lines.append((section[1], claim.text, page, *numbers, claim.kind, row.verdict))
    lines.sort(key=lambda line: [int(digits) for digits in line[0].split(".")])
    columns = ("d2l", "what", "experiment", "theirs", "ours", "kind", "verdict")
    return Table("", columns, lines, right=("theirs", "ours"))


def write_pages(root: Path = ROOT.parent):
    """Write the pages into README.md and docs/ of a directory."""
    experiments = [load_experiment(name) for name in experiment_names()]
    runs = {experiment.name: load_recorded_runs(experiment.name, experiment.results) for experiment in experiments}
    by_name = {experiment.name: judge_claims(experiment, runs[experiment.name]) for experiment in experiments}
    rows = [row for claims in by_name.values() for row in claims]
    all_findings, docs = load_findings(rows), root / "docs"
    pages = {f"results/{e.name}.md": page_of(e, by_name[e.name], runs[e.name], all_findings) for e in experiments}
    pages |= {"results.md": results_page(experiments, rows), "results/checks.md": checks_page(ROOT / "results")}
    introduction = (docs / "replication.md").read_text(encoding="utf-8").partition(GENERATED)[0]
    pages["replication.md"] = f"{introduction}{GENERATED}{replication_page(rows)}\n"
    (docs / "results").mkdir(exist_ok=True)
    for stale in {path.name for path in (docs / "results").glob("*.md")} - {Path(name).name for name in pages}:
        (docs / "results" / stale).unlink()
    for name, text in pages.items():
        write_atomically(docs / name, text)
    tables = {"reproduce.md": (COSTS_START, costs_table(experiments)), "d2l.md": (D2L_START, d2l_table(rows))}
    for name, (start, table) in tables.items():
        if (docs / name).exists():
            text = (docs / name).read_text(encoding="utf-8")
            write_atomically(docs / name, replace_between(text, start, TABLE_END, markdown(table)))
    readme = root / "README.md"
    text = readme.read_text(encoding="utf-8")
    write_atomically(readme, replace_between(text, README_START, README_END, readme_section(rows)))


if __name__ == "__main__":
    write_pages()
