"""The task of labeled texts, on texts that one word decides."""

import csv
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import tasks
from attention_jax.config import Config, LabeledFile, TextClassifierConfig, Train, replace
from attention_jax.data.labeled_texts import encode
from attention_jax.errors import InputError
from attention_jax.runs.api import LoadedRun
from attention_jax.tasks.text_classification import write_mistakes


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """The label is the one word that is no filler; it stands anywhere."""
    path, rng = tmp_path_factory.mktemp("texts") / "labels.tsv", np.random.default_rng(0)
    lines = []
    for i in range(200):
        words = rng.choice(["a", "b", "c", "d"], rng.integers(3, 12)).tolist()
        words.insert(int(rng.integers(0, len(words))), ("good", "bad")[i % 2])
        lines.append(f"{('good', 'bad')[i % 2]}\t{' '.join(words)}\n")
    path.write_text("".join(lines))
    data, model = (
        LabeledFile(tsv_file=str(path), max_buckets=2),
        TextClassifierConfig(0, hidden_size=16, num_heads=2, dropout=0.0),
    )
    return tasks.build(Config("test", data, model, train=Train(batch_size=32)))


@pytest.fixture(scope="module")
def params(task):
    arrays = task.buckets[1]
    batch = {name: jnp.asarray(column[:64]) for name, column in arrays.items()} | {
        "weight": jnp.ones(min(64, len(arrays["label"])))
    }
    mean_loss = lambda params: task.loss(params, batch, jax.random.key(1))[0] / batch["weight"].sum()

    def step(params, _):
        return jax.tree.map(lambda p, g: p - 1.0 * g, params, jax.grad(mean_loss)(params)), None

    return jax.jit(lambda p: jax.lax.scan(step, p, None, length=200)[0])(jax.jit(task.init)(jax.random.key(0)))


def test_model_learns_and_attends_to_deciding_word(task, params):
    metrics = task.evaluate(params, True).metrics
    assert metrics["test.accuracy"] == metrics["valid.accuracy"] == metrics["test.balanced_accuracy"] == 1.0
    assert set(task.evaluate(params, False).metrics) == {"valid.loss", "valid.accuracy", "valid.balanced_accuracy"}
    [good, bad] = task.predict(params, ["a c good b d", "Bad b c"], None)
    assert re.match(r"good (0\.9|1\.0)\d+, bad 0\.\d+ \(attends to: good (0\.9|1\.0)", good)
    assert re.match(r"bad (0\.9|1\.0)\d+, good 0\.\d+ \(attends to: ", bad)  # one class's word is enough


def test_text_of_unknown_words_is_classified(task, params):
    [unknown, spaces] = task.predict(params, ["xyzzy", "\u00a0"], None)
    assert "(attends to: xyzzy 1.00)" in unknown and "(attends to: nothing)" in spaces


def test_rows_of_weight_zero_do_not_count(task):
    params = jax.jit(task.init)(jax.random.key(1))
    arrays = {name: jnp.asarray(column[:4]) for name, column in task.buckets[0].items()}
    loss = jax.jit(lambda batch: task.loss(params, batch, jax.random.key(0)))
    half = loss(arrays | {"weight": jnp.array([1.0, 1.0, 0.0, 0.0])})
    alone = loss({name: column[:2] for name, column in arrays.items()} | {"weight": jnp.ones(2)})
    np.testing.assert_allclose(half[0], alone[0], rtol=1e-5)
    assert half[0] > 0.01 and half[1] == alone[1] == 2 and half[2]["accuracy"][1] == 2


def test_every_text_trains_once_an_epoch(task):
    counts = [0 for _ in task.buckets]
    for bucket, _, weight in task.plan(0, 4):
        counts[bucket] += int(weight.sum())
    assert counts == [len(arrays["label"]) for arrays in task.buckets] and sum(counts) == task.data.facts["train_texts"]


def test_the_page_has_the_weights_of_the_words(task, params):
    record, nothing = task.attention_maps(params, ["a c good b d", "\u00a0"])
    [pool] = record.predictions[0].attentions  # without layers there is nothing else
    words, probabilities, weights = task.read(params, ["a c good b d"])
    assert pool.keys.tokens == tuple(words[0]) and record.predictions[0].text == "good"
    np.testing.assert_allclose(pool.weights[0, 0, 0], weights[0, :5], atol=1e-6)
    assert record.predictions[0].score == pytest.approx(probabilities.max()) and nothing.title == "\u00a0"
    assert len(task.attention_maps(params, [])) == 2  # a held-out text of each class


@pytest.mark.slow
def test_the_page_has_what_words_tell_each_other(task):
    deep = tasks.build(replace(task.config, **{"model.num_layers": 2}))
    params = jax.jit(deep.init)(jax.random.key(0))
    [record] = deep.attention_maps(params, ["a c good b d"])
    pool, encoder = record.predictions[0].attentions
    tokens, length = encode([["a", "c", "good", "b", "d"]], deep.data.vocabulary, 99)
    _, weights = deep.apply(params, {"tokens": tokens, "length": length})
    np.testing.assert_allclose(encoder.weights, weights["encoder_attention"][0], atol=1e-6)
    assert encoder.head_ablation.shape == (2, 2) and encoder.rollout.shape == (5, 5) and pool.kind == "pool"


@pytest.mark.slow
def test_report_draws_the_words_and_the_classes(task, params, tmp_path):
    (tmp_path / "figures").mkdir()
    paths = task.report(params, task.evaluate(params, True), tmp_path / "figures")
    assert [path.name for path in paths] == ["confusion.png", "classes.png", "reliability.png", "attention.png"]
    assert all(path.stat().st_size > 3_000 for path in paths)
    assert "(attends to: " in (tmp_path / "samples.txt").read_text()
    assert (tmp_path / "mistakes.csv").read_text() == "label,predicted,probability,text\n"  # its accuracy is 1


def test_mistakes_are_texts_of_another_class(tmp_path):
    probabilities = np.array([[0.9, 0.1], [0.75, 0.25], [0.5, 0.5], [0.4, 0.6]])
    texts = ["right", 'a "b"\nc', "a tie is the first", "wrong"]
    write_mistakes(["no", "yes"], texts, np.array([0, 1, 0, 0]), probabilities, tmp_path / "mistakes.csv")
    rows = csv.DictReader((tmp_path / "mistakes.csv").read_text().splitlines(keepends=True))
    assert [[*row.values()] for row in rows] == [["yes", "no", "0.75", 'a "b"\nc'], ["no", "yes", "0.6", "wrong"]]


def test_new_labeled_data_are_scored_by_class(task, params, tmp_path, capsys):
    """On texts that its words decide the model is right on all but the one whose label is wrong (0.5 CPU-seconds)."""
    run = LoadedRun(tmp_path, task.config, None)
    vars(run)["_answering"] = task, params
    rows = [("good", "a good b c"), ("bad", "c bad"), ("bad", "d a bad b"), ("bad", "good a, b")]
    (tmp_path / "new.csv").write_text("label,text\n" + "".join(f'{label},"{text}"\n' for label, text in rows))
    (tmp_path / "new.tsv").write_text("".join(f"{label}\t{text}\n" for label, text in rows))
    report = run.evaluate_classes(tmp_path / "new.csv")
    assert report == run.evaluate_classes(tmp_path / "new.tsv") and run.classes == ("bad", "good")
    assert report["confusion"] == [[2, 1], [0, 1]] and report["accuracy"] == 0.75
    assert [(row["name"], row["recall"], row["precision"]) for row in report["classes"]] == [
        ("bad", 0.6667, 1.0),
        ("good", 1.0, 0.5),
    ]
    np.testing.assert_array_equal(run.classify([text for _, text in rows]).argmax(1), [1, 0, 0, 1])
    with (tmp_path / "new.tsv").open("a") as file:
        file.write("ugly\tb c\n")
    assert run.evaluate_classes(tmp_path / "new.tsv", tmp_path / "rows.csv") == report
    assert "1 of 5 examples left out" in capsys.readouterr().err
    written = list(csv.DictReader((tmp_path / "rows.csv").read_text().splitlines()))
    assert [row["row"] for row in written] == ["1", "2", "3", "4", "5"]
    assert [(row["label"], row["text"]) for row in written] == [*rows, ("ugly", "b c")]
    assert [row["predicted"] for row in written][:4] == ["good", "bad", "bad", "good"]
    with pytest.raises(InputError, match="--force"):
        run.evaluate_classes(tmp_path / "new.tsv", tmp_path / "rows.csv")
    (tmp_path / "new.tsv").write_text("ugly\ta b\n")
    with pytest.raises(InputError, match="the class 'ugly', which the model does not have; its classes are bad"):
        run.evaluate_classes(tmp_path / "new.tsv")


def test_full_evaluation_reports_classes_of_the_test_split(task, params):
    evaluation = task.evaluate(params, True)
    report, test = evaluation.classification["test"], task.data.held_out["test"]
    assert report["accuracy"] == evaluation.metrics["test.accuracy"] and report["examples"] == len(test.label)
    assert report["loss"] == pytest.approx(evaluation.metrics["test.loss"], abs=1e-4)
    assert not task.evaluate(params, False).classification
