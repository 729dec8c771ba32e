"""Embeddings, masked words, classes and attention maps of encoders: texts together are each text alone."""

import dataclasses
import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.pretrained import encoder_model

OPTIONS = config.MaskedLanguageModelConfig(hidden_size=8, num_heads=2, mlp_dim=12, num_layers=2, max_length=20)
WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "the", "dog", "cat", "runs", "a", "sleeps"]


class Tokenizer:
    """Words between [CLS] and [SEP]."""

    names, mask, pad = tuple(WORDS), 3, 0

    def encode(self, text, special=True):
        words = [WORDS.index(word) if word in WORDS else 4 for word in text.split()]
        return [1, *words, 2] if special else words

    def tokens(self, ids):
        return [WORDS[number] for number in ids]

    def decode(self, ids):
        return " ".join(WORDS[number] for number in ids if number > 4)


@functools.cache
def random_model(classes=0, function="softmax"):
    """An encoder in a directory without files."""
    model = MaskedLanguageModel(OPTIONS, len(WORDS), classes)
    batch = np.ones((1, 2), np.int32), np.array([2], np.int32)
    shapes, r = jax.eval_shape(model.init, jax.random.key(0), *batch)["params"], np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), jnp.float32), shapes)
    return encoder_model.PretrainedEncoder(Path("nowhere"), OPTIONS, model, params, Tokenizer(), function)


TEXTS = ["the dog runs", "a cat", "the [MASK] sleeps and the [MASK] runs after the cat and the dog", "[MASK]", "a"]


@pytest.mark.slow
def test_together_is_alone(monkeypatch):
    """In batches of four texts and of one; five programs."""
    monkeypatch.setattr(encoder_model, "ROWS", 4)
    for call in (random_model().embed, random_model(3).classify):
        np.testing.assert_allclose(call(TEXTS), np.concatenate([call([text]) for text in TEXTS]), atol=1e-6)
    for text, record in zip(TEXTS, random_model().attention(TEXTS[:2])):
        length, weights = len(Tokenizer().encode(text)), record.predictions[0].attentions[0].weights
        assert weights.shape == (2, 2, length, length)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_masked_words():
    """Against the logits of the whole text."""
    encoder = random_model()
    predictions = encoder.fill_mask(TEXTS[2:4], k=len(WORDS))
    assert [len(of_text) for of_text in predictions] == [2, 1]
    row = np.array([Tokenizer().encode(TEXTS[2])])
    logits, _ = jax.jit(encoder.model.apply)({"params": encoder.params}, row, np.array([row.shape[1]]))
    for of_mask, place in zip(predictions[0], np.flatnonzero(row[0] == 3)):
        expected = np.asarray(jax.nn.softmax(logits[0, place]))
        assert [WORDS.index(word) for word, _ in of_mask] == np.argsort(-expected, kind="stable").tolist()
        np.testing.assert_allclose([p for _, p in of_mask], np.sort(expected)[::-1], rtol=1e-5)


@pytest.mark.slow
def test_a_classifier_answers_as_it_is_meant():
    """By definition, from the logits of each text."""
    encoder = random_model(3)
    rows = [np.array([Tokenizer().encode(text)]) for text in TEXTS[:2]]
    apply = jax.jit(lambda row: encoder.model.apply({"params": encoder.params}, row, np.array([row.shape[1]]))[0][0])
    logits = [np.asarray(apply(row)) for row in rows]
    functions = {
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "none": lambda x: x,
    }
    for function, of in functions.items():
        probabilities = dataclasses.replace(encoder, function=function).classify(TEXTS[:2])
        np.testing.assert_allclose(probabilities, [of(x) for x in logits], atol=1e-5)


def test_texts_lose_the_tokens_beyond_the_greatest_length(tmp_path, capsys):
    (tmp_path / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 5}))
    encoder, texts = dataclasses.replace(random_model(), path=tmp_path), ["the dog runs and the cat sleeps", "a cat"]
    expected = random_model().embed(["the dog runs", "a cat"])
    np.testing.assert_allclose(encoder.embed(texts), expected, atol=1e-6)
    assert "of 1 of 2 texts the tokens beyond 5 are left out" in capsys.readouterr().err


def test_printing_counts_the_parameters():
    encoder = random_model()
    count = sum(x.size for x in jax.tree.leaves(encoder.params))
    assert repr(encoder) == f"PretrainedEncoder('nowhere', MaskedLanguageModelConfig, {count:,} parameters)"


def test_a_page_of_attention():
    [record] = random_model().attention(TEXTS[:1])
    [attention] = record.predictions[0].attentions
    assert attention.keys.tokens == ("[CLS]", "the", "dog", "runs", "[SEP]") and attention.weights.shape == (2, 2, 5, 5)
    assert record.predictions[0].text == "embedding of 8 numbers" and attention.rollout.shape == (5, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda encoder: encoder.fill_mask(["the dog"]), r"\[MASK\] in the place of a word"),
        (lambda encoder: encoder.fill_mask(["[MASK]"], k=0), "k must be 1 to 11"),
        (lambda encoder: encoder.classify(["a"]), "no classifier"),
        (lambda encoder: encoder.embed(["a " * 19]), "1 to 20 tokens"),
        (lambda encoder: without_words(encoder).fill_mask(["[MASK]"]), "a head for masked words"),
    ],
)
def test_what_cannot_be_answered_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call(random_model())


def without_words(encoder):
    return dataclasses.replace(encoder, config=dataclasses.replace(OPTIONS, word_head=False))
