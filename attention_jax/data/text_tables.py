"""Texts in JSON Lines and Parquet files: rows with named columns; only the required ones are read.

A JSON Lines file is a text file with one object a line, so its rows are read by number like those of other text files
(data/line_index.py). A Parquet file is converted to one in the data home once, before its rows are read by number.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_jax.data import text_files
from attention_jax.data.derived import derive_file
from attention_jax.data.text_files import PACKED, decode_line, suffix_of
from attention_jax.errors import InputError

JSON_LINES = (".jsonl", ".ndjson")
PARQUET = ".parquet"


def is_table(path: str) -> bool:
    """Whether a file is JSON Lines, possibly packed, or Parquet, by its name.

    >>> is_table("a.jsonl.gz"), is_table("A.Parquet"), is_table("a.tsv.gz")
    (True, True, False)
    """
    unpacked = os.path.splitext(path)[0] if suffix_of(path) in PACKED else path
    return suffix_of(unpacked) in JSON_LINES or suffix_of(path) == PARQUET


def each_line(path: str, description: str, columns: Sequence[str]) -> Iterator[bytes]:
    """The rows of a table as lines of JSON, or the lines of another text, one after the other."""
    if suffix_of(path) != PARQUET:
        yield from text_files.each_line(path, description)
        return
    row = None
    for row in _parquet_lines(path, columns):
        yield row
    if row is None:
        raise InputError(f"{path} is empty; expected rows with the columns {', '.join(columns)}")


def parse_fields(line: str | bytes, columns: Sequence[str], location: str) -> tuple[str, ...]:
    """The values of `columns` in a line of JSON as texts; a name with dots is that of a field in a field.

    Raises InputError for a line that is no object, and for a value that is missing, empty or neither text nor number.

    >>> parse_fields('{"label": 1, "translation": {"en": "one"}}', ("label", "translation.en"), "a.jsonl line 1")
    ('1', 'one')
    """
    line = decode_line(line, location) if isinstance(line, bytes) else line
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise InputError(f"{location}: expected a JSON object with {', '.join(columns)}, got {line[:60]!r}")
    return tuple(_field(row, name, location) for name in columns)


def _field(row: dict, name: str, location: str) -> str:
    value = row
    for key in [name] if name in row else name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    infinite = isinstance(value, float) and not math.isfinite(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float) or infinite:
        raise InputError(
            f"{location}: expected a text or a number in the column {name}, got {str(value)[:60]!r}; the columns are "
            f"{', '.join(row)[:200]}"
        )
    if not str(value).strip():
        raise InputError(f"{location}: the column {name} is empty")
    if "\0" in str(value) or any("\ud800" <= character <= "\udfff" for character in str(value)):
        raise InputError(f"{location}: the column {name} has a NUL or half of a character, which are never text")
    return str(value)


def parse_pair(line: str | bytes, columns: Sequence[str], location: str) -> tuple[str, str]:
    """Return the source and target in a line of JSON; InputError also for a line break in one."""
    pair = parse_fields(line, columns, location)
    for name, text in zip(columns, pair):
        if len(text.splitlines()) > 1:
            raise InputError(f"{location}: the column {name} has a line break; a sentence is one line")
    return pair


def as_json_lines(path: str, columns: Sequence[str]) -> str:
    """Return a JSON Lines file with the rows of a table: itself, or for a Parquet file one in the data home, which is
    written once for each content (by size and modification time) and choice of columns."""
    if suffix_of(path) != PARQUET or not os.path.isfile(path):
        return path

    def write(to: Path):
        print(f"converting {path} to lines of JSON (once)", file=sys.stderr)
        with to.open("wb") as file:
            file.writelines(_parquet_lines(path, columns))

    return derive_file(path, "tables", ".jsonl", write, columns)


def _parquet_lines(path: str, columns: Sequence[str]) -> Iterator[bytes]:
    """The rows of a Parquet file as lines of JSON, read a batch at a time."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    if not os.path.isfile(path):
        raise InputError(f"no file of texts at {path}: give the path of a file that exists")
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            top_columns = [name if name in names else name.partition(".")[0] for name in columns]
            if not {*top_columns} <= {*names}:
                raise InputError(f"{path} needs the columns {', '.join(columns)}, it has {', '.join(names)[:200]}")
            for batch in file.iter_batches(1024, columns=list(dict.fromkeys(top_columns))):
                for row in batch.to_pylist():  # dates and bytes become lists, which are no text
                    yield json.dumps(row, ensure_ascii=False, default=lambda x: [str(x)]).encode() + b"\n"
    except InputError:
        raise
    except (arrow.ArrowException, OSError, OverflowError, ValueError) as error:  # the last two: no value of Python's
        raise InputError(f"cannot read {path}: {str(error).splitlines()[0]}") from error
