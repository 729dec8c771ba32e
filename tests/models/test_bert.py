"""The encoder of masked language models: padding, heads, sentence embeddings and options of attention."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.models.layer_stack import stack_layers

OPTIONS = config.MaskedLanguageModelConfig(hidden_size=8, num_heads=2, mlp_dim=12, num_layers=2, max_length=6)
TOKENS, LENGTH = np.array([[3, 4, 5, 6, 7, 8], [9, 2, 4, 0, 0, 0]], np.int32), np.array([6, 3], np.int32)


@functools.cache
def random_model():
    model, r = MaskedLanguageModel(OPTIONS, 11), np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.random.key(0), TOKENS, LENGTH)
    return model, jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), jnp.float32), shapes)


@pytest.mark.slow
def test_padding_changes_nothing():
    """Two programs."""
    model, params = random_model()
    apply = jax.jit(functools.partial(model.apply, return_weights=True))
    logits, maps = apply(params, TOKENS, LENGTH)
    repadded, _ = apply(params, np.where(TOKENS == 0, 10, TOKENS), LENGTH)
    alone, alone_maps = apply(params, TOKENS[1:, :3], LENGTH[1:])
    np.testing.assert_array_equal(repadded[1, :3], logits[1, :3])
    np.testing.assert_allclose(alone[0], logits[1, :3], atol=1e-6)
    np.testing.assert_allclose(alone_maps["encoder_attention"][0], maps["encoder_attention"][1, ..., :3, :3], atol=1e-6)


@pytest.mark.parametrize("pool", ["mean", "max", "first"])
def test_sentence_embeddings(pool):
    model, params = random_model()
    states = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)
    model = MaskedLanguageModel(dataclasses.replace(OPTIONS, pool=pool, unit_norm=pool == "mean"), 11)
    embeddings = jax.jit(functools.partial(model.apply, method="embed"))(params, states, LENGTH)
    expected = [{"mean": x.mean(0), "max": x.max(0), "first": x[0]}[pool] for x in (states[0], states[1, :3])]
    expected = [x / np.linalg.norm(x) if pool == "mean" else x for x in expected]
    np.testing.assert_allclose(embeddings, np.stack(expected), rtol=1e-5)


def test_options_of_attention_apply():
    _, params = random_model()
    model = MaskedLanguageModel(dataclasses.replace(OPTIONS, normalizer="top_k(2)", mask="window(2)"), 11)
    call = functools.partial(model.apply, return_weights=True, method="hidden")
    maps = np.asarray(jax.jit(call)(params, TOKENS, LENGTH)[1]["encoder_attention"])[0]
    assert ((maps > 0).sum(-1) == 2).all()
    far = np.abs(np.arange(6)[:, None] - np.arange(6)) > 2
    assert (maps[:, :, far] == 0).all()


@pytest.mark.slow
def test_per_layer_options_apply_in_a_scan():
    _, params = random_model()
    options = dataclasses.replace(OPTIONS, num_layers=3, per_layer="2:normalizer=top_k(2)")
    tree = dict(params["params"])
    tree["encoder"] = {**tree["encoder"], "layer_2": tree["encoder"]["layer_0"]}
    call = lambda options, tree: jax.jit(
        functools.partial(MaskedLanguageModel(options, 11).apply, return_weights=True, method="hidden")
    )({"params": tree}, TOKENS, LENGTH)
    states, maps = call(options, tree)
    num_attended = (np.asarray(maps["encoder_attention"])[0] > 0).sum(-1)  # [layers, H, T]
    assert (num_attended[:2] == 6).all() and (num_attended[2] == 2).all()
    scanned, same = call(dataclasses.replace(options, scan_layers=True), stack_layers(tree, options))
    np.testing.assert_allclose(scanned, states, atol=1e-6)
    np.testing.assert_allclose(same["encoder_attention"], maps["encoder_attention"], atol=1e-6)


def test_token_types_and_first_position_move_the_states():
    model, params = random_model()
    call = jax.jit(functools.partial(model.apply, method="hidden"))
    type_0, type_1 = (call(params, TOKENS, LENGTH, np.full_like(TOKENS, kind))[0] for kind in (0, 1))
    np.testing.assert_array_equal(type_0, call(params, TOKENS, LENGTH)[0])
    assert np.abs(type_1 - type_0).max() > 1e-3


def test_what_the_model_is_not_is_refused():
    model, params = random_model()
    with pytest.raises(InputError, match="classify_text"):
        model.apply(params, np.zeros((1, 2, 8), np.float32), LENGTH[:1], method="classify")
    headless = MaskedLanguageModel(dataclasses.replace(OPTIONS, word_head=False), 11)
    with pytest.raises(InputError, match="no head for masked words"):
        headless.apply(params, np.zeros((1, 2, 8), np.float32), method="words")
    for classes, head in ((3, "3 classes"), (0, "--model.word-head")):
        with pytest.raises(InputError, match=f"--model.projection-dim 4 is for .* {head} does not"):
            MaskedLanguageModel(dataclasses.replace(OPTIONS, projection_dim=4), 11, classes)
    with pytest.raises(InputError, match="6 learned positions"):
        model.apply(params, np.zeros((1, 7), np.int32), np.array([7]))
