"""Parts and options of heads in all Transformers: against a slow NumPy Transformer, written head by head and position
by position; decoding against teacher forcing; the sizes of caches."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config, pytree
from attention_jax.config import replace
from attention_jax.config.models import NORMALIZERS
from attention_jax.errors import InputError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.models.text_classifier import TextClassifier
from attention_jax.models.transformer import Transformer
from attention_jax.models.vit import ViT
from attention_jax.ops.biases import Bias
from attention_jax.ops.shared import repeat_for_beams

TOKENS = np.array([[1, 2, 3, 4, 5, 6], [5, 4, 3, 2, 1, 1]], np.int32)
LENGTHS = np.array([6, 4], np.int32)
TARGET = np.array([[1, 2, 3, 4], [5, 6, 1, 1]], np.int32)
IMAGES = np.random.default_rng(1).uniform(size=(2, 6, 6, 1)).astype(np.float32)
HEADS, KV_HEADS, THETA, CAP, WINDOW = 4, 2, 50.0, 1.5, 1
PARTS = {
    "model.num_kv_heads": KV_HEADS,
    "model.output_gate": True,
    "model.rope_theta": THETA,
    "model.norm_layer": "rms",
    "model.mlp_layer": "swiglu",
    "model.mask": f"window({WINDOW})",
    "model.bias": f"{__name__}:Near",
}
MODELS = {
    "decoder-only": (
        config.LanguageModelConfig(num_layers=2, hidden_size=16, num_heads=HEADS, mlp_dim=12),
        lambda options: (LanguageModel(options, 7), (TOKENS,)),
    ),
    "encoder-decoder": (
        config.TransformerConfig(
            2, 2, hidden_size=16, num_heads=HEADS, mlp_dim=12, norm="pre", position_embedding="rotary"
        ),
        lambda options: (Transformer(options, 7, 8), (TOKENS, LENGTHS, TARGET)),
    ),
    "image classifier": (
        config.ViTConfig(
            patch_size=2,
            hidden_size=16,
            num_heads=HEADS,
            mlp_dim=12,
            num_layers=2,
            position_embedding="rotary",
            norm_epsilon=1e-5,
        ),
        lambda options: (ViT(options, 3, 6), (IMAGES,)),
    ),
    "text classifier": (
        config.TextClassifierConfig(
            num_layers=2, hidden_size=16, num_heads=HEADS, mlp_dim=12, position_embedding="rotary"
        ),
        lambda options: (TextClassifier(options, 7, 3), (TOKENS, LENGTHS)),
    ),
}


@pytree
@dataclass(frozen=True)
class Near(Bias):
    """A learned number for a key before the query, at its place, and after it."""

    table: jax.Array  # [3]

    def __call__(self, query, query_positions, key_positions):
        return self.table[jnp.clip(key_positions[None] - query_positions[:, None], -1, 1) + 1]

    @classmethod
    def init(cls, rng, query_width, key_width, hidden):
        return cls(jnp.zeros(3))


def with_parts(options, **changes):
    config_ = config.Config("x", None, options)
    return replace(config_, **PARTS | {f"model.{name}": value for name, value in changes.items()}).model


def random_params(model, inputs):
    """Parameters that are neither zero nor tiny, so that every part matters."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), *inputs)["params"]
    draw = np.random.default_rng(0).normal
    return jax.tree.map(lambda x: draw(size=x.shape, scale=0.5).astype(np.float32), shapes)


# --- the oracle: one example, float64 ---------------------------------------------------------------------------------


def linear(p, x):
    return x @ p["kernel"].astype(np.float64) + p.get("bias", 0.0)


def rms(p, x):
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * p["scale"]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swiglu(p, x):
    gate = linear(p["gate"], x)
    return linear(p["out"], gate * sigmoid(gate) * linear(p["hidden"], x))


def rotate(x, position):
    """One vector, its pairs (i, i + D/2) turned by position / theta^(2 i / D)."""
    half, out = len(x) // 2, np.array(x)
    for i in range(half):
        angle = position / THETA ** (2 * i / (2 * half))
        a, b = x[i], x[i + half]
        out[i], out[i + half] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return out


def logit(p, head, query, key):
    width = len(query)
    if "score_query_scale" in p:
        query = query / np.sqrt((query**2).mean()) * p["score_query_scale"][head]
        key = key / np.sqrt((key**2).mean()) * p["score_key_scale"][head]
        return query @ key / np.sqrt(width)
    return CAP * np.tanh(query @ key / np.sqrt(width) / CAP)


def normalize(p, head, logits):
    """With the sink that a head has learned, which takes its share of the softmax."""
    sink = np.exp(p["normaliser_sink"][head]) if "normaliser_sink" in p else 0.0
    return np.exp(logits) / (np.exp(logits).sum() + sink)


def attention(p, x, memory, allowed, turn):
    """`allowed(q, k)` says who may attend, `turn(vector, position)` rotates."""
    queries = linear(p["query"], x).reshape(len(x), HEADS, -1)
    keys, values = (linear(p[name], memory).reshape(len(memory), KV_HEADS, -1) for name in ("key", "value"))
    pooled = np.zeros((len(x), HEADS, values.shape[-1]))
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)  # heads 0 and 1 read the first keys and values, 2 and 3 the second
        for q in range(len(x)):
            allowed_keys = [k for k in range(len(memory)) if allowed(q, k)]
            logits = [logit(p, head, turn(queries[q, head], q), turn(keys[k, group], k)) for k in allowed_keys]
            if "head_bias" in p:  # of self-attention alone
                logits += p["head_bias"]["bias_table"][head][np.clip(np.array(allowed_keys, int) - q, -1, 1) + 1]
            weights = normalize(p, head, logits)
            pooled[q, head] = sum(w * values[k, group] for w, k in zip(weights, allowed_keys))
    return linear(p["out"], pooled.reshape(len(x), -1) * sigmoid(linear(p["gate"], x)))


def layer(p, x, allowed, turn, memory=None, length=None):
    h = rms(p["attention_norm"], x)
    x = x + attention(p["attention"], h, h, lambda q, k: allowed(q, k) and abs(q - k) <= WINDOW, turn)
    if memory is not None:
        h = rms(p["cross_norm"], x)
        x = x + attention(p["cross_attention"], h, memory, lambda q, k: k < length, lambda vector, position: vector)
    return x + swiglu(p["ffn"], rms(p["ffn_norm"], x))


def stack(p, x, allowed, turn, *memory):
    for i in range(2):
        x = layer(p[f"layer_{i}"], x, allowed, turn, *memory)
    return rms(p["norm"], x)


def embed(p, tokens):
    table = p["token"]["embedding"].astype(np.float64)
    return table[tokens] * np.sqrt(table.shape[1])


def decoder_only(p, tokens):
    x = stack(p["decoder"], embed(p["embedding"], tokens), lambda q, k: k <= q, rotate)
    return x @ p["embedding"]["token"]["embedding"].T + p["bias"]


def encoder_decoder(p, source, length, target):
    memory = stack(p["encoder"], embed(p["source_embedding"], source), lambda q, k: k < length, rotate)
    x = embed(p["target_embedding"], target)
    return stack(p["decoder"], x, lambda q, k: k <= q, rotate, memory, length) @ p["kernel"] + p["bias"]


def image_classifier(p, image):
    patches = [image[r : r + 2, c : c + 2].reshape(-1) for r in (0, 2, 4) for c in (0, 2, 4)]
    x = np.concatenate([p["class_token"][None], linear(p["patch_embedding"], np.stack(patches).astype(np.float64))])

    def turn(vector, position):  # half of the channels by the row of a patch, half by its column
        row, column = divmod(max(position - 1, 0), 3)
        half = len(vector) // 2
        return np.concatenate([rotate(vector[:half], row), rotate(vector[half:], column)])

    x = stack(p["trunk"], x, lambda q, k: True, turn)
    return linear(p["trunk"]["head"], x[0])


def text_classifier(p, tokens, length):
    x = stack(p["encoder"], embed(p["embedding"], tokens), lambda q, k: k < length, rotate)
    weights = np.exp(np.tanh(linear(p["pool"]["key"], x)) @ p["pool"]["query"])[:length]
    return linear(p["head"], weights / weights.sum() @ x[:length])


ORACLES = dict(zip(MODELS, (decoder_only, encoder_decoder, image_classifier, text_classifier)))


PARTED = [
    *((kind, f"soft_cap({CAP})", "learned_sink") for kind in MODELS),
    ("decoder-only", "qk_norm", "softmax"),
    *(pytest.param(k, "qk_norm", "softmax", marks=pytest.mark.slow) for k in MODELS if k != "decoder-only"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "score", "normalizer"), PARTED)
def test_every_part_is_that_of_a_slow_transformer(kind, score, normalizer):
    options, make = MODELS[kind]
    model, inputs = make(with_parts(options, score=score, normalizer=normalizer))
    params = random_params(model, inputs)
    actual = jax.jit(lambda params: model.apply({"params": params}, *inputs)[0])(params)
    for row, example in enumerate(zip(*inputs)):
        np.testing.assert_allclose(actual[row], ORACLES[kind](params, *example), atol=1e-4, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["decoder-only", "encoder-decoder"])
def test_grouped_heads_shrink_the_cache(kind):
    options, make = MODELS[kind]
    sizes = {}
    for kv_heads in (0, 1, 2):
        model, inputs = make(options if not kv_heads else replace(options, num_kv_heads=kv_heads))
        params = random_params(model, inputs)
        if kind == "decoder-only":
            cache = jax.eval_shape(lambda p, m=model: m.apply({"params": p}, 2, 10, method="start"), params).layers
        else:
            memory = jax.eval_shape(lambda p, m=model: m.apply({"params": p}, TOKENS, LENGTHS, method="encode"), params)
            begin = lambda p, memory, m=model: m.apply({"params": p}, memory, 10, method="start")
            cache = jax.eval_shape(begin, params, memory)
            cache = (cache.past.layers, cache.memory.value.layers)  # keys and values of both kinds
        sizes[kv_heads] = sum(leaf.size for leaf in jax.tree.leaves(cache))
    # keys and values of 2 layers: 2 rows, 10 positions, 16 numbers; and those of 6 source positions
    assert sizes[0] == 2 * 2 * 2 * 16 * (10 if kind == "decoder-only" else 16)
    assert sizes[0] == HEADS * sizes[1] == HEADS // 2 * sizes[2]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "score"), [("decoder-only", "soft_cap(1.5)"), ("encoder-decoder", "qk_norm")])
def test_steps_with_every_part_are_teacher_forcing(kind, score):
    """With two hypotheses a sentence, whose entries of the cache lie side by side."""
    options, make = MODELS[kind]
    np.testing.assert_allclose(
        *step_and_full_logits(kind, *make(with_parts(options, score=score))), atol=1e-5, rtol=1e-5
    )


def step_and_full_logits(kind, model, inputs):
    """The logits of all positions, one position at a time and at once."""
    params = random_params(model, inputs)

    def both(params):
        apply = lambda *args, method: model.apply({"params": params}, *args, method=method)
        start_args = (2, 6) if kind == "decoder-only" else (apply(TOKENS, LENGTHS, method="encode"), 6)

        def step(cache, token):
            logits, cache, _ = apply(cache, token, method="step")
            return cache, logits

        _, steps = jax.lax.scan(
            step, repeat_for_beams(apply(*start_args, method="start"), 2), jnp.repeat(inputs[-1], 2, axis=0).T
        )
        return steps.swapaxes(0, 1), jnp.repeat(apply(*inputs, method="__call__")[0], 2, axis=0)

    return jax.jit(both)(params)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"num_kv_heads": 3}, "--model.num-kv-heads .* 4 heads, got 3"),
        ({"num_heads": 3, "num_kv_heads": 0}, "--model.hidden-size .* 16 and 3"),
        ({"mask": "window(-1)"}, "window .* -1"),
        ({"mask": "window"}, "window"),
        ({"mask": "window(1"}, "window"),
        ({"mask": "math:pi"}, "--model.mask .* math:pi"),
        ({"score": "soft_cap(1, 2, 3)"}, "soft_cap"),
        ({"normalizer": "top_k"}, "--model.normalizer top_k"),
        ({"head_pool": "math:pi"}, "--model.head-pool .* math:pi"),
        ({"head_pool": "local_linear(1, 2)"}, "local_linear"),
        (
            {"rope_scaling": "yarn(4, 64)", "position_embedding": "none"},
            "needs --model.position-embedding rotary, got none",
        ),
        (
            {"head_pool": "log_mixture", "normalizer": "softpick"},
            "--model.head-pool log_mixture needs .* got .* softpick",
        ),
        ({"head_pool": "log_mixture", "normalizer": "relu"}, "--model.head-pool log_mixture needs .* got .* relu"),
        ({"bias": "rotary"}, "--model.bias.* rotary|Invalid|must be"),
        ({"bias": "math:pi"}, "--model.bias .* math:pi"),
        ({"bias": "attention_jax.models.norms:RMSNorm"}, "--model.bias .* inherits from .*Bias"),
        ({"norm_layer": "math:sqrt"}, "--model.norm-layer .* sqrt"),
        ({"mlp_layer": "swiglu(3)"}, "--model.mlp-layer .* swiglu"),
    ],
)
@pytest.mark.parametrize("kind", ["decoder-only", *(pytest.param(k, marks=pytest.mark.slow) for k in [*MODELS][1:])])
def test_invalid_options_are_rejected_at_construction(kind, changed, word):
    options, make = MODELS[kind]
    with pytest.raises(InputError, match=word):
        make(with_parts(options, **changed))


NAMED = [*(name for name in NORMALIZERS if name != "top_k"), "top_k(2)", "entmax(1.3)", "softmax(0.0)"]


@pytest.mark.parametrize("name", slow_but(["learned_entmax", "top_k(2)"], NAMED))
def test_every_normalizer_has_per_head_parameters(name):
    """Shapes alone: what they compute is tested where they are defined."""
    options, make = MODELS["decoder-only"]
    model, inputs = make(replace(options, normalizer=name))
    (logits, _), params = jax.eval_shape(lambda: model.init_with_output(jax.random.key(0), *inputs))
    learned = [x.shape for path, x in jax.tree.leaves_with_path(params) if "normaliser" in jax.tree_util.keystr(path)]
    assert logits.shape == (2, 6, 7) and learned == [(HEADS,)] * (2 if name.startswith(("learned", "ssmax")) else 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "learned_sink",
        pytest.param("ssmax", marks=pytest.mark.slow),
        pytest.param("learned_sigmoid", marks=pytest.mark.slow),
        pytest.param("learned_entmax", marks=pytest.mark.slow),
    ],
)
def test_learned_normalizers_get_gradients_in_every_head(name):
    options, make = MODELS["decoder-only"]
    model, inputs = make(replace(options, normalizer=name))
    params = random_params(model, inputs)
    loss = lambda params: jnp.square(model.apply({"params": params}, *inputs)[0]).sum()
    gradient = jax.jit(jax.grad(loss))(params)
    gradients = [x for path, x in jax.tree.leaves_with_path(gradient) if "normaliser" in jax.tree_util.keystr(path)]
    assert len(gradients) == 2 and all(np.all(np.isfinite(x) & (x != 0)) for x in gradients)


@pytest.mark.slow
def test_local_linear_head_reproduces_linear_values():
    """With W_v = W_k every value is its key, so that a head returns its query: the output is x W_q W_o."""
    heads = MultiHeadAttention(2, 8, head_pool="local_linear", normalizer="sigmoid", use_bias=False, num_kv_heads=2)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 24, 8)), jnp.float32)
    params = jax.jit(heads.init)(jax.random.key(0), x, x, x)["params"]
    params = params | {"value": params["key"]}
    out = jax.jit(heads.apply)({"params": params}, x, x, x)[0]
    np.testing.assert_allclose(out, x @ params["query"]["kernel"] @ params["out"]["kernel"], atol=2e-3)


@pytest.mark.parametrize("kind", slow_but(["decoder-only"], ["decoder-only", "image classifier"]))
@pytest.mark.parametrize(("pool", "width"), [("moments", 32), ("log_mixture", 16), ("local_linear(0.1)", 16)])
def test_every_pooling_of_heads_in_a_model(kind, pool, width):
    """Shapes alone: the gate and the last linear map are as wide as what the heads pool, here 4 heads of 4."""
    options, make = MODELS[kind]
    model, inputs = make(replace(options, head_pool=pool, output_gate=True))
    params = jax.eval_shape(lambda: model.init(jax.random.key(0), *inputs))["params"]
    kernels = {str(path): x.shape for path, x in jax.tree.leaves_with_path(params) if "kernel" in str(path[-1])}
    shapes = lambda name: {shape for path, shape in kernels.items() if "'attention'" in path and f"'{name}'" in path}
    assert shapes("out") == {(width, 16)} and shapes("gate") == {(16, width)}


@pytest.mark.slow
def test_steps_with_another_pooling_are_teacher_forcing():
    options, make = MODELS["decoder-only"]
    model = make(replace(options, head_pool="moments"))
    np.testing.assert_allclose(*step_and_full_logits("decoder-only", *model), atol=1e-4, rtol=1e-4)


STEPPED = ["learned_entmax", "ssmax", "sigmoid(-1.0)", "relu", "softpick", "top_k(2)", "stick_breaking"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*STEPPED[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in STEPPED[2:])])
def test_steps_with_other_normalizers_are_teacher_forcing(name):
    """A cache holds entries that are not written yet, and those of other hypotheses: none of them may count."""
    options, make = MODELS["decoder-only"]
    np.testing.assert_allclose(
        *step_and_full_logits("decoder-only", *make(replace(options, normalizer=name))), atol=1e-5, rtol=1e-5
    )


@pytest.mark.slow
def test_steps_of_ssmax_count_window_and_padding():
    options, make = MODELS["encoder-decoder"]
    model = make(replace(options, normalizer="ssmax(0.7)", mask="window(2)"))
    np.testing.assert_allclose(*step_and_full_logits("encoder-decoder", *model), atol=1e-5, rtol=1e-5)
