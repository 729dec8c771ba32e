"""Fine-tuning a pretrained language model on a text, with its tokenizer."""

import json

import numpy as np
import pytest
import their_decoders as reference
from test_launch import launch_here

import attention_jax
from attention_jax import load_run
from attention_jax.config import replace
from attention_jax.models.layer_stack import unstack_layers
from attention_jax.pretrained import exchange
from attention_jax.runs import lifecycle
from attention_jax.train.checkpoint import read_params
from experiments import language_model
from tests.interruptions import interrupt_after

pytest.importorskip("tokenizers", reason="a pretrained tokenizer needs tokenizers")
LINES = ["The lazy dog jumps over the brown fox.", "A quick dog is lazy, a fox is quick!"] * 40


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A small Llama of twelve layers, and a text."""
    place = tmp_path_factory.mktemp("decoder")
    reference.directory(place / "llama", num_hidden_layers=12)
    (place / "text.txt").write_text("\n".join(LINES))
    return place


def settings(place, **changes):
    small = {"data.text_file": str(place / "text.txt"), "data.sequence_length": 16, "decode.length": 4}
    small |= {
        "train.total_epochs": 2,
        "train.batch_size": 16,
        "train.max_steps": 100,
        "optim.learning_rate": 3e-3,
        "optim.warmup_steps": 2,
    }
    return replace(lifecycle.with_weights(str(place / "llama"), replace(language_model.config(), **small)), **changes)


@pytest.mark.slow
def test_pretrained_model_learns_text_and_resumes_exactly(place, tmp_path):
    """Three programs of twelve layers in a scan, twice."""
    config = settings(place)
    assert config.model.scan_layers and config.data.pretrained == str(place / "llama")
    with interrupt_after(1):
        lifecycle.start(config, tmp_path / "pieces", quiet=True)
    lifecycle.start(config, tmp_path / "pieces", quiet=True, resume=True)
    result = lifecycle.start(config, tmp_path / "whole", quiet=True)
    whole, pieces = (exchange.flat(read_params(tmp_path / name / "final")) for name in ("whole", "pieces"))
    assert whole.keys() == pieces.keys() and "decoder/layers_0/ffn/gate/kernel" in whole
    for name in whole:
        np.testing.assert_array_equal(whole[name], pieces[name])
    run = load_run(tmp_path / "whole")
    initial_metrics = run.task.evaluate(attention_jax.load_pretrained(place / "llama").params, True).metrics
    assert result["metrics"]["test.loss"] < initial_metrics["test.loss"] - 0.1
    [written] = run.predict(["The lazy"])
    assert written.startswith("The lazy")


@pytest.mark.slow
def test_a_run_goes_back_to_hugging_faces_names(place, tmp_path):
    config = settings(place, **{"train.max_steps": 1})
    lifecycle.start(config, tmp_path / "run", quiet=True)
    result = launch_here("export", tmp_path / "run", "--naming", "llama")
    assert result.returncode == 0 and "named as llama" in result.stdout, result.stderr
    out = tmp_path / "run" / "export" / "llama"
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == 12
    params = exchange.flat(unstack_layers(read_params(tmp_path / "run" / "final")))
    again = exchange.read(out).arrays
    assert again.keys() == params.keys()
    for name in again:
        np.testing.assert_array_equal(again[name], params[name])


def test_text_is_encoded_by_model_tokenizer(place):
    """Nothing is compiled."""
    from attention_jax.data import text_windows

    config = settings(place)
    assert config.model.dropout == config.model.attention_dropout == 0  # Llama was trained without
    data = text_windows.load(config.data)
    tokenizer = attention_jax.load_pretrained(place / "llama").tokenizer
    first = tokenizer.encode("\n".join(LINES))[:17]
    assert data.train[0].tolist() == first and len(data.vocabulary) == 300
    text = data.tokenizer.text(data.vocabulary.decode(data.train[0]))
    assert "\n".join(LINES).startswith(text)


def test_a_large_vocabulary_is_evaluated_in_small_batches(place):
    """As many windows as before for characters and sentencepiece's 2,000 subwords; nothing is compiled."""
    from attention_jax.tasks.language import EVALUATED, LOGITS, LanguageTask

    data = type("Data", (), {"train": np.zeros((1, 129), np.int32)})
    rows = lambda size: LanguageTask.rows_evaluated.fget(
        type("Task", (), {"data": type("D", (data,), {"vocabulary": range(size)})})
    )
    assert rows(100) == rows(2_000) == EVALUATED and 0 < rows(49_152) * 129 * 49_152 <= LOGITS and rows(10**8) == 1
