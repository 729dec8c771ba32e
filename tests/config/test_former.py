"""Former names in stored configurations, recorded results and import paths still mean what they meant."""

import importlib
import json
import re
from pathlib import Path

import pytest

from attention_jax import config as configs
from attention_jax.config.former import KINDS, MODULES, NAMES, present_path
from attention_jax.config.models import MASKS, MLPS, NORMALIZERS, NORMS, POOLS, SCORES
from attention_jax.config.options import import_object, type_from_name

ROOT = Path(__file__).resolve().parents[2]
PARTS = SCORES | NORMALIZERS | POOLS | MASKS | NORMS | MLPS


def former(path: str) -> list[str]:
    """The import paths that `path` had."""
    file, _, name = path.partition(":")
    old = [was for was, now in MODULES.items() if now == file]
    names = [name, *(was for was, now in NAMES.items() if now == name)]
    return [f"{was}:{former_name}" for was in (file, *old) for former_name in names]


@pytest.mark.parametrize("path", sorted(set(PARTS.values())))
def test_former_import_path_gives_same_object(path):
    assert {import_object(former_path) for former_path in former(path)} == {import_object(path)}


@pytest.mark.parametrize("path", ["attention_jax.ops.normalisers:Softmax", "attention_jax.ops.scores:Epanechikov"])
def test_two_former_paths_by_hand(path):
    assert import_object(path).__name__ in ("Softmax", "Triangular")
    assert present_path("mine.normalisers:Softmax") == "mine.normalisers:Softmax"


@pytest.mark.parametrize("module", MODULES.values())
def test_every_present_module_is_there(module):
    importlib.import_module(module)


def test_every_import_path_in_recorded_results_is_found():
    texts = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "experiments").rglob("*.json"))]
    paths = {path for text in texts for path in re.findall(r"\battention_jax(?:\.\w+)+:\w+", text)}
    assert all(import_object(path) for path in paths)


def test_config_with_former_names_equals_present_one():
    model = configs.ViTConfig(normalizer="sparsemax", score="attention_jax.ops.scores:Gaussian")
    config = configs.Config("x", configs.Citations(neighbors=False), model)
    values = json.loads(json.dumps(configs.to_json(config)))
    values["model"]["type"] = "Vit"
    values["model"]["normaliser"] = values["model"].pop("normalizer")
    values["data"]["neighbours"] = values["data"].pop("neighbors")
    assert configs.from_json(values) == config and not configs.foreign_code(values)


@pytest.mark.parametrize("name", KINDS)
def test_every_former_class_of_options_is_read(name):
    assert type_from_name(name).__name__ == KINDS[name]
