"""Retention and the delta rule: each form against the definition in NumPy, and the forms against each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.ops import delta, linear, retention
from attention_jax.ops.attention import attend
from attention_jax.ops.masks import causal
from attention_jax.ops.normalizers import Signed
from attention_jax.ops.scores import Dot

T, D, V = 37, 5, 3


def case(seed=0, length=T):
    draw = np.random.default_rng(seed)
    query, key = draw.normal(size=(2, length, D))
    key = key / np.linalg.norm(key, axis=1, keepdims=True)
    value, decay = draw.normal(size=(length, V)), -draw.exponential(0.2, size=length)
    return [jnp.asarray(x, jnp.float32) for x in (query, key, value, draw.uniform(0, 2, length), decay)]


def oracle(query, key, value, beta, decay):
    """The recurrence in float64; without beta nothing is taken away from the state."""
    state, out = np.zeros((key.shape[1], value.shape[1])), []
    for t in range(len(query)):
        state = np.exp(decay[t]) * state
        if beta is None:
            state = state + np.outer(key[t], value[t])
        else:
            state = (np.eye(len(key[t])) - beta[t] * np.outer(key[t], key[t])) @ state
            state = state + beta[t] * np.outer(key[t], value[t])
        out.append(query[t] @ state)
    return np.array(out), state


def forms(rule):
    """Functions of (query, key, value, beta, decay, length=None) that return the outputs alone."""
    if rule == "delta":
        return {
            "recurrent": lambda *x, **call: delta.recurrent_delta(*x, **call)[0],
            "chunked": lambda *x, **call: delta.chunked_delta(*x, **call, chunk=8)[0],
            "one chunk": lambda *x, **call: delta.chunked_delta(*x, **call, chunk=100)[0],
        }
    return {
        "quadratic": lambda q, k, v, _, g, **call: retention.quadratic_retention(q, k, v, g, **call),
        "recurrent": lambda q, k, v, _, g, **call: retention.recurrent_retention(q, k, v, g, **call)[0],
        "chunked": lambda q, k, v, _, g, **call: retention.chunked_retention(q, k, v, g, **call, chunk=8)[0],
    }


def with_gradient(function):
    """Outputs, and the gradients of the sum of their sines: one program."""

    def run(*arrays):
        out, pull = jax.vjp(function, *arrays)
        return out, pull(jnp.cos(out))

    return jax.jit(run)


@functools.cache
def recurrent_gradients(rule):
    return with_gradient(forms(rule)["recurrent"])(*case())[1]


EVERY = [(rule, form) for rule in ("retention", "delta") for form in forms(rule)]


@pytest.mark.slow
@pytest.mark.parametrize("rule, form", slow_but([case for case in EVERY if case[1] != "one chunk"], EVERY))
def test_values_and_gradients_of_all_forms_agree(rule, form):
    function, arrays = forms(rule)[form], case()
    expected = oracle(*(np.asarray(x, np.float64) if n != 3 or rule == "delta" else None for n, x in enumerate(arrays)))
    out, gradients = with_gradient(function)(*arrays)
    np.testing.assert_allclose(out, expected[0], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), gradients, recurrent_gradients(rule))


@pytest.mark.slow
@pytest.mark.parametrize("rule, form", slow_but([("retention", "chunked"), ("delta", "chunked")], EVERY))
def test_nan_padding_changes_nothing_under_vmap(rule, form):
    function, (first, second) = forms(rule)[form], (case(1), case(2))
    nan = lambda x: x.at[20:].set(jnp.nan)
    batch = [jnp.stack([nan(a), b]) for a, b in zip(first, second)]
    run = lambda length, *arrays: function(*arrays, length=length)
    actual = jax.jit(jax.vmap(run))(jnp.array([20, T]), *batch)
    alone = jax.jit(function)
    short = alone(*(x[:20] for x in first))
    np.testing.assert_allclose(actual[0], np.concatenate([short, np.zeros((T - 20, V))]), atol=1e-5)
    np.testing.assert_allclose(actual[1], alone(*second), atol=1e-5)
    total = lambda query, key, value: run(20, query, key, value, *(x[0] for x in batch[3:])).sum()
    for gradient in jax.jit(jax.grad(total, (0, 1, 2)))(*(x[0] for x in batch[:3])):
        assert np.isfinite(gradient).all() and not np.asarray(gradient[20:]).any()


@pytest.mark.parametrize("rule", ["retention", "delta"])
def test_a_sequence_may_be_continued_from_its_state(rule):
    query, key, value, beta, decay = case(3)
    recurrent, chunked = {
        "retention": (retention.recurrent_retention, retention.chunked_retention),
        "delta": (delta.recurrent_delta, delta.chunked_delta),
    }[rule]
    rows = (query, key, value, beta, decay) if rule == "delta" else (query, key, value, decay)
    recurrent, chunked = jax.jit(recurrent), jax.jit(chunked, static_argnames="chunk")
    whole, last = recurrent(*rows)
    first, state = chunked(*(x[:30] for x in rows), chunk=16)
    padded, same = chunked(*rows, length=30, chunk=16)
    np.testing.assert_allclose(same, state, atol=1e-6)
    np.testing.assert_allclose(padded[:30], first, atol=1e-6)
    second, end = recurrent(*(x[30:] for x in rows), state=state)
    np.testing.assert_allclose(np.concatenate([first, second]), whole, atol=1e-5)
    np.testing.assert_allclose(end, last, atol=1e-5)


@pytest.mark.slow
def test_retention_without_decay_is_unnormalized_linear_attention():
    query, key, value, _, _ = case()
    expected = attend(query, key, value, score=Dot(), normalizer=Signed(), mask=causal())
    np.testing.assert_allclose(retention.chunked_retention(query, key, value, jnp.zeros(T))[0], expected, atol=1e-5)
    # and with positive features and a column of ones, that with one
    phi = linear.Elu().features
    pooled = retention.chunked_retention(phi(query), phi(key), linear.append_ones(value, value.dtype), jnp.zeros(T))[0]
    expected = linear.recurrent(query, key, value, linear.Elu())
    np.testing.assert_allclose(linear.divide_by_mass(pooled), expected, atol=1e-5)


def test_retnet_decays_double_reach_per_head():
    np.testing.assert_allclose(np.exp(retention.retnet_decays(3)), [31 / 32, 63 / 64, 127 / 128], rtol=1e-6)


@pytest.mark.slow
def test_delta_rule_stores_d_orthogonal_pairs():
    """In any order and however often written, where linear attention returns multiples."""
    keys, values = jnp.eye(D), case()[2][:D]
    order = jnp.array([3, 1, 4, 1, 0, 2, 3])
    state = delta.chunked_delta(keys[order], keys[order], values[order], jnp.ones(7), jnp.zeros(7), chunk=4)[1]
    np.testing.assert_allclose(keys @ state, values, atol=1e-6)
    added = retention.chunked_retention(keys[order], keys[order], values[order], jnp.zeros(7), chunk=4)[1]
    np.testing.assert_allclose(added[1], 2 * values[1], atol=1e-6)


def test_delta_states_may_flip_signs_which_parity_needs():
    """beta = 2 reflects the state (Grazzi et al. 2024): the product of the signs of 9 inputs is kept exactly."""
    all_ones = jnp.ones((9, 1))
    flips = jnp.array([1.0, 0, 1, 1, 0, 0, 1, 1, 1])
    run = jax.jit(
        lambda beta: delta.chunked_delta(
            all_ones, all_ones, 0 * all_ones, beta, jnp.zeros(9), state=all_ones[:1], chunk=4
        )
    )
    out, _ = run(2.0 * flips)
    np.testing.assert_allclose(out[:, 0], np.cumprod(1 - 2 * np.asarray(flips)), atol=1e-6)


@pytest.mark.parametrize("rule, form", [("retention", "quadratic"), ("retention", "chunked"), ("delta", "chunked")])
def test_half_precision_is_summed_in_float32(rule, form):
    half = [x.astype(jnp.bfloat16) for x in case()]
    run = jax.jit(forms(rule)[form])
    actual, expected = run(*half), run(*(x.astype(jnp.float32) for x in half))
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(jnp.float32), expected, rtol=2**-8, atol=1e-6)
