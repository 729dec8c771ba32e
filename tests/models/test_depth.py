"""What layers read from earlier layers - value residuals, value embeddings, attention residuals - against the papers'
formulas in float64, position by position, and against themselves in every use."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config, interpret
from attention_jax.config import replace
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.layer_stack import stack_layers
from attention_jax.models.part_checks import compiled
from attention_jax.ops.depth import attend_over_depth
from tests.models.test_attention_variants import linear, rotate, sigmoid, softmax
from tests.models.test_parts import random_params

LAYERS, HEADS, KV_HEADS = 2, 4, 2
VARIANTS = {
    "value residual": {"value_residual": True},
    "value embeddings": {"value_embeddings": True},
    "attention residuals": {"attention_residuals": True},
    "all": {"value_residual": True, "value_embeddings": True, "attention_residuals": True},
}
OPTIONS = config.LanguageModelConfig(
    num_layers=LAYERS, hidden_size=16, num_heads=HEADS, num_kv_heads=KV_HEADS, mlp_dim=12, mlp_layer="swiglu",
    norm_layer="rms", use_bias=False, scale_embeddings=False, output_bias=False, dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
TOKENS = jnp.array([[1, 2, 3, 4, 5, 6, 6], [5, 4, 3, 2, 1, 1, 2]], jnp.int32)


def build(name):
    model = LanguageModel(replace(OPTIONS, **VARIANTS[name]), 7)
    return model, random_params(model, (TOKENS,))


# --- the papers' formulas, for one sequence ---------------------------------------------------------------------------


def rms(x, scale=1.0):
    return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5) * scale


def attend_rows(p, h, value):
    query, key = linear(p["query"], h).reshape(len(h), HEADS, 4), linear(p["key"], h).reshape(len(h), KV_HEADS, 4)
    out = np.zeros((len(h), HEADS, 4))
    for head in range(HEADS):
        q, k = rotate(query[:, head]), rotate(key[:, head // 2])
        for i in range(len(h)):
            out[i, head] = softmax(k[: i + 1] @ q[i] / 2) @ value[: i + 1, head // 2]
    return linear(p["out"], out.reshape(len(h), -1))


def values(p, h, embedding, first):
    """l_1 (v + gate E) + l_2 v_1 (Zhou et al. 2025), the first layer without the l's."""
    value = linear(p["value"], h).reshape(len(h), KV_HEADS, 4)
    if embedding is not None:
        gate = 2 * sigmoid(linear(p["embedding_gate"], h))
        value = value + gate[:, :, None] * embedding.reshape(value.shape)
    return value if first is None else p["value_mix"][0] * value + p["value_mix"][1] * first


def swiglu(p, x):
    gate = linear(p["gate"], x)
    return linear(p["out"], gate * sigmoid(gate) * linear(p["hidden"], x))


def read(query, outputs):
    """h_l = sum_i a_i v_i with a = softmax_i(w_l . RMSNorm(v_i)) (Kimi Team 2026, eq. 2 to 4), token by token."""
    rows = []
    for token in range(len(outputs[0])):
        v = np.stack([output[token] for output in outputs])
        rows.append(softmax(rms(v) @ query) @ v)
    return np.stack(rows)


def logits_of(p, tokens, value_residual=False, value_embeddings=False, attention_residuals=False):
    outputs, first = [p["embedding"]["token"]["embedding"][tokens].astype(np.float64)], None
    stream = lambda tree, name: read(tree[name], outputs) if attention_residuals else sum(outputs)
    for i in range(LAYERS):
        layer = p["decoder"][f"layer_{i}"]
        table = p["value_embedding"]["embedding"][tokens] if value_embeddings else None
        embedding = None if table is None else table.reshape(len(tokens), LAYERS, -1)[:, i]
        h = rms(stream(layer, "attention_depth_query"), layer["attention_norm"]["scale"])
        value = values(layer["attention"], h, embedding, first)
        first = value if first is None and value_residual else first
        outputs.append(attend_rows(layer["attention"], h, value))
        h = rms(stream(layer, "ffn_depth_query"), layer["ffn_norm"]["scale"])
        outputs.append(swiglu(layer["ffn"], h))
    states = rms(stream(p["decoder"], "depth_query"), p["decoder"]["norm"]["scale"])
    return states @ p["embedding"]["token"]["embedding"].T


@pytest.mark.parametrize("name", slow_but(["all"], VARIANTS))
def test_every_model_is_its_formula(name):
    model, params = build(name)
    actual = compiled(model.apply)({"params": params}, TOKENS)[0]
    for row, tokens in zip(actual, np.asarray(TOKENS)):
        np.testing.assert_allclose(row, logits_of(params, tokens, **VARIANTS[name]), atol=5e-5, rtol=5e-5)


# --- relations --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["value residual"], VARIANTS))
def test_steps_and_padded_prompts_are_the_full_pass(name):
    """With it: no logits depend on tokens behind them, as those of a shorter text are the same."""
    model, params = build(name)
    lengths = jnp.array([5, 2])

    @compiled
    def run(params):
        call = lambda method, *x: model.apply({"params": params}, *x, method=method)
        step = lambda cache, token: call("step", cache, token)[1::-1]
        _, steps = jax.lax.scan(step, call("start", 2, 7), TOKENS.T)
        padded, cache = call("prefill", TOKENS[:, :5], lengths, 7)
        stepped = call("step", jax.tree.map(lambda x: x[:1], cache), TOKENS[:1, 5])[0]  # of the first row alone
        both = jnp.concatenate([TOKENS, TOKENS.at[:, 4:].set(0)])
        return call("__call__", both)[0], steps.swapaxes(0, 1), stepped, padded

    both, steps, stepped, padded = run(params)
    whole, other = both[:2], both[2:]
    np.testing.assert_array_equal(other[:, :4], whole[:, :4])
    np.testing.assert_allclose(steps, whole, atol=3e-5)
    np.testing.assert_allclose(padded, whole[jnp.arange(2), lengths - 1], atol=3e-5)
    np.testing.assert_allclose(stepped[0], whole[0, 5], atol=3e-5)


@pytest.mark.slow
def test_scanned_layers_are_the_layers():
    model = LanguageModel(replace(OPTIONS, value_residual=True, value_embeddings=True), 7)
    params = random_params(model, (TOKENS,))
    scanned = LanguageModel(replace(model.options, scan_layers=True), 7)
    stacked = {"params": stack_layers(params, model.options)}

    @compiled
    def run(params, stacked):
        step = lambda cache, token: scanned.apply(stacked, cache, token, method="step")[1::-1]
        _, steps = jax.lax.scan(step, scanned.apply(stacked, 2, 7, method="start"), TOKENS.T)
        return model.apply({"params": params}, TOKENS)[0], scanned.apply(stacked, TOKENS)[0], steps.swapaxes(0, 1)

    whole, looped, steps = run(params, stacked)
    np.testing.assert_allclose(looped, whole, atol=3e-5)
    np.testing.assert_allclose(steps, whole, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all"], VARIANTS))
def test_initial_parameters_leave_a_model_as_it_is(name):
    """Attention residuals up to the epsilon of the norms: a mean in place of a sum is the same after them."""
    plain, changed = LanguageModel(OPTIONS, 7), LanguageModel(replace(OPTIONS, **VARIANTS[name]), 7)

    @compiled
    def run(params):
        fresh = changed.init(jax.random.key(0), TOKENS)["params"]
        both = jax.tree.map(lambda x: x, fresh)
        for path, x in jax.tree_util.tree_leaves_with_path(params):
            node = both
            for key in path[:-1]:
                node = node[key.key]
            node[path[-1].key] = x
        return plain.apply({"params": params}, TOKENS)[0], changed.apply({"params": both}, TOKENS)[0]

    exact = 1e-6 if "attention_residuals" not in VARIANTS[name] else 2e-3
    np.testing.assert_allclose(*run(random_params(plain, (TOKENS,))), atol=exact, rtol=exact)


@pytest.mark.slow
def test_new_parameters_have_gradients_from_the_first_step():
    model = LanguageModel(replace(OPTIONS, **VARIANTS["all"]), 7)
    loss = lambda params: model.apply({"params": params}, TOKENS)[0][..., 3].sum()
    params = compiled(model.init)(jax.random.key(0), TOKENS)["params"]
    gradients = compiled(jax.grad(loss))(params)
    layer = gradients["decoder"]["layer_1"]
    for x in (layer["attention"]["value_mix"], layer["ffn_depth_query"], gradients["value_embedding"]["embedding"]):
        assert jnp.abs(x).max() > 1e-6


def test_a_large_query_reads_one_output():
    outputs = np.random.default_rng(0).normal(size=(2, 3, 4, 8)).astype(np.float32)
    query = np.zeros(8, np.float32)
    query[2] = 1e4
    largest = (outputs / np.sqrt(np.mean(outputs**2, axis=-1, keepdims=True)))[..., 2].argmax(axis=-1)
    expected = np.take_along_axis(outputs, largest[..., None, None], axis=2)[:, :, 0]
    np.testing.assert_allclose(attend_over_depth(jnp.asarray(query), jnp.asarray(outputs)), expected, atol=1e-6)


def test_attention_residuals_have_no_residual_stream_of_layers():
    model, params = build("attention residuals")
    sites = interpret.model_sites(model, TOKENS)
    assert "decoder.1.weights" in sites and "decoder.1.residual_out" not in sites
    assert sites["decoder.residual_out"].shape == (2, 7, 16)
    with pytest.raises(InputError, match="lens needs a residual stream"):
        interpret.logit_lens(model, params, TOKENS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "post"}, "--model.norm post"),
        ({"scan_layers": True}, "leave out --model.scan-layers"),
    ],
)
def test_what_attention_residuals_cannot_do_is_one_line(options, message):
    model = lambda: LanguageModel(replace(OPTIONS, attention_residuals=True, **options), 7)
    with pytest.raises(InputError, match=message):
        jax.eval_shape(lambda key: model().init(key, TOKENS), jax.random.key(0))


def test_half_precision_stays_half_precision():
    """JAX promotes no types in tests."""
    model = LanguageModel(replace(OPTIONS, dtype="bfloat16", **VARIANTS["all"]), 7)
    cache = lambda key: model.init_with_output(key, TOKENS, jnp.array([7, 7]), 8, method="prefill")[0][1]
    keys, values = jax.eval_shape(cache, jax.random.key(0)).layers[1]
    assert keys.entries.dtype == values.entries.dtype == jnp.bfloat16
