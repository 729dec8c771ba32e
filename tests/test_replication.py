"""A replication runs what is registered, once, and leaves to others what they are at work on."""

import dataclasses
import math

import pytest
from toy_experiment import CONFIG, toy

from attention_jax import Diverged, InputError, ledger, replication
from attention_jax.check import Here
from attention_jax.config import Claim
from attention_jax.files import one_at_a_time, write_json
from attention_jax.ledger import Reproduction
from attention_jax.report import verdicts

OVERRIDE = lambda config, words: config


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A toy of two variants whose study gives its seed; its registration asks for seeds 100 and 101 of "a"."""
    experiment = toy(
        tmp_path / "results",
        variants=lambda: {"a": CONFIG, "b": CONFIG},
        study=lambda config, directory: {"test.error": config.train.seed},
    )
    monkeypatch.setattr(replication.catalogue, "load_experiment", lambda name: experiment)
    row = {"experiment": "toy", "variant": "a", "first_seed": 100, "seeds": 2}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    return experiment


def recorded(experiment) -> list[tuple]:
    runs = ledger.recorded_runs("toy", experiment.results)
    return [(run["variant"], run["seed"], run["metrics"]["test.error"]) for run in runs]


def test_the_registered_seeds_are_run_and_recorded_once(experiment, tmp_path, capsys):
    asked = Reproduction(root=str(tmp_path / "runs"))
    assert replication.registered(tmp_path / "rows.json") == {("toy", "a"): frozenset({100, 101})}
    replication.replicate(tmp_path / "rows.json", asked, (), OVERRIDE, Here())
    assert recorded(experiment) == [("a", 100, 100), ("a", 101, 101)]
    first = ledger.recorded_runs("toy", experiment.results)[0]
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    capsys.readouterr()
    replication.replicate(tmp_path / "rows.json", asked, (), OVERRIDE, Here())
    assert capsys.readouterr().out == "", "what is recorded is not run again"
    replication.replicate(tmp_path / "rows.json", asked, ("another",), OVERRIDE, Here())


def test_a_run_of_another_process_is_left_to_it(experiment, tmp_path, capsys):
    busy = tmp_path / "runs" / "full" / "toy" / "a-seed100"
    busy.mkdir(parents=True)
    with one_at_a_time(busy):
        replication.replicate(tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, Here())
    assert recorded(experiment) == [("a", 101, 101)] and "not recorded" in capsys.readouterr().out


def test_a_run_that_diverges_is_recorded_and_misses(experiment, tmp_path, monkeypatch, capsys):
    def study(config, directory):
        if config.train.seed == 100:
            raise Diverged(7, math.nan)
        return {"test.error": 0.5}

    diverging = dataclasses.replace(experiment, study=study)
    monkeypatch.setattr(replication.catalogue, "load_experiment", lambda name: diverging)
    unrecorded = Reproduction(root=str(tmp_path / "other"), record=False)
    replication.replicate(tmp_path / "rows.json", unrecorded, (), OVERRIDE, Here())
    assert "diverged" in capsys.readouterr().out and not ledger.recorded_runs("toy", experiment.results)
    for _ in range(2):
        replication.replicate(tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, Here())
    assert capsys.readouterr().out.count("diverged") == 1, "what is recorded is not run again"
    [first, second] = runs = ledger.recorded_runs("toy", experiment.results)
    assert "step 7" in first["diverged"] and second["metrics"] == {"test.error": 0.5}
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    claim = Claim("error", "test.error", None, "s", kind="aim", variant="a", at_most=1.0)
    assert verdicts.judge(claim, [second])[1] == "holds" and verdicts.judge(claim, runs)[1] == "missed"
    for shown in (runs, runs[::-1]):
        assert verdicts.ours(claim, shown) == "nan (0.5-0.5, 2 seeds, 1 diverged)"
        assert "seeds disagree" in verdicts.caveats(claim, shown)
    assert verdicts.ours(claim, [first, first | {"seed": 101}]) == "nan (nan-nan, 2 seeds, 2 diverged)"
    best = dataclasses.replace(claim, seeds_needed=1)
    assert verdicts.judge(best, runs)[1] == "holds", "the best of the two seeds is the one that ended"
    assert ledger.ended(experiment) == [second], "figures and --check leave a diverged run out"


def test_a_registration_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="--rows"):
        replication.replicate(tmp_path / "none.json", Reproduction(), (), OVERRIDE, Here())
