"""Comparison of repeated numbers with recorded ones: the expected interval, and the report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention_jax.claims import intervals
from attention_jax.claims.catalog import Experiment
from attention_jax.claims.intervals import Interval
from attention_jax.claims.record import ended
from attention_jax.claims.verdicts import by_seed, noise, trained
from attention_jax.config import Claim
from attention_jax.files import read_json
from attention_jax.report.tables import Table, number, span

TRAINED, COMPUTED = 0.05, 0.02
"""The relative tolerance of a number without recorded noise: of a training, of a computation without training."""
ROUNDING = 1e-3
"""This share of a number is never a difference."""


@dataclass(frozen=True)
class Compared:
    """A claim's number, as recorded and as measured again."""

    experiment: str
    claim: Claim
    seed: int
    recorded: float
    here: float | None
    """The number of the new run; None if it diverged."""
    expected: Interval

    @property
    def verdict(self) -> Literal["OK", "differs", "a time"]:
        """Whether the number lies in the expected interval; a time depends on the machine and is not judged."""
        if self.claim.timed:
            return "a time"
        agrees = self.here is not None and self.expected.low <= self.here <= self.expected.high
        return "OK" if agrees else "differs"


def compared(done: Sequence[tuple[Experiment, Mapping]]) -> list[Compared]:
    """Return every claim whose runs were all repeated; a difference has two runs of the same seed."""
    found = []
    for experiment in {experiment.name: experiment for experiment, _ in done}.values():
        now = [result for one, result in done if one is experiment]
        then = ended(experiment)
        ran = {(run["variant"], run["seed"]) for run in now}
        for claim in experiment.claims:
            here = by_seed(claim, now)
            for seed, value in by_seed(claim, then).items():
                if {(claim.variant, seed), (claim.variant if claim.minus is None else claim.minus, seed)} <= ran:
                    about = expected(claim, then, seed)
                    found.append(Compared(experiment.name, claim, seed, value, here.get(seed), about))
    return found


def expected(claim: Claim, then: Sequence[Mapping], seed: int) -> Interval:
    """Return the interval in which the number of a repeated seed is expected: the union of its known noise.

    These are the interval for another seed, by Student's t of three or more recorded ones, or between two; and that for
    other test examples (`intervals.sampling`), or, if neither that nor three seeds are known, TRAINED or COMPUTED. An
    error that a claim bounds from above and that is at most a tenth of the bound is rounding: up to the tenth.
    """
    values = by_seed(claim, then)
    value, seeds = values[seed], list(values.values())
    computed = not any(map(trained, then))
    parts = [intervals.another_seed(seeds)] if len(seeds) > 2 else []
    if len(seeds) == 2:
        parts = [Interval(min(seeds), max(seeds), "2 seeds")]
    found = noise(claim, then, seed, 0.0 if len(seeds) > 2 else COMPUTED if computed else TRAINED)
    parts += [found] if found else []
    if computed and claim.at_least is None and claim.at_most is not None and 0 <= value <= claim.at_most / 10:
        parts.append(Interval(0.0, claim.at_most / 10, "a tenth of the bound"))
    low, high, why = intervals.union(parts)
    around = Interval(low - ROUNDING * abs(value), high + ROUNDING * abs(value), why)
    return around if claim.minus is not None else intervals.clipped(around, claim.metric, value)


def table(found: Sequence[Compared]) -> Table:
    """Return a table of recorded and repeated numbers, with one row for each claim and seed."""
    columns = ("experiment", "claim", "seed", "recorded", "here", "expected", "verdict")
    rows = []
    for one in found:
        low, high, why = one.expected
        cells = (str(one.seed), number(one.recorded), number(one.here), f"{span(low, high)} ({why})", one.verdict)
        rows.append((one.experiment, one.claim.text, *cells))
    return Table("Re-run compared with the recorded results", columns, rows, right=("seed", "recorded", "here"))


def machine(environment: Mapping) -> str:
    """Return the differences between two machines that affect numbers."""
    processor = environment.get("processor") or "processor not recorded"
    return f"{processor}, {environment['machine']}, {', '.join(environment['devices'])}, jax {environment['jax']}"


def elsewhere(results: Path) -> list[Table]:
    """Tabulate `reproduce --check` on other machines, one table per check_NAME.json (a copy of its check.json).

    The recorded values are those of the day of the check; some have been measured again since.
    """
    tables = []
    for path in sorted(results.glob("check_*.json")):
        check = read_json(path)
        numbers = [one for one in check["numbers"] if one["verdict"] != "a time"]
        cells = lambda one: (str(one["seed"]), number(one["recorded"]), number(one["here"]), one["verdict"])
        rows = [(one["experiment"], one["claim"], *cells(one)) for one in numbers]
        columns = ("experiment", "claim", "seed", "recorded", "re-run", "verdict")
        where = machine(check["runs"][0]["environment"]["here"])
        tables.append(Table(f"Re-run on {where}", columns, rows, right=("seed", "recorded", "re-run")))
    return tables
