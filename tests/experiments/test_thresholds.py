"""Bounds of this project: the recorded runs meet each of them, or do not where its file says `missed`."""

import pytest

from attention_jax import catalog
from attention_jax.claims.verdicts import is_met, median_value, present_runs

EXPERIMENTS = [catalog.load_experiment(name) for name in catalog.experiment_names()]
BOUNDS = [(e, t) for e in EXPERIMENTS for t in e.thresholds if not t.theory]


@pytest.mark.parametrize("experiment, bound", BOUNDS, ids=[f"{e.name}: {t.text}" for e, t in BOUNDS])
def test_recorded_runs_are_on_the_stated_side_of_a_bound(experiment, bound):
    runs = present_runs(experiment)
    assert is_met(bound, runs) is not bound.missed, median_value(bound, runs)
