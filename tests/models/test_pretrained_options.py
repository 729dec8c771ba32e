"""Options of pretrained language models, against a forward pass of Llama, Qwen 3 and Gemma in NumPy and float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.config import replace
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel

VOCAB, TOKENS = 13, np.array([[1, 2, 3, 4, 5, 7, 11], [5, 4, 3, 2, 1, 0, 12]])
LLAMA = config.LanguageModelConfig(
    num_layers=2,
    hidden_size=12,
    num_heads=4,
    num_kv_heads=2,
    mlp_dim=10,
    norm_layer="rms",
    mlp_layer="swiglu",
    use_bias=False,
    output_bias=False,
    norm_epsilon=1e-3,
    scale_embeddings=False,
    rope_theta=100.0,
    rope_scaling="llama3(8, 1, 4, 40)",
    key_dim=6,
    value_dim=6,
)
QWEN3 = replace(LLAMA, normalize_qk=True, rope_scaling="linear(3)", tied_embeddings=False, value_dim=4)
GEMMA = replace(
    QWEN3, norm="sandwich", mlp_layer="geglu", scale_embeddings=True, logit_cap=3.0, score="soft_cap(2)", use_bias=True
)
YARN = replace(LLAMA, rope_scaling="yarn(4, 40, 3)")
MODELS = {"llama": LLAMA, "qwen3": QWEN3, "gemma": GEMMA, "yarn": YARN}


def rms(x, scale, epsilon):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * scale


def frequencies(o, width):
    """As transformers computes them: three cases of the wavelength for llama3; of three pairs that turn 6.4, 1.4 and
    0.3 times in 40 positions, YaRN mixes the second and the third from pair 0.49 to 1.2, or from 0 to 2."""
    f = o.rope_theta ** (-np.arange(0, width, 2) / width)
    if o.rope_scaling == "linear(3)":
        return f / 3
    if o.rope_scaling == "yarn(4, 40, 3)":
        return f * [1, (1 + 1 / 4) / 2, 1 / 4]
    wave, (factor, low, high, old) = 2 * np.pi / f, (8, 1, 4, 40)
    smooth = (old / wave - low) / (high - low)
    between = (1 - smooth) * f / factor + smooth * f
    return np.where(wave > old / low, f / factor, np.where(wave < old / high, f, between))


def rotate(x, o):
    """[B, H, T, E], halves apart."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[2])[:, None] * frequencies(o, x.shape[-1])
    amplitude = 0.1 * np.log(4) + 1 if o.rope_scaling.startswith("yarn") else 1
    cos, sin = (amplitude * np.concatenate([f(angles)] * 2, -1) for f in (np.cos, np.sin))
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def attention(x, p, o):
    def heads(name, count):
        y = x @ p[name]["kernel"] + p[name].get("bias", 0)
        y = y.reshape(*y.shape[:2], count, -1).swapaxes(1, 2)
        return rms(y, p[f"{name}_norm"]["scale"], o.norm_epsilon) if f"{name}_norm" in p else y

    groups, ahead = o.num_heads // o.num_kv_heads, np.triu(np.ones((x.shape[1],) * 2), 1) > 0
    query, key = rotate(heads("query", o.num_heads), o), rotate(heads("key", o.num_kv_heads), o)
    key, value = (np.repeat(y, groups, axis=1) for y in (key, heads("value", o.num_kv_heads)))
    scores = query @ key.swapaxes(2, 3) / np.sqrt(query.shape[-1])
    scores = 2 * np.tanh(scores / 2) if o.score == "soft_cap(2)" else scores
    weights = np.exp(np.where(ahead, -np.inf, scores))
    weights /= weights.sum(-1, keepdims=True)
    y = (weights @ value).swapaxes(1, 2).reshape(*x.shape[:2], -1)
    return y @ p["out"]["kernel"] + p["out"].get("bias", 0), weights


def forward(p, tokens, o):
    """(logits, attention maps of each layer) in float64."""
    tanh_gelu = lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    gate = {"swiglu": lambda x: x / (1 + np.exp(-x)), "geglu": tanh_gelu}[o.mlp_layer]
    table = p["embedding"]["token"]["embedding"]
    x, maps = table[tokens] * (np.sqrt(o.hidden_size) if o.scale_embeddings else 1), []
    for i in range(o.num_layers):
        layer = p["decoder"][f"layer_{i}"]
        norm = lambda name, x, layer=layer: rms(x, layer[name]["scale"], o.norm_epsilon) if name in layer else x
        y, weights = attention(norm("attention_norm", x), layer["attention"], o)
        x = x + norm("attention_output_norm", y)
        h, ffn = norm("ffn_norm", x), layer["ffn"]
        y = (gate(h @ ffn["gate"]["kernel"]) * (h @ ffn["hidden"]["kernel"])) @ ffn["out"]["kernel"]
        x = x + norm("ffn_output_norm", y)
        maps.append(weights)
    x = rms(x, p["decoder"]["norm"]["scale"], o.norm_epsilon)
    logits = x @ (table.T if o.tied_embeddings else p["kernel"])
    return o.logit_cap * np.tanh(logits / o.logit_cap) if o.logit_cap else logits, np.stack(maps, 1)


def random_params(model, seed=0):
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))["params"]
    r = np.random.default_rng(seed)
    return jax.tree.map(lambda x: r.normal(size=x.shape, scale=0.7).astype(np.float32), shapes)


@pytest.mark.parametrize("name", slow_but(["llama", "gemma", "yarn"], MODELS))
def test_a_family_is_its_formula(name):
    """Two programs each."""
    options = MODELS[name]
    model = LanguageModel(options, VOCAB)
    params = random_params(model)
    expected, maps = forward(jax.tree.map(np.float64, params), TOKENS, options)
    run = jax.jit(lambda p, x: model.apply({"params": p}, x, return_weights=True))
    actual, intermediates = run(params, jnp.asarray(TOKENS))
    scale = np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, atol=1e-5 * scale)
    np.testing.assert_allclose(intermediates["decoder_attention"], maps, atol=1e-5)
    cache = model.apply({"params": params}, len(TOKENS), TOKENS.shape[1], method="start")
    step = jax.jit(lambda p, c, t: model.apply({"params": p}, c, t, method="step")[:2])
    for t in range(TOKENS.shape[1]):
        stepped, cache = step(params, cache, jnp.asarray(TOKENS[:, t]))
        np.testing.assert_allclose(stepped, expected[:, t], atol=1e-5 * scale)


def test_every_new_parameter_by_name():
    shapes = jax.eval_shape(LanguageModel(GEMMA, VOCAB).init, jax.random.key(0), jnp.zeros((1, 2), jnp.int32))
    layer = shapes["params"]["decoder"]["layer_0"]
    norms = {"attention_norm", "attention_output_norm", "ffn_norm", "ffn_output_norm"}
    assert set(layer) == norms | {"attention", "ffn"} and set(layer["ffn"]) == {"gate", "hidden", "out"}
    attention = layer["attention"]
    assert attention["query_norm"]["scale"].shape == attention["key_norm"]["scale"].shape == (6,)
    assert attention["value"]["kernel"].shape == (12, 2 * 4) and attention["out"]["kernel"].shape == (4 * 4, 12)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("rope_scaling", "linear", "--model.rope-scaling linear: .*; give none, linear"),
        ("rope_scaling", "linear(0)", r"--model.rope-scaling linear\(0\): a .* positive"),
        ("rope_scaling", "linear(-2)", "--model.rope-scaling .* positive"),
        ("rope_scaling", "llama3(8)", "--model.rope-scaling .* missing 3"),
        ("rope_scaling", "llama3(8, 4, 1, 40)", "low < high"),
        ("rope_scaling", "llama3('a', 1, 4, 40)", "positive"),
        ("rope_scaling", "math:pi", "--model.rope-scaling"),
        ("rope_scaling", "numpy:sum", "frequencies to frequencies"),
        ("rope_scaling", "yarn(2)", r"--model.rope-scaling yarn\(2\): missing 1"),
        ("rope_scaling", "yarn(0.5, 64)", r"--model.rope-scaling yarn\(0.5, 64\): .* factor >= 1"),
        ("rope_scaling", "yarn(2, 64, 1, 32)", "slow < fast"),
        ("rope_scaling", "yarn(2, 6)", "original > 2 pi slow"),
        ("rope_scaling", "yarn(2, 64, 32, 1, 'a')", "positive"),
        ("norm", "both", "--model.norm"),
        ("norm_epsilon", -1e-5, "--model.norm-epsilon"),
        ("key_dim", -1, "--model.key-dim"),
        ("logit_cap", -1.0, "--model.logit-cap"),
        ("mlp_layer", "glu", "--model.mlp-layer"),
    ],
)
def test_a_wrong_option_is_one_line(option, value, message):
    with pytest.raises(InputError, match=message) as caught:
        LanguageModel(replace(LLAMA, **{option: value}), VOCAB)
    assert "\n" not in str(caught.value)


def test_a_cap_applies_to_the_training_loss():
    """The loss of a cap, by hand, against a loss of NumPy."""
    from attention_jax.tasks.objectives import readout_loss

    r = np.random.default_rng(0)
    hidden, kernel, bias = r.normal(size=(5, 3)), r.normal(size=(3, 7)), r.normal(size=7)
    targets, mask = np.array([0, 6, 2, 3, 1]), np.array([1, 1, 0, 1, 1])
    logits = 2 * np.tanh((hidden @ kernel + bias) / 2)
    nats = np.log(np.exp(logits).sum(-1)) - logits[np.arange(5), targets]
    single = (jnp.asarray(x, jnp.float32) for x in (hidden, kernel, bias))
    total, count = readout_loss(config.Train(), *single, jnp.asarray(targets), jnp.asarray(mask > 0), cap=2.0)
    np.testing.assert_allclose([total, count], [(nats * mask).sum(), 4], rtol=1e-5)
