"""The number of a claim, which runs count, and the verdict that the rule gives; numbers by hand."""

import dataclasses
import math

import pytest
from toy_experiment import toy

from attention_jax.claims import record, verdicts
from attention_jax.claims.claim import Claim, Threshold
from attention_jax.claims.verdicts import (
    JudgedClaim,
    is_met,
    judge,
    judge_claims,
    median_value,
    present_runs,
    run_value,
    source_text,
    value_text,
    values_by_seed,
    verdict_with_reason,
)
from attention_jax.files import write_json


def run(value, variant="", seed=0, metric="test.bleu", **fields):
    return {"variant": variant, "seed": seed, "metrics": {metric: value}, "history": [], "steps": 5} | fields


def claim(**fields) -> Claim:
    """A claim about BLEU with a published 39."""
    return Claim(**{"text": "a claim", "metric": "test.bleu", "published": 39.0, "source": "table 1"} | fields)


def order(sign=1, **fields) -> Claim:
    return claim(published=None, sign=sign, **fields)


def seeds(*values, **fields):
    return [run(value, seed=seed, **fields) for seed, value in enumerate(values)]


def test_epoch_best_and_last_come_from_the_history():
    history = [{"epoch": 1, "valid.loss": 3.0, "valid.bleu": 2.0}, {"epoch": 2, "valid.loss": 1.5}]
    history += [{"epoch": 3, "valid.loss": 2.0, "valid.bleu": 8.0}]
    recorded = run(2.5, metric="valid.loss", history=history)
    value = lambda **fields: run_value(claim(**fields), recorded)
    assert value(metric="valid.loss") == 2.5 and value(metric="valid.loss", epoch=1) == 3.0
    assert value(metric="valid.loss", best=True) == 1.5 and value(metric="valid.bleu", best=True) == 8.0
    assert value(metric="valid.loss", last=2) == 1.75 and value(metric="valid.loss", last=4) is None
    assert value(metric="valid.bleu", epoch=2) is None and value(metric="test.chrf") is None


def test_mean_of_several_metrics_needs_all():
    recorded = run(30.0, metric="valid.bleu") | {"metrics": {"valid.bleu": 30.0, "test.bleu": 36.0}}
    assert run_value(claim(metric="valid.bleu", also=("test.bleu",)), recorded) == 33.0
    assert run_value(claim(metric="valid.bleu", also=("test_2017.bleu",)), recorded) is None


def test_difference_is_taken_seed_by_seed():
    runs = [*seeds(10.0, 30.0), *seeds(12.0, 31.0, 9.0, variant="feeding")]
    assert values_by_seed(order(variant="feeding", minus=""), runs) == {0: 2.0, 1: 1.0}
    assert values_by_seed(order(variant="", minus="feeding"), runs) == {0: -2.0, 1: -1.0}
    curve = lambda *values: {"history": [{"epoch": i, "valid.accuracy": v} for i, v in enumerate(values, 1)]}
    runs = [run(0.0, **curve(0.1, 0.5)), run(0.0, "wide", **curve(0.1, 0.9, math.nan))]
    gain = order(metric="valid.accuracy", best=True, variant="wide", minus="")
    assert values_by_seed(gain, runs) == {0: pytest.approx(0.4)}


def test_only_the_variant_counts():
    runs = [*seeds(10.0, 10.0, 10.0), *seeds(39.0, 39.1, 39.0, variant="feeding")]
    assert judge(claim(variant="feeding"), runs) == "undecided" and judge(claim(), runs) == "differ"
    assert judge(claim(variant="none"), runs) == "not run" and median_value(claim(variant="none"), runs) is None


@pytest.mark.parametrize("seconds, needed", [(60.0, 8), (4_000.0, 5)])
def test_agreement_needs_runs_by_their_cost(seconds, needed):
    runs = seeds(*[39.0] * needed, seconds=seconds)
    row = lambda runs: JudgedClaim("x", claim(), runs)
    assert verdict_with_reason(row(runs)) == "agree"
    assert verdict_with_reason(row(runs[1:])) == f"undecided ({needed - 1} of {needed} runs)"
    computed = {name: value for name, value in runs[0].items() if name != "steps"}
    assert verdict_with_reason(row([computed])) == "agree", "a computation has no noise of training"


def test_reason_of_undecided_claims_with_enough_runs():
    row = JudgedClaim("x", claim(), seeds(*[30.0, 50.0] * 4))
    assert verdict_with_reason(row) == "undecided (wide interval)"
    differences = [*seeds(1.0, 2.0, 3.0, variant="b"), *seeds(2.0, 1.0, 1.0)]
    row = JudgedClaim("x", order(variant="b", minus=""), differences)
    assert verdict_with_reason(row) == "undecided (signs differ)"
    row = JudgedClaim("x", order(variant="b", minus=""), [run(1.0, "b"), run(0.0)])
    assert verdict_with_reason(row) == "undecided (1 of 3 runs)"


def test_known_runs_of_the_source_set_margin_and_noise():
    runs = seeds(*[40.5] * 8)
    assert judge(claim(), runs) == "differ", "1.5 is more than 2 %"
    spread = claim(runs=(37.0, 38.0, 39.0, 40.0, 41.0))
    assert judge(spread, runs) == "undecided" and judge(spread, seeds(*[39.0] * 8)) == "undecided"
    assert judge(claim(deviation=2.0), runs) == "agree"


def test_diverged_run_is_worst_whatever_is_better():
    diverged = run(0.0, seed=9) | {"diverged": "the loss is nan", "metrics": {}}
    runs = [*seeds(*[39.0] * 7), diverged]
    assert judge(claim(), runs) == "agree" and math.isnan(median_value(claim(), runs))
    assert value_text(claim(), runs) == "nan (39-39, 8 runs, 1 diverged)"
    assert judge(claim(), [*seeds(*[39.0] * 4), *(diverged | {"seed": 10 + n} for n in range(4))]) == "undecided"
    differences = [*seeds(1.0, 1.0, 1.0, variant="b"), *seeds(0.0, 0.0), diverged | {"seed": 2}]
    assert judge(order(variant="b", minus=""), differences) == "undecided", "it has no sign"


def test_computed_order_needs_its_whole_interval():
    computed = {"variant": "", "seed": 0, "history": [], "metrics": {"gap": 0.3, "gap_low": 0.1, "gap_high": 0.5}}
    assert (
        judge(order(metric="gap"), [computed]) == "same sign"
        and judge(order(-1, metric="gap"), [computed]) == "opposite"
    )
    crossing = computed | {"metrics": {"gap": 0.3, "gap_low": -0.1, "gap_high": 0.5}}
    assert judge(order(metric="gap"), [crossing]) == "undecided"


def test_threshold_is_held_against_the_median():
    bound = Threshold(text="", metric="test.bleu", source="", at_least=38.0, at_most=40.0)
    assert is_met(bound, seeds(30.0, 39.0, 39.5)) and not is_met(bound, seeds(30.0, 30.0, 39.5))
    assert is_met(bound, []) is None and not bound.is_met(math.nan)
    assert bound.is_met(38.0) and bound.is_met(40.0) and not bound.is_met(40.1) and not bound.is_met(37.9)


@pytest.fixture
def registration(tmp_path, monkeypatch):
    """Registers seeds 5 and 6 of the variant "old" of the experiment "toy"."""
    row = {"experiment": "toy", "variant": "old", "first_seed": 5, "seeds": 2}
    write_json(tmp_path / "rows.json", {"commit": "c", "rows": [row]})
    monkeypatch.setattr(verdicts, "REGISTRATIONS", (tmp_path / "rows.json",))


def test_all_seeds_of_a_configuration_count_under_any_name(tmp_path, registration):
    experiment = toy(tmp_path, claims=(claim(variant="new"),), former_variants={"old": "new"})
    for recorded in (run(1.0, "new", 0), run(2.0, "old", 5), run(3.0, "old", 6)):
        record.record_run("toy", recorded, tmp_path)
    [row] = judge_claims(experiment)
    assert values_by_seed(row.claim, row.runs) == {0: 1.0, 5: 2.0, 6: 3.0}


def test_incomplete_registration_does_not_count_yet(tmp_path, registration):
    experiment = toy(tmp_path, former_variants={"old": "new"})
    runs = [run(1.0, "new", 0), run(2.0, "old", 5)]
    assert [recorded["seed"] for recorded in present_runs(experiment, runs)] == [0]
    assert [recorded["seed"] for recorded in present_runs(experiment, [*runs, run(3.0, "old", 6)])] == [0, 5, 6]
    other = dataclasses.replace(experiment, name="other")
    assert len(present_runs(other, runs)) == 2, "the row is of another experiment"


def test_texts_say_how_many_runs_there_are():
    assert value_text(claim(), seeds(37.0, 39.0, 40.0)) == "39 (37-40, 3 runs)"
    assert value_text(claim(), seeds(1.0, 1.0)) == "1 (equal for 2 runs)"
    assert value_text(claim(), seeds(37.5)) == "37.5" and value_text(claim(), []) == "-"
    texts = [{"runs": (38.0, 39.0, 41.0)}, {"deviation": 0.5}, {"rounding": 0.5}, {}]
    assert [source_text(claim(**fields)) for fields in texts] == [
        "39 (38-41, 3 runs)",
        "39 +- 0.5",
        "39 (rounded)",
        "39",
    ]
    assert [source_text(order(sign)) for sign in (1, -1)] == ["more", "less"]
