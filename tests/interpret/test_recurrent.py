"""The sites of recurrent models, pointer networks and the Neural Turing Machine."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import LENGTH, TOKENS, random_params

from attention_jax import InputError, config, interpret
from attention_jax.interpret import Part
from attention_jax.models import NTM, Bahdanau
from attention_jax.models.book import LuongSeq2seq
from attention_jax.models.gnmt import GNMT
from attention_jax.models.luong import Luong
from attention_jax.models.recurrent_lm import RecurrentLanguageModel
from experiments.papers import options as papers
from experiments.papers.conditional_gru import ConditionalGRU
from experiments.papers.pointer import PointerNetwork
from experiments.papers.sutskever import Sutskever

PAIR = TOKENS, LENGTH, TOKENS[:, :3]
SIZES = {"hidden_size": 4, "embed_size": 4, "readout_size": 4}
INPUTS = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, 2)), jnp.float32)
HALF = jnp.float32(0.24), jnp.float32(0.26)
ATTENTION = ["attention.context", "attention.weights"]
STEPS = [*ATTENTION, "decoder.states"]
CASES = {  # (model, inputs, what is set after the recurrence, within its steps, and what is only traced)
    "bahdanau": (
        lambda: Bahdanau(config.BahdanauConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], STEPS, []),
    "luong": (lambda: Luong(config.LuongConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], STEPS, []),
    "without feeding": (
        lambda: Luong(config.LuongConfig(**SIZES, input_feeding=False), 11, 11), PAIR, ["encoder.states", *STEPS],
        [], []),
    "conditional": (
        lambda: ConditionalGRU(papers.ConditionalGRUConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], STEPS, []),
    "gnmt": (
        lambda: GNMT(config.GNMTConfig(**SIZES), 11, 11), PAIR, ["encoder.states"], ATTENTION, ["decoder.states"]),
    "sutskever": (
        lambda: Sutskever(papers.SutskeverConfig(**SIZES), 11, 11), PAIR, [], [],
        ["decoder.states", "encoder.states"]),
    "book": (
        lambda: LuongSeq2seq(config.LuongSeq2seqConfig(hidden_size=4, embed_size=4), 11, 11), PAIR,
        ["decoder.states", "encoder.states"], [], []),
    "language": (
        lambda: RecurrentLanguageModel(config.RecurrentLanguageModelConfig(hidden_size=4), 11), (TOKENS,),
        ["decoder.states"], [], []),
    "pointer": (
        lambda: PointerNetwork(papers.PointerNetworkConfig(hidden_size=4), 2),
        (INPUTS, LENGTH, jnp.array([[0, 1], [0, 2]])), ["decoder.states", "encoder.states"], [], []),
    "ntm": (
        lambda: NTM(config.NTMConfig(hidden_size=4, num_locations=6, word_size=3), 2), (INPUTS,), [],
        ["ntm.read_weights", "ntm.write_weights"], []),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["pointer", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "pointer")]
)
def test_tracing_is_exact_and_edits_take_effect(name):
    make, batch, after_recurrence, stepwise, recorded = CASES[name]
    model = make()
    params = random_params(model, batch)
    plain = jax.jit(lambda params: model.apply({"params": params}, *batch))(params)
    plain = plain[0] if isinstance(plain, tuple) else plain
    output, activations = interpret.run(model, params, *batch, sites="*")
    np.testing.assert_array_equal(output, plain)
    assert sorted(activations) == sorted([*after_recurrence, *stepwise, *recorded, "logits"])
    for site in [*after_recurrence, *stepwise]:
        unchanged, half = (interpret.run(model, params, *batch, set={site: activations[site] / k})[0] for k in (1, 2))
        np.testing.assert_array_equal(unchanged, plain, err_msg=site)
        assert not np.array_equal(half, plain), site
    for site in stepwise:
        with pytest.raises(InputError, match="step by step: set an array or a Part with a value, not a function"):
            interpret.run(model, params, *batch, set={site: jnp.zeros_like})
    for site in recorded:
        with pytest.raises(InputError, match="inside of a recurrence: it can be traced, not replaced"):
            interpret.run(model, params, *batch, set={site: activations[site]})


@pytest.mark.parametrize("name", ["ntm", *(pytest.param(n, marks=pytest.mark.slow) for n in ("bahdanau", "luong"))])
def test_edit_at_a_step_reaches_later_steps(name):
    """At step 1: nothing changes before it, it has what was set, and the next step has read it."""
    make, batch, _, stepwise, _ = CASES[name]
    model = make()
    params = random_params(model, batch)
    output, activations = interpret.run(model, params, *batch, sites=stepwise)
    site = stepwise[-1]
    edit = Part(jnp.float32(0.25), positions=1)
    changed, edited_activations = interpret.run(model, params, *batch, set={site: edit}, sites=stepwise)
    np.testing.assert_array_equal(edited_activations[site][:, 0], activations[site][:, 0])
    np.testing.assert_array_equal(edited_activations[site][:, 1], jnp.full_like(activations[site][:, 1], 0.25))
    np.testing.assert_array_equal(changed[:, 0], output[:, 0])
    for other_site in stepwise:
        assert np.abs(edited_activations[other_site][:, 2] - activations[other_site][:, 2]).max() > 1e-6, other_site
    scale = jax.grad(lambda x: interpret.run(model, params, *batch, set={site: replace(edit, value=x)})[0].sum())
    slope = [interpret.run(model, params, *batch, set={site: replace(edit, value=x)})[0].sum() for x in HALF]
    np.testing.assert_allclose(scale(jnp.float32(0.25)), (slope[1] - slope[0]) / 2e-2, rtol=2e-2, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bahdanau", "luong", "without feeding", "conditional", "gnmt"])
def test_set_one_hot_weights_read_the_annotation(name):
    make, batch, *_ = CASES[name]
    model = make()
    weights = jax.nn.one_hot(jnp.array([[1, 0, 2]] * 2), 5)
    sites = ["attention.context", "encoder.states"]
    _, activations = interpret.run(
        model, random_params(model, batch), *batch, set={"attention.weights": weights}, sites=sites
    )
    np.testing.assert_allclose(activations[sites[0]], activations[sites[1]][:, jnp.array([1, 0, 2])], rtol=1e-6)


@pytest.mark.slow
def test_ntm_without_heads_is_its_controller():
    """With weights of zero nothing is written or read: the output is that of the controller with reads of zero, here
    step by step in NumPy."""
    make, batch, *_ = CASES["ntm"]
    model = make()
    params = random_params(model, batch)
    output, _ = interpret.run(model, params, *batch, set=interpret.ablate(["ntm.read_weights", "ntm.write_weights"]))
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    hidden, cell = (np.broadcast_to(p[name], (2, 4)) for name in ("hidden_start", "cell_start"))
    reads, sigmoid = np.broadcast_to(p["reads_start"].ravel(), (2, 3)), lambda x: 1 / (1 + np.exp(-x))
    for t in range(batch[0].shape[1]):
        gates = np.asarray(batch[0][:, t]) @ p["input"]["kernel"] + p["input"]["bias"]
        i, f, g, o = np.split(gates + np.concatenate([reads, hidden], axis=1) @ p["controller"], 4, axis=1)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        hidden, reads = sigmoid(o) * np.tanh(cell), np.zeros((2, 3))
        features = np.concatenate([hidden, reads], axis=1)
        expected = features @ p["output"]["kernel"] + p["output"]["bias"]
        np.testing.assert_allclose(output[:, t], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_traced_ntm_weights_equal_returned_ones():
    make, batch, *_ = CASES["ntm"]
    model = make()
    params = random_params(model, batch)
    weights = model.apply({"params": params}, *batch, return_weights=True)[1]
    activations = interpret.trace(model, params, *batch)
    for kind in ("read", "write"):
        np.testing.assert_allclose(activations[f"ntm.{kind}_weights"], weights[kind], rtol=1e-6)
