"""SCAN: the grammar writes the published commands, and a cutoff keeps the longer ones for the test."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from attention_jax.config import Scan
from attention_jax.data import scan
from attention_jax.errors import InputError

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "data" / "scan"


def test_commands_mean_what_the_paper_says():
    """Examples of figure 1."""
    meanings = {words: " ".join(actions) for words, actions in scan.commands()}
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
    assert published == {words: " ".join(actions) for words, actions in scan.commands()}


@pytest.mark.parametrize("cutoff", [0, 22, 26])
def test_a_cutoff_keeps_longer_commands_for_the_test(cutoff):
    data = scan.load(Scan(cutoff=cutoff))
    train, test = set(data.texts["valid"].source), set(data.texts["test"].source)
    longest = {name: max(len(row.split()) for row in texts.target) for name, texts in data.texts.items()}
    assert not train & test and len(data.texts["valid"].source) == scan.VALIDATE
    assert data.facts["train_pairs"] + data.facts["valid_pairs"] + data.facts["test_pairs"] == 20_910
    if cutoff:
        assert min(len(row.split()) for row in data.texts["test"].target) > cutoff >= longest["valid"]
    else:
        assert data.facts["test_pairs"] == 4_182  # as the published random split


def test_a_split_is_always_the_same():
    length = np.arange(20_910) % 48
    once, again = scan.split_commands(length, 22), scan.split_commands(length, 22)
    assert all(np.array_equal(once[name], again[name]) for name in once)


@pytest.mark.parametrize("cutoff", [-1, 3, 48])
def test_a_cutoff_that_leaves_nothing_is_one_line(cutoff):
    with pytest.raises(InputError, match="--data.cutoff must be (0, or 4 to 47|at least 0).*got"):
        scan.load(Scan(cutoff=cutoff))


def test_a_second_cutoff_divides_the_longer_commands():
    """Lengths just beyond training choose, longer ones judge; what trains and validates stays as it is."""
    lengths = lambda data, split: {len(row.split()) for row in data.texts[split].target}
    once, twice = scan.load(Scan(cutoff=26)), scan.load(Scan(cutoff=26, second_cutoff=30))
    assert list(twice.held_out) == ["valid", "valid_longer", "test_longer"]
    assert lengths(twice, "valid_longer") == {27, 28, 30} and lengths(twice, "test_longer") == {32, 33, 36, 40, 48}
    assert [twice.facts[f"{split}_pairs"] for split in ("valid_longer", "test_longer")] == [1_472, 1_152]
    for split in ("train", "valid"):
        assert once.texts[split] == twice.texts[split]
    longer = twice.texts["valid_longer"].source + twice.texts["test_longer"].source
    assert sorted(once.texts["test"].source) == sorted(longer)


@pytest.mark.parametrize(
    "options", [{"second_cutoff": 30}, {"cutoff": 26, "second_cutoff": 26}, {"cutoff": 26, "second_cutoff": 48}]
)
def test_useless_second_cutoff_is_one_line(options):
    with pytest.raises(InputError, match="--data.second-cutoff"):
        scan.load(Scan(**options))
