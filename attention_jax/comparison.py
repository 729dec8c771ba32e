"""A number that came now, held against the recorded one: what is expected of it, and what is said."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from attention_jax.catalogue import Experiment
from attention_jax.config import Claim
from attention_jax.files import read_json
from attention_jax.ledger import recorded
from attention_jax.report import intervals
from attention_jax.report.intervals import Interval
from attention_jax.report.tables import Table, number, span
from attention_jax.report.verdicts import by_seed, noise

TRAINED, COMPUTED = 0.05, 0.02
"""How far a number of which no noise was recorded may be off, as a share of it: of a training, of a computation."""
ROUNDING = 1e-3
"""This share of a number is never a difference."""


@dataclass(frozen=True)
class Compared:
    """A claim's number as it was recorded and as it came now."""

    experiment: str
    claim: Claim
    seed: int
    recorded: float
    here: float | None
    """None if the run has no such number, as one that diverged."""
    expected: Interval

    @property
    def verdict(self) -> Literal["OK", "differs", "a time"]:
        """a time is another one on another machine, and not judged."""
        if self.claim.timed:
            return "a time"
        agrees = self.here is not None and self.expected.low <= self.here <= self.expected.high
        return "OK" if agrees else "differs"


def compared(done: Sequence[tuple[Experiment, Mapping]]) -> list[Compared]:
    """Every claim of which all runs were done again; of a difference these are two of the same seed."""
    found = []
    for experiment in {experiment.name: experiment for experiment, _ in done}.values():
        now = [result for one, result in done if one is experiment]
        then = recorded(experiment.name, experiment.results)["runs"]
        ran = {(run["variant"], run["seed"]) for run in now}
        for claim in experiment.claims:
            here = by_seed(claim, now)
            for seed, value in by_seed(claim, then).items():
                if {(claim.variant, seed), (claim.variant if claim.minus is None else claim.minus, seed)} <= ran:
                    about = expected(claim, then, seed)
                    found.append(Compared(experiment.name, claim, seed, value, here.get(seed), about))
    return found


def expected(claim: Claim, then: Sequence[Mapping], seed: int) -> Interval:
    """Where the number of a seed has to lie that is run again: the union of what is known of its noise.

    That is where another seed would lie, by Student's t of three or more recorded ones, or between two; and what other
    test examples might give (`intervals.sampling`), or, where neither that nor three seeds are known, TRAINED or
    COMPUTED. An error that a claim bounds from above and that was computed to a tenth of the bound or less is rounding:
    up to the tenth.
    """
    values = by_seed(claim, then)
    value, seeds = values[seed], list(values.values())
    computed = not any("steps" in run for run in then)
    parts = [intervals.another_seed(seeds)] if len(seeds) > 2 else []
    if len(seeds) == 2:
        parts = [Interval(min(seeds), max(seeds), "2 seeds")]
    found = noise(claim, then, seed, 0.0 if len(seeds) > 2 else COMPUTED if computed else TRAINED)
    parts += [found] if found else []
    if computed and claim.at_least is None and claim.at_most is not None and 0 <= value <= claim.at_most / 10:
        parts.append(Interval(0.0, claim.at_most / 10, "a tenth of the bound"))
    low, high, why = intervals.union(parts)
    return Interval(low - ROUNDING * abs(value), high + ROUNDING * abs(value), why)


def table(found: Sequence[Compared]) -> Table:
    """Recorded beside what came now, a claim and seed a row."""
    columns = ("experiment", "claim", "seed", "recorded", "here", "expected", "verdict")
    rows = []
    for one in found:
        low, high, why = one.expected
        cells = (str(one.seed), number(one.recorded), number(one.here), f"{span(low, high)} ({why})", one.verdict)
        rows.append((one.experiment, one.claim.text, *cells))
    return Table("Re-run compared with the recorded results", columns, rows, right=("seed", "recorded", "here"))


def machine(environment: Mapping) -> str:
    """What makes numbers differ between two machines."""
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
