"""Backpropagation through time: what each variant's gradient is, against sums written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.recurrent import bptt


def step(theta, state, x):
    """s' = tanh(theta s + x), loss s'^2: small enough for a double loop."""
    state = jnp.tanh(theta * state + x)
    return state, jnp.sum(state**2)


XS = jnp.array([0.3, -0.2, 0.5, 0.1, -0.4, 0.2])
THETA, START = jnp.array(1.3), jnp.array([0.2])


def by_hand(factors):
    """d loss / d theta with what flows back through the state entering step t
    multiplied by factors[t]; float64 loops."""
    theta, s, states = float(THETA), float(START[0]), []
    for x in np.asarray(XS, np.float64):
        previous, s = s, np.tanh(theta * s + x)
        states.append((previous, s))
    total = 0.0
    for t, (_, s) in enumerate(states):
        back = 2 * s  # d loss_t / d s_t
        for k in range(t, -1, -1):
            previous, s_k = states[k]
            back *= 1 - s_k**2
            total += back * previous
            back *= theta * factors[k]
    return total


def gradient(run, *args):
    return jax.grad(lambda theta: run(step, theta, START, XS, *args)[0])(THETA)


def test_full_is_the_double_sum():
    np.testing.assert_allclose(gradient(bptt.full), by_hand([1] * 6), rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_truncated_cuts_every_length_steps(length):
    np.testing.assert_allclose(
        gradient(bptt.truncate_regularly, length), by_hand([float(t % length != 0) for t in range(6)]), rtol=1e-5
    )


def test_truncated_longer_than_the_sequence_is_full():
    np.testing.assert_allclose(gradient(bptt.truncate_regularly, 6), gradient(bptt.full), rtol=1e-6)


def test_randomized_scales_what_survives():
    rng = jax.random.key(3)
    factors = bptt.random_factors(rng, 6, 0.4)
    assert {round(float(f), 4) for f in factors} == {0.0, 1.6667}
    np.testing.assert_allclose(gradient(bptt.truncate_randomly, 0.4, rng), by_hand(np.asarray(factors)), rtol=1e-5)


def test_randomized_is_unbiased_by_enumeration():
    """The expectation over all 2^6 patterns of cuts, weighted by their probabilities, is the full gradient."""
    c, total = 0.3, 0.0
    for pattern in np.ndindex(*[2] * 6):
        factors = [0.0 if cut else 1 / (1 - c) for cut in pattern]
        total += np.prod([c if cut else 1 - c for cut in pattern]) * by_hand(factors)
    np.testing.assert_allclose(total, by_hand([1] * 6), rtol=1e-9)


def test_forward_mode_equals_full_gradient_and_continues():
    whole, last, tangent = bptt.forward(step, THETA, START, jnp.zeros(1), XS)
    np.testing.assert_allclose(whole, gradient(bptt.full), rtol=1e-5)
    first, state, carried = bptt.forward(step, THETA, START, jnp.zeros(1), XS[:3])
    second, again, carried = bptt.forward(step, THETA, state, carried, XS[3:])
    np.testing.assert_allclose((first + second, again[0], carried[0]), (whole, last[0], tangent[0]), rtol=1e-5)


def test_values_do_not_depend_on_the_variant():
    loss, state = bptt.full(step, THETA, START, XS)
    for result in (
        bptt.truncate_regularly(step, THETA, START, XS, 2),
        bptt.truncate_randomly(step, THETA, START, XS, 0.5, jax.random.key(0)),
    ):
        assert result[0] == loss and result[1] == state


def test_gradient_norms_are_powers_of_a_linear_step():
    def linear(a, state, x):
        state = a * state + x[None]
        return state, state.sum()

    norms = bptt.gradient_norms(linear, jnp.array(0.5), jnp.zeros(1), jnp.zeros(5))
    np.testing.assert_allclose(norms, 0.5 ** np.arange(5, 0, -1), rtol=1e-6)
