"""The Neural Turing Machine: parameter counts by hand, one step by hand, causality, and its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.config import NTMConfig, StackedLSTMConfig
from attention_jax.models import ntm
from attention_jax.ops import addressing as ops


def count(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def small():
    model = ntm.NTM(NTMConfig(hidden_size=5, num_read_heads=2, num_write_heads=1, num_locations=6, word_size=3), 2)
    inputs = jax.random.bernoulli(jax.random.key(0), 0.5, (2, 4, 3)).astype(jnp.float32)
    return model, jax.jit(model.init)(jax.random.key(1), inputs), inputs


def test_parameters_of_the_papers_copy_machine():
    """120 (reads and hidden state) into 400 gates, 9 inputs into them, 92 numbers for two heads, output from hidden
    state and read."""
    params = jax.eval_shape(ntm.NTM(NTMConfig(), 8).init, jax.random.key(0), jnp.zeros((1, 1, 9)))
    interface = 2 * (20 + 1 + 1 + 1 + 3) + 2 * 20
    assert interface == 92
    assert count(params) == 120 * 400 + 9 * 400 + 400 + 100 * 92 + 92 + 120 * 8 + 8 + 100 + 100 + 20


def test_parameters_of_the_baseline():
    params = jax.eval_shape(ntm.StackedLSTM(StackedLSTMConfig(), 8).init, jax.random.key(0), jnp.zeros((1, 1, 9)))
    assert count(params) == (9 + 256 + 1) * 1024 + 2 * (256 + 256 + 1) * 1024 + 257 * 8


@pytest.mark.parametrize("init, extra", [("constant", 0), ("learned", 18), ("random", 18)])
def test_memory_initialization_adds_the_memory_itself(init, extra):
    def size(init):
        machine = ntm.NTM(NTMConfig(num_locations=6, word_size=3, memory_init=init), 2)
        return count(jax.eval_shape(machine.init, jax.random.key(0), jnp.zeros((1, 1, 3))))

    assert size(init) - size("constant") == extra


@pytest.mark.slow
@pytest.mark.parametrize(("init", "moves"), slow_but([("random", False)], [("random", False), ("learned", True)]))
def test_only_learned_memory_gets_a_gradient(init, moves):
    model = ntm.NTM(NTMConfig(hidden_size=5, num_locations=6, word_size=3, memory_init=init), 2)
    params = jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 3, 3)))
    gradient = jax.jit(jax.grad(lambda p: (model.apply(p, jnp.ones((1, 3, 3)))[0] ** 2).sum()))(params)["params"][
        "memory_start"
    ]
    assert bool((gradient != 0).any()) == moves


def test_first_step_by_hand(small):
    model, params, inputs = small
    p = jax.tree.map(np.asarray, params["params"])
    logits, head_weights = jax.jit(lambda: model.apply(params, inputs, return_weights=True))()
    reads, hidden, cell = p["reads_start"].reshape(-1), p["hidden_start"], p["cell_start"]
    gates = (
        np.asarray(inputs[0, 0]) @ p["input"]["kernel"]
        + p["input"]["bias"]
        + np.concatenate([reads, hidden]) @ p["controller"]
    )
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    i, f, g, o = np.split(gates, 4)
    hidden = sigmoid(o) * np.tanh(sigmoid(f) * cell + sigmoid(i) * np.tanh(g))
    emitted = hidden @ p["heads"] + p["heads_bias"]
    heads, erase_add = emitted[:27].reshape(3, 9), emitted[27:]
    softplus, memory, start = lambda x: np.log1p(np.exp(x)), np.full((6, 3), 1e-6), np.eye(6)[0]
    weights = []
    for head in heads:  # key, beta, g, gamma, shifts
        address = (
            np.tanh(head[:3]),
            softplus(head[3]),
            sigmoid(head[4]),
            np.exp(head[6:]) / np.exp(head[6:]).sum(),
            1 + softplus(head[5]),
        )
        address = ops.Address(*(jnp.float32(a) for a in address))
        weights.append(np.asarray(ops.locate(memory.astype(np.float32), start.astype(np.float32), address)))
    memory = memory * (1 - np.outer(weights[0], sigmoid(erase_add[:3]))) + np.outer(weights[0], np.tanh(erase_add[3:]))
    features = np.concatenate([hidden, (np.array(weights[1:]) @ memory).reshape(-1)])
    np.testing.assert_allclose(head_weights["write"][0, 0], weights[:1], atol=1e-5)
    np.testing.assert_allclose(head_weights["read"][0, 0], weights[1:], atol=1e-5)
    np.testing.assert_allclose(logits[0, 0], features @ p["output"]["kernel"] + p["output"]["bias"], atol=1e-5)


def test_reorder_gates_moves_drawn_blocks():
    """Flax draws the kernels as it did when the results were recorded; the last two quarters change places."""
    dense = jax.nn.initializers.lecun_normal()
    draws = np.split(dense(jax.random.key(3), (7, 8)), 4, axis=1)
    reordered = np.split(ntm.reorder_gates(dense)(jax.random.key(3), (7, 8)), 4, axis=1)
    for now, then in enumerate([0, 1, 3, 2]):
        np.testing.assert_array_equal(reordered[now], draws[then])


@pytest.mark.slow
@pytest.mark.parametrize("controller", ["lstm", "feedforward"])
def test_causal_finite_and_rows_do_not_meet(controller):
    model = ntm.NTM(NTMConfig(controller, hidden_size=5, num_locations=6, word_size=3), 2)
    inputs = jax.random.normal(jax.random.key(0), (2, 4, 3))
    params = jax.jit(model.init)(jax.random.key(1), inputs)
    jacobian = jax.jit(jax.jacrev(lambda x: model.apply(params, x)[0]))(inputs)  # [B, T, O, B, T, I]
    assert np.isfinite(jacobian).all()
    for t in range(4):
        assert np.all(jacobian[:, t, :, :, t + 1 :] == 0) and np.any(jacobian[0, t, :, 0, : t + 1] != 0)
    assert np.all(jacobian[0, :, :, 1] == 0)
    if controller == "feedforward":  # what it remembers of the first input went through the memory
        assert np.any(jacobian[0, 3, :, 0, 0] != 0)


def test_weights_are_distributions(small):
    model, params, inputs = small
    logits, head_weights = jax.jit(lambda: model.apply(params, inputs, return_weights=True))()
    assert head_weights["write"].shape == (2, 4, 1, 6) and head_weights["read"].shape == (2, 4, 2, 6)
    for weights in head_weights.values():
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(jax.jit(model.apply)(params, inputs)[0], logits, atol=1e-6)


@pytest.mark.slow
def test_gradients_stay_finite_on_extreme_inputs():
    model = ntm.NTM(NTMConfig(hidden_size=4, num_locations=5, word_size=3), 1)
    params = jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 1, 2)))
    huge = jax.tree.map(lambda x: 100 * x, params)
    gradient = jax.jit(jax.grad(lambda p: (model.apply(p, jnp.ones((1, 50, 2)))[0] ** 2).sum()))(huge)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradient))
