"""Tables of texts: one reader and one writer of CSV, TSV, JSON Lines and Parquet, row by row in constant memory.

Columns have names, which differ. A value is missing if it is null, NaN, an empty cell or without a key. Only newlines
and carriage returns end lines. The first line of a .csv or .tsv is a header if it has the names that are read. A name
such as subject+body that no column has is that of two, whose texts are joined by a space.
"""

import contextlib
import csv
import itertools
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from attention_jax.data.text_files import (
    MARK,
    PACKED,
    TO_UTF8,
    decode_line,
    each_line,
    form_of,
    open_unpacked,
    suffix_of,
    to_nfc,
)
from attention_jax.errors import InputError
from attention_jax.files import is_utf8, temporary_file

CSV, TSV, JSON_LINES, PARQUET = ".csv", ".tsv", (".jsonl", ".ndjson"), ".parquet"
UNWRITTEN = (
    r"\.(json|xls\w?|ods|feather|arrow|orc|avro|pkl|pickle|np[yz]|h5|hdf5|html?|xml|md|pdf|docx?|ya?ml|toml|zip|tar|tgz|"
    r"zst|7z|db|sqlite3?|png|jpe?g|svg)(\.(gz|bz2|xz))?$|\.parquet\.\w+$"
)
"""The endings of names that promise another form than predictions are written in."""
CHUNK = 1024
"""Rows that are read, predicted and written at a time."""
Item = TypeVar("Item")
Row = tuple[int, int, list[str] | dict[str, Any] | InputError]
"""The first line of a row, from 1, the number of its lines, and its fields, {column: value}, or why it is damaged."""


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
    rows: Iterator[tuple[str, dict[str, Any]]]
    """The text of each row, "" if it is missing, and the row."""


def is_table(path: str) -> bool:
    """Whether the name of a file is that of a CSV, TSV, JSON Lines or Parquet file, which may be packed.

    >>> is_table("a.CSV"), is_table("a.jsonl.gz"), is_table("a.parquet"), is_table("a.txt")
    (True, True, True, False)
    """
    return form_of(path) in (CSV, TSV, *JSON_LINES, PARQUET)


def chunks(rows: Iterable[Item]) -> Iterator[list[Item]]:
    """Group rows in lists of `CHUNK`."""
    iterator = iter(rows)
    while chunk := list(itertools.islice(iterator, CHUNK)):
        yield chunk


def raw_rows(path: str, separator: str = "\t", member: str = "", columns: Sequence[str] | None = None) -> Iterator[Row]:
    """Yield the rows of a file: {column: value} of JSON Lines and of these `columns` of Parquet, the fields of a .csv,
    and those of the lines of another file with a tab between them; an empty line has none."""
    if form_of(path) == PARQUET:
        with open_parquet(path) as file:
            batches = (batch.to_pylist() for batch in file.iter_batches(CHUNK, columns=columns))
            yield from ((number, 1, row) for number, row in enumerate(itertools.chain.from_iterable(batches), 1))
    elif form_of(path) == CSV:
        yield from _csv_rows(path, separator)
    else:
        parse = _json_object if form_of(path) in JSON_LINES else lambda text, _: text.split("\t") if text else []
        for number, line in enumerate(each_line(path, "file of texts", member), 1):
            location = f"{path} line {number}"
            try:
                yield number, 1, parse(decode_line(line, location), location)
            except InputError as error:
                yield number, 1, error


def _csv_rows(path: str, separator: str) -> Iterator[Row]:
    """The rows of comma-separated values (RFC 4180); an unclosed quote takes the lines up to where this shows."""
    csv.field_size_limit(2**31 - 1)
    decode = lambda line: f"{line.decode(errors='surrogateescape')}\n".replace(MARK, "")
    reader = csv.reader(map(decode, each_line(path, "file of texts")), delimiter=separator, strict=True)
    values = []
    while values is not None:
        number = reader.line_num + 1
        try:
            values = next(reader, None)
            reason = "" if is_utf8("".join(values or [])) else f"not valid UTF-8; {TO_UTF8}"
        except csv.Error as error:
            reason = "a carriage return outside of quotes" if str(error).startswith("new-line") else error
            reason = f"{reason}; a text with quotes or commas is in double quotes"
        values = InputError(f"{path} line {number}: {reason}") if reason else values
        if values is not None:
            yield number, reader.line_num + 1 - number, values


def _json_object(text: str, location: str) -> dict[str, Any]:
    def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        if len(values) < len(pairs):
            raise InputError(f"{location}: an object has a name twice; its names are {', '.join(dict(pairs))[:200]}")
        return values

    try:
        values = json.loads(text, object_pairs_hook=unique_names)
    except InputError:
        raise
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InputError(f"{location}: expected a JSON object, got {text[:60]!r}")
    if "\\ud" in text.lower() and not is_utf8(json.dumps(values, ensure_ascii=False)):
        raise InputError(f"{location}: has half of a character, which UTF-8 cannot write")
    return values


@contextlib.contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """Context with a `pyarrow.parquet.ParquetFile`; errors of reading are InputErrors."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if not os.path.isfile(path):
        raise InputError(f"no file of texts at {path}: give the path of a file that exists")
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except InputError:
        raise
    except (arrow.ArrowException, OSError, OverflowError, ValueError) as error:  # the last two: no value of Python's
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error


def _check_names(path: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, an empty one as column_2; InputError for one that is there twice."""
    names = tuple(name or f"column_{number}" for number, name in enumerate(names, 1))
    if twice := [name for number, name in enumerate(names) if name in names[:number]]:
        raise InputError(f"{path} names the column {twice[0]} twice: {', '.join(names)[:200]}; give each its own name")
    return names


def _first_row(path: str, names: Sequence[str], member: str = "") -> tuple[int, list[str] | InputError, str]:
    """Return the line and the fields of the first row that is not empty, and the separator: in a .csv that of comma,
    semicolon and tab with which the row has most of these names; of Parquet 0, the names of the columns, and ""."""
    if form_of(path) == PARQUET:
        with open_parquet(path) as file:
            return 0, file.schema_arrow.names, ""
    rows = []
    for separator in ",;\t" if form_of(path) == CSV else "\t":
        number, _, fields = next((row for row in raw_rows(path, separator, member) if row[2]), (0, 0, []))
        if not fields:
            raise InputError(f"{path} has only empty lines; expected a text in each")
        rows.append((number, fields if isinstance(fields, InputError) else [*map(str.strip, fields)], separator))
    names = {*names, *_column_names(names)}
    return max(rows, key=lambda row: 0 if isinstance(row[1], InputError) else len(names & {*row[1]}))


def _column_names(names: Sequence[str], existing: Sequence[str] = ()) -> list[str]:
    """The columns that names stand for, which are `existing` ones or are joined by +.

    >>> _column_names(["label", "subject+body"]), _column_names(["a+b"], ["a+b"])
    (['label', 'subject', 'body'], ['a+b'])
    """
    return [column for name in names for column in ([name] if name in existing else name.split("+"))]


def _name_list(names: Sequence[str]) -> str:
    """Names of columns in a message; of one with semicolons those that it would be.

    >>> _name_list(["class;mail"])
    'class, mail (with semicolons between them)'
    """
    if len(names) == 1 and ";" in names[0]:
        return f"{names[0].replace(';', ', ')[:200]} (with semicolons between them)"
    return ", ".join(names)[:200]


def _rows_of_names(path: str, separator: str, begin: int, names: Sequence[str], member: str = "") -> Iterator[Row]:
    """Yield the rows of fields below the line `begin` with names; an empty line is no row of several columns, and an
    empty text in one."""
    for number, lines, fields in raw_rows(path, separator, member):
        if number <= begin or not (fields or len(names) == 1):
            continue
        if not isinstance(fields, InputError):
            fields = fields or [""]
            problem = InputError(f"{path} line {number}: expected {len(names)} columns as in line 1, got {len(fields)}")
            fields = dict(zip(names, fields)) if len(fields) == len(names) else problem
        yield number, lines, fields


def _text(row: dict[str, Any] | InputError, column: str, location: str) -> str:
    """Return a value of a row as text, "" if it is missing; a column with dots is a field in a field."""
    if isinstance(row, InputError):
        raise row
    if column not in row and "+" in column:
        columns = column.split("+")
        if not any(name.partition(".")[0] in row for name in columns):
            raise InputError(
                f"{location}: {column} needs the column {columns[0]}; the columns are {_name_list([*row])}"
            )
        return " ".join(filter(str.strip, (_text(row, name, location) for name in columns)))
    value = row
    for key in [column] if column in row else column.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None or value != value:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float) or value in (math.inf, -math.inf):
        raise InputError(f"{location}: expected a text or a number in the column {column}, got {str(value)[:60]!r}")
    if "\0" in (text := str(value)):
        raise InputError(f"{location}: the column {column} has a NUL, which is never text")
    return text


def read_rows(
    path: str | tuple[str, str],
    columns: Sequence[str],
    damaged: Literal["error", "skip", ""] = "",
    complaints: list[str] | None = None,
    *,
    usual: Sequence[str] = (),
    sentences: bool = False,
    member: str = "",
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the line number, from 0, and the texts in `columns` of each row of a file, in Unicode's composed form.

    Lines without a header have the `usual` columns, by default `columns`, in this order; for one column, a line of
    another file than a table is its text. Two files have a column each. Rows of `sentences` may have further columns,
    and no line break in a text. A damaged row raises InputError, or with "skip" is left out; `complaints` get its
    message for each of its lines.
    """
    name, reasons, count, is_usable = path if isinstance(path, str) else path[0], [], 0, False
    rows = _column_rows(path, columns, usual or columns, sentences, member)
    for number, lines, row in rows if isinstance(path, str) else _line_pairs(*path):
        count += lines
        try:
            texts = row if isinstance(row, tuple) else _texts_of_row(row, columns, f"{name} line {number}", sentences)
        except InputError as error:
            if damaged != "skip":
                hint = "; or leave out all such lines: --data.on-bad-record skip" if damaged else ""
                raise InputError(f"{error}{hint}") from None
            reasons += [str(error)] * lines
        else:
            is_usable = True
            yield number - 1, tuple(map(to_nfc, texts))
    if not is_usable:
        cause = f"none of the {count:,} lines can be used; the first: {reasons[0]}" if reasons else ""
        raise InputError(cause or f"{name} has no rows below its header; expected a row with a text")
    if complaints is not None:
        complaints += reasons


def _column_rows(path: str, columns: Sequence[str], usual: Sequence[str], spare: bool, member: str) -> Iterator[Row]:
    """Yield rows with `columns`, or tuples of their texts from lines without a header, without `spare` ones."""
    form, begin, names, separator = form_of(path), 0, [], "\t"
    if form in (CSV, TSV, PARQUET) or (form not in JSON_LINES and len(columns) > 1):
        begin, names, separator = _first_row(path, columns, member)
    if isinstance(names, InputError):
        if form == CSV:
            raise names
        names = []
    fold = lambda names: {*map(str.casefold, names)}
    top = _column_names(columns, names)
    top = [name if form != PARQUET or name in names else name.partition(".")[0] for name in top]
    has_header = {*top} <= {*names}
    names = _check_names(path, names) if has_header else names
    if form in JSON_LINES:
        keys: dict[str, Any] = {}
        for row in raw_rows(path):
            keys |= dict.fromkeys(row[2]) if isinstance(row[2], dict) else {}
            yield row
        joined = _column_names([name for name in columns if "+" in name], [*keys])
        if keys and (absent := [name for name in joined if name.partition(".")[0] not in keys]):
            names = _name_list([*keys])
            raise InputError(f"{path} needs the column {absent[0]}, which no row has; the columns are {names}")
    elif form == PARQUET and has_header:
        yield from raw_rows(path, columns=[*dict.fromkeys(top)])
    elif has_header:
        yield from _rows_of_names(path, separator, begin, names, member)
    elif form in (CSV, PARQUET) or tuple(columns) != tuple(usual) or fold(names) & fold(columns):
        raise InputError(
            f"{path} needs the columns {', '.join(columns)}, it has {_name_list(names) or 'none with names'}; "
            f"rename them, or train with their names in --data.column{'s' * (len(columns) > 1)}"
        )
    else:
        for number, lines, fields in raw_rows(path, separator, member):
            yield number, lines, _texts_of_line(fields, columns, f"{path} line {number}", spare)


def _texts_of_line(fields: list[str] | InputError, columns: Sequence[str], location: str, spare: bool):
    """Return the texts of a line without a header, or an InputError."""
    if isinstance(fields, InputError):
        return fields
    line, fields = "\t".join(fields), fields[: len(columns)] if spare else fields
    if len(columns) == 1:
        return (line,)
    is_whole = len(fields) == len(columns) and all(map(str.strip, fields))
    message = f"{location}: expected `{' TAB '.join(columns)}`, got {line[:60]!r}"
    return tuple(fields) if is_whole else InputError(message)


def _texts_of_row(row: dict | InputError, columns: Sequence[str], location: str, sentences: bool) -> list[str]:
    """Return the texts of a row with names; InputError for a missing one, or a sentence of several lines."""
    texts = [_text(row, column, location) for column in columns]
    for column, text in zip(columns, texts):
        if not text.strip():
            names = ", ".join(row)[:200]
            raise InputError(f"{location}: the column {column} is empty or missing; the columns are {names}")
        if sentences and re.search(r"[\r\n]", text.rstrip("\r\n")):
            raise InputError(f"{location}: the column {column} has a line break; a sentence is one line")
    return texts


def _line_pairs(*paths: str) -> Iterator[Row]:
    """Yield the texts of a source and a target file."""
    files = [each_line(path, f"{side} file") for path, side in zip(paths, ("source", "target"))]
    for number, lines in enumerate(itertools.zip_longest(*files), 1):
        if None in lines:
            longer = number + sum(1 for _ in itertools.chain(*files))
            source, target = (number - 1 if line is None else longer for line in lines)
            raise InputError(
                f"source and target need equally many lines, but {paths[0]} has {source} and {paths[1]} {target}"
            )
        try:
            texts = tuple(decode_line(line, f"{path} line {number}") for line, path in zip(lines, paths))
            if empty := [path for path, text in zip(paths, texts) if not text.strip()]:
                raise InputError(f"{empty[0]} line {number} is empty; remove the pair from both files")
            yield number, 1, texts
        except InputError as error:
            yield number, 1, error


def open_table(path: str, names: Sequence[str], column: str = "") -> Table:
    """Return the table in a file. Its texts are in `column`, a name, or the number of one of a .csv or .tsv without a
    header; by default in the first of `names` that it has, or in the only column of another form.

    An empty line of a .csv or .tsv of several columns is no row, and an empty .jsonl a table without rows. Raises
    InputError if there is no such column; that of a damaged row of these two is raised when it is read.
    """
    choices, begin, separator = [column] if column else names, 0, ""
    if form_of(path) in JSON_LINES:
        with open_unpacked(path, "file of texts") as file:
            if not file.read(1):
                return Table((choices[0],), iter(()))
        columns = {}
        for _, _, row in raw_rows(path):
            if isinstance(row, InputError):
                raise row
            columns |= dict.fromkeys(row)
    else:
        begin, columns, separator = _first_row(path, choices)
        if isinstance(columns, InputError):
            raise columns
        if (
            separator and column.isdecimal() and columns != [*map(str, range(len(columns)))]
        ):  # the names that pandas gives
            columns, begin = _number_columns(path, columns, column), 0
            choices = columns[int(column) - 1 :]
    has = lambda name: {name, name.partition(".")[0]} & {*columns}
    choice = next((name for name in choices if has(name) or all(map(has, name.split("+")))), None)
    if choice is None and not (len(columns) == 1 and not column and not separator):
        raise InputError(
            f"{path} has the columns {_name_list([*columns])} and none called {' or '.join(choices)}: give the name "
            "of that of the texts by --column, or of a .csv or .tsv without a header its number, --column 1"
        )
    columns = _check_names(path, columns)
    rows = _rows_of_names(path, separator, begin, columns) if separator else raw_rows(path)
    text = lambda number, row: _text(row, choice or columns[0], f"{path} line {number}")
    return Table(columns, ((text(number, row), {name: row.get(name) for name in columns}) for number, _, row in rows))


def _number_columns(path: str, first: Sequence[str], column: str) -> list[str]:
    """Return names for the columns of a file without a header, of which `column` is a number."""
    if column in first:
        raise InputError(f"line 1 of {path} has {column}: is --column {column} its name or a number? Change line 1")
    if not 1 <= int(column) <= len(first):
        raise InputError(f"--column {column} needs a column of that number; line 1 of {path} has {len(first)}")
    return [f"column_{number}" for number in range(1, len(first) + 1)]


def check_output(path: str):
    """Raise InputError for the name of a file whose ending promises a form that `write_table` does not write."""
    if ending := re.search(UNWRITTEN, path, re.IGNORECASE):
        raise InputError(
            f"--out does not write {ending[0]}, got {path}: give a .csv, .tsv or .jsonl (.gz, too) or a .parquet for a "
            "table, or a .txt for the outputs alone"
        )


@contextlib.contextmanager
def write_table(path: Path, columns: Sequence[str]) -> Iterator[Callable[[list[dict[str, Any]]], Any]]:
    """Context with a function that writes rows of these columns; the file is there, whole, when the context ends.

    The form is that of the name, and packed if it ends in .gz: .csv and .tsv with a header, .jsonl with one object a
    line, .parquet, others with lines of the one column alone. Raises InputError for a column that occurs twice, and for
    a tab or line break where the form cannot hold one.
    """
    if twice := [name for number, name in enumerate(columns) if name in columns[:number]]:
        raise InputError(f"the input has a column {twice[0]} already, which predictions are written to: rename it")
    form = form_of(str(path))
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(temporary_file(path))
        if form == PARQUET:
            write = _parquet_writer(place, columns, stack)
        else:
            open_file = PACKED.get(suffix_of(str(path)), (open,))[0]
            file = stack.enter_context(open_file(place, "wt", encoding="utf-8", newline=""))
            join = _csv_line if form == CSV else lambda fields: _plain_line(fields, path)
            line = _json_line if form in JSON_LINES else lambda row: join([*map(as_cell, row.values())])
            if form in (CSV, TSV):
                file.write(join(columns) + "\n")
            write = lambda rows: file.writelines(line(row) + "\n" for row in rows)
        value = lambda cell: cell if cell == cell else None  # NaN
        yield lambda rows: write([{name: value(row[name]) for name in columns} for row in rows])


def _parquet_writer(place: Path, columns: Sequence[str], stack: contextlib.ExitStack) -> Callable:
    """Return a function that writes rows to a Parquet file, whose types hold the values of all rows.

    Rows that need wider types than those before (a number after missing values, another field of an object) have the
    file written anew with these.
    """
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    writer = None

    def write(rows: list[dict[str, Any]]):
        nonlocal writer
        try:
            table = arrow.table({name: arrow.array([row[name] for row in rows]) for name in columns})
            schema = writer.schema if writer else table.schema
            schema = arrow.unify_schemas([schema, table.schema], promote_options="permissive")
            if writer and schema != writer.schema:
                writer.close()
                table, writer = arrow.concat_tables([parquet.read_table(place).cast(schema), table.cast(schema)]), None
            writer = writer or stack.enter_context(parquet.ParquetWriter(place, schema))
            writer.write_table(table.cast(schema))
        except (arrow.ArrowException, OverflowError) as error:
            raise InputError(f"the values of a column have no one Parquet type ({error}): write a .jsonl") from error

    return write


def as_cell(value: Any) -> str:
    """Return a value as the text of a cell; a list or an object is JSON.

    >>> as_cell("a"), as_cell(0.25), as_cell(None), as_cell({"a": [1]})
    ('a', '0.25', '', '{"a": [1]}')
    """
    is_json = isinstance(value, bool | int | float | list | dict)
    return _to_json(value) if is_json else "" if value is None else str(value)


def _to_json(value: Any) -> str:
    """A value as JSON, with dates as text; InputError for what JSON cannot hold: infinity, NaN in a list, bytes."""

    def to_text(cell):
        if isinstance(cell, bytes):
            raise InputError(f"JSON cannot hold bytes, got {cell[:20]!r}: write a .parquet")
        return str(cell)

    try:
        return json.dumps(value, ensure_ascii=False, default=to_text, allow_nan=False)
    except ValueError as error:
        raise InputError(f"JSON cannot hold infinity or NaN ({error}): write a .parquet") from error


def _json_line(row: dict[str, Any]) -> str:
    """An object; what str.splitlines takes for the end of a line is escaped."""
    line = _to_json(row)
    return re.sub("[\\x85\\u2028\\u2029]", lambda match: f"\\u{ord(match[0]):04x}", line)


def _csv_line(fields: Sequence[str]) -> str:
    """A row of RFC 4180. csv.writer quotes a carriage return from Python 3.11.9 only."""
    quote = lambda field: '"' + field.replace('"', '""') + '"' if re.search(r'[",\r\n]', field) else field
    return ",".join(map(quote, fields)) or '""'


def _plain_line(fields: Sequence[str], path: Path) -> str:
    """A line without quotes; InputError for a field that needs some."""
    if bad := [field for field in fields if re.search(r"[\r\n\t]" if is_table(str(path)) else r"[\r\n]", field)]:
        raise InputError(
            f"{bad[0][:40]!r} has a tab or a line break, which {path.name} cannot hold: write a .csv or .jsonl"
        )
    return "\t".join(fields)
