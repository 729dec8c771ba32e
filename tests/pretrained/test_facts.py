"""What shapes do not say about a model: read from config.json, compared, said to be assumed, or refused."""

import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import their_weights as reference
from their_weights import TIMM, VIT, write_weights

from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange
from attention_jax.pretrained.config_json import Facts
from attention_jax.pretrained.decoder_names import rotary_options

pytest.importorskip("safetensors")

IMAGES = np.random.default_rng(5).standard_normal((2, 6, 6, 3)).astype(np.float32)
LEFT_OUT = object()
STATES = {
    "timm": (reference.timm, TIMM),
    "huggingface": (lambda: reference.huggingface(reference.timm()), VIT | {"model_type": "vit"}),
    "google": (lambda: reference.google(reference.timm(), reference.SIZES["heads"]), {"norm_epsilon": 1e-6}),
    "marian": (reference.marian, reference.MARIAN | {"model_type": "marian"}),
    "gpt2": (reference.gpt2, reference.GPT2 | {"model_type": "gpt2"}),
}


def read(place, naming, arrays=None, facts=None, spelled=lambda name: name):
    """The weights of a file with these tensors in place of the usual ones, and these entries in config.json, without
    those that are `LEFT_OUT`."""
    state, about = STATES[naming]
    state = {spelled(name): array for name, array in state().items()} | (arrays or {})
    about = {name: value for name, value in (about | (facts or {})).items() if value is not LEFT_OUT}
    return exchange.read(write_weights(place / "model.safetensors", state, None if facts is None else about))


@pytest.mark.parametrize(
    ("naming", "note"),
    [
        ("timm", "1 head of 16, activation gelu"),
        ("huggingface", "1 head of 16, activation gelu, norms with epsilon 1e-12"),
        ("google", "norms with epsilon 1e-6"),
        ("marian", "1 head of 12"),
        ("gpt2", "norms with epsilon 1e-05, 1 head of 12, activation gelu_new"),
    ],
)
def test_what_is_assumed_is_said(tmp_path, naming, note):
    alone = read(tmp_path / "alone", naming).source
    assert "; assumed, as no config.json says it: " in alone and note in alone
    with_facts = read(tmp_path / "with", naming, facts=TIMM if naming == "timm" else {})
    assert "head" not in with_facts.source
    assert naming == "timm" or with_facts.source.endswith(f"({naming})")


def test_marians_scale_and_activation_are_said(tmp_path):
    source = read(tmp_path, "marian").source
    assert "scaled embeddings" in source and "activation swish" in source


@pytest.mark.parametrize(("size", "heads"), [("tiny", 3), ("small", 6), ("base", 12), ("large", 16), ("huge", 16)])
def test_timms_published_names_say_the_heads(tmp_path, size, heads):
    """As timm writes config.json: without model_args. A width that the heads do not divide is refused."""
    facts = {"model_args": None, "architecture": f"vit_{size}_patch14_224.augreg_in21k", "num_classes": 5}
    if 16 % heads:
        with pytest.raises(InputError, match="of another shape"):
            read(tmp_path, "timm", facts=facts)
        return
    weights = read(tmp_path, "timm", facts=facts)
    assert weights.options.num_heads == heads and weights.source.endswith("(timm)")


def test_absent_entry_has_library_default(tmp_path):
    """transformers leaves an entry out where it has the default of the class: Marian's are 16 heads and GELU."""
    silent = dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads", "activation_function"), LEFT_OUT)
    with pytest.raises(InputError, match="of another shape"):  # 12 / 16
        read(tmp_path / "heads", "marian", facts=silent)
    silent = {"activation_function": LEFT_OUT, "scale_embedding": LEFT_OUT}
    weights = read(tmp_path / "rest", "marian", facts=silent)
    assert (weights.options.activation, weights.options.scale_embeddings) == ("gelu", False)
    assert "unscaled embeddings" in weights.source and "activation gelu" in weights.source


@pytest.mark.parametrize(
    ("naming", "entry", "value"),
    [
        ("timm", "global_pool", "avg"),
        ("timm", "global_pool", ""),
        ("timm", "architecture", "vit_base_patch32_clip_quickgelu_224"),
        ("timm", "architecture", "vit_small_patch16_gap_224"),
        *(
            ("timm", "model_args", {name: value})
            for name, value in {
                "global_pool": "avg", "act_layer": "mish", "norm_layer": "rmsnorm", "fc_norm": True, "depth": 1,
                "class_token": False, "no_embed_class": True, "pre_norm": True, "init_values": 1e-5, "qk_norm": True,
                "pos_embed": "", "embed_dim": 8, "patch_size": 4, "mlp_layer": "glumlp", "reg_tokens": 2,
            }.items()
        ),
        ("huggingface", "hidden_act", "mish"),
        ("huggingface", "qkv_bias", False),
        ("huggingface", "num_hidden_layers", 1),
        ("huggingface", "patch_size", 3),
        ("huggingface", "image_size", 8),
        ("marian", "decoder_attention_heads", 3),
        ("marian", "tie_word_embeddings", False),
        ("marian", "encoder_layers", 1),
        ("marian", "static_position_embeddings", False),
        ("marian", "add_bias_logits", True),
        ("marian", "scale_embedding", "yes"),
        ("gpt2", "n_layer", 1),
        ("gpt2", "n_positions", 5),
        ("gpt2", "vocab_size", 7),
        ("gpt2", "scale_attn_weights", False),
        ("gpt2", "activation_function", "mish"),
    ],
)  # fmt: skip
def test_an_entry_that_changes_the_computation_is_refused(tmp_path, naming, entry, value):
    with pytest.raises(InputError) as error:
        read(tmp_path, naming, facts={entry: value})
    assert "\n" not in str(error.value) and str(tmp_path) in str(error.value)


@pytest.mark.parametrize(("naming", "entry"), [("huggingface", "hidden_mixing"), ("gpt2", "alibi"), ("marian", "lora")])
def test_an_unknown_entry_is_said(tmp_path, naming, entry):
    assert f"not read in config.json: {entry})" in read(tmp_path, naming, facts={entry: 3}).source
    harmless = {"attn_pdrop": 0.3, "initializer_range": 0.1, "use_cache": True, "id2label": {"0": "a"}, entry: None}
    assert read(tmp_path, naming, facts=harmless).source.endswith(f"({naming})")


def test_timms_activation_is_read(tmp_path):
    weights = read(tmp_path, "timm", facts={"model_args": TIMM["model_args"] | {"act_layer": "relu"}})
    relu = lambda x: np.maximum(x, 0)
    expected = reference.vit_logits(reference.timm(), IMAGES, reference.SIZES["heads"], 1e-6, relu)
    model = exchange.module_of(weights)
    actual = jax.jit(model.apply)({"params": exchange.nested(weights.arrays)}, IMAGES)[0]
    np.testing.assert_allclose(actual, expected, atol=1e-4, rtol=1e-4)


def sines(rows, width):
    """Marian's table, element by element."""
    table = np.zeros((rows, width), np.float32)
    for position in range(rows):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[position, i], table[position, width // 2 + i] = np.sin(angle), np.cos(angle)
    return table


GPT2, MARIAN = reference.gpt2(), reference.marian()
COPIES = [
    ("gpt2", "lm_head.weight", GPT2["transformer.wte.weight"]),
    ("gpt2", "transformer.h.0.attn.bias", np.tri(9)[None, None]),
    ("marian", "lm_head.weight", MARIAN["model.shared.weight"]),
    ("marian", "model.encoder.embed_tokens.weight", MARIAN["model.shared.weight"]),
    ("marian", "model.decoder.embed_tokens.weight", MARIAN["model.shared.weight"]),
    ("marian", "model.encoder.embed_positions.weight", sines(7, 12)),
    ("marian", "model.decoder.embed_positions.weight", sines(7, 12).astype(np.float16)),
]


@pytest.mark.parametrize(("naming", "name", "array"), COPIES, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("facts", [None, {}])
def test_a_tied_copy_must_be_one(tmp_path, naming, name, array, facts):
    assert read(tmp_path / "same", naming, {name: array}, facts).arrays.keys() == read(tmp_path, naming).arrays.keys()
    changed = array.copy()
    changed[..., -1, 0] += 0.01
    with pytest.raises(InputError, match=f"{name} must be tied"):
        read(tmp_path / "other", naming, {name: changed}, facts)


@pytest.mark.parametrize("naming", STATES)
@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "_orig_mod.module."])
def test_prefixes_of_wrapped_models_are_left_out(tmp_path, naming, prefix):
    plain = read(tmp_path / "plain", naming, facts={})
    wrapped = read(tmp_path / "wrapped", naming, facts={}, spelled=lambda name: prefix + name)
    assert wrapped.options == plain.options and wrapped.arrays.keys() == plain.arrays.keys()
    assert all(np.array_equal(wrapped.arrays[name], array) for name, array in plain.arrays.items())


def test_two_tensors_with_one_name_are_refused(tmp_path):
    twice = {"wte.weight": GPT2["transformer.wte.weight"] + 1}
    with pytest.raises(InputError, match="both called transformer.wte.weight"):
        read(tmp_path, "gpt2", twice, {})


@pytest.mark.parametrize(
    ("naming", "name", "shape"),
    [
        ("timm", "fc_norm.weight", (16,)),
        ("timm", "head_dist.bias", (5,)),
        ("huggingface", "distillation_classifier.bias", (5,)),
        ("google", "head/extra", (5,)),
        ("marian", "lm_head.bias", (11,)),
        ("gpt2", "lm_head.bias", (11,)),
        ("gpt2", "score.weight", (2, 12)),
    ],
)
def test_unexpected_head_or_bias_is_an_error(tmp_path, naming, name, shape):
    with pytest.raises(InputError, match=f"1 unexpected .{name}"):
        read(tmp_path, naming, {name: np.ones(shape, np.float32)}, {})


def test_partial_attention_biases_are_an_error(tmp_path):
    state = {k: v for k, v in STATES["huggingface"][0]().items() if ".attention.attention." not in k or "bias" not in k}
    with pytest.raises(InputError, match="beside queries without one"):
        exchange.read(write_weights(tmp_path / "model.safetensors", state, VIT))


@pytest.mark.parametrize("naming", ["timm", "huggingface", "google"])
def test_a_backbone_has_no_module(tmp_path, naming):
    state, about = STATES[naming]
    body = {name: array for name, array in state().items() if not name.startswith(("head", "classifier"))}
    weights = exchange.read(write_weights(tmp_path / "model.safetensors", body, about))
    with pytest.raises(InputError, match="have no head"):
        exchange.module_of(weights)


def test_positions_without_a_class_token_are_refused(tmp_path):
    with pytest.raises(InputError, match="9 positions must be 1 and those of a square"):
        read(tmp_path, "timm", {"pos_embed": np.ones((1, 9, 16), np.float32)})


@pytest.mark.parametrize("kind", ["electra", "deberta", "gpt_neox", "xlnet", "vit_mae"])
@pytest.mark.parametrize("naming", ["huggingface", "gpt2"])
def test_another_model_type_is_named(tmp_path, kind, naming):
    model_types = [model_type for naming in exchange.NAMINGS.values() for model_type in naming.model_types]
    supported = ", ".join(dict.fromkeys(model_types))  # each once
    with pytest.raises(InputError, match=f"model_type {kind} is not supported; supported: {supported}$"):
        read(tmp_path, naming, facts={"model_type": kind})


# --- what is written ---


def export_files(place, weights, naming) -> dict:
    exchange.write(weights, place / "out", "safetensors", naming)
    return {path.name: json.loads(path.read_text()) for path in (place / "out").glob("*.json")}


def test_marians_ids_are_those_of_the_vocabulary(tmp_path):
    words = Vocabulary("abcdefg", pad="<pad>", bos="<bos>", eos="<eos>", unk="<unk>")
    weights = read(tmp_path, "marian", facts={})
    hf_config = export_files(tmp_path, weights._replace(data=SimpleNamespace(target_vocabulary=words)), "marian")[
        "config.json"
    ]
    names = ("pad", "bos", "decoder_start", "eos", "forced_eos")
    assert [hf_config[f"{name}_token_id"] for name in names] == [0, 1, 1, 2, 2]
    assert exchange.read(tmp_path / "out").options == weights.options


def test_gpt2s_ids_are_those_of_the_vocabulary(tmp_path):
    weights = read(tmp_path, "gpt2", facts={})
    ids = lambda files: [files["config.json"][f"{name}_token_id"] for name in ("bos", "eos", "pad")]
    assert ids(export_files(tmp_path / "a", weights, "gpt2")) == [None, None, None]
    words = Vocabulary("abcdefghi", pad="<pad>", eos="<eos>")
    data = SimpleNamespace(vocabulary=words)
    assert ids(export_files(tmp_path / "b", weights._replace(data=data), "gpt2")) == [None, 1, 0]


def test_class_names_and_normalization_are_written(tmp_path):
    weights = read(tmp_path, "huggingface", facts={})
    names = ("zero", "one", "two", "three", "four")
    data = SimpleNamespace(names=names, normalization=(np.float32([0.5, 0.25, 0.5]), np.float32([0.25, 0.5, 0.5])))
    files = export_files(tmp_path, weights._replace(data=data), "huggingface")
    assert files["config.json"]["id2label"] == dict(zip("01234", names))
    assert files["config.json"]["label2id"] == {name: i for i, name in enumerate(names)}
    recipe = files["preprocessor_config.json"]
    assert (recipe["image_mean"], recipe["image_std"]) == ([0.5, 0.25, 0.5], [0.25, 0.5, 0.5])
    assert recipe["size"] == {"height": 6, "width": 6} and recipe["do_normalize"] is True


def test_a_partial_rotary_factor_is_read():
    """Of both generations of config.json; the model then rotates the first channels (tests/ops/test_positions.py)."""
    entries = [{"partial_rotary_factor": 0.5}, {"rope_parameters": {"partial_rotary_factor": 0.5}}, {}]
    read_fraction = lambda entry: rotary_options("Llama", Facts({"model_type": "llama"} | entry))["rope_fraction"]
    assert [read_fraction(entry) for entry in entries] == [0.5, 0.5, 1.0]
    with pytest.raises(InputError, match="partial_rotary_factor must be above 0 and at most 1, got 1.5"):
        read_fraction({"partial_rotary_factor": 1.5})
