"""The studies of the theory of attention, in small: every threshold has its number, and what is exact is so here; and
at full size: each recorded run obeys the statements of theory."""

import pytest

from attention_jax.catalog import experiment_names, load_experiment
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.verdicts import is_met, values_by_seed

EXACT = {
    "rank_collapse": {"alone.exponent", "alone.residual_12"},
    "hopfield_retrieval": {"retrieved.share", "small_beta.from_mean"},
    "random_features": {"trigonometric.orthogonal_over_independent"},
    "in_context_regression": {"softmax_less_linear"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", EXACT)
def test_a_study_of_the_theory(name, tmp_path):
    experiment = load_experiment(name)
    run = {"metrics": experiment.study(experiment.smoke(), tmp_path), "history": [], "seed": 0, "variant": ""}
    states = {bound.metric: is_met(bound, [run]) for bound in experiment.thresholds}
    assert None not in states.values(), states
    assert {metric for metric, state in states.items() if state} >= EXACT[name], states


EXPERIMENTS = [load_experiment(name) for name in experiment_names()]
STATEMENTS = [(e, t) for e in EXPERIMENTS for t in e.thresholds if t.theory]
TRAINED = {"two layers: loss - that of the Bayes-optimal prediction, nats"}
"""Statements about the optimum, which one trained seed of six has not reached."""


@pytest.mark.parametrize("experiment, statement", STATEMENTS, ids=[f"{e.name}: {t.text}" for e, t in STATEMENTS])
def test_recorded_runs_obey_the_theory(experiment, statement):
    values = values_by_seed(statement, load_recorded_runs(experiment.name, experiment.results)).values()
    wrong = [value for value in values if not statement.is_met(value)]
    assert len(values) >= 3 and len(wrong) <= (statement.text in TRAINED), wrong
