"""The sites of recurrent models, pointer networks and the Neural Turing Machine."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import LENGTH, TOKENS, filled

from attention_jax import InputError, config, interpret
from attention_jax.models import NTM, Bahdanau
from attention_jax.models.book import LuongSeq2seq
from attention_jax.models.luong import Luong
from attention_jax.models.pointer import PointerNetwork
from attention_jax.models.recurrent_lm import RecurrentLanguageModel

PAIR = TOKENS, LENGTH, TOKENS[:, :3]
SIZES = {"hidden_size": 4, "embed_size": 4, "readout_size": 4}
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 2)), jnp.float32)
ATTENTION = ["attention.context", "attention.weights"]
CASES = {
    "bahdanau": (lambda: Bahdanau(config.BahdanauConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], ATTENTION),
    "luong": (lambda: Luong(config.LuongConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], ATTENTION),
    "book": (
        lambda: LuongSeq2seq(config.LuongSeq2seqConfig(hidden_size=4, embed_size=4), 11, 11), PAIR,
        ["decoder.states", "encoder.states"], []),
    "language": (
        lambda: RecurrentLanguageModel(config.RecurrentLanguageModelConfig(hidden_size=4), 11), (TOKENS,),
        ["decoder.states"], []),
    "pointer": (
        lambda: PointerNetwork(config.PointerNetworkConfig(hidden_size=4), 2),
        (INPUTS, LENGTH, jnp.array([[0, 1], [0, 2]])), ["decoder.states", "encoder.states"], []),
    "ntm": (
        lambda: NTM(config.NTMConfig(hidden_size=4, num_locations=6, word_size=3), 2), (INPUTS,), [],
        ["ntm.read_weights", "ntm.write_weights"]),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", ["pointer", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "pointer")]
)
def test_tracing_changes_no_bit_and_what_is_set_counts(name):
    make, batch, settable, recorded = CASES[name]
    model = make()
    params = filled(model, batch)
    plain = jax.jit(lambda params: model.apply({"params": params}, *batch))(params)
    plain = plain[0] if isinstance(plain, tuple) else plain
    output, seen = interpret.run(model, params, *batch, sites="*")
    np.testing.assert_array_equal(output, plain)
    states = ["decoder.states"] if name in ("bahdanau", "luong") else []
    assert sorted(seen) == sorted([*settable, *recorded, *states, "logits"])
    for site in settable:
        own, half = (interpret.run(model, params, *batch, set={site: seen[site] / k})[0] for k in (1, 2))
        np.testing.assert_array_equal(own, plain, err_msg=site)
        assert not np.array_equal(half, plain), site
    for site in [*recorded, *states]:
        with pytest.raises(InputError, match="inside of a recurrence: it can be traced, not replaced"):
            interpret.run(model, params, *batch, set={site: seen[site]})


@pytest.mark.slow
def test_the_weights_of_the_ntm_are_those_it_returns():
    make, batch, *_ = CASES["ntm"]
    model = make()
    params = filled(model, batch)
    weights = model.apply({"params": params}, *batch, return_weights=True)[1]
    seen = interpret.trace(model, params, *batch)
    for kind in ("read", "write"):
        np.testing.assert_allclose(seen[f"ntm.{kind}_weights"], weights[kind], rtol=1e-6)
