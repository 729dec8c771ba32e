"""Traces, replaced activations and patches of every family: the identities that hold bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import family

from attention_jax import interpret
from attention_jax.interpret import Part

FAMILIES = ["scanned", *(pytest.param(name, marks=pytest.mark.slow) for name in (
    "llama", "gpt", "gemma", "remat", "transformer", "vit", "text", "bert"))]  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_the_identities_of_tracing_setting_and_patching(name):
    """Five programs a family. That with edits at all sites sets one after another to its own value and to half of
    it."""
    tolerance = 2e-6 if name in ("vit", "bert", "text", "transformer") else 0
    model, params, batch, other = family(name)
    plain = jax.jit(lambda batch: model.apply({"params": params}, *batch)[0])
    seen = interpret.trace(model, params, *batch)
    np.testing.assert_array_equal(seen["logits"], plain(batch), strict=True)

    @jax.jit
    def one(flags, scale):
        own = {name: Part(x * scale, where=flag) for (name, x), flag in zip(seen.items(), flags, strict=True)}
        return interpret.run(model, params, *batch, set=own)[0]

    for site, flags in zip(seen, jnp.eye(len(seen), dtype=bool), strict=True):
        # XLA fuses a program with edits at all sites in other ways than one without
        np.testing.assert_allclose(one(flags, jnp.float32(1.0)), seen["logits"], rtol=0, atol=tolerance, err_msg=site)
        assert np.abs(one(flags, jnp.float32(0.5)) - seen["logits"]).max() > 1e-6, site  # every site matters
    for site in ("head_output", "mlp_output"):
        own = interpret.patch(seen, f"*.0.{site}")
        np.testing.assert_array_equal(interpret.run(model, params, *batch, set=own)[0], seen["logits"])
    patched, _ = interpret.run(model, params, *other, set=interpret.patch(seen))
    np.testing.assert_array_equal(patched, seen["logits"])


@pytest.mark.parametrize("name", ["scanned", pytest.param("transformer", marks=pytest.mark.slow)])
def test_without_a_trace_or_edits_the_program_is_that_without_taps(name, monkeypatch):
    model, params, batch, _ = family(name)

    def text():
        loss = lambda params: model.apply({"params": params}, *batch)[0].sum()
        return jax.jit(jax.value_and_grad(loss)).lower(params).as_text()

    tapped = text()
    for module in ("multihead", "blocks", "transformer", "language_model"):
        untapped = lambda module, name, x, *heads: x
        monkeypatch.setattr(f"attention_jax.models.{module}.tap", untapped)
    for name in ("is_set", "is_traced"):
        monkeypatch.setattr(f"attention_jax.models.multihead.{name}", lambda *args: False)
    monkeypatch.setattr("attention_jax.models.multihead.tap_heads", untapped)
    assert text() == tapped
