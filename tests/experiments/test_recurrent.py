"""Studies of recurrent computation and of layers: what they compute, against NumPy loops and counts by hand."""

import jax
import numpy as np
import pytest

from experiments import bptt_unbiasedness, complexity, influence_balancing, nadaraya_watson
from experiments.peers import numpy_influence


@pytest.fixture(scope="module")
def peer():
    """The final losses of the NumPy program."""
    return numpy_influence.final_losses(200, truncations=(1, 10), seeds=2)


@pytest.mark.slow
@pytest.mark.parametrize("length, seed", [(1, 0), (10, 0), ("forward", 0), ("randomised", 0), ("randomised", 1)])
def test_influence_balancing_is_the_other_program(peer, length, seed):
    with jax.enable_x64(True):
        actual = influence_balancing.losses(200, length, seed)[-1]
    name = {"forward": "forward_mode", "randomised": f"randomised_seed_{seed}"}.get(length, f"truncation_{length}")
    np.testing.assert_allclose(actual, peer[f"loss.{name}"], rtol=1e-9)


def test_randomized_gradients_alone_are_unbiased():
    with jax.enable_x64(True):
        randomized, truncated = bptt_unbiasedness.z_scores(4_000)
    assert np.abs(randomized).max() < 4 and np.abs(truncated).max() > 20


def test_operations_are_counted_as_by_hand():
    n, d = 8, 64
    for name, products in (
        ("convolution", 3 * n * d * d),
        ("recurrent", 2 * n * d * d),
        ("self-attention", 2 * n * n * d),
    ):
        assert (
            2 * products <= complexity.operations(name, n, d) <= 2 * products * 1.15
        )  # a multiplication and an addition; the rest is small


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "steps", "hops"), [("convolution", 1, 7), ("recurrent", 8, 8), ("self-attention", 2, 1)]
)
def test_sequential_steps_and_path_lengths(name, steps, hops):
    assert complexity.sequential_steps(name, 8) == steps and complexity.path_length(name, 8) == hops


def test_samples_follow_the_curve():
    x, y = nadaraya_watson.sample(np.random.default_rng(0), 2_000)
    assert x.shape == y.shape == (2_000, 1) and np.all(np.diff(x[:, 0]) >= 0)
    assert abs(np.mean(y - nadaraya_watson.curve(x))) < 0.1 and abs(np.var(y - nadaraya_watson.curve(x)) - 1) < 0.15
