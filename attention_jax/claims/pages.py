"""`make results` (`python -m attention_jax.claims.pages`): write the pages of the record from the recorded results.

These are docs/results.md, a page docs/results/NAME.md for each experiment that `has_page`, the numbers of docs/d2l.md,
the table of docs/attention_variants.md, README's results, and the forest plot of README and docs/results.md.
"""

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

from attention_jax.catalog import CHAPTERS, ROOT, Experiment, experiment_names, load_experiment
from attention_jax.claims.check import describe_machine
from attention_jax.claims.claim_tables import claims_table, grid_table, tally_line, thresholds_table
from attention_jax.claims.record import present_runs
from attention_jax.claims.rule import VERDICTS
from attention_jax.claims.verdicts import JudgedClaim, difference_text, is_met, judge_claims, our_text, source_text
from attention_jax.files import read_json, write_atomically
from attention_jax.report.forest import COLORS, Row, forest
from attention_jax.report.tables import Table, markdown

README_START, README_END = "<!-- results -->\n", "<!-- end of results -->"
D2L_START, TABLE_END = "<!-- d2l -->\n", "<!-- end -->"
VARIANTS_START = "<!-- attention_variants -->\n"
FIGURE = Path("experiments") / "results" / "published.png"
INTRODUCTION = """
Each number is the mean of all runs of a configuration, +- their standard deviation, with the number of runs; without it
the source prints one number. "Curves" were read off the source's plots, "run here" is the source's code, or our rewrite
of it, run by us. A difference has its resolution, half of a 95 % interval. [One rule](reproduce.md#the-rule), set with
these data in view, gives the verdicts; several rows come from the same runs. Fourteen numbers left with the former
rule, as their protocols are not the sources', none of which had agreed ([history](../experiments/HISTORY.md)). `make
results` writes this page from `experiments/results/*.json`.
"""
CHECKS = """
Recorded runs that `python launch.py reproduce --check` repeated elsewhere ([how](reproduce.md)); all numbers are in
`experiments/results/check_NAME.json`.
"""
TREE = "```{toctree}\n:hidden:\n:glob:\n\nresults/*\n```"


def wrap_text(text: str) -> str:
    """Prose or an item of a list in lines of at most 120 columns; links are not broken."""
    indent = "  " if text.startswith("* ") else ""
    return fill(" ".join(text.split()), 120, break_on_hyphens=False, break_long_words=False, subsequent_indent=indent)


def link(name: str, docs: str = "") -> str:
    """A link to the page of an experiment or, if it has none, to its file, from a page with this path to docs/."""
    address = f"results/{name}.md" if has_page(load_experiment(name)) else f"../experiments/{name}.py"
    return f"[`{name}`]({posixpath.normpath(docs + address)})"


def first_clause(text: str) -> str:
    """The first clause of what differs, up to a semicolon.

    >>> first_clause("half of the epochs; another rate, no dropout")
    'half of the epochs'
    """
    return text.partition(";")[0]


def cause_of(row: JudgedClaim) -> str:
    """The suspected cause of a difference or an opposite sign."""
    missed = row.verdict in ("differs", "opposite")
    return f"suspected cause: {row.claim.cause}" if row.claim.cause and missed else ""


# the page of an experiment


def has_page(experiment: Experiment) -> bool:
    """Whether a page says more about an experiment than its row in docs/results.md: a figure or a table of numbers."""
    return bool(figures_of(experiment) or experiment.grids)


def figures_of(experiment: Experiment) -> list[Path]:
    """The recorded figures; the page shows the first: the experiment's own comparison or, as no other figure shows a
    claimed number, the learning curve; without claims rather a picture of the task, such as a copied sequence."""
    name, results = experiment.name, experiment.results
    is_curve = lambda path: path.stem == f"{name}-learning_curve"
    is_own = lambda path: path.stem in (name, f"{name}-learning_curves")
    rank = lambda path: (not is_own(path), is_curve(path) != bool(experiment.claims), path.stem)
    figures = [*results.glob(f"{name}.png"), *sorted(results.glob(f"{name}-*.png"))]
    first = min(figures, key=rank, default=None)
    return sorted(figures, key=lambda path: path != first)


def notes_of(rows: Sequence[JudgedClaim]) -> str:
    """Sources, what differs from them, and suspected causes: a line for each, with the claims that it is about if there
    are several lines."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        differs = f"differs: {row.claim.differs}" if row.claim.differs else ""
        about = "; ".join(filter(None, [row.claim.source, differs, cause_of(row)]))
        texts.setdefault(about, []).append(row.claim.text)
    names = {about: f"{'; '.join(of)}: " if len(texts) > 1 else "" for about, of in texts.items()}
    return "\n".join(f"* {names[about]}{about}." for about in texts)


def page_of(experiment: Experiment, rows: Sequence[JudgedClaim], runs: Sequence[Mapping]) -> str:
    """Write docs/results/NAME.md: figure, claims (without any the first table), command, and the rest folded."""
    name, address = experiment.name, "../../experiments/results/"
    figure, *other_figures = figures_of(experiment) or [None]
    links = [f"[{path.stem.partition('-')[2].replace('_', ' ')}]({address}{path.name})" for path in other_figures]
    tables = [markdown(claims_table(rows))] if rows else []
    tables += [markdown(thresholds_table(experiment, runs))] if experiment.thresholds else []
    tables += [f"{grid.caption}:\n\n{markdown(grid_table(grid, runs))}" for grid in experiment.grids]
    title, colon, _ = experiment.claim.removesuffix(".").partition(": ")
    texts = [
        f"# {title}",
        experiment.claim if colon else "",
        f"![{name}]({address}{figure.name})" if figure else "",
        f"*{experiment.about('Figure')}*" if figure and experiment.about("Figure") else "",
        *tables[:1],
        f"```\n{experiment.about('Command')}\n```" if experiment.about("Command") else "",
        "<details>\n<summary>More numbers, sources and differences, data and cost</summary>",
        *tables[1:],
        notes_of(rows),
        *(f"{word}: {experiment.about(word)}" for word in ("Cost", "Data", "Source") if experiment.about(word)),
        f"More figures: {', '.join(links)}." if links else "",
        f"Protocol and variants: [experiments/{name}.py](../../experiments/{name}.py).",
        "</details>",
    ]
    return "\n\n".join(filter(None, texts)) + "\n"


# docs/results.md and README


def numbers_of(row: JudgedClaim) -> tuple[str, str, str]:
    """The source's number, ours, and the difference."""
    return source_text(row), our_text(row), difference_text(row)


def numbers_table(rows: Sequence[JudgedClaim], docs: str = "") -> str:
    """The claims about numbers, sorted by verdict: what, from where, both sides, the difference, what is not as in the
    source, and the experiment that runs it."""
    lines = []
    for row in sorted(rows, key=lambda row: VERDICTS.index(row.verdict)):
        note = "; ".join(filter(None, [first_clause(row.claim.differs), cause_of(row)]))
        lines.append((row.claim.label, *numbers_of(row), row.verdict, note, link(row.experiment, docs)))
    columns = ("number", "source", "this code", "difference", "verdict", "differs in", "`launch.py reproduce`")
    return markdown(Table("", columns, lines, right=columns[1:4]))


def count_lines(rows: Sequence[JudgedClaim]) -> str:
    """Verdicts by experiment in a line: "gat_cora 1 same sign, 1 open"."""
    texts = []
    for name in dict.fromkeys(row.experiment for row in rows):
        counts = Counter(row.verdict for row in rows if row.experiment == name)
        texts.append(f"{link(name)} {', '.join(f'{counts[word]} {word}' for word in VERDICTS if counts[word])}")
    return wrap_text("; ".join(texts) + ".")


def opposite_table(rows: Sequence[JudgedClaim]) -> str:
    """The orders with the opposite sign."""
    lines = [
        (f"{link(row.experiment)}: {row.claim.text}", source_text(row), difference_text(row),
         row.claim.cause or first_clause(row.claim.differs))
        for row in rows if row.verdict == "opposite"
    ]  # fmt: skip
    columns = ("experiment: difference", "source", "this code", "suspected cause, or what differs")
    return markdown(Table("", columns, lines, right=columns[1:3]))


def thresholds_text(experiments: Sequence[Experiment], runs: Mapping[str, Sequence[Mapping]]) -> str:
    """How many thresholds there are, and how many of each experiment are not met."""
    every = [(e, threshold) for e in experiments for threshold in e.thresholds]
    theory = sum(threshold.theory for _, threshold in every)
    missed = Counter(link(e.name) for e, threshold in every if is_met(threshold, runs[e.name]) is False)
    text = (
        f"Tests compare the recorded runs with {theory} statements of theory and {len(every) - theory} bounds of this "
        "project (`tests/experiments/test_thresholds.py`), which `experiments/NAME.toml` states. Not met: "
        f"{', '.join(f'{count} of {name}' for name, count in missed.items())}."
    )
    return wrap_text(text)


def checks_table(results: Path) -> str:
    """`reproduce --check` on other machines: the counts of each check_*.json."""
    lines = []
    for check in map(read_json, sorted(results.glob("check_*.json"))):
        numbers = [entry for entry in check["numbers"] if entry["verdict"] != "a time"]
        equal = sum(entry["recorded"] == entry["here"] for entry in numbers)
        counts = len(check["runs"]), len(numbers), equal, sum(entry["verdict"] == "differs" for entry in numbers)
        lines.append((describe_machine(check["runs"][0]["environment"]["here"]), *map(str, counts)))
    columns = ("machine", "runs", "numbers", "same bits", "differ")
    return markdown(Table("", columns, lines, right=columns[1:]))


def picture_of_results(rows: Sequence[JudgedClaim], address: str) -> str:
    """The forest plot with what it says as its alternative text."""
    return f'<img src="{address}{FIGURE.as_posix()}" width="620" alt="Differences of {len(forest_rows(rows))} numbers">'


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
    counts = [row for row in rows if row.claim.basis == "count"]
    orders = [row for row in rows if row.claim.sign]
    numbers = [row for row in rows if row not in counts and row not in orders]
    causes = "; ".join(dict.fromkeys(filter(None, map(cause_of, counts))))
    texts = ["# Results: published numbers and this code's", wrap_text(tally_line(rows)), INTRODUCTION]
    texts += [picture_of_results(rows, "../"), "## Numbers", numbers_table(numbers)]
    if counts:
        texts += ["## Counts of parameters", count_lines(counts), wrap_text(f"{causes[:1].upper()}{causes[1:]}.")]
    texts += ["## Orders", count_lines(orders), opposite_table(orders)]
    texts += ["## Theory and thresholds", thresholds_text(experiments, runs), "## All experiments", index(experiments)]
    texts += ["## Re-runs on other machines", CHECKS, checks_table(ROOT / "results"), TREE]
    return "\n\n".join(text.strip() for text in texts if text.strip()) + "\n"


def d2l_table(rows: Sequence[JudgedClaim]) -> Table:
    """Tabulate the claims with a number of "Dive into Deep Learning"."""
    lines = []
    for row in rows:
        section = re.match(r"d2l (\d+(?:\.\d+)*)", row.claim.source)
        if section and row.claim.published is not None:
            lines.append((section[1], row.claim.label, link(row.experiment), *numbers_of(row), row.verdict))
    lines.sort(key=lambda line: [int(digits) for digits in line[0].split(".")])
    columns = ("d2l", "what", "experiment", "source", "this code", "difference", "verdict")
    return Table("", columns, lines, right=columns[3:6])


def readme_section(rows: Sequence[JudgedClaim]) -> str:
    """Write README's results."""
    not_run = "; ".join(row.claim.headline for row in rows if row.verdict == "not run" and not row.claim.sign)
    about = (
        f"{tally_line(rows)} Not run: {not_run}. Reproduced: the difference is smaller than its resolution, half of "
        "a 95 % interval from the spread of both sides' runs (of ours, where the source has one number) or, if larger, "
        "of test examples, and that is at most 5 % of the published number (5 points of a fraction); consistent: at "
        "most 20; open: coarser. This is no proof of equality, and [the rule](docs/reproduce.md#the-rule) was set with "
        "these data in view: fourteen numbers of other protocols left with it, none of which had agreed. +- is a "
        "standard deviation with the number of runs, and after a difference its resolution; curves were read off the "
        "source's plots, run here is its code or our rewrite. [All results](docs/results.md), with the rows that are "
        "left out here and counts of parameters, 11 of 22 of which differ; `python launch.py reproduce --check "
        "--minutes 30` repeats recorded runs."
    )
    table = numbers_table([row for row in rows if row.claim.in_readme], "docs/")
    return "\n\n".join([wrap_text(about), table, picture_of_results(rows, "")])


def forest_rows(rows: Sequence[JudgedClaim]) -> list[Row]:
    """The rows of the forest plot: all judged numbers but counts."""
    return [
        Row(row.claim.label, row.verdict, row.difference, row.resolution, difference_text(row))
        for row in rows
        if row.verdict in COLORS and not row.claim.sign and row.claim.basis != "count"
    ]


# writing


def replace_between(text: str, start: str, end: str, new: str) -> str:
    """The text with `new` between two markers."""
    head, _, tail = text.partition(start)
    return f"{head}{start}{new}\n{end}{tail.partition(end)[2]}"


def write_pages(root: Path = ROOT.parent):
    """Write the pages into README.md and docs/ of a directory, and the forest plot."""
    experiments = [load_experiment(name) for name in experiment_names()]
    runs = {e.name: present_runs(e) for e in experiments}
    by_name = {e.name: judge_claims(e, runs[e.name]) for e in experiments}
    rows, docs = [row for claims in by_name.values() for row in claims], root / "docs"
    pages = {
        docs / f"results/{e.name}.md": page_of(e, by_name[e.name], runs[e.name]) for e in experiments if has_page(e)
    }
    (docs / "results").mkdir(exist_ok=True)
    for stale in {*(docs / "results").glob("*.md")} - pages.keys():
        stale.unlink()
    variants = next(grid_table(e.grids[0], runs[e.name]) for e in experiments if e.name == "attention_variants")
    generated = {
        docs / "d2l.md": (D2L_START, TABLE_END, markdown(d2l_table(rows))),
        docs / "attention_variants.md": (VARIANTS_START, TABLE_END, markdown(variants)),
        root / "README.md": (README_START, README_END, readme_section(rows)),
    }
    for path, (start, end, new) in generated.items():
        pages[path] = replace_between(path.read_text(encoding="utf-8"), start, end, new)
    pages[docs / "results.md"] = results_page(experiments, rows, runs)
    for path, text in pages.items():
        write_atomically(path, text)
    forest(forest_rows(rows), root / FIGURE, inputs=forest_rows(rows))


if __name__ == "__main__":
    write_pages()
