"""Tables of texts to predict: CSV, TSV and JSON Lines, read and written row by row in constant memory."""

import contextlib
import csv
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from attention_jax.data import text_files
from attention_jax.errors import InputError
from attention_jax.files import is_utf8, temporary_file, to_json

CSV, TSV, JSON_LINES = text_files.CSV, ".tsv", text_files.JSON_LINES
CHUNK = 1024
"""Rows that are read, predicted and written at a time."""
Row = TypeVar("Row")


class Columns(NamedTuple):
    """The names of the columns in tables of a model's texts and predictions."""

    text: str = "text"
    output: str = "output"
    predicted: str = "predicted"
    """The most probable class."""
    is_path: bool = False
    """A text is the path of an image file."""


class Table(NamedTuple):
    """A table that is read while `rows` is iterated."""

    columns: tuple[str, ...]
    column: str
    """The column of the texts."""
    rows: Iterator[dict[str, Any]]


def is_text_table(path: str) -> bool:
    """Whether a name is that of a CSV, TSV or JSON Lines file, which may be packed.

    >>> is_text_table("a.CSV"), is_text_table("a.jsonl.gz"), is_text_table("a.txt")
    (True, True, False)
    """
    return text_files.form_of(path) in (CSV, TSV, *JSON_LINES)


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Group rows in lists of `CHUNK`."""
    iterator = iter(rows)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk


def open_table(path: str, names: Sequence[str], column: str = "") -> Table:
    """Return the table in a file. Its texts are in `column`, a name or the number of a column of a file without a
    header; by default in the first of `names` that it has, or in its only column.

    The first line of a CSV or TSV file is a header if it has that name. Raises InputError for a file of several columns
    in which the choice is ambiguous; an InputError of a damaged row is raised when it is read.
    """
    if text_files.form_of(path) in JSON_LINES:
        return _open_json(path, names, column)
    lines = text_files.csv_rows(path) if text_files.form_of(path) == CSV else _tsv_rows(path)
    rows = ((number, fields) for number, fields in lines if fields not in ([], [""]))
    _, first = next(rows, (1, None))
    if first is None:
        raise InputError(f"{path} has only empty lines; expected a text in each")
    if isinstance(first, InputError):
        raise first
    columns, column, has_header = _choose_column(path, [name.strip() for name in first], names, column)
    records = rows if has_header else itertools.chain([(1, first)], rows)
    return Table(columns, column, (_record(path, columns, *row) for row in records))


def _choose_column(path: str, first: list[str], names: Sequence[str], column: str) -> tuple[tuple[str, ...], str, bool]:
    """Return the names of the columns, the one of the texts, and whether the `first` line is a header."""
    numbered = tuple(f"column_{number}" for number in range(1, len(first) + 1))
    if column.isdigit():
        if not 1 <= int(column) <= len(first):
            raise InputError(f"--column {column} needs a column of that number; line 1 of {path} has {len(first)}")
        return numbered, numbered[int(column) - 1], False
    choices = [name for name in ([column] if column else names) if name in first]
    if choices:
        if len({*first}) < len(first):
            raise InputError(f"{path} names a column twice: {', '.join(first)[:200]}; give each its own name")
        return tuple(first), choices[0], True
    if column:
        raise InputError(f"{path} has no column {column}; line 1 has {', '.join(first)[:200]}")
    if len(first) > 1:
        raise InputError(
            f"{path} has {len(first)} columns and none is called {' or '.join(names)}: give the name of that of the "
            f"texts, such as --column {first[-1][:20]!r} where line 1 is a header, or its number, --column "
            f"{len(first)}, where line 1 is data"
        )
    return (names[0],), names[0], False


def _record(path: str, columns: Sequence[str], number: int, fields: list[str] | InputError) -> dict[str, str]:
    if isinstance(fields, InputError):
        raise fields
    if len(fields) != len(columns):
        raise InputError(f"{path} line {number}: expected {len(columns)} columns as in line 1, got {len(fields)}")
    if not all(map(is_utf8, fields)):
        raise InputError(f"{path} line {number}: not valid UTF-8; save the file as UTF-8")
    return dict(zip(columns, fields))


def _tsv_rows(path: str) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(text_files.each_line(path, "file of texts"), 1):
        yield number, text_files.decode_line(line, f"{path} line {number}").split("\t")


def _open_json(path: str, names: Sequence[str], column: str) -> Table:
    rows = _json_rows(path)
    _, first = next(rows)
    keys, choices = tuple(first), [column] if column else names
    choice = next((name for name in choices if name in keys), keys[0] if len(keys) == 1 and not column else None)
    if choice is None:
        raise InputError(
            f"{path} has no field {' or '.join(choices)}; line 1 has {', '.join(keys)[:200]}: give --column NAME"
        )
    return Table(keys, choice, _check_keys(path, keys, choice, itertools.chain([(1, first)], rows)))


def _json_rows(path: str) -> Iterator[tuple[int, dict]]:
    for number, line in enumerate(text_files.each_line(path, "file of texts"), 1):
        text = text_files.decode_line(line, f"{path} line {number}")
        try:
            row = json.loads(text)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict) or not row:
            raise InputError(f"{path} line {number}: expected a JSON object with a text, got {text[:60]!r}")
        yield number, row


def _check_keys(path: str, keys: tuple[str, ...], column: str, rows: Iterable[tuple[int, dict]]) -> Iterator[dict]:
    for number, row in rows:
        if row.keys() != {*keys}:
            raise InputError(
                f"{path} line {number}: expected the fields of line 1, {', '.join(keys)[:200]}; got "
                f"{', '.join(row)[:200]}"
            )
        if isinstance(row[column], bool) or not isinstance(row[column], str | int | float):
            raise InputError(f"{path} line {number}: expected a text in {column}, got {str(row[column])[:60]!r}")
        yield row | {column: str(row[column])}


@contextlib.contextmanager
def write_table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Context with a function that writes a row of these columns; the file is there, whole, when the context ends.

    The form is that of the suffix: .csv and .tsv with a header, .jsonl with one object a line. Raises InputError for a
    column that occurs twice, and for a tab or line break in a .tsv.
    """
    if twice := [name for number, name in enumerate(columns) if name in columns[:number]]:
        raise InputError(f"the input has a column {twice[0]} already, which predictions are written to: rename it")
    is_device = path.exists() and not path.is_file()
    with contextlib.ExitStack() as stack:
        place = path if is_device else stack.enter_context(temporary_file(path))
        file = stack.enter_context(open(place, "w", encoding="utf-8", newline=""))
        form = text_files.suffix_of(str(path))
        if form in JSON_LINES:
            yield lambda row: file.write(to_json({name: row[name] for name in columns}) + "\n")
            return
        if form == CSV:
            write = csv.writer(file, lineterminator="\n").writerow
        else:
            write = lambda fields: file.write(_tsv_line(path, fields))
        write(columns)
        yield lambda row: write([as_cell(row[name]) for name in columns])


def as_cell(value: Any) -> str:
    """Return a value as the text of a cell; a list or an object is JSON.

    >>> as_cell("a"), as_cell(0.25), as_cell(None), as_cell({"a": [1]})
    ('a', '0.25', '', '{"a": [1]}')
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _tsv_line(path: Path, fields: Sequence[str]) -> str:
    if bad := [field for field in fields if "\t" in field or len(field.splitlines()) > 1]:
        raise InputError(
            f"{bad[0][:40]!r} has a tab or a line break, which a .tsv cannot hold: write {path.stem}.csv or .jsonl"
        )
    return "\t".join(fields) + "\n"
