"""T5 and its gated versions against Hugging Face's transformers, with small models of random weights."""

import dataclasses
import functools
import json
import os

import jax
import numpy as np
import pytest
from contract import draw

from attention_jax import config, load_pretrained
from attention_jax.errors import InputError
from attention_jax.models.transformer import Transformer
from attention_jax.pretrained import exchange

os.environ["HF_HUB_OFFLINE"] = "1"
TINY = {
    "vocab_size": 30,
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_decoder_layers": 3,
    "num_heads": 3,
}
KINDS = {
    "T5": {"d_kv": 8},
    "Flan-T5": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "gated, tied": {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3},
}


def relative_error(actual, expected):
    expected = expected.detach().numpy()
    return np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_maps(tmp_path, kind):
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch==2.13.0, an extra")
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
    torch.manual_seed(0)
    about = transformers.T5Config(**TINY | KINDS[kind], attn_implementation="eager")
    model = transformers.T5ForConditionalGeneration(about).eval()
    is_untied = kind == "Flan-T5"
    if is_untied:  # transformers 5 ties them at first, and reads files in which they differ
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.shared.weight))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    from safetensors.torch import save_file

    (tmp_path / "there").mkdir()
    state = {name: array.clone() for name, array in model.state_dict().items()}
    save_file(state, tmp_path / "there" / "model.safetensors")
    hf_config = about.to_dict() | KINDS[kind]  # as the published files of Flan-T5 say it
    (tmp_path / "there" / "config.json").write_text(json.dumps(hf_config))
    weights = exchange.read(tmp_path / "there")
    assert weights.options.tied_embeddings == ("inputs" if is_untied else "all")
    assert weights.options.scale_output == (not is_untied) and not weights.note
    rng, length = np.random.default_rng(0), np.array([40, 23])
    source, target = rng.integers(2, 30, (2, 40)), rng.integers(2, 30, (2, 25))
    hf_output = model(
        torch.tensor(source),
        attention_mask=torch.tensor((np.arange(40) < length[:, None]).astype(np.int64)),
        decoder_input_ids=torch.tensor(target),
        output_attentions=True,
    )
    params = {"params": exchange.nested(weights.arrays)}
    call = functools.partial(exchange.module_of(weights).apply, return_weights=True)
    logits, maps = jax.jit(call)(params, source, length, target)
    errors = {"logits": relative_error(logits, hf_output.logits)}
    for name in ("decoder_attention", "cross_attention", "encoder_attention"):
        expected = torch.stack(getattr(hf_output, f"{name.split('_')[0]}_attentions"), 1)
        actual = np.asarray(maps[name])
        for row, count in enumerate(length):  # of padding, each library has its own weights
            rows = slice(count) if name == "encoder_attention" else slice(None)
            errors[f"{name} {row}"] = relative_error(actual[row, :, :, rows], expected[row, :, :, rows])
    print(kind, errors)
    assert max(errors.values()) < 1e-5, errors

    naming = "t5" if kind == "T5" else "t5_gated"
    changed = weights._replace(arrays={name: 0.9 * array for name, array in weights.arrays.items()})
    exchange.write(changed, tmp_path / "back", "safetensors", naming)
    assert exchange.read(tmp_path / "back").options == weights.options
    again, loading_info = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not set(loading_info["missing_keys"]) - {"lm_head.weight"} and not loading_info["unexpected_keys"]
    expected = again.eval()(torch.tensor(source[:1]), decoder_input_ids=torch.tensor(target[:1])).logits
    params = {"params": exchange.nested(changed.arrays)}
    actual_logits, _ = jax.jit(exchange.module_of(weights).apply)(params, source[:1], length[:1], target[:1])
    assert relative_error(actual_logits, expected) < 1e-5


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_writes_what_the_library_writes(tmp_path):
    """Greedy decoding of two texts of different lengths, with a tokenizer of our own and more rows than tokens."""
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch==2.13.0, an extra")
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers")
    words = ["<pad>", "</s>", "<unk>", *(f"\u2581w{i}" for i in range(24))]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram([(word, -float(i)) for i, word in enumerate(words)], 2))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    torch.manual_seed(3)
    model = transformers.T5ForConditionalGeneration(transformers.T5Config(**TINY, decoder_start_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_length": 9}))
    texts, written = ["w3 w1 w7 w2 w11 w5", "w9 w4"], []
    for text in texts:
        ids = torch.tensor([tokenizer.encode(text).ids])
        hf_ids = model.generate(ids, max_new_tokens=9, do_sample=False, use_cache=False)[0].tolist()
        written.append(tokenizer.decode([number for number in hf_ids if number < len(words)], skip_special_tokens=True))
    outputs = load_pretrained(tmp_path).translate(texts)
    assert [line.split() for line in outputs] == [line.split() for line in written] and outputs[0] != outputs[1]


OPTIONS = config.TransformerConfig(
    1, 1, 8, 2, 12, norm="pre", norm_layer="rms", norm_epsilon=1e-6, score="dot", position_embedding="t5",
    activation="relu", use_bias=False, mlp_bias=False, scale_embeddings=False, output_bias=False,
)  # fmt: skip


@pytest.mark.slow
def test_output_is_scaled_and_inputs_shared():
    tokens, length = np.array([[1, 2, 3]], np.int32), np.array([3], np.int32)
    plain = dataclasses.replace(OPTIONS, tied_embeddings="inputs")
    model = Transformer(plain, 9, 9)
    params = draw(model.init, tokens, length, tokens)
    assert "source_embedding" not in params["params"] and "kernel" in params["params"]
    call = lambda options: Transformer(options, 9, 9).apply(params, tokens, length, tokens)[0]
    np.testing.assert_allclose(call(dataclasses.replace(plain, scale_output=True)) * 8**0.5, call(plain), rtol=1e-5)
    assert not any("bias" in name and "bias_0" not in name for name in exchange.flat(params["params"]))
    with pytest.raises(InputError, match="inputs needs one vocabulary"):
        Transformer(plain, 9, 8)
