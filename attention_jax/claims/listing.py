"""`launch.py list`: experiments of a chapter or with a word, or the page of one, as plain text."""

import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence

from attention_jax.claims.catalog import CHAPTERS, Experiment
from attention_jax.claims.verdicts import JudgedClaim, judge_claims, source_text, value_text, verdict_with_reason
from attention_jax.report.tables import Table, experiments_list, number

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
    """Count the claims that agree or have the same sign: "2 of 3 agree"; "measured" without a claim."""
    counts = Counter(row.verdict for row in rows)
    if judged := counts.total() - counts["not run"]:
        return f"{counts['agree'] + counts['same sign']} of {judged} agree"
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
