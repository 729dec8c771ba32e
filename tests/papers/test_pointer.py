"""Pointer Networks: equation 3 in NumPy, one step at a time, padding that is never pointed at, sizes by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.options import PointerNetworkConfig
from experiments.papers.pointer import PointerNetwork

MODEL = PointerNetwork(PointerNetworkConfig(hidden_size=4), 3)
DRAW = np.random.default_rng(0)
INPUTS = jnp.asarray(DRAW.normal(size=(2, 5, 3)), jnp.float32)
LENGTH, PREVIOUS = jnp.array([5, 3]), jnp.array([[0, 2, 1, 4], [0, 1, 2, 1]])


@pytest.fixture(scope="module")
def variables():
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0), INPUTS, LENGTH, PREVIOUS)
    assert sum(x.size for x in jax.tree.leaves(shapes)) == 2 * (3 + 4 + 1) * 16 + 2 * 4 * 4 + 4
    return jax.tree.map(lambda x: jnp.asarray(DRAW.normal(size=x.shape), jnp.float32), shapes)


@pytest.fixture(scope="module")
def weights(variables):
    return np.exp(jax.jit(MODEL.apply)(variables, INPUTS, LENGTH, PREVIOUS))


def lstm(p, x, hidden, cell):
    z = x @ p["input_kernel"] + hidden @ p["recurrent_kernel"] + p["bias"]
    i, f, g, o = np.split(z, 4)
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def test_weights_are_equation_3(variables, weights):
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    for row in range(2):
        state, e = (np.zeros(4), np.zeros(4)), []
        for x in np.asarray(INPUTS[row, : LENGTH[row]], np.float64):
            state = lstm(p["encoder"], x, *state)
            e.append(state[0])
        for t, place in enumerate(PREVIOUS[row]):
            state = lstm(p["decoder"], np.asarray(INPUTS[row, place], np.float64), *state)
            score = p["score"]
            u = [score["vector"] @ np.tanh(e_j @ score["key_kernel"] + state[0] @ score["query_kernel"]) for e_j in e]
            np.testing.assert_allclose(weights[row, t, : len(e)], np.exp(u) / np.exp(u).sum(), rtol=1e-4)
            assert not weights[row, t, len(e) :].any()


def test_one_step_at_a_time_is_the_same(variables, weights):
    @jax.jit
    def stepwise():
        cache = MODEL.apply(variables, MODEL.apply(variables, INPUTS, LENGTH, method="encode"), method="start")
        step = lambda cache, previous: MODEL.apply(variables, cache, previous, method="step")[::-1]
        return jax.lax.scan(step, cache, PREVIOUS.T)[1]

    np.testing.assert_allclose(np.exp(stepwise()).swapaxes(0, 1), weights, atol=1e-5)


def test_padding_changes_nothing(variables, weights):
    repadded = jnp.where((jnp.arange(5)[None] < LENGTH[:, None])[:, :, None], INPUTS, 7.0)
    np.testing.assert_allclose(np.exp(jax.jit(MODEL.apply)(variables, repadded, LENGTH, PREVIOUS)), weights, atol=1e-6)


@pytest.mark.slow
def test_underflowing_probability_has_finite_log_and_gradient(variables):
    score = variables["params"]["score"]
    sure = {"params": variables["params"] | {"score": score | {"vector": 1e3 * score["vector"]}}}
    log_p = lambda variables: MODEL.apply(variables, INPUTS, LENGTH, PREVIOUS)[0]
    assert log_p(sure).min() < -200 and np.isfinite(log_p(sure)).all()
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(jax.grad(lambda v: log_p(v).sum())(sure)))
