"""Options that change what a head does with its maps: forget gates, contextual positions, differential and exclusive
attention, against their authors' formulas in float64, position by position, and against themselves in every use."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.config import replace
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.layer_stack import stack_layers
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.models.text_classifier import TextClassifier
from attention_jax.models.transformer import Transformer
from attention_jax.models.vit import ViT
from attention_jax.ops.masks import causal
from attention_jax.ops.positions import YarnScaling
from tests.models.test_parts import MODELS, random_params, step_and_full_logits
from tests.models.test_transformer import LENGTH, SOURCE, TARGET, beams_score_as_teacher_forcing

HEADS, KV_HEADS = 4, 2
VARIANTS = {
    "forget": {"bias": "forget"},
    "cope": {"bias": "cope"},
    "differential": {"differential": True},
    "differential_v2": {"differential_v2": True, "num_kv_heads": KV_HEADS},
    "exclusive": {"exclusive": True},
    "a fraction": {"rope_fraction": 0.5},
    "all": {"bias": "forget", "differential": True, "exclusive": True, "num_kv_heads": KV_HEADS, "output_gate": True},
}
ENCODERS = [name for name in VARIANTS if name != "cope"]
X = np.random.default_rng(0).normal(size=(2, 7, 16)).astype(np.float32)


# --- the authors' formulas, for one sequence with a causal mask -------------------------------------------------------


def linear(p, x):
    return x @ p["kernel"].astype(np.float64) + p.get("bias", 0.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def rotate(x, fraction=1.0):
    """[T, E], pairs half as far apart as channels are rotated."""
    half = int(x.shape[1] * fraction) // 2
    angle = np.arange(len(x))[:, None] / 10_000.0 ** (np.arange(half) / half)
    a, b = x[:, :half], x[:, half : 2 * half]
    turned = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return np.concatenate([*turned, x[:, 2 * half :]], axis=1)


def forget(gates, i, j):
    """log of f_{j + 1} ... f_i (Lin et al. 2025, section 3)."""
    return np.log(np.prod(gates[j + 1 : i + 1]))


def contextual(query, logits, table, j):
    """q . e[p] with p = g_j + ... + g_i (Golovneva et al. 2024, section 4), between two whole positions."""
    position = min(sum(sigmoid(logit) for logit in logits[j:]), len(table) - 1)
    below = int(position)
    above = min(below + 1, len(table) - 1)
    return (query @ table[below]) * (1 - (position - below)) + (query @ table[above]) * (position - below)


def attention_map(p, query, turned, key, i, head):
    """The weights of query i, `turned` by its position, over the keys 0..i."""
    logits = key[: i + 1] @ turned / np.sqrt(len(query))
    if "position_table" in p:
        logits = logits + [contextual(query, logits, p["position_table"], j) for j in range(i + 1)]
    if "gates" in p:
        logits = logits + [forget(p["gates"][:, head], i, j) for j in range(i + 1)]
    return softmax(logits)


def heads_of(p, x, differential, differential_v2, exclusive, fraction):
    maps = 1 + differential
    query = linear(p["query"], x).reshape(len(x), HEADS * maps, -1)
    if differential_v2:  # heads 2 h and 2 h + 1 of the authors' projection are a pair
        query = np.stack([query, linear(p["second_query"], x).reshape(query.shape)], axis=2).reshape(len(x), 8, -1)
        factors = sigmoid(linear(p["second_factor"], x))
    kv_heads = p["value"]["kernel"].shape[1] // 4
    key = linear(p["key"], x).reshape(len(x), kv_heads * maps, -1)
    value = linear(p["value"], x).reshape(len(x), kv_heads, -1)
    turned, key = (np.stack([rotate(y[:, h], fraction) for h in range(y.shape[1])], axis=1) for y in (query, key))
    if "forget_gate" in p:
        p = p | {"gates": sigmoid(linear(p["forget_gate"], x))}
    group = HEADS // kv_heads
    out = np.zeros((len(x), HEADS, value.shape[2]))
    for h in range(HEADS):
        for i in range(len(x)):
            pooled = [
                attention_map(p, query[i, q], turned[i, q], key[:, maps * (h // group) + q % maps], i, q)
                @ value[: i + 1, h // group]
                for q in range(maps * h, maps * (h + 1))
            ]
            out[i, h] = pooled[0]
            if differential:
                q, k = p["lambda_query"], p["lambda_key"]
                out[i, h] -= (np.exp(q[0] @ k[0]) - np.exp(q[1] @ k[1]) + 0.8) * pooled[1]
            if differential_v2:  # (Ye et al. 2026, DiffAttnV2: both read one key head)
                maps_of_head = [
                    attention_map(p, query[i, q], turned[i, q], key[:, h // group], i, q) @ value[: i + 1, h // group]
                    for q in (2 * h, 2 * h + 1)
                ]
                out[i, h] = maps_of_head[0] - factors[i, h] * maps_of_head[1]
            if exclusive:
                v = value[i, h // group]
                out[i, h] -= (out[i, h] @ v) / (v @ v) * v
            if differential:
                rms = np.sqrt(np.mean(out[i, h] ** 2) + 1e-5)
                out[i, h] = 0.2 * out[i, h] / rms * p["head_norm"]["scale"]
    out = out.reshape(len(x), -1)
    out = out * sigmoid(linear(p["gate"], x)) if "gate" in p else out
    return linear(p["out"], out)


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_its_formula(name):
    module = MultiHeadAttention(HEADS, 16, rotary=True, **VARIANTS[name])
    params = random_params(module, (X, X, X))
    params = params | {"lambda_query": params["lambda_query"] / 2} if "lambda_query" in params else params
    actual, _ = jax.jit(partial(module.apply, mask=causal()))({"params": params}, X, X, X)
    flags = {flag: VARIANTS[name].get(flag, False) for flag in ("differential", "differential_v2", "exclusive")}
    for row in range(2):
        fraction = VARIANTS[name].get("rope_fraction", 1.0)
        expected = heads_of(params, X[row].astype(np.float64), **flags, fraction=fraction)
        first = (
            1 if flags["exclusive"] and flags["differential"] else 0
        )  # of one key it is the rounding of 0, normalized
        np.testing.assert_allclose(actual[row, first:], expected[first:], atol=2e-5, rtol=2e-5)


# --- relations --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_steps_are_teacher_forcing(name):
    options, make = MODELS["decoder-only"]
    steps, full = step_and_full_logits("decoder-only", *make(replace(options, **VARIANTS[name])))
    np.testing.assert_allclose(steps, full, atol=2e-5, rtol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bias", ["cope", "shaw", "transformer_xl"])
def test_a_bias_reads_queries_before_their_rotation(bias):
    """Behind three masked tokens it is the same, for it depends on differences of positions alone; 2 s each."""
    module = MultiHeadAttention(HEADS, 16, rotary=True, rope_scaling=YarnScaling(4.0, 64.0), bias=bias)
    behind = np.concatenate([X[:, :3] + 1, X], axis=1)
    params = random_params(module, (X, X, X))

    @jax.jit
    def run(params):
        alone = module.apply({"params": params}, X, X, X, mask=causal())[0]
        rows = lambda x, start: module.apply({"params": params}, x, x, x, mask=causal() & start)[0]
        return alone, rows(behind, lambda rows, columns: (columns >= 3)[None] & (rows >= 3)[:, None])[:, 3:]

    np.testing.assert_allclose(*run(params), atol=2e-5)
    options, make = MODELS["decoder-only"]
    steps, full = step_and_full_logits("decoder-only", *make(replace(options, bias=bias)))
    np.testing.assert_allclose(steps, full, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"bias": "forgett"}, "--model.bias must be none"),
        ({"score": lambda query, key: query @ key.T}, "score of MultiHeadAttention must be a name"),
        ({"differential": 2}, "differential of MultiHeadAttention must be True or False, got 2"),
        ({"rope_scaling": "yarn(4, 64)"}, "rope_scaling of MultiHeadAttention must be a function"),
        ({"bias": "forget"}, "with as many queries as keys, got 3 and 7"),
        ({"exclusive": True}, "with as many queries as keys, got 3 and 7"),
    ],
)
def test_a_layer_refuses_options_that_it_cannot_have(options, message):
    with pytest.raises(InputError, match=message):
        jax.eval_shape(MultiHeadAttention(HEADS, 16, **options).init, jax.random.key(0), X[:, :3], X, X)


def translator(name):
    sizes = {"hidden_size": 16, "num_heads": HEADS, "mlp_dim": 12, "norm": "pre", "position_embedding": "rotary"}
    options = config.TransformerConfig(1, 2, dropout=0.0, attention_dropout=0.0, **sizes, **VARIANTS[name])
    model = Transformer(options, 11, 11)
    return model, {"params": random_params(model, (SOURCE, LENGTH, TARGET))}


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all"], ENCODERS))
def test_hypotheses_read_their_ancestors(name):
    beams_score_as_teacher_forcing(*translator(name), tolerance=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all"], ENCODERS))
def test_packed_sentences_are_the_sentences(name):
    model, params = translator(name)
    source, target = jnp.concatenate([SOURCE[:1], SOURCE[1:, :2]], axis=1), TARGET.reshape(1, 8)
    of_source, of_target = jnp.array([[0] * 5 + [1] * 2]), jnp.array([[0] * 4 + [1] * 4])

    @jax.jit
    def both(params):
        call = lambda method, *x, **segment: model.apply(params, *x, method=method, **segment)
        memory = call("encode", source, jnp.array([7]), segment=of_source)
        packed = call("decode", memory, target, segment=of_target)[0]
        memories = (call("encode", SOURCE[:1], LENGTH[:1]), call("encode", SOURCE[1:, :2], LENGTH[1:]))
        alone = [call("decode", memory, TARGET[i : i + 1])[0] for i, memory in enumerate(memories)]
        return packed, jnp.concatenate(alone, axis=1)

    np.testing.assert_allclose(*both(params), atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all"], ENCODERS))
def test_padding_changes_nothing(name):
    options = config.TextClassifierConfig(num_layers=1, hidden_size=16, num_heads=HEADS, mlp_dim=12, **VARIANTS[name])
    model = TextClassifier(options, 11, 3)
    params = {"params": random_params(model, (SOURCE, LENGTH))}
    run = jax.jit(lambda params, *x: model.apply(params, *x)[0])
    together = run(params, SOURCE, LENGTH)
    np.testing.assert_allclose(together[1:], run(params, SOURCE[1:, :2], LENGTH[1:]), atol=1e-5)
    np.testing.assert_array_equal(together, run(params, SOURCE.at[1, 2:].set(7), LENGTH))


def decoder(name, **changes):
    sizes = {"num_layers": 2, "hidden_size": 16, "num_heads": HEADS, "mlp_dim": 12}
    return config.LanguageModelConfig(**sizes, dropout=0.0, attention_dropout=0.0, **VARIANTS[name], **changes)


TOKENS = jnp.array([[1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 1]], jnp.int32)


@pytest.mark.parametrize("name", slow_but(["all"], VARIANTS))
def test_scanned_layers_and_prefill_are_the_full_pass(name):
    options = decoder(name)
    scanned = LanguageModel(replace(options, scan_layers=True), 7)
    params = random_params(LanguageModel(options, 7), (TOKENS,))
    lengths = jnp.array([5, 2])

    @jax.jit
    def run(params):
        stacked = {"params": stack_layers(params, options)}
        call = lambda method, *x: scanned.apply(stacked, *x, method=method)
        cache = call("prefill", TOKENS[:1, :5], jnp.array([5]), 6)[1]
        prefilled = call("prefill", TOKENS[:, :5], lengths, 6)[0]
        whole = LanguageModel(options, 7).apply({"params": params}, TOKENS)[0]
        return whole, call("__call__", TOKENS)[0], prefilled, call("step", cache, TOKENS[:1, 5])[0]

    whole, looped, prefilled, stepped = run(params)
    np.testing.assert_allclose(looped, whole, atol=5e-5)
    np.testing.assert_allclose(prefilled, whole[jnp.arange(2), lengths - 1], atol=5e-5)
    np.testing.assert_allclose(stepped, whole[:1, 5], atol=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["all", "cope"], VARIANTS))
def test_half_precision_is_close_and_steps_are_the_full_pass(name):
    options = decoder(name)
    params = {"params": jax.tree.map(lambda x: x / 2, random_params(LanguageModel(options, 7), (TOKENS,)))}
    half = LanguageModel(replace(options, dtype="bfloat16"), 7)

    @jax.jit
    def run(params):
        step = lambda cache, token: half.apply(params, cache, token, method="step")[1::-1]
        _, steps = jax.lax.scan(step, half.apply(params, 2, 6, method="start"), TOKENS.T)
        return half.apply(params, TOKENS)[0], LanguageModel(options, 7).apply(params, TOKENS)[0], steps.swapaxes(0, 1)

    logits, exact, steps = run(params)
    spread = np.abs(exact).max()
    assert np.abs(logits - exact).max() < 0.05 * spread and np.abs(steps - logits).max() < 0.02 * spread


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_an_image_model_has_it_and_computes_one_token(name):
    """The last layer pools for the class token alone, unless all of its maps are asked for."""
    options = config.ViTConfig(patch_size=2, hidden_size=16, num_heads=HEADS, mlp_dim=12, num_layers=2)
    model = ViT(replace(options, **VARIANTS[name]), 3, 6)
    images = np.random.default_rng(1).uniform(size=(2, 6, 6, 1)).astype(np.float32)
    params = {"params": random_params(model, (images,))}
    alone, _ = jax.jit(model.apply)(params, images)
    whole, intermediates = jax.jit(partial(model.apply, return_weights=True))(params, images)
    np.testing.assert_allclose(alone, whole, atol=1e-5)
    maps = HEADS * (2 if {"differential", "differential_v2"} & VARIANTS[name].keys() else 1)
    assert intermediates["encoder_attention"].shape == (2, 2, maps, 10, 10)


@pytest.mark.slow
def test_equal_gates_are_alibi():
    """A gate f that does not look at its input is ALiBi's slope -log f."""
    x = jnp.asarray(X)
    gated = MultiHeadAttention(HEADS, 16, bias="forget")
    params = random_params(gated, (X, X, X))
    slopes = jnp.array([0.25, 0.0625, 0.015625, 0.00390625])
    params["forget_gate"] = {"kernel": jnp.zeros((16, HEADS)), "bias": -jnp.log(jnp.expm1(slopes))}
    bare = {name: tree for name, tree in params.items() if name != "forget_gate"}
    run = lambda module, params: module.apply({"params": params}, x, x, x)[0]  # both directions
    np.testing.assert_allclose(run(gated, params), run(MultiHeadAttention(HEADS, 16, bias="alibi"), bare), atol=1e-5)


@pytest.mark.slow
def test_zero_positions_change_nothing():
    plain, contextual = MultiHeadAttention(HEADS, 16), MultiHeadAttention(HEADS, 16, bias="cope")
    shapes = jax.eval_shape(contextual.init, jax.random.key(0), X, X, X)["params"]
    assert shapes["position_table"].shape == (64, 4)
    params = random_params(plain, (X, X, X))
    table = contextual.init(jax.random.key(0), X, X, X)["params"]["position_table"]
    run = lambda module, params: module.apply({"params": params}, X, X, X, mask=causal())[0]
    np.testing.assert_array_equal(run(contextual, params | {"position_table": table}), run(plain, params))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bias": "cope"}, "--model.bias cope .* causal layers"),
        ({"differential": True, "key_dim": 3, "value_dim": 4}, "even width .* got 3: change --model.key-dim"),
        (
            {"differential": True, "hidden_size": 12},
            "even width .* got 3: change --model.hidden-size or --model.num-heads",
        ),
        ({"position_embedding": "rotary", "key_dim": 1}, "rotary needs .* of 1: change --model.key-dim"),
        ({"position_embedding": "rotary", "hidden_size": 4}, "rotary needs .* of 1: change --model.hidden-size"),
        (
            {"position_embedding": "rotary", "differential": True, "key_dim": 2},
            "rotary needs .* of 2, shared by two maps",
        ),
        (
            {"position_embedding": "rotary", "rope_fraction": 0.3},
            "even number of the 4 channels .* 0.3, which rotates 1",
        ),
        ({"differential": True, "differential_v2": True}, "one version: leave out"),
        ({"exclusive": True, "head_pool": "moments"}, "pooling mean, got --model.head-pool moments"),
    ],
)
def test_what_a_variant_cannot_do_is_one_line(options, message):
    model = Transformer(
        replace(config.TransformerConfig(1, 1, hidden_size=16, num_heads=HEADS, mlp_dim=12), **options), 11, 11
    )
    with pytest.raises(InputError, match=message):
        jax.eval_shape(model.init, jax.random.key(0), SOURCE, LENGTH, TARGET)
