"""Text of any length: lines found by number, windows of a shuffled epoch, and every bad file in one line."""

import os
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from attention_jax.config import Corpus
from attention_jax.data import corpus, line_index, tokenizers
from attention_jax.data.line_index import index_lines, index_pairs
from attention_jax.data.pair_streams import PairEncoder, permute_records
from attention_jax.data.pairs import Texts, load_pairs
from attention_jax.data.streams import Reading, Share
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError

WHOLE = Share()


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "home"))
    return tmp_path


def check_error(call, *fragments):
    """The InputError of `call`: one line that has all `fragments`."""
    with pytest.raises(InputError) as error:
        call()
    assert "\n" not in str(error.value) and all(fragment in str(error.value) for fragment in fragments), str(
        error.value
    )


def write(directory, rows=300):
    """`rows` pairs of 1 to 9 words, a source in three pairs, in two pairs of files."""
    rng = np.random.default_rng(0)
    sources = [" ".join(f"w{word}" for word in rng.integers(0, 20, rng.integers(1, 10))) for _ in range(rows // 3)]
    pairs = [(source, f"{source} t{number % 7}") for number, source in enumerate(sources * 3)]
    for file_number, rows_of_file in (("1", pairs[: rows // 2]), ("2", pairs[rows // 2 :])):
        for side, name in enumerate(("en", "de")):
            (directory / f"{file_number}.{name}").write_text("".join(pair[side] + "\n" for pair in rows_of_file))
    (directory / "words").write_text("".join(f"w{n}\n" for n in range(20)) + "".join(f"t{n}\n" for n in range(7)))
    paths = lambda name: ",".join(str(directory / f"{file_number}.{name}") for file_number in "12")
    options = {"vocabulary_file": str(directory / "words"), "stream": "always", "held_out_fraction": 0.1}
    return Corpus(source_file=paths("en"), target_file=paths("de"), batch_tokens=60, **options), pairs


def epoch_pairs(stream, epoch=0, share=WHOLE):
    """The pairs of an epoch as texts, without padding, in the order of training."""
    pairs = []
    for window in range(stream.windows):
        for call in stream.calls(epoch, window, share):
            rows = {name: array.reshape(-1, *array.shape[2:]) for name, array in call.bucket.items()}
            for row in np.flatnonzero(call.weight[0]):
                source = stream.vocabularies[0].sentence(rows["source"][row])
                pairs.append((" ".join(source), " ".join(stream.vocabularies[1].sentence(rows["target"][row]))))
    return pairs


@pytest.mark.parametrize("block", [1, 7, 2**20])
@pytest.mark.parametrize("text", ["a\nbc\n", "a\nbc", "\ufeffa\r\nbc\r\n", "é\n\nx"])
def test_lines_are_found_by_number(home, monkeypatch, text, block):
    monkeypatch.setattr(line_index, "BLOCK", block)
    path = home / "text"
    path.write_bytes(text.encode())
    lines, expected = (
        index_lines(str(path)),
        text.removeprefix("\ufeff").replace("\r", "").removesuffix("\n").split("\n"),
    )
    assert lines.count == len(expected)
    for number, line in enumerate(expected):
        lines.read(number) == line if line else check_error(lambda number=number: lines.read(number), "line 2 is empty")
    assert [lines.read(number) for number, line in enumerate(expected) if line] == list(filter(None, expected))


def test_index_is_rebuilt_when_file_changes(home, monkeypatch):
    path = home / "text"
    path.write_text("a\nb\n")
    first = index_lines(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(line_index, "_write_offsets", None)
        assert index_lines(str(path)) == first
    path.write_text("a\nb\nc\n")
    assert index_lines(str(path)).count == 3 and len(os.listdir(os.path.dirname(first.offsets))) == 1


@pytest.mark.parametrize("total", [1, 2, 5, 64, 1000])
def test_epoch_order_is_a_permutation(total):
    places = np.arange(total)
    order = permute_records(places, total, 3, 1)
    assert sorted(order.tolist()) == list(range(total))
    assert np.array_equal(permute_records(places[total // 2 :], total, 3, 1), order[total // 2 :])
    if total == 1000:
        assert abs(np.corrcoef(places, order)[0, 1]) < 0.1 and not np.array_equal(
            order, permute_records(places, total, 3, 2)
        )


def test_epoch_has_every_pair_not_held_out(home):
    config, pairs = write(home)
    data = load_pairs(config)
    held_out = {source for name in ("valid", "test") for source in data.texts[name].source}
    assert len(held_out) == sum(len(data.texts[name].source) for name in ("valid", "test")) > 2
    stream = replace(data.stream, window=40)
    expected = Counter(pair for pair in pairs if pair[0] not in held_out)
    orders = [epoch_pairs(stream, epoch) for epoch in (0, 1)]
    assert Counter(orders[0]) == Counter(orders[1]) == expected and orders[0] != orders[1]
    widths = {call.bucket["source"].shape[2] for w in range(stream.windows) for call in stream.calls(0, w, WHOLE)}
    assert len(widths) > 1 and max(widths) == config.max_length


@pytest.mark.slow
def test_processes_and_hosts_give_the_same_batches(home):
    data = load_pairs(write(home)[0])
    stream = replace(data.stream, window=100)
    whole = [calls for *_, calls in Reading(stream, WHOLE, 1, 1, 2)]
    reading = Reading(replace(stream, workers=1), WHOLE, 1, 1, 2)
    for expected, (*_, actual) in zip(whole, reading, strict=True):
        for expected_call, actual_call in zip(expected, actual, strict=True):
            assert all(
                np.array_equal(expected_call.bucket[name], actual_call.bucket[name]) for name in expected_call.bucket
            )
    reading.close()
    halves = [[call for *_, calls in Reading(stream, Share(host, 1, 2), 1, 1, 2) for call in calls] for host in (0, 1)]
    for expected_call, first, second in zip([call for calls in whole for call in calls], *halves, strict=True):
        both = np.concatenate([first.bucket["target"][0], second.bucket["target"][0]])
        assert np.array_equal(both[: expected_call.weight.size], expected_call.bucket["target"][0])


def test_bad_text_is_named_or_skipped(home):
    config, _ = write(home)
    lines = (home / "2.de").read_bytes().splitlines(keepends=True)
    for bad, reason in ((b"\xff\n", "not valid UTF-8"), (b" \n", "is empty")):
        (home / "2.de").write_bytes(b"".join([*lines[:4], bad, *lines[5:]]))
        check_error(lambda: load_pairs(config), "2.de line 5", reason)
        stream = load_pairs(replace(config, on_bad_record="skip")).stream
        [line] = [line for w in range(stream.windows) for call in stream.calls(0, w, WHOLE) for line in call.damaged]
        assert "2.de line 5" in line
    (home / "2.de").write_bytes(b"".join(lines[:-1]))
    check_error(lambda: load_pairs(config), "equally many lines", "2.en has 150", "2.de 149")
    (home / "2.de").write_bytes(b"")
    check_error(lambda: load_pairs(config), "2.de is empty")
    (home / "2.de").unlink()
    check_error(lambda: load_pairs(config), "no text file", "2.de")
    check_error(lambda: index_lines(str(home / "1.en.gz")), "no text file")
    (home / "1.en.gz").write_bytes(b"")
    check_error(lambda: index_lines(str(home / "1.en.gz")), "unpack it")


def test_a_file_cut_short_while_training_is_named(home):
    path = home / "text"
    path.write_text("one\ntwo\n")
    lines = index_lines(str(path))
    path.write_text("one\n")
    check_error(lambda: lines.read(1), "text line 2", "shorter")


def test_overlong_sentence_is_named_cut_or_dropped(home):
    config, pairs = write(home)
    long = replace(config, max_length=6)
    check_error(lambda: load_pairs(long), "--data.max-length", "--data.overlong truncate")
    data = load_pairs(replace(long, overlong="drop"))
    held_out = {source for name in ("valid", "test") for source in data.texts[name].source}
    short = [pair for pair in pairs if pair[0] not in held_out and len(pair[1].split()) < 6]
    assert Counter(epoch_pairs(data.stream)) == Counter(short)
    cut = epoch_pairs(load_pairs(replace(long, overlong="truncate")).stream)
    assert len(cut) > len(short) and max(len(target.split()) for _, target in cut) == 6


@pytest.mark.parametrize(
    "options, fragments",
    [
        ({"target_file": "a,b"}, ("as many of both sides",)),
        ({"tsv_file": "x"}, ("--data.source-file FILE and --data.target-file FILE",)),
        ({"held_out_fraction": 0.5}, ("--data.held-out-fraction",)),
        ({"vocabulary_file": "a,b,c"}, ("--data.vocabulary-file",)),
        ({"vocabulary_file": "nowhere"}, ("no vocabulary at nowhere",)),
        ({"vocabulary_file": "nowhere", "tokenizer": "sentencepiece"}, ("nowhere", "sentencepiece model")),
    ],
)
def test_bad_options_are_named(home, options, fragments):
    config, _ = write(home)
    if "target_file" in options:
        config = replace(config, source_file="a")
    check_error(lambda: load_pairs(replace(config, **options)), *fragments)


def test_a_directory_is_not_read_as_text(home):
    check_error(lambda: load_pairs(Corpus(tsv_file=str(home), stream="always")), "no text file at")


def test_stream_has_fingerprint_and_no_token_cache(home, monkeypatch):
    config, pairs = write(home)
    first = load_pairs(config).facts["fingerprint"]
    assert load_pairs(config).facts["fingerprint"] == first
    for name in ("1.en", "2.en"):
        (home / name).write_text((home / name).read_text()[::-1].lstrip("\n") + "\n")
    assert load_pairs(config).facts["fingerprint"] != first
    spacy = lambda *_: tokenizers.whitespace()._replace(all_tokens=lambda texts: pytest.fail("kept on the disk"))
    monkeypatch.setattr(tokenizers, "spacy", spacy)
    encoder = PairEncoder(Corpus(tokenizer="spacy"), ("en", "de"), "")
    assert encoder(Texts(["a"], ["a"]), [Vocabulary("a")] * 2) == ([[0]], [[0]])


def test_streamed_sentencepiece_is_trained_on_a_sample(home, monkeypatch):
    _, pairs = write(home)
    (home / "both").write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    monkeypatch.setattr(corpus, "VOCABULARY_SAMPLE", 200)
    options = {"tokenizer": "sentencepiece", "vocabulary_size": 26, "joint_vocabulary": True, "stream": "always"}
    data = load_pairs(Corpus(tsv_file=str(home / "both"), **options))
    assert len(data.source_vocabulary) == 29 and data.facts["sampled_pairs"] < 200
    [call, *_] = data.stream.calls(0, 0, WHOLE)
    text = data.source_tokenizer.text(data.source_vocabulary.sentence(call.bucket["source"][0, 0]))
    assert text in {source for source, _ in pairs}
    assert len(index_pairs([(str(home / "both"),)]).files) == 1


def test_reversed_lowercase_stream_equals_memory(home):
    """Read while training or held in memory: the same pairs, and none whose source is held out in another case."""
    config, pairs = write(home)
    for split in "12":
        for name in ("en", "de"):
            lines = (home / f"{split}.{name}").read_text().splitlines()
            cased = [line.upper() if number % 2 else line for number, line in enumerate(lines)]
            (home / f"{split}.{name}").write_text("".join(f"{line}\n" for line in cased))
    config = replace(config, reverse_source=True, lowercase=True)
    data = load_pairs(config)
    held_out = {source.lower() for name in ("valid", "test") for source in data.texts[name].source}
    expected = Counter((" ".join(source.split()[::-1]), target) for source, target in pairs if source not in held_out)
    assert Counter(epoch_pairs(data.stream)) == expected
    resident = load_pairs(replace(config, stream="never"))
    texts = {name: set(split.source) for name, split in resident.texts.items()}
    assert not (texts["train"] & texts["valid"] or texts["train"] & texts["test"] or texts["valid"] & texts["test"])


def test_every_window_has_its_random_numbers(home):
    data, numbers = load_pairs(write(home)[0]), []
    batch = data.stream.group(data.stream.examples(0, 0), np.random.default_rng(0))
    group = lambda examples, rng: numbers.append(rng.random()) or batch
    stream = replace(data.stream, window=100, group=group)
    for epoch, window in [(0, 0), (0, 1), (1, 0), (1, 1), (0, 0)]:
        stream.calls(epoch, window, WHOLE)
    assert len({*numbers}) == 4 and numbers[0] == numbers[4]
    replace(stream, seed=stream.seed + 1).calls(0, 0, WHOLE)
    assert len({*numbers}) == 5
