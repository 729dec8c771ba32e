"""Tables of claims, thresholds and experiments as the commands `reproduce` and `list` and the pages show them."""

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from attention_jax.catalog import CHAPTERS, Experiment
from attention_jax.claims.rule import VERDICTS
from attention_jax.claims.verdicts import (
    JudgedClaim,
    bounds_text,
    difference_text,
    is_met,
    judge_claims,
    our_text,
    source_text,
    value_text,
)
from attention_jax.config import Grid
from attention_jax.declarations import Quantity
from attention_jax.report.tables import Table, experiments_list


def claims_table(rows: Sequence[JudgedClaim], recorded: Mapping[str, Sequence[Mapping]] | None = None) -> Table:
    """Tabulate claims: the source's number, that of the `recorded` runs {experiment: runs}, if any, ours, the
    difference with its resolution, the verdict."""
    lines = []
    for row in rows:
        earlier = [] if recorded is None else [our_text(replace(row, runs=recorded[row.experiment]))]
        lines.append((row.claim.text, source_text(row), *earlier, our_text(row), difference_text(row), row.verdict))
    measured = ("this code",) if recorded is None else ("recorded", "these runs")
    columns = ("claim", "source", *measured, "difference", "verdict")
    return Table("", columns, lines, right=columns[1:-1])


def tally_line(rows: Sequence[JudgedClaim]) -> str:
    """Count verdicts in a sentence or two, without counts of parameters."""
    rows = [row for row in rows if row.verdict not in ("not run", "not judged")]
    numbers = Counter(row.verdict for row in rows if not row.claim.sign and row.claim.basis != "count")
    orders = Counter(row.verdict for row in rows if row.claim.sign)
    texts = []
    if numbers:
        texts.append(
            f"{numbers['reproduced'] + numbers['consistent']} of {numbers.total()} numbers are consistent with their "
            f"source, {numbers['reproduced']} of them at a resolution of 5 % or better; {numbers['near']} near; "
            f"{numbers['differs']} differ; {numbers['open'] + numbers['one run']} have too few runs to say."
        )
    if orders:
        texts.append(
            f"Of {orders.total()} orders, such as A better than B, {orders['same sign']} have the source's sign, "
            f"{orders['opposite']} the opposite one, {orders['open']} are open, {orders['one run']} have one run."
        )
    return " ".join(texts)


def thresholds_table(experiment: Experiment, runs: Sequence[Mapping]) -> Table:
    """Tabulate the thresholds of an experiment: bound, median of the runs, and whether it is met."""
    state = {True: "met", False: "not met", None: "not run"}
    lines = [
        (threshold.text, bounds_text(threshold), value_text(threshold, runs), state[is_met(threshold, runs)])
        for threshold in experiment.thresholds
    ]
    return Table("", ("threshold", "bound", "this code", "state"), lines, right=("bound", "this code"))


def grid_table(grid: Grid, runs: Sequence[Mapping]) -> Table:
    """Tabulate a grid of measurements, one row a variant."""
    quantity = lambda **fields: Quantity(text="", source="", minus=grid.minus, **fields)
    cells = lambda variant: (value_text(quantity(metric=name, variant=variant), runs) for name in grid.columns.values())
    texts = lambda variant: (column[variant] for column in grid.texts.values())
    lines = [(variant or "-", *texts(variant), *cells(variant)) for variant in grid.variants]
    return Table(grid.caption, ("variant", *grid.texts, *grid.columns), lines, right=tuple(grid.columns))


# `launch.py list`


def select_experiments(experiments: Sequence[Experiment], word: str) -> list[Experiment]:
    """The experiments of the chapters whose name contains `word`; if there are none, those that have a word beginning
    with it in their name, docstring or paper. An empty word selects all."""
    in_chapter = [experiment for experiment in experiments if word.lower() in experiment.about("Chapter").lower()]
    begins = re.compile(rf"(?<![a-z]){re.escape(word)}", re.IGNORECASE)
    text = lambda experiment: f"{experiment.name} {short_source(experiment.about('Source'))} {experiment.doc}"
    return in_chapter or [experiment for experiment in experiments if begins.search(text(experiment))]


def format_listing(experiments: Sequence[Experiment], width: int) -> str:
    """Return the experiments by chapter as text of at most `width` columns: name, paper, data, the time of a run on one
    CPU core, status. Your own data come first: the list is for people who choose one to run."""
    columns, tables = ("name", "paper", "data", "time", "status"), []
    for chapter in (CHAPTERS[-1], *CHAPTERS[:-1], "others"):
        inside = lambda name, chapter=chapter: (name if name in CHAPTERS else "others") == chapter
        rows = [experiment_row(experiment) for experiment in experiments if inside(experiment.about("Chapter"))]
        tables += [Table(chapter, columns, rows, right=("time",))] if rows else []
    return experiments_list(tables, width)


def experiment_row(experiment: Experiment) -> tuple[str, ...]:
    """Name, paper, data, the mean time of a run and status of an experiment: "2 of 3 reproduced", or "measured" without
    a claim.

    >>> from attention_jax.catalog import load_experiment
    >>> experiment_row(load_experiment("date_luong"))
    ('date_luong', 'Luong et al. 2015', '50,000 date conversions', '44 s', 'measured')
    """
    data = re.split(r"[;:,(](?!\d)", experiment.about("Data"))[0].strip()
    seconds = 60 * (experiment.minutes or 0) / (experiment.seeds * len(experiment.variants()))
    time = "-" if not seconds else f"{round(seconds / 60)} min" if seconds >= 90 else f"{round(seconds)} s"
    paper, status = short_source(experiment.about("Source")), status_text(judge_claims(experiment))
    return experiment.name, paper, "-" if data in ("", "none") else data, time, status


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
    """The most frequent verdict: "3 open", "2 of 3 reproduced"; "measured" without a claim."""
    counts = Counter(sorted((row.verdict for row in rows), key=VERDICTS.index))
    for verdict, count in counts.most_common(1):
        return f"{count} of {len(rows)} {verdict}" if count < len(rows) else f"{count} {verdict}"
    return "measured"


def experiment_page(experiment: Experiment, rows: Sequence[JudgedClaim], user_data: Mapping[str, str]) -> str:
    """Return a page with claim, source, data, command, cost, variants, the verdicts of the claims, and the options for
    user data, {option: help}."""
    variants = [name for name in experiment.variants() if name]
    separator = "; " if any("," in name for name in variants) else ", "
    headings = ("Chapter", "Claim", "Source", "Data", "Command", "Cost")
    entries = {heading: experiment.about(heading) for heading in headings}
    entries |= {"Variants": separator.join(variants), "Presets": ", ".join(experiment.presets())}
    lines = [f"{experiment.name}: {experiment.claim}"]
    lines += [f"{heading + ':':9} {text}" for heading, text in entries.items() if text]
    width = min(100, shutil.get_terminal_size((100, 24)).columns)
    fill = lambda line, indent: textwrap.fill(line, width, break_on_hyphens=False, subsequent_indent=" " * indent)
    own_data = [f"Your own data: python launch.py train {experiment.name}, with"]
    own_data += [fill(f"  {option}  {text}", 4).rstrip() for option, text in user_data.items()]
    if not user_data:
        own_data = ["Your own data: it makes or needs its own; there is no option for a file."]
    recorded = ["Recorded:"] if rows else []
    for row in rows:
        numbers = f"source {source_text(row)}; this code {our_text(row)}; difference {difference_text(row)}"
        recorded.append(fill(f"  {row.verdict}: {row.claim.text}; {numbers} ({row.claim.source})", 4))
    sections = ["\n".join(fill(line, 10) for line in lines), "\n".join(recorded), "\n".join(own_data)]
    return "\n\n".join(filter(None, sections))
