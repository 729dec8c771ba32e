"""Tables of claims, thresholds and experiments as the commands `reproduce` and `list` and the pages show them."""

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import CHAPTERS, Experiment
from attention_jax.claims.check import describe_machine
from attention_jax.claims.claim import Grid, Quantity
from attention_jax.claims.verdicts import (
    JudgedClaim,
    bounds_text,
    is_met,
    judge_claims,
    source_text,
    value_text,
    verdict_with_reason,
)
from attention_jax.report.tables import Table, experiments_list, number

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


def claims_table(rows: Sequence[JudgedClaim], recorded: Mapping[str, Sequence[Mapping]] | None = None) -> Table:
    """Tabulate claims: the source's number, that of the `recorded` runs {experiment: runs}, if any, ours, the
    verdict."""
    lines = []
    for row in rows:
        earlier = [] if recorded is None else [value_text(row.claim, recorded[row.experiment])]
        numbers = source_text(row.claim), *earlier, value_text(row.claim, row.runs)
        lines.append((row.claim.text, *numbers, verdict_with_reason(row)))
    measured = ("this code",) if recorded is None else ("recorded", "these runs")
    return Table("", ("claim", "source", *measured, "verdict"), lines, right=("source", *measured))


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
    texts = lambda variant: (column[variant] for column in grid.texts.values())
    lines = [(variant or "-", *texts(variant), *cells(variant)) for variant in grid.variants]
    return Table(grid.caption, ("variant", *grid.texts, *grid.columns), lines, right=tuple(grid.columns))


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


def check_tables(checks: Sequence[Mapping]) -> tuple[Table, Table]:
    """Tabulate `reproduce --check` on other machines: the counts of each check.json, and the numbers that differ from
    those that were recorded then."""
    counts, differences = [], []
    for check in checks:
        numbers = [entry for entry in check["numbers"] if entry["verdict"] != "a time"]
        where = describe_machine(check["runs"][0]["environment"]["here"])
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


OWN = "your own data"
"""The chapter that comes first: the list is for people who choose one to run."""
WIDTH = 100
"""Columns, of a wider terminal."""
COLUMNS = ("name", "paper", "data", "minutes", "status")


def select_experiments(experiments: Sequence[Experiment], word: str) -> list[Experiment]:
    """The experiments of the chapters whose name contains `word`; if there are none, those that have a word beginning
    with it in their name, docstring or paper. An empty word selects all."""
    word = word.lower()
    in_chapter = [experiment for experiment in experiments if word in experiment.about("Chapter").lower()]
    begins = re.compile(rf"(?<![a-z]){re.escape(word)}", re.IGNORECASE)
    searchable_text = lambda experiment: (
        f"{experiment.name} {short_source(experiment.about('Source'))} {experiment.doc}"
    )
    return in_chapter or [experiment for experiment in experiments if begins.search(searchable_text(experiment))]


def format_listing(experiments: Sequence[Experiment], width: int) -> str:
    """Return the experiments by chapter as text of at most `width` columns: name, paper, data, minutes, status."""
    chapters = sorted((*CHAPTERS, "others"), key=lambda chapter: chapter != OWN)
    chapter = lambda experiment: experiment.about("Chapter") if experiment.about("Chapter") in CHAPTERS else "others"
    tables = [
        Table(name, COLUMNS, [experiment_row(experiment) for experiment in experiments if chapter(experiment) == name])
        for name in chapters
    ]
    return experiments_list([table._replace(right=("minutes",)) for table in tables if table.rows], width)


def experiment_row(experiment: Experiment) -> tuple[str, ...]:
    """Name, paper, data, minutes and status of an experiment."""
    data = re.split(r"[;:,(](?!\d)", experiment.about("Data"))[0].strip()
    data = "-" if data in ("", "none") else data
    return (
        experiment.name,
        short_source(experiment.about("Source")),
        data,
        minutes_text(experiment),
        status_text(judge_claims(experiment)),
    )


def minutes_text(experiment: Experiment) -> str:
    """The cost of an experiment in whole minutes.

    >>> from attention_jax.claims.catalog import load_experiment
    >>> [minutes_text(load_experiment(name)) for name in ("date_luong", "rank_collapse", "vit_i1k_s16")]
    ['2', '< 1', '-']
    """
    if experiment.minutes is None:
        return "-"
    return "< 1" if experiment.minutes < 0.95 else number(round(experiment.minutes))


def short_source(source: str) -> str:
    """The first work that a source names, in short: authors and year, the section of a book, or a repository.

    >>> short_source("Luong et al. 2015 (arXiv)"), short_source('"Deep Learning from Scratch 2" (Saito 2018)')
    ('Luong et al. 2015', 'Saito 2018')
    >>> list(map(short_source, ("Michel, Levy, Neubig 2019", "Tallec & Ollivier 2017", "Dive into Deep Learning 11.2")))
    ['Michel et al. 2019', 'Tallec & Ollivier 2017', 'd2l 11.2']
    >>> short_source("bentrevett/pytorch-seq2seq, tutorial 3"), short_source("this project")
    ('pytorch-seq2seq', '-')
    """
    book = re.search(r"Dive into Deep Learning\D{0,35}?(\d+(?:\.\d+)*)", source)
    dated = re.search(r"([A-Z][\w-]+(?:(?:,| and|,? &)? [A-Z][\w-]+)*(?: et al\.)?),? \(?((?:19|20)\d\d)\b", source)
    if book and (not dated or book.start() < dated.start()):
        return f"d2l {book[1]}"
    if not dated:
        repository = re.match(r"[\w-]+/([\w-]+)", source)
        return repository[1] if repository else "-"
    authors = re.split(r", and |, & |, | and ", dated[1])
    short = f"{authors[0]} et al." if len(authors) > 2 else " & ".join(authors)
    return f"{short} {dated[2]}"


def status_text(rows: Sequence[JudgedClaim]) -> str:
    """Count the claims that agree or have the same sign: "2 of 3 hold"; "measured" without a claim."""
    counts = Counter(row.verdict for row in rows)
    if judged := counts.total() - counts["not run"]:
        return f"{counts['agree'] + counts['same sign']} of {judged} hold"
    return "not run" if rows else "measured"


def fill(text: str, **options) -> str:
    """The text in lines that fit into the terminal."""
    width = min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns)
    return textwrap.fill(text, width, break_on_hyphens=False, **options)


def experiment_page(experiment: Experiment, rows: Sequence[JudgedClaim], user_data: Mapping[str, str]) -> str:
    """Return a page with claim, source, data, command, cost, variants, the verdicts of the claims, and the options for
    user data, {option: help}."""
    lines = [f"{experiment.name}: {experiment.claim}"]
    for heading in ("Chapter", "Claim", "Source", "Data", "Command", "Cost"):
        if experiment.about(heading):
            lines.append(f"{heading + ':':9} {experiment.about(heading)}")
    variants = [name for name in experiment.variants() if name]
    if variants:
        separator = "; " if any("," in name for name in variants) else ", "
        lines.append(f"Variants: {separator.join(variants)}")
    if experiment.presets():
        lines.append(f"Presets: {', '.join(experiment.presets())}")
    page = "\n".join(fill(line, subsequent_indent=" " * 10) for line in lines)
    sections = [page, verdict_lines(rows), your_data(experiment.name, user_data)]
    return "\n\n".join(section for section in sections if section)


def verdict_lines(rows: Sequence[JudgedClaim]) -> str:
    """Format the claims with verdict, our number, and that of the source; empty without claims."""
    lines = ["Recorded:"]
    for row in rows:
        claim = row.claim
        text = (
            f"{verdict_with_reason(row)}: {claim.text}; ours {value_text(claim, row.runs)}; "
            f"published {source_text(claim)} ({claim.source})"
        )
        lines.append(fill(text, initial_indent="  ", subsequent_indent="    "))
    return "\n".join(lines) if rows else ""


def your_data(name: str, user_data: Mapping[str, str]) -> str:
    """Return the section on running the experiment on your own data."""
    if not user_data:
        return "Your own data: it makes or needs its own; there is no option for a file."
    lines = [f"Your own data: python launch.py train {name}, with"]
    for option, text in user_data.items():
        lines.append(fill(f"  {option}  {text}", subsequent_indent="    ").rstrip())
    return "\n".join(lines)
