"""The rule of verdicts: cases by hand, and how often it is wrong and sees a difference, as docs/reproduce.md says."""

import math
import re
from pathlib import Path

import numpy as np
import pytest

from attention_jax.claims.rule import Sample, judge_number, judge_order, resolution, sample_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reproduce.md"


def test_resolution_against_one_number_is_a_prediction_interval():
    """t(2) = 4.3027; the runs 1, 2, 3 have a deviation of 1."""
    assert resolution(sample_of([1.0, 2.0, 3.0]), Sample(5.0, 0.0, 1)) == pytest.approx(
        4.3027 * math.sqrt(4 / 3), rel=1e-4
    )


def test_resolution_pools_both_sides():
    """t(4) = 2.7764; the pooled variance of (1, 2, 3) and (0, 3, 6) is (2 + 18) / 4."""
    pooled = resolution(sample_of([1.0, 2.0, 3.0]), sample_of([0.0, 3.0, 6.0]))
    assert pooled == pytest.approx(2.7764 * math.sqrt(5.0) * math.sqrt(2 / 3), rel=1e-4)


def test_one_run_has_the_spread_of_the_source_or_none():
    assert resolution(Sample(1.0, 0.0, 1), Sample(2.0, 0.0, 1)) is None
    assert resolution(Sample(1.0, 0.0, 1), sample_of([1.0, 2.0, 3.0])) == pytest.approx(
        4.3027 * math.sqrt(4 / 3), rel=1e-4
    )


@pytest.mark.parametrize(
    "difference, half, verdict",
    [
        (5.0, 5.0, "reproduced"), (-5.0, 5.1, "consistent"), (20.0, 20.0, "consistent"), (0.0, 20.1, "open"),
        (2.0, 1.9, "near"), (-2.0, 1.9, "near"), (2.1, 1.9, "differs"), (0.0, 0.0, "reproduced"),
        (0.0, None, "one run"), (math.nan, None, "differs"), (math.inf, math.nan, "differs"),
    ],
)  # fmt: skip
def test_number_is_judged_by_difference_and_resolution(difference, half, verdict):
    assert judge_number(difference, half) == verdict


@pytest.mark.parametrize(
    "interval, verdict",
    [((0.1, 2.0), "same sign"), ((-2.0, -0.1), "opposite"), ((-0.1, 2.0), "open"), ((0.0, 0.0), "open"),
     ((math.nan, math.nan), "open"), (None, "one run")],
)  # fmt: skip
def test_order_needs_an_interval_without_zero(interval, verdict):
    assert judge_order(interval, 1) == verdict
    assert judge_order(None if interval is None else tuple(-end for end in interval), -1) == verdict


def rejection_rates(n: int, m: int, shifts: tuple[float, ...]) -> list[float]:
    """The shares of 40,000 claims with |d| > r for normal runs of one spread, whose means differ by `shifts` of it."""
    rng = np.random.default_rng(0)
    draw = lambda count: rng.normal(size=(40_000, count))
    deviation = lambda runs: runs.std(axis=1, ddof=1) if runs.shape[1] > 1 else 0.0
    values, source = draw(n), draw(m)
    half = resolution(Sample(0.0, deviation(values), n), Sample(0.0, deviation(source), m))
    difference = values.mean(axis=1) - source.mean(axis=1)
    return [float(np.mean(abs(difference + shift) > half)) for shift in shifts]


RUNS = (2, 3, 5, 8, 16)


def test_page_has_the_simulated_error_and_power():
    """Equal distributions are called near or different in 5 % of the claims, whatever the numbers of runs."""
    row = re.compile(r"^\| (\d+) \| (\d+) % \| (\d+) % \| (\d+) % \| (\d+) % \|$", re.MULTILINE)
    stated = {int(n): [int(share) for share in shares] for n, *shares in row.findall(PAGE.read_text(encoding="utf-8"))}
    assert tuple(stated) == RUNS
    for n in RUNS:
        (wrong, *of_number), (wrong_of_eight, *of_eight) = (rejection_rates(n, m, (0.0, 2.0, 4.0)) for m in (1, 8))
        assert wrong == pytest.approx(0.05, abs=0.004) and wrong_of_eight == pytest.approx(0.05, abs=0.004)
        assert [100 * share for share in (*of_number, *of_eight)] == pytest.approx(stated[n], abs=1.0)
