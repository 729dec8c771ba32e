"""Ablations, patches and paths: what they are equal to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import family

from attention_jax import interpret
from attention_jax.interpret import Part
from attention_jax.tasks.attention_maps import replace_leaf, zero_head


def difference(output):
    return output[0, -1, 3] - output[0, -1, 7]


@pytest.mark.slow
def test_ablated_head_equals_zeroed_output_rows():
    """Michel et al. 2019, by the parameters; and the short name of a head is that head."""
    model, params, batch, _ = family("llama")
    path = ("decoder", "layer_1", "attention", "out", "kernel")
    kernel = params["decoder"]["layer_1"]["attention"]["out"]["kernel"]
    without = {"params": replace_leaf(params, path, zero_head(kernel, 1, 2))}
    expected = jax.jit(lambda variables: model.apply(variables, *batch)[0])(without)
    for edits in (interpret.ablate("decoder.1.head_output", heads=1), interpret.ablate("decoder.1.head.-1")):
        np.testing.assert_allclose(interpret.run(model, params, *batch, set=edits)[0], expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_partial_edits_by_hand():
    """Positions, heads and rows, and functions, each read back by the trace of what was set."""
    model, params, batch, other_batch = family("scanned")
    site = "decoder.1.head_output"
    activations, source = (interpret.trace(model, params, *x, sites=[site])[site] for x in (batch, other_batch))
    read_back = lambda edits: np.asarray(interpret.run(model, params, *batch, set=edits, sites=[site])[1][site])
    expected = np.array(activations)
    expected[1, -2, 0] = np.asarray(source)[1, -2, 0]
    np.testing.assert_array_equal(read_back(interpret.patch({site: source}, heads=0, positions=[-2], rows=1)), expected)
    halves = read_back({"decoder.1.head.0": lambda x: x / 2, "decoder.1.head.1": jnp.zeros((2, 5, 4))})
    np.testing.assert_array_equal(halves, np.asarray(activations) * np.array([0.5, 0])[:, None])


def test_a_mean_is_over_rows_and_positions():
    """Of heads [B, T, H, V], and of the residual stream [B, T, D]; nothing is compiled but the means."""
    draw = np.random.default_rng(0).normal
    source = {"decoder.1.head_output": draw(size=(2, 5, 2, 4)), "decoder.1.residual_out": draw(size=(2, 5, 8))}
    for site, x in source.items():
        edit = interpret.ablate(site, "mean", source={site: jnp.float32(x)})[site]
        np.testing.assert_allclose(edit.value, x.mean((0, 1), keepdims=True), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_permuted_rows_and_sums_by_hand():
    model, params, batch, other_batch = family("scanned")
    site = "decoder.1.head_output"
    activations, source = (interpret.trace(model, params, *x, sites=[site])[site] for x in (batch, other_batch))
    read_back = lambda edits: np.asarray(interpret.run(model, params, *batch, set=edits, sites=[site])[1][site])
    resampled = read_back(interpret.ablate(site, "resample", source={site: source}, rng=jax.random.key(1)))
    assert any((resampled == np.asarray(source)[order]).all() for order in ([0, 1], [1, 0]))
    steered = read_back({site: Part(jnp.ones(4), adds=True, heads=(1,))})
    np.testing.assert_allclose(steered, np.asarray(activations) + np.array([0, 1])[:, None], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_run_under_jit_vmap_and_grad():
    model, params, batch, _ = family("scanned")
    site = "decoder.1.head_output"
    value = interpret.trace(model, params, *batch, sites=site)[site]
    output = lambda scale: difference(interpret.run(model, params, *batch, set={site: scale * value})[0])
    scales = jnp.array([0.5, 1.0, 2.0])
    each = np.stack([output(x) for x in scales])
    np.testing.assert_allclose(jax.jit(jax.vmap(output))(scales), each, rtol=1e-5, atol=1e-5)
    slope = (output(1.0 + 1e-2) - output(1.0 - 1e-2)) / 2e-2
    np.testing.assert_allclose(jax.grad(output)(1.0), slope, rtol=2e-2)


@pytest.mark.slow
def test_paths_from_the_embedding_by_hand():
    """With all between frozen, the direct path of the embeddings changes the residual stream by their difference; all
    paths together, a patch of everything that follows nothing, are the other input."""
    model, params, batch, other_batch = family("llama")
    activations, other_activations = (interpret.trace(model, params, *x) for x in (batch, other_batch))
    moved = (
        activations["decoder.residual_out"] + other_activations["decoder.embedding"] - activations["decoder.embedding"]
    )
    expected = interpret.run(model, params, *batch, set={"decoder.residual_out": moved})[0]
    direct = interpret.path_patch(model, params, batch, other_batch, "decoder.embedding")
    np.testing.assert_allclose(direct, expected, rtol=1e-4, atol=1e-5)
    every = interpret.path_patch(model, params, batch, other_batch, "decoder.embedding", freeze=())
    np.testing.assert_array_equal(every, other_activations["logits"])
    to_query = interpret.path_patch(model, params, batch, other_batch, "decoder.0.head.1", "decoder.1.query")
    assert np.abs(to_query - activations["logits"]).max() > 0


@pytest.mark.slow
def test_set_weights_override_the_fused_path():
    """Attention to the first token alone returns its value; the fused path and the plain one read the same weights."""
    model, params, batch, _ = family("llama")
    site = "decoder.0.weights"
    first = jnp.zeros((2, 2, 5, 5)).at[..., 0].set(1.0)
    _, activations = interpret.run(
        model, params, *batch, set={site: first}, sites=["decoder.0.value", "decoder.0.head_output"]
    )
    value = np.asarray(activations["decoder.0.value"])[:, :1]  # [B, 1, 1, V], shared by the heads
    np.testing.assert_allclose(activations["decoder.0.head_output"], np.broadcast_to(value, (2, 5, 2, 4)), rtol=1e-6)
