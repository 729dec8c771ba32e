"""Texts of language models and labeled texts that are streamed: what trains is what trains in memory, bit for bit."""

import contextlib
import random
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from tables import write

from attention_jax import config as configs
from attention_jax.data import labeled_streams, streams, text_files, text_streams, text_windows, token_files
from attention_jax.data.labeled_texts import words_and_marks
from attention_jax.data.pretrained_tokenizer import stamps
from attention_jax.data.streams import Reading, Share
from attention_jax.data.token_files import TokenRows, token_dtype
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks import build
from attention_jax.train.loop import count_steps, train_one

pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
FORMATS = ("txt", "jsonl", "jsonl.gz", "parquet")
LINES = [f"the line {n % 37} of all é" + " and more" * (n % 5) for n in range(150)]
OPTIONS = {
    "text": configs.TextFile(sequence_length=12, held_out_fraction=0.2),
    "labels": configs.LabeledFile(min_frequency=1, max_length=9, max_buckets=2),
}
MODELS = {"text": configs.LanguageModelConfig(1, 8, 2, 8), "labels": configs.TextClassifierConfig(1, 8, 2, 8)}
LOADERS = {"text": text_streams.load, "labels": lambda options: labeled_streams.load(options, 4)}
of_both = pytest.mark.parametrize("kind_of_data", OPTIONS)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    return tmp_path


def rows_of(kind_of_data: str, lines: list[str] = LINES) -> list[dict]:
    return [
        {"text": line} | ({"label": "abc"[n % 3]} if kind_of_data == "labels" else {}) for n, line in enumerate(lines)
    ]


def options_of(kind_of_data: str, place: Path, kind: str = "txt", **changes):
    """The options of a file with `LINES`."""
    path = place / f"{kind_of_data}.{kind}"
    if kind == "txt":
        path.write_text(
            "".join("\t".join(reversed(row.values())) + "\n" for row in rows_of(kind_of_data)), encoding="utf-8"
        )
    else:
        write(path, rows_of(kind_of_data))
    return options_of_file(kind_of_data, path, **changes)


def options_of_file(kind_of_data: str, path: Path, **changes):
    return replace(
        OPTIONS[kind_of_data], **{"text_file" if kind_of_data == "text" else "tsv_file": str(path)}, **changes
    )


def task_of(kind_of_data: str, options, **train):
    decode = configs.Sampling(length=4) if kind_of_data == "text" else configs.Decode()
    train = configs.Train(**({"batch_size": 8, "steps_per_call": 3} | train))
    return build(configs.Config("x", options, MODELS[kind_of_data], train=train, decode=decode))


def arrays(data) -> dict:
    """The fields of a dataset but its tokenizer, with arrays in the place of `TokenRows`, and the facts and texts that
    it also has if it is streamed."""
    fields = data._asdict() | {"tokenizer": None, "known": {}, "vocabulary": data.vocabulary.tokens}
    fields["facts"] = {n: x for n, x in data.facts.items() if n not in ("held_out_lines_also_in_train", "streamed")}
    fields["texts"] = {name: split for name, split in fields.get("texts", {}).items() if name != "train"}
    return jax.tree.map(lambda x: x[:] if isinstance(x, TokenRows) else x, fields)


def check_equal(actual, expected):
    """Two datasets are equal bit for bit, and their arrays have equal types."""
    jax.tree.map(np.testing.assert_array_equal, arrays(actual), arrays(expected))
    types = lambda data: [x.dtype for x in jax.tree.leaves(arrays(data)) if isinstance(x, np.ndarray)]
    assert types(actual) == types(expected)


@of_both
@pytest.mark.parametrize("kind", FORMATS)
def test_streamed_epoch_equals_epoch_in_memory(kind_of_data, kind, home):
    resident = task_of(kind_of_data, options_of(kind_of_data, home, stream="never"))
    streamed = task_of(kind_of_data, options_of(kind_of_data, home, kind, stream="always"))
    assert resident.stream is None and streamed.buckets == () and streamed.data.facts["streamed"]
    check_equal(streamed.data, resident.data)
    assert count_steps(streamed, streamed.config.train) == count_steps(resident, resident.config.train)
    first = {}
    for epoch in (0, 1):
        plan = resident.plan(epoch, 3)
        assert streamed.stream.windows == len(plan) > 2
        for window, (bucket, indices, weight) in enumerate(plan):
            [call] = streamed.stream.calls(epoch, window, Share())
            np.testing.assert_array_equal(call.weight, weight)
            for name, column in resident.buckets[bucket].items():
                assert call.bucket[name].dtype == column.dtype
                np.testing.assert_array_equal(call.bucket[name][0], column[indices.reshape(-1)])
        first[epoch] = plan[0].indices.tobytes()
    assert first[0] != first[1]
    [bucket, indices, weight], *_ = resident.plan(0, 3)
    batch = {name: column[indices[0]] for name, column in resident.buckets[bucket].items()} | {"weight": weight[0]}
    for task in (resident, streamed):
        jax.tree.map(np.testing.assert_array_equal, task.first_batch(), batch)


@of_both
def test_processes_read_the_same_as_threads(kind_of_data, home):
    stream = task_of(kind_of_data, options_of(kind_of_data, home, stream="always")).stream
    with contextlib.closing(Reading(replace(stream, workers=2), Share(), 1, 1, 2)) as reading:
        windows = list(reading)
    assert [at[:2] for at in windows] == [(1, window) for window in range(1, stream.windows)]
    for epoch, window, calls in windows:
        jax.tree.map(np.testing.assert_array_equal, calls, stream.calls(epoch, window, Share()))
        halves = [stream.calls(epoch, window, Share(host, 1, 2))[0].bucket for host in (0, 1)]
        for name, column in calls[0].bucket.items():  # [1, K * B, ...]
            steps = len(calls[0].weight)
            both = np.concatenate([half[name].reshape(steps, 4, *column.shape[2:]) for half in halves], axis=1)
            np.testing.assert_array_equal(both.reshape(column.shape), column)


ODD = {
    "one line": "a word and another one " * 9,
    "two lines": "ab ab ab ab\nab ba ba ba ba b",
    "no end": "\n".join(LINES[:20]),
    "empty lines": "\n\n\n".join(LINES[:20]) + "\n\n\n",
    "windows": "\ufeff" + "\r\n".join(LINES[:20]) + "\r\n",
}


@pytest.mark.parametrize("tokenizer", ["character", "sentencepiece"])
@pytest.mark.parametrize("case", ODD)
def test_streamed_lines_are_split_like_in_memory(case, tokenizer, home, monkeypatch):
    """In blocks of a few bytes and characters, with parts that end between lines or within them."""
    monkeypatch.setattr(text_files, "BLOCK", 5)
    monkeypatch.setattr(text_streams, "BLOCK", 17)
    (home / "a").write_bytes(ODD[case].encode())
    options = replace(options_of_file("text", home / "a", tokenizer=tokenizer), vocabulary_size=40, sequence_length=3)
    try:
        resident = text_streams.load(replace(options, stream="never"))
    except InputError as error:  # sentencepiece cannot train on so little
        with pytest.raises(InputError, match=str(error)[:40]):
            text_streams.load(replace(options, stream="always"))
        return
    check_equal(text_streams.load(replace(options, stream="always")), resident)


@pytest.mark.parametrize("tokenizer", ["words", "character", "sentencepiece"])
def test_duplicates_and_rare_classes_equal_memory(tokenizer, home, monkeypatch):
    monkeypatch.setattr(labeled_streams, "BLOCK", 7)
    draw = random.Random(0)
    texts = [
        " ".join(draw.choices(["a", "bb", "É", "E\u0301", "\u00a0"], k=draw.choice([1, 2, 3, 14]))) + "." for _ in LINES
    ]
    (home / "a").write_text("".join(f"{draw.choice(['yes', 'no', 'no'])}\t{text}\n" for text in texts) + "rare\tx\n")
    options = options_of_file("labels", home / "a", tokenizer=tokenizer, vocabulary_size=14)
    resident = labeled_streams.load(replace(options, stream="never"), 4)
    assert resident.facts["texts_left_out"] and resident.facts["texts_of_several_labels"]
    check_equal(labeled_streams.load(replace(options, stream="always"), 4), resident)


def test_large_text_trains_sentencepiece_on_a_sample(home, monkeypatch):
    monkeypatch.setattr(token_files, "SAMPLE", 1000)
    trained = []
    train = text_streams.text_windows.tokenizers.train_sentencepiece
    note = lambda texts, *options: trained.append(list(texts)) or train(trained[-1], *options)
    monkeypatch.setattr(text_streams.text_windows.tokenizers, "train_sentencepiece", note)
    for kind_of_data, loader in LOADERS.items():
        changes = {"tokenizer": "sentencepiece", "vocabulary_size": 40}
        data = loader(options_of(kind_of_data, home, stream="always", **changes))
        lines = trained.pop()
        assert 400 < sum(map(len, lines)) < 1500 and set(lines) < set(LINES)
        assert len(data.vocabulary) > 20


@of_both
def test_tokens_are_rewritten_after_a_change(kind_of_data, home, monkeypatch):
    options = options_of(kind_of_data, home, stream="always")
    first = LOADERS[kind_of_data](options)
    files = lambda: sorted((home / "home").rglob("*.tokens"))
    with monkeypatch.context() as patch:
        patch.setattr(text_streams, "write_tokens", lambda *_: pytest.fail("written again"))
        patch.setattr(labeled_streams, "write_tokens", lambda *_: pytest.fail("written again"))
        shape = {"sequence_length": 5, "overlap": 1} if kind_of_data == "text" else {"max_buckets": 3}
        check_equal(LOADERS[kind_of_data](replace(options, workers=1)), first)
        reshaped = LOADERS[kind_of_data](replace(options, **shape))
    assert len(files()) == 1
    check_equal(reshaped, LOADERS[kind_of_data](replace(options, **shape, stream="never")))
    path = Path(getattr(options, "text_file" if kind_of_data == "text" else "tsv_file"))
    path.write_text(path.read_text().replace("line", "row"))
    assert LOADERS[kind_of_data](options).facts["fingerprint"] != first.facts["fingerprint"] and len(files()) == 1
    LOADERS[kind_of_data](replace(options, tokenizer="sentencepiece", vocabulary_size=40))
    assert len(files()) == 2


@of_both
def test_large_files_are_streamed_automatically(kind_of_data, home, monkeypatch):
    options = options_of(kind_of_data, home)
    assert "streamed" not in LOADERS[kind_of_data](options).facts
    monkeypatch.setattr(streams, "LARGEST_RESIDENT", 1000)
    assert LOADERS[kind_of_data](options).facts["streamed"]
    assert "streamed" not in LOADERS[kind_of_data](replace(OPTIONS[kind_of_data], stream="always")).facts


BAD = {
    ("text", "txt", b"caf\xe9\n"): "line 151: not valid UTF-8 .byte 0xe9 at 4.",
    ("text", "jsonl", b'{"body": "x"}\n'): "line 151: expected a text or a number in the column text, got 'None'",
    ("labels", "txt", b"caf\xe9\tx\n"): "line 151: not valid UTF-8 .byte 0xe9 at 4.",
    ("labels", "txt", b"no tab\n"): "line 151: expected `label TAB text`, got 'no tab'",
    ("labels", "txt", b"\tno label\n"): "line 151: expected `label TAB text`",
    ("labels", "jsonl", b'{"text": "x"}\n'): "line 151: expected a text or a number in the column label",
    ("labels", "jsonl", b'{"text": "x", "lab\n'): "line 151: expected a JSON object with label, text",
}


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case[0]}-{case[1]}-{case[2][:8]!r}")
def test_damaged_line_is_named_or_skipped(case, home):
    kind_of_data, kind, line = case
    options = options_of(kind_of_data, home, kind, stream="always")
    good = LOADERS[kind_of_data](options)
    path = home / f"{kind_of_data}.{kind}"
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(InputError, match=f"^{path} {BAD[case]}.*; or leave out all such lines") as error:
        LOADERS[kind_of_data](options)
    assert "\n" not in str(error.value)
    left = LOADERS[kind_of_data](replace(options, on_bad_record="skip"))
    assert left.facts == good.facts | {"damaged_lines": 1, "first_damaged_line": left.facts["first_damaged_line"]}
    assert "line 151" in left.facts["first_damaged_line"]


@of_both
@pytest.mark.parametrize("stream", ("never", "always"))
def test_large_first_batch_has_each_example_once(stream, kind_of_data, home):
    """A batch is larger than the dataset: what fills it up would count in statistics of attention."""
    task = task_of(kind_of_data, options_of(kind_of_data, home, stream=stream), batch_size=4096)
    batch, [*buckets] = task.first_batch(), task.examples
    rows = {batch["tokens"].shape: sorted(map(bytes, batch["tokens"]))}
    assert rows.items() <= {x["tokens"].shape: sorted(map(bytes, x["tokens"][:])) for x in buckets}.items()
    assert (batch["weight"] == 1).all() and len(batch["weight"]) == len(batch["tokens"])


@pytest.mark.parametrize("stream", ("never", "always"))
def test_held_out_splits_without_tokens_are_one_line(stream, home, monkeypatch):
    tokenizer = words_and_marks(), Vocabulary(["word"], unk="<unk>")
    monkeypatch.setattr(text_windows, "make_tokenizer", lambda options, lines: tokenizer)
    (home / "a.txt").write_text("word word\n" * 20 + "\n" * 200)
    with pytest.raises(InputError, match="the splits have 40, 0, 0: "):
        text_streams.load(options_of_file("text", home / "a.txt", stream=stream))


@of_both
@pytest.mark.parametrize("stream", ("never", "always"))
def test_first_of_all_damaged_lines_is_named(stream, kind_of_data, home):
    (home / "a.txt").write_bytes(b"caf\xe9\n" * 3)
    with pytest.raises(InputError, match="^none of the 3 lines can be used; the first: .*a.txt line 1: not valid"):
        LOADERS[kind_of_data](options_of_file(kind_of_data, home / "a.txt", stream=stream, on_bad_record="skip"))


@pytest.mark.parametrize("size", (0, 5, 400))
def test_truncated_token_file_is_named(size, home):
    options = options_of("text", home, stream="always")
    text_streams.load(options)
    [path] = (home / "home").rglob("*.tokens")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:size])
    token_files.open_once.cache_clear()
    with pytest.raises(InputError, match=f"^{path} is damaged: delete it"):
        text_streams.load(options)


TOO_LITTLE = {
    ("text", "a.txt", b""): "is empty",
    ("labels", "a.txt", b""): "is empty",
    ("text", "a.jsonl", b""): "is empty",
    ("text", "a.txt", b"\n\n\n"): "only empty lines",
    ("text", "a.txt", b"one\n"): "sequence-length 12 .*have 4, 1, 1: ",
    ("labels", "a.txt", b"yes\ta\n"): "at least 2 classes, got 1: yes",
    ("labels", "a.txt", b"yes\ta\nno\tb\n"): "a class with at least 3",
    ("labels", "a.txt", b"".join(b"text %d\tyes\n" % i for i in range(9))): "are the columns the other way round",
    ("text", "a.parquet", b"PAR1 and more"): "cannot read .*a.parquet",
    ("labels", "a.zip", b"PK"): "is packed: unpack it",
}


@pytest.mark.parametrize("case", TOO_LITTLE, ids=lambda case: f"{case[0]}-{case[1]}-{case[2][:9]!r}")
def test_too_little_text_is_one_line(case, home):
    kind_of_data, name, content = case
    (home / name).write_bytes(content)
    with pytest.raises(InputError, match=TOO_LITTLE[case]) as error:
        LOADERS[kind_of_data](options_of_file(kind_of_data, home / name, stream="always"))
    assert "\n" not in str(error.value)
    assert "sequence-length" in str(error.value) or not [*(home / "home").rglob("*.tokens")]


@of_both
def test_missing_file_or_column_is_named(kind_of_data, home):
    with pytest.raises(InputError, match="no text file at .*nowhere"):
        LOADERS[kind_of_data](options_of_file(kind_of_data, home / "nowhere", stream="always"))
    for rows, complaint in (
        ([{"body": "a"}], "a.parquet needs the columns .*text, it has body"),
        ([], "needs|is empty"),
    ):
        write(home / "a.parquet", rows)
        with pytest.raises(InputError, match=complaint):
            LOADERS[kind_of_data](options_of_file(kind_of_data, home / "a.parquet", stream="always"))


@pytest.mark.parametrize("size, kind", [(2**16, "uint16"), (2**16 + 1, "int32")])
def test_token_rows_index_like_an_array(home, size, kind):
    assert token_dtype(Vocabulary(map(str, range(size)))) == kind
    tokens = np.arange(size - 40, size)
    (home / "a").write_bytes(tokens.astype(kind).tobytes())
    rows = TokenRows(str(home / "a"), kind, range(0, 30, 3), 4)
    expected = np.stack([tokens[start : start + 4] for start in range(0, 30, 3)])
    assert rows.shape == expected.shape and len(rows) == 10
    for index in (slice(None), slice(1, 9, 4), slice(None, 2), [3, 0, 3], np.array([9])):
        np.testing.assert_array_equal(rows[index], expected[index])
        assert rows[index].dtype == np.int32
    ragged = TokenRows(str(home / "a"), kind, np.array([5, 0]), 3, np.array([1, 3], np.int32), pad=7)
    np.testing.assert_array_equal(ragged[[0, 1]], [[size - 35, 7, 7], tokens[:3]])
    with pytest.raises(InputError, match="a became shorter since it was written"):
        TokenRows(str(home / "a"), kind, range(38, 39), 4)[:1]


@pytest.mark.slow
@of_both
def test_resumed_streamed_run_equals_memory(kind_of_data, home):
    """Whole on a file of lines in memory; streamed by two processes from tables, and stopped after the first epoch."""
    ends, metrics = [], []
    for kind, stops, changes in (
        ("txt", (9,), {"stream": "never"}),
        ("jsonl", (1, 9), {"stream": "always"}),
        ("parquet", (1, 9), {"stream": "always", "workers": 2}),
    ):
        task = task_of(kind_of_data, options_of(kind_of_data, home, kind, **changes), total_epochs=2)
        place = home / "run" / kind
        place.mkdir(parents=True)
        for until in stops:
            _, params = train_one(task, configs.Optim(), task.config.train, place, quiet=True, until=until)
        ends.append(params)
        metrics.append(task.evaluate(params, True).metrics)
    for index in (1, 2):
        jax.tree.map(np.testing.assert_array_equal, ends[0], ends[index])
        assert metrics[0] == metrics[index]


def test_changed_pretrained_tokenizer_changes_stamps(home):
    assert stamps("") == "" == stamps(str(home))
    for name in ("tokenizer.json", "config.json", "tokenizer.json"):
        old_stamps = stamps(str(home))
        (home / name).write_text(old_stamps + "{}")
        assert stamps(str(home)) != old_stamps
    assert stamps(str(home / "model.gguf")) == ""
