"""Weights of heads and their circuits, by activations and by explicit matrices; 3 CPU-seconds by default."""

from functools import partial

import jax
import numpy as np
import pytest
from site_models import LLAMA, SMALL, TOKENS, family, precision, random_params

from attention_jax import InputError, config as configs, interpret, models
from attention_jax.interpret import circuits

LAYERS = {"scanned": "decoder.1", "gpt": "decoder.1", "llama": "decoder.0", "transformer": "encoder.0"}
LAYERS |= {"vit": "encoder.0", "text": "encoder.1", "bert": "encoder.1"}
CASES = ["scanned", *(pytest.param(name, marks=pytest.mark.slow) for name in LAYERS if name != "scanned")]


def normalize(x, norm, epsilon=1e-5):
    """LayerNorm, or RMSNorm if there is no bias, in NumPy."""
    x = x - x.mean(-1, keepdims=True) if "bias" in norm else x
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * norm["scale"] + norm.get("bias", 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_weights_of_heads_give_the_activations(name):
    """In float64: queries and keys (at position 0, which is not rotated, of rotary ones), values, what the heads pool,
    and the output of the sub-layer, from the residual stream."""
    layer = LAYERS[name]
    with precision("float64"):
        model, params, batch, _ = family(name, "float64")
        sites = {site: np.asarray(x) for site, x in interpret.trace(model, params, *batch, sites=f"{layer}.*").items()}
        weights = jax.tree.map(np.asarray, interpret.head_weights(model, params, layer))
        params = jax.tree.map(np.asarray, params)
        stack = {"vit": params.get("trunk")}.get(name) or params[layer.partition(".")[0]]
        tree = {name: circuits._layer_module(stack, int(layer[-1]), name) for name in ("attention", "attention_norm")}
        biases = {key: x.get("bias", np.zeros(x["kernel"].shape[1])) for key, x in tree["attention"].items()}
        x = sites[f"{layer}.residual_in"]
        h = normalize(x, tree["attention_norm"]) if "norm" in stack else x
        rows = slice(1) if getattr(model.options, "position_embedding", "") == "rotary" else slice(None)
        for site, count in (("query", rows), ("key", rows), ("value", slice(None))):
            expected = sites[f"{layer}.{site}"]
            projected = np.einsum("btd,hde->bthe", h, getattr(weights, site))
            group = projected.shape[2] // expected.shape[2]
            projected = projected[:, :, ::group] + np.reshape(biases[site], (-1, *expected.shape[3:]))[None, None]
            np.testing.assert_allclose(projected[:, count], expected[:, count], rtol=1e-9, atol=1e-9, err_msg=site)
        attention = sites[f"{layer}.weights"]
        pooled = np.einsum("bhqk,bkhv->bqhv", attention, np.repeat(sites[f"{layer}.value"], group, axis=2))
        np.testing.assert_allclose(pooled, sites[f"{layer}.head_output"], rtol=1e-9, atol=1e-9)
        written = np.einsum("bqhv,hvd->bqd", pooled, weights.output) + biases["out"]
        np.testing.assert_allclose(written, sites[f"{layer}.attention_output"], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_cross_attention_reads_the_encoder():
    with precision("float64"):
        model, params, batch, _ = family("transformer", "float64")
        sites = interpret.trace(model, params, *batch, sites=["encoder.residual_out", "decoder.1.*"])
        states, params = np.asarray(sites["encoder.residual_out"]), jax.tree.map(np.asarray, params)
        if "norm" in params["encoder"]:
            states = normalize(states, params["encoder"]["norm"])
        weights = jax.tree.map(np.asarray, interpret.head_weights(model, params, "decoder.1.cross"))
        bias = params["decoder"]["layer_1"]["cross_attention"]["value"]["bias"].reshape(2, -1)
        value = np.einsum("bsd,hdv->bshv", states, weights.value) + bias
        np.testing.assert_allclose(value, sites["decoder.1.cross_value"], rtol=1e-9, atol=1e-9)


@pytest.fixture(scope="module")
def three_layers():
    options = configs.LanguageModelConfig(3, scan_layers=True, **SMALL | LLAMA)
    model = models.LanguageModel(options, 11)
    return model, random_params(model, (TOKENS,))


@pytest.mark.slow
@pytest.mark.parametrize("kind", "QKV")
def test_composition_by_explicit_matrices(kind, three_layers):
    model, params = three_layers
    scores = np.asarray(interpret.composition_scores(model, params, kind))
    assert scores.shape == (3, 2, 3, 2)
    ov = [np.asarray(interpret.ov_circuit(model, params, f"decoder.{i}"), float) for i in range(3)]
    qk = [np.asarray(interpret.qk_circuit(model, params, f"decoder.{i}"), float) for i in range(3)]
    scales = np.asarray(params["decoder"]["layers_0"]["attention_norm"]["scale"], float)
    for (writer, head, reader, other), value in np.ndenumerate(scores):
        scale = np.diag(scales[reader])
        read = scale @ {"Q": qk[reader] @ scale, "K": qk[reader].swapaxes(1, 2) @ scale, "V": ov[reader]}[kind][other]
        write = ov[writer][head]
        expected = np.linalg.norm(write @ read) / np.linalg.norm(write) / np.linalg.norm(read)
        np.testing.assert_allclose(value, expected if reader > writer else 0, rtol=1e-4, atol=1e-6)


MISUSES = {
    "a layer beyond": (interpret.head_weights, ("decoder.3",), "has layers with heads decoder.0 to decoder.2, of a"),
    "a number": (interpret.head_weights, (1,), "got 1"),
    "no cross-attention": (interpret.ov_circuit, ("decoder.1.cross",), "decoder.1.cross has no attention over"),
    "another kind": (interpret.composition_scores, ("q",), "composition is by Q, K or V, got 'q'"),
    "another stack": (
        partial(interpret.composition_scores, stack="encoder"),
        ("Q",),
        "has heads in decoder: got stack",
    ),
}


@pytest.mark.parametrize("case", MISUSES)
def test_what_has_no_circuits(case, three_layers):
    function, args, message = MISUSES[case]
    with pytest.raises(InputError, match=message):
        function(*three_layers, *args)


@pytest.mark.slow
def test_a_model_of_one_stack_or_two():
    model, params, _, _ = family("transformer")
    with pytest.raises(InputError, match="has heads in encoder, decoder|has heads in decoder, encoder"):
        interpret.composition_scores(model, params, "K")
