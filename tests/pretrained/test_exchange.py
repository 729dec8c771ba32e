"""Weights of other libraries read as ours and ours written as theirs, against forward passes written in NumPy."""

import functools

import jax
import numpy as np
import pytest
import their_weights as reference
from their_weights import TIMM, VIT, write_weights

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.models.blocks import ACTIVATIONS
from attention_jax.models.vit import ViT
from attention_jax.pretrained import exchange

pytest.importorskip("safetensors")

HEADS = reference.SIZES["heads"]
IMAGES = np.random.default_rng(5).standard_normal((2, 6, 6, 3)).astype(np.float32)


def logits(weights, *inputs):
    """What our model makes of the weights."""
    model = exchange.module_of(weights)
    return np.asarray(jax.jit(model.apply)({"params": exchange.nested(weights.arrays)}, *inputs)[0])


def vit_file(place, naming):
    """A file of one and the same Vision Transformer."""
    state = reference.timm()
    if naming == "google":
        return write_weights(place / "model.npz", reference.google(state, HEADS))
    arrays, config = {"timm": (state, TIMM), "huggingface": (reference.huggingface(state), VIT)}[naming]
    return write_weights(place / "model.safetensors", arrays, config)


def test_a_vision_transformer_computes_what_it_did_there(tmp_path):
    weights = exchange.read(vit_file(tmp_path, "timm"))
    expected = reference.vit_logits(reference.timm(), IMAGES, HEADS, 1e-6, reference.gelu)
    np.testing.assert_allclose(logits(weights, IMAGES), expected, atol=1e-4, rtol=1e-4)


def test_all_three_names_of_it_are_one_model(tmp_path):
    weights_by_naming = {
        name: exchange.read(vit_file(tmp_path / name, name)) for name in ("timm", "huggingface", "google")
    }
    for weights in weights_by_naming.values():
        assert weights.arrays.keys() == weights_by_naming["timm"].arrays.keys()
        assert all(
            np.array_equal(array, weights_by_naming["timm"].arrays[name]) for name, array in weights.arrays.items()
        )
    activations = {name: (w.options.activation, w.options.norm_epsilon) for name, w in weights_by_naming.items()}
    assert activations == {"timm": ("gelu", 1e-6), "huggingface": ("gelu", 1e-12), "google": ("gelu_tanh", 1e-6)}
    plain = [configs.replace(w.options, activation="gelu", norm_epsilon=1.0) for w in weights_by_naming.values()]
    assert plain[0] == plain[1] == plain[2]


def test_marian_computes_as_there(tmp_path):
    state = reference.marian()
    path = write_weights(tmp_path / "there" / "model.safetensors", state, reference.MARIAN)
    weights = exchange.read(path)
    source, target = np.array([[3, 4, 5, 0], [6, 2, 0, 0]]), np.array([[10, 3, 1], [10, 9, 9]])
    length = np.array([4, 2])
    expected = reference.marian_logits(state, source, length, target)
    np.testing.assert_allclose(logits(weights, source, length, target), expected, atol=1e-5, rtol=1e-4)


def test_gpt2_computes_as_there(tmp_path):
    state = reference.gpt2()
    weights = exchange.read(write_weights(tmp_path / "there" / "model.safetensors", state, reference.GPT2))
    tokens = np.array([3, 10, 0, 0, 7, 1])
    apply = functools.partial(exchange.module_of(weights).apply, return_weights=True)
    actual, maps = jax.jit(apply)({"params": exchange.nested(weights.arrays)}, tokens[None])
    expected, expected_maps = reference.gpt2_outputs(state, tokens)
    np.testing.assert_allclose(actual[0], expected, atol=1e-4, rtol=1e-4)
    np.testing.assert_allclose(maps["decoder_attention"][0], expected_maps, atol=1e-5)
    older = {name.removeprefix("transformer."): array for name, array in state.items()}
    older |= {"h.0.attn.bias": np.tri(9)[None, None], "lm_head.weight": state["transformer.wte.weight"]}
    again = exchange.read(write_weights(tmp_path / "older" / "model.safetensors", older, reference.GPT2))
    assert again.options == weights.options and again.arrays.keys() == weights.arrays.keys()


@pytest.mark.parametrize(
    ("name", "value"),
    [("layer_norm_epsilon", 1e-6), ("tie_word_embeddings", False), ("scale_attn_by_inverse_layer_idx", True)],
)
def test_a_gpt2_that_computes_otherwise_is_refused(tmp_path, name, value):
    path = write_weights(tmp_path / "model.safetensors", reference.gpt2(), reference.GPT2 | {name: value})
    with pytest.raises(InputError, match=f"{name} .*, has {value}"):
        exchange.read(path)


@pytest.mark.parametrize("naming", ["timm", "google"])
def test_the_epsilon_of_the_norms_comes_back(tmp_path, naming):
    """Neither library has it in its file of weights: config.json carries ours, and what is assumed is said."""
    activation = {"timm": "gelu", "google": "gelu_tanh"}[naming]
    original = exchange.read(write_weights(tmp_path / "there" / "model.safetensors", reference.timm(), {}))
    changed = exchange.Weights(
        configs.replace(original.options, norm_epsilon=1e-3, activation=activation), original.arrays, ""
    )
    exchange.write(changed, tmp_path / "out", "safetensors", naming)
    again = exchange.read(tmp_path / "out")
    assert again.options.norm_epsilon == 1e-3 and again.source.endswith(f"({naming})")
    (tmp_path / "out" / "config.json").unlink()
    alone = exchange.read(tmp_path / "out")
    assert alone.options.norm_epsilon == 1e-6
    assert f"({naming}; assumed, as no config.json says it: " in alone.source
    assert alone.source.endswith("norms with epsilon 1e-6)")


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_our_own_names_keep_options_and_bits(tmp_path, form):
    options = configs.LanguageModelConfig(num_layers=1, hidden_size=8, num_heads=2, mlp_dim=8)
    arrays = reference.draw({"decoder/layer_0/ffn/out/bias": (8,), "bias": (5,)})
    summary = exchange.write(exchange.Weights(options, arrays, "a run"), tmp_path / "out", form)
    assert summary.startswith(f"{tmp_path / 'out'}: 2 tensors, 13 numbers, ")
    weights = exchange.read(tmp_path / "out" / f"model.{form}")
    assert weights.options == options and weights.arrays.keys() == arrays.keys()
    assert all(np.array_equal(weights.arrays[name], array) for name, array in arrays.items())
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_backbone_and_deits_spelling_are_known(tmp_path):
    state = reference.huggingface(reference.timm())
    body = {name: array for name, array in state.items() if not name.startswith("classifier")}
    alone = {name.removeprefix("vit."): array for name, array in body.items()}
    alone |= {"pooler.dense.weight": np.ones((16, 16), np.float32), "pooler.dense.bias": np.ones(16, np.float32)}
    deit = {name.replace("vit.", "deit."): array for name, array in state.items()}
    whole = exchange.read(write_weights(tmp_path / "a" / "model.safetensors", state, VIT)).arrays
    for i, arrays in enumerate((alone, deit)):
        actual = exchange.read(write_weights(tmp_path / str(i) / "model.safetensors", arrays, VIT)).arrays
        assert actual.keys() == whole.keys() - (set() if i else {"trunk/head/kernel", "trunk/head/bias"})
        assert all(np.array_equal(actual[name], whole[name]) for name in actual)


def test_a_distillation_token_is_a_register(tmp_path):
    state = {name.replace("vit.", "deit."): array for name, array in reference.huggingface(reference.timm()).items()}
    state["deit.embeddings.distillation_token"] = np.ones((1, 1, 16), np.float32)
    state["deit.embeddings.position_embeddings"] = np.ones((1, 11, 16), np.float32)
    weights = exchange.read(write_weights(tmp_path / "model.safetensors", state, VIT))
    assert weights.options.num_registers == 1 and exchange.module_of(weights).image_size == 6
    assert weights.arrays["registers"].shape == (1, 16) and weights.arrays["positions"].shape == (11, 16)
    with pytest.raises(InputError, match="huggingface has no model with --model.num-registers"):
        exchange.write(weights, tmp_path / "out", "npz", "huggingface")
    with pytest.raises(InputError, match="--model.num-registers need --model.pool token, got mean"):
        ViT(configs.ViTConfig(num_registers=1, pool="mean"), 2, 8)


def read_error(path) -> str:
    """The one line with which a file is refused."""
    with pytest.raises(InputError) as error:
        exchange.read(path)
    assert "\n" not in str(error.value) and str(path.parent) in str(error.value)
    return str(error.value)


def test_another_architecture_is_named_by_what_differs(tmp_path):
    state = reference.timm(layers=3)
    path = tmp_path / "model.safetensors"
    with_missing = {name: array for name, array in state.items() if not name.startswith("blocks.1.")}
    assert "12 missing (blocks.1.attn.proj.bias, blocks.1.attn.proj.weight, " in read_error(
        write_weights(path, with_missing, TIMM)
    )
    with_extra = state | {"blocks.0.ls1.gamma": np.ones(16, np.float32)}
    assert "1 unexpected (blocks.0.ls1.gamma)" in read_error(write_weights(path, with_extra, TIMM))
    with_other_shape = state | {"norm.bias": np.ones(17, np.float32)}
    assert "1 of another shape (norm.bias is [17] instead of [16])" in read_error(
        write_weights(path, with_other_shape, TIMM)
    )
    unknown = {"layer1.0.conv1.weight": np.ones((2, 2), np.float32)}
    assert f"must have the names of own, {', '.join(exchange.NAMINGS)}; it has 1 others" in read_error(
        write_weights(path, unknown)
    )
    assert "normalizations" in _marian(tmp_path, {"normalize_before": True})
    assert "must share the embeddings" in _marian(tmp_path, {"share_encoder_decoder_embeddings": False})
    assert "'tanh' in config.json" in _marian(tmp_path, {"activation_function": "tanh"})


def _marian(place, changes) -> str:
    path = write_weights(place / "marian" / "model.safetensors", reference.marian(), reference.MARIAN | changes)
    with pytest.raises(InputError) as error:
        exchange.read(path)
    return str(error.value)


@pytest.mark.parametrize("heads", [3, 0.5, "two", -1, 10**30, [2]])
def test_heads_that_cannot_be_are_refused(tmp_path, heads):
    path = write_weights(tmp_path / "model.safetensors", reference.timm(), {"model_args": {"num_heads": heads}})
    with pytest.raises(InputError):
        exchange.read(path)


def test_what_another_library_lacks_is_not_written(tmp_path):
    write = lambda options, naming, arrays=(): exchange.write(
        exchange.Weights(options, dict(arrays), "a run"), tmp_path / "out", "npz", naming
    )
    with pytest.raises(
        InputError, match=r"timm has no model with --model.pool mean, --model.position-embedding rotary: export"
    ):
        write(configs.ViTConfig(pool="mean", position_embedding="rotary"), "timm")
    with pytest.raises(InputError, match="marian has no model with --model.norm pre, --model.tied-embeddings none"):
        write(configs.TransformerConfig(norm="pre"), "marian")
    with pytest.raises(InputError, match="timm has no model with --model.normalizer sparsemax, --model.mask win"):
        write(configs.ViTConfig(normalizer="sparsemax", mask="window(2)"), "timm")
    with_moments = {"norm": "post", "tied_embeddings": "all", "head_pool": "moments", "output_bias": True}
    with pytest.raises(InputError, match="marian has no model with --model.head-pool moments: export"):
        write(configs.TransformerConfig(**with_moments), "marian")
    with pytest.raises(
        InputError, match="a LanguageModel can be written with --naming own, gpt2, llama, qwen2, qwen3; got timm"
    ):
        write(configs.LanguageModelConfig(), "timm")
    with pytest.raises(InputError, match="gpt2 has no model with --model.position-embedding rotary, --model.scale-emb"):
        write(configs.LanguageModelConfig(), "gpt2")
    with pytest.raises(InputError, match="no place for 1 of our arrays .patch_norm/scale."):
        write(
            configs.ViTConfig(),
            "huggingface",
            {"patch_norm/scale": np.ones(4), "patch_embedding/kernel": np.ones((4, 4))},
        )
    assert list(tmp_path.iterdir()) == []


def test_a_note_says_what_must_be_changed_there(tmp_path):
    weights = exchange.read(write_weights(tmp_path / "there" / "model.safetensors", reference.timm(), TIMM))
    weights = weights._replace(options=configs.replace(weights.options, norm_epsilon=1e-5))
    assert exchange.write(weights, tmp_path / "out", "safetensors", "timm").endswith(
        "; theirs normalizes with epsilon 1e-6, ours with 1e-05: change it there"
    )


def test_activations_are_the_published_formulas():
    x = np.linspace(-4, 4, 17, dtype=np.float32)
    expected = {"gelu": reference.gelu, "gelu_tanh": reference.gelu_tanh, "swish": reference.swish}
    for name, formula in expected.items():
        np.testing.assert_allclose(ACTIVATIONS[name](x), formula(x), atol=1e-6)


def test_our_own_model_is_rebuilt_from_its_weights():
    options = configs.ViTConfig(2, 8, 16, 1, 2, stem="convolutions", position_embedding="rotary")
    arrays = exchange.flat(jax.jit(ViT(options, 3, 6).init)(jax.random.key(0), IMAGES)["params"])
    weights = exchange.Weights(options, arrays, "here")
    assert logits(weights, IMAGES).shape == (2, 3)
