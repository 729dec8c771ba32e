"""The texts that a command is given, in words, files and pipes, and what is predicted of them, in constant memory."""

import itertools
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attention_jax.data.text_files import decode_line, each_line, read_lines, stream_lines
from attention_jax.data.text_tables import Columns, Table, check_output, chunks, is_table, open_table, write_table
from attention_jax.errors import InputError
from attention_jax.printing import escape_control


def lines_of(path: str, description: str) -> list[str]:
    """Return the lines of a text file, of a pipe, or of standard input, which is called -."""
    is_pipe = path == "-" or Path(path).is_fifo()
    return [*itertools.chain.from_iterable(pipe_lines(path))] if is_pipe else read_lines(path, description)


def pipe_lines(path: str) -> Iterator[list[str]]:
    """Yield the lines of a pipe, or of standard input, as they arrive."""
    if path == "-":
        yield from stream_lines(sys.stdin.buffer, "standard input")
    else:
        with open(path, "rb") as file:
            yield from stream_lines(file, path)


def is_file_of_texts(word: str) -> bool:
    """Whether a word of a command names texts: standard input, a .txt file or a table."""
    return word == "-" or word.lower().endswith(".txt") or is_table(word)


def text_batches(words: Sequence[str], columns: Columns, column: str = "") -> Iterator[list[str]]:
    """Yield the texts that the words of a command give, a batch at a time: a word itself, the lines of a .txt file and
    of standard input, which is called -, or a column of a table; such a line may be empty.

    Lines of a pipe come as soon as they are written. `columns` are those of the model. Raises InputError for a word
    that is empty or the name of a file of another kind, and for a file without a text; a table without rows has a note.
    """
    for is_file, group in itertools.groupby(words, is_file_of_texts):
        if not is_file:
            yield from chunks(check_word(word, columns) for word in group)
            continue
        for word in group:
            has_rows = has_text = False
            for batch in file_batches(word, columns, column):
                has_rows, has_text = True, has_text or any(line.strip() for line in batch)
                yield batch
            check_rows("standard input" if word == "-" else word, "only empty lines", has_rows, has_text)


def check_rows(source: str, problem: str, has_rows: bool, has_text: bool):
    """Say on stderr that a table has no rows, as on a day without any; InputError for rows without a text."""
    if not has_rows:
        print(f"note: {source} has no rows, so there is nothing to predict", file=sys.stderr)
    elif not has_text:
        raise InputError(f"{source} has {problem}; at least one text is needed")


def check_word(word: str, columns: Columns) -> str:
    """Return a text; InputError for an empty one, or the name of a file that would be taken for a text in silence."""
    if not word.strip():
        raise InputError(f"a text must not be empty, got {word!r}")
    if not columns.is_path and (os.path.exists(word) or PATH.fullmatch(word)):
        raise InputError(
            f"{word} looks like a file, whose name is not to be predicted: texts are read from .txt, .csv, .tsv, "
            ".jsonl and .parquet files, and from standard input, which is called -"
        )
    return word


PATH = re.compile(r"(~?/|\.\.?/)\S*|\S*\.(bak|bz2|gz|html?|jpe?g|json|md|pdf|pkl|png|py|txt|xlsx?|ya?ml|zip)", re.I)
"""A word that begins or ends as the path of a file does, whether or not there is one."""


def file_batches(word: str, columns: Columns, column: str) -> Iterator[list[str]]:
    """Yield the texts of a file or pipe, a batch at a time."""
    if word == "-" or (Path(word).is_fifo() and not is_table(word)):
        yield from pipe_lines(word)
    elif is_table(word):
        table = open_table(word, column_names(columns), column)
        yield from chunks(text for text, _ in table.rows)
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


def print_outputs(predict: Callable[[list[str]], list[str]], batches: Iterator[list[str]]):
    """Print each text with its output, as soon as it is there; an empty line stays empty."""
    for lines in batches:
        for text, output in zip(lines, predict_nonempty(predict, lines, None)):
            print("" if output is None else escape_control(f"{text} -> {output}"), flush=True)


def check_files(words: Sequence[str], column: str, out: str):
    """Raise InputError for files that are not read or written like this, before the model is loaded."""
    check_output(out)
    tables = [word for word in words if is_table(word)]
    if column and not tables:
        raise InputError(f"--column {column} is a column of a table, got {', '.join(words)[:200]}: leave it out")
    if is_table(out) and tables and len(words) > 1:
        raise InputError(f"--out {out} needs one table, or texts only; got {', '.join(words)[:200]}")
    if out and os.path.realpath(out) in map(os.path.realpath, words):
        raise InputError(f"--out {out} is the input, whose texts it would replace: give another name")


def write_predictions(model, predict: Callable[[list[str]], list[str]], words: Sequence[str], column: str, path: Path):
    """Write a table with the columns of the input and those of the predictions, or to another file the outputs alone,
    in lines: the prediction of an empty text is empty.

    The input is one table, or texts, files of texts and pipes.
    """
    columns = model.table_columns
    if is_table(str(path)) and is_table(words[0]):
        table = open_table(words[0], column_names(columns), column)
    else:
        lines = itertools.chain.from_iterable(text_batches(words, columns, column))
        table = Table((columns.text,), ((line, {columns.text: line}) for line in lines))
    names, answer = (columns.output,), lambda texts: zip(predict(texts))
    if is_table(str(path)) and model.classes:
        names, answer = class_columns(model), lambda texts: class_cells(model, texts)
    with write_table(path, (*table.columns, *names) if is_table(str(path)) else names) as write:
        has_rows = has_text = False
        for rows in chunks(table.rows):
            texts = [text for text, _ in rows]
            cells = predict_nonempty(answer, texts, (None,) * len(names))
            write([row | dict(zip(names, values)) for (_, row), values in zip(rows, cells)])
            has_rows, has_text = True, has_text or any(map(str.strip, texts))
        if not has_rows:
            write([])
        check_rows(words[0], "no text in its column", has_rows, has_text)


def class_columns(model) -> tuple[str, ...]:
    """Return the columns of a classifier: the most probable class, or the labels of a multi-label model, and the
    probability of each; of a regression its number, or one for each of its outputs."""
    predicted = model.table_columns.predicted
    if model.function == "none":
        return (predicted,) if len(model.classes) == 1 else tuple(f"{predicted}_{name}" for name in model.classes)
    return predicted, *(f"p_{name}" for name in model.classes)


def class_cells(model, texts: list[str]) -> Iterator[tuple]:
    """Return the values of `class_columns` for each text, numbers to six digits; labels are those from 0.5 on."""
    for row in model.classify(texts):
        numbers, names = [float(f"{p:.6g}") for p in row], model.classes
        labels = [name for name, p in zip(names, row) if p >= 0.5]
        predicted = {"none": [], "sigmoid": [labels], "softmax": [names[row.argmax()]]}[model.function]
        yield *predicted, *numbers
