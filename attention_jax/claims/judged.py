"""Claims with their runs and verdicts: `judged` of all claims of an experiment."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.record import finished, recorded_runs, registered
from attention_jax.claims.verdicts import by_seed, judge
from attention_jax.config import Bound, Claim


@dataclass(frozen=True)
class Judged:
    """A claim with its original runs and those of the replication, whose seeds are fresh and registered."""

    experiment: str
    claim: Claim
    original: Sequence[Mapping]
    replication: Sequence[Mapping] = ()
    replication_decides: bool = False
    """Whether the verdict rests on the replication. A bound needs all registered seeds of its variants; a measurement,
    which has no registered seeds, needs one fresh seed. A replication that has been complete stays in force: where one
    of its runs is missing it has no runs, and the claim counts as not run."""
    registered: bool = False
    """Whether the claim has bounds and its variants are registered for the replication."""

    @property
    def runs(self) -> Sequence[Mapping]:
        """The runs on which the verdict rests."""
        return self.replication if self.replication_decides else self.original

    @property
    def verdict(self) -> str:
        return judge(self.claim, self.runs)[1]

    @property
    def survived(self) -> bool | None:
        """Whether original and replication have the same verdict; None if one of them has not been run."""
        before, now = (judge(self.claim, runs)[1] for runs in (self.original, self.replication))
        return None if not self.replicated or before == "not run" else now == before

    @property
    def replicated(self) -> bool:
        """Whether the claim has bounds and a complete replication."""
        return self.replication_decides and bool(self.replication) and self.claim.bounded


def judged(
    experiment: Experiment,
    runs: Sequence[Mapping] | None = None,
    seeds: Mapping[tuple[str, str], frozenset[int]] | None = None,
    others: Sequence[Bound] | None = None,
    ended: Set[tuple[str, str]] = frozenset(),
) -> list[Judged]:
    """Judge all claims of an experiment, or `others` instead, on its recorded runs, or on `runs`.

    `seeds` are the registered seeds by experiment and variant, and `ended` the variants whose registered runs are known
    to have been recorded; by default `registered()` and `finished()`. Runs with a seed below all of the experiment's
    are original. The others replicate a bound if they are registered; a measurement takes them all.
    """
    runs = recorded_runs(experiment.name, experiment.results) if runs is None else runs
    seeds, ended = (registered(), finished()) if seeds is None else (seeds, ended)
    mine = {variant: some for (name, variant), some in seeds.items() if name == experiment.name}
    first = min(frozenset().union(*mine.values()), default=math.inf)
    original = [run for run in runs if run["seed"] < first]
    fresh = [run for run in runs if run["seed"] >= first]
    ran = {(run["variant"], run["seed"]) for run in fresh}

    def one(bound: Bound) -> Judged:
        if isinstance(bound, Claim) and not bound.bounded:
            return Judged(experiment.name, bound, original, fresh, bool(by_seed(bound, fresh)))
        wanted = {variant: mine.get(variant, frozenset()) for variant in {bound.variant, bound.minus} - {None}}
        common = frozenset.intersection(*wanted.values())
        replication = [run for run in fresh if run["seed"] in common]
        complete = bool(common) and common <= by_seed(bound, replication).keys()
        complete &= all((variant, seed) in ran for variant, some in wanted.items() for seed in some)
        was_complete = isinstance(bound, Claim) and all((experiment.name, variant) in ended for variant in wanted)
        replication = replication if complete or not was_complete else []
        decides = bool(common) and (complete or was_complete)
        return Judged(experiment.name, bound, original, replication, decides, bool(common) and bound.bounded)

    return [one(bound) for bound in (experiment.claims if others is None else others)]
