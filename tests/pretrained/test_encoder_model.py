"""Embeddings, masked words, classes and attention maps of encoders: texts together are each text alone."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config
from attention_jax.errors import InputError
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.views import masked_language as view

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
def random_model(classes=0):
    model = MaskedLanguageModel(OPTIONS, len(WORDS), classes)
    batch = np.ones((1, 2), np.int32), np.array([2], np.int32)
    shapes, r = jax.eval_shape(model.init, jax.random.key(0), *batch)["params"], np.random.default_rng(0)
    return model, jax.tree.map(lambda x: jnp.asarray(r.normal(size=x.shape, scale=0.5), jnp.float32), shapes)


TEXTS = ["the dog runs", "a cat", "the [MASK] sleeps and the [MASK] runs after the cat and the dog", "[MASK]", ""]


@pytest.mark.slow
def test_together_is_alone(monkeypatch):
    """In batches of four texts and of one; five programs."""
    monkeypatch.setattr(view, "ROWS", 4)
    for view_function, model_and_params in ((view.embed, random_model()), (view.classify, random_model(3))):
        alone = np.concatenate([view_function(*model_and_params, Tokenizer(), [text]) for text in TEXTS])
        np.testing.assert_allclose(view_function(*model_and_params, Tokenizer(), TEXTS), alone, atol=1e-6)
    records = view.attention_maps(*random_model(), Tokenizer(), TEXTS[:4], TEXTS[:4])
    for text, record in zip(TEXTS, records):
        length, weights = len(Tokenizer().encode(text)), record.predictions[0].attentions[0].weights
        assert weights.shape == (2, 2, length, length)
        np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_masked_words():
    """Against the logits of the whole text."""
    model, params = random_model()
    predictions = view.fill_mask(model, params, Tokenizer(), TEXTS[2:4], k=len(WORDS))
    assert [len(of_text) for of_text in predictions] == [2, 1]
    row = np.array([Tokenizer().encode(TEXTS[2])])
    logits, _ = jax.jit(model.apply)({"params": params}, row, np.array([row.shape[1]]))
    for of_mask, place in zip(predictions[0], np.flatnonzero(row[0] == 3)):
        expected = np.asarray(jax.nn.softmax(logits[0, place]))
        assert [WORDS.index(word) for word, _ in of_mask] == np.argsort(-expected, kind="stable").tolist()
        np.testing.assert_allclose([p for _, p in of_mask], np.sort(expected)[::-1], rtol=1e-5)


def test_a_classifier_answers_as_it_is_meant():
    """By definition, from the logits of each text."""
    model, params = random_model(3)
    rows = [np.array([Tokenizer().encode(text)]) for text in TEXTS[:2]]
    logits = [np.asarray(model.apply({"params": params}, row, np.array([row.shape[1]]))[0][0]) for row in rows]
    functions = {
        "softmax": lambda x: np.exp(x) / np.exp(x).sum(),
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "none": lambda x: x,
    }
    for function, of in functions.items():
        probabilities = view.classify(model, params, Tokenizer(), TEXTS[:2], function)
        np.testing.assert_allclose(probabilities, [of(x) for x in logits], atol=1e-5)


def test_texts_lose_the_tokens_beyond_the_greatest_length(capsys):
    model, params = random_model()
    long, short = "the dog runs and the cat sleeps", "the dog runs"
    embeddings = view.embed(model, params, Tokenizer(), [long, "a cat"], 5)
    np.testing.assert_allclose(embeddings, view.embed(model, params, Tokenizer(), [short, "a cat"]), atol=1e-6)
    assert "of 1 of 2 texts the tokens beyond 5 are left out" in capsys.readouterr().err


def test_a_page_of_attention():
    model, params = random_model()
    [record] = view.attention_maps(model, params, Tokenizer(), TEXTS[:1], ["an answer"])
    [attention] = record.predictions[0].attentions
    assert attention.keys.tokens == ("[CLS]", "the", "dog", "runs", "[SEP]") and attention.weights.shape == (2, 2, 5, 5)
    assert record.predictions[0].text == "an answer" and attention.rollout.shape == (5, 5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, p: view.fill_mask(m, p, Tokenizer(), ["the dog"]), r"\[MASK\] in the place of a word"),
        (lambda m, p: view.fill_mask(m, p, Tokenizer(), ["[MASK]"], k=0), "k must be 1 to 11"),
        (lambda m, p: view.classify(m, p, Tokenizer(), ["a"]), "no classifier"),
        (lambda m, p: view.embed(m, p, Tokenizer(), ["a " * 19]), "1 to 20 tokens"),
        (lambda m, p: view.fill_mask(without_words(m), p, Tokenizer(), ["[MASK]"]), "a head for masked words"),
    ],
)
def test_what_cannot_be_answered_is_one_line(call, message):
    with pytest.raises(InputError, match=message):
        call(*random_model())


def without_words(model):
    return model.clone(options=dataclasses.replace(OPTIONS, word_head=False))
