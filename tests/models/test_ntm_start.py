"""A Turing machine whose whole first state is trained and that reads before it writes, as in the code of Collier & Beel
2018 (MarkPKCollier/NeuralTuringMachine, ntm.py), beside that code's equations in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import NTMConfig
from attention_jax.models.ntm import NTM

SIZES = {"hidden_size": 5, "num_locations": 6, "word_size": 3}
SOURCE_OPTIONS = {"state_init": "trained", "read_first": True, "controller_init": "xavier"}
INPUTS = jax.random.bernoulli(jax.random.key(0), 0.5, (1, 3, 4)).astype(jnp.float32)

sigmoid = lambda x: 1 / (1 + np.exp(-x))
softplus = lambda x: np.log1p(np.exp(x))
softmax = lambda x: np.exp(x) / np.exp(x).sum()


def source_logits(p: dict, inputs: np.ndarray, memory: np.ndarray) -> list[np.ndarray]:
    """NTMCell.__call__ from NTMCell.zero_state, with one read head and one write head. Our controller emits for the
    write head first, and a head's numbers in another order."""
    read = np.tanh(p["reads_start"][0, 0])
    write_w, read_w = (softmax(row[0]) for row in p["weights_start"])
    hidden = cell = np.zeros(5)
    logits = []
    for x in inputs:
        gates = x @ p["input"]["kernel"] + p["input"]["bias"] + np.concatenate([read, hidden]) @ p["controller"]
        i, f, g, o = np.split(gates, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden = sigmoid(o) * np.tanh(cell)
        emitted = hidden @ p["heads"] + p["heads_bias"]
        write_w, read_w = (
            source_addressing(*head, memory) for head in zip(emitted[:18].reshape(2, 9), (write_w, read_w), strict=True)
        )
        read = read_w @ memory  # before the write
        erase, add = sigmoid(emitted[18:21]), np.tanh(emitted[21:])
        memory = memory * (1 - np.outer(write_w, erase)) + np.outer(write_w, add)
        logits.append(np.concatenate([hidden, read]) @ p["output"]["kernel"] + p["output"]["bias"])
    return logits


def source_addressing(head, previous, memory):
    """NTMCell.addressing: equations (5) to (9)."""
    key, beta, gate, gamma, shifts = (
        np.tanh(head[:3]),
        softplus(head[3]),
        sigmoid(head[4]),
        1 + softplus(head[5]),
        head[6:],
    )
    cosine = memory @ key / (np.linalg.norm(memory, axis=1) * np.linalg.norm(key) + 1e-8)
    gated = gate * softmax(beta * cosine) + (1 - gate) * previous
    back, stay, forward = softmax(shifts)
    moved = back * np.roll(gated, -1) + stay * gated + forward * np.roll(gated, 1)
    return moved**gamma / (moved**gamma).sum()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["constant", "learned", "random"])
def test_a_trained_start_is_that_of_the_source(kind):
    model = NTM(NTMConfig(**SIZES, **SOURCE_OPTIONS, memory_init=kind, forget_bias=1.0), 4)
    params = jax.jit(model.init)(jax.random.key(1), INPUTS)["params"]
    if kind == "constant":
        np.testing.assert_array_equal(params["memory_start"], np.full((6, 3), 1e-6, np.float32))
        params["memory_start"] += jax.random.normal(jax.random.key(2), (6, 3))  # as after training: no tanh limits it
    loss = lambda params: (model.apply({"params": params}, INPUTS)[0] ** 2).sum()
    gradient = jax.jit(jax.grad(loss))(params)
    for name in ("memory_start", "weights_start", "reads_start"):
        assert bool((gradient[name] != 0).all()), f"{name} is trained"
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    memory = p["memory_start"].reshape(6, 3)
    expected = source_logits(p, np.asarray(INPUTS[0]), memory if kind == "constant" else np.tanh(memory))
    np.testing.assert_allclose(jax.jit(model.apply)({"params": params}, INPUTS)[0][0], expected, rtol=0, atol=1e-5)


def test_first_values_have_the_ranges_of_the_source():
    """`learned_init` is a linear map from one input, TensorFlow's kernels are in Glorot's range."""
    draw = lambda kind: jax.jit(NTM(NTMConfig(**SOURCE_OPTIONS, memory_init=kind), 8).init)(
        jax.random.key(0), jnp.ones((1, 1, 9))
    )["params"]
    p, random = draw("learned"), draw("random")["memory_start"]
    for values, inputs, outputs in (
        (p["memory_start"], 1, 128 * 20),
        (p["weights_start"], 1, 128),
        (p["reads_start"], 1, 20),
        (p["input"]["kernel"], 9 + 20 + 100, 400),
        (p["controller"], 9 + 20 + 100, 400),
    ):
        bound = (6 / (inputs + outputs)) ** 0.5
        assert 0.8 * bound < float(jnp.abs(values).max()) <= bound
    assert float(random.std()) == pytest.approx(0.5, rel=0.05) and float(jnp.abs(random).max()) > 1.2, "not truncated"
    assert "hidden_start" not in p, "the controller begins at 0"


def test_feedforward_controller_has_no_initial_state():
    model = NTM(NTMConfig("feedforward", **SIZES, **SOURCE_OPTIONS), 4)
    params = jax.jit(model.init)(jax.random.key(1), INPUTS)["params"]
    logits = jax.jit(model.apply)({"params": params}, INPUTS)[0]
    assert np.isfinite(logits).all() and params["controller"].shape == (3, 5)
