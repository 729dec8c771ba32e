"""Dates, sums, SCAN and reversed numbers: each generated pair is right, and splits are those of the sources."""

import gzip
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from attention_jax.config import Addition, Dates, Reverse, Scan
from attention_jax.data import generated_texts as generated
from attention_jax.data.pairs import Texts, decode_targets, encode_sources
from attention_jax.errors import InputError

FORMS = {"short": "%m/%d/%y", "medium": "%b %d, %Y", "long": "%B %d, %Y", "full": "%A, %B %d, %Y"}
PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "scan"


def test_every_generated_source_means_its_target():
    """Python's strptime, which knows nothing of Babel, reads each source back; and says which format it was."""
    texts = generated.generate_dates(2_000)
    counts = dict.fromkeys(FORMS, 0)
    for source, target in zip(*texts):
        assert len(source) == 29 and len(target) == 10
        readings = {}
        for name, form in FORMS.items():
            try:
                readings[name] = datetime.strptime(source.strip(), form)
            except ValueError:
                continue
        past = lambda reading: reading.replace(year=reading.year - 100 if reading.year > 2017 else reading.year)
        assert [date.strftime("%Y-%m-%d") for date in {*map(past, readings.values())}] == [target]
        counts[next(iter(readings))] += 1
    # a quarter each, but the long form of a May date reads as medium: 25 % +- 4 standard deviations
    assert all(400 < count < 600 for count in counts.values())


def test_cases_years_alphabet_equal_published_file(monkeypatch):
    texts = generated.generate_dates(4_000)
    worded = [source.strip() for source in texts.source if "/" not in source]
    lower, upper = (np.mean([source == change(source) for source in worded]) for change in (str.lower, str.upper))
    assert 0.21 < lower < 0.29 and 0.21 < upper < 0.29
    assert min(texts.target) >= "1970-01-01" and max(texts.target) <= "2017-07-24"
    alphabet = generated.DATE_ALPHABET
    assert set("".join(texts.source + texts.target)) | {"_"} == set(alphabet) and len(alphabet) == 59
    assert generated.generate_dates(50) == generated.generate_dates(50) != generated.generate_dates(50, seed=1)
    monkeypatch.setattr(generated, "LAST_DATE", generated.FIRST_DATE + timedelta(days=1))
    assert {*generated.generate_dates(40).target} == {"1970-01-01", "1970-01-02"}


def test_sums_are_right_and_occur_once():
    texts, pairs = generated.generate_sums(3_000), set()
    for source, target in zip(*texts):
        a, b = map(int, source.split("+"))
        assert len(source) == 7 and len(target) == 4 and a + b == int(target) and max(a, b) <= 999
        pairs.add(frozenset((a, b)) if a != b else (a, b))
    assert len(pairs) == 3_000
    digits = [tuple(sorted(map(len, source.strip().split("+")))) for source in texts.source]
    assert digits.count((1, 1)) <= 55  # all sums of two digits, and no more
    assert generated.generate_sums(20) == generated.generate_sums(20)


def test_assembled_rows_by_hand():
    splits = {"train": Texts(["1+1 ", "1+0 "], ["2 ", "1 "]), "test": Texts(["1+1 ", "0+2 "], ["2 ", "2 "])}
    data = generated.assemble_characters(splits, "", reverse_source=False, batch_size=7)
    assert data.source_vocabulary.tokens == [" ", "+", "0", "1", "2", "_"]
    assert data.source_vocabulary is data.target_vocabulary and data.batch_sizes == (7,)
    np.testing.assert_array_equal(data.train[0].source, [[3, 1, 3, 0], [3, 1, 2, 0]])
    np.testing.assert_array_equal(data.train[0].target, [[5, 4, 0], [5, 3, 0]])
    assert data.train[0].source_length.tolist() == [4, 4] and data.train[0].target_length.tolist() == [2, 2]
    assert data.seen["test"].tolist() == [True, False] and data.facts["test_inputs_also_in_train"] == 1
    backwards = generated.assemble_characters(splits, "", reverse_source=True, batch_size=7)
    np.testing.assert_array_equal(backwards.train[0].source, data.train[0].source[:, ::-1])
    np.testing.assert_array_equal(backwards.train[0].target, data.train[0].target)
    assert backwards.source_tokenizer.tokens("1+0") == [" ", "0", "+", "1"]
    with pytest.raises(InputError, match="at most 4 characters, but '1\\+0  ' has 5"):
        data.source_tokenizer.tokens("1+0  ")


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_divided_as_in_the_book(tmp_path, packed):
    """`load_data` of its dataset/sequence.py: the same rows in the same order, and no other characters."""
    texts = generated.generate_sums(57)
    content = "".join(f"{q}_{a}\n" for q, a in zip(*texts)).encode()
    path = tmp_path / ("addition.txt.gz" if packed else "addition.txt")
    path.write_bytes(gzip.compress(content) if packed else content)
    x, t = (np.array([list(text) for text in side]) for side in (texts.source, ["_" + a for a in texts.target]))
    indices = np.arange(len(x))
    np.random.seed(1984)
    np.random.shuffle(indices)
    x, t, split_at = x[indices], t[indices], len(x) - len(x) // 10
    data = generated.load_addition(Addition(path=str(path), reverse_source=True))
    characters = np.array(data.source_vocabulary.tokens)
    assert set(characters) == set(" +_0123456789")
    for pairs, rows in ((data.train[0], slice(split_at)), (data.held_out["test"], slice(split_at, None))):
        np.testing.assert_array_equal(characters[pairs.source], x[rows, ::-1])
        np.testing.assert_array_equal(characters[pairs.target], t[rows])


def test_texts_in_and_out():
    data = generated.load_dates(Dates(examples=500))
    assert data.train[0].source.shape == (450, 29) and data.train[0].target.shape == (450, 11)
    train = set(data.texts["train"].source)
    assert data.seen["test"].tolist() == [source in train for source in data.texts["test"].source]
    source, length = encode_sources(data, ["1/2/84"])
    assert source.shape == (1, 29) and length.tolist() == [29]
    assert "".join(data.source_vocabulary.decode(source[0])) == "1/2/84".ljust(29)
    assert decode_targets(data, data.held_out["test"].target[:3, 1:]) == data.texts["test"].target[:3]
    with pytest.raises(InputError, match="'%' 'é' not in the vocabulary of 59"):
        encode_sources(data, ["1%é"])
    with pytest.raises(InputError, match="at most 29 characters"):
        encode_sources(data, ["1" * 30])


def test_validation_dates_are_not_trained_on():
    whole, parted = (generated.load_dates(Dates(examples=200, validation=count)) for count in (0, 30))
    assert list(whole.held_out) == ["test"] and list(parted.held_out) == ["valid", "test"]
    assert [len(parted.texts[name].source) for name in ("train", "valid", "test")] == [150, 30, 20]
    joined = [parted.texts["train"].source + parted.texts["valid"].source, parted.texts["test"].source]
    assert joined == [whole.texts["train"].source, whole.texts["test"].source]
    assert {"train_pairs": 150, "valid_pairs": 30, "test_pairs": 20}.items() <= parted.facts.items()
    assert len(parted.seen["valid"]) == 30


def test_a_tenth_tests_rounded_down():
    for count, tests in ((10, 1), (19, 1), (20, 2)):
        splits = generated.split_by_book(Texts([str(i) for i in range(count)], ["x"] * count))
        assert (len(splits["train"].source), len(splits["test"].source)) == (count - tests, tests)


LINES = ["1/2/70  _1970", "5/6/71  _1971"]
BAD = {
    (*LINES, "7/8/72  1972"): "line 3: expected `source_target`, got '7/8/72  1972'",
    (*LINES, "7/8/72 _1972"): "line 3: expected 8 characters, '_' and 4 more as in line 1, got 7 and 4",
    (*LINES, ""): "line 3: expected `source_target`",
    (*LINES[:1],): "has 1 lines",
    (*LINES,): "at least 10 pairs are needed, .* got 2",
}


def test_what_cannot_be_loaded_is_one_line(tmp_path):
    path, options = tmp_path / "date.txt", Dates(path=str(tmp_path / "date.txt"))
    cases = [(options, "no date file at")]
    cases += [
        (Dates(examples=3), "--data.examples must be between 10 and"),
        (Dates(examples=200, validation=180), "got 180"),
    ]
    for data, message in cases:
        with pytest.raises(InputError, match=message):
            generated.load_dates(data)
    for lines, message in BAD.items():
        path.write_text("".join(f"{line}\n" for line in lines))
        with pytest.raises(InputError, match=message) as error:
            generated.load_dates(options)
        assert "\n" not in str(error.value)
    path.write_text("")
    with pytest.raises(InputError, match="has 0 lines"):
        generated.load_dates(options)
    with pytest.raises(InputError, match="between 10 and 200000"):
        generated.load_addition(Addition(examples=400_000))


def joey_reverse(n: int, maxlen: int) -> list[np.ndarray]:
    """generate_samples of Joey NMT's script, on NumPy's global generator."""
    samples = []
    for _ in range(n):
        size = np.random.randint(1, maxlen + 1)
        samples.append(np.random.randint(0, 50, size))
    return samples


def test_reversals_are_joeys_draws():
    np.random.seed(42)
    expected = [joey_reverse(200, 25), joey_reverse(1000, 30), joey_reverse(1000, 30)]
    splits = generated.generate_reversals(200)
    for split, samples in zip(("train", "valid", "test"), expected):
        assert splits[split].source == [" ".join(map(str, sample)) for sample in samples]
        assert splits[split].target == [" ".join(map(str, sample[::-1])) for sample in samples]
    data = generated.load_reverse(Reverse(examples=300))
    assert len(data.source_vocabulary) == 54 and data.facts["train_pairs"] == 300
    assert max(bucket.source.shape[1] for bucket in data.train) <= 26 and data.held_out["test"].source.shape == (
        1000,
        31,
    )


def test_commands_mean_what_the_paper_says():
    """Examples of figure 1."""
    meanings = {words: " ".join(actions) for words, actions in generated.commands()}
    assert len(meanings) == 20_910
    assert meanings["jump left"] == "I_TURN_LEFT I_JUMP"
    assert meanings["jump around right"] == " ".join(["I_TURN_RIGHT I_JUMP"] * 4)
    assert meanings["turn left twice"] == "I_TURN_LEFT I_TURN_LEFT"
    assert meanings["jump thrice"] == "I_JUMP I_JUMP I_JUMP"
    assert meanings["jump opposite left and walk thrice"] == "I_TURN_LEFT I_TURN_LEFT I_JUMP I_WALK I_WALK I_WALK"
    assert meanings["jump opposite left after walk around left"] == " ".join(
        ["I_TURN_LEFT I_WALK"] * 4 + ["I_TURN_LEFT I_TURN_LEFT I_JUMP"]
    )


@pytest.mark.skipif(not PUBLISHED.exists(), reason="the published files are not beside this checkout")
@pytest.mark.parametrize("split", ["simple", "length"])
def test_commands_are_the_published_ones(split):
    lines = []
    for name in ("train", "test"):
        with gzip.open(PUBLISHED / f"tasks_{name}_{split}.txt.gz", "rt") as file:
            lines += file.read().splitlines()
    published = dict(line.removeprefix("IN: ").split(" OUT: ") for line in lines)
    assert published == {words: " ".join(actions) for words, actions in generated.commands()}


@pytest.mark.slow
@pytest.mark.parametrize("cutoff", [0, 22])
def test_a_cutoff_keeps_longer_commands_for_the_test(cutoff):
    data = generated.load_scan(Scan(cutoff=cutoff))
    train, test = set(data.texts["valid"].source), set(data.texts["test"].source)
    longest = {name: max(len(row.split()) for row in texts.target) for name, texts in data.texts.items()}
    assert not train & test and len(data.texts["valid"].source) == generated.VALIDATE
    assert data.facts["train_pairs"] + data.facts["valid_pairs"] + data.facts["test_pairs"] == 20_910
    if cutoff:
        assert min(len(row.split()) for row in data.texts["test"].target) > cutoff >= longest["valid"]
    else:
        assert data.facts["test_pairs"] == 4_182  # as the published random split


def test_a_second_cutoff_divides_the_longer_commands():
    """Lengths just beyond training choose, longer ones judge; what trains and validates stays as it is."""
    lengths = lambda data, split: {len(row.split()) for row in data.texts[split].target}
    once, twice = (generated.load_scan(Scan(cutoff=26, second_cutoff=second)) for second in (0, 30))
    assert list(twice.held_out) == ["valid", "valid_longer", "test_longer"]
    assert lengths(twice, "valid_longer") == {27, 28, 30} and lengths(twice, "test_longer") == {32, 33, 36, 40, 48}
    assert [twice.facts[f"{split}_pairs"] for split in ("valid_longer", "test_longer")] == [1_472, 1_152]
    for split in ("train", "valid"):
        assert once.texts[split] == twice.texts[split]
    longer = twice.texts["valid_longer"].source + twice.texts["test_longer"].source
    assert sorted(once.texts["test"].source) == sorted(longer)


@pytest.mark.parametrize(
    "options, name",
    [
        *(({"cutoff": cutoff}, "cutoff must be (0, or 4 to 47|at least 0).*got") for cutoff in (-1, 3, 48)),
        ({"second_cutoff": 30}, "second-cutoff"),
        ({"cutoff": 26, "second_cutoff": 26}, "second-cutoff"),
        ({"cutoff": 26, "second_cutoff": 48}, "second-cutoff"),
    ],
)
def test_useless_cutoffs_are_one_line(options, name):
    with pytest.raises(InputError, match=f"--data.{name}"):
        generated.load_scan(Scan(**options))
