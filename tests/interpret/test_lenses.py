"""Lenses and attributions: what they are equal to, or sum to."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import quad_vec
from site_models import BOTH, family, language_model, measure, precision, random_params
from tiers import slow_but

from attention_jax import InputError, interpret
from attention_jax.interpret.sites import find_sites

slow = pytest.mark.slow


def run_lenses(model, params, batch):
    """Lenses and attributions, and the Jacobian lens by an explicit Jacobian: one program."""
    stack = "decoder" if "decoder.residual_out" in find_sites(model, params, batch) else "encoder"
    site, end = f"{stack}.0.residual_out", f"{stack}.residual_out"
    output, activations = interpret.run(
        model, params, *batch, sites=[f"{stack}.embedding", f"{stack}.*.residual_out", end]
    )
    last = lambda x: interpret.run(model, params, *batch, set={site: x}, sites=end)[1][end]
    jacobian = jax.jacrev(last)(activations[site])  # [B, T, D, B, T, D]
    transported = jnp.einsum("btdsue,sue->btd", jacobian, activations[site])
    return {
        "output": output,
        "seen": activations,
        "by the Jacobian": interpret.run(model, params, *batch, set={end: transported})[0],
        "logit lens": interpret.logit_lens(model, params, *batch),
        "Jacobian lens": interpret.jacobian_lens(model, params, *batch),
        "direct": interpret.direct_attribution(model, params, *batch, measure=measure),
        "detached": interpret.detached_attribution(model, params, *batch, measure=measure),
    }


@pytest.mark.parametrize(("name", "dtype"), slow_but([("llama", "float64")], BOTH))
def test_last_lens_is_output_and_attributions_sum(name, dtype):
    """The Jacobian lens is that of the explicit Jacobian, and the detached Jacobian times the embeddings the logits."""
    with precision(dtype):
        model, params, batch, _ = family(name, dtype)
        sites = find_sites(model, params, batch)
        results = jax.jit(partial(run_lenses, model))(params, batch)
        last = max(site for site in results["logit lens"] if site.endswith("residual_out"))
        output, first = results["output"], last.partition(".")[0] + ".0.residual_out"
        assert output.dtype == dtype
        np.testing.assert_allclose(results["logit lens"][last], output, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(results["Jacobian lens"][last], output, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(results["Jacobian lens"][first], results["by the Jacobian"], rtol=1e-5, atol=1e-5)
        total = lambda shares: sum(np.float64(x).sum() for x in shares.values())
        np.testing.assert_allclose(total(results["direct"]), measure(output), rtol=1e-5, atol=1e-5)
        close = 1e-10 if dtype == "float64" else 1e-4
        assert abs(total(results["detached"]) - measure(output)) < close
        if name == "gpt":  # a layer in the middle, by the modules
            by_hand = model.bind({"params": params})
            expected = by_hand._logits(by_hand.decoder.norm(results["seen"]["decoder.0.residual_out"]))
            np.testing.assert_allclose(results["logit lens"]["decoder.0.residual_out"], expected, rtol=1e-5, atol=1e-5)
    stack = last.partition(".")[0]
    heads = {site: x.shape[2:3] for site, x in sites.items() if site.startswith(stack) and "head_output" in site}
    assert heads == {site: x.shape for site, x in results["direct"].items() if site.endswith("head_output")} and heads
    embeddings = {site: x.shape[:2] for site, x in sites.items() if site.endswith("embedding")}
    assert embeddings | {"biases": ()} == {site: x.shape for site, x in results["detached"].items()}
    assert bool(np.any(results["detached"]["biases"])) == (name in ("gpt", "transformer", "vit", "text", "bert"))


@slow
def test_lens_sites_follow_model_order():
    model, params, batch, _ = family("scanned")
    lens = interpret.logit_lens(model, params, *batch)
    assert list(lens) == ["decoder.embedding", "decoder.0.residual_out", "decoder.1.residual_out"]
    assert {site: x.argmax() for site, x in lens.items()} == interpret.logit_lens(
        model, params, *batch, measure=jnp.argmax
    )
    shares = [*interpret.direct_attribution(model, params, *batch, measure=measure)]
    assert [*filter(shares.__contains__, interpret.model_sites(model, *batch)), "biases"] == shares


@slow
@pytest.mark.parametrize("attribution", [interpret.direct_attribution, interpret.detached_attribution])
def test_attributions_that_do_not_sum_are_rejected(attribution):
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
        attribution(model, random_params(model, batch), *batch, measure=measure)


@slow
def test_direct_contribution_of_a_head_by_hand():
    """By hand in NumPy, of one head of the last layer."""
    model, params, batch, _ = family("scanned")
    logit = lambda output: output[0, -1, 3]
    shares = interpret.direct_attribution(model, params, *batch, measure=logit)
    activations = interpret.trace(model, params, *batch, sites=["decoder.1.head.1", "decoder.residual_out"])
    activations, params = jax.tree.map(np.asarray, (activations, params))
    x = activations["decoder.residual_out"][0, -1]
    scale = params["decoder"]["norm"]["scale"] / np.sqrt(np.square(x).mean() + 1e-5)
    kernel = params["decoder"]["layers_0"]["attention"]["out"]["kernel"][1].T.reshape(2, 4, 8)[1]
    by_hand = activations["decoder.1.head.1"][0, -1] @ kernel * scale @ params["embedding"]["token"]["embedding"][3]
    np.testing.assert_allclose(shares["decoder.1.head_output"][1], by_hand, rtol=1e-5)


ATTRIBUTED = [("scanned", "float32", "zeros"), ("gpt", "float32", "zeros"), ("llama", "float64", "mirrored")]
ATTRIBUTED += [(name, "float64", "zeros") for name in ("llama", "transformer", "vit", "text", "bert")]
ATTRIBUTED += [("llama", "float64", "other")]


@pytest.mark.parametrize(("name", "dtype", "kind"), slow_but(ATTRIBUTED[:1], ATTRIBUTED))
def test_integrated_gradients_match_quadrature(name, dtype, kind):
    """Against SciPy's adaptive quadrature, in float64, of two tokens' part in the derivative along the line. The line
    from a mirrored baseline passes zeros in its middle, where the norms of all tokens turn at once."""
    with precision("float64"):
        model, params, batch, other_batch = family(name, "float64")
        ends = interpret.trace(model, params, *batch, sites="*.embedding")
        starts = {"zeros": jax.tree.map(jnp.zeros_like, ends), "mirrored": jax.tree.map(jnp.negative, ends)}
        starts["other"] = interpret.trace(model, params, *other_batch, sites="*.embedding")
        start, site = starts[kind], min(ends)
        value = jax.jit(lambda x: measure(interpret.run(model, params, *batch, set=x)[0]))
        change = value(ends) - value(start)

        @jax.jit
        def slope(at):
            x = jax.tree.map(lambda a, b: a + at * (b - a), start, ends)
            return ((ends[site] - start[site]) * jax.grad(value)(x)[site]).sum(-1)[0, :2]

        turns = [0.5 + sign * 10.0**n for sign in (-1, 1) for n in range(-12, -1)] if kind == "mirrored" else []
        exact = quad_vec(slope, 0, 1, epsrel=1e-6, points=turns or [10.0**n for n in range(-6, 0)])[0]
        start = None if kind == "zeros" else jax.tree.map(lambda x: np.asarray(x, dtype), start)
    with precision(dtype):
        model, params, batch, _ = family(name, dtype)
        shares = interpret.integrated_gradients(model, params, *batch, measure=measure, baseline=start)
        size = sum(np.abs(x).sum() for x in shares.values())
        np.testing.assert_allclose(sum(np.sum(x) for x in shares.values()), change, rtol=0, atol=2e-4 * size)
        np.testing.assert_allclose(shares[site][0, :2], exact, rtol=0, atol=2e-4 * size)


@slow
def test_integrated_gradients_reject_measures_without_gradient():
    """A step function: the parts are zeros, the measure is not; the residual says by how much, under jit too."""
    model, params, batch, _ = family("scanned")
    logits = interpret.run(model, params, *batch)[0]
    step = lambda output: jnp.sign(output[0, -1, 3] - logits[0, -1, 3] / 2) * jnp.sign(logits[0, -1, 3])
    attribute = partial(interpret.integrated_gradients, model, params, *batch, measure=step, steps=8)
    zeros = {"decoder.embedding": jnp.zeros((2, 5, 8))}
    change = step(logits) - step(interpret.run(model, params, *batch, set=zeros)[0])
    shares, residual = jax.jit(lambda: attribute(return_residual=True))()
    assert change != 0 and not np.any(shares["decoder.embedding"]) and residual == -change
    with pytest.raises(
        InputError, match=r"^the parts sum to 0, the measure changes by \S+: a residual of .* gradients"
    ):
        attribute()


@slow
@pytest.mark.parametrize("attribution", [interpret.direct_attribution, interpret.detached_attribution])
def test_the_residual_is_what_the_parts_lack(attribution):
    model, params, batch, _ = family("scanned")
    log_p = lambda logits: jax.nn.log_softmax(logits)[0, -1, 3]
    shares, residual = jax.jit(lambda: attribution(model, params, *batch, measure=log_p, return_residual=True))()
    value = log_p(interpret.run(model, params, *batch)[0])
    np.testing.assert_allclose(sum(x.sum() for x in shares.values()) - value, residual, rtol=1e-3)
    assert abs(residual) > 0.1


@slow
def test_gradient_times_activation_is_first_order_effect():
    with precision("float64"):
        model, params, batch, _ = family("llama", "float64")
        site = "decoder.1.weights"
        shares = interpret.gradient_times_activation(model, params, *batch, measure=measure, sites=site)
        less = lambda x: x * (1 - 1e-6)
        change = [measure(interpret.run(model, params, *batch, set=s)[0]) for s in ({site: less}, {})]
        np.testing.assert_allclose(shares[site].sum(), (change[1] - change[0]) / 1e-6, rtol=1e-4)


def test_scores_of_heads_by_hand():
    """The weights of a text of eight tokens whose second half repeats the first, and of one without repetition."""
    tokens = jnp.array([[4, 5, 6, 7, 4, 5, 6, 7]])
    weights = np.zeros((1, 2, 8, 8), np.float32)
    weights[0, 0, range(4, 8), range(1, 5)] = 0.5  # the token after the earlier occurrence
    weights[0, 0, range(4, 8), range(4)] = 0.25  # that occurrence
    weights[0, 1, :, 0] = 1.0
    scores = interpret.head_scores(weights, tokens)
    np.testing.assert_allclose(scores["induction"], [0.5, 0.0])
    np.testing.assert_allclose(scores["duplicate token"], [0.25, 0.25])
    np.testing.assert_allclose(scores["first token"], [0.25 / 7, 1.0])
    np.testing.assert_allclose(scores["previous token"], [0.0, 1 / 7])
    alone = interpret.head_scores(weights, jnp.arange(8)[None])
    np.testing.assert_array_equal(alone["induction"], [0.0, 0.0])
    again = interpret.repeated_tokens(jax.random.key(0), 50, 4, batch=2, first=0)
    assert again.shape == (2, 9) and (again[:, 1:5] == again[:, 5:]).all() and (again[:, 0] == 0).all()
