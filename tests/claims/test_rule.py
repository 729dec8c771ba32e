"""The rule of verdicts: cases by hand, and what no change of the rule may bend."""

import math

import numpy as np
import pytest

from attention_jax.claims.rule import difference_interval, judge_number, judge_order, margin, runs_needed

EIGHT = [9.0, 9.5, 9.8, 10.0, 10.1, 10.2, 10.5, 11.0]


def test_interval_of_one_number_is_order_statistics():
    """The bootstrap median of five runs is the least of them with a chance of 0.058: the interval is their range."""
    assert difference_interval([1.0, 2.0, 4.0, 8.0, 16.0], [2.0]) == (-1.0, 14.0)


def test_interval_covers_both_sides_noise():
    printed, known_runs = difference_interval(EIGHT, [10.0]), difference_interval(EIGHT, EIGHT)
    assert known_runs[0] < printed[0] < 0 < printed[1] < known_runs[1]
    assert difference_interval(EIGHT, EIGHT) == known_runs, "the same runs have the same interval"


def test_interval_holds_true_difference_nineteen_times_of_twenty():
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=11), rng.normal(size=8)) for _ in range(100)]
    covered = sum(low <= 0 <= high for low, high in (difference_interval(*pair) for pair in pairs))
    assert covered >= 91


@pytest.mark.parametrize("shift, verdict", [(0.0, "agree"), (0.55, "undecided"), (3.0, "differ"), (-3.0, "differ")])
def test_number_is_judged_by_its_whole_interval(shift, verdict):
    values = [10 + shift + noise for noise in (-0.1, -0.05, -0.02, 0.0, 0.01, 0.03, 0.06, 0.1)]
    assert judge_number(values, [9.9, 10.0, 10.1], margin=0.5, needed=8) == verdict


def test_wide_interval_neither_agrees_nor_differs():
    assert judge_number([0.0, 2.0, 5.0, 9.0, 11.0, 15.0, 18.0, 20.0], [10.0], margin=1.0, needed=8) == "undecided"


def test_too_few_runs_never_agree_but_may_differ():
    assert judge_number([10.0] * 7, [10.0], margin=0.5, needed=8) == "undecided"
    assert judge_number([10.0] * 5, [10.0], margin=0.5, needed=5) == "agree"
    assert judge_number([20.0] * 3, [10.0], margin=0.5, needed=8) == "differ"
    assert judge_number([20.0] * 2, [10.0], margin=0.5, needed=8) == "undecided"
    assert judge_number([], [10.0], margin=0.5, needed=8) == "not run"


def test_computation_needs_one_run():
    assert judge_number([10.0], [10.1], margin=0.5, needed=1) == "agree"
    assert judge_number([20.0], [10.1], margin=0.5, needed=1) == "differ"
    assert judge_order([1.0], 1, needed=1) == "same sign" and judge_order([1.0], 1, needed=8) == "undecided"


def test_diverged_runs_are_worse_than_any_number():
    assert judge_number([math.inf] * 7 + [10.0], [10.0], margin=0.5, needed=8) == "differ"
    assert judge_number([math.inf] + [10.0] * 7, [10.0], margin=0.5, needed=8) == "agree", "the median is that of seven"
    assert judge_number([math.inf] * 3 + [10.0] * 5, [10.0], margin=0.5, needed=8) == "undecided"


@pytest.mark.parametrize(
    "differences, verdict",
    [
        ((1.0, 2.0, 0.1), "same sign"),
        ((-1.0, -2.0, -0.1), "opposite"),
        ((1.0, 2.0, -0.1), "undecided"),
        ((), "not run"),
    ],
)
def test_order_needs_the_sign_of_every_run(differences, verdict):
    assert judge_order(differences, 1, needed=8) == verdict
    assert judge_order([-value for value in differences], -1, needed=8) == verdict
    assert judge_order([1.0, 2.0, 0.0], 1, needed=8) == "undecided", "zero has no sign"


def test_margin_comes_from_the_source_alone():
    assert margin(10.0) == pytest.approx(0.2) and margin(10.0, (9.0, 11.0)) == pytest.approx(0.2), "two runs: no spread"
    assert margin(10.0, (9.0, 10.0, 11.0)) == 1.0 and margin(-10.0, deviation=0.3) == 0.3
    assert margin(15.0, rounding=1.0) == 1.0
    assert [runs_needed(seconds) for seconds in (None, 3599.0, 3600.0)] == [1, 8, 5]
