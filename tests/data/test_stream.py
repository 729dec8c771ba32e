"""What is read while training is what trains in memory, bit for bit; every way in which reading fails is one line."""

import contextlib
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image
from tables import write

from attention_jax import config as configs
from attention_jax.data import batches, images, labeled_texts, stream, text_files, text_tables, text_windows, tokenizers
from attention_jax.data.image_files import center_crop, inception_box, resize_box
from attention_jax.data.stream import PackedRows, Share, TokenRows
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks import build
from attention_jax.train.loop import count_steps, train_one
from tests.interruptions import interrupt_after

FORMATS = ("txt", "csv", "jsonl.gz", "parquet")
LINES = [f"the line {n % 37} of all é" + " and more" * (n % 5) for n in range(150)]
PAIR_OPTIONS = {
    "held_out_fraction": 0.1,
    "max_length": 9,
    "overlong": "drop",
    "lowercase": True,
    "reverse_source": True,
}
OPTIONS = {
    "text": configs.TextFile(sequence_length=12, held_out_fraction=0.2),
    "labels": configs.LabeledFile(min_frequency=1, max_length=9, max_buckets=2),
    "pairs": configs.Corpus(max_buckets=3, batch_tokens=60, source_bos=True, **PAIR_OPTIONS),
    "packed": configs.Corpus(packing=24, batch_tokens=24, **PAIR_OPTIONS),
}
TRANSFORMER = configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8)
MODELS = {
    "text": configs.LanguageModelConfig(1, 8, 2, 8),
    "labels": configs.TextClassifierConfig(1, 8, 2, 8),
    "pairs": TRANSFORMER,
    "packed": TRANSFORMER,
}
every_kind = pytest.mark.parametrize("kind", OPTIONS)
FILE = {"text": "text_file", "labels": "tsv_file", "pairs": "tsv_file", "packed": "tsv_file"}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    return tmp_path


def check_error(call, *fragments):
    """The InputError of `call`: one line that has all `fragments`."""
    with pytest.raises(InputError) as error:
        call()
    message = str(error.value)
    assert "\n" not in message and all(fragment in message for fragment in fragments), message


def rows_of(kind: str) -> list[dict]:
    """Rows of a file; of pairs some have one source, in another case, and several targets."""
    if kind == "text":
        return [{"text": line} for line in LINES]
    if kind == "labels":
        return [{"label": "abc"[n % 3], "text": line} for n, line in enumerate(LINES)]
    change_case = lambda n, text: text.upper() if n % 2 else text
    return [{"source": change_case(n, LINES[n % 120]), "target": f"{n % 41} {LINES[n]}"} for n in range(150)]


def options_of(kind: str, place: Path, form: str = "txt", **changes):
    """The options of a file with `rows_of`."""
    path, rows = place / f"{kind}.{form}", rows_of(kind)
    if form in ("txt", "csv"):
        separator, header = ("\t", "") if form == "txt" else (",", ",".join(rows[0]) + "\n")
        text = header + "".join(separator.join(row.values()) + "\n" for row in rows)
        path.write_text(text, encoding="utf-8")
    else:
        pytest.importorskip("pyarrow", reason="Parquet files need pyarrow")
        write(path, rows)
    return options_of_file(kind, path, **changes)


def options_of_file(kind: str, path: Path, **changes):
    return replace(OPTIONS[kind], **{FILE[kind]: str(path)}, **changes)


def subwords_of(kind: str) -> dict:
    """Options with a tokenizer that is trained, whose pairs are long."""
    overlong = {"overlong": "truncate"} if "overlong" in vars(OPTIONS[kind]) else {}
    return {"tokenizer": "sentencepiece", "vocabulary_size": 60} | overlong


def load(kind: str, options):
    return configs.import_object(options.loader)(options, *([] if kind == "text" else [8]))


def build_task(kind: str, options, **train):
    decode = configs.Sampling(length=4) if kind == "text" else configs.Decode(max_length=9)
    train = configs.Train(**({"batch_size": 8, "steps_per_call": 3} | train))
    return build(configs.Config("x", options, MODELS[kind], train=train, decode=decode))


def arrays(data) -> dict:
    """The fields of a dataset but its tokenizers, with arrays in the place of rows of tokens."""
    fields = data._asdict()
    fields = {
        name: x.tokens if isinstance(x, Vocabulary) else x for name, x in fields.items() if "tokenizer" not in name
    }
    fields["facts"] = {name: x for name, x in data.facts.items() if name != "streamed"}
    fields["texts"] = {name: texts for name, texts in fields.get("texts", {}).items() if name != "train"}
    return jax.tree.map(lambda x: x[:] if isinstance(x, TokenRows | PackedRows) else x, fields | {"known": {}})


def check_equal(actual, expected):
    """Two datasets are equal bit for bit, and their arrays have equal types."""
    jax.tree.map(np.testing.assert_array_equal, arrays(actual), arrays(expected))
    types = lambda data: [x.dtype for x in jax.tree.leaves(arrays(data)) if isinstance(x, np.ndarray)]
    assert types(actual) == types(expected)


@every_kind
@pytest.mark.parametrize("form", FORMATS)
def test_streamed_epoch_equals_epoch_in_memory(kind, form, home):
    """Data, batches, steps; in calls of one host, and of two."""
    resident = build_task(kind, options_of(kind, home, stream="never"))
    streamed = build_task(kind, options_of(kind, home, form, stream="always"))
    assert resident.stream is None and streamed.buckets == () and streamed.data.facts["streamed"]
    check_equal(streamed.data, resident.data)
    assert count_steps(streamed, streamed.config.train) == count_steps(resident, resident.config.train)
    first = {}
    for epoch in (0, 1):
        plan = resident.plan(epoch, 3)
        assert streamed.stream.calls == len(plan) > 1
        for number, (bucket, indices, weight) in enumerate(plan):
            call = streamed.stream.call(epoch, number, Share())
            np.testing.assert_array_equal(call.weight, weight)
            halves = [streamed.stream.call(epoch, number, Share(host, 1, 2)).bucket for host in (0, 1)]
            for name, column in resident.buckets[bucket].items():
                assert call.bucket[name].dtype == column.dtype
                np.testing.assert_array_equal(call.bucket[name][0], column[indices.reshape(-1)])
                both = [half[name].reshape(len(weight), -1, *column.shape[1:]) for half in halves]
                both = np.concatenate(both, axis=1)[:, : weight.shape[1]].reshape(call.bucket[name][0].shape)
                np.testing.assert_array_equal(both, call.bucket[name][0])
        first[epoch] = plan[0].indices.tobytes()
    assert first[0] != first[1]
    jax.tree.map(np.testing.assert_array_equal, streamed.first_batch(), resident.first_batch())


@every_kind
def test_reading_is_in_order_and_resumes(kind, home):
    reader = build_task(kind, options_of(kind, home, stream="always")).stream
    for threads in (1, 3):
        with contextlib.closing(replace(reader, workers=threads).read((0, 1, 1), 1, 1, 3)) as reading:
            calls = list(reading)
        places = [(1, number) for number in range(1, reader.calls)] + [(2, number) for number in range(reader.calls)]
        assert [number for number, _ in calls] == [number for _, number in places]
        for place, (_, call) in zip(places, calls):
            jax.tree.map(np.testing.assert_array_equal, call, reader.call(*place, Share()))


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
    """In blocks of a few bytes and characters, with splits that end between lines or within them."""
    (home / "a").write_bytes(ODD[case].encode())
    options = replace(options_of_file("text", home / "a", tokenizer=tokenizer), vocabulary_size=40, sequence_length=3)
    try:
        resident = text_windows.load(replace(options, stream="never"))
    except InputError as error:  # sentencepiece cannot train on so little
        with pytest.raises(InputError, match=str(error)[:40]):
            text_windows.load(replace(options, stream="always"))
        return
    monkeypatch.setattr(text_files, "BLOCK", 5)
    monkeypatch.setattr(text_windows, "BLOCK", 17)
    check_equal(text_windows.load(replace(options, stream="always")), resident)
    characters = "".join(ODD[case].replace("\r", "").removeprefix("\ufeff").split("\n"))
    lengths = {name: resident.facts[f"{name}_tokens"] for name in ("train", "valid", "test")}
    assert tokenizer != "character" or sum(lengths.values()) == resident.facts["characters"] >= len(characters)


@pytest.mark.parametrize("tokenizer", ["words", "character", "sentencepiece"])
def test_duplicates_and_rare_classes_equal_memory(tokenizer, home, monkeypatch):
    draw, words = random.Random(0), ["a", "bb", "É", "E\u0301", "\u00a0"]
    texts = [" ".join(draw.choices(words, k=draw.choice([1, 2, 3, 14]))) + "." for _ in LINES]
    (home / "a").write_text("".join(f"{draw.choice(['yes', 'no', 'no'])}\t{text}\n" for text in texts) + "rare\tx\n")
    options = options_of_file("labels", home / "a", tokenizer=tokenizer, vocabulary_size=14)
    resident = labeled_texts.load(replace(options, stream="never"), 4)
    assert resident.facts["texts_left_out"] and resident.facts["texts_of_several_labels"]
    monkeypatch.setattr(text_tables, "CHUNK", 7)
    check_equal(labeled_texts.load(replace(options, stream="always"), 4), resident)


def test_large_text_trains_sentencepiece_on_a_sample(home, monkeypatch):
    import sentencepiece

    monkeypatch.setattr(tokenizers, "SAMPLE", 1000)
    lines, train = [], sentencepiece.SentencePieceTrainer.train
    note = lambda sentence_iterator, **options: train(sentence_iterator=iter(note_lines(sentence_iterator)), **options)
    note_lines = lambda texts: lines.append(list(texts)) or lines[-1]
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", note)
    for kind in OPTIONS:
        load(kind, options_of(kind, home, stream="always", **subwords_of(kind)))
        for sample in lines:
            assert 300 < sum(map(len, sample)) < 1500
        lines.clear()


@every_kind
def test_tokens_are_rewritten_after_a_change(kind, home, monkeypatch):
    options = options_of(kind, home, stream="always")
    first = load(kind, options)
    files = lambda: sorted((home / "home").rglob("*.tokens"))
    shape = {"text": {"sequence_length": 5, "overlap": 1}, "labels": {"max_buckets": 3}}
    reshape = shape.get(kind, {"max_buckets": 1, "packing": 30})
    with monkeypatch.context() as patch:
        patch.setattr(stream.json, "dumps", lambda *_: pytest.fail("written again"))
        check_equal(load(kind, replace(options, workers=1)), first)
        reshaped = load(kind, replace(options, **reshape))
    assert len(files()) == 1
    check_equal(reshaped, load(kind, replace(options, **reshape, stream="never")))
    path = Path(getattr(options, FILE[kind]))
    path.write_text(path.read_text().replace("line", "row"))
    assert load(kind, options).facts["fingerprint"] != first.facts["fingerprint"] and len(files()) == 1
    load(kind, replace(options, **subwords_of(kind)))
    assert len(files()) == 2


@every_kind
def test_large_files_are_streamed_automatically(kind, home, monkeypatch):
    options = options_of(kind, home)
    assert "streamed" not in load(kind, options).facts
    monkeypatch.setattr(stream, "LARGEST_RESIDENT", 1000)
    assert load(kind, replace(options, on_bad_record="skip")).facts["streamed"]
    generated = replace(
        OPTIONS[kind], stream="always", **({} if kind == "text" else {"examples": 60}), on_bad_record="skip"
    )
    assert (
        "streamed"
        not in load(kind, replace(generated, **({} if kind in ("text", "labels") else {"max_length": 20}))).facts
    )


@every_kind
@pytest.mark.parametrize("mode", ("never", "always"))
def test_damaged_line_is_named_or_skipped(kind, mode, home):
    options = options_of(kind, home, stream=mode)
    good, path = load(kind, options), Path(getattr(options, FILE[kind]))
    path.write_bytes(path.read_bytes() + b"caf\xe9\tx\n")
    with pytest.raises(InputError, match=f"^{path} line 151: not valid UTF-8 .*; or leave out all such lines") as error:
        load(kind, options)
    assert "\n" not in str(error.value)
    left = load(kind, replace(options, on_bad_record="skip"))
    assert left.facts == good.facts | {"damaged_lines": 1, "first_damaged_line": left.facts["first_damaged_line"]}
    assert "line 151" in left.facts["first_damaged_line"]
    path.write_bytes(b"caf\xe9\n" * 3)
    with pytest.raises(InputError, match=r"^none of the 3 lines can be used; the first: .* line 1: not valid"):
        load(kind, replace(options, on_bad_record="skip"))


TOO_LITTLE = {
    ("text", "a.txt", b""): "is empty",
    ("labels", "a.jsonl", b""): "is empty",
    ("pairs", "a.txt", b""): "is empty",
    ("text", "a.txt", b"\n\n\n"): "only empty lines",
    ("text", "a.txt", b"one\n"): "sequence-length 12 ",
    ("labels", "a.txt", b"yes\ta\n"): "at least 2 classes, got 1: yes",
    ("labels", "a.txt", b"yes\ta\nno\tb\n"): "a class with at least 3",
    ("labels", "a.txt", b"".join(b"text %d\tyes\n" % i for i in range(9))): "are the columns the other way round",
    ("pairs", "a.txt", b"a\tb\nc\td\n"): "at least 3 different sources, got 2",
    (
        "pairs",
        "a.txt",
        b"".join(b"%d" % n + b" a" * 9 + b"\tb\n" for n in range(9)),
    ): "no training pair is within --data.max-length",
    ("text", "a.parquet", b"PAR1 and more"): "cannot read ",
    ("labels", "a.zip", b"PK"): "is packed: unpack it",
    ("pairs", "nowhere", None): "no text file at ",
}


@pytest.mark.parametrize("case", TOO_LITTLE, ids=lambda case: f"{case[0]}-{case[1]}-{(case[2] or b'')[:9]!r}")
def test_too_little_text_is_one_line(case, home):
    kind, name, content = case
    (home / name).write_bytes(content) if content is not None else None
    check_error(lambda: load(kind, options_of_file(kind, home / name, stream="always")), TOO_LITTLE[case])
    late = ("sequence-length", "max-length")
    assert any(word in TOO_LITTLE[case] for word in late) or not [*(home / "home").rglob("*.tokens")]


@pytest.mark.parametrize("size", (0, 5, 400))
def test_truncated_token_file_is_named(size, home):
    options = options_of("text", home, stream="always")
    load("text", options)
    [path] = (home / "home").rglob("*.tokens")
    path.write_bytes(path.read_bytes()[:size])
    check_error(lambda: load("text", options), f"{path} is damaged: delete it")


@pytest.mark.parametrize("mode", ("never", "always"))
def test_large_first_batch_has_each_example_once(mode, home):
    """A batch is larger than the dataset: what fills it up would count in statistics of attention."""
    task = build_task("labels", options_of("labels", home, stream=mode), batch_size=4096)
    batch, [*buckets] = task.first_batch(), task.examples
    rows = {batch["tokens"].shape: sorted(map(bytes, batch["tokens"]))}
    assert rows.items() <= {x["tokens"].shape: sorted(map(bytes, x["tokens"][:])) for x in buckets}.items()
    assert (batch["weight"] == 1).all() and len(batch["weight"]) == len(batch["tokens"])


def test_rows_of_tokens_index_like_an_array():
    tokens = np.arange(100, 140, dtype=np.int32)
    rows = TokenRows(tokens, np.arange(0, 30, 3), 4, 4)
    expected = np.stack([tokens[start : start + 4] for start in range(0, 30, 3)])
    assert rows.shape == expected.shape and len(rows) == 10
    for index in (slice(None), slice(1, 9, 4), slice(None, 2), [3, 0, 3], np.array([9])):
        np.testing.assert_array_equal(rows[index], expected[index])
        assert rows[index].dtype == np.int32
    ragged = TokenRows(tokens, np.array([5, 0, 38]), np.array([1, 3, 2], np.int32), 3, pad=7)
    np.testing.assert_array_equal(ragged[[0, 1, 2]], [[105, 7, 7], [100, 101, 102], [138, 139, 7]])
    groups = (np.array([1, 0]), np.array([2]))
    packed = PackedRows(ragged, groups, 6, begin=(1,))
    np.testing.assert_array_equal(packed[:], [[1, 100, 101, 102, 105, 7], [1, 138, 139, 7, 7, 7]])
    np.testing.assert_array_equal(
        PackedRows(ragged, groups, 5, segments=True)[[1, 0]], [[0, 0, 1, 2, 3], [0, 0, 0, 1, 2]]
    )


def test_held_out_sources_are_never_trained_on(home):
    """Whatever their case, their spelling and their targets."""
    data = build_task("pairs", options_of("pairs", home, stream="always")).data
    text = lambda row, length: " ".join(data.source_vocabulary.decode(row[: length - 1]))
    rows = Counter(text(*row) for bucket in data.train for row in zip(bucket.source[:], bucket.source_length))
    held_out = {
        " ".join(data.source_tokenizer.tokens(x)) for name in ("valid", "test") for x in data.texts[name].source
    }
    assert (
        len(held_out) == 24 and max(rows.values()) > 1 and not held_out & {row.removeprefix("<bos> ") for row in rows}
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "text"])
def test_resumed_streamed_run_equals_memory(kind, home):
    """Whole on a file of lines in memory; streamed from tables, and stopped after the first epoch."""
    ends, metrics = [], []
    for form, changes in (
        ("txt", {"stream": "never"}),
        ("jsonl.gz", {"stream": "always"}),
        ("parquet", {"stream": "always", "workers": 2}),
    ):
        task = build_task(kind, options_of(kind, home, form, **changes), total_epochs=2)
        place = home / "run" / form
        place.mkdir(parents=True)
        with interrupt_after(1) if changes["stream"] == "always" else contextlib.nullcontext():
            train_one(task, configs.Optim(), task.config.train, place, quiet=True)
        _, params = train_one(task, configs.Optim(), task.config.train, place, quiet=True)
        ends.append(params)
        metrics.append(task.evaluate(params, True).metrics)
    for index in (1, 2):
        jax.tree.map(np.testing.assert_array_equal, ends[0], ends[index])
        assert metrics[0] == metrics[index]


def test_changed_pretrained_tokenizer_changes_stamps(home):
    assert tokenizers.tokenizer_stamps("") == "" == tokenizers.tokenizer_stamps(str(home))
    for name in ("tokenizer.json", "config.json", "tokenizer.json"):
        old_stamps = tokenizers.tokenizer_stamps(str(home))
        (home / name).write_text(old_stamps + "{}")
        assert tokenizers.tokenizer_stamps(str(home)) != old_stamps
    assert tokenizers.tokenizer_stamps(str(home / "model.gguf")) == ""


SIDE, BATCH, CLASSES = 8, 4, "abc"


@pytest.fixture
def folder(tmp_path):
    """3 classes of 5 images, of different shapes."""
    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "images" / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (9 + number, 12, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / name / f"{number}.png")
    return tmp_path / "images"


def load_images(folder, stream="always", **options):
    config = configs.Images("folder", path=str(folder), pixels=SIDE, stream=stream, **options)
    data = images.load(config)
    return data, images.stream(config, data.train, 3, BATCH, 2)


def read_all(reader, **changes):
    with contextlib.closing(replace(reader, **changes).read((0, 1, 1), 0, 0, 2)) as reading:
        return [call for _, call in reading]


def test_streamed_images_equal_images_in_memory(folder):
    """Every image once an epoch, in the order of the plan; shared by hosts with any number of devices."""
    resident, none = load_images(folder, "never")
    data, reader = load_images(folder)
    assert none is None and np.array_equal(data.held_out["test"].image[:], resident.held_out["test"].image)
    assert np.array_equal(data.train.image[1:7:2], resident.train.image[1:7:2])
    calls = read_all(reader)
    jax.tree.map(np.testing.assert_array_equal, read_all(reader, workers=3), calls)
    plan = [chunk for epoch in (0, 1) for chunk in batches.plan(3, epoch, [len(resident.train.label)], [BATCH], 2)]
    for call, (_, indices, weight) in zip(calls, plan, strict=True):
        np.testing.assert_array_equal(call.bucket["image"][0], resident.train.image[indices.reshape(-1)])
        np.testing.assert_array_equal(call.weight, weight)
    for hosts, devices in ((2, 1), (2, 2), (3, 1)):
        whole = reader.call(1, 0, Share())
        shares = [reader.call(1, 0, Share(host * devices, devices, hosts * devices)) for host in range(hosts)]
        label, steps = np.concatenate([share.bucket["label"] for share in shares]), len(whole.weight)
        label = label.reshape(len(label), steps, -1).swapaxes(0, 1).reshape(steps, -1)  # of [devices, K * b]
        assert np.array_equal(label[:, :BATCH], whole.bucket["label"].reshape(steps, -1))


def test_crops_depend_on_seed_epoch_and_record(folder):
    data, reader = load_images(folder, inception_crop=True, resize_pixels=SIDE + 1)
    assert data.train.image.shape[1:] == (SIDE + 1, SIDE + 1, 3)
    rows = batches.plan(3, 0, [len(data.train.label)], [BATCH], 2)[0].indices.reshape(-1)
    for row, image in zip(rows, reader.call(0, 0, Share()).bucket["image"].reshape(-1, SIDE, SIDE, 3)):
        file = Image.open(data.train.image.source.open(row)[0])
        expected = resize_box(file, inception_box(file.size, np.random.default_rng([3, 0, row])), SIDE)
        np.testing.assert_array_equal(image, np.asarray(expected))
    file = Image.open(data.held_out["test"].image.source.open(0)[0])
    np.testing.assert_array_equal(data.held_out["test"].image[0], np.asarray(center_crop(file, SIDE + 1)))
    resident, _ = load_images(folder, "never", inception_crop=True, resize_pixels=SIDE + 1)
    assert np.array_equal(resident.train.image, data.train.image[:])


def test_unreadable_image_is_named_or_skipped(folder, capfd):
    damaged = folder / "b" / "2.png"
    damaged.write_bytes(damaged.read_bytes()[:60])
    data, reader = load_images(folder)
    check_error(lambda: read_all(reader), "cannot read the image", "b/2.png", "repair or remove it", "bad-record skip")
    data, reader = load_images(folder, on_bad_record="skip")
    lines = [line for call in read_all(reader)[: reader.calls] for line in call.damaged]
    row = 4 + 2  # of each class 4 are for training
    assert len(lines) == 1 and "b/2.png" in lines[0]
    assert np.array_equal(data.train.image[row], data.train.image[row + 1]) and data.train.image[:].any()
    assert capfd.readouterr().err.count("left out: cannot read the image") == 1, "also in an evaluation, but once"
    (folder / "b" / "3.png").write_bytes(b"")  # the last of its class: another of b, not the first of c
    assert np.array_equal(data.train.image[row + 1], data.train.image[4])
    (folder / "b" / "3.png").write_bytes((folder / "b" / "0.png").read_bytes())
    in_memory, _ = load_images(folder, "never", on_bad_record="skip")
    assert in_memory.train.label.tolist() == [0] * 4 + [1] * 4 + [2] * 4  # 4 of b are left, none for testing
    assert in_memory.held_out["test"].label.tolist() == [0, 2] and "1 of 15 images" in capfd.readouterr().err
    for path in folder.glob("*/*.png"):
        path.write_bytes(b"")
    check_error(lambda: data.train.image[0], "none of the 4 images of a class can be read")
    (folder / "a" / "3.png").unlink()
    data, _ = load_images(folder)
    (folder / "a" / "2.png").unlink()
    check_error(lambda: data.train.image[:], "a/")


def test_unstreamable_images_are_one_line(folder):
    for options, fragments in (
        ({"pixels": 0}, ("--data.pixels",)),
        ({"path": "nowhere"}, ("nowhere", "not a directory")),
    ):
        options = {"path": str(folder), "pixels": SIDE} | options
        check_error(
            lambda options=options: images.load(configs.Images("folder", stream="always", **options)), *fragments
        )
    for path in (folder / "b").iterdir():
        path.unlink()
    check_error(lambda: load_images(folder), "the class b", "no images")


def test_unfinished_reading_ends_with_its_iterator(folder):
    """Threads that read ahead do not outlive it, and an error of theirs is raised in order."""
    import threading

    _, reader = load_images(folder)
    num_threads = threading.active_count()
    reading = replace(reader, workers=3).read((0, 1, 1), 0, 0, 1000)
    next(reading)
    assert threading.active_count() > num_threads
    reading.close()
    for thread in threading.enumerate():
        thread.join(10) if "ThreadPool" in thread.name else None
    assert threading.active_count() == num_threads


def numbers(epoch, start):
    """Examples of a data set of 10, in an order of each epoch."""
    order = np.random.default_rng(epoch).permutation(10)
    return ({"x": np.full(2, i)} for i in order[start:])


def test_the_adapter_of_the_page_resumes():
    """The class of docs/streaming.md: every call once, and the same ones from the middle on."""
    page = Path(__file__).resolve().parents[2] / "docs" / "streaming.md"
    [source] = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    namespace = {}
    exec(source, namespace)
    make = lambda: namespace["Examples"](numbers, batch_size=3, calls=3)
    calls = {(epoch, n): make().call(epoch, n, Share()).bucket["x"] for epoch in (0, 1) for n in range(3)}
    for (epoch, n), (number, call) in zip(calls, make().read((0, 1, 1), 0, 0, 2), strict=True):
        np.testing.assert_array_equal(call.bucket["x"], calls[epoch, n])
        assert number == n and call.bucket["x"].shape == (1, 3, 2) and call.weight.tolist() == [[1, 1, 1]]
    assert len({int(x[0, i, 0]) for (epoch, _), x in calls.items() if not epoch for i in range(3)}) == 9
