"""The studies of the theory of attention, in small: every threshold has its number, and what is exact is so here."""

import pytest

from attention_jax.claims.catalog import load_experiment
from attention_jax.claims.verdicts import is_met

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
