"""Theorems that could not fail as claims: what the shapes of matrix products or a closed form fix beforehand."""

import jax
import numpy as np
import pytest

from attention_jax import attend, masked_softmax, scores
from experiments import complexity, exact_identities, linear_attention

N, D = 32, 256


@pytest.mark.parametrize(
    ("name", "in_length", "in_width"), [("convolution", 1, 2), ("recurrent", 1, 2), ("self-attention", 2, 1)]
)
def test_the_operations_of_table_1(name, in_length, in_width):
    """Vaswani et al. 2017, table 1: twice the length, or twice the width, is twice or four times the operations."""
    counted = complexity.operations(name, N, D)
    assert complexity.operations(name, 2 * N, D) / counted == pytest.approx(2**in_length, rel=0.05)
    assert complexity.operations(name, N, 2 * D) / counted == pytest.approx(2**in_width, rel=0.05)


def test_self_attention_costs_as_recurrence_at_equal_width():
    counted = [complexity.operations(name, 64, 64) for name in ("self-attention", "recurrent")]
    assert counted[0] / counted[1] == pytest.approx(1, rel=0.1)


@pytest.mark.parametrize(("implementation", "power"), [("linear", 1), ("plain", 2)])
def test_linear_attention_operations_grow_linearly(implementation, power):
    """Katharopoulos et al. 2020, section 3.2. Compiles two programs each, for their memory."""
    (few, little), (many, much) = (linear_attention.costs(implementation, length) for length in (512, 1024))
    assert many / few == pytest.approx(2**power, rel=0.04)
    assert much / little <= 2.05 if implementation == "linear" else much / little > 3


def test_scaled_scores_have_unit_variance():
    actual = exact_identities.variance(jax.random.key(0), 64, 40_000, scores.ScaledDot())
    assert actual == pytest.approx(1, abs=0.04)


def test_the_jacobian_at_two_equal_logits():
    """[[1, -1], [-1, 1]] / 4, whose norm is 1/2."""
    softmax = lambda logits: masked_softmax(logits[None], np.ones((1, 2), bool))[0]
    actual = np.asarray(jax.jacobian(softmax)(np.full(2, 3.0, np.float32)))
    np.testing.assert_allclose(actual, [[0.25, -0.25], [-0.25, 0.25]], atol=1e-6)
    assert np.linalg.norm(actual, 2) == pytest.approx(0.5, abs=1e-5)


@pytest.mark.slow
def test_a_step_never_raises_the_hopfield_energy():
    """Ramsauer et al. 2021, theorem 1, in float64: for random states and for states near a fixed point."""
    rng = np.random.default_rng(0)
    state, key = rng.normal(size=(64, 16)), rng.normal(size=(32, 16))
    energy = lambda q: 0.5 * (q**2).sum(-1) - np.log(np.exp(q @ key.T).sum(-1))
    with jax.enable_x64(True):
        for _ in range(6):
            step = np.asarray(attend(state, key, key, score=scores.Dot()))
            assert np.all(energy(step) <= energy(state) + 1e-12)
            state = step
