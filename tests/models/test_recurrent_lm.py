"""Recurrent language models: parameter counts by hand, PyTorch as oracle, one step at a time, and their truncated
gradients."""

import functools

import jax
import numpy as np
import pytest

from attention_jax import config
from attention_jax.models.recurrent_lm import RecurrentLanguageModel

TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 7)


@functools.cache
def build(cell, **options):
    model = RecurrentLanguageModel(config.RecurrentLanguageModelConfig(cell, 4, **options), 7)
    return model, jax.jit(model.init)(jax.random.key(0), TOKENS)


@pytest.mark.slow
@pytest.mark.parametrize("cell, gates, extra", [("rnn", 1, 0), ("gru", 3, 4), ("lstm", 4, 0)])
def test_parameters(cell, gates, extra):
    _, params = build(cell)
    assert sum(x.size for x in jax.tree.leaves(params)) == gates * 4 * (7 + 4 + 1) + extra + 4 * 7 + 7


def bias_hh(p: dict) -> np.ndarray:
    """The bias of the recurrent product as PyTorch has it, in one vector."""
    inner = np.zeros(len(p["bias"]), np.float32)
    if "inner_bias" in p:
        inner[-4:] = p["inner_bias"]
    if "recurrent_bias" in p:
        inner[: len(p["recurrent_bias"])] = p["recurrent_bias"]
    return inner


@pytest.mark.parametrize("recurrent_bias", [False, True])
@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_is_the_layer_of_pytorch(cell, recurrent_bias):
    torch = pytest.importorskip("torch")
    model, params = build(cell, recurrent_bias=recurrent_bias)
    p = {name: np.array(value) for name, value in params["params"].items()}
    layer = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](7, 4, batch_first=True)
    values = {
        "weight_ih_l0": p["input_kernel"].T,
        "weight_hh_l0": p["recurrent_kernel"].T,
        "bias_ih_l0": p["bias"],
        "bias_hh_l0": bias_hh(p),
    }
    layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    hidden = layer(torch.nn.functional.one_hot(torch.tensor(np.array(TOKENS, np.int64)), 7).float())[0].detach().numpy()
    np.testing.assert_allclose(
        jax.jit(model.apply)(params, TOKENS)[0], hidden @ p["output_kernel"] + p["output_bias"], atol=1e-5
    )


def reference_logits(cell: str, p: dict) -> np.ndarray:
    """The logits of TOKENS by the equations of torch.nn.RNN, GRU and LSTM: each gate has a bias b_i of its input and a
    bias b_h of its recurrent product."""
    sigmoid, bias = lambda z: 1 / (1 + np.exp(-z)), bias_hh(p)
    h, c, logits = np.zeros((3, 4)), np.zeros((3, 4)), []
    for x in np.eye(7)[np.array(TOKENS)].swapaxes(0, 1):
        inputs, past = x @ p["input_kernel"] + p["bias"], h @ p["recurrent_kernel"] + bias
        if cell == "rnn":
            h = np.tanh(inputs + past)
        elif cell == "lstm":
            i, f, g, o = np.split(inputs + past, 4, -1)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = sigmoid(o) * np.tanh(c)
        else:
            (r, z, n), (hr, hz, hn) = np.split(inputs, 3, -1), np.split(past, 3, -1)
            r, z = sigmoid(r + hr), sigmoid(z + hz)
            h = (1 - z) * np.tanh(n + r * hn) + z * h
        logits.append(h @ p["output_kernel"] + p["output_bias"])
    return np.stack(logits, 1)


@pytest.mark.parametrize("cell, gates", [("rnn", 1), ("gru", 2), ("lstm", 4)])
def test_recurrent_bias_matches_written_equations(cell, gates):
    """Every gate has two biases, a GRU's candidate in any case; all other parameters begin as without the second."""
    model, params = build(cell, recurrent_bias=True)
    p = {name: np.array(value) for name, value in params["params"].items()}
    np.testing.assert_allclose(jax.jit(model.apply)(params, TOKENS)[0], reference_logits(cell, p), atol=1e-5)
    assert p["recurrent_bias"].shape == (4 * gates,) and 0 < np.abs(p["recurrent_bias"]).max() <= 0.5
    without = build(cell)[1]["params"]
    assert without.keys() == p.keys() - {"recurrent_bias"}
    assert all(np.array_equal(without[name], p[name]) for name in without)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_one_character_at_a_time_is_the_same(cell):
    model, params = build(cell, recurrent_bias=True)
    cache, logits = model.apply(params, 3, 12, method="start"), []
    step = jax.jit(lambda cache, token: model.apply(params, cache, token, method="step")[:2])
    for t in range(12):
        step_logits, cache = step(cache, TOKENS[:, t])
        logits.append(step_logits)
    np.testing.assert_allclose(np.stack(logits, 1), jax.jit(model.apply)(params, TOKENS)[0], atol=1e-5)


@pytest.mark.parametrize("truncation, cell", [("truncated", "gru"), ("truncated", "lstm"), ("randomised", "lstm")])
def test_truncation_changes_gradients_and_not_values(cell, truncation):
    def gradient(model, params):
        def objective(params):
            logits = model.apply(params, TOKENS, train=True, rngs={"dropout": jax.random.key(2)})[0]
            return (logits**2).sum(), logits

        return jax.device_get(jax.jit(jax.grad(objective, has_aux=True))(params))

    full, params = build(cell)
    (exact, logits), (cut, same) = (
        gradient(full, params),
        gradient(build(cell, truncation=truncation, truncation_length=3)[0], params),
    )
    np.testing.assert_allclose(same, logits, atol=1e-6)
    kernel = lambda gradients: gradients["params"]["recurrent_kernel"]
    assert np.abs(kernel(exact) - kernel(cut)).max() > 1e-4
    if truncation == "truncated":  # cut only before the first step, where nothing is lost
        uncut = gradient(build(cell, truncation=truncation, truncation_length=12)[0], params)[0]
        np.testing.assert_allclose(kernel(uncut), kernel(exact), rtol=1e-4, atol=1e-5)
