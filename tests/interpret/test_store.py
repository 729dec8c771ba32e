"""Stores of activations: the rows of `trace`, continued after a kill, refused for other inputs; 4 CPU-seconds."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import LLAMA, SMALL, TOKENS, family, random_params

from attention_jax import InputError, config as configs, interpret, models
from attention_jax.interpret import store as stores

SITES = ("decoder.1.residual_in", "decoder.0.head_output")
TEXTS = [[1, 2, 3], [4] * 20, "5 6", [7] * 16, [8, 9]]
ORDER = [0, 2, 3, 4, 1]
"""Of the texts in the files: those that are padded to 16 tokens come first."""


def model_of_texts(dtype="float32"):
    options = configs.LanguageModelConfig(3, scan_layers=True, dtype=dtype, **SMALL | LLAMA)
    model = models.LanguageModel(options, 11)
    tokenizer = SimpleNamespace(encode=lambda text: [int(word) for word in text.split()])
    params = random_params(model, (TOKENS,))
    return SimpleNamespace(model=model, params=params, tokenizer=tokenizer, config=options, name="small")


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    monkeypatch.setattr(stores, "BATCH_TOKENS", 32)


@pytest.fixture(scope="module")
def lm():
    return model_of_texts()


def test_rows_are_those_of_traces_and_a_killed_call_continues(lm, tmp_path, monkeypatch):
    """Two texts a batch; the call ends within the second of three, and the next one computes two batches."""
    calls = []

    def count_trace(*args, **options):
        calls.append(args[2].shape)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return interpret.trace(*args, **options)

    monkeypatch.setattr(stores, "trace", count_trace)
    with pytest.raises(KeyboardInterrupt):
        interpret.activations(lm, TEXTS, SITES, tmp_path / "store")
    with pytest.raises(InputError, match="has 1 of 3 batches: call activations again"):
        interpret.open_activations(tmp_path / "store")
    store = interpret.activations(lm, TEXTS, SITES, tmp_path / "store")
    assert calls == [(2, 16), (2, 16), (2, 16), (1, 32)]
    interpret.activations(lm, TEXTS, SITES, tmp_path / "store")
    assert len(calls) == 4 and [*store] == [*interpret.open_activations(tmp_path / "store")]

    rows = [lm.tokenizer.encode(text) if isinstance(text, str) else text for text in TEXTS]
    assert store.tokens.tolist() == [token for i in ORDER for token in rows[i]]
    assert store.text.tolist() == [i for i in ORDER for _ in rows[i]]
    assert store.position.tolist() == [place for i in ORDER for place in range(len(rows[i]))]
    padded = np.zeros((5, 32), np.int32)
    for row, text in zip(padded, rows):
        row[: len(text)] = text
    for site, expected in interpret.trace(lm.model, lm.params, padded, sites=SITES).items():
        assert isinstance(store[site], np.memmap) and store[site].shape == (len(store.tokens), *expected.shape[2:])
        np.testing.assert_allclose(store[site], np.asarray(expected)[store.text, store.position], rtol=1e-5, atol=1e-5)


REFUSED = {
    "other texts": ({"texts": TEXTS[:-1]}, "has activations of other sites, tokens: give another directory"),
    "other sites": ({"sites": SITES[:1]}, "has activations of other sites"),
    "a matrix": ({"sites": "decoder.0.weights"}, r"decoder.0.weights is \[2, 2, 16, 16\]: use trace"),
    "no site": ({"sites": "decoder.9.query"}, "layers of the decoder are 0 to 2"),
    "a text": ({"texts": "1 2"}, "takes a list of texts"),
    "an empty text": ({"texts": ["1", []]}, "text 1 has 0"),
    "a token beyond": ({"texts": [[11]]}, "ids 0 to 10, text 0 has 11 to 11"),
}


@pytest.fixture(scope="module")
def path_of_store(lm, tmp_path_factory):
    """The path of a store that is not computed, only its files begun."""
    path = tmp_path_factory.mktemp("stores") / "store"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stores, "BATCH_TOKENS", 32)
        patch.setattr(stores, "trace", lambda *args, **options: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            interpret.activations(lm, TEXTS, SITES, path)
    return path


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_store(case, lm, path_of_store):
    options, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        interpret.activations(lm, **{"texts": TEXTS, "sites": SITES, "path": path_of_store} | options)


def test_other_weights_and_directories_are_refused(lm, path_of_store, tmp_path):
    other = SimpleNamespace(**vars(lm) | {"params": jax.tree.map(lambda x: x + 1, lm.params)})
    with pytest.raises(InputError, match="has activations of other weights"):
        interpret.activations(other, TEXTS, SITES, path_of_store)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match="has files that are no activations"):
        interpret.activations(lm, TEXTS, SITES, tmp_path)
    with pytest.raises(InputError, match="has no activations"):
        interpret.open_activations(tmp_path)


@pytest.mark.slow
def test_half_precision_and_an_encoder(tmp_path):
    half = model_of_texts("bfloat16")
    store = interpret.activations(half, TEXTS[:1], SITES, tmp_path / "half")
    expected = interpret.trace(half.model, half.params, np.array([TEXTS[0]]), sites=SITES)[SITES[0]][0]
    assert store[SITES[0]].dtype == jnp.bfloat16
    np.testing.assert_allclose(store[SITES[0]].astype(float), expected.astype(float), rtol=0.05, atol=0.05)
    model, params, _, _ = family("bert")
    lm = SimpleNamespace(**vars(half) | {"model": model, "params": params, "config": model.options})
    store = interpret.activations(lm, ["1 2", "3"], "encoder.1.mlp_output", tmp_path / "encoder")
    rows = interpret.trace(model, params, np.array([[1, 2], [3, 0]]), np.array([2, 1]), sites="encoder.1.mlp_output")
    expected = np.asarray(rows["encoder.1.mlp_output"])[[0, 0, 1], [0, 1, 0]]
    np.testing.assert_allclose(store["encoder.1.mlp_output"], expected, rtol=1e-5, atol=1e-5)
