"""Formatting of tables of strings as plain text, in color on a terminal, or as Markdown."""

import sys
from collections.abc import Sequence
from textwrap import shorten
from typing import NamedTuple

COLORS = {
    **dict.fromkeys(("reproduced", "consistent", "same sign", "met"), "green"),
    **dict.fromkeys(("near", "open", "one run"), "yellow"),
    **dict.fromkeys(("differs", "opposite", "not met"), "red"),
    **dict.fromkeys(("not run", "not judged"), "dim"),
}
"""The color of a verdict on a terminal."""


class Table(NamedTuple):
    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    right: tuple[str, ...] = ()  # the columns set flush right: numbers


def number(value: float | None) -> str:
    """Format a number with four significant digits, without trailing zeros.

    >>> number(0.99984), number(38.0412), number(591259), number(None), number(2.5e-06), number(1e30)
    ('0.9998', '38.04', '591,259', '-', '2.5e-06', '1e+30')
    """
    if value is None:
        return "-"
    if 1000 <= abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def span(low: float, high: float) -> str:
    """Format an interval of numbers.

    >>> span(94.7, 95.6), span(-2.0, 1.0)
    ('94.7-95.6', '-2 to 1')
    """
    return f"{number(low)}{' to ' if low < 0 else '-'}{number(high)}"


def experiments_list(tables: Sequence[Table], width: int) -> str:
    """Format tables of experiments with the same columns under their titles, one line each of at most `width`
    characters: the longest column is shortened, which is the second or the third.

    >>> rows = [("a", "Luong et al. 2015", "50,000 dates"), ("b", "-", "digits")]
    >>> print(experiments_list([Table("one", ("name", "paper", "data"), rows[:1])], 32))
    name  paper         data
    <BLANKLINE>
    one
    a     Luong et ...  50,000 dates
    """
    rows = [table.columns for table in tables[:1]] + [row for table in tables for row in table.rows]
    widths = [max(map(len, cells)) for cells in zip(*rows)]
    while sum(widths) + 2 * len(widths) - 2 > width and max(widths[1:3]) > 8:
        widths[1 if widths[1] > widths[2] else 2] -= 1
    right = {tables[0].columns.index(name) for name in tables[0].right}

    def line(row: tuple[str, ...]) -> str:
        cells = [cell if len(cell) <= w else shorten(cell, w, placeholder=" ...") for cell, w in zip(row, widths)]
        flush = [c.rjust(w) if at in right else c.ljust(w) for at, (c, w) in enumerate(zip(cells, widths))]
        return "  ".join(flush).rstrip()

    blocks = [line(tables[0].columns)]
    return "\n\n".join([*blocks, *("\n".join([table.title, *map(line, table.rows)]) for table in tables)])


def plain(table: Table) -> str:
    """Format the table as aligned text without colors, one line per row, for logs and pipes.

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


def split_columns(table: Table, width: int) -> list[Table]:
    """Divide the columns of a table so that each part, with the first column again, is at most `width` wide as text.

    A single column may be wider.

    >>> wide = Table("", ("name", "bleu", "chrf"), [("a", "38.04", "60.1")])
    >>> [part.columns for part in split_columns(wide, 12)]
    [('name', 'bleu'), ('name', 'chrf')]
    """
    sizes = [max(map(len, cells)) for cells in zip(table.columns, *table.rows)]
    column_groups, used = [], width
    for column in range(1, len(sizes)):
        if used + 2 + sizes[column] > width or not column_groups:
            column_groups.append([0])
            used = sizes[0]
        column_groups[-1].append(column)
        used += 2 + sizes[column]
    pick = lambda row, columns: tuple(row[column] for column in columns)
    return [
        Table(table.title, pick(table.columns, columns), [pick(row, columns) for row in table.rows], table.right)
        for columns in column_groups
    ]


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


def show(table: Table):
    """Print the table and its title: with rich on a terminal, as plain text elsewhere."""
    if not sys.stdout.isatty():
        print("\n".join(filter(None, [table.title, plain(table)])))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    rich_table = RichTable(title=table.title or None, box=box.SIMPLE_HEAD, title_justify="left")
    for column in table.columns:
        rich_table.add_column(
            column,
            justify="right" if column in table.right else "left",
            no_wrap=column in ("experiment", "name", "verdict"),
        )
    for row in table.rows:
        rich_table.add_row(
            *(
                Text(cell, style=COLORS.get(cell, "") if column == "verdict" else "")
                for column, cell in zip(table.columns, row)
            )
        )
    Console().print(rich_table)
