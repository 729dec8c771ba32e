"""JSON Lines and Parquet files train, stream and resume like a file of two columns."""

import datetime
import itertools
import re
from pathlib import Path

import jax
import numpy as np
import pytest
from tables import write

from attention_jax import config as configs
from attention_jax.data import corpus, labeled_texts, text_tables, text_windows
from attention_jax.data.line_index import index_pairs
from attention_jax.data.streams import Share
from attention_jax.errors import InputError
from attention_jax.tasks import build
from attention_jax.train.loop import train_one

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
PAIRS = [(f"one {i} é", f"un {i}") for i in range(60)]
KINDS = ("jsonl", "jsonl.gz", "parquet")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    (tmp_path / "pairs.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS))
    return tmp_path


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_holds_what_two_columns_hold(kind, home):
    """Pairs also from a field in a field, labels that are numbers, and a text in several rows."""
    path = write(home / f"a.{kind}", [{"source": a, "other": 1, "target": b} for a, b in PAIRS])
    assert corpus.read_pairs([(path,)])[:2] == corpus.read_pairs([(str(home / "pairs.tsv"),)])[:2]
    path = write(home / f"b.{kind}", [{"translation": {"en": a, "fr": b}} for a, b in PAIRS])
    assert list(zip(*corpus.read_pairs([(path,)], columns=("translation.en", "translation.fr"))[0])) == PAIRS
    path = write(home / f"c.{kind}", [{"text": a, "label": i} for i, (a, _) in enumerate(PAIRS)])
    assert labeled_texts.read_examples(path, "error")[0] == [(str(i), a) for i, (a, _) in enumerate(PAIRS)]
    path = write(home / f"d.{kind}", [{"text": "a\nb"}, {"text": "c"}])
    assert text_windows.read_text_lines(configs.TextFile(path)) == (["a", "b", "c"], [])


def test_other_columns_of_a_table_are_converted_anew(home):
    path = write(home / "a.parquet", [{"source": a, "target": b} for a, b in PAIRS])
    for columns in (("target",), ("source", "target")):
        line = Path(text_tables.as_json_lines(path, columns)).read_text().splitlines()[7]
        assert text_tables.parse_fields(line, columns, "") == tuple(
            dict(zip(("source", "target"), PAIRS[7]))[c] for c in columns
        )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_table_is_streamed_like_tsv(kind, home):
    """The same windows, in any order and again after a fresh start."""
    path, windows = write(home / f"a.{kind}", [{"source": a, "target": b} for a, b in PAIRS]), {}
    for name in (str(home / "pairs.tsv"), path):
        data = corpus.load(configs.Corpus(tsv_file=name, stream="always", held_out_fraction=0.1, max_length=8), 4)
        windows[name] = data.stream.calls(3, 0, Share())
    for from_tsv, from_table in zip(*windows.values(), strict=True):
        for column in from_tsv.bucket:
            np.testing.assert_array_equal(from_tsv.bucket[column], from_table.bucket[column])
    assert index_pairs([(path,)]).read(7) == PAIRS[7] and index_pairs([(path,)]).location(7) == f"{path} line 8"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_run_on_table_resumes_like_tsv(kind, home):
    """The parameters of a whole run on two columns, and of one on a table in two parts, bit for bit."""
    path, ends = write(home / f"a.{kind}", [{"source": a, "target": b} for a, b in PAIRS]), {}
    for name, stops in ((str(home / "pairs.tsv"), (9,)), (path, (1, 9))):
        data = configs.Corpus(tsv_file=name, stream="always", held_out_fraction=0.1, max_length=8)
        model = configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8)
        train = configs.Train(batch_size=8, total_epochs=2, max_steps=40)
        task = build(configs.Config("x", data, model, train=train, decode=configs.Decode(max_length=4)))
        place = home / "run" / Path(name).name
        place.mkdir(parents=True)
        for until in stops:
            _, ends[name] = train_one(task, configs.Optim(), train, place, quiet=True, until=until)
    jax.tree.map(np.testing.assert_array_equal, *ends.values())


DAMAGED = {
    "no-object": ('["a", "b"]', "expected a JSON object with source, target, got"),
    "cut-off": ('{"source": "a', "expected a JSON object"),
    "missing": ('{"source": "a"}', "expected a text or a number in the column target, got 'None'"),
    "empty": ('{"source": "a", "target": " "}', "the column target is empty"),
    "list": ('{"source": ["a"], "target": "b"}', "in the column source"),
    "truth": ('{"source": true, "target": "b"}', "in the column source"),
    "nan": ('{"source": "a", "target": NaN}', "in the column target, got 'nan'"),
    "infinity": ('{"source": "a", "target": -Infinity}', "in the column target, got '-inf'"),
    "too large": ('{"source": "a", "target": 1e999}', "in the column target, got 'inf'"),
    "nul": ('{"source": "a\\u0000", "target": "b"}', "has a NUL or half of a character"),
    "surrogate": ('{"source": "a\\ud83d", "target": "b"}', "has a NUL or half of a character"),
    "break": ('{"source": "a\\nb", "target": "b"}', "the column source has a line break"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_row_is_named_or_skipped(case, home):
    line, message = DAMAGED[case]
    path = home / "a.jsonl"
    path.write_text('{"source": "x", "target": "y"}\n' + line + "\n")
    with pytest.raises(InputError, match=rf"a\.jsonl line 2: .*{message}"):
        corpus.read_pairs([(str(path),)])
    with pytest.raises(InputError, match=rf"a\.jsonl line 2: .*{message}"):
        index_pairs([(str(path),)]).read(1)
    assert corpus.read_pairs([(str(path),)], "skip")[0].source == ["x"]


def test_parquet_bytes_and_dates_are_errors(home):
    for value in (b"a", datetime.date(2026, 1, 2), ["a"], None):
        path = write(home / "a.parquet", [{"source": "x", "target": value}])
        with pytest.raises(InputError, match="line 1: expected a text or a number in the column target"):
            corpus.read_pairs([(path,)])


def test_values_that_python_cannot_have_are_one_line(home):
    """Text that is not UTF-8, and a time too far away: Arrow writes both."""
    import pyarrow
    import pyarrow.parquet as parquet

    latin = pyarrow.array([b"caf\xe9"] * 3)
    text = pyarrow.Array.from_buffers(pyarrow.string(), 3, latin.buffers())
    for name, column in (("a", text), ("b", pyarrow.array([10**14] * 3, pyarrow.timestamp("s")))):
        path = str(home / f"{name}.parquet")
        parquet.write_table(pyarrow.table({"source": ["x"] * 3, "target": column}), path)
        for read in (lambda path: corpus.read_pairs([(path,)]), lambda path: index_pairs([(path,)])):
            with pytest.raises(InputError, match=rf"^cannot read {path}: .+$"):
                read(path)
    assert not [*(home / "home").rglob("*.jsonl*")]


def test_broken_table_is_one_line(home):
    table = write(home / "a.parquet", [{"en": "a", "fr": "b"}])
    with pytest.raises(InputError, match="a.parquet needs the columns source, target, it has en, fr"):
        corpus.read_pairs([(table,)])
    (home / "b.parquet").write_bytes(b"PAR1 and then something else")
    for read in (lambda path: corpus.read_pairs([(path,)]), lambda path: index_pairs([(path,)])):
        with pytest.raises(InputError, match=r"cannot read .*b\.parquet"):
            read(str(home / "b.parquet"))
        with pytest.raises(InputError, match="no .* at"):
            read(str(home / "c.parquet"))
    assert not [*(home / "home").rglob("*.jsonl*")]
    with pytest.raises(InputError, match="has both sides: give it as --data.tsv-file"):
        corpus.file_pairs(configs.Corpus(source_file=table, target_file=table))


def numbers(epoch, start):
    """Examples of a data set of 10, in an order of each epoch."""
    order = np.random.default_rng(epoch).permutation(10)
    return ({"x": np.full(2, i)} for i in order[start:])


def test_the_adapter_of_the_page_resumes(home):
    """The class of docs/streaming.md: every call once, and the same ones from the middle on, by a reader process."""
    page = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
    [source] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    namespace = {}
    exec(source, namespace)
    make = lambda: namespace["Examples"](numbers, batch_size=3, windows=3, workers=0)
    calls = {(e, w): make().calls(e, w, Share())[0].bucket["x"] for e in (0, 1) for w in range(3)}
    stream = make()
    for place in itertools.product((0, 1), range(3)):
        [call] = stream.calls(*place, Share())
        np.testing.assert_array_equal(call.bucket["x"], calls[place])
        assert call.bucket["x"].shape == (1, 3, 2) and call.weight.tolist() == [[1, 1, 1]]
    assert len({int(x[0, i, 0]) for (e, _), x in calls.items() if not e for i in range(3)}) == 9


@pytest.mark.parametrize(
    "kind, labels, words",
    [
        ("jsonl", [1, 1.0, "1", 0, 0.0, "0"], "the labels 1 and 1.0 are one number"),
        ("jsonl", [0, -0.0, 1, 2], "the labels 0 and -0.0 are one number"),
        ("jsonl", [1e22, 10**22, 3], "the labels 1e\\+22 and 10000000000000000000000 are one number"),
        ("parquet", ["1", "1.0", "2"], "the labels 1 and 1.0 are one number"),
        ("tsv", ["1", "1.0", "2"], "the labels 1 and 1.0 are one number"),
        ("jsonl", [True, False], "expected a text or a number in the column label, got 'True'"),
        ("jsonl", ["1", None], "expected a text or a number in the column label, got 'None'"),
    ],
)
def test_one_number_is_not_two_labels(kind, labels, words, home):
    rows = [{"label": label, "text": f"text {n}"} for n, label in enumerate(labels * 6)]
    path = home / f"a.{kind}"
    if kind == "tsv":
        path.write_text("".join(f"{row['label']}\t{row['text']}\n" for row in rows))
    else:
        write(path, rows)
    with pytest.raises(InputError, match=words) as error:
        labeled_texts.load(configs.LabeledFile(str(path), held_out_fraction=0.2), 4)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("labels", [[1, "1", 0, "0"], [0.0, 1.0, 2.5], ["1.1", "1.10", "01", "1"], [2**53, 2**53 + 1]])
def test_labels_that_differ_are_as_they_are_written(labels, home):
    rows = [{"label": label, "text": f"text {n}"} for n, label in enumerate(labels * 6)]
    path = write(home / "a.jsonl", rows)
    names = labeled_texts.load(configs.LabeledFile(path, held_out_fraction=0.2), 4).names
    assert names == tuple(sorted({str(label) for label in labels}))
