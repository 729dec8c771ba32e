"""Claims with the runs and the verdict that belong to them: `judge_claims` of an experiment."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from attention_jax.claims.catalog import Experiment
from attention_jax.claims.record import load_finished_variants, load_recorded_runs, load_registered_seeds
from attention_jax.claims.verdicts import judge, values_by_seed
from attention_jax.config import Bound, Claim


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with its original runs and with the runs of its replication, which have fresh, registered seeds."""

    experiment: str
    claim: Claim
    original: Sequence[Mapping]
    replication: Sequence[Mapping] = ()
    replication_decides: bool = False
    """Whether `replication` decides the verdict. A bound needs all registered seeds of its variants; a measurement,
    which has no registered seeds, needs one fresh seed. Once complete, a replication always
    decides: if one of its runs has gone missing since, `replication` is empty and the claim counts as not run, instead
    of being judged by the original runs."""
    is_registered: bool = False
    """Whether the claim has bounds and its variants are registered for the replication."""

    @property
    def runs(self) -> Sequence[Mapping]:
        """The runs that decide the verdict."""
        return self.replication if self.replication_decides else self.original

    @property
    def verdict(self) -> str:
        return judge(self.claim, self.runs)[1]

    @property
    def verdicts_agree(self) -> bool | None:
        """Whether the replication has the verdict of the original runs; None if one of the two has not been run."""
        original_verdict, replicated_verdict = (
            judge(self.claim, runs)[1] for runs in (self.original, self.replication)
        )
        return (
            None if not self.is_replicated or original_verdict == "not run" else replicated_verdict == original_verdict
        )

    @property
    def is_replicated(self) -> bool:
        """Whether the claim has bounds and a complete replication."""
        return self.replication_decides and bool(self.replication) and self.claim.has_bounds


def judge_claims(
    experiment: Experiment,
    runs: Sequence[Mapping] | None = None,
    registered_seeds: Mapping[tuple[str, str], frozenset[int]] | None = None,
    bounds: Sequence[Bound] | None = None,
    finished_variants: Set[tuple[str, str]] = frozenset(),
) -> list[JudgedClaim]:
    """Judge all claims of an experiment (or the given `bounds`) by its recorded runs (or the given `runs`).

    `registered_seeds` are by experiment and variant; `finished_variants` are the variants whose registered runs
    have all been recorded. Without `registered_seeds` both come from the
    registration files. Runs with a seed below all registered ones
    are original. Other runs replicate a bound if their seed is registered; a measurement (a claim without
    bounds) takes every run with a fresh seed.
    """
    runs = load_recorded_runs(experiment.name, experiment.results) if runs is None else runs
    registered_seeds, finished_variants = (
        (load_registered_seeds(), load_finished_variants())
        if registered_seeds is None
        else (registered_seeds, finished_variants)
    )
    seeds_by_variant = {
        variant: variant_seeds for (name, variant), variant_seeds in registered_seeds.items() if name == experiment.name
    }
    first_fresh_seed = min(frozenset().union(*seeds_by_variant.values()), default=math.inf)
    original = [run for run in runs if run["seed"] < first_fresh_seed]
    fresh = [run for run in runs if run["seed"] >= first_fresh_seed]
    recorded_pairs = {(run["variant"], run["seed"]) for run in fresh}

    def judge_bound(bound: Bound) -> JudgedClaim:
        if isinstance(bound, Claim) and not bound.has_bounds:
            return JudgedClaim(experiment.name, bound, original, fresh, bool(values_by_seed(bound, fresh)))
        needed_seeds = {
            variant: seeds_by_variant.get(variant, frozenset()) for variant in {bound.variant, bound.minus} - {None}
        }
        shared_seeds = frozenset.intersection(*needed_seeds.values())
        replication = [run for run in fresh if run["seed"] in shared_seeds]
        is_complete = bool(shared_seeds) and shared_seeds <= values_by_seed(bound, replication).keys()
        is_complete &= all(
            (variant, seed) in recorded_pairs
            for variant, variant_seeds in needed_seeds.items()
            for seed in variant_seeds
        )
        was_finished = isinstance(bound, Claim) and all(
            (experiment.name, variant) in finished_variants for variant in needed_seeds
        )
        replication = replication if is_complete or not was_finished else []
        replication_decides = bool(shared_seeds) and (is_complete or was_finished)
        return JudgedClaim(
            experiment.name, bound, original, replication, replication_decides, bool(shared_seeds) and bound.has_bounds
        )

    return [judge_bound(bound) for bound in (experiment.claims if bounds is None else bounds)]
