"""Gemma 3 270M (Gemma's terms of use), in a .gguf file of 4 and 6 bits, against float64: `python -m pytest -m gemma`.

With torch, transformers and accelerate installed, also against transformers.
"""

import parity
import pytest
import real_models
import their_decoders as reference

import attention_jax
from attention_jax.pretrained import tensors

pytestmark = [pytest.mark.gemma, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXT = "The capital of France is"
WINDOW = 512
LONG = " ".join([parity.TEXT, *parity.ODD[3:6]] * 10)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return real_models.gemma3(tmp_path_factory.mktemp("gemma"))


@pytest.fixture(scope="module")
def model(path):
    return attention_jax.load_pretrained(path)


@pytest.mark.parametrize("text", [parity.TEXT, LONG], ids=["short", "longer than the window"])
def test_logits_and_maps_are_those_of_float64(path, model, text):
    stored, ids = tensors.read_tensors(path), model.tokenizer.encode(text)
    assert (len(ids) > WINDOW) == (text == LONG)
    logits, maps = reference.outputs(stored.arrays, ids, stored.config, last=8)
    assert parity.largest(model.logits([text])[0][-8:], logits) < parity.BOUND
    actual = model.attention([text])[0].predictions[0].attentions[0].weights
    assert parity.largest(actual, maps) < parity.BOUND
    if text == LONG:
        local, whole = maps[0], maps[5]
        assert local[:, -1, : len(ids) - WINDOW].max() == 0 < whole[:, -1, : len(ids) - WINDOW].max()
        assert actual[0][:, -1, : len(ids) - WINDOW].max() == 0


def test_it_continues_with_the_most_probable_tokens(path, model):
    stored, ids = tensors.read_tensors(path), model.tokenizer.encode(TEXT)
    written = []
    for _ in range(3):
        logits, _ = reference.outputs(stored.arrays, [*ids, *written], stored.config, last=1)
        written.append(int(logits[0].argmax()))
    assert model.generate([TEXT], length=3) == [model.tokenizer.decode(written)]


def test_the_row_of_the_table(tmp_path):
    """Logits, maps and tokens are those of transformers."""
    for name in ("torch", "transformers", "accelerate"):
        pytest.importorskip(name, reason=f"parity with transformers needs {name}")
    row = parity.real_row("Gemma 3 270M", tmp_path)
    assert max(row[name] for name in ("logits", "maps", "logits_64", "maps_64")) < parity.BOUND
    assert row["tokens"] == len(parity.ODD)
