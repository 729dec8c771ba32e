"""The cost of each experiment, and the list that shows it."""

import re

import pytest

from attention_jax.claims import catalog, cost, listing
from attention_jax.claims.record import recorded_runs
from attention_jax.config import replace

EXPERIMENTS = [catalog.load_experiment(name) for name in catalog.names()]
NOT_RUN = ("transformer_wmt14", "vit_i1k_s16")


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda experiment: experiment.name)
def test_the_cost_is_the_smallest_recorded_seconds_of_every_variant_times_the_seeds(experiment):
    if experiment.name in NOT_RUN:
        assert experiment.minutes is None and experiment.about("Cost").startswith("not run")
        return
    runs = [run for run in recorded_runs(experiment.name, experiment.results) if "seconds" in run]
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


def test_a_run_is_expected_to_take_the_least_that_its_variant_took():
    [grokking] = [one for one in EXPERIMENTS if one.name == "grokking"]
    runs = recorded_runs("grokking")
    for name, config in grokking.variants().items():
        least = min(run["seconds"] for run in runs if run["variant"] == name)
        assert cost.expected_seconds(grokking, replace(config, **{"train.seed": 77})) == least
        assert cost.expected_seconds(grokking, replace(config, **{"train.total_epochs": 1})) is None
    [unrun] = [one for one in EXPERIMENTS if one.name == "vit_i1k_s16"]
    assert cost.expected_seconds(unrun, unrun.config()) is None


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
def test_the_list_can_be_of_a_chapter_or_a_word(word, expected):
    found = {one.name for one in listing.selected(EXPERIMENTS, word)}
    assert expected <= found and len(found) < 20


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_list_fits_into_the_terminal(width):
    text = listing.listing(EXPERIMENTS, width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width and all(one.name in text for one in EXPERIMENTS)
    [row] = [line for line in lines if line.startswith("date_luong ")]
    assert row.split()[-4:] == ["2", "of", "2", "met"] and "Luong" in row
    assert ("50,000 date conversions" in row) == (width >= 100)
