"""The first lines of a run."""

import re
from pathlib import Path

import pytest

from attention_jax import config as configs
from attention_jax.claims import catalog, cost
from attention_jax.runs.header import header

DIRECTORY = Path("runs/x/001")


def test_a_run_begins_with_five_lines():
    config = configs.Config("x", configs.Dates(path="date.txt"), configs.LuongSeq2seqConfig())
    facts = {"source_vocabulary": 87, "train_pairs": 45_000, "test_pairs": 5_000, "test_inputs_also_in_train": 0}
    lines = header(config, DIRECTORY, facts, 207_259, "about 44 seconds").splitlines()
    assert [line.partition(":")[0] for line in lines] == ["training", "parameters", "device", "directory", "time"]
    assert lines[0] == "training:   x, LuongSeq2seq on Dates: train pairs 45,000, test pairs 5,000"
    assert lines[1].endswith(" 207,259") and re.search(r"cpu, \d+ cores|\d+ x ", lines[2])
    assert lines[3].endswith(" runs/x/001") and lines[4].endswith(" about 44 seconds")
    assert "watch runs/x/001 estimates it" in header(config, DIRECTORY, facts, 1, "")


def test_a_computation_has_no_parameters():
    config = configs.Config("x", None, None)
    assert header(config, DIRECTORY, {}, 0, "").splitlines()[0] == "experiment: x"


@pytest.mark.parametrize(
    "data, option, used",
    [
        (configs.Dates(examples=600), "--data.path", "600 generated dates"),
        (configs.Addition(), "--data.path", "50,000 generated sums"),
        (configs.Corpus(examples=2_000), "--data.tsv-file", "2,000 generated date pairs"),
        (configs.LabeledFile(), "--data.tsv-file", "2,000 generated dates in several languages"),
        (configs.TextFile(), "--data.text-file", "the documentation that comes with Python"),
        (configs.Images("own"), "--data.path", "scikit-learn's digits"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_replaces_a_file_that_is_not_given_is_said_first(data, option, used):
    config = configs.Config("x", data, None)
    assert header(config, DIRECTORY, {}, 0, "").splitlines()[0] == f"no {option} given: using {used}"
    given = configs.replace(config, **{option[2:].replace("-", "_"): "file"})
    assert "given" not in header(given, DIRECTORY, {}, 0, "")
    assert option in catalog.user_data(config)


def test_data_that_need_no_file_say_nothing():
    for data in (configs.Images("digits"), configs.Multi30k(), configs.Corpus(), configs.LabeledFile(examples=0)):
        assert data.without_file == ""


def test_the_default_run_is_expected_to_take_less_than_a_minute():
    luong = catalog.load_experiment("date_luong")
    assert cost.duration(cost.expected_seconds(luong, luong.config())) == "about 44 seconds"
