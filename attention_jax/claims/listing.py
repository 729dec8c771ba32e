"""The list of experiments: `launch.py list`, all of them or those of a chapter or with a word."""

import re
from collections import Counter
from collections.abc import Sequence

from attention_jax.claims.catalog import CHAPTERS, Experiment
from attention_jax.claims.judged import JudgedClaim, judge_claims
from attention_jax.report.tables import Table, experiments_list, number

OWN = "your own data"
"""The chapter that comes first: the list is for people who choose one to run."""
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
    """Say how many of the claims are met: "9 of 10 met"; "measured" if none has a bound, "not run" if none was run."""
    verdicts = Counter(row.verdict for row in rows)
    bounded = sum(verdicts.values()) - verdicts["measured"] - verdicts["not run"]
    if bounded:
        return f"{bounded - verdicts['missed']} of {bounded} met"
    return next((verdict for verdict in ("measured", "not run") if verdicts[verdict]), "-")
