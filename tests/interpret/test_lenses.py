"""Lenses and attributions: what they are equal to, or sum to."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import BOTH, FAMILIES, family, filled, language_model, measure, precision
from tiers import slow_but

from attention_jax import InputError, interpret

slow = pytest.mark.slow


@slow
@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_the_logit_lens_after_the_last_layer_is_the_output(name, dtype):
    with precision(dtype):
        model, params, batch, _ = family(name, dtype)
        output, seen = interpret.run(model, params, *batch, sites="*.residual_out")
        lens = interpret.logit_lens(model, params, *batch)
        last = interpret.logit_lens(model, params, *batch, measure=jnp.argmax)
        stack = "decoder" if "decoder.residual_out" in seen else "encoder"
        layers = [site for site in seen if site.startswith(stack) and site != f"{stack}.residual_out"]
        assert list(lens) == [f"{stack}.embedding", *layers]
        np.testing.assert_allclose(lens[layers[-1]], output, rtol=1e-6, atol=1e-6)
        assert {site: x.argmax() for site, x in lens.items()} == last
        if name == "gpt":  # a layer in the middle, by the modules
            x = seen["decoder.1.residual_out"]
            by_hand = model.bind({"params": params})
            np.testing.assert_allclose(
                lens["decoder.1.residual_out"], by_hand._logits(by_hand.decoder.norm(x)), rtol=1e-5, atol=1e-5
            )


@slow
@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_the_jacobian_lens_is_that_of_the_explicit_jacobian(name, dtype):
    with precision(dtype):
        check_the_jacobian_lens(*family(name, dtype)[:3])


def check_the_jacobian_lens(model, params, batch):
    names = interpret.model_sites(model, *batch)
    stack = "decoder" if "decoder.residual_out" in names else "encoder"
    site, end = f"{stack}.0.residual_out", f"{stack}.residual_out"
    x = interpret.trace(model, params, *batch, sites=site)[site]
    last = lambda x: interpret.run(model, params, *batch, set={site: x}, sites=end)[1][end]
    jacobian = jax.jacrev(last)(x)  # [B, T, D, B, T, D]
    transported = jnp.einsum("btdsue,sue->btd", jacobian, x)
    expected, _ = interpret.run(model, params, *batch, set={end: transported})
    lens = interpret.jacobian_lens(model, params, *batch)
    np.testing.assert_allclose(lens[site], expected, rtol=1e-5, atol=1e-5)
    output = interpret.run(model, params, *batch)[0]
    np.testing.assert_allclose(list(lens.values())[-1], output, rtol=1e-5, atol=1e-5)


@slow
@pytest.mark.parametrize(("name", "dtype"), BOTH)
def test_direct_contributions_sum_to_the_logits(name, dtype):
    with precision(dtype):
        model, params, batch, _ = family(name, dtype)
        parts = interpret.direct_attribution(model, params, *batch, measure=measure)
        expected = measure(interpret.run(model, params, *batch)[0])
        total = sum(x.sum() for x in parts.values())
        np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-5)
        sites = interpret.model_sites(model, *batch)
    assert [site for site in sites if site in parts] == list(parts)[:-1]
    last = "decoder" if "decoder.embedding" in sites else "encoder"
    heads = {site: x.shape[2:3] for site, x in sites.items() if site.startswith(last) and "head_output" in site}
    assert heads == {site: x.shape for site, x in parts.items() if site.endswith("head_output")} and heads


@slow
@pytest.mark.parametrize("attribution", [interpret.direct_attribution, interpret.detached_attribution])
def test_what_the_parts_do_not_sum_to_is_refused(attribution):
    """A measure that is not linear, a cap of the logits, and the tanh of BERT's classifier."""
    model, params, batch, _ = family("scanned")
    refused = pytest.raises(InputError, match=r"^the parts sum to \S+, the measure is \S+: use a measure that is lin")
    with refused:
        attribution(model, params, *batch, measure=lambda logits: jax.nn.log_softmax(logits)[0, -1, 3])
    with refused:
        attribution(language_model(logit_cap=5.0, scan_layers=True), params, *batch, measure=measure)
    model, _, batch, _ = family("bert")
    model = model.clone(options=replace(model.options, pooler="tanh"), classes=3)
    with refused:
        attribution(model, filled(model, batch), *batch, measure=measure)


@slow
def test_a_direct_contribution_is_the_row_of_a_head_times_the_output_matrix_and_the_scale():
    """By hand in NumPy, of one head of the last layer."""
    model, params, batch, _ = family("scanned")
    one = lambda output: output[0, -1, 3]
    parts = interpret.direct_attribution(model, params, *batch, measure=one)
    seen = interpret.trace(model, params, *batch, sites=["decoder.2.head.1", "decoder.residual_out"])
    seen, params = jax.tree.map(np.asarray, (seen, params))
    x = seen["decoder.residual_out"][0, -1]
    scale = params["decoder"]["norm"]["scale"] / np.sqrt(np.square(x).mean() + 1e-5)
    kernel = params["decoder"]["layers_0"]["attention"]["out"]["kernel"][2].T.reshape(2, 4, 8)[1]
    by_hand = seen["decoder.2.head.1"][0, -1] @ kernel * scale @ params["embedding"]["token"]["embedding"][3]
    np.testing.assert_allclose(parts["decoder.2.head_output"][1], by_hand, rtol=1e-5)


@pytest.mark.parametrize("name", slow_but(["llama"], FAMILIES))
def test_the_detached_jacobian_times_the_embeddings_is_the_logits(name):
    with precision("float64"):
        model, params, batch, _ = family(name, "float64")
        parts = interpret.detached_attribution(model, params, *batch, measure=measure)
        output, _ = interpret.run(model, params, *batch)
        assert output.dtype == jnp.float64
        assert abs(sum(x.sum() for x in parts.values()) - measure(output)) < 1e-10
        sites = interpret.model_sites(model, *batch)
        assert all(parts[site].shape == x.shape[:2] for site, x in sites.items() if site in parts)
        assert bool(np.any(parts["biases"])) == (name in ("gpt", "transformer", "vit", "text", "bert"))


@slow
def test_integrated_gradients_are_complete():
    model, params, batch, other = family("scanned")
    start, end = (interpret.trace(model, params, *x, sites="*.embedding") for x in (other, batch))
    parts = interpret.integrated_gradients(model, params, *batch, measure=measure, baseline=start, steps=400)
    ends = [measure(interpret.run(model, params, *batch, set=x)[0]) for x in (start, end)]
    np.testing.assert_allclose(sum(x.sum() for x in parts.values()), ends[1] - ends[0], rtol=1e-2)


@slow
def test_gradient_times_activation_is_the_effect_of_less_of_it_to_first_order():
    with precision("float64"):
        model, params, batch, _ = family("llama", "float64")
        site = "decoder.1.weights"
        parts = interpret.gradient_times_activation(model, params, *batch, measure=measure, sites=site)
        less = lambda x: x * (1 - 1e-6)
        change = [measure(interpret.run(model, params, *batch, set=s)[0]) for s in ({site: less}, {})]
        np.testing.assert_allclose(parts[site].sum(), (change[1] - change[0]) / 1e-6, rtol=1e-4)


def test_scores_of_heads_by_hand():
    """The weights of a text of eight tokens whose second half repeats the first, and of one without repetition."""
    tokens = jnp.array([[4, 5, 6, 7, 4, 5, 6, 7]])
    weights = np.zeros((1, 2, 8, 8), np.float32)
    weights[0, 0, range(4, 8), range(1, 5)] = 0.5  # the token after the earlier occurrence
    weights[0, 0, range(4, 8), range(4)] = 0.25  # that occurrence
    weights[0, 1, :, 0] = 1.0
    found = interpret.head_scores(weights, tokens)
    np.testing.assert_allclose(found["induction"], [0.5, 0.0])
    np.testing.assert_allclose(found["duplicate token"], [0.25, 0.25])
    np.testing.assert_allclose(found["first token"], [0.25 / 7, 1.0])
    np.testing.assert_allclose(found["previous token"], [0.0, 1 / 7])
    alone = interpret.head_scores(weights, jnp.arange(8)[None])
    np.testing.assert_array_equal(alone["induction"], [0.0, 0.0])
    again = interpret.repeated_tokens(jax.random.key(0), 50, 4, batch=2, first=0)
    assert again.shape == (2, 9) and (again[:, 1:5] == again[:, 5:]).all() and (again[:, 0] == 0).all()
