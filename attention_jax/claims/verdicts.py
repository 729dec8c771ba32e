"""Status of claims, given recorded numbers; `judge` is the only function that decides it.

Runs are mappings {"variant": str, "seed": int, "metrics": {name: number}, "history": [{"epoch": int, name: number},
...], "environment": {"commit": str | None, ...}, ...}, as experiments/results/NAME.json holds them.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

import numpy as np

from attention_jax.claims import intervals
from attention_jax.claims.intervals import Interval
from attention_jax.errors import lower_is_better
from attention_jax.report.tables import number, span

Verdict = Literal[
    "reproduced", "beaten", "better", "near", "worse", "holds", "undecided", "missed", "measured", "not run"
]
MET = ("reproduced", "beaten", "better", "near", "worse", "holds")
"""The verdicts of claims that are met; an undecided one is neither met nor missed."""
SEEDS = 3
"""The number of runs below which no claim is beaten, because the variance of our training is unknown."""


def higher_is_better(bound) -> bool:
    """Whether more is better: a single bound decides, otherwise the metric's name (a loss or an error: no)."""
    if (bound.at_least is None) != (bound.at_most is None):
        return bound.at_least is not None
    return not lower_is_better(bound.metric)


def run_value(bound, run: Mapping) -> float | None:
    """The number of one run: of the final evaluation, one epoch, the best epoch, or the mean of the last epochs.

    None if the run does not have it, NaN if the run diverged.
    """
    if run.get("diverged"):
        return math.nan
    if bound.also:
        values = final_metrics(bound, run).values()
        return None if None in values else fmean(values)
    if bound.epoch is None and not bound.best and not bound.last:
        return run["metrics"].get(bound.metric)
    by_epoch = {row.get("epoch"): row[bound.metric] for row in run["history"] if row.get(bound.metric) is not None}
    if bound.epoch is not None:
        return by_epoch.get(bound.epoch)
    if bound.last:
        return fmean(list(by_epoch.values())[-bound.last :]) if len(by_epoch) >= bound.last else None
    better = min if lower_is_better(bound.metric) else max
    finite = [value for value in by_epoch.values() if not math.isnan(value)]
    return better(finite, default=None if not by_epoch else math.nan)


def final_metrics(bound, run: Mapping) -> dict[str, float | None]:
    """Return the final metrics whose mean is judged, if `also` names more than one."""
    return {name: run["metrics"].get(name) for name in (bound.metric, *bound.also)}


def values_by_seed(bound, runs: Sequence[Mapping]) -> dict[int, float]:
    """{seed: number} of the variant's runs; with `minus`, the difference to the other's run of the same seed."""
    values = {(run.get("variant", ""), run.get("seed", 0)): run_value(bound, run) for run in runs}
    values = {key: float(value) for key, value in values.items() if value is not None}
    mine = {seed: value for (variant, seed), value in values.items() if variant == bound.variant}
    if bound.minus is None:
        return mine
    return {seed: value - values[bound.minus, seed] for seed, value in mine.items() if (bound.minus, seed) in values}


def runs_with_value(bound, runs: Sequence[Mapping]) -> list[Mapping]:
    """The runs that `values_by_seed` reads."""
    seeds = values_by_seed(bound, runs)
    variants = {bound.variant, bound.minus} - {None}
    return [run for run in runs if run.get("variant", "") in variants and run.get("seed", 0) in seeds]


def claim_value(bound, runs: Sequence[Mapping]) -> float | None:
    """The median over seeds, or the `seeds_needed`-th best; None if there are no runs, or too few."""
    values = list(values_by_seed(bound, runs).values())
    if not values or bound.seeds_needed > len(values):
        return None
    worst = -np.inf if higher_is_better(bound) else np.inf
    ranked = sorted(values, key=lambda v: worst if np.isnan(v) else v, reverse=higher_is_better(bound))
    return ranked[bound.seeds_needed - 1] if bound.seeds_needed else float(np.median(values))


def judge(claim, runs: Sequence[Mapping]) -> tuple[float | None, Verdict]:
    """Return the number of a `config.Claim` and its status.

    not run: no run, or too few seeds, have the number. measured: the claim sets no bound. undecided: single seeds
    contradict the median, or the only seed's interval covers a bound (`is_undecided`). missed: outside of the bounds
    (NaN, too). Within the bounds the kind of the claim decides. exact, order, aim: holds. same protocol: beaten, if
    three seeds or more are all better than the source's best (`beats_source`); reproduced, if the number is within the
    source's spread or 5 % of its number. other protocol: near, in the same range. Both are better or worse otherwise.
    """
    value = claim_value(claim, runs)
    if value is None:
        return None, "not run"
    if not claim.has_bounds:
        return value, "measured"
    if is_undecided(claim, runs, value):
        return value, "undecided"
    if not meets_bounds(claim, value):
        return value, "missed"
    if claim.kind in ("exact", "order", "aim"):
        return value, "holds"
    same = claim.kind == "same protocol"
    if same and beats_source(claim, runs):
        return value, "beaten"
    if any(low <= value <= high for low, high in claim.near_intervals):
        return value, "reproduced" if same else "near"
    lower = lower_is_better(claim.metric) or not higher_is_better(claim)
    return value, "better" if (value < claim.published) == lower else "worse"


def is_undecided(claim, runs: Sequence[Mapping], value: float) -> bool:
    """Whether the runs leave open if a claim is met: single seeds miss bounds that `value` meets, or meet those it
    misses, or the interval of the only seed has numbers of both.

    A claim that counts seeds is always decided. A seed within the source's own `spread` does not miss: the median is
    bounded, and the source's runs vary as much.
    """
    values = list(values_by_seed(claim, runs).values())
    if claim.seeds_needed:
        return False
    if len(values) == 1:
        return is_uncertain(claim, runs)
    if not meets_bounds(claim, value):
        return any(meets_bounds(claim, seed_value) for seed_value in values)
    low, high = claim.spread or (math.inf, -math.inf)
    return not all(meets_bounds(claim, seed_value) or low <= seed_value <= high for seed_value in values)


def meets_bounds(bound, value: float) -> bool:
    """Whether a number lies within the bounds; NaN does not."""
    return (bound.at_least is None or value >= bound.at_least) and (bound.at_most is None or value <= bound.at_most)


def beats_source(claim, runs: Sequence[Mapping]) -> bool:
    """Whether at least SEEDS numbers are better than every run of the source, whose `spread` has to be known.

    With a known interval over other test examples (`noise_interval`) its worse end is compared.
    """
    values = values_by_seed(claim, runs)
    if claim.spread is None or len(values) < SEEDS:
        return False
    around = [noise_interval(claim, runs, seed) or Interval(value, value, "") for seed, value in values.items()]
    low, high = claim.spread
    return (
        all(seed_interval.low > high for seed_interval in around)
        if higher_is_better(claim)
        else all(seed_interval.high < low for seed_interval in around)
    )


def noise_interval(bound, runs: Sequence[Mapping], seed: int, otherwise: float = 0.0) -> Interval | None:
    """Return the interval of one seed's number over other test examples (`intervals.sampling_interval`).

    If that is unknown it is `otherwise`, a fraction of the number, to both sides, or None.
    """
    run_by_variant = {run.get("variant", ""): run for run in runs if run.get("seed", 0) == seed}

    def around(variant: str) -> tuple[float, Interval | None]:
        run, value = run_by_variant[variant], float(run_value(bound, run_by_variant[variant]))
        values = {bound.metric: value} if not bound.also else final_metrics(bound, run)
        sampled = [intervals.sampling_interval(name, metric_value, run) for name, metric_value in values.items()]
        if all(sampled):
            return value, intervals.mean_interval(list(values.values()), sampled)
        return value, intervals.relative_interval(value, otherwise) if otherwise else None

    value, around_value = around(bound.variant)
    if bound.minus is None or around_value is None:
        return around_value
    baseline, around_baseline = around(bound.minus)
    return around_baseline and intervals.difference_interval(value, around_value, baseline, around_baseline)


def value_interval(bound, runs: Sequence[Mapping]) -> Interval | None:
    """Return the range of several seeds, or the interval of one seed over test examples, or None.

    Diverged runs, whose number is NaN, are left out of the range and counted: "3 seeds, 1 diverged".
    """
    values = values_by_seed(bound, runs)
    if len(values) > 1:
        ended = [value for value in values.values() if not math.isnan(value)]
        diverged = len(values) - len(ended)
        why = f"{len(values)} seeds" + (f", {diverged} diverged" if diverged else "")
        return Interval(min(ended, default=math.nan), max(ended, default=math.nan), why)
    return noise_interval(bound, runs, *values) if values else None


def is_training_run(run: Mapping) -> bool:
    """Whether a run trained a model, as opposed to a computation; a study that trains has a history."""
    return "steps" in run or bool(run.get("history") or run.get("diverged"))


def is_uncertain(claim, runs: Sequence[Mapping]) -> bool:
    """Whether the only seed's `noise_interval` has numbers that meet the claim and numbers that miss it."""
    [seed] = values_by_seed(claim, runs)
    estimate = noise_interval(claim, runs, seed)
    if estimate is None:
        return False
    low = -math.inf if claim.at_least is None else claim.at_least
    high = math.inf if claim.at_most is None else claim.at_most
    meets_none, meets_all = estimate.high < low or estimate.low > high, low <= estimate.low and estimate.high <= high
    return not (meets_none or meets_all)


def caveats(claim, runs: Sequence[Mapping]) -> list[str]:
    """Return what is in parentheses beside a status.

    one seed: a model was trained once. within noise, seeds disagree: why a claim is undecided, with one seed or with
    several. bound set after a result: `Claim.after` says which. no commit: a run does not name the commit that it ran.
    """
    verdict, one_seed = judge(claim, runs)[1], len(values_by_seed(claim, runs)) == 1
    if verdict in ("measured", "not run"):
        return []
    return [
        *(["one seed"] if one_seed and any(map(is_training_run, runs_with_value(claim, runs))) else []),
        *(["within noise" if one_seed else "seeds disagree"] if verdict == "undecided" else []),
        *(["bound set after a result"] if claim.after else []),
        *(["no commit"] if lacks_commit(claim, runs) else []),
    ]


def lacks_commit(bound, runs: Sequence[Mapping]) -> bool:
    """Whether a run of this number does not name the commit that it ran."""
    return any(not run.get("environment", {}).get("commit") for run in runs_with_value(bound, runs))


def verdict_with_caveats(claim, runs: Sequence[Mapping]) -> str:
    """Return the verdict with its caveats, such as "reproduced (one seed, no commit)"."""
    verdict, doubts = judge(claim, runs)[1], caveats(claim, runs)
    return f"{verdict} ({', '.join(doubts)})" if doubts else verdict


def bounds_text(bound) -> str:
    """The bounds as a table shows them.

    >>> from attention_jax.config import Claim
    >>> [bounds_text(Claim("", "m", None, "", **f)) for f in ({"kind": "aim", "at_least": 1}, {"kind": "measurement"})]
    ['>= 1', '-']
    """
    if bound.at_least is not None and bound.at_most is not None:
        return span(bound.at_least, bound.at_most) if bound.at_least != bound.at_most else f"= {number(bound.at_least)}"
    if bound.at_least is not None:
        return f">= {number(bound.at_least)}"
    return "-" if bound.at_most is None else f"<= {number(bound.at_most)}"


def all_equal(values: Sequence[float]) -> bool:
    """Whether several seeds gave one number, to the digits that are shown; not if one diverged."""
    return len(values) > 1 and not any(map(math.isnan, values)) and number(min(values)) == number(max(values))


def value_text(bound, runs: Sequence[Mapping]) -> str:
    """Format the median over seeds with their range, or the number of one seed with its interval, such as
    "95.1 (94.7-95.6, 3 seeds)", "1 (equal for 3 seeds)", "0.92 (0.914-0.925, 10,000 examples)" or
    "37.5 (36.4-38.6, bootstrap)"."""
    values, estimate = list(values_by_seed(bound, runs).values()), value_interval(bound, runs)
    if not values:
        return "-"
    middle = number(float(np.median(values)))
    if all_equal(values):
        return f"{middle} (equal for {len(values)} seeds)"
    return f"{middle} ({span(estimate.low, estimate.high)}, {estimate.why})" if estimate else middle
