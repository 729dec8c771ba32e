"""Claims beside the recorded runs: the number of a run, the difference to the source, and its verdict (`rule.py`).

Runs are mappings {"variant": str, "seed": int, "metrics": {name: number}, "history": [{"epoch": int, name: number},
...], "seconds": float, "environment": {...}, ...}, as experiments/results/NAME.json holds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

import numpy as np

from attention_jax.catalog import Experiment
from attention_jax.claims import rule
from attention_jax.claims.record import present_runs
from attention_jax.claims.rule import Sample, Verdict
from attention_jax.declarations import Claim, Quantity, Threshold
from attention_jax.errors import lower_is_better
from attention_jax.report import intervals
from attention_jax.report.tables import number, span


def run_value(quantity: Quantity, run: Mapping) -> float | None:
    """The number of one run: of the final evaluation, one epoch, the best epoch, or the mean of the last epochs.

    None if the run does not have it, NaN if the run diverged.
    """
    if run.get("diverged"):
        return math.nan
    if not quantity.reads_history:
        values = [run["metrics"].get(name) for name in (quantity.metric, *quantity.also)]
        return None if None in values else fmean(values) if quantity.also else values[0]
    rows = [row for row in run["history"] if row.get(quantity.metric) is not None]
    by_epoch = {row.get("epoch"): row[quantity.metric] for row in rows}
    if quantity.epoch is not None:
        return by_epoch.get(quantity.epoch)
    if quantity.last:
        return fmean(list(by_epoch.values())[-quantity.last :]) if len(by_epoch) >= quantity.last else None
    better = min if lower_is_better(quantity.metric) else max
    finite = [value for value in by_epoch.values() if not math.isnan(value)]
    return better(finite, default=math.nan) if by_epoch else None


def values_by_seed(quantity: Quantity, runs: Sequence[Mapping]) -> dict[int, float]:
    """{seed: number} of the variant's runs; with `minus`, the difference to the other's run of the same seed."""

    def of_variant(variant: str) -> dict[int, float]:
        values = {run.get("seed", 0): run_value(quantity, run) for run in runs if run.get("variant", "") == variant}
        return {seed: float(value) for seed, value in values.items() if value is not None}

    values = of_variant(quantity.variant)
    if quantity.minus is None:
        return values
    baseline = of_variant(quantity.minus)
    return {seed: value - baseline[seed] for seed, value in values.items() if seed in baseline}


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the runs that decide its verdict."""

    experiment: str
    claim: Claim
    runs: Sequence[Mapping]

    @cached_property
    def values(self) -> list[float]:
        """The numbers of our runs."""
        return list(values_by_seed(self.claim, self.runs).values())

    @property
    def is_fraction(self) -> bool:
        """Whether the number is a fraction, whose differences are in percentage points."""
        return intervals.metric_scale(self.claim.metric) == (0.0, 1.0)

    @property
    def unit(self) -> float:
        """One percentage point of a fraction, or one percent of the published number."""
        return 0.01 if self.is_fraction else abs(self.claim.published) / 100

    @property
    def source(self) -> Sample:
        """The runs of the source: all of them, the mean of several that it prints, or one number."""
        if self.claim.runs:
            return rule.sample_of(self.claim.runs)
        return Sample(self.claim.published, self.claim.deviation, self.claim.mean_of)

    @property
    def difference(self) -> float | None:
        """Our mean less the source's, in units; of an order the mean difference. None without a run."""
        if not self.values:
            return None
        mean = fmean(self.values)
        return mean if self.claim.sign else (mean - self.source.mean) / self.unit

    @property
    def resolution(self) -> float | None:
        """The resolution of the difference in units, or half of an order's interval; None without a spread."""
        if self.claim.sign:
            return intervals.mean_half_width(self.values)
        counted = self.claim.basis == "count"
        half = 0.0 if counted else rule.resolution(rule.sample_of(self.values), self.source) if self.values else None
        return None if half is None else max(half, self.claim.rounding, self._sampling_half_width()) / self.unit

    @property
    def verdict(self) -> Verdict:
        """The verdict of the rule."""
        if not self.values:
            return "not run"
        if self.claim.best_of:
            return "not judged"
        if not self.claim.sign:
            return rule.judge_number(self.difference, self.resolution)
        half, mean = self.resolution, self.difference
        interval = self._interval_over_examples() if half is None else (mean - half, mean + half)
        return rule.judge_order(interval, self.claim.sign)

    def _sampling_half_width(self) -> float:
        """Half of the interval over test examples, the mean of our runs; 0 where it is not known."""
        values = values_by_seed(self.claim, self.runs)
        runs = [run for run in self.runs if run.get("variant", "") == self.claim.variant and run["seed"] in values]
        sampling = [intervals.sampling_interval(self.claim.metric, values[run["seed"]], run) for run in runs]
        return fmean([(interval.high - interval.low) / 2 for interval in sampling if interval] or [0.0])

    def _interval_over_examples(self) -> tuple[float, float] | None:
        """The interval over test examples that a computation recorded for its number; None if it has none."""
        low, high = f"{self.claim.metric}_low", f"{self.claim.metric}_high"
        metrics = next(run["metrics"] for run in self.runs if run.get("variant", "") == self.claim.variant)
        return (metrics[low], metrics[high]) if self.claim.minus is None and low in metrics else None


def judge_claims(experiment: Experiment, runs: Sequence[Mapping] | None = None) -> list[JudgedClaim]:
    """All claims of an experiment with its recorded runs, or with the given ones."""
    runs = present_runs(experiment) if runs is None else runs
    return [JudgedClaim(experiment.name, claim, runs) for claim in experiment.claims]


def median_value(quantity: Quantity, runs: Sequence[Mapping]) -> float | None:
    """The median over seeds, NaN if one diverged; None without a run."""
    values = list(values_by_seed(quantity, runs).values())
    return float(np.median(values)) if values else None


def is_met(threshold: Threshold, runs: Sequence[Mapping]) -> bool | None:
    """Whether the median of the runs meets a threshold; None without a run."""
    value = median_value(threshold, runs)
    return None if value is None else threshold.is_met(value)


def value_text(quantity: Quantity, runs: Sequence[Mapping]) -> str:
    """Format the median over seeds with their range, such as "95.1 (94.7-95.6, 3 runs)", "1 (equal for 3 runs)" or, of
    one run, "37.5"; diverged runs are counted."""
    values = list(values_by_seed(quantity, runs).values())
    middle = number(median_value(quantity, runs))
    if len(values) < 2:
        return middle
    finite = [value for value in values if not math.isnan(value)]
    low, high = min(finite, default=math.nan), max(finite, default=math.nan)
    if len(finite) == len(values) and number(low) == number(high):
        return f"{middle} (equal for {len(values)} runs)"
    diverged = f", {len(values) - len(finite)} diverged" if len(finite) < len(values) else ""
    return f"{middle} ({span(low, high)}, {len(values)} runs{diverged})"


def sample_text(sample: Sample) -> str:
    """Format a mean with the standard deviation and the number of its runs.

    >>> sample_text(Sample(35.97, 0.436, 3)), sample_text(Sample(0.866, 0.0, 1))
    ('35.97 +- 0.44 (3)', '0.866')
    """
    mean = number(sample.mean)
    return f"{mean} +- {sample.deviation:.2g} ({sample.count})" if sample.count > 1 else mean


def our_text(row: JudgedClaim) -> str:
    """Our mean with the standard deviation and the number of runs; "-" without a run."""
    return sample_text(rule.sample_of(row.values)) if row.values else "-"


def source_text(row: JudgedClaim) -> str:
    """The source's mean likewise, and where it is from; of an order its difference, or the sign in a word."""
    if row.claim.published is None:
        return "less" if row.claim.sign < 0 else "more"
    origin = {"decoded": ", curves", "code": ", run here"}.get(row.claim.basis, "")
    return number(row.claim.published) if row.claim.sign else sample_text(row.source) + origin


def difference_text(row: JudgedClaim) -> str:
    """The difference and its resolution, such as "+0.5 +- 5.5 %" or, of a fraction, "-0.4 +- 0.8 points"."""
    if row.difference is None:
        return "-"
    half = row.resolution
    if row.claim.sign:
        return number(row.difference) + (f" +- {half:.2g}" if half is not None else "")
    unit = "points" if row.is_fraction else "%"
    return f"{round(row.difference, 1) + 0.0:+.1f} {f'+- {half:.1f} ' if half is not None else ''}{unit}"


def bounds_text(threshold: Threshold) -> str:
    """The bounds as a table shows them.

    >>> bounds_text(Threshold(text="x", metric="m", source="", at_least=1))
    '>= 1'
    """
    low, high = threshold.at_least, threshold.at_most
    if low is not None and high is not None:
        return span(low, high) if low != high else f"= {number(low)}"
    return f">= {number(low)}" if high is None else f"<= {number(high)}"
