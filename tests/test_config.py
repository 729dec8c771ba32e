"""Configurations: changed, checked, written and read back; and every experiment's own."""

import dataclasses
import importlib
import json
import sys

import pytest

from attention_jax import InputError, catalogue, config as configs, train_run

CONFIG = configs.Config("x", configs.Dates(), configs.LuongSeq2seq(), decode=configs.Decode())


def test_replace_reaches_nested_fields_and_leaves_the_original():
    changed = configs.replace(CONFIG, **{"model.hidden_size": 3, "train.seed": 7})
    assert (changed.model.hidden_size, changed.train.seed, CONFIG.model.hidden_size) == (3, 7, 256)
    assert configs.differences(CONFIG, changed) == {"model.hidden_size": (256, 3), "train.seed": (0, 7)}
    with pytest.raises(ValueError, match="hiden"):
        configs.replace(CONFIG, **{"model.hiden": 3})


@pytest.mark.parametrize(
    "change",
    [
        {"model.hidden_size": 0},
        {"optim.learning_rate": float("nan")},
        {"train.label_smoothing": 1.0},
        {"train.patience": -1},
        {"optim.b1": 1.0},
        {"model": configs.Vit(heads=0)},
        {"model": configs.ResNet(widths=(8, -4))},
        {"model": configs.Transformer(width=0)},
        {"model": configs.Vit(stochastic_depth=1.5)},
        {"model": configs.NTM(shifts=0)},
        {"data": configs.Shakespeare(overlap=0)},
        {"model": configs.Vit(layers=0)},
        {"model": configs.Transformer(encoder_layers=0)},
        {"model": configs.Transformer(decoder_layers=0)},
        {"train.batch_size": 0},
        {"train.batch_size": 2**31},
        {"train.seed": 2**32},
        {"model.hidden_size": "large"},
        {"model.hidden_size": 2.5},
        {"model.hidden_size": True},
        {"data.reverse_source": 1},
        {"data.path": None},
        {"data.path": "caf\udce9"},
        {"model": configs.ResNet(widths=8)},
        {"model": configs.ResNet(widths=(8, "wide"))},
        {"data": configs.Corpus(languages=("en",))},
    ],
)
def test_numbers_are_checked_by_their_names(change):
    with pytest.raises(InputError, match="^--" + next(iter(change)).replace("_", "-") + ".* must "):
        configs.validate(configs.replace(CONFIG, **change))


def test_a_classifier_of_texts_may_have_no_layers_and_a_seed_32_bits():
    configs.validate(configs.replace(CONFIG, model=configs.TextClassifier(layers=0), **{"train.seed": 2**32 - 1}))


@pytest.mark.parametrize("part", ["name", "data", "model", "optim", "train", "decode"])
def test_a_part_of_another_kind_is_an_error(part):
    with pytest.raises(InputError, match=part):
        configs.replace(CONFIG, **{part: CONFIG})


@pytest.mark.parametrize("option, value", [("train.batch_size", 0), ("train.seed", 2**70), ("model.hidden_size", -4)])
def test_a_configuration_made_in_python_is_checked_before_anything_is_made(tmp_path, option, value):
    with pytest.raises(InputError, match=option.replace("_", "-")):
        train_run(configs.replace(CONFIG, **{option: value}), tmp_path / "x" / "r")
    assert not list(tmp_path.iterdir())


def test_a_misspelt_choice_is_an_error_from_python_too():
    with pytest.raises(InputError, match="NTM.controller must be one of 'lstm', 'feedforward'; got 'ltsm'"):
        configs.NTM(controller="ltsm")
    with pytest.raises(InputError, match="Vit.pool"):
        configs.replace(configs.Config("x", None, configs.Vit()), **{"model.pool": "avg"})


OWN = """
from dataclasses import dataclass
from attention_jax.config import DataOptions

@dataclass(frozen=True)
class Words(DataOptions):
    letters: int = 3
"""


def test_options_of_ones_own_are_written_by_their_place_and_imported_from_there(tmp_path, monkeypatch):
    (tmp_path / "own_words.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    own = importlib.import_module("own_words")
    written = json.loads(json.dumps(configs.to_json(configs.Config("x", own.Words(letters=4), None))))
    assert written["data"] == {"type": "own_words:Words", "letters": 4}
    monkeypatch.delitem(configs.Options.kinds, "own_words:Words")
    monkeypatch.delitem(sys.modules, "own_words")  # as in a fresh process
    assert configs.from_json(written).data.letters == 4
    for place in ("own_words:Words.letters", "own_words:Nothing", "nowhere.words:Words", "math:sqrt", "Words"):
        with pytest.raises(ValueError, match=place):
            configs.from_json({"type": place})


@pytest.mark.parametrize("name", catalogue.names())
def test_every_experiment_is_complete(name):
    experiment = catalogue.load_experiment(name)
    variants = experiment.variants()
    for config in [experiment.config(), experiment.smoke(), *variants.values(), *experiment.presets().values()]:
        assert config.name == name
        configs.validate(config)
        assert configs.from_json(json.loads(json.dumps(configs.to_json(config)))) == config
    assert experiment.claim and all(experiment.about(what) for what in ("Source", "Data", "Command", "Cost"))
    assert experiment.about("Chapter") in catalogue.CHAPTERS
    assert "launch.py" in experiment.about("Command")
    for claim in experiment.claims:
        assert isinstance(claim, configs.Claim) and claim.source
        assert claim.variant in variants, f"{claim.variant!r} is no variant"
        assert claim.minus is None or claim.minus in variants, f"{claim.minus!r} is no variant"
    for option in experiment.sweep():  # studies have none
        value = experiment.config()
        for part in option.split("."):
            assert part in {f.name for f in dataclasses.fields(value)}, f"{option} is no option"
            value = getattr(value, part)
