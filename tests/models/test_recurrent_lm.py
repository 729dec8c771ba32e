"""Recurrent language models: parameter counts by hand, PyTorch as oracle, one step at a time, and their truncated
gradients."""

import jax
import numpy as np
import pytest

from attention_jax import config
from attention_jax.models.recurrent_lm import RecurrentLanguageModel

TOKENS = jax.random.randint(jax.random.key(1), (3, 12), 0, 7)


def build(cell, **options):
    model = RecurrentLanguageModel(config.RecurrentLanguageModelConfig(cell, 4, **options), 7)
    return model, jax.jit(model.init)(jax.random.key(0), TOKENS)


@pytest.mark.parametrize("cell, gates, more", [("rnn", 1, 0), ("gru", 3, 4), ("lstm", 4, 0)])
def test_parameters(cell, gates, more):
    _, params = build(cell)
    assert sum(x.size for x in jax.tree.leaves(params)) == gates * 4 * (7 + 4 + 1) + more + 4 * 7 + 7


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_is_the_layer_of_pytorch(cell):
    torch = pytest.importorskip("torch")
    model, params = build(cell)
    p = {name: np.array(value) for name, value in params["params"].items()}
    layer = {"rnn": torch.nn.RNN, "gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[cell](7, 4, batch_first=True)
    inner = np.zeros(len(p["bias"]), np.float32)
    if cell == "gru":
        inner[-4:] = p["inner_bias"]
    values = {
        "weight_ih_l0": p["input_kernel"].T,
        "weight_hh_l0": p["recurrent_kernel"].T,
        "bias_ih_l0": p["bias"],
        "bias_hh_l0": inner,
    }
    layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    hidden = layer(torch.nn.functional.one_hot(torch.tensor(np.array(TOKENS, np.int64)), 7).float())[0].detach().numpy()
    np.testing.assert_allclose(
        jax.jit(model.apply)(params, TOKENS)[0], hidden @ p["output_kernel"] + p["output_bias"], atol=1e-5
    )


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_one_character_at_a_time_is_the_same(cell):
    model, params = build(cell)
    cache, logits = model.apply(params, 3, 12, method="start"), []
    step = jax.jit(lambda cache, token: model.apply(params, cache, token, method="step")[:2])
    for t in range(12):
        one, cache = step(cache, TOKENS[:, t])
        logits.append(one)
    np.testing.assert_allclose(np.stack(logits, 1), jax.jit(model.apply)(params, TOKENS)[0], atol=1e-5)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
@pytest.mark.parametrize("truncation", ["truncated", "randomised"])
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
