"""Comparison of repeated numbers with recorded ones: the expected interval, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention_jax.claims import intervals
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.intervals import Interval
from attention_jax.claims.record import runs_without_divergence
from attention_jax.claims.verdicts import is_training_run, noise_interval, values_by_seed
from attention_jax.config import Claim
from attention_jax.files import read_json
from attention_jax.report.tables import Table, number, span

TRAINED, COMPUTED = 0.05, 0.02
"""The relative tolerance of a number without recorded noise: of a training, of a computation without training."""
ROUNDING = 1e-3
"""This share of a number is never a difference."""


@dataclass(frozen=True)
class ComparedNumber:
    """A claim's number, as recorded and as measured again."""

    experiment: str
    claim: Claim
    seed: int
    recorded: float
    repeated: float | None
    """The number of the new run; None if it diverged."""
    expected: Interval

    @property
    def verdict(self) -> Literal["OK", "differs", "a time"]:
        """Whether the number lies in the expected interval; a time depends on the machine and is not judged."""
        if self.claim.timed:
            return "a time"
        agrees = self.repeated is not None and self.expected.low <= self.repeated <= self.expected.high
        return "OK" if agrees else "differs"


def compare_runs(results: Sequence[tuple[Experiment, Mapping]]) -> list[ComparedNumber]:
    """Return every claim whose runs were all repeated; a difference has two runs of the same seed."""
    comparisons = []
    for experiment in {experiment.name: experiment for experiment, _ in results}.values():
        repeated_runs = [result for owner, result in results if owner is experiment]
        recorded = runs_without_divergence(experiment)
        repeated_keys = {(run["variant"], run["seed"]) for run in repeated_runs}
        for claim in experiment.claims:
            repeated_values = values_by_seed(claim, repeated_runs)
            for seed, value in values_by_seed(claim, recorded).items():
                if {
                    (claim.variant, seed),
                    (claim.variant if claim.minus is None else claim.minus, seed),
                } <= repeated_keys:
                    interval = tolerance_interval(claim, recorded, seed)
                    comparisons.append(
                        ComparedNumber(experiment.name, claim, seed, value, repeated_values.get(seed), interval)
                    )
    return comparisons


def tolerance_interval(claim: Claim, runs: Sequence[Mapping], seed: int) -> Interval:
    """Return the interval in which the number of a repeated seed is expected: the union of its known noise.

    They are the interval for another seed (Student's t of three or more recorded ones, or the range of two), that for
    other test examples (`sampling_interval`) or, if neither this nor three seeds are known, TRAINED or COMPUTED. An
    error that a claim bounds from above and that is at most a tenth of the bound is rounding: up to the tenth.
    """
    values = values_by_seed(claim, runs)
    value, seeds = values[seed], list(values.values())
    computed = not any(map(is_training_run, runs))
    sources = [intervals.prediction_interval(seeds)] if len(seeds) > 2 else []
    if len(seeds) == 2:
        sources = [Interval(min(seeds), max(seeds), "2 seeds")]
    sampled = noise_interval(claim, runs, seed, 0.0 if len(seeds) > 2 else COMPUTED if computed else TRAINED)
    sources += [sampled] if sampled else []
    if computed and claim.at_least is None and claim.at_most is not None and 0 <= value <= claim.at_most / 10:
        sources.append(Interval(0.0, claim.at_most / 10, "a tenth of the bound"))
    low, high, why = intervals.interval_union(sources)
    around = Interval(low - ROUNDING * abs(value), high + ROUNDING * abs(value), why)
    return around if claim.minus is not None else intervals.clip_to_scale(around, claim.metric, value)


def comparison_table(comparisons: Sequence[ComparedNumber]) -> Table:
    """Return a table of recorded and repeated numbers, with one row for each claim and seed."""
    columns = ("experiment", "claim", "seed", "recorded", "here", "expected", "verdict")
    rows = []
    for comparison in comparisons:
        low, high, why = comparison.expected
        cells = (
            str(comparison.seed),
            number(comparison.recorded),
            number(comparison.repeated),
            f"{span(low, high)} ({why})",
            comparison.verdict,
        )
        rows.append((comparison.experiment, comparison.claim.text, *cells))
    return Table("Re-run compared with the recorded results", columns, rows, right=("seed", "recorded", "here"))


def describe_machine(environment: Mapping) -> str:
    """Return the differences between two machines that affect numbers."""
    processor = environment.get("processor") or "processor not recorded"
    return f"{processor}, {environment['machine']}, {', '.join(environment['devices'])}, jax {environment['jax']}"


def check_tables(results: Path) -> list[Table]:
    """Tabulate `reproduce --check` on other machines, one table per check_NAME.json (a copy of its check.json).

    The recorded values are from the day of the check. Some have been measured again since.
    """
    tables = []
    for path in sorted(results.glob("check_*.json")):
        check = read_json(path)
        numbers = [entry for entry in check["numbers"] if entry["verdict"] != "a time"]
        cells = lambda entry: (str(entry["seed"]), number(entry["recorded"]), number(entry["here"]), entry["verdict"])
        rows = [(entry["experiment"], entry["claim"], *cells(entry)) for entry in numbers]
        columns = ("experiment", "claim", "seed", "recorded", "re-run", "verdict")
        where = describe_machine(check["runs"][0]["environment"]["here"])
        tables.append(Table(f"Re-run on {where}", columns, rows, right=("seed", "recorded", "re-run")))
    return tables
