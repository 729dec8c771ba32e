"""A trace computes the layers that it needs and no others, bit for bit; 2 CPU-seconds by default."""

from functools import lru_cache, partial

import jax
import numpy as np
import pytest
from site_models import LENGTH, LLAMA, SMALL, TOKENS, family, random_params

from attention_jax import config as configs, interpret, models
from attention_jax.interpret.prefix import model_prefix
from attention_jax.interpret.sites import find_sites

PER_LAYER = "1-2:mask=window(1);3:score=dot"


@lru_cache
def model_of_four(name: str):
    """(model, parameters, inputs) of four scanned layers, which are three runs in a decoder."""
    if name == "decoder":
        options = configs.LanguageModelConfig(4, scan_layers=True, per_layer=PER_LAYER, **SMALL | LLAMA)
        model, batch = models.LanguageModel(options, 11), (TOKENS,)
    elif name == "bert":
        options = configs.MaskedLanguageModelConfig(num_layers=4, max_length=6, scan_layers=True, **SMALL)
        model, batch = models.MaskedLanguageModel(options, 11), (TOKENS, LENGTH)
    else:
        options = configs.TransformerConfig(4, 4, scan_layers=True, **SMALL)
        model, batch = models.Transformer(options, 11, 11), (TOKENS, LENGTH, TOKENS[:, :4])
    return model, random_params(model, batch), batch


DEPTHS = {"decoder.embedding": (None, 1), "decoder.2.head.1": (None, 3), "decoder.residual_out": (None, 4)}
BOTH_DEPTHS = {"encoder.1.query": (2, 1), "decoder.1.cross_query": (4, 2)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "depths"), [("decoder", DEPTHS), ("transformer", BOTH_DEPTHS)])
def test_layers_that_a_site_depends_on(name, depths):
    model, params, batch = model_of_four(name)
    sites = find_sites(model, params, batch)
    for site, (encoder, decoder) in depths.items():
        prefix, prefix_params = model_prefix(model, params, sites, [interpret.sites.split_head(site)[0]])
        options, shapes = prefix.options, jax.tree.map(np.shape, prefix_params)
        assert getattr(options, "num_layers", decoder) == getattr(options, "num_decoder_layers", decoder) == decoder
        assert encoder is None or options.num_encoder_layers == encoder
        expected = jax.eval_shape(partial(prefix.init, jax.random.key(0)), *batch)["params"]
        assert jax.tree.map(lambda x: x.shape, expected) == shapes, site


CASES = [("decoder", ("decoder.1.head_output", "decoder.2.residual_in"))]
CASES += [pytest.param("bert", ("encoder.1.weights",), marks=pytest.mark.slow)]
CASES += [pytest.param("transformer", ("encoder.1.mlp_output", "decoder.0.cross_key"), marks=pytest.mark.slow)]


@pytest.mark.parametrize(("name", "sites"), CASES)
def test_a_trace_has_the_bits_of_a_run_and_no_output(name, sites):
    model, params, batch = model_of_four(name)
    activations = interpret.trace(model, params, *batch, sites=sites)
    for site, expected in interpret.run(model, params, *batch, sites=sites)[1].items():
        np.testing.assert_array_equal(activations[site], expected, err_msg=site)


@pytest.mark.slow
def test_an_activation_needs_neither_logits_nor_later_layers():
    """The compiled program of a site of layer 1 has neither: no array of the vocabulary, and a loop of two layers."""
    vocab = 13
    model = models.LanguageModel(model_of_four("decoder")[0].options, vocab)
    params = jax.eval_shape(model.init, jax.random.key(0), TOKENS)["params"]
    sites = find_sites(model, params, (TOKENS,))
    program = lambda name: jax.jit(lambda params: interpret.trace(model, params, TOKENS, sites=name)).lower(params)
    texts = {name: program(name).compile().as_text() for name in ("decoder.1.residual_in", "logits")}
    assert sites["logits"].shape == (2, 5, vocab)
    is_there = {name: ("[2,5,13]" in text or "[10,13]" in text) for name, text in texts.items()}
    assert is_there == {"decoder.1.residual_in": False, "logits": True}


@pytest.mark.slow
def test_other_models_are_left_whole():
    model, params, batch, _ = family("vit")
    sites = find_sites(model, params, batch)
    prefix, prefix_params = model_prefix(model, params, sites, ["encoder.0.query"])
    assert prefix is model and prefix_params is params
