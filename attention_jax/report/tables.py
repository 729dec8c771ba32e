"""Tables for people: what was measured held against what was published, and the list of experiments.

A `Table` is columns and rows of strings. `show` prints it (rich on a terminal, aligned plain text elsewhere),
`markdown` writes it for a README. `judge` is the only place where a number becomes a verdict.
"""

import sys
from collections.abc import Mapping, Sequence
from statistics import fmean
from textwrap import shorten
from typing import Literal, NamedTuple, TextIO

import numpy as np

from attention_jax import lower_is_better
from attention_jax.report import intervals
from attention_jax.report.intervals import Interval

Verdict = Literal["beaten", "reproduced", "missed", "reported", "not run"]
COLOURS = {"beaten": "bold green", "reproduced": "green", "missed": "red", "reported": "cyan", "not run": "dim"}


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: tuple[str, ...] = ()  # the columns set flush right: numbers


def upward(claim) -> bool:
    """Whether more is better: the one bound of the claim says so; with both bounds or none, the metric's name does."""
    if (claim.at_least is None) != (claim.at_most is None):
        return claim.at_least is not None
    return not lower_is_better(claim.metric)


def value_of(claim, run: Mapping) -> float | None:
    """The number that `claim` speaks of in one run: final, of one epoch, or of the best epoch; None if it has none."""
    if claim.also:
        parts = parts_of(claim, run).values()
        return None if None in parts else fmean(parts)
    if claim.epoch is None and not claim.best:
        return run["metrics"].get(claim.metric)
    by_epoch = {row.get("epoch"): row[claim.metric] for row in run["history"] if row.get(claim.metric) is not None}
    if claim.epoch is not None:
        return by_epoch.get(claim.epoch)
    return (max if upward(claim) else min)(by_epoch.values(), default=None)


def parts_of(claim, run: Mapping) -> dict[str, float | None]:
    """The final numbers whose mean a claim with `also` speaks of, by metric."""
    return {name: run["metrics"].get(name) for name in (claim.metric, *claim.also)}


def by_seed(claim, runs: Sequence[Mapping]) -> dict[int, float]:
    """The claim's number in every run of its variant; with `claim.minus`, less that variant's of the same seed."""
    values = {(run.get("variant", ""), run.get("seed", 0)): value_of(claim, run) for run in runs}
    values = {key: float(value) for key, value in values.items() if value is not None}
    mine = {seed: value for (variant, seed), value in values.items() if variant == claim.variant}
    if claim.minus is None:
        return mine
    return {seed: value - values[claim.minus, seed] for seed, value in mine.items() if (claim.minus, seed) in values}


def values_of(claim, runs: Sequence[Mapping]) -> list[float]:
    """The numbers of `by_seed`."""
    return list(by_seed(claim, runs).values())


def judge(claim, runs: Sequence[Mapping]) -> tuple[float | None, Verdict]:
    """The median over seeds (or the `seeds_needed`-th best) of what a `config.Claim` speaks of, and the verdict.

    `runs` are {"variant": str, "seed": int, "metrics": {name: number}, "history": [{"epoch": int, name: number}, ...]}.
    beaten: at or beyond `claim.beaten`; reproduced: within the bounds; missed: outside of them (NaN too); reported: the
    claim sets no bound; not run: no run, or too few seeds, of this variant have the number.
    """
    values, needed = values_of(claim, runs), claim.seeds_needed
    if not values or needed > len(values):
        return None, "not run"
    worst = -np.inf if upward(claim) else np.inf
    ranked = sorted(values, key=lambda v: worst if np.isnan(v) else v, reverse=upward(claim))
    value = ranked[needed - 1] if needed else float(np.median(values))
    return value, verdict_on(claim, value)


def verdict_on(claim, value: float) -> Verdict:
    """What a claim says of one number."""
    if claim.beaten is not None and (value >= claim.beaten if upward(claim) else value <= claim.beaten):
        return "beaten"
    if claim.at_least is None and claim.at_most is None:
        return "reported"
    above = claim.at_least is None or value >= claim.at_least
    below = claim.at_most is None or value <= claim.at_most
    return "reproduced" if above and below else "missed"


def noise(claim, runs: Sequence[Mapping], seed: int, otherwise: float = 0.0) -> Interval | None:
    """What other test examples might have given instead of the claim's number of one seed (`intervals.sampling`).

    Where that is not known it is `otherwise`, a share of the number, to both sides, or None.
    """
    own = {run.get("variant", ""): run for run in runs if run.get("seed", 0) == seed}

    def around(variant: str) -> tuple[float, Interval | None]:
        run, value = own[variant], float(value_of(claim, own[variant]))
        parts = {claim.metric: value} if not claim.also else parts_of(claim, run)
        known = [intervals.sampling(name, part, run) for name, part in parts.items()]
        if all(known):
            return value, intervals.mean(list(parts.values()), known)
        return value, intervals.within(value, otherwise) if otherwise else None

    mine, around_mine = around(claim.variant)
    if claim.minus is None or around_mine is None:
        return around_mine
    other, around_other = around(claim.minus)
    return around_other and intervals.difference(mine, around_mine, other, around_other)


def interval(claim, runs: Sequence[Mapping]) -> Interval | None:
    """Between what the claim's number may lie: several seeds' range; of one seed what its test examples leave open."""
    values = by_seed(claim, runs)
    if len(values) > 1:
        return Interval(min(values.values()), max(values.values()), f"{len(values)} seeds")
    return noise(claim, runs, *values) if values else None


def worded(claim, runs: Sequence[Mapping]) -> str:
    """The verdict with its doubts: "missed (one seed, within noise)".

    one seed: it was trained once (a computation is never said to be). within noise, or of several seeds that they
    disagree: at one end of its `interval` a miss would be none, or another verdict a lesser one. What is counted is the
    verdict alone.
    """
    verdict, found = judge(claim, runs)[1], interval(claim, runs)
    if verdict in ("reported", "not run"):
        return verdict
    trained = any("steps" in run for run in runs if run.get("variant", "") == claim.variant)
    doubts = ["one seed"] if trained and len(values_of(claim, runs)) == 1 else []
    ends = {verdict_on(claim, end) for end in found[:2]} if found and not claim.seeds_needed else set()
    order = ("missed", "reported", "reproduced", "beaten")
    if (verdict == "missed" and ends - {"missed"}) or any(order.index(end) < order.index(verdict) for end in ends):
        doubts.append("within noise" if len(values_of(claim, runs)) == 1 else "seeds disagree")
    return f"{verdict} ({', '.join(doubts)})" if doubts else verdict


def number(value: float | None) -> str:
    """A number as a table shows it: four significant digits, no needless zeros.

    >>> number(0.99984), number(38.0412), number(591259), number(None), number(2.5e-06)
    ('0.9998', '38.04', '591,259', '-', '2.5e-06')
    """
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def span(low: float, high: float) -> str:
    """From one number to another, as a table shows it.

    >>> span(94.7, 95.6), span(-2.0, 1.0)
    ('94.7-95.6', '-2 to 1')
    """
    return f"{number(low)}{' to ' if low < 0 else '-'}{number(high)}"


def ours(claim, runs: Sequence[Mapping]) -> str:
    """The median over seeds with their range, or the number of one seed with what its test examples leave open:
    "95.1 (94.7-95.6, 3 seeds)", "0.92 (0.914-0.925, 10,000 examples)", "37.5 (36.4-38.6, bootstrap)"."""
    values, found = values_of(claim, runs), interval(claim, runs)
    if not values:
        return "-"
    middle = number(float(np.median(values)))
    return f"{middle} ({span(found.low, found.high)}, {found.why})" if found else middle


def claims_table(entries: Sequence[tuple[str, Sequence, Sequence[Mapping]]]) -> Table:
    """Ours beside the published number: `entries` are (experiment, its claims, its runs); no claim is left out.

    A verdict column that says "missed" or "not run" stays as visible as one that says "beaten".
    """
    rows = []
    for name, claims, runs in entries:
        for claim in claims:
            cells = (ours(claim, runs), number(claim.published), worded(claim, runs))
            rows.append((name, claim.text, *cells, claim.source))
    return Table(
        "", ("experiment", "claim", "ours", "published", "verdict", "source"), rows, right=("ours", "published")
    )


def experiments_list(entries: Sequence[tuple[str, str, str]], chapters: Sequence[str], width: int = 100) -> str:
    """The experiments, (name, chapter, claim), under the `chapters` in their order: a line each, at most `width` wide.

    >>> print(experiments_list([("b", "two", "B is  so."), ("a", "one", "A."), ("c", "", "Or not.")], ("one", "two")))
    one
      a  A.
    <BLANKLINE>
    two
      b  B is so.
    <BLANKLINE>
    others
      c  Or not.
    """
    column = max(len(name) for name, _, _ in entries)
    parts = []
    for chapter in (*chapters, "others"):
        inside = [e for e in entries if e[1] == chapter or (chapter == "others" and e[1] not in chapters)]
        lines = [
            f"  {name:{column}}  {shorten(claim, width - column - 4, placeholder=' ...')}" for name, _, claim in inside
        ]
        if lines:
            parts.append("\n".join([chapter, *lines]))
    return "\n\n".join(parts)


def plain(table: Table) -> str:
    """The table as aligned text without colours, one line per row, for logs and pipes.

    >>> print(plain(Table("", ("name", "bleu"), [("a", "38.04"), ("bc", "9.1")], right=("bleu",))))
    name   bleu
    a     38.04
    bc      9.1
    """
    rows = [tuple(" ".join(cell.split()) for cell in row) for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(table.columns, *rows)]
    flush = [str.rjust if column in table.right else str.ljust for column in table.columns]
    return "\n".join(
        "  ".join(f(c, w) for f, c, w in zip(flush, row, widths)).rstrip() for row in (table.columns, *rows)
    )


def markdown(table: Table) -> str:
    """The table as GitHub markdown.

    >>> print(markdown(Table("", ("name", "bleu"), [("a|b", "38.04")], right=("bleu",))))
    | name | bleu |
    | --- | ---: |
    | a\\|b | 38.04 |
    """
    rule = ["---:" if column in table.right else "---" for column in table.columns]
    rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in (table.columns, rule, *rows))


def show(table: Table, as_markdown: bool = False, stream: TextIO | None = None):
    """Print the table and its title: as markdown, with rich on a terminal, as plain text elsewhere."""
    stream = stream or sys.stdout
    if as_markdown or not stream.isatty():
        if table.title:
            print(f"## {table.title}\n" if as_markdown else table.title, file=stream)
        print(markdown(table) if as_markdown else plain(table), file=stream)
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    drawn = RichTable(title=table.title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for column in table.columns:
        drawn.add_column(
            column,
            justify="right" if column in table.right else "left",
            no_wrap=column in ("experiment", "name", "verdict"),
        )
    for row in table.rows:
        drawn.add_row(
            *(
                Text(cell, style=COLOURS.get(cell.partition(" (")[0], "") if column == "verdict" else "")
                for column, cell in zip(table.columns, row)
            )
        )
    Console(file=stream).print(drawn)
