"""Reproducing an experiment: what ended is kept, what differs is done anew, what was measured is recorded."""

import json
import types

import pytest

from attention_jax import InputError, config as configs, ledger, runs
from attention_jax.report.tables import judge


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """An experiment whose study counts its calls and measures its seed."""
    calls = []

    def study(config, directory):
        calls.append(config.train.seed)
        return {"test.error": config.train.seed + config.optim.learning_rate}

    config = configs.Config("toy", configs.Dates(), configs.LuongSeq2seq())
    claim = configs.Claim("error", "test.error", 1.0, "hand", at_most=1.5, beaten=0.5)
    module = types.SimpleNamespace(
        config=lambda: config, smoke=lambda: config, study=study, SEEDS=3, CLAIMS=(claim,), calls=calls
    )
    monkeypatch.setattr(ledger, "load", lambda name: module)
    monkeypatch.setattr(ledger, "RESULTS", tmp_path / "results")
    return module


def reproduce(tmp_path, rate=0.25, arguments=(), scale="full", variant=""):
    override = lambda c: configs.replace(c, **{"optim.learning_rate": rate})
    return ledger.reproduce("toy", override, variant, None, scale, tmp_path / "runs", list(arguments))


def test_every_seed_is_run_once_and_recorded_with_its_command_but_not_its_place(toy, tmp_path):
    done = reproduce(tmp_path, arguments=["--data.path", "/somewhere/date.txt.gz", "--root", "/elsewhere"])
    assert [run["metrics"]["test.error"] for run in done] == [0.25, 1.25, 2.25] and toy.calls == [0, 1, 2]
    reproduce(tmp_path)
    assert toy.calls == [0, 1, 2], "what had ended was run again"
    text = (tmp_path / "results" / "toy.json").read_text()
    assert [run["seed"] for run in json.loads(text)["runs"]] == [0, 1, 2]
    assert "somewhere" not in text and "elsewhere" not in text
    assert judge(toy.CLAIMS[0], done) == (1.25, "reproduced")


def test_other_options_are_another_run_and_the_old_one_is_kept(toy, tmp_path):
    reproduce(tmp_path)
    assert [run["metrics"]["test.error"] for run in reproduce(tmp_path, rate=0.5)] == [0.5, 1.5, 2.5]
    assert len(list((tmp_path / "runs" / "full" / "toy").iterdir())) == 6


def test_smoke_runs_record_nothing(toy, tmp_path):
    assert len(reproduce(tmp_path, scale="smoke")) == 1
    assert not (tmp_path / "results").exists()


def test_one_variant_may_be_chosen(toy, tmp_path):
    toy.variants = lambda: {
        "small": toy.config(),
        "large": configs.replace(toy.config(), **{"optim.learning_rate": 1.0}),
    }
    assert {run["variant"] for run in reproduce(tmp_path, variant="large")} == {"large"}
    with pytest.raises(InputError, match="--variant must be one of 'small', 'large' for toy, got 'huge'"):
        reproduce(tmp_path, variant="huge")


def test_the_figure_of_an_experiment_compares_the_variants_that_have_ended(toy, tmp_path):
    drawn = []
    toy.variants = lambda: {name: toy.config() for name in ("small", "large", "huge")}
    toy.figure = lambda directories, path: drawn.append((list(directories), path))
    reproduce(tmp_path, scale="smoke")
    reproduce(tmp_path, variant="large")
    reproduce(tmp_path, variant="small")
    assert drawn == [(found, tmp_path / "results" / "toy.png") for found in (["large"], ["small", "large"])]


def test_a_run_directory_is_used_once(toy, tmp_path):
    config = toy.config()
    runs.start(config, tmp_path / "a", study=toy.study)
    with pytest.raises(InputError, match="already holds a run"):
        runs.start(config, tmp_path / "a", study=toy.study)
    with pytest.raises(InputError, match="there is none"):
        runs.start(config, tmp_path / "b", study=toy.study, resume=True)
    assert runs.fresh_directory("toy", tmp_path) == tmp_path / "toy" / "001"
    (tmp_path / "toy" / "041").mkdir(parents=True)
    assert runs.fresh_directory("toy", tmp_path) == tmp_path / "toy" / "042"


def test_a_damaged_configuration_is_one_clear_error(tmp_path):
    (tmp_path / "config.json").write_text('{"type": "Confi')
    with pytest.raises(InputError, match="config.json is damaged"):
        runs.read_config(tmp_path)
    (tmp_path / "config.json").write_text('{"type": "Config", "name": "x", "speed": 3}')
    with pytest.raises(InputError, match="speed"):
        runs.read_config(tmp_path)
