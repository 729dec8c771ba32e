"""Every law fails for a broken subject, and the cheap ones are seen to hold; passports of attention functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend, masks, normalizers
from attention_jax.claims.catalog import load_experiment
from attention_jax.claims.verdicts import within
from attention_jax.laws import LAWS, memory, regression, weights

CLAIMS = {claim.metric: claim for claim in load_experiment("laws").claims}
causal = functools.partial(attend, mask=masks.causal())


def cooled(query, key, value):
    """Softmax attention with a temperature that falls as the logarithm of the keys."""
    return attend(query * np.log(len(key)) ** 2, key, value)


BROKEN = {
    "kernel.rate_inside": weights.sparse,  # its width depends on n
    "kernel.rate_boundary": cooled,
    "kernel.local_linear_rate_boundary": regression.local_constant,
    "kernel.ridge_error": lambda query, x, y: regression.local_constant(query, x, y, 1.0),
    "kernel.parallax_error": lambda query, key, value, probe: regression.parallax(query, key, value, -probe),
    "weights.dispersion": weights.sparse,
    "weights.concentration": attend,
    "weights.retrieval_error": attend,
    "weights.retrieval_error_below": functools.partial(attend, normalizer=normalizers.TopK(1)),
    "weights.growth_sigmoid": weights.biased_sigmoid,
    "weights.growth": weights.sigmoid,
    "weights.sink_softmax": normalizers.ReluPower(1),
    "weights.sink_relu": normalizers.Softmax(),
    "weights.sink_softmax_loss": normalizers.Sigmoid(-20.0),
    "weights.sink_relu_loss": normalizers.Sigmoid(-20.0),
    "weights.own_value": attend,
    "weights.permutation_error": causal,
    "weights.closure_errors": causal,
    "memory.hebbian_crosstalk": memory.delta,
    "memory.delta_last_error": memory.hebbian,
    "memory.least_squares_residual": memory.delta,
    "memory.exact_flow_error": lambda beta, key: beta,
    "memory.duality_error": lambda query, key, value, log_decay: memory.linear(query, key, value),
    "memory.state_rank": attend,
    "memory.parity_positive": jnp.array([2.0]),
    "memory.parity_negative": jnp.array([0.5]),
}
"""{metric: a subject for which the law must fail}"""
TRAINED = [metric for metric in LAWS if "sink" in metric]
CHEAP = ("weights.own_value", "weights.permutation_error", "memory.exact_flow_error", "weights.retrieval_error")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer points, keys and steps: what is exact is so at any size, and a broken subject is far off."""
    monkeypatch.setattr(regression, "SIZES", (500, 2_000))
    monkeypatch.setattr(weights, "SIZES", (16, 4_096, 16_384))


def number(metric, subject) -> float:
    with jax.numpy_dtype_promotion("standard" if metric in TRAINED else "strict"):  # optax promotes its step count
        return LAWS[metric].measure(subject, 3)


def test_every_law_has_a_claim_and_a_broken_subject():
    assert list(LAWS) == list(CLAIMS) == list(BROKEN)


@pytest.mark.parametrize("metric", slow_but(CHEAP, LAWS))
def test_a_law_holds_for_its_subject_and_fails_for_a_broken_one(metric):
    """One or two compiled programs for each subject; a head is trained for 2,000 steps in the slow tier."""
    found = number(metric, LAWS[metric].subject)
    assert within(CLAIMS[metric], found), found
    broken = number(metric, BROKEN[metric])
    assert not within(CLAIMS[metric], broken), broken


def test_least_error_of_a_threshold_by_hand():
    """States 0, 0, 1, 2 of odd, even, odd, even: no threshold between equal states, 3 of 4 are right at best."""
    odd = np.array([True, False, True, False])
    assert memory.best_threshold(np.array([0.0, 0.0, 1.0, 2.0]), odd) == 0.75
    assert memory.best_threshold(np.array([1.0, 2.0, 1.0, 2.0]), odd) == 1.0
    assert memory.best_threshold(np.zeros(4), odd) == 0.5
