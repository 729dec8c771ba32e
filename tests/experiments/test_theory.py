"""The studies of the theory of attention, in small: every claim finds its number, and what is exact is so here."""

import pytest

from attention_jax.claims.catalog import load_experiment
from attention_jax.claims.verdicts import judge

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
    verdicts = {claim.metric: judge(claim, [run])[1] for claim in experiment.claims}
    assert "not run" not in verdicts.values(), verdicts
    assert {metric for metric, verdict in verdicts.items() if verdict == "holds"} >= EXACT[name], verdicts
