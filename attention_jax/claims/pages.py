"""`make results` (`python -m attention_jax.claims.pages`): write the pages of the record from the recorded results.

These are docs/results.md, a page docs/results/NAME.md for each experiment, docs/results/checks.md, the numbers of
docs/d2l.md, the table of docs/attention_variants.md, and README's results. `draw_published` draws the figure of README
and docs/results.md.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from attention_jax.claims.catalog import CHAPTERS, ROOT, Experiment, experiment_names, load_experiment
from attention_jax.claims.claim_tables import (
    BASES,
    check_tables,
    claims_table,
    counts_table,
    grid_table,
    group_of,
    tally_line,
    thresholds_table,
)
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.verdicts import (
    JudgedClaim,
    is_met,
    judge_claims,
    present_runs,
    source_text,
    value_text,
    values_by_seed,
    verdict_with_reason,
)
from attention_jax.errors import lower_is_better
from attention_jax.files import read_json, write_atomically
from attention_jax.report.agreement import Row, agreement
from attention_jax.report.tables import Table, markdown, number

README_START, README_END = "<!-- results -->\n", "<!-- end of results -->"
D2L_START, TABLE_END = "<!-- d2l -->\n", "<!-- end -->"
VARIANTS_START = "<!-- attention_variants -->\n"
FIGURE = ROOT / "results" / "published.png"
INTRODUCTION = """
# Results: published numbers and this code's

Numbers are medians of all runs of a configuration, with their range; [one rule](reproduce.md#the-rule) gives the
verdicts. Each experiment's page lists what differs from its source. `make results` writes this page from
`experiments/results/*.json`.
"""
CAPTION = """
*Dots and lines: medians and ranges of this code. Gray bars: the source's runs. All relative to the published number.*
"""
CODE = """
No source prints these numbers: we ran its programs here (d2l's rewritten, in one file each).
"""
REGISTERED = """
The rule was committed on 2026-11-27, after most of the runs ([history](../experiments/HISTORY.md)). A star marks claims
that were committed before every run that they are judged by.
"""
FROM = {"printed": "printed", "decoded": "a curve", "code": "its code, run here", "count": "a count"}
"""Where the number of a row of README's table comes from."""
TREE = "```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```"


def wrap_text(text: str) -> str:
    """Prose or an item of a list in lines of at most 120 columns; links are not broken."""
    indent = "  " if text.startswith("* ") else ""
    return fill(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False, subsequent_indent=indent)


def link(name: str) -> str:
    """A link from docs/results.md to the page of an experiment."""
    return f"[{name}](results/{name}.md)"


def shorten_clauses(text: str, most: int = 60) -> str:
    """The first clauses of a text, at least one, with an ellipsis if any are left out.

    >>> shorten_clauses("theirs: clip 5, L2 1e-5, METEOR; ours: 1, none", most=24)
    'theirs: clip 5, L2 1e-5 ...'
    """
    clauses = re.split(r"(?<=[,;]) (?![^(]*\))", text)
    leading = clauses[:1]
    while len(leading) < len(clauses) and len(" ".join([*leading, clauses[len(leading)]])) <= most:
        leading.append(clauses[len(leading)])
    return text if len(leading) == len(clauses) else f"{' '.join(leading).rstrip(',;:')} ..."


# the page of an experiment


def figure_paths(experiment: Experiment) -> tuple[Path | None, list[Path]]:
    """The figure that an experiment's page opens with, if it has one, and the other recorded figures.

    It is the experiment's own comparison. Without claims a figure of its task, such as a copied sequence, will do; with
    claims no other figure shows the number that is claimed.
    """
    name, results = experiment.name, experiment.results
    figures = [path for path in (results / f"{name}.png",) if path.exists()] + sorted(results.glob(f"{name}-*.png"))
    comparisons = [path for path in figures if path.stem in (name, f"{name}-learning_curves")]
    pictures = [] if experiment.claims else [path for path in figures if "-learning_curve" not in path.stem]
    opening = next(iter(comparisons + pictures), None)
    return opening, [path for path in figures if path != opening]


def figure_lines(experiment: Experiment) -> tuple[list[str], str]:
    """The figure of an experiment's page with its caption, and links to the others."""
    opening, more_paths = figure_paths(experiment)
    address = "../../experiments/results/"
    links = ", ".join(f"[{path.stem.partition('-')[2].replace('_', ' ')}]({address}{path.name})" for path in more_paths)
    if opening is None:
        return [], links
    caption = [f"*{experiment.about('Figure')}*"] if experiment.about("Figure") else []
    return [f"![{experiment.name}]({address}{opening.name})", *caption], links


def notes_of(rows: Sequence[JudgedClaim]) -> str:
    """Sources, what differs from them, and suspected causes: a line for each with the claims that it is about."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        claim = row.claim
        cause = f"suspected cause: {claim.cause}" if claim.cause and row.verdict in ("differ", "opposite") else ""
        about = "; ".join(filter(None, [claim.source, claim.differs and f"differs: {claim.differs}", cause]))
        texts.setdefault(about, []).append(claim.text)
    return "\n".join(f"* {'; '.join(of)}: {about}." for about, of in texts.items())


def page_of(experiment: Experiment, rows: Sequence[JudgedClaim], runs: Sequence[Mapping]) -> str:
    """Write docs/results/NAME.md: figure, claims (without any the first table), command, and the rest folded."""
    figure, more_figures = figure_lines(experiment)
    grids = [f"{grid.caption}:\n\n{markdown(grid_table(grid, runs))}" for grid in experiment.grids]
    thresholds = [markdown(thresholds_table(experiment, runs))] if experiment.thresholds else []
    tables = [*([markdown(claims_table(rows))] if rows else []), *thresholds, *grids]
    about = [f"{word}: {experiment.about(word)}" for word in ("Cost", "Data", "Source") if experiment.about(word)]
    folded = [
        *tables[1:],
        notes_of(rows),
        *about,
        f"More figures: {more_figures}." if more_figures else "",
        f"Protocol and variants: [experiments/{experiment.name}.py](../../experiments/{experiment.name}.py).",
    ]
    command = f"```\n{experiment.about('Command')}\n```" if experiment.about("Command") else ""
    title, colon, _ = experiment.claim.removesuffix(".").partition(": ")
    texts = [f"# {title}", experiment.claim if colon else "", *figure, *tables[:1], command]
    texts += [
        "<details>\n<summary>More numbers, sources and differences, data and cost</summary>",
        *folded,
        "</details>",
    ]
    return "\n\n".join(filter(None, texts)) + "\n"


def checks_page(results: Path) -> str:
    """Write docs/results/checks.md: `reproduce --check` on other machines, in numbers."""
    checks = [read_json(path) for path in sorted(results.glob("check_*.json"))]
    tables = [markdown(table) for table in check_tables(checks)]
    about = (
        "Recorded runs that `python launch.py reproduce --check` repeated elsewhere ([how](../reproduce.md)); all "
        "numbers are in `experiments/results/check_*.json`. Those that differed:"
    )
    return "\n\n".join(["# Re-runs on other machines", tables[0], wrap_text(about), tables[1]]) + "\n"


# docs/results.md and README


def numbers_table(rows: Sequence[JudgedClaim]) -> str:
    """The claims of a group about numbers: the source's, ours, the verdict, and of those that differ the cause."""
    lines, former = [], ""
    labels = Counter((row.experiment, shorten_clauses(row.claim.text, most=35)) for row in rows)
    for row in rows:
        about = shorten_clauses(row.claim.cause or row.claim.differs) if row.verdict == "differ" else ""
        star = "\\*" if row.claim.registered else ""
        label = shorten_clauses(row.claim.text, most=35)
        label = label if labels[row.experiment, label] == 1 else row.claim.text
        name = f"{link(row.experiment)}: {label}{star}"
        numbers = source_text(row.claim), value_text(row.claim, row.runs)
        lines.append((name, *numbers, verdict_with_reason(row), "as above" if about and about == former else about))
        former = about
    columns = ("experiment: number", "source", "this code", "verdict", "suspected cause")
    if not any(line[-1] for line in lines):
        columns, lines = columns[:-1], [line[:-1] for line in lines]
    return markdown(Table("", columns, lines, right=columns[1:3]))


def count_lines(rows: Sequence[JudgedClaim], names: Sequence[str]) -> str:
    """Verdicts by experiment in a line: "gat_cora 1 same sign, 1 undecided"."""
    texts = []
    for name in dict.fromkeys(row.experiment for row in rows):
        counts = Counter(row.verdict for row in rows if row.experiment == name)
        texts.append(f"{link(name)} {', '.join(f'{counts[word]} {word}' for word in names if counts[word])}")
    return wrap_text("; ".join(texts) + ".")


def opposite_table(rows: Sequence[JudgedClaim]) -> str:
    """The orders with the opposite sign."""
    lines = [
        (f"{link(row.experiment)}: {row.claim.text}", source_text(row.claim), value_text(row.claim, row.runs),
         row.claim.cause or shorten_clauses(row.claim.differs))
        for row in rows if row.verdict == "opposite"
    ]  # fmt: skip
    columns = ("experiment: difference", "source", "this code", "suspected cause")
    return markdown(Table("", columns, lines, right=columns[1:3]))


def thresholds_text(experiments: Sequence[Experiment], runs: Mapping[str, Sequence[Mapping]]) -> str:
    """How many thresholds there are, and how many of each experiment are not met."""
    every = [(e, threshold) for e in experiments for threshold in e.thresholds]
    theory = sum(threshold.theory for _, threshold in every)
    missed = Counter(link(e.name) for e, threshold in every if is_met(threshold, runs[e.name]) is False)
    text = (
        f"Tests compare the recorded runs with {theory} statements of theory and {len(every) - theory} bounds of this "
        f"project (`tests/experiments/test_thresholds.py`); the pages of the experiments list them. Not met: "
        f"{', '.join(f'{count} of {name}' for name, count in missed.items())}."
    )
    return wrap_text(text)


def index(experiments: Sequence[Experiment]) -> str:
    """Links to the pages of all experiments, by chapter."""
    lines = []
    for chapter in CHAPTERS:
        inside = [link(experiment.name) for experiment in experiments if experiment.about("Chapter") == chapter]
        lines += [wrap_text(f"* {chapter[0].upper()}{chapter[1:]}: {', '.join(inside)}")] if inside else []
    return "\n".join(lines)


def results_page(
    experiments: Sequence[Experiment], rows: Sequence[JudgedClaim], runs: Mapping[str, Sequence[Mapping]]
) -> str:
    """Write docs/results.md."""
    of = lambda group: [row for row in rows if group_of(row) == group]
    sections = {
        "Numbers that a source prints": [numbers_table(of("printed"))],
        "Curves that were decoded": [numbers_table(of("decoded"))],
        "Our runs of a source's code": [CODE, numbers_table(of("code"))],
        "Counts": [count_lines(of("count"), ("agree", "differ")), causes_text(of("count"))],
        "Orders": [
            count_lines(of("order"), ("same sign", "opposite", "undecided", "not run")),
            opposite_table(of("order")),
        ],
        "Theory and thresholds": [thresholds_text(experiments, runs)],
        "All experiments": [index(experiments), "Re-runs on other machines: [checks](results/checks.md).", TREE],
    }
    texts = [INTRODUCTION, markdown(counts_table(rows)), REGISTERED]
    texts += ["![Published numbers and this code's](../experiments/results/published.png)", CAPTION]
    for title, content in sections.items():
        texts += [f"## {title}", *content]
    return "\n\n".join(text.strip() for text in texts if text.strip()) + "\n"


def causes_text(rows: Sequence[JudgedClaim]) -> str:
    """The suspected causes of differences, each once."""
    causes = dict.fromkeys(row.claim.cause for row in rows if row.verdict == "differ")
    return wrap_text(f"Suspected: {'; '.join(filter(None, causes))}.") if any(causes) else ""


def d2l_table(rows: Sequence[JudgedClaim]) -> Table:
    """Tabulate the claims with a number of "Dive into Deep Learning"."""
    lines = []
    for row in rows:
        section = re.match(r"d2l ([\d.]+)", row.claim.source)
        if section and row.claim.published is not None:
            page = f"[{row.experiment}](results/{row.experiment}.md)"
            numbers = source_text(row.claim), value_text(row.claim, row.runs)
            label = shorten_clauses(row.claim.text, most=45)
            lines.append((section[1].rstrip("."), label, page, *numbers, verdict_with_reason(row)))
    lines.sort(key=lambda line: [int(digits) for digits in line[0].split(".")])
    columns = ("d2l", "what", "experiment", "source", "this code", "verdict")
    return Table("", columns, lines, right=columns[3:5])


def readme_section(rows: Sequence[JudgedClaim]) -> str:
    """Write README's results: at most 25 lines."""
    groups = []
    for group, name in BASES.items():
        counts = Counter(row.verdict for row in rows if group_of(row) == group and row.verdict != "not run")
        agreed = counts["same sign" if group == "order" else "agree"]
        groups.append(f"{name}: {agreed} of {counts.total()}")
    rule = (
        "Held against published numbers by [one rule](docs/reproduce.md): a 95 % interval of the difference of medians "
        "within 2 % or one standard deviation of the source, from at least 8 runs, or 5 of hours. These agree, or have "
        f"the same sign: {'; '.join(groups)}. {tally_line(rows)} Most of the undecided have too few runs. "
        "[Results](docs/results.md) has all of them, with suspected causes."
    )
    lines = [
        (f"[{row.claim.headline}](docs/results/{row.experiment}.md)", FROM[row.claim.basis],
         source_text(row.claim), value_text(row.claim, row.runs), verdict_with_reason(row))
        for row in rows if row.claim.in_readme
    ]  # fmt: skip
    columns = ("number", "from", "source", "this code", "verdict")
    picture = '<img src="experiments/results/published.png" width="620" alt="Published numbers and this code\'s">'
    command = (
        "`python launch.py reproduce date_luong --no-record` reruns an experiment and judges it;\n"
        "`python launch.py reproduce --check --minutes 30` repeats recorded runs."
    )
    return "\n\n".join([wrap_text(rule), markdown(Table("", columns, lines, right=columns[2:4])), picture, command])


# the figure


def agreement_row(row: JudgedClaim) -> Row:
    """A claim as a row of the figure. If less is better, published is divided by ours, so that better is always to the
    right."""
    claim, values = row.claim, list(values_by_seed(row.claim, row.runs).values())
    inverted = lower_is_better(claim.metric)
    ratio = lambda x: round(claim.published / x if inverted else x / claim.published, 4)
    ends = sorted((ratio(min(values)), ratio(max(values))))
    runs = claim.runs or (claim.published - claim.deviation, claim.published + claim.deviation)
    source = sorted((ratio(min(runs)), ratio(max(runs))))
    label = f"{claim.headline}: {number(claim.published)}, here {number(float(np.median(values)))}"
    return Row(label, ratio(float(np.median(values))), *ends, tuple(source), row.verdict)


def headline_rows(rows: Sequence[JudgedClaim]) -> list[Row]:
    """The rows of the figure: the claims with a headline that have been run, those that agree first."""
    order = ("agree", "undecided", "differ")
    chosen = [row for row in rows if row.claim.headline and row.verdict != "not run"]
    return [agreement_row(row) for row in sorted(chosen, key=lambda row: order.index(row.verdict))]


def draw_published(path: Path = FIGURE) -> Path:
    """Draw the figure from the recorded results."""
    rows = headline_rows([row for name in experiment_names() for row in judge_claims(load_experiment(name))])
    return agreement(rows, path, inputs=rows)


# writing


def replace_between(text: str, start: str, end: str, new: str) -> str:
    """The text with `new` between two markers."""
    head, _, tail = text.partition(start)
    return f"{head}{start}{new}\n{end}{tail.partition(end)[2]}"


def write_pages(root: Path = ROOT.parent):
    """Write the pages into README.md and docs/ of a directory."""
    experiments = [load_experiment(name) for name in experiment_names()]
    runs = {e.name: present_runs(e, load_recorded_runs(e.name, e.results)) for e in experiments}
    by_name = {e.name: judge_claims(e) for e in experiments}
    rows, docs = [row for claims in by_name.values() for row in claims], root / "docs"
    pages = {f"results/{e.name}.md": page_of(e, by_name[e.name], runs[e.name]) for e in experiments}
    pages |= {"results.md": results_page(experiments, rows, runs), "results/checks.md": checks_page(ROOT / "results")}
    (docs / "results").mkdir(exist_ok=True)
    for stale in {path.name for path in (docs / "results").glob("*.md")} - {Path(name).name for name in pages}:
        (docs / "results" / stale).unlink()
    for name, text in pages.items():
        write_atomically(docs / name, text)
    variants = next(grid_table(e.grids[0], runs[e.name]) for e in experiments if e.name == "attention_variants")
    generated = {
        docs / "d2l.md": (D2L_START, TABLE_END, markdown(d2l_table(rows))),
        docs / "attention_variants.md": (VARIANTS_START, TABLE_END, markdown(variants)),
        root / "README.md": (README_START, README_END, readme_section(rows)),
    }
    for path, (start, end, new) in generated.items():
        write_atomically(path, replace_between(path.read_text(encoding="utf-8"), start, end, new))


if __name__ == "__main__":
    write_pages()
