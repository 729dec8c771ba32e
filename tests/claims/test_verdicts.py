"""Verdicts decided by hand: no word says more than the comparison carries."""

from math import hypot

import numpy as np
import pytest

from attention_jax.claims import intervals
from attention_jax.claims.intervals import wilson_interval
from attention_jax.claims.verdicts import caveats, judge, value_interval, value_text, verdict_with_caveats
from attention_jax.config import Claim
from attention_jax.errors import InputError

COMMITTED = {"environment": {"commit": "0" * 40}}


def run(value, variant="", seed=0, metric="test.bleu", history=()):
    return COMMITTED | {"variant": variant, "seed": seed, "metrics": {metric: value}, "history": list(history)}


def claim(kind="aim", **options):
    """A claim about BLEU with a published 39; a measurement where there is no bound."""
    bounded = {"at_least", "at_most"} & options.keys()
    kind = kind if bounded else "measurement"
    fields = {"text": "a claim", "metric": "test.bleu", "published": 39.0, "source": "a paper, table 1", "kind": kind}
    return Claim(**fields | ({"differs": "another corpus"} if kind == "other protocol" else {}) | options)


@pytest.mark.parametrize("kind", ["exact", "order", "aim"])
@pytest.mark.parametrize("value, verdict", [(38.0, "holds"), (37.99, "missed"), (50.0, "holds"), (np.nan, "missed")])
def test_what_has_no_peer_holds_or_is_missed(kind, value, verdict):
    assert judge(claim(kind, at_least=38.0), [run(value)])[1] == verdict


@pytest.mark.parametrize(
    "value, verdict", [(33.0, "missed"), (36.0, "worse"), (38.0, "near"), (39.5, "near"), (45.0, "better")]
)
def test_other_protocol_is_never_reproduced(value, verdict):
    assert judge(claim("other protocol", at_least=34.0), [run(value)])[1] == verdict, "39 +- 1.95"
    three = [run(value, seed=seed) for seed in range(3)]
    assert judge(claim("other protocol", at_least=34.0, spread=(38.5, 39.5)), three)[1] == verdict
    assert judge(claim("other protocol", at_least=34.0), [run(np.nan)])[1] == "missed"


@pytest.mark.parametrize("metric", ["valid.loss", "test.perplexity", "test.error", "test.bits_per_sequence"])
@pytest.mark.parametrize("bounds", [{"at_most": 60.0}, {"at_least": 20.0}, {"at_least": 20.0, "at_most": 60.0}])
@pytest.mark.parametrize("value, verdict", [(30.0, "better"), (39.0, "near"), (50.0, "worse")])
def test_lower_loss_is_better_whatever_its_bounds(metric, bounds, value, verdict):
    assert judge(claim("other protocol", metric=metric, **bounds), [run(value, metric=metric)])[1] == verdict


def test_lower_is_better_with_only_an_upper_bound():
    share = claim("other protocol", metric="harmful_share", published=0.4, at_most=0.9)
    assert [judge(share, [run(x, metric="harmful_share")])[1] for x in (0.2, 0.8)] == ["better", "worse"]


def test_the_spread_of_another_protocol_is_near():
    wide = claim("other protocol", metric="valid.loss", published=1.73, spread=(1.22, 2.66), at_most=3.0)
    verdicts = [judge(wide, [run(x, metric="valid.loss")])[1] for x in (1.2, 1.3, 2.6, 2.7)]
    assert verdicts == ["better", "near", "near", "worse"]


@pytest.mark.parametrize(
    "value, verdict",
    [(35.0, "missed"), (36.5, "worse"), (37.05, "reproduced"), (40.95, "reproduced"), (41.0, "better")],
)
def test_same_protocol_is_reproduced_within_5_percent(value, verdict):
    assert judge(claim("same protocol", at_least=36.0), [run(value)])[1] == verdict, "39 +- 1.95"


def test_source_spread_wider_than_5_percent_counts():
    assert judge(claim("same protocol", at_least=30.0, spread=(34.0, 39.5)), [run(34.5)])[1] == "reproduced"
    assert judge(claim("same protocol", at_least=30.0, spread=(34.0, 39.5)), [run(33.5)])[1] == "worse"
    between = claim("same protocol", at_least=30.0, spread=(31.0, 32.0))
    assert [judge(between, [run(value)])[1] for value in (31.5, 35.0, 38.0)] == ["reproduced", "worse", "reproduced"]


@pytest.mark.parametrize(
    "seeds, verdict",
    [
        ((39.6, 39.7, 39.8), "beaten"),
        ((39.5, 39.7, 39.8), "reproduced"),  # as good as the source's best is not better
        ((39.6, 39.7), "reproduced"),  # two seeds say nothing about our noise
    ],
)
def test_beaten_is_beyond_the_noise_of_both_sides(seeds, verdict):
    runs = [run(value, seed=seed) for seed, value in enumerate(seeds)]
    spread = claim("same protocol", at_least=38.0, spread=(38.5, 39.5))
    assert judge(spread, runs)[1] == verdict
    unknown = claim("same protocol", at_least=38.0)
    assert judge(unknown, runs)[1] == "reproduced", "the noise of the source is not known"
    losses = [run(-value, seed=seed) for seed, value in enumerate(seeds)]
    down = claim("same protocol", published=-39.0, at_most=-38.0, spread=(-39.5, -38.5))
    assert judge(down, losses)[1] == verdict


def test_sampling_noise_counts_against_beaten():
    same = claim("same protocol", metric="test.accuracy", published=0.9985, at_least=0.998, spread=(0.9976, 0.9994))
    runs = [run(0.9996, seed=seed, metric="test.accuracy") for seed in range(3)]
    assert judge(same, runs)[1] == "beaten"
    counted = [run_ | {"facts": {"test_images": 5_000}} for run_ in runs]
    assert judge(same, counted)[1] == "reproduced", "2 of 5,000 wrong against 3 is no difference"


def test_a_number_without_a_bound_is_measured():
    assert judge(claim(), [run(3.0)]) == (3.0, "measured")


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"kind": "reproduced", "at_least": 1.0}, "reproduced"),
        ({"kind": "measurement", "at_least": 1.0}, "bounds"),
        ({"kind": "aim"}, "bounds"),
        ({"kind": "same protocol", "published": None, "at_least": 1.0}, "published"),
        ({"kind": "other protocol", "at_least": 1.0}, "differs"),
        ({"kind": "measurement", "best": True, "epoch": 2}, "more than one of"),
        ({"kind": "measurement", "also": ("b",), "last": 2}, "more than one of"),
        ({"kind": "measurement", "metric": "test_2017.bleu", "best": True}, "best epoch of test_2017.bleu"),
    ],
)
def test_claim_of_unfitting_kind_is_rejected(fields, words):
    with pytest.raises(InputError, match=words):
        Claim(**{"text": "x", "metric": "m", "published": 1.0, "source": "s"} | fields)


@pytest.mark.parametrize("needed, value", [(1, 1.0), (2, 2.0), (3, 9.0)])
def test_claim_counting_seeds_judges_the_nth_best(needed, value):
    runs = [run(x, seed=seed, metric="test.error") for seed, x in enumerate((2.0, 9.0, 1.0))]
    counted = claim(metric="test.error", at_most=2.5, seeds_needed=needed)
    assert judge(counted, runs) == (value, "holds" if value <= 2.5 else "missed")
    assert judge(counted, runs[: needed - 1])[1] == "not run"


@pytest.mark.parametrize(
    ("errors", "value"), [((3.0, np.nan, 0.5, 0.6), 0.6), ((np.nan, 3.0, 0.5), 3.0), ((np.nan, 0.5, np.nan), np.nan)]
)
def test_nan_seed_ranks_worst(errors, value):
    runs = [run(x, seed=seed, metric="test.error") for seed, x in enumerate(errors)]
    actual, verdict = judge(claim(metric="test.error", at_most=2.5, seeds_needed=2), runs)
    np.testing.assert_equal(actual, value)
    assert verdict == ("holds" if value <= 2.5 else "missed")


def test_the_median_over_seeds_is_judged():
    runs = [run(38.5, seed=0), run(39.0, seed=1), run(39.2, seed=2)]
    assert judge(claim(at_least=38.0), runs) == (39.0, "holds")


def test_only_the_variant_counts():
    runs = [run(10.0), run(39.0, variant="feeding")]
    assert judge(claim(at_least=38.0, variant="feeding"), runs) == (39.0, "holds")
    assert judge(claim(at_least=38.0), runs) == (10.0, "missed")
    assert judge(claim(at_least=38.0, variant="none"), runs) == (None, "not run")


def test_order_is_judged_by_paired_seeds():
    runs = [
        run(10.0, seed=0),
        run(30.0, seed=1),
        run(12.0, "feeding", seed=0),
        run(31.0, "feeding", seed=1),
        run(9.0, "feeding", seed=2),
    ]
    assert judge(claim(variant="feeding", minus="", at_least=0.0), runs) == (1.5, "holds")
    assert judge(claim(variant="", minus="feeding", at_least=0.0), runs) == (-1.5, "missed")
    assert judge(claim(variant="feeding", minus="", at_most=0.0), runs) == (1.5, "missed")
    assert judge(claim(variant="feeding", minus="none", at_least=0.0), runs) == (None, "not run")


def test_epoch_and_best_come_from_the_history():
    history = [{"epoch": 1, "valid.loss": 3.0, "test.bleu": 1.0, "valid.bleu": 2.0}, {"epoch": 2, "valid.loss": 1.5}]
    history += [{"epoch": 3, "valid.loss": 2.0, "test.bleu": 9.0, "valid.bleu": 8.0}]
    runs = [run(2.0, metric="valid.loss", history=history)]
    assert judge(claim(metric="valid.loss", best=True), runs)[0] == 1.5
    assert (
        judge(claim(metric="valid.loss", best=True, at_least=1.0, at_most=2.0), runs)[0] == 1.5
    )  # a loss, whatever its bounds
    assert judge(claim(metric="valid.bleu", best=True), runs)[0] == 8.0
    assert judge(claim(metric="test.bleu", epoch=1), runs)[0] == 1.0
    assert judge(claim(metric="test.bleu", epoch=2), runs) == (None, "not run")
    assert judge(claim(metric="valid.loss"), runs)[0] == 2.0


def test_difference_of_best_epochs_takes_both_bests():
    curve = lambda *values: {"history": [{"epoch": i, "valid.accuracy": value} for i, value in enumerate(values, 1)]}
    runs = [run(0.0, **curve(0.1, 0.5)), run(0.0, "wide", **curve(0.1, 0.9, float("nan")))]
    gain = claim(metric="valid.accuracy", best=True, variant="wide", minus="", at_most=0.01)
    value, verdict = judge(gain, runs)
    assert value == pytest.approx(0.4) and verdict == "missed"


def test_claim_of_several_metrics_judges_their_mean():
    first = {"valid.bleu": 30.0, "valid.bleu_low": 27.0, "valid.bleu_high": 33.0}
    second = {"test.bleu": 36.0, "test.bleu_low": 32.0, "test.bleu_high": 40.0}
    runs = [run(30.0, metric="valid.bleu") | {"metrics": first | second}]
    both = claim(metric="valid.bleu", also=("test.bleu",), at_least=32.0)
    assert judge(both, runs) == (33.0, "undecided"), "32 is within the interval"
    assert judge(claim(metric="valid.bleu", also=("test.bleu",), at_least=30.0), runs) == (33.0, "holds")
    assert value_interval(both, runs) == (30.5, 35.5, "bootstrap"), "5 = hypot(3, 4) of the sum"
    assert judge(claim(metric="valid.bleu", also=("test_2017.bleu",)), runs) == (None, "not run")
    assert value_interval(claim(metric="valid.bleu", also=("valid.bleu_low",)), runs) is None, "one has no interval"


def training_run(value, seed=0, metric="test.bleu", **metrics):
    trained_run = run(value, seed=seed, metric=metric) | {"steps": 5, "facts": {"test_images": 10_000}}
    return trained_run | {"metrics": trained_run["metrics"] | metrics}


def test_interval_stays_on_the_metric_scale():
    run = {"metrics": {"valid.bleu": 99.0, "valid.bleu_low": 97.0, "valid.bleu_high": 100.1}}
    assert intervals.sampling_interval("valid.bleu", 99.0, run)[:2] == (97.0, 100.0)
    around = intervals.Interval(-0.2, 1.3, "3 seeds")
    assert intervals.clip_to_scale(around, "test.exact_match", 0.9)[:2] == (0.0, 1.0)
    assert intervals.clip_to_scale(around, "test.loss", 0.9) == around
    assert intervals.clip_to_scale(around, "my.accuracy", 55.0) == around, "in percent"


BOOTSTRAP = {"test.bleu_low": 37.5, "test.bleu_high": 40.0}


@pytest.mark.parametrize(
    "at_least, words",
    [
        (39.0, "undecided (one seed, within noise)"),
        (41.0, "missed (one seed)"),
        (38.0, "undecided (one seed, within noise)"),
        (37.0, "holds (one seed)"),
    ],
)
def test_bound_inside_single_seed_interval_is_undecided(at_least, words):
    bound, runs = claim(at_least=at_least), [training_run(38.7, **BOOTSTRAP)]
    assert verdict_with_caveats(bound, runs) == words and judge(bound, runs)[1] == words.partition(" ")[0]
    assert value_text(bound, runs) == "38.7 (37.5-40, bootstrap)"
    assert verdict_with_caveats(claim(), runs) == "measured"


def test_seeds_that_disagree_leave_a_claim_undecided():
    assert (
        verdict_with_caveats(claim(at_least=38.0), [run(39.0)]) == "holds" and value_text(claim(), [run(39.0)]) == "39"
    )
    seeds = [training_run(37.0), training_run(39.0, 1), training_run(40.0, 2)]
    assert verdict_with_caveats(claim(at_least=38.0), seeds) == "undecided (seeds disagree)"
    assert verdict_with_caveats(claim(at_least=39.5), seeds) == "undecided (seeds disagree)"
    inside = [training_run(value, seed) for seed, value in enumerate((0.0, 5.0, 10.0, 11.0))]
    assert verdict_with_caveats(claim(at_least=4.0, at_most=6.0), inside) == "undecided (seeds disagree)", (
        "seed 1 meets it"
    )
    apart = [training_run(value, seed) for seed, value in enumerate((1.0, 9.0))]
    assert verdict_with_caveats(claim(at_least=4.0, at_most=6.0), apart) == "undecided (seeds disagree)", (
        "no seed meets it"
    )
    ended = [training_run(39.0), training_run(39.5, 1), training_run(39.2, 2) | {"diverged": "the loss is nan"}]
    assert verdict_with_caveats(claim(at_least=38.0), ended) == "undecided (seeds disagree)", (
        "a diverged seed is a miss"
    )
    same = claim("same protocol", at_least=38.0)
    assert judge(same, seeds)[1] == "undecided", "it is not reproduced"
    assert (
        verdict_with_caveats(claim(at_least=37.0), seeds) == "holds"
        and value_text(claim(), seeds) == "39 (37-40, 3 seeds)"
    )
    assert verdict_with_caveats(claim(at_least=38.0, seeds_needed=2), seeds) == "holds", (
        "how many have to is in the claim"
    )


def test_late_bound_and_missing_commit_are_caveats():
    assert caveats(claim(at_least=1.0, after="the runs of 2026-11-20"), [run(39.0)]) == ["bound set after a result"]
    assert caveats(claim(at_least=1.0), [run(39.0), run(38.0, seed=1) | {"environment": {"commit": None}}]) == [
        "no commit"
    ]
    other_run = training_run(38.0) | {"variant": "other", "environment": {}}
    assert caveats(claim(at_least=1.0), [run(39.0), other_run]) == [], "its runs are not judged here"
    study = run(39.0, history=[{"epoch": 1, "valid.loss": 1.0}])
    assert caveats(claim(at_least=1.0), [study]) == ["one seed"], "a study that trains has a history"
    diverged = run(0.0) | {"diverged": "the loss is nan"}
    assert verdict_with_caveats(claim(at_least=1.0), [diverged]) == "missed (one seed)"


def test_fractions_and_their_differences_have_intervals():
    accuracy = claim(metric="test.accuracy", at_least=0.92)
    runs = [training_run(0.9196, metric="test.accuracy")]
    assert value_text(accuracy, runs) == "0.9196 (0.9141-0.9248, 10,000 examples)"
    assert verdict_with_caveats(accuracy, runs) == "undecided (one seed, within noise)"
    narrow = claim(metric="test.accuracy", at_least=0.92, at_most=0.921)
    assert verdict_with_caveats(narrow, runs) == "undecided (one seed, within noise)", (
        "the interval has both bounds in it"
    )
    assert (
        verdict_with_caveats(claim(metric="test.accuracy", at_most=0.92), runs) == "undecided (one seed, within noise)"
    )
    assert verdict_with_caveats(claim(metric="test.accuracy", at_least=0.93), runs) == "missed (one seed)"
    runs.append(training_run(0.9196, metric="test.accuracy") | {"variant": "other"})
    low, high = wilson_interval(0.9196, 10_000)
    half = hypot(0.9196 - low, high - 0.9196)
    assert value_interval(claim(metric="test.accuracy", variant="other", minus=""), runs)[:2] == pytest.approx(
        (-half, half)
    )
    loss = training_run(0.5, metric="test.loss")
    assert value_text(claim(metric="test.loss"), [loss]) == "0.5", "a loss is no share"


def test_lower_loss_is_better_between_two_bounds():
    """Two bounds do not say which way is better, so the name of the metric does."""
    loss = claim("same protocol", metric="test.loss", published=1.0, at_least=0.5, at_most=1.2, spread=(0.97, 1.03))
    runs = [run(value, seed=seed, metric="test.loss") for seed, value in enumerate((0.8, 0.7, 0.9))]
    assert judge(loss, runs) == (0.8, "beaten")
    first = claim(metric="test.loss", at_least=0.5, at_most=1.2, seeds_needed=1)
    assert judge(first, runs) == (0.7, "holds")
    noisy = [run_ | {"metrics": run_["metrics"] | {"test.loss_low": 0.6, "test.loss_high": 0.98}} for run_ in runs]
    assert judge(loss, noisy) == (0.8, "better"), "with other test examples the loss might be the source's"


def test_seed_within_source_spread_is_no_disagreement():
    """The bound is for the median of ten, of which single seeds scatter as the source's do."""
    seeds = [run(value, seed=seed) for seed, value in enumerate((38.9, 39.0, 39.1, 40.2))]
    bounds = {"at_least": 38.5, "at_most": 39.5}
    assert judge(claim("same protocol", spread=(37.5, 40.5), **bounds), seeds)[1] == "reproduced"
    assert judge(claim("same protocol", spread=(37.5, 40.0), **bounds), seeds)[1] == "undecided"
    beyond = [run(value, seed=seed) for seed, value in enumerate((39.0, 39.9, 40.0))]
    assert judge(claim("same protocol", spread=(37.5, 40.5), **bounds), beyond)[1] == "undecided", "one seed meets it"
