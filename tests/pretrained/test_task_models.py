"""Attention of pretrained models that are tasks of runs here, too, and of GPT-2, against forward passes in NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest
import their_weights as reference
from PIL import Image
from test_launch import error_line, launch_here

import attention_jax
from attention_jax.data import tokenizers
from attention_jax.data.tokenizers import byte_characters
from attention_jax.errors import InputError

PAIRS = ["a dog runs", "the dog sleeps", "a cat sleeps", "the cat runs and runs"]


def softmax(x):
    return np.exp(x - x.max(-1, keepdims=True)) / np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)


def marian(directory, monkeypatch, beams=1):
    """The weights of a MarianMT model that is written to `directory`, and the ids of its tokens."""
    path = tokenizers.train_sentencepiece(PAIRS * 5, 24)
    _, pieces = tokenizers.sentencepiece_model(path)
    tokens = ["</s>", "<unk>", *pieces, "<pad>"]
    monkeypatch.setitem(reference.MARIAN, "vocab_size", len(tokens))
    state = reference.marian()
    about = reference.MARIAN | {"num_beams": beams, "max_length": 6, "pad_token_id": len(tokens) - 1, "eos_token_id": 0}
    reference.write_weights(directory / "model.safetensors", state, about)
    ids = {token: number for number, token in enumerate(tokens)}
    (directory / "vocab.json").write_text(json.dumps(ids))
    for side in ("source", "target"):
        (directory / f"{side}.spm").write_bytes(Path(path).read_bytes())
    return state, ids


@pytest.mark.parametrize("beams", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_translator_matches_reference(tmp_path, monkeypatch, beams):
    state, ids = marian(tmp_path / "opus", monkeypatch, beams)
    model = attention_jax.load_pretrained(tmp_path / "opus")
    (record,) = model.attention(["a dog sleeps"])
    assert len(record.predictions) == beams
    best = record.predictions[0]
    kinds = {attention.kind: attention for attention in best.attentions}
    assert kinds.keys() == {"encoder", "decoder", "cross"}
    source = kinds["cross"].keys.tokens
    assert source[-1] == "</s>" and "".join(source[:-1]).replace("\u2581", " ").strip() == "a dog sleeps"
    assert kinds["encoder"].weights.shape == (2, 2, len(source), len(source))
    written = [ids[token] for token in kinds["cross"].queries.tokens]
    target = np.array([[len(ids) - 1, *written[:-1]]])
    rows = np.array([[ids[token] for token in source]])
    logits = reference.marian_logits(state, rows, np.array([len(source)]), target)[0]
    logits[:, -1] = -50  # padding is never written
    assert best.value == pytest.approx(np.log(softmax(logits))[range(len(written)), written].sum(), abs=1e-4)
    if beams == 1:
        assert written == logits.argmax(-1).tolist()
    assert model.translate(["a dog sleeps"]) == [best.text]


def test_a_vision_transformer_sees_the_normalized_image(tmp_path):
    state = reference.timm()
    about = reference.VIT | {"id2label": {str(k): f"kind {k}" for k in range(5)}}
    reference.write_weights(tmp_path / "vit" / "model.safetensors", reference.huggingface(state), about)
    mean, deviation = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
    recipe = {"image_mean": mean, "image_std": deviation, "size": {"height": 6, "width": 6}}
    (tmp_path / "vit" / "preprocessor_config.json").write_text(json.dumps(recipe))
    pixels = np.random.default_rng(0).integers(0, 256, (6, 6, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "x.png")
    model = attention_jax.load_pretrained(tmp_path / "vit")
    (record,) = model.attention([tmp_path / "x.png"])
    normalized = (pixels[None] / 255 - mean) / deviation
    probabilities = softmax(reference.vit_logits(state, normalized, 2, 1e-12, reference.gelu)[0])
    (prediction,) = record.predictions
    assert prediction.text == f"kind {probabilities.argmax()}"
    assert prediction.score == pytest.approx(probabilities.max(), abs=1e-5)
    assert prediction.attentions[0].weights.shape == (2, 2, 10, 10)
    np.testing.assert_allclose(model.classify([tmp_path / "x.png"])[0], probabilities, atol=1e-5)
    assert model.predict([tmp_path / "x.png"])[0].startswith(prediction.text)
    with pytest.raises(InputError, match="is a ViT, which has no translations; it has classify, attention"):
        model.translate(["a"])


def gpt2(directory):
    """The weights of a GPT-2 model with its tokenizer, which are written to `directory`, and the ids of its tokens."""
    merges = [("Ġ", "d"), ("o", "g"), ("Ġd", "og")]
    tokens = [*byte_characters(), *map("".join, merges), "<|endoftext|>"]
    state, ids = reference.gpt2(len(tokens)), {token: number for number, token in enumerate(tokens)}
    reference.write_weights(directory / "model.safetensors", state, reference.GPT2 | {"vocab_size": len(tokens)})
    (directory / "vocab.json").write_text(json.dumps(ids))
    lines = ["#version: 0.2", *map(" ".join, merges), ""]
    (directory / "merges.txt").write_text("\n".join(lines), encoding="utf-8")
    return state, ids


@pytest.mark.slow
def test_language_model_matches_reference(tmp_path):
    state, ids = gpt2(tmp_path / "gpt2")
    model = attention_jax.load_pretrained(tmp_path / "gpt2")
    (record,) = model.attention(["A dog\u2019s"])
    (attention,) = record.predictions[0].attentions
    tokens = ["A", "\u0120dog", "\u00e2", "\u0122", "\u013b", "s"]
    assert attention.keys.tokens == ("A", "\u2581dog", "<0xE2>", "<0x80>", "<0x99>", "s")
    logits, maps = reference.gpt2_outputs(state, [ids[token] for token in tokens])
    np.testing.assert_allclose(attention.weights, maps, atol=1e-5)
    next_tokens = [ids[token] for token in tokens[1:]]
    log_p = np.log(softmax(logits[:-1]))[range(5), next_tokens]
    assert model.loss(["A dog\u2019s"])[0] == pytest.approx(-log_p.mean(), abs=1e-5)


def test_a_language_model_names_what_is_missing(tmp_path):
    gpt2(tmp_path)
    model = attention_jax.load_pretrained(tmp_path)
    with pytest.raises(InputError, match="must have 2 to 9 tokens"):
        model.attention(["ten tokens"])
    with pytest.raises(InputError, match="must have 2 to 9 tokens, 'a' has 1"):
        model.attention(["a"])
    assert len(model.generate(["ten"], length=6)) == 1
    with pytest.raises(InputError, match="must have 1 to 2 tokens"):
        model.generate(["ten"], length=7)
    (tmp_path / "merges.txt").unlink()
    with pytest.raises(InputError, match="merges.txt"):
        attention_jax.load_pretrained(tmp_path)


@pytest.mark.slow
def test_look_writes_page_or_names_missing_file(tmp_path, monkeypatch):
    marian(tmp_path / "opus", monkeypatch)
    result = launch_here("look", tmp_path / "opus", "a dog runs", "--out", tmp_path / "page.html")
    assert result.returncode == 0 and "a dog runs" in (tmp_path / "page.html").read_text(), result.stderr
    assert "at least one text" in error_line("look", tmp_path / "opus")
    (tmp_path / "opus" / "target.spm").unlink()
    assert "target.spm" in error_line("look", tmp_path / "opus", "a")
    (tmp_path / "opus" / "vocab.json").write_text('{"a": 3}')
    assert "vocab.json must number" in error_line("look", tmp_path / "opus", "a")
    (tmp_path / "opus" / "vocab.json").write_text("[")
    assert "vocab.json must be a JSON object" in error_line("look", tmp_path / "opus", "a")
