"""The task of Pointer Networks: what a loss counts, what is right, what is drawn, read and refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw

from attention_jax import tasks
from attention_jax.config import Config, Train
from attention_jax.errors import InputError
from experiments.papers.options import ConvexHulls, PointerNetworkConfig
from experiments.papers.pointer import polygon, shift_right

SQUARE = "0.1,0.1 0.9,0.9 0.9,0.1 0.1,0.9 0.5,0.4"


@pytest.fixture(scope="module")
def task_and_params():
    config = Config("x", ConvexHulls(3, 5, examples=12, held_out=6), PointerNetworkConfig(8), train=Train(batch_size=4))
    task = tasks.build(config)
    return task, draw(task.init)


def rows(task, weight):
    return {name: jnp.asarray(array[: len(weight)]) for name, array in task.buckets[0].items()} | {
        "weight": jnp.asarray(weight, jnp.float32)
    }


def test_loss_counts_places_and_leaves_padding_out(task_and_params):
    task, params = task_and_params
    loss = jax.jit(lambda batch: task.loss(params, batch, None)[:2])
    total, count = loss(rows(task, [1, 1, 0, 0]))
    less, fewer = loss(rows(task, [1, 1]))
    assert float(count) == float(fewer) == task.data.train.target_length[:2].sum()
    np.testing.assert_allclose(total, less, rtol=1e-5)
    weights = np.asarray(jax.jit(task.attention)(params, rows(task, [1, 1])))
    sets = task.data.train
    each = [weights[n, t, sets.target[n, t]] for n in range(2) for t in range(sets.target_length[n])]
    np.testing.assert_allclose(total, -np.log(each).sum(), rtol=1e-5)


def test_steps_come_after_the_place_before():
    assert shift_right(jnp.array([[3, 1, 0]])).tolist() == [[0, 3, 1]]


@pytest.mark.slow
def test_accuracy_is_of_whole_hulls(task_and_params):
    task, params = task_and_params
    written = task.decode_hulls(params, task.data.valid)
    assert task.accuracy(params, written) == 1.0
    wrong = written.target.copy()
    wrong[:3] = [1, 2, 3, 1, 0, 0, 0]  # half of them
    assert task.accuracy(params, written._replace(target=wrong)) == 0.5
    metrics = task.evaluate(params, True).metrics
    assert set(metrics) == {"valid.loss", "valid.accuracy", "test.accuracy_3", "test.accuracy_5"}
    assert set(task.evaluate(params, False).metrics) == {"valid.loss", "valid.accuracy"}


@pytest.mark.parametrize(
    "written, right",
    [
        ([2, 4, 1, 2, 0, 0], True),  # from another corner
        ([4, 1, 2, 4, 0, 0], True),
        ([1, 2, 4, 0, 0, 0], True),  # not closed
        ([1, 2, 4, 1, 3, 3], False),  # not ended
        ([1, 2, 4, 1, 0, 3], True),  # goes on after its end
        ([1, 4, 2, 1, 0, 0], False),  # the other way around
        ([1, 2, 3, 1, 0, 0], False),
        ([0, 0, 0, 0, 0, 0], False),
    ],
)
def test_polygon_equality_ignores_starting_corner(written, right):
    assert (polygon(np.array(written)) == polygon(np.array([1, 2, 4, 1, 0, 0]))) == right


@pytest.mark.slow
def test_texts_are_points(task_and_params, tmp_path):
    task, params = task_and_params
    [answer] = task.predict(params, [SQUARE], tmp_path / "pointers.png")
    assert {int(place) for place in answer.split()} <= set(range(1, 6))
    assert (tmp_path / "pointers.png").stat().st_size > 3_000
    sets = task.sets_of([SQUARE])
    np.testing.assert_allclose(sets.inputs[0, 2], [0.9, 0.9, 0.0])
    assert sets.length.tolist() == [6]
    for wrong in ("0.1,0.2 0.3,0.4", "0.1 0.2 0.3", "a,b c,d e,f", SQUARE + " 1,1"):
        with pytest.raises(InputError, match="expected 3 to 5 points"):
            task.predict(params, [wrong], None)


@pytest.mark.slow
def test_where_it_looks_is_what_it_computes(task_and_params):
    task, params = task_and_params
    [record] = task.attention_maps(params, [SQUARE])
    [attention] = record.predictions[0].attentions
    written = task.decode_hulls(params, task.sets_of([SQUARE]))
    weights = np.asarray(jax.jit(task.attention)(params, written._asdict()))[0, : written.target_length[0], :6]
    np.testing.assert_allclose(attention.weights[0, 0], weights, atol=1e-6)
    assert attention.keys.tokens[2] == "2: 0.90,0.90" and len(task.attention_maps(params, [])) == 2
