"""A replication runs what is registered, once, and leaves to others what they are at work on."""

import dataclasses
import math
import re
import subprocess

import pytest
from toy_experiment import CONFIG, toy

from attention_jax.claims import catalog, record, verdicts
from attention_jax.claims.claim import Claim
from attention_jax.claims.record import LocalSettings, Reproduction
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
    monkeypatch.setattr(record.catalog, "load_experiment", lambda name: experiment)
    monkeypatch.setattr(record.provenance, "code_differs", lambda commit: False)
    row = {"experiment": "toy", "variant": "a", "first_seed": 100, "seeds": 2}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    return experiment


def load_registered_seeds(*paths) -> dict:
    """The registered seeds of these files by experiment and variant."""
    seeds = {}
    for row in (row for path in paths for row in record.load_rows(path)):
        seeds.setdefault((row["experiment"], row["variant"]), set()).update(record.seeds_of_row(row))
    return seeds


def numbers_on_record(experiment) -> list[tuple]:
    runs = record.load_recorded_runs("toy", experiment.results)
    return [(run["variant"], run["seed"], run["metrics"]["test.error"]) for run in runs]


def test_the_registered_seeds_are_run_and_recorded_once(experiment, tmp_path, capsys):
    request = Reproduction(root=str(tmp_path / "runs"))
    assert load_registered_seeds(tmp_path / "rows.json") == {("toy", "a"): {100, 101}}
    record.replicate(tmp_path / "rows.json", request, (), OVERRIDE, LocalSettings())
    assert numbers_on_record(experiment) == [("a", 100, 100), ("a", 101, 101)]
    first = record.load_recorded_runs("toy", experiment.results)[0]
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    capsys.readouterr()
    record.replicate(tmp_path / "rows.json", request, (), OVERRIDE, LocalSettings())
    assert capsys.readouterr().out == "", "what is recorded is not run again"
    fresh = Reproduction(root=str(tmp_path / "elsewhere"), record=False)
    record.replicate(tmp_path / "rows.json", fresh, ("another",), OVERRIDE, LocalSettings())
    assert not (tmp_path / "elsewhere").exists(), "no row of another experiment is run"


def test_row_of_unnamed_variant_runs_it_alone(tmp_path, monkeypatch):
    two = toy(
        tmp_path / "results", variants=lambda: {"": CONFIG, "b": CONFIG}, study=lambda *request: {"test.error": 1}
    )
    monkeypatch.setattr(record.catalog, "load_experiment", lambda name: two)
    monkeypatch.setattr(record.provenance, "code_differs", lambda commit: False)
    row = {"experiment": "toy", "variant": "", "first_seed": 100, "seeds": 1}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    record.replicate(tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings())
    assert numbers_on_record(two) == [("", 100, 1)]


def test_only_the_registered_commit_is_recorded(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(record.provenance, "code_differs", lambda commit: commit == "c")
    with pytest.raises(InputError, match=r"rows\.json froze the code, c, .*--no-record"):
        record.replicate(tmp_path / "rows.json", Reproduction(root=str(tmp_path)), (), OVERRIDE, LocalSettings())
    unrecorded = Reproduction(root=str(tmp_path / "runs"), record=False)
    record.replicate(tmp_path / "rows.json", unrecorded, (), OVERRIDE, LocalSettings())
    assert (tmp_path / "runs" / "full" / "toy" / "a-seed101").is_dir() and not numbers_on_record(experiment)


def test_run_locked_by_another_process_is_skipped(experiment, tmp_path, capsys):
    busy = tmp_path / "runs" / "full" / "toy" / "a-seed100"
    busy.mkdir(parents=True)
    with directory_lock(busy):
        record.replicate(
            tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings()
        )
    assert numbers_on_record(experiment) == [("a", 101, 101)] and "not recorded" in capsys.readouterr().out


def test_a_run_that_diverges_is_recorded_and_misses(experiment, tmp_path, monkeypatch, capsys):
    def study(config, directory):
        if config.train.seed == 100:
            raise Diverged(7, math.nan)
        return {"test.error": 0.5}

    diverging = dataclasses.replace(experiment, study=study)
    monkeypatch.setattr(record.catalog, "load_experiment", lambda name: diverging)
    unrecorded = Reproduction(root=str(tmp_path / "other"), record=False)
    record.replicate(tmp_path / "rows.json", unrecorded, (), OVERRIDE, LocalSettings())
    assert "diverged" in capsys.readouterr().out and not record.load_recorded_runs("toy", experiment.results)
    for _ in range(2):
        record.replicate(
            tmp_path / "rows.json", Reproduction(root=str(tmp_path / "runs")), (), OVERRIDE, LocalSettings()
        )
    assert capsys.readouterr().out.count("diverged") == 1, "what is recorded is not run again"
    [first, second] = runs = record.load_recorded_runs("toy", experiment.results)
    assert "step 7" in first["diverged"] and second["metrics"] == {"test.error": 0.5}
    assert first["command"] == "python launch.py reproduce toy --variant a --train.seed 100 --seeds 1"
    claim = Claim(text="error", metric="test.error", published=0.5, source="s", variant="a")
    for ordered_runs in (runs, runs[::-1]):
        assert verdicts.value_text(claim, ordered_runs) == "nan (0.5-0.5, 2 runs, 1 diverged)"
    assert verdicts.value_text(claim, [first, first | {"seed": 101}]) == "nan (nan-nan, 2 runs, 2 diverged)"
    assert record.runs_without_divergence(experiment) == [second], "figures and --check leave a diverged run out"


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_registered_variants_exist_and_ran_at_frozen_commits(name):
    experiment = catalog.load_experiment(name)
    names = experiment.variants().keys() | experiment.former_variants.keys()
    for path in record.REGISTRATIONS:
        frozen, registered = read_json(path)["commit"], load_registered_seeds(path)
        assert {variant for registered_name, variant in registered if registered_name == name} <= names
        for run in record.load_recorded_runs(name):
            if run["seed"] in registered.get((name, run["variant"]), ()):
                assert has_code_of(run["environment"]["commit"], frozen) and run["environment"]["changed"] == []


def has_code_of(commit: str, frozen: str) -> bool:
    """Whether a run's commit is the frozen one, or differs from it in registrations and pages alone."""
    if commit == frozen:
        return True
    diff = subprocess.run(
        ["git", "diff", "--name-only", frozen, commit],
        cwd=catalog.ROOT.parent,
        capture_output=True,
        text=True,
        check=True,
    )
    return all(name.startswith("experiments/registered/") or name.endswith(".md") for name in diff.stdout.split())


def test_run_of_other_code_is_not_at_the_frozen_commit():
    """The registration added a file to the commit that it froze; the commit before has other code."""
    registration, frozen = "413e4cdefac652f3cb04418727711efb00e3f8c6", "2351b4c0711e1ad7c1112f04b178b8d0cf1c2c19"
    assert has_code_of(registration, frozen) and not has_code_of(f"{frozen}~1", frozen)


def test_no_seed_is_registered_twice():
    rows = [row for path in record.REGISTRATIONS for row in record.load_rows(path)]
    seeds = [(row["experiment"], row["variant"], seed) for row in rows for seed in record.seeds_of_row(row)]
    assert len(record.REGISTRATIONS) >= 12 and len(seeds) == len(set(seeds))


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_runs_since_the_freeze_have_their_origin(name):
    for run in record.load_recorded_runs(name):
        if run["date"] >= "2026-11-24":
            then = run["environment"]
            assert then["commit"] and then["changed"] == [] and re.fullmatch("[0-9a-f]{64}", run["experiment_sha256"])
            assert then["processor"] and then["instructions"] and then["cores"] and then["jax"]


def test_missing_registration_raises_input_error(tmp_path):
    with pytest.raises(InputError, match="--rows"):
        record.replicate(tmp_path / "none.json", Reproduction(), (), OVERRIDE, LocalSettings())
