"""95 % intervals of recorded numbers, for other test examples (`sampling`) and for another seed (`another_seed`)."""

from collections.abc import Mapping, Sequence
from math import hypot, inf, sqrt
from statistics import fmean
from typing import NamedTuple


class Interval(NamedTuple):
    low: float
    high: float
    why: str
    """The method, in a few words."""


def scale(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest possible value of a metric, by its name.

    >>> scale("valid.bleu"), scale("test.token_accuracy"), scale("test.loss")
    ((0.0, 100.0), (0.0, 1.0), (-inf, inf))
    """
    kind = metric.rpartition(".")[2]
    if kind in ("bleu", "chrf"):
        return 0.0, 100.0
    return (0.0, 1.0) if kind.endswith("accuracy") or kind.startswith("exact_match") else (-inf, inf)


def clipped(interval: Interval, metric: str, value: float) -> Interval:
    """Return the part of the interval around a `value` of `metric` that is on the metric's scale.

    >>> clipped(Interval(97.0, 102.1, "3 seeds"), "valid.bleu", 99.5)
    Interval(low=97.0, high=100.0, why='3 seeds')
    """
    low, high = scale(metric)
    if not low <= value <= high:  # a custom metric, in percent
        return interval
    return interval._replace(low=max(interval.low, low), high=min(interval.high, high))


def wilson(share: float, examples: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction of `examples` (Wilson 1927, equation 2).

    >>> [round(end, 4) for end in wilson(0.9196, 10_000)], [round(end, 4) for end in wilson(1.0, 5000)]
    ([0.9141, 0.9248], [0.9992, 1.0])
    """
    from scipy.stats import binomtest

    interval = binomtest(round(share * examples), examples).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def sampling(metric: str, value: float, run: Mapping) -> Interval | None:
    """Return the interval of `value` over other test examples: of a fraction by Wilson, of BLEU by the bootstrap that
    was recorded as METRIC_low and METRIC_high; None for other metrics.
    """
    metrics, (split, _, kind) = run["metrics"], metric.partition(".")
    if f"{metric}_low" in metrics and metrics[metric] == value:
        return clipped(Interval(metrics[f"{metric}_low"], metrics[f"{metric}_high"], "bootstrap"), metric, value)
    examples = counted(run.get("facts", {}), split, kind)
    if not examples or not 0 <= value <= 1:
        return None
    return Interval(*wilson(value, examples), f"{examples:,} examples")


def counted(facts: Mapping, split: str, kind: str) -> int:
    """Return the number of examples of a fraction over a split; 0 if `kind` is no such fraction, or it is unknown.

    >>> facts = {"test_pairs": 5000, "test_inputs_also_in_train": 1435}
    >>> [counted(facts, "test", kind) for kind in ("exact_match", "exact_match_unseen", "loss")]
    [5000, 3565, 0]
    """
    examples = next(
        (facts[f"{split}_{what}"] for what in ("pairs", "images", "texts") if f"{split}_{what}" in facts), 0
    )
    if kind == "exact_match_unseen":
        return examples - facts.get(f"{split}_inputs_also_in_train", 0)
    return examples if kind in ("exact_match", "accuracy") else 0


def difference(mine: float, around_mine: Interval, other: float, around_other: Interval) -> Interval:
    """Return the interval of `mine - other`, treated as independent (Newcombe 1998, method 10).

    >>> difference(5.0, Interval(2.0, 9.0, "bootstrap"), 1.0, Interval(-2.0, 5.0, ""))
    Interval(low=-1.0, high=9.0, why='bootstrap')
    """
    return Interval(
        mine - other - hypot(mine - around_mine.low, around_other.high - other),
        mine - other + hypot(around_mine.high - mine, other - around_other.low),
        around_mine.why,
    )


def mean(values: Sequence[float], around: Sequence[Interval]) -> Interval:
    """Return the interval of the mean of independent measurements.

    >>> mean([3.0, 5.0], [Interval(0.0, 6.0, "bootstrap"), Interval(1.0, 9.0, "bootstrap")])
    Interval(low=1.5, high=6.5, why='bootstrap')
    """
    middle, count = fmean(values), len(values)
    below = hypot(*(value - part.low for value, part in zip(values, around, strict=True)))
    above = hypot(*(part.high - value for value, part in zip(values, around, strict=True)))
    return Interval(middle - below / count, middle + above / count, around[0].why)


def student(freedom: int) -> float:
    """Return the number of standard errors to each end of Student's 95 % interval.

    >>> round(student(1), 2), round(student(100), 2)
    (12.71, 1.98)
    """
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def of_mean(values: Sequence[float]) -> float | None:
    """Return half the width of the interval of the mean over seeds (Student's t); None for one seed.

    >>> round(of_mean([1.0, 2.0, 3.0]), 3), of_mean([1.0])
    (2.484, None)
    """
    from scipy.stats import sem

    count = len(values)
    return float(student(count - 1) * sem(values)) if count > 1 else None


def another_seed(values: Sequence[float]) -> Interval:
    """Return Student's prediction interval for one more seed after three or more.

    >>> interval = another_seed([1.0, 2.0, 3.0])
    >>> round(interval.low, 2), round(interval.high, 2), interval.why
    (-2.97, 6.97, '3 seeds')
    """
    half = of_mean(values) * sqrt(len(values) + 1)
    return Interval(fmean(values) - half, fmean(values) + half, f"{len(values)} seeds")


def within(value: float, share: float) -> Interval:
    """Return the interval of a number without a measured noise: a fraction of it to both sides.

    >>> within(-20.0, 0.05)
    Interval(low=-21.0, high=-19.0, why='+-5 %')
    """
    half = abs(value) * share
    return Interval(value - half, value + half, f"+-{100 * share:g} %")


def union(parts: Sequence[Interval]) -> Interval:
    """Return the union of intervals, from the lowest to the highest end, with all methods.

    >>> union([Interval(1, 3, "3 seeds"), Interval(2, 4, "bootstrap")])
    Interval(low=1, high=4, why='3 seeds, bootstrap')
    """
    return Interval(
        min(part.low for part in parts), max(part.high for part in parts), ", ".join(part.why for part in parts)
    )
