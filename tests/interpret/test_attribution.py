"""Attribution patching against the exact patching that it estimates."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import SMALL, family, language_model, measure, precision, random_params

from attention_jax import InputError, config, interpret, models
from attention_jax.interpret import attribution

slow = pytest.mark.slow
IDENTITY = "tests.interpret.test_attribution:Identity"
TOKENS, OTHER = jnp.array([[1, 2, 3, 4]]), jnp.array([[5, 6, 7, 8]])


class Identity(nn.Module):
    """A normalization layer that does nothing."""

    epsilon: float = 0.0

    def __call__(self, x):
        return x


def logit(output):
    return output[0, -1, 3] - output[0, -1, 7]


def trace_of(model, params, tokens):
    return interpret.trace(
        model, params, tokens, sites=["*.residual_in", "*_output", "*.query", "*.key", "*.embedding"]
    )


@pytest.fixture(scope="module")
def linear():
    """A model that is linear in what its heads write: without norms and MLPs, and weights that are the same for all
    keys. (model, parameters, source, measure of `TOKENS`)."""
    model = language_model(norm_layer=IDENTITY, scan_layers=True)
    params = random_params(model, (TOKENS,))
    silent = lambda path, x: 0 * x if any(word in jax.tree_util.keystr(path) for word in ("ffn", "query")) else x
    params = jax.tree_util.tree_map_with_path(silent, params)
    return model, params, trace_of(model, params, OTHER), logit(interpret.run(model, params, TOKENS)[0])


def close(estimates, exact, base, tolerance=1e-4):
    for site, values in exact.items():
        np.testing.assert_allclose(estimates[site], values - base, rtol=tolerance, atol=tolerance, err_msg=site)
    assert max(jnp.abs(x - base).max() for x in exact.values()) > 0.05


@pytest.mark.parametrize(
    "over", ["heads", *(pytest.param(x, marks=slow) for x in ("positions", ("heads", "positions")))]
)
def test_of_a_linear_model_it_is_exact(over, linear):
    model, params, source, base = linear
    options = {"measure": logit, "source": source, "over": over}
    exact = interpret.patch_sweep(model, params, TOKENS, **options)
    for steps in (0,) if over == "heads" else (0, 3):
        estimates = interpret.attribution_patch(model, params, TOKENS, **options, steps=steps)
        close(estimates, exact, base)
        close(jax.tree.map(lambda a, b: a + 0 * b, estimates, exact), exact, base)  # trees of one kind


@slow
def test_edges_of_a_linear_model_are_its_paths(linear):
    """From each head to the output, and to the attention of the next layer, by exact path patching; the readers before
    a head, and MLPs that do nothing, have 0, and all together the effect of the head."""
    model, params, source, base = linear
    edges = interpret.attribution_patch(model, params, TOKENS, measure=logit, source=source, edges=True)
    whole = interpret.attribution_patch(model, params, TOKENS, measure=logit, source=source)
    for site, x in edges.items():
        np.testing.assert_allclose(x.sum(1), whole[site], atol=1e-5)
        assert x.shape == (2, 5) and not jnp.any(x[:, jnp.array([0, 1, 3])])
    for head in range(2):
        for number, receivers in ((4, "logits"), (2, [f"decoder.1.{kind}" for kind in ("query", "key", "value")])):
            sender = f"decoder.0.head.{head}"
            patched = interpret.path_patch(model, params, (TOKENS,), (OTHER,), sender, receivers)
            np.testing.assert_allclose(edges["decoder.0.head_output"][head, number], logit(patched) - base, atol=1e-4)


@slow
def test_dropping_a_layer_leaves_the_other_paths(linear):
    """By hand for two layers: of the first, what goes past the second; of the last, all of it."""
    model, params, source, _ = linear
    call = {"measure": logit, "source": source}
    edges = interpret.attribution_patch(model, params, TOKENS, **call, edges=True)
    dropped = interpret.attribution_patch(model, params, TOKENS, **call, drop_layers=True)
    for site, effects in dropped.items():
        np.testing.assert_allclose(effects, jnp.abs(edges[site][:, -1]), atol=1e-5)


@slow
@pytest.mark.parametrize("kind", ["query", "key"])
def test_the_qk_fix_has_no_error_before_the_weights(kind):
    """Of one layer without a norm and an MLP the output is linear in the weights, and the fix exact, of grouped keys,
    too; without it the softmax is linear."""
    model = language_model(norm_layer=IDENTITY)
    model = model.clone(options=replace(model.options, num_layers=1))
    params = random_params(model, (TOKENS,))
    params = jax.tree_util.tree_map_with_path(
        lambda path, x: 0 * x if "ffn" in jax.tree_util.keystr(path) else x, params
    )
    options = {"measure": logit, "source": trace_of(model, params, OTHER), "sites": f"*.{kind}"}
    exact, base = (
        interpret.patch_sweep(model, params, TOKENS, **options),
        logit(interpret.run(model, params, TOKENS)[0]),
    )
    close(interpret.attribution_patch(model, params, TOKENS, **options, fix_qk=True), exact, base)
    with pytest.raises(AssertionError):
        close(interpret.attribution_patch(model, params, TOKENS, **options), exact, base)


@slow
@pytest.mark.parametrize("sites", ["*head_output", "*.query"])
def test_its_error_is_of_second_order(sites):
    """A change that is half as large has a quarter of the error, in float64; the effect has half."""
    with precision("float64"):
        model, params, batch, _ = family("llama", "float64")
        activations, rng = interpret.trace(model, params, *batch, sites=sites), np.random.default_rng(0)
        change = {site: jnp.asarray(rng.normal(size=x.shape)) for site, x in activations.items()}
        base, errors, effects = measure(interpret.run(model, params, *batch)[0]), [], []
        for size in (2e-3, 1e-3):
            source = {site: activations[site] + size * change[site] for site in activations}
            options = {"measure": measure, "source": source, "sites": sites}
            estimates = interpret.attribution_patch(model, params, *batch, **options)
            exact = interpret.patch_sweep(model, params, *batch, **options)
            errors.append(np.concatenate([estimates[site] - (exact[site] - base) for site in activations]))
            effects.append(np.concatenate([estimates[site] for site in activations]))
        np.testing.assert_allclose(errors[0], 4 * errors[1], rtol=0.02)
        np.testing.assert_allclose(effects[0], 2 * effects[1], rtol=1e-9)
        assert np.all(np.abs(errors[0]) > 1e-12)


@slow
def test_integrated_embeddings_explain_the_whole_change():
    """The gradients along the line between two embeddings sum to the difference of the measures (completeness)."""
    with precision("float64"):
        model, params, batch, other_batch = family("llama", "float64")
        source = interpret.trace(model, params, *other_batch, sites="*.embedding")
        call = {"measure": measure, "source": source, "sites": "*.embedding", "over": "positions"}
        ends = [measure(interpret.run(model, params, *tokens)[0]) for tokens in (batch, other_batch)]
        totals = [
            sum(x.sum() for x in interpret.attribution_patch(model, params, *batch, **call, steps=n).values())
            for n in (1, 256)
        ]
        assert abs(totals[1] - (ends[1] - ends[0])) < 1e-3 < abs(totals[0] - (ends[1] - ends[0]))


MISUSES = {
    "no axis": ({"over": None}, "over heads, positions or both"),
    "no heads": ({"sites": "*.embedding"}, "over heads needs sites with heads, as head_output; decoder.embedding"),
    "an axis of keys": ({"over": "keys"}, "over heads, positions or both"),
    "steps": ({"steps": -1}, "steps is a number of gradients"),
    "a truth value": ({"steps": True}, "steps is a number of gradients, .*, got True"),
    "no embedding": ({"steps": 2, "source": ["*head_output"]}, "decoder.embedding"),
    "fix of values": ({"fix_qk": True}, "fix_qk is for the sites query or key"),
    "both kinds": ({"fix_qk": True, "sites": ["*.query", "*.key"]}, "one kind in a call"),
    "edges of keys": ({"edges": True, "sites": "*.key"}, "edges are of embedding, head_output"),
    "constant sites": ({"drop_layers": True, "sites": "*mlp_output", "over": "positions"}, "sweep other sites"),
}


@pytest.mark.parametrize("case", MISUSES)
def test_what_cannot_be_estimated(case, linear):
    model, params, source, _ = linear
    options, message = MISUSES[case]
    patterns = options.get("source", ["*"])
    names = [name for name in source if patterns == ["*"] or name.endswith("head_output")]
    options = {"measure": logit} | options | {"source": {name: source[name] for name in names}}
    with pytest.raises(InputError, match=message):
        interpret.attribution_patch(model, params, TOKENS, **options)


@pytest.mark.parametrize(
    ("norm", "layers", "message"),
    [
        ("post", 1, "norm='post'"),
        ("sandwich", 2, "norm='sandwich'"),
        ("cross", 1, "cross-att"),
        ("vit", 2, "a last layer that drops"),
    ],
)
def test_edges_of_other_layers_are_refused_under_jit(norm, layers, message):
    if norm == "vit":
        model, inputs = (
            models.ViT(config.ViTConfig(patch_size=4, num_layers=2, **SMALL), 3, 8),
            (jnp.ones((1, 8, 8, 1)),),
        )
    elif norm == "cross":
        options = config.TransformerConfig(1, layers, **SMALL, norm="pre")
        model, inputs = models.Transformer(options, 11, 11), (TOKENS, jnp.array([4]), TOKENS)
    else:
        model, inputs = language_model(norm=norm, num_layers=layers), (TOKENS,)
    stack = "encoder" if norm == "vit" else "decoder"
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    source = dict(interpret.sites.model_sites(model, *inputs))
    call = {"measure": logit, "sites": f"{stack}.*.mlp_output", "over": "positions", "edges": True}
    with pytest.raises(InputError, match=f"sub-layers add to the residual stream; {stack} has {message}"):
        jax.eval_shape(
            lambda params, source: interpret.attribution_patch(model, params, *inputs, source=source, **call),
            shapes,
            source,
        )


def test_edges_of_one_layer_by_hand():
    """Slopes 4, 2, 1 before attention, MLP and the end: an MLP is read by the output alone. Where the last layer does
    not add, here 1 + 1 + 1 as 1, there are no edges."""
    sites = [f"decoder.0.{kind}" for kind in ("residual_in", "attention_output", "mlp_output", "residual_out")]
    readers = {"attention": sites[:2], "mlp": sites[1:3], "output": (sites[2], None)}
    slopes = {site: jnp.full((1, 1, 2, 3), slope) for site, slope in zip(sites, (4.0, 2.0, 1.0))}
    activations = {site: jnp.ones((1, 2, 3)) for site in sites} | {sites[3]: jnp.full((1, 2, 3), 3.0)}
    effects = lambda kind, activations: attribution._edge_effects(
        None, None, {f"decoder.0.{kind}": jnp.ones((1, 2, 3))}, activations, slopes, readers, ("positions",)
    )[f"decoder.0.{kind}"].tolist()
    assert effects("mlp_output", activations) == [[0, 0, 3]] * 2
    assert effects("attention_output", activations) == [[0, 3, 3]] * 2
    with pytest.raises(InputError, match=r"add to the residual stream; decoder\.0 does not"):
        effects("mlp_output", activations | {sites[3]: jnp.ones((1, 2, 3))})


@slow
def test_another_length_and_layers_that_do_not_add_are_refused(linear):
    model, params, _, _ = linear
    call = {"measure": logit, "source": trace_of(model, params, OTHER[:, :3])}
    with pytest.raises(InputError, match="trace an input of the same length"):
        interpret.attribution_patch(model, params, TOKENS, **call)
    model, params, batch, other_batch = family("bert")
    source = interpret.trace(model, params, *other_batch, sites="*_output")
    call = {"measure": measure, "source": source, "sites": "*mlp_output", "over": "positions", "edges": True}
    with pytest.raises(InputError, match="sub-layers add to the residual stream"):
        interpret.attribution_patch(model, params, *batch, **call)
