"""The task of classifying nodes: what the loss adds up, what is evaluated when, a whole small run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw

from attention_jax import tasks
from attention_jax.config import Config, Train, replace
from attention_jax.errors import InputError
from attention_jax.runs import lifecycle
from experiments import gat_cora
from experiments.papers.options import Citations, GraphAttentionConfig

CONFIG = Config(
    "x", Citations(num_nodes=70), GraphAttentionConfig(num_heads=2, hidden_size=4), train=Train(batch_size=1)
)


@pytest.fixture(scope="module")
def task_and_params():
    task = tasks.build(CONFIG)
    return task, draw(task.init)


def batch(task, weight=1.0):
    arrays = {name: jnp.asarray(array) for name, array in task.buckets[0].items()}
    return arrays | {"weight": jnp.asarray(weight, jnp.float32)[None]}


def nats(task, params, nodes):
    graph = task.data
    inputs = (jnp.asarray(x) for x in (graph.words, graph.values, graph.edges))
    logits = np.asarray(jax.jit(task.model.apply)({"params": params}, *inputs)[0], np.float64)
    right = logits[nodes, graph.label[nodes]]
    return np.log(np.exp(logits[nodes]).sum(1)) - right, logits[nodes].argmax(1) == graph.label[nodes]


@pytest.mark.slow
def test_loss_is_mean_plus_l2_penalty(task_and_params):
    """A row that is padding counts nothing."""
    _, params = task_and_params
    task = tasks.build(replace(CONFIG, **{"model.dropout": 0.0, "model.attention_dropout": 0.0, "model.l2": 0.1}))
    loss = jax.jit(lambda weight: task.loss(params, batch(task, weight), jax.random.key(0))[:2])
    total, count = loss(1.0)
    assert [float(x) for x in loss(0.0)] == [0.0, 0.0]
    train_nodes = task.data.splits["train"]
    squares = sum(float((np.asarray(x, np.float64) ** 2).sum()) for x in jax.tree.leaves(params))
    assert count == len(train_nodes) == 14
    np.testing.assert_allclose(total / count, nats(task, params, train_nodes)[0].mean() + 0.1 / 2 * squares, rtol=1e-5)


@pytest.mark.slow
def test_the_penalty_is_weight_decay_in_the_gradient(task_and_params):
    task, params = task_and_params
    free = tasks.build(replace(CONFIG, **{"model.l2": 0.0}))
    gradient = lambda task, p: jax.grad(lambda p: task.loss(p, batch(task), jax.random.key(0))[0] / 14)(p)
    with_it, without = jax.jit(lambda p: (gradient(task, p), gradient(free, p)))(params)
    expected = jax.tree.map(lambda g, p: g + 5e-4 * p, without, params)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-7), with_it, expected)


@pytest.mark.slow
def test_test_nodes_are_evaluated_at_the_end_alone(task_and_params):
    task, params = task_and_params
    assert set(task.evaluate(params, False).metrics) == {"valid.loss", "valid.accuracy"}
    metrics = task.evaluate(params, True).metrics
    for split in ("valid", "test"):
        loss, right = nats(task, params, task.data.splits[split])
        assert metrics[f"{split}.loss"] == pytest.approx(loss.mean(), rel=1e-5)
        assert metrics[f"{split}.accuracy"] == pytest.approx(right.mean(), rel=1e-6)


def test_an_epoch_is_one_step(task_and_params):
    task, _ = task_and_params
    [(bucket, indices, weight)] = task.plan(3, 8)
    assert bucket == 0 and indices.tolist() == [[0]] and weight.tolist() == [[1.0]]


def test_nodes_are_asked_for_by_their_numbers(task_and_params):
    task, params = task_and_params
    first, second = task.predict(params, ["0", "69"], None)
    assert first.startswith("class ") and second.startswith("class ")
    for wrong in ("70", "-1", "paper"):
        with pytest.raises(InputError, match="0 to 69"):
            task.predict(params, [wrong], None)


def test_what_a_node_attends_to_is_its_neighbors(task_and_params):
    task, params = task_and_params
    [record] = task.attention_maps(params, ["5"])
    [attention] = record.predictions[0].attentions
    neighbors = task.data.edges[task.data.edges[:, 0] == 5, 1]
    assert [int(token.partition(":")[0]) for token in attention.keys.tokens] == neighbors.tolist()
    assert attention.weights.shape == (1, 2, 1, len(neighbors))
    np.testing.assert_allclose(attention.weights.sum(-1), 1.0, rtol=1e-5)
    assert len(task.attention_maps(params, [])) == 3


@pytest.mark.slow
def test_a_whole_small_run(tmp_path):
    result = lifecycle.start(gat_cora.smoke(), tmp_path / "run", quiet=True)
    assert len(result["history"]) == 3 and result["steps"] == 3
    assert not any(name.startswith("test.") for row in result["history"] for name in row)
    assert {"test.accuracy", "test.loss"} <= set(result["metrics"])
    assert (tmp_path / "run" / "figures" / "confusion.png").stat().st_size > 3_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name == gat_cora.ALONE else pytest.param(name, marks=pytest.mark.slow) for name in gat_cora.variants()],
)
def test_every_variant_of_the_experiment_has_a_loss(name):
    config = replace(gat_cora.variants()[name], **{"data.num_nodes": 70})
    task = tasks.build(config)
    loss = lambda rng: task.loss(task.init(rng), batch(task), rng)[0]
    assert np.isfinite(jax.jit(loss)(jax.random.key(0)))
    alone = len(task.data.edges) == 70
    assert alone == (name == gat_cora.ALONE)
