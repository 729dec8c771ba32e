"""Configurations: changed, checked, written and read back; and every experiment's own."""

import ast
import dataclasses
import importlib
import json
import re
import sys

import jax
import pytest

from attention_jax import catalog, config as configs, train_run
from attention_jax.cli import command_options
from attention_jax.config.fields import field_docs
from attention_jax.config.models import MASKS, SCORES
from attention_jax.errors import InputError
from experiments.papers.options import ResNetConfig

CONFIG = configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig(), decode=configs.Decode())


def test_replace_reaches_nested_fields_and_leaves_the_original():
    changed = configs.replace(CONFIG, **{"model.hidden_size": 3, "train.seed": 7})
    assert (changed.model.hidden_size, changed.train.seed, CONFIG.model.hidden_size) == (3, 7, 256)
    assert configs.differences(CONFIG, changed) == {"model.hidden_size": (256, 3), "train.seed": (0, 7)}
    with pytest.raises(ValueError, match="hiden"):
        configs.replace(CONFIG, **{"model.hiden": 3})


@pytest.mark.parametrize(
    "kind, values",
    [
        (configs.LuongSeq2seqConfig, {"hidden_size": 0}),
        (configs.Optim, {"learning_rate": float("nan")}),
        (configs.Optim, {"learning_rate": 0.0}),
        (configs.Optim, {"clip_norm": float("inf")}),
        (configs.Train, {"label_smoothing": 1.0}),
        (configs.Train, {"patience": -1}),
        (configs.Optim, {"b1": 1.0}),
        (configs.ViTConfig, {"num_heads": 0}),
        (ResNetConfig, {"widths": (8, -4)}),
        (configs.TransformerConfig, {"hidden_size": 0}),
        (configs.ViTConfig, {"stochastic_depth": 1.5}),
        (configs.NTMConfig, {"num_shifts": 0}),
        (configs.Shakespeare, {"overlap": 0}),
        (configs.ViTConfig, {"num_layers": 0}),
        (configs.TransformerConfig, {"num_encoder_layers": 0}),
        (configs.TransformerConfig, {"num_decoder_layers": 0}),
        (configs.Train, {"batch_size": 0}),
        (configs.Train, {"batch_size": 2**31}),
        (configs.Train, {"seed": 2**32}),
        (configs.Decode, {"beam_size": 0}),
        (configs.LuongSeq2seqConfig, {"hidden_size": "large"}),
        (configs.LuongSeq2seqConfig, {"hidden_size": 2.5}),
        (configs.LuongSeq2seqConfig, {"hidden_size": True}),
        (configs.Dates, {"reverse_source": 1}),
        (configs.Dates, {"path": None}),
        (configs.Dates, {"path": "caf\udce9"}),
        (ResNetConfig, {"widths": 8}),
        (ResNetConfig, {"widths": (8, "wide")}),
        (configs.Corpus, {"languages": ("en",)}),
        (configs.NTMConfig, {"controller": "ltsm"}),
        (configs.BahdanauConfig, {"score": "dott"}),
        (configs.Decode, {"max_length": 10**9}),
    ],
)
def test_invalid_value_is_rejected_at_construction(kind, values):
    [(name, value)] = values.items()
    option = f"--{kind.section}.{name.replace('_', '-')}"
    value_text = str(value[-1] if isinstance(value, tuple) else value)
    with pytest.raises(InputError, match=f"^{option} must ") as error:
        kind(**values)
    assert value_text in str(error.value) or ascii(value_text) in str(error.value)


def test_the_bound_that_is_violated_is_named():
    for values, bound in ({"at_least": 3}, "at least 3"), ({"above": 2}, "above 2"), ({"below": 1}, "below 1"):
        kind = dataclasses.make_dataclass(
            "Bounded", [("x", float, configs.option(2.0, **values))], bases=(configs.Options,)
        )
        with pytest.raises(InputError, match=f"--x must be {bound}, got 2.0"):
            kind()
    with pytest.raises(TypeError, match="atleast"):
        configs.option(1, atleast=1)


def test_zero_layers_and_32_bit_seeds_are_valid():
    configs.TextClassifierConfig(num_layers=0)
    configs.Train(seed=2**32 - 1)


def test_a_traced_value_is_not_checked():
    rate = lambda kind, name: lambda x: getattr(kind(**{name: x}), name) * 2.0
    assert jax.jit(rate(configs.ViTConfig, "stochastic_depth"))(0.25) == 0.5
    with pytest.raises(InputError, match="--model.stochastic-depth must be below 1, got 1.5"):
        rate(configs.ViTConfig, "stochastic_depth")(1.5)


@pytest.mark.parametrize("field", ["name", "data", "model", "optim", "train", "decode"])
def test_a_part_of_another_kind_is_an_error(field):
    with pytest.raises(InputError, match=field):
        configs.replace(CONFIG, **{field: CONFIG})


@pytest.mark.parametrize("option, value", [("train.batch_size", 0), ("train.seed", 2**70), ("model.hidden_size", -4)])
def test_python_config_is_checked_before_creating_files(tmp_path, option, value):
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')} .*{value}"):
        train_run(configs.replace(CONFIG, **{option: value}), tmp_path / "x" / "r")
    assert not list(tmp_path.iterdir())


def test_misspelled_choice_is_error_from_python():
    with pytest.raises(InputError, match="--model.controller must be one of 'lstm', 'feedforward'; got 'ltsm'; .*lstm"):
        configs.NTMConfig(controller="ltsm")
    with pytest.raises(InputError, match="--model.pool"):
        configs.replace(configs.Config("x", None, configs.ViTConfig()), **{"model.pool": "avg"})


def test_smoke_config_shrinks_sizes():
    large = configs.Config("x", configs.Images(), configs.ViTConfig(num_heads=1), train=configs.Train(max_steps=0))
    small = configs.smoke_config(large)
    assert (small.data.examples, small.train.max_steps, small.train.total_epochs) == (1000, 2, 1)
    assert (small.model.num_heads, small.model.num_kv_heads, small.model.hidden_size) == (1, 0, 8)


COMMANDS = [
    kind
    for kind in vars(command_options).values()
    if dataclasses.is_dataclass(kind) and kind.__module__ == command_options.__name__
]
OPTIONS = [kind for name, kind in configs.Options.kinds.items() if ":" not in name and dataclasses.is_dataclass(kind)]


@pytest.mark.parametrize("kind", [*COMMANDS, *OPTIONS], ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_every_option_has_a_help_text(kind):
    texts = field_docs(kind)
    assert kind.__doc__ and [f.name for f in dataclasses.fields(kind) if len(texts.get(f.name, "").split()) < 2] == []


@pytest.mark.parametrize("file", sorted((catalog.ROOT.parent / "benchmarks").glob("[!_]*.py")), ids=lambda f: f.stem)
def test_every_benchmark_option_has_help_text(file):
    main = next(node for node in ast.parse(file.read_text()).body if getattr(node, "name", "") == "main")
    texts = ast.get_docstring(main).partition("Args:")[2]
    assert [a.arg for a in main.args.args if not re.search(rf"^    {a.arg}: \w+", texts, re.MULTILINE)] == []


def test_no_dataclass_of_options_is_missed():
    assert {"Train", "Reproduce", "Sweep"} <= {kind.__name__ for kind in COMMANDS} and len(COMMANDS) > 10
    assert {"Config", "Optim", "Train", "Decode", "TransformerConfig", "Dates"} <= {kind.__name__ for kind in OPTIONS}


OWN = """
from dataclasses import dataclass
from attention_jax.config import DataOptions

@dataclass(frozen=True)
class Words(DataOptions):
    letters: int = 3
"""


def test_custom_options_are_stored_by_import_path(tmp_path, monkeypatch):
    (tmp_path / "own_words.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("own_words")
    written = json.loads(json.dumps(configs.to_json(configs.Config("x", module.Words(letters=4), None))))
    assert written["data"] == {"type": "own_words:Words", "letters": 4}
    monkeypatch.delitem(configs.Options.kinds, "own_words:Words")
    monkeypatch.delitem(sys.modules, "own_words")  # as in a fresh process
    assert configs.from_json(written).data.letters == 4
    for place in ("own_words:Words.letters", "own_words:Nothing", "nowhere.words:Words", "math:sqrt", "Words"):
        with pytest.raises(ValueError, match=place):
            configs.from_json({"type": place})


@pytest.mark.parametrize("value", ["soft_cap('a')", "soft_cap(1, 2)", "soft_cap([3])", "soft_cap(", "window()"])
def test_a_built_in_part_takes_one_number(value):
    names = {**SCORES, **MASKS}
    assert configs.build_from_name("soft_cap(30)", names).cap == 30
    with pytest.raises(InputError, match=re.escape(value)):
        configs.build_from_name(value, names)


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_every_experiment_is_complete(name):
    experiment = catalog.load_experiment(name)
    variants = experiment.variants()
    for config in [experiment.config(), experiment.smoke(), *variants.values(), *experiment.presets().values()]:
        assert config.name == name
        assert configs.from_json(json.loads(json.dumps(configs.to_json(config)))) == config
    assert experiment.claim and all(experiment.about(heading) for heading in ("Source", "Data", "Command", "Cost"))
    assert experiment.about("Chapter") in catalog.CHAPTERS
    assert "launch.py" in experiment.about("Command")
    assert all(claim.source for claim in experiment.claims)
    for option in experiment.sweep():  # studies have none
        value = experiment.config()
        for field in option.split("."):
            assert field in {f.name for f in dataclasses.fields(value)}, f"{option} is no option"
            value = getattr(value, field)
