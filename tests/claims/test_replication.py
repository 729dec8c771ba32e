"""A replication runs what is registered, once, and leaves to others what they are at work on."""

import dataclasses
import math
import re

import pytest
from toy_experiment import CONFIG, toy

from attention_jax.claims import catalog, record, replication, verdicts
from attention_jax.claims.check import LocalSettings
from attention_jax.claims.record import Reproduction
from attention_jax.config import Claim
from attention_jax.errors import Diverged, InputError
from attention_jax.files import directory_lock, read_json, write_json

OVERRIDE = lambda config, words: config


@pytest.fixture
def experiment(tmp_path, monkeypatch):
    """A toy of two variants whose study gives its seed; its registration asks for seeds 100 and 101 of "a"."""
    experiment = toy(
        tmp_path / "results",
        variants=lambda: {"a": CONFIG, "b": CONFIG},
        study=lambda config, directory: {"test.error": config.train.seed},
    )
    monkeypatch.setattr(replication.catalog, "load_experiment", lambda name: experiment)
    monkeypatch.setattr(replication.provenance, "code_differs", lambda commit: False)
    row = {"experiment": "toy", "variant": "a", "first_seed": 100, "seeds": 2}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    return experiment


def numbers_on_record(experiment) -> list[tuple]:
    runs = record.load_recorded_runs("toy", experiment.results)
    return [(run["variant"], run["seed"], run["metrics"]["test.error"]) for run in runs]


def test_the_registered_seeds_are_run_and_recorded_once(experiment, tmp_path, capsys):
    request = Reproduction(root=str(tmp_path / "runs"))
    assert record.load_registered_seeds(tmp_path / "rows.json") == {("toy", "a"): frozenset({100, 101})}
    replication.replicate(tmp_path / "rows.json", request, (), OVERRIDE, LocalSettings())
    assert numbers_on_record(experiment) == [("a", 100, 100), ("a", 101, 101)]
    first = record.load_recorded_runs("toy", experiment.results)[0]
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    capsys.readouterr()
    replication.replicate(tmp_path / "rows.json", request, (), OVERRIDE, LocalSettings())
    assert capsys.readouterr().out == "", "what is recorded is not run again"
    fresh = Reproduction(root=str(tmp_path / "elsewhere"), record=False)
    replication.replicate(tmp_path / "rows.json", fresh, ("another",), OVERRIDE, LocalSettings())
    assert not (tmp_path / "elsewhere").exists(), "no row of another experiment is run"


def test_row_of_unnamed_variant_runs_it_alone(tmp_path, monkeypatch):
    two = toy(
        tmp_path / "results", variants=lambda: {"": CONFIG, "b": CONFIG}, study=lambda *request: {"test.error": 1}
    )
    monkeypatch.setattr(replication.catalog, "load_experiment", lambda name: two)
    monkeypatch.setattr(replication.provenance, "code_differs", lambda commit: False)
    row = {"experiment": "toy", "variant": "", "first_seed": 100, "seeds": 1}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    replication.replicate(
        tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings()
    )
    assert numbers_on_record(two) == [("", 100, 1)]


def test_only_the_registered_commit_is_recorded(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(replication.provenance, "code_differs", lambda commit: commit == "c")
    with pytest.raises(InputError, match=r"rows\.json froze the code, c, .*--no-record"):
        replication.replicate(tmp_path / "rows.json", Reproduction(root=str(tmp_path)), (), OVERRIDE, LocalSettings())
    unrecorded = Reproduction(root=str(tmp_path / "runs"), record=False)
    replication.replicate(tmp_path / "rows.json", unrecorded, (), OVERRIDE, LocalSettings())
    assert (tmp_path / "runs" / "full" / "toy" / "a-seed101").is_dir() and not numbers_on_record(experiment)


def test_run_locked_by_another_process_is_skipped(experiment, tmp_path, capsys):
    busy = tmp_path / "runs" / "full" / "toy" / "a-seed100"
    busy.mkdir(parents=True)
    with directory_lock(busy):
        replication.replicate(
            tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings()
        )
    assert numbers_on_record(experiment) == [("a", 101, 101)] and "not recorded" in capsys.readouterr().out


def test_a_run_that_diverges_is_recorded_and_misses(experiment, tmp_path, monkeypatch, capsys):
    def study(config, directory):
        if config.train.seed == 100:
            raise Diverged(7, math.nan)
        return {"test.error": 0.5}

    diverging = dataclasses.replace(experiment, study=study)
    monkeypatch.setattr(replication.catalog, "load_experiment", lambda name: diverging)
    unrecorded = Reproduction(root=str(tmp_path / "other"), record=False)
    replication.replicate(tmp_path / "rows.json", unrecorded, (), OVERRIDE, LocalSettings())
    assert "diverged" in capsys.readouterr().out and not record.load_recorded_runs("toy", experiment.results)
    for _ in range(2):
        replication.replicate(
            tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings()
        )
    assert capsys.readouterr().out.count("diverged") == 1, "what is recorded is not run again"
    [first, second] = runs = record.load_recorded_runs("toy", experiment.results)
    assert "step 7" in first["diverged"] and second["metrics"] == {"test.error": 0.5}
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    claim = Claim("error", "test.error", None, "s", kind="aim", variant="a", at_most=1.0)
    assert verdicts.judge(claim, [second])[1] == "holds" and verdicts.judge(claim, runs)[1] == "undecided"
    for ordered_runs in (runs, runs[::-1]):
        assert verdicts.value_text(claim, ordered_runs) == "nan (0.5-0.5, 2 seeds, 1 diverged)"
        assert "seeds disagree" in verdicts.caveats(claim, ordered_runs)
    assert verdicts.value_text(claim, [first, first | {"seed": 101}]) == "nan (nan-nan, 2 seeds, 2 diverged)"
    best = dataclasses.replace(claim, seeds_needed=1)
    assert verdicts.judge(best, runs)[1] == "holds", "the best of the two seeds is the one that ended"
    assert record.runs_without_divergence(experiment) == [second], "figures and --check leave a diverged run out"


NOT_REGISTERED = {  # too expensive here, or never run (docs/replication.md)
    ("cct_cifar10", "200 epochs"),
    ("multi30k_deen_conv", ""),
    ("multi30k_ende_tiny", ""),
    ("transformer_wmt14", "base"),
    ("transformer_wmt14", "big"),
    ("vit_i1k_s16", ""),
}


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_bounds_are_registered_and_runs_at_frozen_commits(name):
    experiment, registered = catalog.load_experiment(name), record.load_registered_seeds()
    bounds = [claim for claim in experiment.claims if claim.has_bounds]
    needed = {(name, variant) for claim in bounds for variant in {claim.variant, claim.minus} - {None}}
    assert needed - registered.keys() <= NOT_REGISTERED
    assert {
        variant for registered_name, variant in registered if registered_name == name
    } <= experiment.variants().keys()
    for path in record.REGISTRATIONS:
        frozen, registered = read_json(path)["commit"], record.load_registered_seeds(path)
        for run in record.load_recorded_runs(name):
            if run["seed"] in registered.get((name, run["variant"]), ()):
                assert run["environment"]["commit"] == frozen and run["environment"]["changed"] == []


def test_no_variant_is_registered_twice():
    """A claim's registered seeds are those of one file."""
    assert not set.intersection(*(set(record.load_registered_seeds(path)) for path in record.REGISTRATIONS))


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_runs_since_the_freeze_have_their_origin(name):
    for run in record.load_recorded_runs(name):
        if run["date"] >= "2026-11-24":
            then = run["environment"]
            assert then["commit"] and then["changed"] == [] and re.fullmatch("[0-9a-f]{64}", run["experiment_sha256"])
            assert then["processor"] and then["instructions"] and then["cores"] and then["jax"]


def test_pending_row_is_registered_but_not_finished(tmp_path):
    row = {"experiment": "x", "variant": "", "first_seed": 3, "seeds": 2}
    write_json(tmp_path / "rows.json", {"rows": [row, row | {"variant": "y", "pending": "no room"}]})
    assert record.load_registered_seeds(tmp_path / "rows.json") == {("x", ""): {3, 4}, ("x", "y"): {3, 4}}
    assert record.load_finished_variants(tmp_path / "rows.json") == {("x", "")}


def test_missing_registration_raises_input_error(tmp_path):
    with pytest.raises(InputError, match="--rows"):
        replication.replicate(tmp_path / "none.json", Reproduction(), (), OVERRIDE, LocalSettings())
