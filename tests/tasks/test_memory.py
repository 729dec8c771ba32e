"""The task of the Neural Turing Machines: its loss is bits, padding costs nothing, epochs go through the data,
predictions are bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import config as settings, tasks
from attention_jax.errors import InputError
from attention_jax.tasks import memory


def make_config(task="copy", **changes):
    model, train = (
        settings.NTMConfig(hidden_size=6, num_locations=8, word_size=4),
        settings.Train(batch_size=2, total_epochs=1),
    )
    config = settings.Config("ntm", settings.Algorithmic(task, 12, 4, 6), model, settings.Optim("rmsprop"), train)
    return settings.replace(config, **changes)


@pytest.fixture(scope="module")
def task_and_params(with_attributes):
    task = tasks.build(make_config())
    return with_attributes(task, loss=jax.jit(task.loss)), jax.jit(task.init)(jax.random.key(0))


def rows(task, indices, weight):
    batch = {name: jnp.asarray(array[np.array(indices)]) for name, array in task.buckets[0].items()}
    return batch | {"weight": jnp.asarray(weight, jnp.float32)}


@pytest.mark.slow
def test_an_undecided_machine_pays_one_bit_a_bit(task_and_params):
    task, params = task_and_params
    undecided = params | {"output": jax.tree.map(jnp.zeros_like, params["output"])}
    batch = rows(task, [0, 1, 2], [1, 1, 0])
    total, count, metrics = task.loss(undecided, batch, None)
    bits = 8 * task.buckets[0]["mask"][:2].sum()
    assert count == 2
    np.testing.assert_allclose((total / np.log(2), metrics["bits_per_sequence"][0]), bits, rtol=1e-5)


@pytest.mark.slow
def test_cutting_the_padding_changes_nothing(task_and_params):
    task, params = task_and_params
    for row in range(12):
        short, long = rows(task, [row], [1]), rows(task, [row, int(task.buckets[0]["length"].argmax())], [1, 0])
        np.testing.assert_allclose(task.loss(params, short, None)[0], task.loss(params, long, None)[0], rtol=1e-5)


def test_epochs_go_through_the_training_set(task_and_params):
    task, _ = task_and_params
    epochs = [
        np.sort(np.concatenate([chunk.indices[chunk.weight > 0] for chunk in task.plan(epoch, 3)]))
        for epoch in range(4)
    ]
    np.testing.assert_array_equal(np.concatenate(epochs[:3]), np.arange(12))
    np.testing.assert_array_equal(epochs[3], epochs[0])


@pytest.mark.slow
def test_full_evaluation_goes_beyond_the_training_lengths(task_and_params, tmp_path):
    task, params = task_and_params
    values = (whole := task.evaluate(params, True)).metrics
    assert values["test.wrong_bits_to_50"] == sum(values[f"test.wrong_bits_length_{n}"] for n in (10, 20, 30, 50)) > 0
    np.testing.assert_allclose(values["valid.loss"], values["valid.bits_per_sequence"] * np.log(2), rtol=1e-5)
    bits, wrong = task.measure(params, task.data.test)
    np.testing.assert_allclose(values["test.bits_per_sequence"], bits.mean(), rtol=1e-6)
    np.testing.assert_allclose(values["test.wrong_bits"], wrong.mean(), rtol=1e-6)
    assert values["test.bits_per_sequence"] != values["valid.bits_per_sequence"]
    assert set(task.evaluate(params, False).metrics) == {"valid.loss", "valid.bits_per_sequence", "valid.wrong_bits"}
    figures = task.report(params, whole, tmp_path)
    assert len(figures) == 3 and all(figure.stat().st_size > 1000 for figure in figures)


def test_predict_writes_as_many_words_as_it_read(task_and_params):
    task, params = task_and_params
    assert len(task.predict(params, ["10110010 01101100"])[0].split()) == 2
    for wrong in ("", "hello", "1011"):
        with pytest.raises(InputError, match="words of 8 bits"):
            task.predict(params, [wrong])


MODELS = {
    "ntm": settings.NTMConfig("feedforward", hidden_size=4, num_locations=8, word_size=4),
    "lstm": settings.StackedLSTMConfig(1, 4),
}


@pytest.mark.parametrize("name", ["repeat_copy", "associative_recall", "ngrams", "priority_sort"])
@pytest.mark.parametrize("kind", sorted(MODELS))
def test_every_task_fits_every_model(name, kind):
    task = tasks.build(make_config(name, model=MODELS[kind]))
    batch = rows(task, [0, 1], [1, 1])
    total, count, _ = jax.eval_shape(task.loss, jax.eval_shape(task.init, jax.random.key(0)), batch, None)
    assert total.shape == count.shape == ()


def test_ngrams_are_measured_against_their_optimum():
    task = tasks.build(make_config("ngrams", model=MODELS["lstm"]))
    params = jax.jit(task.init)(jax.random.key(0))
    values, optimum = task.evaluate(params, True).metrics, task.describe()["optimum_bits"]
    assert values["valid.bits_over_optimum"] > 0 and 50 < optimum < 200
    np.testing.assert_allclose(
        values["valid.bits_per_sequence"] - optimum, values["valid.bits_over_optimum"], rtol=1e-4
    )
    fresh = values["test.bits_per_sequence"] - memory.optimum(task.data.test).mean()
    np.testing.assert_allclose(values["test.bits_over_optimum"], fresh, rtol=1e-4)
