"""The texts that a command is given, in words, files and pipes, and what is predicted of them, in constant memory."""

import contextlib
import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attention_jax.data import text_tables
from attention_jax.data.text_files import decode_line, decode_lines, each_line, read_lines, stream_lines
from attention_jax.data.text_tables import Columns, chunks, is_text_table, open_table
from attention_jax.errors import InputError
from attention_jax.files import temporary_file
from attention_jax.printing import escape_control


def lines_of(path: str, description: str) -> list[str]:
    """Return the lines of a text file, of a pipe, or of standard input, which is called -."""
    if path == "-":
        return decode_lines(sys.stdin.buffer.read(), "standard input")
    if Path(path).is_fifo():
        return decode_lines(Path(path).read_bytes(), path)
    return read_lines(path, description)


def is_file_of_texts(word: str) -> bool:
    """Whether a word of a command names texts: standard input, a .txt file or a table."""
    return word == "-" or word.lower().endswith(".txt") or is_text_table(word)


def text_batches(words: Sequence[str], columns: Columns, column: str = "") -> Iterator[list[str]]:
    """Yield the texts that the words of a command give, a batch at a time: a word itself, the lines of a .txt file and
    of standard input, which is called -, or a column of a table; such a line may be empty.

    Lines of a pipe come as soon as they are written. `columns` are those of the model. Raises InputError for a word
    that is empty or the name of a file of another kind, and for a file without a text.
    """
    for is_file, group in itertools.groupby(words, is_file_of_texts):
        if not is_file:
            yield from chunks(check_word(word, columns) for word in group)
            continue
        for word in group:
            is_empty = True
            for batch in file_batches(word, columns, column):
                is_empty = is_empty and not any(line.strip() for line in batch)
                yield batch
            if is_empty:
                source = "standard input" if word == "-" else word
                raise InputError(f"{source} has only empty lines; at least one text is needed")


def check_word(word: str, columns: Columns) -> str:
    """Return a text; InputError for an empty one, or the name of a file that would be taken for a text in silence."""
    if not word.strip():
        raise InputError(f"a text must not be empty, got {word!r}")
    if not columns.is_path and (os.path.exists(word) or PATH.fullmatch(word)):
        raise InputError(
            f"{word} looks like a file, whose name is not to be predicted: texts are read from .txt, .csv, .tsv and "
            ".jsonl files, and from standard input, which is called -"
        )
    return word


PATH = re.compile(
    r"(~?/|\.\.?/)\S*|\S*\.(bak|bz2|gz|html?|jpe?g|json|md|parquet|pdf|pkl|png|py|txt|xlsx?|ya?ml|zip)", re.I
)
"""A word that begins or ends as the path of a file does, whether or not there is one."""


def file_batches(word: str, columns: Columns, column: str) -> Iterator[list[str]]:
    """Yield the texts of a file or pipe, a batch at a time."""
    if word == "-":
        yield from stream_lines(sys.stdin.buffer, "standard input")
    elif Path(word).is_fifo():
        with open(word, "rb") as file:
            yield from stream_lines(file, word)
    elif is_text_table(word):
        table = open_table(word, column_names(columns), column)
        yield from chunks(row[table.column] for row in table.rows)
    else:
        lines = enumerate(each_line(word, "file of texts"), 1)
        yield from chunks(decode_line(line, f"{word} line {number}") for number, line in lines)


def column_names(columns: Columns) -> tuple[str, ...]:
    """Return the names that the column of texts may have: the model's, and "text"."""
    return tuple(dict.fromkeys((columns.text, Columns().text)))


def predict_nonempty(predict: Callable[[list[str]], list], lines: list[str], empty: Any) -> list:
    """Return what `predict` says of each line that is not empty, and `empty` for the others."""
    texts = [line for line in lines if line.strip()]
    outputs = iter(predict(texts) if texts else [])
    return [next(outputs) if line.strip() else empty for line in lines]


def write_outputs(predict: Callable[[list[str]], list[str]], batches: Iterator[list[str]], path: Path):
    """Write the outputs alone, line by line: an empty line stays empty. The file is there when it is whole."""
    is_device = path.exists() and not path.is_file()
    with contextlib.nullcontext(path) if is_device else temporary_file(path) as place, open(place, "wb") as file:
        for lines in batches:
            for output in predict_nonempty(predict, lines, ""):
                file.write(f"{output}\n".encode())


def print_outputs(predict: Callable[[list[str]], list[str]], batches: Iterator[list[str]]):
    """Print each text with its output, as soon as it is there."""
    for lines in batches:
        texts = [line for line in lines if line.strip()]
        for text, output in zip(texts, predict(texts) if texts else [], strict=True):
            print(escape_control(f"{text} -> {output}"), flush=True)


def write_predictions(model, predict: Callable[[list[str]], list[str]], words: Sequence[str], column: str, path: Path):
    """Write a table with the columns of the input and those of the predictions.

    Of a classifier these are the most probable class and the probability of each class; of another model its output.
    The input is one table, or texts, files of texts and pipes.
    """
    columns = model.table_columns
    if any(map(is_text_table, words)) and len(words) > 1:
        raise InputError(f"--out {path} needs one table, or texts only; got {', '.join(words)[:200]}")
    if is_text_table(words[0]):
        table = open_table(words[0], column_names(columns), column)
    else:
        lines = itertools.chain.from_iterable(text_batches(words, columns))
        table = text_tables.Table((columns.text,), columns.text, ({columns.text: line} for line in lines))
    names = (columns.predicted, *(f"p_{name}" for name in model.classes)) if model.classes else (columns.output,)
    answer = (lambda texts: class_cells(model, texts)) if model.classes else (lambda texts: zip(predict(texts)))
    with text_tables.write_table(path, (*table.columns, *names)) as write:
        is_empty = True
        for rows in chunks(table.rows):
            texts = [row[table.column] for row in rows]
            for row, cells in zip(rows, predict_nonempty(answer, texts, (None,) * len(names))):
                write(row | dict(zip(names, cells)))
            is_empty = is_empty and not any(map(str.strip, texts))
        if is_empty:
            raise InputError(f"{words[0]} has no text in the column {table.column}; at least one is needed")


def class_cells(model, texts: list[str]) -> Iterator[tuple]:
    """Return the most probable class of each text and the probabilities of all, to six digits."""
    for row in model.classify(texts):
        yield model.classes[row.argmax()], *(float(f"{p:.6g}") for p in row)
