"""Configurations: changed, checked, written and read back; and every experiment's own."""

import dataclasses
import importlib
import json
import sys

import pytest

from attention_jax import InputError, catalogue, config as configs

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
    ],
)
def test_numbers_are_checked_by_their_names(change):
    with pytest.raises(InputError, match="^--" + next(iter(change)).replace("_", "-") + ".* must "):
        configs.validate(configs.replace(CONFIG, **change))


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
