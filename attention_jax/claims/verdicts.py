"""Claims beside the recorded runs: the number of a run, its median over seeds, and the verdict of the rule (`rule.py`).

Runs are mappings {"variant": str, "seed": int, "metrics": {name: number}, "history": [{"epoch": int, name: number},
...], "seconds": float, "environment": {...}, ...}, as experiments/results/NAME.json holds them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from attention_jax.claims import rule
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.claim import Claim, Quantity, Threshold
from attention_jax.claims.record import REGISTRATIONS, load_recorded_runs, load_rows, present_names, seeds_of_row
from attention_jax.claims.rule import Verdict
from attention_jax.errors import lower_is_better
from attention_jax.report.tables import number, span


def run_value(quantity: Quantity, run: Mapping) -> float | None:
    """The number of one run: of the final evaluation, one epoch, the best epoch, or the mean of the last epochs.

    None if the run does not have it, NaN if the run diverged.
    """
    if run.get("diverged"):
        return math.nan
    if quantity.also:
        values = [run["metrics"].get(name) for name in (quantity.metric, *quantity.also)]
        return None if None in values else fmean(values)
    if quantity.epoch is None and not quantity.best and not quantity.last:
        return run["metrics"].get(quantity.metric)
    by_epoch = {
        row.get("epoch"): row[quantity.metric] for row in run["history"] if row.get(quantity.metric) is not None
    }
    if quantity.epoch is not None:
        return by_epoch.get(quantity.epoch)
    if quantity.last:
        return fmean(list(by_epoch.values())[-quantity.last :]) if len(by_epoch) >= quantity.last else None
    better = min if lower_is_better(quantity.metric) else max
    finite = [value for value in by_epoch.values() if not math.isnan(value)]
    return better(finite, default=None if not by_epoch else math.nan)


def values_by_seed(quantity: Quantity, runs: Sequence[Mapping]) -> dict[int, float]:
    """{seed: number} of the variant's runs; with `minus`, the difference to the other's run of the same seed."""
    values = {(run.get("variant", ""), run.get("seed", 0)): run_value(quantity, run) for run in runs}
    values = {key: float(value) for key, value in values.items() if value is not None}
    of_variant = {seed: value for (variant, seed), value in values.items() if variant == quantity.variant}
    if quantity.minus is None:
        return of_variant
    baseline = {seed: value for (variant, seed), value in values.items() if variant == quantity.minus}
    return {seed: value - baseline[seed] for seed, value in of_variant.items() if seed in baseline}


def runs_with_value(quantity: Quantity, runs: Sequence[Mapping]) -> list[Mapping]:
    """The runs that `values_by_seed` reads."""
    seeds = values_by_seed(quantity, runs)
    variants = {quantity.variant, quantity.minus} - {None}
    return [run for run in runs if run.get("variant", "") in variants and run.get("seed", 0) in seeds]


def is_training_run(run: Mapping) -> bool:
    """Whether a run trained a model, as opposed to a computation; a study that trains has a history."""
    return "steps" in run or bool(run.get("history") or run.get("diverged"))


def runs_needed(quantity: Quantity, runs: Sequence[Mapping]) -> int:
    """The number of runs that an agreement needs: by the median seconds of those there are."""
    trained = [run for run in runs_with_value(quantity, runs) if is_training_run(run)]
    return rule.runs_needed(float(np.median([run.get("seconds", 0.0) for run in trained])) if trained else None)


def judge(claim: Claim, runs: Sequence[Mapping]) -> Verdict:
    """The verdict of the rule about a claim and the runs that decide it."""
    needed = runs_needed(claim, runs)
    values = list(values_by_seed(claim, runs).values())
    if claim.sign:
        noise = [metric_interval(claim, run) for run in runs_with_value(claim, runs)] if needed == 1 else []
        values += [end for interval in noise for end in interval]
        return rule.judge_order([0.0 if math.isnan(value) else value for value in values], claim.sign, needed)
    worst = math.inf if lower_is_better(claim.metric) else -math.inf
    values = [worst if math.isnan(value) else value for value in values]
    source = claim.runs or (claim.published,)
    margin = rule.margin(claim.published, claim.runs, claim.deviation, claim.rounding)
    return rule.judge_number(values, source, margin, needed)


def metric_interval(claim: Claim, run: Mapping) -> tuple[float, ...]:
    """Both ends of the interval over test examples that a computation recorded for its number, if it did."""
    ends = (f"{claim.metric}_low", f"{claim.metric}_high")
    return tuple(run["metrics"][end] for end in ends) if claim.minus is None and ends[0] in run["metrics"] else ()


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the runs that decide its verdict."""

    experiment: str
    claim: Claim
    runs: Sequence[Mapping]

    @property
    def verdict(self) -> Verdict:
        return judge(self.claim, self.runs)


def verdict_with_reason(row: JudgedClaim) -> str:
    """The verdict, and why a claim is undecided: "undecided (3 of 8 runs)"."""
    if row.verdict != "undecided":
        return row.verdict
    count, needed = len(values_by_seed(row.claim, row.runs)), runs_needed(row.claim, row.runs)
    needed = min(needed, rule.FEWEST) if row.claim.sign else needed
    reason = f"{count} of {needed} runs" if count < needed else "signs differ" if row.claim.sign else "wide interval"
    return f"undecided ({reason})"


def present_runs(experiment: Experiment, runs: Sequence[Mapping]) -> list[Mapping]:
    """Recorded runs under the present names of their variants, without those of a registered row that is not complete:
    its seeds count together or not at all."""
    former, runs = experiment.former_variants, present_names(experiment, runs)
    recorded = {(run["variant"], run["seed"]) for run in runs}
    incomplete = set()
    for row in (row for path in REGISTRATIONS for row in load_rows(path)):
        variant = former.get(row["variant"], row["variant"])
        seeds = {(variant, seed) for seed in seeds_of_row(row)}
        if row["experiment"] == experiment.name and not seeds <= recorded:
            incomplete |= seeds
    return [run for run in runs if (run["variant"], run["seed"]) not in incomplete]


def judge_claims(experiment: Experiment, runs: Sequence[Mapping] | None = None) -> list[JudgedClaim]:
    """All claims of an experiment with its recorded runs, or with the given ones."""
    if runs is None:
        runs = present_runs(experiment, load_recorded_runs(experiment.name, experiment.results))
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
    if not values:
        return "-"
    middle, finite = number(float(np.median(values))), [value for value in values if not math.isnan(value)]
    if len(finite) == len(values) > 1 and number(min(values)) == number(max(values)):
        return f"{middle} (equal for {len(values)} runs)"
    if len(values) == 1:
        return middle
    diverged = f", {len(values) - len(finite)} diverged" if len(finite) < len(values) else ""
    return (
        f"{middle} ({span(min(finite, default=math.nan), max(finite, default=math.nan))}, {len(values)} runs{diverged})"
    )


def source_text(claim: Claim) -> str:
    """Format the published number with the range of the source's runs, its printed deviation, or its rounding."""
    if claim.published is None:
        return "less" if claim.sign < 0 else "more"
    if claim.runs:
        return f"{number(claim.published)} ({span(min(claim.runs), max(claim.runs))}, {len(claim.runs)} runs)"
    if claim.deviation:
        return f"{number(claim.published)} +- {number(claim.deviation)}"
    return f"{number(claim.published)}{' (rounded)' if claim.rounding else ''}"


def bounds_text(threshold: Threshold) -> str:
    """The bounds as a table shows them.

    >>> bounds_text(Threshold(text="x", metric="m", source="", at_least=1))
    '>= 1'
    """
    low, high = threshold.at_least, threshold.at_most
    if low is not None and high is not None:
        return span(low, high) if low != high else f"= {number(low)}"
    return f">= {number(low)}" if high is None else f"<= {number(high)}"
