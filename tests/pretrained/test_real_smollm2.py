"""SmolLM2-135M-Instruct (Apache-2.0), 135 million parameters in a .gguf file, against float64 and transformers."""

from pathlib import Path

import numpy as np
import parity
import pytest
import real_models
import their_decoders as reference
from test_launch import launch_here

import attention_jax
from attention_jax.pretrained import tensors

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def path() -> Path:
    return real_models.smollm2()


@pytest.fixture(scope="module")
def model(path):
    return attention_jax.load_pretrained(path)


def test_logits_and_maps_are_those_of_float64(path, model):
    stored, ids = tensors.read_tensors(path), model.tokenizer.encode(parity.TEXT)
    logits, maps = reference.outputs(stored.arrays, ids, stored.config)
    assert parity.largest(model.logits([parity.TEXT])[0], logits) < 1e-4
    assert parity.largest(model.attention([parity.TEXT])[0].predictions[0].attentions[0].weights, maps) < 1e-4
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert model.loss([parity.TEXT])[0] == pytest.approx(-log_p[range(len(ids) - 1), ids[1:]].mean(), rel=1e-4)


def test_digits_are_tokens_of_their_own(model):
    assert model.tokenizer.tokens(model.tokenizer.encode("in 1999")) == ["in", "\u2581", "1", "9", "9", "9"]


def test_it_knows_the_capital_of_france(model):
    texts = [TEXT, "Once upon a time, there was a little girl who lived in a village", "2+2="]
    assert model.generate([TEXT], length=1) == [" Paris"]
    assert model.generate(texts, length=6) == [model.generate([text], length=6)[0] for text in texts]


def test_predict_prints_paris(path):
    result = launch_here("predict", path, TEXT, "--decode.length", "1")
    assert result.returncode == 0 and result.stdout == f"{TEXT} -> {TEXT} Paris\n", result.stderr


def test_logits_maps_and_tokens_are_those_of_transformers(path, model):
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch")
    transformers = pytest.importorskip("transformers", reason="parity with transformers needs it")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with accelerate")
    options = {"gguf_file": path.name, "dtype": torch.float32, "attn_implementation": "eager"}
    hf_model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, **options).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    ids = model.tokenizer.encode(parity.TEXT)
    assert tokenizer(parity.TEXT)["input_ids"] == ids
    with torch.no_grad():
        hf_output = hf_model(torch.tensor([ids]), output_attentions=True)
    assert parity.largest(model.logits([parity.TEXT])[0], hf_output.logits[0].double().numpy()) < 1e-4
    maps = torch.stack(hf_output.attentions, 1)[0].double().numpy()
    assert parity.largest(model.attention([parity.TEXT])[0].predictions[0].attentions[0].weights, maps) < 1e-4
    with torch.no_grad():
        inputs = tokenizer(TEXT, return_tensors="pt")
        longer = hf_model.generate(**inputs, max_new_tokens=12, do_sample=False, repetition_penalty=1.3)
    expected = tokenizer.decode(longer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert model.generate([TEXT], length=12, repetition_penalty=1.3) == [expected]


OPTIONS = {
    "forget": {"bias": "forget"},
    "cope": {"bias": "cope"},
    "differential": {"differential": True},
    "differential v2": {"differential_v2": True},
    "exclusive": {"exclusive": True},
    "value residual": {"value_residual": True},
    "value embeddings": {"value_embeddings": True},
    "attention residuals": {"attention_residuals": True},
    "no positions": {"position_embedding": "none"},
    "gated": {"output_gate": True},
    "softpick": {"normalizer": "softpick"},
    "ssmax": {"normalizer": "ssmax"},
    "sigmoid": {"normalizer": "sigmoid(-4)"},
    "stick-breaking": {"normalizer": "stick_breaking"},
    "sink": {"normalizer": "learned_sink"},
    "yarn": {"rope_scaling": "yarn(4, 8192)"},
}
"""Attention of the papers of 2024 to 2026, by name."""


@pytest.mark.parametrize("name", OPTIONS)
def test_another_attention_by_name_generates_what_the_full_pass_predicts(path, model, name, capsys):
    changed = attention_jax.load_pretrained(path, **OPTIONS[name])
    [loss], [original_loss] = changed.loss([parity.TEXT]), model.loss([parity.TEXT])
    with capsys.disabled():
        print(f"\n{name}: loss {loss:.3f}, {original_loss:.3f} without", end=" ")
    ids = changed.tokenizer.encode(TEXT)
    for _ in range(3):  # by a KV cache, and by all logits again
        logits, _ = changed.model.apply({"params": changed.params}, np.asarray([ids]))
        ids = [*ids, int(logits[0, -1].argmax())]
    continuation = changed.tokenizer.decode(ids).removeprefix(TEXT)
    assert np.isfinite(loss) and changed.generate([TEXT], length=3) == [continuation]
    begin_with_zeros = ("cope", "value residual", "value embeddings")
    assert (loss == original_loss) == (name in begin_with_zeros)
    if name == "attention residuals":  # of which means are what norms read in place of sums
        assert loss == pytest.approx(original_loss, abs=1e-3)
