"""What cannot be meant raises one line that says what was needed; nothing is ignored. No program is compiled."""

import jax
import jax.numpy as jnp
import pytest
from site_models import TOKENS, family, language_model

from attention_jax import InputError, config, interpret, models
from attention_jax.interpret import Part

SITE = "decoder.1.head_output"


@pytest.fixture(scope="module")
def small_model():
    model, params, batch, _ = family("scanned")
    return model, params, batch


def shapes(sites):
    return {name: jnp.zeros(site.shape) for name, site in sites.items()}


MISUSES = {
    "unknown site": (lambda run, at: run(sites="decoder.1.querry"), r"no site 'decoder.1.querry'.*decoder.1.query"),
    "wrong layer": (lambda run, at: run(sites="decoder.7.query"), "layers of the decoder are 0 to 1"),
    "negative layer": (lambda run, at: run(set=interpret.ablate("decoder.-1.query")), "layers of the decoder are"),
    "another stack": (lambda run, at: run(sites="encoder.1.query"), "no site 'encoder.1.query'"),
    "a pattern that fits nothing": (lambda run, at: run(sites="*.cross_query"), "no site"),
    "not reached": (lambda run, at: run(set={"decoder.1.cross_query": jnp.zeros_like}), "no site 'decoder.1"),
    "no name": (lambda run, at: run(sites=[3]), "name of a site is a text, got a int"),
    "head out of range": (lambda run, at: run(set=interpret.ablate(SITE, heads=2)), "heads 0 to 1 in this call"),
    "head of the short form": (lambda run, at: run(sites="decoder.1.head.2"), "heads 0 to 1"),
    "head of a site without heads": (
        lambda run, at: run(set=interpret.ablate("decoder.1.mlp_output", heads=0)), "mlp_output has no heads"),
    "position beyond the text": (lambda run, at: run(set=interpret.ablate(SITE, positions=5)), "positions 0 to 4"),
    "row beyond the batch": (lambda run, at: run(set=interpret.ablate(SITE, rows=2)), "rows 0 to 1"),
    "shape": (lambda run, at: run(set={SITE: jnp.zeros((2, 5, 2, 3))}), r"is float32 \[2, 5, 2, 4\] in this call, got"),
    "a number for an array": (lambda run, at: run(set={SITE: 0.0}), r"is float32 \[2, 5, 2, 4\] in this call, got"),
    "integers": (lambda run, at: run(set={SITE: jnp.zeros((2, 5, 2, 4), int)}), "got int"),
    "between lengths": (
        lambda run, at: run(set=interpret.patch({SITE: jnp.zeros((2, 7, 2, 4))})), "texts of one length"),
    "a function of another shape": (lambda run, at: run(set={SITE: lambda x: x[:1]}), "must return an array"),
    "a patch of a site that was not traced": (lambda run, at: interpret.patch({SITE: 0}, "decoder.0.query"), "no site"),
    "a patch of no trace": (lambda run, at: interpret.patch(jnp.zeros(3)), "as trace returns them"),
    "a set of no sites": (lambda run, at: run(set=[SITE]), "set is {site"),
    "another kind of ablation": (lambda run, at: interpret.ablate(SITE, "median"), "one of zero, mean, resample"),
    "a mean of nothing": (lambda run, at: interpret.ablate(SITE, "mean"), "takes source"),
    "a row alone": (
        lambda run, at: interpret.ablate(SITE, "resample", source={SITE: at[SITE][:1]}, rng=jax.random.key(0)),
        "takes other rows",
    ),
    "rows without rng": (lambda run, at: interpret.ablate(SITE, "resample", source=at), "takes source and rng"),
    "a sweep of what has no heads": (
        lambda run, at: run(interpret.patch_sweep, measure=jnp.sum, sites="*.mlp_output"), "needs sites with heads"),
    "positions as a slice": (lambda run, at: interpret.ablate(SITE, positions=slice(0, 9)), "one or more integers"),
    "positions as a mask": (lambda run, at: interpret.ablate(SITE, positions=[True, False]), r"mask is Part\(where"),
    "no heads": (lambda run, at: interpret.ablate(SITE, heads=[]), "one or more integers"),
    "heads as a text": (lambda run, at: interpret.ablate(SITE, heads="01"), "one or more integers.* got '01'"),
    "a position that is traced": (
        lambda run, at: jax.jit(lambda i: interpret.ablate(SITE, positions=i))(2), "known when a call is traced"),
    "a Part of nothing": (lambda run, at: run(set={SITE: Part()}), "needs an array or a function"),
    "a Part of both": (lambda run, at: run(set={SITE: Part(at[SITE], function=abs)}), "with one of them"),
    "a sum with a function": (lambda run, at: run(set={SITE: Part(function=abs, adds=True)}), "adds is of an array"),
    "a text for an array": (lambda run, at: run(set={SITE: "zero"}), "in this call, got a str"),
    "nothing for an array": (lambda run, at: run(set={SITE: None}), "needs an array or a function"),
    "a mask of numbers": (
        lambda run, at: run(set={SITE: Part(at[SITE], where=at[SITE])}), "`where` of .* is bool .* got float32"),
    "a mask of another shape": (
        lambda run, at: run(set={SITE: Part(at[SITE], where=jnp.ones(3, bool))}), r"got bool \[3\]"),
    "a function of nothing": (lambda run, at: run(set={SITE: lambda x: None}), "must return an array"),
    "a function that raises": (
        lambda run, at: run(set={SITE: lambda x: {}["k"]}), r"for decoder.1.head_output .* raised KeyError: 'k'"),
    "a function of a head that raises": (
        lambda run, at: run(set={"decoder.0.head.1": lambda x: x[:, :, 9, 9]}), r"for decoder.0.head.1 .* raised Ind"),
    "a function that leaves JAX": (lambda run, at: run(set={SITE: float}), "must return an array of its shape"),
    "a call without inputs": (lambda run, at: interpret.model_sites(language_model()), "cannot be called"),
    "a text as input": (lambda run, at: interpret.model_sites(language_model(), "a text"), "a call takes arrays"),
    "an empty text": (
        lambda run, at: interpret.model_sites(language_model(), TOKENS[:, :0]), r"inputs of the shapes \[2, 0\]"),
    "a batch without rows": (
        lambda run, at: interpret.run(language_model(), {}, TOKENS[:0]), r"shapes \[0, 5\]: give at least one row"),
    "one token in no rows": (
        lambda run, at: interpret.model_sites(language_model(), TOKENS[:0, :1]), r"\[0, 1\]: give at least one row"),
    "scores of no rows": (lambda run, at: interpret.head_scores(jnp.zeros((0, 2, 5, 5)), TOKENS[:0]), "needs weights"),
    "a number for names": (lambda run, at: interpret.ablate(3), "name of a site is a text, got a int"),
    "a seed for a key": (lambda run, at: interpret.repeated_tokens(0, 5, 4), "rng is a key, as jax.random.key"),
    "no tokens to draw": (lambda run, at: interpret.repeated_tokens(jax.random.key(0), 0, 4), "of at least 1"),
    "heads of a head": (
        lambda run, at: run(set={"decoder.1.head.0": Part(jnp.zeros(()), heads=1)}), r"head.0 has no heads"),
    "a token beyond the vocabulary": (
        lambda run, at: interpret.model_sites(language_model(), jnp.array([[1, 11]])),
        "tokens are ids 0 to 10 of a vocabulary of 11, got 1 to 11"),
    "a negative token": (
        lambda run, at: interpret.model_sites(language_model(), jnp.array([[-1, 2]])), "ids 0 to 10 .* got -1 to 2"),
    "a measure of nothing": (lambda run, at: run(interpret.logit_lens, measure=3), "measure is a function"),
    "a sweep by what is no function": (lambda run, at: run(interpret.patch_sweep, measure=3), "measure is a function"),
    "a sweep by what returns nothing": (
        lambda run, at: run(interpret.patch_sweep, measure=lambda x: None), "to an array, got one to a NoneType"),
    "a sweep by two results": (
        lambda run, at: run(interpret.patch_sweep, measure=lambda x: (x, x)), "to an array, got one to a tuple"),
    "a sweep by what leaves JAX": (
        lambda run, at: run(interpret.patch_sweep, measure=lambda x: float(x[0, 0, 0])), "use jax.numpy in it"),
    "a lens of two results": (
        lambda run, at: run(interpret.logit_lens, measure=lambda x: [x]), "to an array, got one to a list"),
    "a measure of many numbers": (
        lambda run, at: run(interpret.gradient_times_activation, measure=abs, sites=SITE), r"number, got float32 \["),
    "a measure of an integer": (
        lambda run, at: run(interpret.integrated_gradients, measure=jnp.argmax), "one number, got int32"),
    "scores of attention to others": (
        lambda run, at: interpret.head_scores(jnp.zeros((2, 1, 2, 3, 5)), TOKENS), "needs weights"),
    "scores of other tokens": (
        lambda run, at: interpret.head_scores(jnp.zeros((1, 2, 5, 5)), TOKENS[:, :4]), "needs weights"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_one_line(name, small_model):
    model, params, batch = small_model
    call, message = MISUSES[name]
    run = lambda function=interpret.run, **kwargs: function(model, params, *batch, **kwargs)
    with pytest.raises(InputError, match=message) as raised:
        call(run, {SITE: jnp.zeros((2, 5, 2, 4))})
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 320


def test_inputs_and_models_that_have_no_sites(small_model):
    model, params, batch = small_model
    with pytest.raises(InputError, match=r"LanguageModel cannot be called with inputs of the shapes \[5\]"):
        interpret.run(model, params, TOKENS[0])
    with pytest.raises(InputError, match="Flax module is needed"):
        interpret.run("model", params, *batch)
    with pytest.raises(InputError, match="GraphAttention|no sites|has no sites"):
        baseline = config.StackedLSTMConfig(num_layers=1, hidden_size=4)
        from attention_jax.models.ntm import StackedLSTM

        interpret.model_sites(StackedLSTM(baseline, 2), jnp.ones((1, 3, 2)))
    shared = config.TransformerConfig(2, 2, hidden_size=8, num_heads=2, mlp_dim=8, shared_layers=True)
    with pytest.raises(InputError, match="computed more than once"):
        interpret.model_sites(models.Transformer(shared, 11, 11), TOKENS, jnp.array([5, 3]), TOKENS)
    ids = jnp.array([[1, 2, 9, 4]])
    with pytest.raises(InputError, match="target_in are ids 0 to 8 of a vocabulary of 9, got 1 to 9"):
        interpret.model_sites(models.Transformer(shared, 11, 9), ids, jnp.array([4]), ids)


@pytest.mark.slow
def test_the_names_of_sites_are_these():
    """Version 1: whoever changes a name changes the version. Of an encoder-decoder, which has them all."""
    from attention_jax.interpret import sites

    model, _, batch, _ = family("transformer")
    names = interpret.model_sites(model, *batch)
    layer = ["residual_in", "query", "key", "value", "scores", "weights", "head_output", "attention_output"]
    cross = [f"cross_{name}" for name in layer[1:]]
    last_sites = ["mlp_hidden", "mlp_output", "residual_out"]
    ends = lambda stack, layers: [f"{stack}.embedding", *layers, f"{stack}.residual_out", f"{stack}.final_norm"]
    encoder = [f"encoder.0.{name}" for name in [*layer, *last_sites]]
    decoder = [f"decoder.{i}.{name}" for i in (0, 1) for name in [*layer, *cross, *last_sites]]
    options = model.options
    expected = [*ends("encoder", encoder), *ends("decoder", decoder), "logits"]
    assert list(names) == [x for x in expected if options.norm != "post" or not x.endswith("final_norm")]
    assert sites.VERSION == 1
    assert names["decoder.0.cross_weights"].shape == (2, 2, 4, 5) and names["encoder.0.key"].shape == (2, 5, 2, 4)


def test_a_part_is_a_pytree():
    edit = Part(jnp.ones(2), heads=(1,))
    assert jax.tree.map(lambda x: x + 1, edit).value.tolist() == [2.0, 2.0]


def test_addition_in_a_scan_hits_one_layer(small_model):
    from attention_jax.interpret.edits import edit_variables
    from attention_jax.interpret.sites import find_sites

    model, params, batch = small_model
    edits = edit_variables(find_sites(model, params, batch), {"decoder.1.residual_out": Part(jnp.ones(8), adds=True)})
    [edit] = jax.tree.leaves(edits, is_leaf=lambda x: hasattr(x, "adds"))
    assert edit.adds and edit.where.reshape(2, -1).any(axis=1).tolist() == [False, True]
