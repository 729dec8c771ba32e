"""The number of a claim, which runs count, and the verdict that the rule gives; numbers by hand."""

import math

import pytest
from toy_experiment import toy

from attention_jax.claims import record
from attention_jax.claims.verdicts import (
    JudgedClaim,
    difference_text,
    is_met,
    judge_claims,
    median_value,
    our_text,
    run_value,
    source_text,
    value_text,
    values_by_seed,
)
from attention_jax.declarations import Claim, Threshold


def run(value, variant="", seed=0, metric="test.bleu", **fields):
    return {"variant": variant, "seed": seed, "metrics": {metric: value}, "history": [], "steps": 5} | fields


def claim(**fields) -> Claim:
    """A claim about BLEU with a published 40."""
    return Claim(**{"text": "a claim", "metric": "test.bleu", "published": 40.0, "source": "table 1"} | fields)


def order(sign=1, **fields) -> Claim:
    return claim(**{"published": None, "sign": sign, "variant": "b", "minus": ""} | fields)


def seeds(*values, **fields):
    return [run(value, seed=seed, **fields) for seed, value in enumerate(values)]


def row_of(claim, runs) -> JudgedClaim:
    return JudgedClaim("toy", claim, runs)


def test_epoch_best_and_last_come_from_the_history():
    """The mean of several metrics is of the final evaluation, and needs all."""
    history = [{"epoch": 1, "valid.loss": 3.0, "valid.bleu": 2.0}, {"epoch": 2, "valid.loss": 1.5}]
    history += [{"epoch": 3, "valid.loss": 2.0, "valid.bleu": 8.0}]
    recorded = run(2.5, metric="valid.loss", history=history)
    value = lambda **fields: run_value(claim(**fields), recorded)
    assert value(metric="valid.loss") == 2.5 and value(metric="valid.loss", epoch=1) == 3.0
    assert value(metric="valid.loss", best=True) == 1.5 and value(metric="valid.bleu", best=True) == 8.0
    assert value(metric="valid.loss", last=2) == 1.75 and value(metric="valid.loss", last=4) is None
    assert value(metric="valid.bleu", epoch=2) is None and value(metric="test.chrf") is None
    recorded["metrics"]["test.loss"] = 3.5
    assert value(metric="valid.loss", also=("test.loss",)) == 3.0
    assert value(metric="valid.loss", also=("test_2017.loss",)) is None


def test_difference_is_taken_seed_by_seed():
    runs = [*seeds(10.0, 30.0), *seeds(12.0, 31.0, 9.0, variant="b")]
    assert values_by_seed(order(), runs) == {0: 2.0, 1: 1.0}
    assert values_by_seed(order(variant="", minus="b"), runs) == {0: -2.0, 1: -1.0}


def test_difference_is_in_percent_of_the_published_number():
    """Runs 39, 40, 41 against one 40: t(2) sqrt(4/3) = 4.968, which is 12.4 % of 40."""
    row = row_of(claim(), seeds(38.0, 39.0, 40.0))
    assert row.difference == pytest.approx(-2.5) and row.resolution == pytest.approx(12.42, abs=0.01)
    assert (row.verdict, difference_text(row)) == ("consistent", "-2.5 +- 12.4 %")
    assert (source_text(row), our_text(row)) == ("40", "39 +- 1 (3)")


def test_fraction_has_points_and_the_binomial_interval():
    """Wilson's interval of 90 % of 1,000 is 3.7 points wide; the seeds alone would give 0.3."""
    accuracy = claim(metric="test.accuracy", published=0.9)
    runs = seeds(0.9, 0.9, 0.9001, metric="test.accuracy", facts={"test_images": 1000})
    row = row_of(accuracy, runs)
    assert row.resolution == pytest.approx(1.86, abs=0.01) and difference_text(row) == "+0.0 +- 1.9 points"
    assert row_of(accuracy, seeds(0.9, 0.9, 0.9001, metric="test.accuracy")).resolution < 0.1, "examples are not known"


def test_resolution_is_at_least_bootstrap_and_rounding():
    bootstrap = {"metrics": {"test.bleu": 40.0, "test.bleu_low": 39.0, "test.bleu_high": 41.0}}
    assert row_of(claim(), seeds(40.0, 40.0, **bootstrap)).resolution == pytest.approx(2.5)
    assert row_of(claim(rounding=0.4), seeds(40.0, 40.0)).resolution == pytest.approx(1.0)


def test_all_runs_of_the_source_count_and_so_does_a_printed_mean():
    """t(3) = 3.182, pooled variance (0 + 2) / 3, sqrt(1/2 + 1/3): 2.372, of 40 5.93 %."""
    runs = row_of(claim(runs=(39.0, 40.0, 41.0)), seeds(40.0, 40.0))
    mean = row_of(claim(mean_of=3, deviation=1.0), seeds(40.0, 40.0))
    assert runs.resolution == mean.resolution == pytest.approx(5.93, abs=0.01)
    assert source_text(runs) == source_text(mean) == "40 +- 1 (3)"


def test_counts_have_the_resolution_of_their_rounding():
    count = lambda value: row_of(claim(basis="count", rounding=0.5), seeds(value)).verdict
    assert [count(value) for value in (40.4, 40.6, 41.0)] == ["reproduced", "near", "differs"]


def test_without_runs_or_spread_nothing_is_row_of():
    assert row_of(claim(variant="none"), seeds(40.0)).verdict == "not run"
    assert (
        row_of(claim(), seeds(40.0)).verdict == "one run" and difference_text(row_of(claim(), seeds(42.0))) == "+5.0 %"
    )
    assert row_of(claim(best_of=5), seeds(40.0, 40.0)).verdict == "not judged"


def test_diverged_run_differs_and_leaves_an_order_open():
    diverged = run(0.0, seed=2) | {"diverged": "the loss is nan", "metrics": {}}
    runs = [*seeds(40.0, 40.0), diverged]
    assert row_of(claim(), runs).verdict == "differs" and math.isnan(median_value(claim(), runs))
    assert value_text(claim(), runs) == "nan (40-40, 3 runs, 1 diverged)"
    assert row_of(order(), [*seeds(1.0, 1.1, 1.2, variant="b"), *seeds(0.0, 0.0), diverged]).verdict == "open"


def test_order_is_the_interval_of_paired_differences():
    """Differences 1, 2, 3: 2 +- t(2) / sqrt(3) = 2 +- 2.48 has 0, and 11, 12, 13 have not."""
    baseline = seeds(100.0, 50.0, 0.0)
    of = lambda *values: [*seeds(*values, variant="b"), *baseline]
    assert row_of(order(), of(101.0, 52.0, 3.0)).verdict == "open"
    assert row_of(order(), of(111.0, 62.0, 13.0)).verdict == "same sign"
    assert row_of(order(-1), of(111.0, 62.0, 13.0)).verdict == "opposite"
    assert row_of(order(), of(111.0)).verdict == "one run"
    assert [source_text(row_of(order(sign), [])) for sign in (1, -1)] == ["more", "less"]


def test_study_order_needs_its_whole_interval():
    study = lambda low, high: [run(0.3, metric="gap", metrics={"gap": 0.3, "gap_low": low, "gap_high": high})]
    gap = order(metric="gap", variant="", minus=None)
    assert row_of(gap, study(0.1, 0.5)).verdict == "same sign"
    assert row_of(gap, study(-0.1, 0.5)).verdict == "open"


def test_threshold_is_held_against_the_median():
    bound = Threshold(text="", metric="test.bleu", source="", at_least=38.0, at_most=40.0)
    assert is_met(bound, seeds(30.0, 39.0, 39.5)) and not is_met(bound, seeds(30.0, 30.0, 39.5))
    assert is_met(bound, []) is None and not bound.is_met(math.nan)
    texts = [value_text(bound, seeds(*values)) for values in ((37.0, 39.0, 40.0), (1.0, 1.0), (37.5,), ())]
    assert texts == ["39 (37-40, 3 runs)", "1 (equal for 2 runs)", "37.5", "-"]


def test_all_seeds_of_a_configuration_count_under_any_name(tmp_path):
    experiment = toy(tmp_path, claims=(claim(variant="new"),), former_variants={"old": "new"})
    for recorded in (run(1.0, "new", 0), run(2.0, "old", 5), run(3.0, "old", 6)):
        record.record_run("toy", recorded, tmp_path)
    [row] = judge_claims(experiment)
    assert values_by_seed(row.claim, row.runs) == {0: 1.0, 5: 2.0, 6: 3.0}
