"""Names that no table of the package wrote: each family is read from tensors with the names that transformers has, and
computes what a float64 forward pass in NumPy computes from these names; GGUF names are those of the library `gguf`.

Two names that are exchanged, such as those of gate and up, change the numbers. The forward passes of GPT-2, Marian and
the Vision Transformers are in test_exchange.py. Tensors that are written are the original ones.
"""

import dataclasses

import jax
import numpy as np
import pytest
import their_decoders
import their_encoders
import their_weights

from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, tensors

pytest.importorskip("safetensors")
TOKENS = np.array([3, 10, 2, 7, 1, 5, 4], np.int32)


def read(place, state, config):
    """(module, parameters) of a directory with these tensors, of which none is left out and nothing is assumed."""
    weights = exchange.read(their_weights.write_weights(place / "model.safetensors", state, config))
    assert not weights.note
    return exchange.module_of(weights), {"params": exchange.nested(weights.arrays)}


def agree(actual, expected):
    np.testing.assert_allclose(actual, expected, atol=1e-5 * np.abs(expected).max(), rtol=1e-4)


@pytest.mark.parametrize("family", their_decoders.FAMILIES)
def test_decoder_computes_its_formula(tmp_path, family):
    config = their_decoders.FAMILIES[family]
    state = their_decoders.llama(config)
    model, params = read(tmp_path, state, config)
    agree(jax.jit(model.apply)(params, TOKENS[None])[0][0], their_decoders.outputs(state, TOKENS, config)[0])


@pytest.mark.parametrize("family", their_encoders.HEADS)
def test_encoder_computes_its_formula(tmp_path, family):
    state, sizes = their_encoders.encoder(family), their_encoders.SIZES
    model, params = read(tmp_path, state, their_encoders.CONFIGS[family])

    @jax.jit
    def outputs(params, *batch):
        states, _ = model.apply(params, *batch, method="hidden")
        return states, model.clone(classes=0).apply(params, states, method="words"), model.apply(params, *batch)[0]

    states, _ = their_encoders.bert(state, TOKENS, sizes["heads"], sizes["layers"], family)
    expected = states, *their_encoders.head_logits(state, states, family)
    for actual, array in zip(outputs(params, TOKENS[None], np.array([len(TOKENS)], np.int32)), expected):
        agree(actual[0], array)


@pytest.mark.parametrize("config", [their_encoders.T5, their_encoders.FLAN], ids=["T5", "Flan-T5"])
def test_t5_computes_its_formula(tmp_path, config):
    state = their_encoders.t5(config)
    model, params = read(tmp_path, state, config)
    logits = jax.jit(model.apply)(params, TOKENS[None], np.array([len(TOKENS)], np.int32), TOKENS[None, :5])[0][0]
    agree(logits, their_encoders.t5_logits(state, TOKENS, TOKENS[:5], config))


GPT2, MARIAN = their_weights.GPT2 | {"model_type": "gpt2"}, their_weights.MARIAN | {"model_type": "marian"}
HF_VIT = their_weights.VIT | {"model_type": "vit"}
STATES = {
    **{name: lambda c=config: (their_decoders.llama(c), c) for name, config in their_decoders.FAMILIES.items()},
    **{name: lambda n=name: (their_encoders.encoder(n), their_encoders.CONFIGS[n]) for name in their_encoders.HEADS},
    "t5": lambda: (their_encoders.t5(their_encoders.T5), their_encoders.T5),
    "t5_gated": lambda: (their_encoders.t5(their_encoders.FLAN), their_encoders.FLAN),
    "t5_encoder": lambda: (their_encoders.t5_encoder(their_encoders.T5), their_encoders.T5),
    "t5_gated_encoder": lambda: (their_encoders.t5_encoder(their_encoders.FLAN), their_encoders.FLAN),
    "umt5_encoder": lambda: (their_encoders.t5_encoder(their_encoders.UMT5), their_encoders.UMT5),
    "clip_text": lambda: (their_encoders.clip_text(), their_encoders.CLIP),
    "gpt2": lambda: (their_weights.gpt2(), GPT2),
    "marian": lambda: (their_weights.marian(), MARIAN),
    "timm": lambda: (their_weights.timm(), their_weights.TIMM),
    "huggingface": lambda: (their_weights.huggingface(their_weights.timm()), HF_VIT),
    "google": lambda: (their_weights.google(their_weights.timm(), 2), {"norm_epsilon": 1e-6}),
}
"""{naming: (tensors, config.json)}"""


@pytest.mark.parametrize("naming", exchange.NAMINGS)
def test_export_returns_the_original_tensors(tmp_path, naming):
    state, config = STATES[naming]()
    weights = exchange.read(their_weights.write_weights(tmp_path / "there" / "model.safetensors", state, config))
    write = lambda form: exchange.write(weights, tmp_path / form, form, naming)
    if exchange.NAMINGS[naming].read_only:
        with pytest.raises(InputError, match=f"can be written with --naming own, .*; got {naming}"):
            write("safetensors")
        return
    for form in ("safetensors", "npz"):
        summary, exported = write(form), tensors.read_tensors(tmp_path / form).arrays
        assert f"named as {naming}" in summary and exported.keys() == state.keys()
        for name, array in state.items():
            np.testing.assert_array_equal(exported[name], array, name)
        again = exchange.read(tmp_path / form)
        assert again.options == weights.options and "not read" not in again.note


@pytest.mark.parametrize("family", their_encoders.HEADS)
def test_names_may_lack_the_prefix(tmp_path, family):
    state, config = STATES[family]()
    plain = {name.removeprefix(f"{family}."): array for name, array in state.items()}
    arrays = [
        exchange.read(their_weights.write_weights(tmp_path / str(i) / "model.safetensors", tensors_of, config)).arrays
        for i, tensors_of in enumerate((state, plain))
    ]
    assert arrays[0].keys() == arrays[1].keys()
    assert all(np.array_equal(array, arrays[1][path]) for path, array in arrays[0].items())


@pytest.mark.parametrize("family", their_encoders.HEADS)
def test_pooling_of_sentences_comes_back(tmp_path, family):
    state, config = STATES[family]()
    state = {name: array for name, array in state.items() if name.startswith(family) and "pooler" not in name}
    weights = exchange.read(their_weights.write_weights(tmp_path / "there" / "model.safetensors", state, config))
    assert not weights.options.word_head and weights.options.pooler == "none"
    weights = weights._replace(options=dataclasses.replace(weights.options, pool="max", unit_norm=True))
    exchange.write(weights, tmp_path / "back", "safetensors", family)
    assert exchange.read(tmp_path / "back").options == weights.options


WRONG = [
    *(
        (family, *change)
        for family in their_encoders.HEADS
        for change in (
            ({"architectures": ["XForTokenClassification"]}, "head for masked words or for the class"),
            ({"position_embedding_type": "relative_key"}, "position_embedding_type absolute"),
            ({"vocab_size": 12}, "vocab_size 11"),
        )
    ),
    *(
        (naming, *change)
        for naming in ("t5", "t5_gated")
        for change in (
            ({"relative_attention_num_buckets": 16}, "relative_attention_num_buckets 32"),
            ({"feed_forward_proj": "gated-tanh" if "gated" in naming else "tanh"}, "tanh"),
            ({"d_kv": 3}, "d_kv"),
        )
    ),
]


@pytest.mark.parametrize(("naming", "change", "message"), WRONG)
def test_contradicting_config_is_an_error(tmp_path, naming, change, message):
    state, config = STATES[naming]()
    path = their_weights.write_weights(tmp_path / "model.safetensors", state, config | change)
    with pytest.raises(InputError, match=message):
        exchange.read(path)


@pytest.mark.parametrize("naming", ["t5", "t5_gated"])
def test_t5_has_no_scaled_embeddings(tmp_path, naming):
    weights = exchange.read(their_weights.write_weights(tmp_path / "model.safetensors", *STATES[naming]()))
    weights = weights._replace(options=dataclasses.replace(weights.options, scale_embeddings=True))
    with pytest.raises(InputError, match="no model with --model.scale-embeddings: export"):
        exchange.write(weights, tmp_path / "out", "safetensors", naming)


GGUF = {
    "llama": their_decoders.FAMILIES["mistral"],  # its converter calls it a Llama
    **{name: their_decoders.FAMILIES[name] for name in ("qwen2", "qwen3", "gemma2", "gemma3")},
    "gpt2": None,
}


@pytest.mark.parametrize("architecture", GGUF)
def test_gguf_names_are_those_of_the_library(tmp_path, architecture):
    """The library maps names of transformers to those of a .gguf file; read back they are the first ones again."""
    pytest.importorskip("gguf", reason="GGUF files need gguf, of the extra `pretrained`")
    config = GGUF[architecture]
    state = their_weights.gpt2() if config is None else their_decoders.llama(config)
    their_decoders.write_gguf(tmp_path / "model.gguf", architecture, state, config)
    arrays = tensors.read_tensors(tmp_path / "model.gguf").arrays
    assert arrays.keys() == state.keys()
    for name, x in state.items():
        np.testing.assert_allclose(np.asarray(arrays[name]), x, atol=1e-6, err_msg=name)
