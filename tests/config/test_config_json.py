"""A run directory from elsewhere: its config.json is checked when it is read, and runs no code unless it is trusted."""

import json
import sys
from pathlib import Path

import pytest

from attention_jax import config as configs, load_run
from attention_jax.config.options import OneOf, _choices
from attention_jax.errors import InputError
from attention_jax.runs import directory as run_directory, lifecycle, saved
from experiments.papers.options import OF_STUDIES

CONFIG = configs.to_json(configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig(), decode=configs.Decode()))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"data": None}, "data"),
        ({"model": None, "data": 3}, "data"),
        ({"model": CONFIG["data"]}, "model"),
        ({"model": CONFIG["model"] | {"hidden_size": "large"}}, "--model.hidden-size .*'large'"),
        ({"model": CONFIG["model"] | {"hidden_size": -4}}, "--model.hidden-size .*-4"),
        ({"model": CONFIG["model"] | {"hidden_size": None}}, "--model.hidden-size .*None"),
        ({"model": CONFIG["model"] | {"hidden_size": [8]}}, "--model.hidden-size .*8"),
        ({"name": {}}, "name"),
        ({"train": CONFIG["train"] | {"log": "wandb"}}, "--train.log"),
        ({"type": "Train"}, "Train has no field"),
        ({"type": ["Config"]}, "unhashable"),
    ],
)
def test_a_config_with_impossible_values_is_one_line(tmp_path, change, message):
    (tmp_path / "final").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(InputError, match=message) as error:
        load_run(tmp_path).task
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 950 + "1" + "}" * 950, "[]", "null", '"x"', "3"])
def test_malformed_config_json_is_one_line_error(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match="config.json is damaged"):
        run_directory.read_config(tmp_path)


EVIL = """
from dataclasses import dataclass
from pathlib import Path
from attention_jax.config import LuongSeq2seqConfig

Path("executed").touch()

@dataclass(frozen=True)
class Thing(LuongSeq2seqConfig):
    pass
"""


@pytest.mark.parametrize("option", ["name", "schedule"])
def test_untrusted_optimizer_runs_no_code(tmp_path, option):
    values = CONFIG | {"optim": CONFIG["optim"] | {option: "evil_code:thing"}}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(InputError, match="evil_code:thing.*trust_code"):
        run_directory.read_config(tmp_path)
    config = run_directory.read_config(tmp_path, trust_code=True)
    assert (
        getattr(config.optim, option) == "evil_code:thing"
        and run_directory.read_config(tmp_path, like=config) == config
    )


@pytest.mark.parametrize(
    "change", [{"type": "evil_code:Thing"}, {"score": "evil_code:Thing"}, {"score": "evil_code:Thing(3)"}]
)
def test_untrusted_run_runs_no_code(tmp_path, monkeypatch, change):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(configs.Options, "kinds", dict(configs.Options.kinds))
    monkeypatch.delitem(sys.modules, "evil_code", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    Path("evil_code.py").write_text(EVIL)
    (tmp_path / "run" / "final").mkdir(parents=True)
    Path("run/config.json").write_text(json.dumps(CONFIG | {"model": CONFIG["model"] | change}))
    reading = [load_run, saved.load_trained, saved.load_weights, saved.weights_of]
    reading += [lambda run: lifecycle.start(configs.from_json(CONFIG), run, resume=True)]
    for read in reading:
        with pytest.raises(InputError, match="evil_code:Thing.*trust_code"):
            read(tmp_path / "run")
    assert not Path("executed").exists()
    config = load_run(tmp_path / "run", trust_code=True).config
    assert Path("executed").exists() == ("type" in change)
    assert run_directory.read_config(tmp_path / "run", like=config) == config


def test_recorded_names_of_options_of_studies():
    for kind in OF_STUDIES:
        assert configs.from_json({"type": kind.__name__}) == kind()


def test_only_known_config_fields_name_code():
    kinds = [kind for name, kind in configs.Options.kinds.items() if ":" not in name]
    fields = {name for kind in kinds for name, allowed in _choices(kind).items() if isinstance(allowed, OneOf)}
    code_fields = {
        "attention",
        "score",
        "normalizer",
        "head_pool",
        "mask",
        "bias",
        "norm_layer",
        "mlp_layer",
        "position_embedding",
        "rope_scaling",
    }
    assert len(kinds) > 20 and fields == code_fields | {"name", "schedule", "loss"}
