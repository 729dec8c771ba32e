"""95 % intervals of recorded numbers: over test examples, `sampling_interval`; over seeds, `prediction_interval`."""

from collections.abc import Mapping, Sequence
from math import inf, sqrt
from statistics import fmean
from typing import NamedTuple


class Interval(NamedTuple):
    low: float
    high: float
    why: str
    """The method, in a few words."""


def metric_scale(metric: str) -> tuple[float, float]:
    """Return the lowest and the highest possible value of a metric, by its name.

    >>> metric_scale("valid.bleu"), metric_scale("test.token_accuracy"), metric_scale("test.loss")
    ((0.0, 100.0), (0.0, 1.0), (-inf, inf))
    """
    kind = metric.rpartition(".")[2]
    if kind in ("bleu", "chrf"):
        return 0.0, 100.0
    return (0.0, 1.0) if kind.endswith("accuracy") or kind.startswith("exact_match") else (-inf, inf)


def clip_to_scale(interval: Interval, metric: str, value: float) -> Interval:
    """Return the interval around a `value` of `metric`, cut off at the ends of the metric's scale.

    >>> clip_to_scale(Interval(97.0, 102.1, "3 seeds"), "valid.bleu", 99.5)
    Interval(low=97.0, high=100.0, why='3 seeds')
    """
    low, high = metric_scale(metric)
    if not low <= value <= high:  # a custom metric, in percent
        return interval
    return interval._replace(low=max(interval.low, low), high=min(interval.high, high))


def wilson_interval(share: float, examples: int) -> tuple[float, float]:
    """Return the 95 % interval of a fraction of `examples` (Wilson 1927, equation 2).

    >>> [round(end, 4) for share, n in ((0.9196, 10_000), (1.0, 5000)) for end in wilson_interval(share, n)]
    [0.9141, 0.9248, 0.9992, 1.0]
    """
    from scipy.stats import binomtest

    interval = binomtest(round(share * examples), examples).proportion_ci(method="wilson")
    return float(interval.low), float(interval.high)


def sampling_interval(metric: str, value: float, run: Mapping) -> Interval | None:
    """Return the interval of `value` over other test examples: of a fraction by Wilson, of BLEU by the bootstrap that
    was recorded as METRIC_low and METRIC_high; None for other metrics.
    """
    metrics, (split, _, kind) = run["metrics"], metric.partition(".")
    if f"{metric}_low" in metrics and metrics[metric] == value:
        return clip_to_scale(Interval(metrics[f"{metric}_low"], metrics[f"{metric}_high"], "bootstrap"), metric, value)
    examples = count_examples(run.get("facts", {}), split, kind)
    if not examples or not 0 <= value <= 1:
        return None
    return Interval(*wilson_interval(value, examples), f"{examples:,} examples")


def count_examples(facts: Mapping, split: str, kind: str) -> int:
    """Return how many examples a fraction over a split counts; 0 if `kind` is no fraction or the number is unknown.

    >>> facts = {"test_pairs": 5000, "test_inputs_also_in_train": 1435}
    >>> [count_examples(facts, "test", kind) for kind in ("exact_match", "exact_match_unseen", "loss")]
    [5000, 3565, 0]
    """
    examples = next(
        (facts[f"{split}_{unit}"] for unit in ("pairs", "images", "texts", "nodes") if f"{split}_{unit}" in facts), 0
    )
    if kind == "exact_match_unseen":
        return examples - facts.get(f"{split}_inputs_also_in_train", 0)
    return examples if kind in ("exact_match", "accuracy") else 0


def student(freedom: int) -> float:
    """Return the number of standard errors to each end of Student's 95 % interval.

    >>> round(student(1), 2), round(student(100), 2)
    (12.71, 1.98)
    """
    from scipy.stats import t

    return float(t.ppf(0.975, freedom))


def mean_half_width(values: Sequence[float]) -> float | None:
    """Return half the width of the interval of the mean over seeds (Student's t); None for one seed.

    >>> round(mean_half_width([1.0, 2.0, 3.0]), 3), mean_half_width([1.0])
    (2.484, None)
    """
    from scipy.stats import sem

    count = len(values)
    return float(student(count - 1) * sem(values)) if count > 1 else None


def prediction_interval(values: Sequence[float]) -> Interval:
    """Return Student's prediction interval for one more seed after three or more.

    >>> interval = prediction_interval([1.0, 2.0, 3.0])
    >>> round(interval.low, 2), round(interval.high, 2), interval.why
    (-2.97, 6.97, '3 seeds')
    """
    half = mean_half_width(values) * sqrt(len(values) + 1)
    return Interval(fmean(values) - half, fmean(values) + half, f"{len(values)} seeds")


def relative_interval(value: float, share: float) -> Interval:
    """Return the interval of a number without a measured noise: a fraction of it to both sides.

    >>> relative_interval(-20.0, 0.05)
    Interval(low=-21.0, high=-19.0, why='+-5 %')
    """
    half = abs(value) * share
    return Interval(value - half, value + half, f"+-{100 * share:g} %")


def interval_union(intervals: Sequence[Interval]) -> Interval:
    """Return the union of intervals, from the lowest to the highest end, with all methods.

    >>> interval_union([Interval(1, 3, "3 seeds"), Interval(2, 4, "bootstrap")])
    Interval(low=1, high=4, why='3 seeds, bootstrap')
    """
    return Interval(
        min(interval.low for interval in intervals),
        max(interval.high for interval in intervals),
        ", ".join(interval.why for interval in intervals),
    )
