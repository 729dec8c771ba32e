"""The rule of verdicts: what a number of a source and ours say about each other, given the spread of both.

**Numbers.** With n runs of ours (mean x, standard deviation s) and m runs of the source (mean y, standard deviation z),
d = x - y has the resolution

    r = t(n + m - 2) * sqrt(((n - 1) s^2 + (m - 1) z^2) / (n + m - 2)) * sqrt(1/n + 1/m),

t being the 97.5 % quantile of Student's distribution: half of the 95 % interval of d if both sides have the same mean
and variance. A source that prints one number has m = 1, so that r = t(n - 1) s sqrt(1 + 1/n), half of the prediction
interval of one more run. r is at least the rounding of the printed number and, for a fraction of N test examples, half
of its 95 % interval over examples (of BLEU, that of its bootstrap, if it was recorded). Both are in percent of the
published number, those of fractions in percentage points.

| verdict | when |
|---|---|
| reproduced | abs(d) <= r <= 5 |
| consistent | abs(d) <= r, 5 < r <= 20 |
| open | abs(d) <= r, r > 20: too few runs to say |
| near | abs(d) > r, abs(d) <= 2 |
| differs | abs(d) > r, abs(d) > 2, or a run of ours diverged |
| one run | neither side has a spread |
| not judged | the source prints the best of several runs or epochs |

**Orders.** The differences of two variants, paired by seed, have a mean and its 95 % interval (Student's t). It has the
sign of the source, the opposite one, or, if it contains 0 or a run diverged, the order is open. A computation without
training has the interval over test examples that it recorded.
"""

import math
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Literal, NamedTuple, get_args

from attention_jax.report.intervals import student

REPRODUCED, CONSISTENT, NEAR = 5.0, 20.0, 2.0
"""The largest resolution of "reproduced" and of "consistent", and the largest difference of "near", in percent."""

Verdict = Literal[
    "reproduced", "consistent", "near", "differs", "same sign", "opposite", "open", "one run", "not judged", "not run"
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""All verdicts, in the order of tables."""


class Sample(NamedTuple):
    """Runs of one side."""

    mean: float
    deviation: float
    """Their standard deviation; 0 of one run."""
    count: int


def sample_of(values: Sequence[float]) -> Sample:
    """Summarize the numbers of runs.

    >>> sample_of([1.0, 2.0, 3.0]), sample_of([4.0])
    (Sample(mean=2.0, deviation=1.0, count=3), Sample(mean=4.0, deviation=0.0, count=1))
    """
    finite = all(map(math.isfinite, values))
    return Sample(fmean(values), stdev(values) if finite and len(values) > 1 else 0.0, len(values))


def resolution(runs: Sample, source: Sample) -> float | None:
    """Return half of the 95 % interval of the difference of two means; None if neither side has two runs.

    >>> round(resolution(Sample(0.0, 1.0, 3), Sample(0.0, 0.0, 1)), 3)  # 4.303 * sqrt(1 + 1/3)
    4.968
    """
    freedom = runs.count + source.count - 2
    if not freedom:
        return None
    squares = (runs.count - 1) * runs.deviation**2 + (source.count - 1) * source.deviation**2
    return student(freedom) * (squares / freedom * (1 / runs.count + 1 / source.count)) ** 0.5


def judge_number(difference: float, resolution: float | None) -> Verdict:
    """Judge a difference by its resolution, both in percent of the published number or in percentage points.

    >>> [judge_number(d, r) for d, r in ((1.0, 4.0), (1.0, 8.0), (1.0, 30.0), (1.0, 0.5), (3.0, 0.5), (3.0, None))]
    ['reproduced', 'consistent', 'open', 'near', 'differs', 'one run']
    """
    if not math.isfinite(difference):
        return "differs"
    if resolution is None:
        return "one run"
    if abs(difference) > resolution:
        return "near" if abs(difference) <= NEAR else "differs"
    return "reproduced" if resolution <= REPRODUCED else "consistent" if resolution <= CONSISTENT else "open"


def judge_order(interval: tuple[float, float] | None, sign: int) -> Verdict:
    """Judge the 95 % interval of a difference by the `sign` of the source's, 1 or -1.

    >>> judge_order((0.1, 0.3), 1), judge_order((0.1, 0.3), -1), judge_order((-0.1, 0.3), 1), judge_order(None, 1)
    ('same sign', 'opposite', 'open', 'one run')
    """
    if interval is None:
        return "one run"
    low, high = sorted(sign * end for end in interval)
    return "same sign" if low > 0 else "opposite" if high < 0 else "open"
