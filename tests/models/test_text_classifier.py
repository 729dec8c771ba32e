"""The classifier of texts against the formulas of its paper, and what padding may not do."""

import jax
import numpy as np
import pytest
from contract import draw

from attention_jax.config import TextClassifierConfig
from attention_jax.errors import InputError
from attention_jax.models import text_classifier

TOKENS = np.array([[3, 1, 4, 1, 5, 0], [2, 7, 0, 0, 0, 0]], np.int32)
LENGTH = np.array([5, 2], np.int32)


@pytest.fixture(scope="module")
def small_model():
    model = text_classifier.TextClassifier(
        TextClassifierConfig(num_layers=1, hidden_size=8, num_heads=2, mlp_dim=16), 9, 3
    )
    params = draw(model.init, TOKENS, LENGTH)["params"]
    return model, params


def test_the_pool_is_that_of_the_paper():
    """Yang et al. 2016, eq. 5-7, written out in NumPy."""
    states = np.random.default_rng(0).normal(size=(2, 6, 4)).astype(np.float32)
    pool = text_classifier.AttentionPool()
    (pooled, weights), variables = jax.jit(
        lambda: pool.init_with_output(jax.random.key(1), states, LENGTH, return_weights=True)
    )()
    params = variables["params"]
    for row, length in enumerate(LENGTH):
        h = states[row, :length]
        u = np.tanh(h @ np.asarray(params["key"]["kernel"]) + np.asarray(params["key"]["bias"]))
        scores = np.exp(u @ np.asarray(params["query"]))
        a = scores / scores.sum()
        np.testing.assert_allclose(weights[row, :length], a, rtol=1e-5)
        np.testing.assert_allclose(pooled[row], a @ h, rtol=1e-4, atol=1e-6)
        assert not weights[row, length:].any()


@pytest.mark.slow
def test_padding_and_what_stands_in_it_change_nothing(small_model):
    model, params = small_model
    run = jax.jit(lambda tokens, length: model.apply({"params": params}, tokens, length)[0])
    repadded = np.where(np.arange(6)[None] < LENGTH[:, None], TOKENS, 8)
    np.testing.assert_allclose(run(repadded, LENGTH), run(TOKENS, LENGTH), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(run(TOKENS[1:, :2], LENGTH[1:]), run(TOKENS, LENGTH)[1:], rtol=1e-4, atol=1e-5)


def test_without_layers_only_the_pool_has_weights():
    options = TextClassifierConfig(num_layers=0, hidden_size=8, num_heads=2)
    model = text_classifier.TextClassifier(options, 9, 3)
    (_, intermediates), variables = jax.jit(
        lambda: model.init_with_output(jax.random.key(0), TOKENS, LENGTH, return_weights=True)
    )()
    assert set(variables["params"]) == {"embedding", "pool", "head"}
    assert set(intermediates) == {"pool_attention"} and intermediates["pool_attention"].shape == (2, 6)


def test_parameter_count_by_hand(small_model):
    _, params = small_model
    d, ffn, vocab, classes = 8, 16, 9, 3
    layer = 4 * (d * d + d) + (d * ffn + ffn) + (ffn * d + d) + 2 * 2 * d
    expected = vocab * d + layer + 2 * d + (d * d + d) + d + (d * classes + classes)
    assert sum(x.size for x in jax.tree.leaves(params)) == expected


def test_heads_divide_the_width():
    with pytest.raises(InputError, match="multiple of --model.num-heads"):
        text_classifier.TextClassifier(TextClassifierConfig(hidden_size=10, num_heads=4), 9, 3)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"differential": True}, "--model.differential True"),
        ({"score": "dot"}, "--model.score dot"),
        ({"mask": "window(2)"}, r"--model.mask window\(2\)"),
        ({"num_kv_heads": 1}, "--model.num-kv-heads 1"),
        ({"position_embedding": "rotary"}, "--model.position-embedding rotary"),
    ],
)
def test_options_of_layers_need_layers(options, word):
    with pytest.raises(InputError, match=f"^{word} needs layers, got --model.num-layers 0"):
        text_classifier.TextClassifier(TextClassifierConfig(num_layers=0, hidden_size=8, num_heads=2, **options), 9, 3)
