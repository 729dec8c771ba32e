"""Traces, replaced activations and patches of every family: the identities that hold bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import EVERY, family, precision
from tiers import slow_but

from attention_jax import interpret
from attention_jax.interpret import Part


@pytest.mark.parametrize(("name", "dtype"), EVERY)
def test_the_identities_of_tracing_setting_and_patching(name, dtype):
    """Bit for bit: a trace, a patch of everything, and each site set to its own value beside the same edit nowhere."""
    with precision(dtype):
        model, params, batch, other_batch = family(name, dtype)
        plain = jax.jit(lambda params: model.apply({"params": params}, *batch)[0]).trace(params)
        assert dtype == "float32" or "f32[" not in str(plain.jaxpr)  # all of it is computed in float64
        activations = interpret.trace(model, params, *batch)
        np.testing.assert_array_equal(activations["logits"], plain.lower().compile()(params), strict=True)
        patched, _ = interpret.run(model, params, *other_batch, set=interpret.patch(activations))
        np.testing.assert_array_equal(patched, activations["logits"])

        @jax.jit
        def run(params, values, flags):
            edits = {name: Part(x, where=flag) for (name, x), flag in zip(values.items(), flags, strict=True)}
            return interpret.run(model, params, *batch, set=edits, sites="*")

        unedited_output, unedited = run(params, activations, jnp.zeros(len(activations), bool))
        # XLA does not fuse across a site that is set, and may round differently there than in the model alone
        np.testing.assert_allclose(
            unedited_output, activations["logits"], rtol=0, atol=2e-6 if dtype == "float32" else 1e-6
        )
        for site, flags in zip(activations, jnp.eye(len(activations), dtype=bool), strict=True):
            np.testing.assert_array_equal(run(params, unedited, flags)[0], unedited_output, err_msg=site)
            half = jax.tree.map(lambda x: x / 2, unedited)
            assert np.abs(run(params, half, flags)[0] - unedited_output).max() > 1e-6, site  # every site matters


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["scanned"], ["scanned", "llama", "gemma", "transformer", "vit", "bert"]))
def test_setting_own_value_changes_no_bit(name):
    """A program for each kind of site, in the last layer, beside the model alone."""
    model, params, batch, _ = family(name)
    activations = interpret.trace(model, params, *batch)
    sites = [site for site in activations if ".0." not in site and (name != "transformer" or "encoder" not in site)]
    for site in sites[: 4 if name == "scanned" else None]:
        output, _ = interpret.run(model, params, *batch, set={site: activations[site]})
        np.testing.assert_array_equal(output, activations["logits"], err_msg=site)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["scanned", pytest.param("transformer", marks=pytest.mark.slow)])
def test_unused_taps_leave_the_program_unchanged(name, monkeypatch):
    model, params, batch, _ = family(name)

    def text():
        loss = lambda params: model.apply({"params": params}, *batch)[0].sum()
        return jax.jit(jax.value_and_grad(loss)).lower(params).as_text()

    tapped = text()
    for module in ("multihead", "blocks", "transformer", "language_model"):
        skip_tap = lambda module, name, x, *heads: x
        monkeypatch.setattr(f"attention_jax.models.{module}.tap", skip_tap)
    for name in ("is_set", "is_traced"):
        monkeypatch.setattr(f"attention_jax.models.multihead.{name}", lambda *args: False)
    monkeypatch.setattr("attention_jax.models.multihead.tap_heads", skip_tap)
    assert text() == tapped


@pytest.mark.slow
def test_negative_positions_of_an_encoder_are_from_the_end_of_each_text():
    """Of a padded batch: what a text of it has is what it has alone."""
    model, params, _, _ = family("bert")
    padded, lengths = jnp.array([[1, 2, 3, 4, 5], [6, 7, 8, 0, 0]]), jnp.array([5, 3])
    edit = {"encoder.0.residual_in": Part(jnp.ones(()), positions=-1)}
    both, _ = interpret.run(model, params, padded, lengths, set=edit)
    alone, _ = interpret.run(model, params, padded[1:, :3], lengths[1:], set=edit)
    np.testing.assert_allclose(both[1, :3], alone[0], rtol=1e-5, atol=1e-5)
