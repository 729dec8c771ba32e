from datetime import datetime, timedelta

import numpy as np
import pytest

from attention_jax.config import Dates
from attention_jax.data import dates
from attention_jax.data.pairs import decode_targets, encode_sources
from attention_jax.errors import InputError

FORMS = {"short": "%m/%d/%y", "medium": "%b %d, %Y", "long": "%B %d, %Y", "full": "%A, %B %d, %Y"}


def test_every_generated_source_means_its_target():
    """Python's strptime, which knows nothing of Babel, reads each source back; and says which format it was."""
    texts = dates.generate(2_000)
    counts = dict.fromkeys(FORMS, 0)
    for source, target in zip(*texts):
        assert len(source) == 29 and len(target) == 10
        readings = {}
        for name, form in FORMS.items():
            try:
                readings[name] = datetime.strptime(source.strip(), form)
            except ValueError:
                continue
        date = {
            reading.replace(year=reading.year - 100 if reading.year > 2017 else reading.year)
            for reading in readings.values()
        }
        assert [reading.strftime("%Y-%m-%d") for reading in date] == [target]
        counts[next(iter(readings))] += 1
    # a quarter each, but the long form of a May date reads as medium: 25 % +- 4 standard deviations
    assert all(400 < count < 600 for count in counts.values())


def test_cases_years_alphabet_equal_published_file():
    texts = dates.generate(4_000)
    worded = [source.strip() for source in texts.source if "/" not in source]
    lower, upper = (np.mean([source == change(source) for source in worded]) for change in (str.lower, str.upper))
    assert 0.21 < lower < 0.29 and 0.21 < upper < 0.29
    assert min(texts.target) >= "1970-01-01" and max(texts.target) <= "2017-07-24"
    assert set("".join(texts.source + texts.target)) | {"_"} == set(dates.ALPHABET) and len(dates.ALPHABET) == 59
    assert dates.generate(50) == dates.generate(50) != dates.generate(50, seed=1)


def test_the_cached_dataset_is_the_generated_one():
    from attention_jax.data import store

    data = dates.load(Dates(examples=500))
    again = dates.load(Dates(examples=500))
    texts = dates.generate(500)
    assert sorted(data.texts["train"].source + data.texts["test"].source) == sorted(texts.source)
    assert data.texts == again.texts
    assert (len(data.train[0].source), len(data.held_out["test"].source)) == (450, 50)
    assert data.train[0].source.shape == (450, 29) and data.train[0].target.shape == (450, 11)
    np.testing.assert_array_equal(data.train[0].source, again.train[0].source)
    train = set(data.texts["train"].source)
    assert data.seen["test"].tolist() == [source in train for source in data.texts["test"].source]
    config = dates.fixed_width.GeneratedConfig(name="generated_500", examples=500)
    plain = store.prepare_builder(dates.DateConversion, config).as_data_source("test")
    assert plain[0]["source"].decode() == data.texts["test"].source[0]


def test_text_in_and_text_out():
    data = dates.load(Dates(examples=500))
    source, length = encode_sources(data, ["1/2/84"])
    assert source.shape == (1, 29) and length.tolist() == [29]
    assert "".join(data.source_vocabulary.decode(source[0])) == "1/2/84".ljust(29)
    assert decode_targets(data, data.held_out["test"].target[:3, 1:]) == data.texts["test"].target[:3]
    with pytest.raises(InputError, match="'%' 'é' not in the vocabulary of 59"):
        encode_sources(data, ["1%é"])
    with pytest.raises(InputError, match="at most 29 characters"):
        encode_sources(data, ["1" * 30])


def test_a_published_file_is_read_from_its_path(tmp_path):
    texts = dates.generate(60)
    path = tmp_path / "date.txt"
    path.write_text("".join(f"{source}_{target}\n" for source, target in zip(*texts)))
    data = dates.load(Dates(path=str(path), reverse_source=True))
    assert len(data.train[0].source) == 54 and len(data.held_out["test"].source) == 6
    assert "".join(data.source_vocabulary.decode(data.train[0].source[0]))[::-1] == data.texts["train"].source[0]
    with pytest.raises(InputError, match="no date file at"):
        dates.load(Dates(path=str(path) + "x"))
    with pytest.raises(InputError, match="--data.examples must be between 10 and"):
        dates.load(Dates(examples=3))


def test_validation_dates_are_not_trained_on():
    whole, parted = (dates.load(Dates(examples=200, validation=count)) for count in (0, 30))
    assert list(whole.held_out) == ["test"] and list(parted.held_out) == ["valid", "test"]
    assert [len(parted.texts[name].source) for name in ("train", "valid", "test")] == [150, 30, 20]
    joined = [parted.texts["train"].source + parted.texts["valid"].source, parted.texts["test"].source]
    assert joined == [whole.texts["train"].source, whole.texts["test"].source]
    assert {"train_pairs": 150, "valid_pairs": 30, "test_pairs": 20}.items() <= parted.facts.items()
    assert len(parted.seen["valid"]) == 30
    with pytest.raises(InputError, match="--data.validation .* 180; got 180"):
        dates.load(Dates(examples=200, validation=180))


def test_the_first_and_the_last_day_are_drawn(monkeypatch):
    monkeypatch.setattr(dates, "LAST", dates.FIRST + timedelta(days=1))
    assert {*dates.generate(40).target} == {"1970-01-01", "1970-01-02"}
