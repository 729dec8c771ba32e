"""Evaluation as a mean over batches, beside NumPy; by default it is the mean over all examples."""

import jax
import numpy as np
import pytest
import tiny
from contract import draw

from attention_jax.errors import InputError

MODELS = {type(model).__name__: model for model in tiny.MODELS}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return tiny.builder(tmp_path_factory.mktemp("data"))


def both(build, model, size: int):
    """The task, its parameters, and its metrics by example and by batches of `size`."""
    task = build(model, **{"train.batch_size": size})
    params = draw(task.init)
    batches = build(model, **{"train.batch_size": size, "train.eval_mean": "batches"})
    return task, params, task.evaluate(params, False).metrics, batches.evaluate(params, False).metrics


def cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    return [rows[first : first + size] for first in range(0, len(rows), size)]


@pytest.mark.slow
def test_language_model_averages_batch_perplexities(build):
    """Eight windows in batches of 3, 3 and 2."""
    task, params, whole, batches = both(build, MODELS["RecurrentLanguageModelConfig"], 3)
    nats = np.asarray(task.score_rows(params, {"tokens": task.data.held_out["valid"]}), np.float64) / 16
    losses = [batch.mean() for batch in cut(nats, 3)]
    assert [len(batch) for batch in cut(nats, 3)] == [3, 3, 2]
    assert whole["valid.perplexity"] == pytest.approx(np.exp(nats.mean()), rel=1e-6)
    assert batches["valid.perplexity"] == pytest.approx(np.mean(np.exp(losses)), rel=1e-6)
    assert batches["valid.loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert abs(np.mean(losses) - nats.mean()) > 1e-4 < abs(np.mean(np.exp(losses)) - np.exp(np.mean(losses)))


@pytest.mark.slow
def test_translator_averages_batch_losses(build):
    """A token of a batch of few tokens weighs more."""
    task, params, whole, batches = both(build, MODELS["SutskeverConfig"], 3)
    rows = jax.device_get(task.score_rows(params, task.data.held_out["valid"]._asdict()))
    for metric, name in (("loss", "loss"), ("token_accuracy", "correct")):
        pairs = zip(cut(rows[name], 3), cut(rows["tokens"], 3), strict=True)
        expected = np.mean([total.sum() / count.sum() for total, count in pairs])
        assert batches[f"valid.{metric}"] == pytest.approx(expected, rel=1e-5)
        assert whole[f"valid.{metric}"] == pytest.approx(rows[name].sum() / rows["tokens"].sum(), rel=1e-5)
    assert abs(batches["valid.loss"] - whole["valid.loss"]) > 1e-5


def test_sorted_batches_are_those_of_interleaved_lengths(build):
    """torchtext sorts by one number whose bits are those of both lengths, in turn; here from its strings."""
    model, size = MODELS["SutskeverConfig"], 2
    task = build(model, **{"train.batch_size": size, "train.eval_mean": "sorted-batches"})
    params = draw(task.init)
    pairs = task.data.held_out["valid"]
    rows = jax.device_get(task.score_rows(params, pairs._asdict()))
    text = lambda ids, vocabulary: [
        i for i in ids if i not in (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id)
    ]
    lengths = [
        (len(text(source, task.data.source_vocabulary)), len(text(target, task.data.target_vocabulary)))
        for source, target in zip(pairs.source.tolist(), pairs.target.tolist())
    ]
    key = lambda n: int("".join(a + b for a, b in zip(*(format(length, "016b") for length in lengths[n]))), 2)
    order = sorted(range(len(lengths)), key=key)
    assert cut(np.array(order), size)[0].tolist() not in ([0, 1], [2, 3])
    losses = [rows["loss"][batch].sum() / rows["tokens"][batch].sum() for batch in cut(np.array(order), size)]
    assert task.evaluate(params, False).metrics["valid.loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_image_classifier_averages_batch_accuracies(build):
    task, params, whole, batches = both(build, MODELS["ViTConfig"], 3)
    split = task.splits(False)[0]
    rows = jax.device_get(task.score_rows(params, task.data.held_out[split]._asdict()))
    for name, values in rows.items():
        expected = np.mean([batch.mean() for batch in cut(values, 3)])
        assert batches[f"{split}.{name}"] == pytest.approx(expected, rel=1e-5)
        assert whole[f"{split}.{name}"] == pytest.approx(values.mean(), rel=1e-5)


def test_other_models_refuse_it(build):
    with pytest.raises(InputError, match=r"GraphAttention needs --train.eval-mean examples, got batches"):
        build(MODELS["GraphAttentionConfig"], **{"train.eval_mean": "batches"})
    with pytest.raises(InputError, match=r"ViT needs --train.eval-mean examples or batches, got sorted-batches"):
        build(MODELS["ViTConfig"], **{"train.eval_mean": "sorted-batches"})
