"""Tables of texts in, tables of predictions out: what is kept, what is refused, and how much memory it takes."""

import csv
import gzip
import io
import json
import os
import subprocess
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from attention_jax.cli import commands, predictions
from attention_jax.config import LabeledFile
from attention_jax.data import text_files
from attention_jax.data.text_tables import CHUNK, Columns, open_table, write_table
from attention_jax.errors import InputError
from attention_jax.runs.api import LoadedRun
from attention_jax.tasks.text_classification import TextTask

ROOT = Path(__file__).resolve().parents[2]


def probabilities(texts) -> np.ndarray:
    """Of two classes: the share of the letter a, and the remaining probability [N, 2]."""
    share = np.array([text.count("a") / len(text) for text in texts], np.float32)
    return np.stack([share, 1 - share], axis=1)


@pytest.fixture
def model(monkeypatch):
    """A classifier of texts that takes no time, which every command loads; `calls` are the sizes of its batches."""
    calls = []

    def classify(texts):
        calls.append(len(texts))
        return probabilities(texts)

    names = ("yes, a", "no")
    predict = lambda texts, figure=None: [text.upper() for text in texts]
    run = types.SimpleNamespace(classify=classify, predict=predict, classes=names, table_columns=Columns(), calls=calls)
    run.function = "softmax"
    monkeypatch.setattr("attention_jax.load_run", lambda *_, **__: run)
    return run


def table_of(path: Path) -> list[dict]:
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    with path.open(encoding="utf-8", newline="") as file:
        return [*csv.DictReader(file, delimiter="\t" if path.suffix == ".tsv" else ",")]


def predict(source, out, *words) -> list[dict]:
    commands.main(["predict", "runs/x", str(source), "--out", str(out), *words])
    return table_of(Path(out))


TEXTS = ["aab", 'b, "a"', "two\nlines a", "ü a"]


@pytest.mark.parametrize("form", [".csv", ".jsonl"])
def test_table_keeps_its_columns_and_gains_classes(form, model, tmp_path):
    """Quotes, commas and line breaks survive, probabilities are of each text (0.1 CPU-seconds)."""
    rows = [{"id": f"{n}", "text": text} for n, text in enumerate(TEXTS)]
    if form == ".csv":
        with (tmp_path / "new.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["id", "text"])
            writer.writeheader()
            writer.writerows(rows)
    else:
        (tmp_path / "new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for suffix in (".csv", ".jsonl"):
        written = predict(tmp_path / f"new{form}", tmp_path / f"out{suffix}")
        assert [{name: row[name] for name in ("id", "text")} for row in written] == rows
        assert list(written[0]) == ["id", "text", "predicted", "p_yes, a", "p_no"]
        numbers = np.array([[float(row["p_yes, a"]), float(row["p_no"])] for row in written])
        np.testing.assert_allclose(numbers, probabilities(TEXTS), atol=1e-6)
        assert [row["predicted"] for row in written] == [("yes, a", "no")[i] for i in numbers.argmax(1)]


@pytest.mark.parametrize(
    "name, content, words, texts",
    [
        ("a.csv", "text\naa\nb\n", (), ["aa", "b"]),
        ("a.csv", "aa\nb\n", ("--column", "1"), ["aa", "b"]),  # without a header
        ("a.csv", "0,1\n1,aa\n2,b\n", ("--column", "1"), ["aa", "b"]),  # as pandas names columns
        ("a.csv", "n;text\n1;aa\n2;b, c\n", (), ["aa", "b, c"]),
        ("a.csv", "n\ttext\n1\taa\n2\tb\n", (), ["aa", "b"]),
        ("a.csv", "body\naa\n", ("--column", "body"), ["aa"]),
        ("a.csv", ',text,\n1,"a\rb\r",2\n', (), ["a\rb\r"]),  # columns without names
        ("a.csv", 'text\nsun\n""\n\nice\n', (), ["sun", "", "", "ice"]),
        ("a.tsv", "text\nsun\n\nice\n", (), ["sun", "", "ice"]),
        ("a.jsonl", '{"text": NaN}\n{"text": null}\n{"n": 1}\n{"text": 5}\n', (), ["", "", "", "5"]),
        ("a.csv", "\ufefftext,n\r\naa,1\r\n\r\nb,2\r\n", (), ["aa", "b"]),
        ("a.csv", "1,aa\n2,b\n", ("--column", "2"), ["aa", "b"]),
        ("a.csv", "n,body\n1,aa\n2,b\n", ("--column", "body"), ["aa", "b"]),
        ("a.tsv", "n\ttext\n1\taa\n2\tb\n", (), ["aa", "b"]),
        ("a.tsv", 'a "b\nb\n', ("--column", "1"), ['a "b', "b"]),
        ("a.jsonl", '{"body": "aa"}\n{"body": "b"}\n', (), ["aa", "b"]),
        ("a.jsonl", '{"n": 1, "body": "aa"}\n{"n": 2, "body": "b"}\n', ("--column", "body"), ["aa", "b"]),
        ("a.csv", "text,n\n,1\naa,2\n", (), ["", "aa"]),
    ],
)
def test_texts_are_in_the_column_that_a_rule_names(name, content, words, texts, model, tmp_path, capsys):
    """Each rule of docs/own_data.md; an empty text has empty answers (0.3 CPU-seconds)."""
    (tmp_path / name).write_bytes(content.encode())
    written = predict(tmp_path / name, tmp_path / "out.csv", *words)
    assert [text in row.values() for text, row in zip(texts, written, strict=True)] == [True] * len(texts)
    assert [bool(row["predicted"]) for row in written] == [bool(text) for text in texts]
    commands.main(["predict", "runs/x", str(tmp_path / name), *words])
    answers = [f"{text} -> {text.upper()}" if text else "" for text in texts]
    assert capsys.readouterr().out == "".join(f"{answer}\n" for answer in answers).replace("\r", "\\x0d")


@pytest.mark.parametrize(
    "name, content, words, message",
    [
        ("a.csv", "n,body\n1,aa\n", (), "has the columns n, body and none called text: give"),
        ("a.csv", "text,text\n1,aa\n", (), "names the column text twice"),
        ("a.csv", "body\naa\n", (), "has the columns body and none called text: give the name"),
        ("a.csv", "n,body\n1,aa\n", ("--column", "bdy"), "has the columns n, body and none called bdy"),
        ("a.csv", "7,1\n8,aa\n", ("--column", "1"), "line 1 of .* has 1: is --column 1 its name or a number"),
        ("a.txt", "aa\n", ("--column", "1"), "--column 1 is a column of a table, got .*a.txt: leave it out"),
        ("a.csv", "1,aa\n", ("--column", "3"), "needs a column of that number; line 1 of .* has 2"),
        ("a.csv", "text,n\naa\n", (), "line 2: expected 2 columns as in line 1, got 1"),
        ("a.csv", 'text\n"aa\n', (), "line 2: unexpected end of data"),
        ("a.csv", "text,predicted\naa,1\n", (), "has a column predicted already"),
        ("a.csv", "", (), "is empty"),
        ("a.csv", "text,n\n,1\n", (), "no text in its column"),
        ("a.jsonl", '{"n": 1, "body": "aa"}\n', (), "has the columns n, body and none called text"),
        ("a.jsonl", '{"text": "aa", "text": "b"}\n', (), "line 1: an object has a name twice; its names are text"),
        ("a.jsonl", '{"text": "aa", "n": "\\ud83d"}\n', (), "line 1: has half of a character"),
        ("a.jsonl", '{"text": ["aa"]}\n', (), "line 1: expected a text or a number in the column text"),
        ("a.jsonl", "aa\n", (), "line 1: expected a JSON object"),
    ],
)
def test_an_unclear_or_damaged_table_is_one_line(name, content, words, message, model, tmp_path):
    """Nothing is written, not even a part (0.2 CPU-seconds)."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        predict(tmp_path / name, tmp_path / "out.csv", *words)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_a_table_without_rows_has_no_predictions(name, model, tmp_path, capsys):
    """As of a night without tickets: a note, exit code 0, and the columns that a table with rows has."""
    path = tmp_path / name
    with write_table(path, ("text",)) as write:
        write([])
    assert predict(path, tmp_path / "out.csv") == []
    expected = ["text", "predicted", "p_yes, a", "p_no"]
    assert (tmp_path / "out.csv").read_text() == 'text,predicted,"p_yes, a",p_no\n'
    commands.main(["predict", "runs/x", str(path), "--out", str(tmp_path / "out.parquet")])
    assert parquet.read_table(tmp_path / "out.parquet").column_names == expected
    commands.main(["predict", "runs/x", str(path)])
    output = capsys.readouterr()
    assert output.out == "" and output.err == f"note: {path} has no rows, so there is nothing to predict\n" * 3


def test_a_damaged_last_row_leaves_the_earlier_output(model, tmp_path):
    (tmp_path / "out.csv").write_text("earlier\n")
    (tmp_path / "a.csv").write_text("text,n\n" + "aa,1\n" * 2 * CHUNK + "b\n")
    with pytest.raises(InputError, match=f"line {2 * CHUNK + 2}: expected 2 columns"):
        predict(tmp_path / "a.csv", tmp_path / "out.csv", "--force")
    assert model.calls == [CHUNK, CHUNK] and (tmp_path / "out.csv").read_text() == "earlier\n"
    with pytest.raises(InputError, match="has a tab or a line break"):
        (tmp_path / "b.csv").write_text('text\n"a\nb"\n')
        predict(tmp_path / "b.csv", tmp_path / "new" / "out.tsv")
    with pytest.raises(InputError, match="is the input, whose texts it would replace"):
        predict(tmp_path / "a.csv", tmp_path / "." / "a.csv", "--force")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv", "out.csv"]


def test_a_file_name_is_never_taken_for_a_text(model, tmp_path, monkeypatch):
    """A table is read, a file of another kind refused, and of an image model a path is what it takes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "letter.md").write_text("aa\n")
    with pytest.raises(InputError, match=r"letter\.md looks like a file"):
        commands.main(["predict", "runs/x", "letter.md"])
    for word in (".", "/nowhere/file", "data/none.pdf", "nope.md", "./x"):
        with pytest.raises(InputError, match="looks like a file"):
            commands.main(["predict", "runs/x", word])
    commands.main(["predict", "runs/x", "see and/or text", "10/05/99", "What is e.g.this?"])
    with pytest.raises(InputError, match=r"no file of texts at new\.csv"):
        commands.main(["predict", "runs/x", "new.csv"])
    model.table_columns = Columns("path", is_path=True)
    commands.main(["predict", "runs/x", "letter.md"])


def test_texts_and_lines_become_a_table_too(model, tmp_path):
    (tmp_path / "in.txt").write_text("aa\n\nb\n")
    rows = predict(tmp_path / "in.txt", tmp_path / "out.csv")
    assert [(row["text"], row["predicted"]) for row in rows] == [("aa", "yes, a"), ("", ""), ("b", "no")]
    with pytest.raises(InputError, match="--attention draws what is printed, not a table"):
        predict("aa", tmp_path / "look.csv", "--attention", "look.png")
    model.classes, model.table_columns = (), Columns("source", "translation")
    assert predict("aa", tmp_path / "out.jsonl") == [{"source": "aa", "translation": "AA"}]


def test_columns_are_those_of_what_the_logits_mean(model, tmp_path):
    """Of a multi-label model all labels from 0.5 on, of a regression its numbers (0.1 CPU-seconds)."""
    values = np.array([[0.95, 0.54], [0.5, 0.49999], [0.1, 0.2]], np.float32)
    model.classify, model.function = lambda texts: values[: len(texts)], "sigmoid"
    texts = ["a", "b", "c"]
    rows = [json.loads(line) for line in write_answers(model, texts, tmp_path / "out.jsonl").splitlines()]
    assert [row["predicted"] for row in rows] == [["yes, a", "no"], ["yes, a"], []]
    assert [row["p_no"] for row in rows] == [0.54, 0.49999, 0.2]
    assert write_answers(model, texts[:1], tmp_path / "out.csv").splitlines()[1] == 'a,"[""yes, a"", ""no""]",0.95,0.54'
    model.function = "none"
    lines = write_answers(model, texts, tmp_path / "b.tsv").splitlines()
    assert lines[:2] == ["text\tpredicted_yes, a\tpredicted_no", "a\t0.95\t0.54"]
    model.classify, model.classes = lambda texts: np.full((len(texts), 1), 4.4, np.float32), ("stars",)
    assert write_answers(model, texts[:1], tmp_path / "c.csv") == "text,predicted\na,4.4\n"


def write_answers(model, texts: list[str], path: Path) -> str:
    predictions.write_predictions(model, model.predict, texts, "", path)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["a.xlsx", "a.JSON", "a.json.gz", "a.parquet.gz", "a.html", "a.zip"])
def test_a_form_that_is_not_written_is_refused_at_once(name, tmp_path, monkeypatch):
    monkeypatch.setattr("attention_jax.load_run", lambda *_, **__: pytest.fail("the model was loaded"))
    with pytest.raises(InputError, match=r"--out does not write \.[\w.]+, got .*: give a \.csv"):
        commands.main(["predict", "runs/x", "aa", "--out", str(tmp_path / name)])


def test_the_ending_decides_what_is_written(model, tmp_path):
    """Each form is read by a library that is not ours (0.5 CPU-seconds)."""
    pandas = pytest.importorskip("pandas")
    readers = {
        "a.csv.gz": pandas.read_csv,
        "a.tsv.bz2": lambda path: pandas.read_csv(path, sep="\t"),
        "a.jsonl.xz": lambda path: pandas.read_json(path, lines=True),
        "a.parquet": pandas.read_parquet,
    }
    for name, read in readers.items():
        commands.main(["predict", "runs/x", "aab", "b", "--out", str(tmp_path / name)])
        frame = read(tmp_path / name)
        assert frame["text"].tolist() == ["aab", "b"] and frame["predicted"].tolist() == ["yes, a", "no"]
        np.testing.assert_allclose(frame["p_no"], [1 / 3, 1], atol=1e-6)
    pandas.DataFrame({"text": ["aa", None], "n": [1, 2]}).to_parquet(tmp_path / "in.parquet")
    rows = predict(tmp_path / "in.parquet", tmp_path / "out.jsonl")
    assert [(row["text"], row["n"], row["predicted"]) for row in rows] == [("aa", 1, "yes, a"), (None, 2, None)]


def test_an_output_of_several_lines_is_no_line(model, tmp_path):
    """Of a language model; a .jsonl has a record for each prompt."""
    model.classes, model.predict = (), lambda texts, figure=None: [f"{text}\nand more\u2028" for text in texts]
    words = ["predict", "runs/x", "a", "b", "c", "d", "--out"]
    with pytest.raises(
        InputError, match=r"has a tab or a line break, which o\.txt cannot hold: write a \.csv or \.jsonl"
    ):
        commands.main([*words, str(tmp_path / "o.txt")])
    assert not any(tmp_path.iterdir())
    commands.main([*words, str(tmp_path / "o.jsonl")])
    assert [row["output"] for row in table_of(tmp_path / "o.jsonl")] == [f"{x}\nand more\u2028" for x in "abcd"]
    model.predict = lambda texts, figure=None: [f"{text}\u2028" for text in texts]
    commands.main([*words, str(tmp_path / "o.txt.gz")])
    assert gzip.decompress((tmp_path / "o.txt.gz").read_bytes()).decode() == "a\u2028\nb\u2028\nc\u2028\nd\u2028\n"


def test_texts_of_a_run_are_composed_and_paths_are_not():
    check = lambda columns: LoadedRun._check_texts(types.SimpleNamespace(table_columns=columns), ["e\u0301"], "predict")
    assert check(Columns()) == ["\xe9"] and check(Columns("path", is_path=True)) == ["e\u0301"]


def test_an_evaluation_stops_at_a_damaged_line(tmp_path):
    """Also of a model whose training left such lines out: an accuracy of the others would be another number."""
    (tmp_path / "a.csv").write_text('label,text\nx,one\ny,"two\n')
    config = types.SimpleNamespace(data=LabeledFile("b.csv", on_bad_record="skip"))
    with pytest.raises(InputError, match=r"a\.csv line 3: unexpected end of data; a text with quotes .*$") as error:
        [*TextTask.new_examples(types.SimpleNamespace(config=config), str(tmp_path / "a.csv"))]
    assert "on-bad-record" not in str(error.value)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs the peak of memory that Linux tells")
def test_memory_does_not_grow_with_the_rows(tmp_path):
    """100,000 rows of 6.8 MB, after 5,000: the process stays as large (2 CPU-seconds)."""
    for count in (5_000, 100_000):
        with (tmp_path / f"{count}.csv").open("w") as file:
            file.write("n,text\n")
            file.writelines(f"{n},{'a b c d ' * 8}\n" for n in range(count))
    code = """
import re, types
from pathlib import Path
from attention_jax.cli.predictions import write_predictions
from attention_jax.data import text_files
from attention_jax.data.text_tables import Columns
text_files.BLOCK = 2**16
model = types.SimpleNamespace(table_columns=Columns(), classes=())
for count in (5_000, 100_000):
    write_predictions(model, lambda texts: texts, [f"{count}.csv"], "", Path("out.csv"))
    print(re.search(r"VmHWM: *\\t*(\\d+)", Path("/proc/self/status").read_text().replace(" ", ""))[1])
"""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    first_size, last_size = map(int, process.stdout.split())  # KiB
    assert last_size - first_size < 4_000, process.stderr
    assert (tmp_path / "out.csv").read_text().count("\n") == 100_001


def test_an_answer_is_printed_before_standard_input_ends():
    """The reader of a line gets its answer while the pipe is open (1 CPU-second)."""
    code = (
        "import sys\nfrom attention_jax.cli.predictions import print_outputs, text_batches\n"
        "from attention_jax.data.text_tables import Columns\n"
        "print_outputs(lambda texts: [t.upper() for t in texts], text_batches(['-'], Columns()))"
    )
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen([sys.executable, "-c", code], **pipe, env=os.environ | {"PYTHONPATH": str(ROOT)}) as process:
        timer = threading.Timer(60, process.kill)  # instead of a wait for ever
        timer.start()
        for text in ("one", "two"):
            process.stdin.write(f"{text}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{text} -> {text.upper()}\n"
        process.stdin.close()
        assert process.stdout.read() == "" and process.wait() == 0
        timer.cancel()


def test_lines_are_whole_however_a_pipe_divides_them():
    """Blocks that end inside of a line, and inside of a character (0.1 CPU-seconds)."""

    class Pieces(io.BytesIO):
        def read1(self, size=-1):
            return self.read(3)

    content = "eins ü\nzwei\n\ndrei"
    lines = [line for batch in text_files.stream_lines(Pieces(content.encode()), "a pipe") for line in batch]
    assert lines == content.split("\n")
    with pytest.raises(InputError, match="a pipe line 2: not valid UTF-8"):
        [*text_files.stream_lines(Pieces(b"eins\n\xff\n"), "a pipe")]


def test_a_packed_table_is_read(tmp_path):
    with gzip.open(tmp_path / "a.csv.gz", "wt") as file:
        file.write("text\naa\n")
    table = open_table(str(tmp_path / "a.csv.gz"), predictions.column_names(Columns()))
    assert [*table.rows] == [("aa", {"text": "aa"})]
