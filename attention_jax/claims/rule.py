"""The rule of verdicts: a number of a source agrees with ours, differs or is undecided; an order has the same sign, the
opposite one, or is undecided.

Numbers. The difference of medians, ours minus the source's, has a 95 % bootstrap interval over the runs of both sides;
a source with a single number counts as it is printed. The margin is fixed by the source alone (`margin`).

* agree: the whole interval lies within the margin, and there are enough runs (`runs_needed`).
* differ: the whole interval lies beyond the margin, with at least three runs.
* undecided: anything else.

Orders. The sign of the difference of two variants is compared run by run, for the same seeds: same sign if all of
at least three runs have the sign of the source, opposite if none has, undecided otherwise.

A computation without training needs one run; if it records an interval over test examples, both ends must have the
sign, too. A run that diverged is worse than every number. There is no exception and no other verdict but "not run".
"""

from collections.abc import Sequence
from statistics import stdev
from typing import Literal

import numpy as np

Verdict = Literal["agree", "differ", "same sign", "opposite", "undecided", "not run"]
SHARE = 0.02
"""The margin, as a share of the published number."""
RUNS, LONG_RUNS, FEWEST = 8, 5, 3
"""The runs that an agreement needs, of minutes and of hours, and those without which nothing is decided."""
LONG = 3_600.0
"""Seconds from which a run takes hours."""
RESAMPLES = 20_000


def margin(published: float, runs: Sequence[float] = (), deviation: float = 0.0, rounding: float = 0.0) -> float:
    """The largest difference at which two numbers agree: 2 % of the published number, or one standard deviation of the
    source's `runs` (of three or more) or the `deviation` that it prints, or the error of its `rounding`, if larger.

    >>> margin(50.0), margin(50.0, (48.0, 50.0, 52.0)), margin(-7.0, rounding=1.0)
    (1.0, 2.0, 1.0)
    """
    return max(SHARE * abs(published), stdev(runs) if len(runs) >= FEWEST else 0.0, deviation, rounding)


def runs_needed(seconds: float | None) -> int:
    """The number of runs that an agreement needs, given the seconds of a training run, or None for a computation.

    >>> runs_needed(None), runs_needed(90.0), runs_needed(5_000.0)
    (1, 8, 5)
    """
    return 1 if seconds is None else LONG_RUNS if seconds >= LONG else RUNS


def difference_interval(values: Sequence[float], source: Sequence[float]) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of median(values) - median(source); `values` may be infinite.

    Always the same for the same runs. With fewer than six runs it is as wide as their range.

    >>> difference_interval([4.0, 5.0, 6.0], [3.0])
    (1.0, 3.0)
    """
    rng = np.random.default_rng(0)
    medians = [
        np.median(rng.choice(np.asarray(runs, float), (RESAMPLES, len(runs))), axis=1) for runs in (values, source)
    ]
    low, high = np.quantile(medians[0] - medians[1], [0.025, 0.975], method="inverted_cdf")
    return float(low), float(high)


def judge_number(values: Sequence[float], source: Sequence[float], margin: float, needed: int) -> Verdict:
    """Judge the numbers of our runs by those of the source.

    `source` has the numbers of its runs, or its single one. NaN, the number of a diverged run, must have been replaced
    by the worst: infinity, or minus infinity where more is better.

    >>> judge_number([5.0], [5.0], margin=0.1, needed=1), judge_number([5.0] * 8, [6.0], margin=0.1, needed=8)
    ('agree', 'differ')
    """
    if not len(values):
        return "not run"
    low, high = difference_interval(values, source)
    if -margin <= low and high <= margin and len(values) >= needed:
        return "agree"
    if (low > margin or high < -margin) and len(values) >= min(needed, FEWEST):
        return "differ"
    return "undecided"


def judge_order(differences: Sequence[float], sign: int, needed: int) -> Verdict:
    """Judge the differences of our runs by the `sign` of the source's, 1 or -1.

    >>> judge_order([0.1, 0.3, 0.2], 1, needed=8), judge_order([0.1, 0.3, 0.0], -1, needed=8)
    ('same sign', 'undecided')
    """
    if not len(differences):
        return "not run"
    if len(differences) < min(needed, FEWEST):
        return "undecided"
    signs = {int(np.sign(difference)) for difference in differences}
    return "same sign" if signs == {sign} else "opposite" if signs == {-sign} else "undecided"
