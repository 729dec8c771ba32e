"""The cost of each experiment, and the list that shows it."""

import re

import pytest

from attention_jax.claims import catalog, claim_tables, record
from attention_jax.claims.record import load_recorded_runs
from attention_jax.config import replace

EXPERIMENTS = [catalog.load_experiment(name) for name in catalog.experiment_names()]
NOT_RUN = ("transformer_wmt14", "vit_i1k_s16")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_cost_is_smallest_seconds_times_seeds(experiment):
    if experiment.name in NOT_RUN:
        assert experiment.minutes is None and experiment.about("Cost").startswith("not run")
        return
    runs = [run for run in load_recorded_runs(experiment.name, experiment.results) if "seconds" in run]
    least = [
        min((run["seconds"] for run in runs if run["variant"] == name), default=None) for name in experiment.variants()
    ]
    ran = [seconds for seconds in least if seconds is not None]
    minutes = sum(ran) * experiment.seeds / 60
    assert experiment.minutes >= max(0.9 * minutes, 0.1)
    if len(ran) == len(least):
        assert experiment.minutes <= max(1.1 * minutes, 0.1)


def test_costs_say_nothing_about_other_work():
    for experiment in EXPERIMENTS:
        assert not re.search(r"quiet core|other work|busy|beside them (made|took)|a load", experiment.doc), (
            experiment.name
        )


def test_estimate_is_the_smallest_seconds_of_a_variant():
    [grokking] = [experiment for experiment in EXPERIMENTS if experiment.name == "grokking"]
    runs = load_recorded_runs("grokking")
    for name, config in grokking.variants().items():
        least = min(run["seconds"] for run in runs if run["variant"] == name)
        assert record.estimate_seconds(grokking, replace(config, **{"train.seed": 77})) == least
        assert record.estimate_seconds(grokking, replace(config, **{"train.total_epochs": 1})) is None
    [unrun] = [experiment for experiment in EXPERIMENTS if experiment.name == "vit_i1k_s16"]
    assert record.estimate_seconds(unrun, unrun.config()) is None


@pytest.mark.parametrize(
    "word, expected",
    [
        ("vision", {"vit_digits", "cct_cifar10", "image_size"}),
        ("own data", {"translate_files", "classify_text"}),
        ("cora", {"gat_cora"}),
        ("bahdanau et al. 2015", {"bahdanau_length"}),
        ("TRANSFORMER", {"table3_directions"}),
    ],
)
def test_list_is_filtered_by_chapter_or_word(word, expected):
    names = {experiment.name for experiment in claim_tables.select_experiments(EXPERIMENTS, word)}
    assert expected <= names and len(names) < 20


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_list_fits_into_the_terminal(width):
    text = claim_tables.format_listing(EXPERIMENTS, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and all(experiment.name in text for experiment in EXPERIMENTS)
    [row] = [line for line in lines if line.startswith("date_luong ")]
    assert row.split()[-2:] == ["2", "measured"] and "Luong" in row
    assert ("50,000 date conversions" in row) == (width >= 100)
