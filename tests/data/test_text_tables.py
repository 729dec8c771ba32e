"""Tables against Python's csv and pyarrow: the reader of training and that of predictions, and the writer."""

import csv
import datetime
import decimal
import gzip
import io
import json
import lzma
import math
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st
from tables import write

from attention_jax import config as configs
from attention_jax.data import corpus, labeled_texts, text_windows
from attention_jax.data.text_tables import open_table, read_rows, write_table
from attention_jax.errors import InputError

CSV = [
    "label,text\nx,one\ny,two\n",
    'label,text\nx,"one, two"\ny,"say ""no"""\n',
    'label,text\nx,"one\ntwo"\ny,"three\n"\nx,"\nfour"\n',
    'label,text\r\nx,"one\r\ntwo"\r\ny,three\r\n',
    'label,text\nx,"one\rtwo\r\rthree\r"\n',
    "label,text\nx,one\u2028two\x85three\x0bfour\x0cfive\n",
    "label,text\nx,a;b\tc\n",
    "label,text\nx,one",
    'label,text\nx," padded "\ny,  two\n',
    "text,label\none,x\ntwo,y\n",
    "id,text,note,label\n1,one,,x\n2,two,n,y\n",
    "label,text\n\nx,one\n\n\ny,two\n\n",
    "label,text\n1,007\n1.0,1e3\n",
    "label,text\nx,nan\ny,NA\nz,null\n",
    "label,text\nx,'one'\ny,#two\n",
    'label,text\nx,one "two" three\n',
    f"label,text\nx,{'long ' * 50_000}\n",
    "label,text\nx,\U0001f600e\u0301\n",
    'label,text\n"x","one"\n',
    '"label","text"\nx,one\n',
    "label,text\nx,=1+1\n",
]
"""Contents that csv and this package read alike."""


def rows_of(path: Path, names=("text",), column: str = "") -> list[dict]:
    return [row for _, row in open_table(str(path), names, column).rows]


def read(path: Path, **options) -> list[tuple[str, str]]:
    return [row for _, row in read_rows(str(path), ("label", "text"), **options)]


@pytest.mark.parametrize("separator", [",", ";", "\t"], ids=["comma", "semicolon", "tab"])
def test_csv_is_what_csv_reads(separator, tmp_path):
    """Also with a byte order mark, packed, and with other separators; predictions and training read the same texts."""
    path = tmp_path / "a.csv"
    for content in CSV:
        fields = [row for row in csv.reader(io.StringIO(content, newline="")) if row]
        text = io.StringIO(newline="")
        csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(fields)
        variants = [text.getvalue()] + [content, "\ufeff" + content] * (separator == ",")
        for variant in variants:
            path.write_bytes(variant.encode())
            expected = [*csv.DictReader(io.StringIO(variant.removeprefix("\ufeff"), newline=""), delimiter=separator)]
            assert rows_of(path) == expected, variant[:80]
            labels = [(row["label"], unicodedata.normalize("NFC", row["text"])) for row in expected]
            assert read(path) == labels
            (tmp_path / "b.csv.gz").write_bytes(gzip.compress(variant.encode()))
            assert rows_of(tmp_path / "b.csv.gz") == expected


TSV = {
    "label\ttext\nx\tone\ny\ttwo\n": [("x", "one"), ("y", "two")],
    'label\ttext\nx\tsay "no"\ny\t"two\n': [("x", 'say "no"'), ("y", '"two')],
    "text\tlabel\none\tx\r\ntwo\ty\r\n": [("x", "one"), ("y", "two")],
    "id\tlabel\ttext\n1\tx\tone, two; three\n": [("x", "one, two; three")],
    "label\ttext\nx\tone\u2028two\x85three\n": [("x", "one\u2028two\x85three")],
    "\ufefflabel\ttext\nx\tone": [("x", "one")],
}
"""Labels and texts of tab-separated tables, whose quotes are text, as of pandas with `quoting=csv.QUOTE_NONE`."""


def test_quotes_of_tsv_are_text(tmp_path):
    path = tmp_path / "a.tsv"
    for content, expected in TSV.items():
        path.write_bytes(content.encode())
        assert [(row["label"], row["text"]) for row in rows_of(path)] == read(path) == expected
    path.write_text("x\tone\ny\ttwo\n")
    assert read(path) == [("x", "one"), ("y", "two")], "lines without a header"


ROWS = [
    {"label": "x", "text": "one"},
    {"label": "y", "text": None},
    {"label": "x", "text": "a\nb\r\u2028"},
    {"label": None, "text": " "},
]


def test_parquet_and_json_rows_are_those_of_pyarrow(tmp_path):
    """Null, numbers, lists, objects, dates; a missing text is the empty one, and of training an error."""
    import pyarrow
    import pyarrow.parquet as parquet

    extra_columns = [
        {"n": n, "items": [n, 2], "of": {"text": f"t{n}"}, "day": datetime.date(2026, 1, 1 + n)} for n in range(4)
    ]
    rows = [row | extra for row, extra in zip(ROWS, extra_columns)]
    path = Path(write(tmp_path / "a.parquet", rows))
    assert rows_of(path) == parquet.read_table(path).to_pylist() == rows
    assert [text for text, _ in open_table(str(path), ("text",)).rows] == ["one", "", "a\nb\r\u2028", " "]
    assert [text for text, _ in open_table(str(path), (), "n").rows] == ["0", "1", "2", "3"]
    assert [text for text, _ in open_table(str(path), (), "of.text").rows] == ["t0", "t1", "t2", "t3"]
    complaints = []
    assert read(path, damaged="skip", complaints=complaints) == [("x", "one"), ("x", "a\nb\r\u2028")]
    assert len(complaints) == 2 and "line 2: the column text is empty or missing" in complaints[0]
    columns = [pyarrow.array(["x"]), pyarrow.array(["one"]), pyarrow.array(["two"])]
    parquet.write_table(pyarrow.table(columns, ["label", "text", "text"]), path)
    for call in (lambda: rows_of(path), lambda: read(path)):
        with pytest.raises(InputError, match="names the column text twice"):
            call()
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"n": 1}\n{"text": NaN, "n": 2.5}\n{"text": 7, "of": {"text": "x"}}\n')
    table = open_table(str(path), ("text",))
    assert table.columns == ("text", "n", "of")
    assert [text for text, _ in table.rows] == ["one", "", "", "7"]


def test_a_joined_name_needs_one_of_its_keys(tmp_path):
    """A row without the other is its own text; one without both, or a name that no row has, is an error."""
    path = tmp_path / "a.jsonl"
    rows = [{"label": "x", "subject": "Bill", "body": "paid"}, {"label": "y", "subject": "Fire"}]
    write(path, rows)
    assert [row for _, row in read_rows(str(path), ("label", "subject+body"))] == [("x", "Bill paid"), ("y", "Fire")]
    assert [text for text, _ in open_table(str(path), ("subject+body",)).rows] == ["Bill paid", "Fire"]
    for damaged in ("", "skip"):
        with pytest.raises(
            InputError, match="needs the column bdy, which no row has; the columns are label, subject, b"
        ):
            list(read_rows(str(path), ("label", "subject+bdy"), damaged))
    write(path, [*rows, {"label": "x"}])
    assert len([*read_rows(str(path), ("label", "subject+body"), "skip")]) == 2
    for call in (
        lambda: read_rows(str(path), ("label", "subject+body")),
        lambda: open_table(str(path), ("subject+body",))[1],
    ):
        with pytest.raises(InputError, match=r"line 3: subject\+body needs the column subject; the columns are label"):
            list(call())


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_a_name_with_plus_joins_two_columns(name, tmp_path):
    """By hand, in training and predictions; an empty part leaves no space, and a column of that very name is itself."""
    rows = [("x", "Bill", "It is wrong."), ("y", "", "Hello"), ("x", "Fire", "")]
    columns = ("label", "subject", "body")
    path = str(tmp_path / name)
    with write_table(tmp_path / name, columns) as add:
        add([dict(zip(columns, row)) for row in rows])
    expected = ["Bill It is wrong.", "Hello", "Fire"]
    assert [row for _, row in read_rows(path, ("label", "subject+body"))] == [*zip("xyx", expected)]
    for table in (open_table(path, ("subject+body", "text")), open_table(path, ("text",), "subject+body")):
        assert table.columns == ("label", "subject", "body") and [text for text, _ in table.rows] == expected
    with pytest.raises(InputError, match="bdy"):
        list(read_rows(path, ("label", "subject+bdy")))
    with write_table(tmp_path / name, ("a", "a+b")) as add:
        add([{"a": "1", "a+b": "3"}])
    assert [row for _, row in read_rows(path, ("a", "a+b"))] == [("1", "3")]


REFUSED = {
    ("a.csv", b"class;mail\nx;one\n"): r"it has class, mail \(with semicolons between them\); rename",
    ("a.csv", b"label,text\n"): "has no rows below its header",
    ("a.csv", "label,text\nx,gr\u00fcn\n".encode("cp1252")): "line 2: .* by iconv -f cp1252 -t utf-8 FILE > NEW",
    ("a.csv", b"label;body\nx;one\n"): "needs the columns label, text, it has label, body",
    ("a.csv", b"x,one\ny,two\n"): "needs the columns label, text, it has x, one",
    ("a.csv", b"label,text,text\nx,one,two\n"): "names the column text twice",
    ("a.csv", "größe,text\nx,one\n".encode("latin-1")): "line 1: not valid UTF-8",
    ("a.csv", "text\ngrün\n".encode("latin-1")): "line 1|needs the columns label, text",
    ("a.csv", b"label,text\nx,one\0\n"): "line 2 has a NUL byte",
    ("a.csv", b"label,text\rx,one\r"): "a carriage return outside of quotes",
    ("a.csv", b"\n\n"): "has only empty lines",
    ("a.csv", b""): "is empty",
    ("a.tsv", b"sentence\tlabel\none\tx\n"): "needs the columns label, text, it has sentence, label; rename",
    ("a.tsv", b"Label\tText\nx\tone\n"): "needs the columns label, text, it has Label, Text; rename",
    ("a.tsv", b"label\ttext\ttext\nx\tone\ttwo\n"): "names the column text twice",
    ("a.jsonl", b'{"label": "x", "label": "y", "text": "one"}\n'): "line 1: an object has a name twice",
    ("a.jsonl", b'{"label": "x", "text": "one"}\n\n'): "line 2: expected a JSON object",
    ("a.jsonl", b'{"label": "x", "text": true}\n'): "expected a text or a number in the column text, got 'True'",
}


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case[0]}-{case[1][:14]!r}")
def test_an_unclear_table_is_one_line(case, tmp_path):
    (name, content) = case
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=REFUSED[case]) as error:
        read(path)
    assert "\n" not in str(error.value) and "on-bad-record" not in str(error.value)


def test_columns_are_read_by_name_or_refused(tmp_path):
    """`--data.columns` for a .tsv with a header, and where it has no effect."""
    path = tmp_path / "dev.tsv"
    path.write_text("src\tsrc_prompt\ttrg\n" + "".join(f"one {n}\tp\tun {n}\n" for n in range(9)))
    options = configs.Corpus(tsv_file=str(path), columns=("src", "trg"))
    source = [text for texts in corpus.load(options, 4).texts.values() for text in texts.source]
    assert sorted(source) == [f"one {n}" for n in range(9)]
    path.write_text("sentence\tlabel\n" + "".join(f"text {n}\t{n % 2}\n" for n in range(9)))
    options = configs.LabeledFile(str(path), columns=("label", "sentence"))
    assert [*labeled_texts.read_examples(options)] == [(str(n % 2), f"text {n}") for n in range(9)]
    (tmp_path / "a").write_text("one\ntwo\n")
    two_files = {"source_file": str(tmp_path / "a"), "target_file": str(tmp_path / "a")}
    refused = {
        "needs the columns src, trg": lambda: corpus.load(
            configs.Corpus(tsv_file=str(path), columns=("src", "trg")), 4
        ),
        "--data.columns are of a --data.tsv-file": lambda: corpus.load(
            configs.Corpus(**two_files, columns=("src", "trg")), 4
        ),
        "--data.merges needs --data.tokenizer bpe": lambda: corpus.load(
            configs.Corpus(**two_files, merges="none", tokenizer="words"), 4
        ),
        "needs the columns body, it has none with names": lambda: [
            *text_windows.read_text(configs.TextFile(str(tmp_path / "a"), column="body"))
        ],
    }
    for message, call in refused.items():
        with pytest.raises(InputError, match=message):
            call()


def test_lines_that_skip_leaves_out_are_counted(tmp_path):
    """An unclosed quote has 8 lines; another takes 3, up to the quote that shows it."""
    path, complaints = tmp_path / "a.csv", []
    path.write_text("label,text\nx,one\n" + 'y,"two\n' + "x,three\n" * 7)
    assert read(path, damaged="skip", complaints=complaints) == [("x", "one")] and len(complaints) == 8
    path.write_text('label,text\ny,"two\nx,three\nx,"four"\ny,five\n')
    complaints.clear()
    assert read(path, damaged="skip", complaints=complaints) == [("y", "five")] and len(complaints) == 3


def test_lines_of_a_text_end_at_line_breaks_only(tmp_path):
    texts = ["one\u2028two\x85three\x0cfour", "five\r\nsix\n", "seven\reight"]
    path = write(tmp_path / "a.jsonl", [{"text": text} for text in texts])
    assert [*text_windows.read_text(configs.TextFile(path))] == [texts[0], "five", "six", "seven", "eight"]


CHARACTERS = "ab \"',;\n\r\t\u2028\x85\x0b\x0c\u00e9e\u0301\U0001f600\\0-=#"
FORMS = [".csv", ".csv.gz", ".jsonl", ".ndjson.xz", ".parquet", ".tsv", ".tsv.bz2"]


@pytest.mark.parametrize("form", FORMS)
def test_what_is_written_is_read_row_by_row(form, tmp_path_factory):
    """Several columns and one; of a .tsv without tabs and line breaks, which are refused (2 CPU-seconds)."""
    directory = tmp_path_factory.mktemp("tables")
    if form.startswith(".tsv"):
        for bad in ("a\tb", "a\n", "\rb"):
            with (
                pytest.raises(InputError, match="has a tab or a line break"),
                write_table(directory / "x.tsv", ["text"]) as add,
            ):
                add([{"text": bad}])
    characters = [c for c in CHARACTERS if not (form.startswith(".tsv") and c in "\t\r\n")]
    text = st.text(st.sampled_from(characters), max_size=8)

    @settings(max_examples=40, deadline=None, database=None)
    @given(st.lists(st.tuples(text, text), min_size=1, max_size=6), st.booleans())
    def check(cells, is_single):
        names = ["text"] if is_single else ["id", "text"]
        rows = [dict(zip(reversed(names), pair)) for pair in cells]
        with write_table(directory / f"a{form}", names) as add:
            for row in rows:
                add([row])
        assert rows_of(directory / f"a{form}") == rows
        if form == ".csv":
            with open(directory / "a.csv", encoding="utf-8", newline="") as file:
                assert [*csv.DictReader(file)] == rows

    check()


def test_values_of_rows_are_written_by_type(tmp_path):
    """NaN is null; a column of nothing and then texts; numbers and texts in one column do not fit into Parquet."""
    import pyarrow.parquet as parquet

    rows = [{"n": 1, "p": math.nan, "l": ["a"]}, {"n": 2, "p": 0.5, "l": []}]
    for name in ("a.jsonl", "a.parquet", "a.jsonl.xz"):
        with write_table(tmp_path / name, ["n", "p", "l"]) as add:
            add(rows)
    expected = [rows[0] | {"p": None}, rows[1]]
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()] == expected
    assert lzma.decompress((tmp_path / "a.jsonl.xz").read_bytes()) == (tmp_path / "a.jsonl").read_bytes()
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == expected
    with pytest.raises(InputError, match="no one Parquet type"), write_table(tmp_path / "b.parquet", ["n"]) as add:
        add([{"n": 1}, {"n": "a"}])
    assert not (tmp_path / "b.parquet").exists()
    with write_table(tmp_path / "c.parquet", ["n"]) as add:
        add([{"n": None}])
        add([{"n": "a"}])
    assert [row["n"] for row in parquet.read_table(tmp_path / "c.parquet").to_pylist()] == [None, "a"]


@pytest.mark.parametrize(
    "values",
    [
        *([None, 0.5], [None, True], [None, datetime.datetime(2026, 1, 2)], [1, 0.5]),
        *([{"a": 1}, {"b": 5}], [[], [1]], [[{"a": 1}], [{"b": 2}]]),
        [decimal.Decimal("1.20"), decimal.Decimal("100.5")],
    ],
    ids=repr,
)
def test_parquet_types_are_those_of_all_rows(values, tmp_path):
    """Rows come in pieces; pyarrow's own answer for all at once, 0.02 s each."""
    import pyarrow
    import pyarrow.parquet as parquet

    with write_table(tmp_path / "a.parquet", ["x"]) as write:
        for value in [*values, values[0]]:
            write([{"x": value}])
    expected = pyarrow.table({"x": pyarrow.array([*values, values[0]])})
    assert parquet.read_table(tmp_path / "a.parquet").equals(expected)


@pytest.mark.parametrize("value", [math.inf, {"a": math.inf}, b"\xff"], ids=repr)
def test_what_json_cannot_hold_is_refused(value, tmp_path):
    with pytest.raises(InputError, match="JSON cannot hold"), write_table(tmp_path / "a/b.jsonl", ["x"]) as write:
        write([{"x": value}])
    assert not [*tmp_path.iterdir()], "nor a directory is left"
