"""Sums over alignments against the enumeration of all of them, in NumPy and float64."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.ops.attention import attend
from attention_jax.ops.lattice import expected_monotonic, hard_attention, hidden_markov, monotonic_transitions
from attention_jax.ops.pooling import LogMixture
from attention_jax.ops.scores import Dot

T, S = 4, 5
DRAW = np.random.default_rng(0)


def log_softmax(x):
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


ALIGN, EMISSION = log_softmax(DRAW.normal(size=(T, S))), -DRAW.exponential(size=(T, S))
INITIAL, TRANSITION = log_softmax(DRAW.normal(size=S)), DRAW.normal(size=(T - 1, S, S))


def enumerate_alignments(log_probability, targets, sources):
    """(log of the sum over all alignments, posterior [T, S] of each position)."""
    total, posterior = 0.0, np.zeros((T, S))
    for alignment in itertools.product(range(sources), repeat=targets):
        p = np.exp(log_probability(alignment))
        total += p
        for t, s in enumerate(alignment):
            posterior[t, s] += p
    return np.log(total), posterior / total


def check(function, log_probability, targets=T, sources=S):
    """Value and gradient of `function(emission)`, computed in float32, against the enumeration."""
    likelihood, gradient = jax.jit(jax.value_and_grad(function))(jnp.asarray(EMISSION, jnp.float32))
    expected, posterior = enumerate_alignments(log_probability, targets, sources)
    np.testing.assert_allclose(likelihood, expected, atol=2e-6)
    np.testing.assert_allclose(gradient, posterior, atol=1e-6)


@pytest.mark.parametrize("targets, sources", slow_but([(T, S), (3, 2)], [(T, S), (3, 2), (1, 1)]))
def test_hard_attention(targets, sources):
    log_probability = lambda a: sum(ALIGN[t, s] + EMISSION[t, s] for t, s in enumerate(a))
    check(lambda e: hard_attention(jnp.float32(ALIGN), e, sources, targets), log_probability, targets, sources)


def test_hard_attention_is_attention_that_pools_log_probabilities():
    query, key = jnp.float32(DRAW.normal(size=(T, 3))), jnp.float32(DRAW.normal(size=(S, 3)))

    @jax.jit
    def both():
        pooled = attend(query, key, jnp.float32(EMISSION.T), score=Dot(), pool=LogMixture())  # [T, T]
        return hard_attention(jax.nn.log_softmax(query @ key.T), jnp.float32(EMISSION)), jnp.diagonal(pooled).sum()

    np.testing.assert_allclose(*both(), atol=1e-6)


@pytest.mark.parametrize("targets, sources", slow_but([(T, S), (3, 2)], [(T, S), (3, 2), (1, 1)]))
@pytest.mark.parametrize("forward_only", [False, True], ids=["any", "monotonic"])
def test_hidden_markov(targets, sources, forward_only):
    if forward_only:
        transition = monotonic_transitions(jnp.float32(TRANSITION), sources)
        ahead = np.triu(np.ones((S, S))) * (np.arange(S) < sources)
        scores = np.exp(TRANSITION) * ahead
        with np.errstate(divide="ignore", invalid="ignore"):
            expected = np.log(scores / scores.sum(-1, keepdims=True))
        np.testing.assert_allclose(transition[:, :sources, :sources], expected[:, :sources, :sources], atol=1e-6)
        assert not np.isnan(transition).any()
    else:
        expected = log_softmax(TRANSITION)
        transition = jnp.float32(expected)

    def log_probability(a):
        steps = sum(expected[t - 1, a[t - 1], a[t]] for t in range(1, len(a)))
        return INITIAL[a[0]] + steps + sum(EMISSION[t, s] for t, s in enumerate(a))

    call = lambda e: hidden_markov(jnp.float32(INITIAL), transition, e, sources, targets)
    check(call, log_probability, targets, sources)


@pytest.mark.slow
def test_constant_transitions_reduce_to_hard_attention():
    align, emission = jnp.float32(ALIGN), jnp.float32(EMISSION)
    transition = jnp.broadcast_to(align[1:, None, :], (T - 1, S, S))
    actual = hidden_markov(align[0], transition, emission)
    np.testing.assert_allclose(actual, hard_attention(align, emission), atol=1e-6)


@pytest.mark.slow
def test_transition_gradients_are_zero_in_padding():
    def loss(scores, emission, length):
        return hidden_markov(jnp.float32(INITIAL), monotonic_transitions(scores, length), emission, length, 3)

    arrays = jnp.float32(TRANSITION), jnp.float32(EMISSION).at[:, 3:].set(jnp.nan).at[3:].set(jnp.nan)
    lengths = jnp.array([1, 3])
    batch = jax.vmap(jax.grad(loss, (0, 1)), in_axes=(None, None, 0))(*arrays, lengths)
    for gradient in batch:
        assert np.isfinite(gradient).all()
    assert not np.asarray(batch[0][:, :, :, 3:]).any() and not np.asarray(batch[0][:, 2]).any()
    eps = 1e-2
    direction = jnp.float32(np.random.default_rng(5).normal(size=TRANSITION.shape))
    moved = [loss(arrays[0] + sign * eps * direction, jnp.float32(EMISSION), 3) for sign in (1, -1)]
    np.testing.assert_allclose((batch[0][1] * direction).sum(), (moved[0] - moved[1]) / (2 * eps), atol=1e-3)


@pytest.mark.parametrize("sources", [S, 3])
def test_expected_monotonic_alignments(sources):
    """Raffel et al. 2017, section 2.2: from where the last target stopped, pass or stop at each source position."""
    stop = DRAW.uniform(size=(T, S))
    expected = np.zeros((T, S))
    for targets in range(1, T + 1):
        for alignment in itertools.combinations_with_replacement(range(sources), targets):
            p, previous = 1.0, 0
            for t, s in enumerate(alignment):
                p *= np.prod(1 - stop[t, previous:s]) * stop[t, s]
                previous = s
            expected[targets - 1, alignment[-1]] += p
    actual = jax.jit(expected_monotonic, static_argnums=1)(jnp.float32(stop), sources)
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    assert np.all(actual.sum(1) < 1)


@pytest.mark.slow
def test_expected_monotonic_edge_cases_and_start():
    """Probabilities of 0 and 1, at which a quotient of products would be 0 / 0."""
    stop = jnp.array([[0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    assert expected_monotonic(stop).tolist() == [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    assert expected_monotonic(stop, start=jnp.array([0.0, 0.0, 1.0]))[0].tolist() == [0.0, 0.0, 0.5]
    gradient = jax.grad(lambda stop: jnp.square(expected_monotonic(stop)).sum())(stop)
    assert np.isfinite(gradient).all() and np.asarray(gradient).any()
