"""`--train.loss` by import path: every family that has a choice takes it, and the others refuse it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but
from tiny import MODELS, builder

from attention_jax.config import Train, replace
from attention_jax.errors import InputError
from attention_jax.tasks.objectives import class_loss, readout_loss

SAME = "attention_jax.ops.losses:masked_cross_entropy"


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("data"))


def losses_of(tasks):
    """The losses of the first batch of an epoch, with fresh parameters and in one program."""
    bucket, indices, weight = tasks[0].plan(0, 1)[0]
    batch = {name: array[indices[0]] for name, array in tasks[0].buckets[bucket].items()} | {"weight": weight[0]}

    @jax.jit
    def losses():
        params = tasks[0].init(jax.random.key(0))
        return [task.loss(params, batch, jax.random.key(1))[:2] for task in tasks]

    return losses()


CHOOSE = {type(MODELS[index]).__name__: MODELS[index] for index in (3, 10, 11, 12, 13, 16)}


@pytest.mark.parametrize("name", slow_but(["LanguageModelConfig", "ViTConfig"], CHOOSE))
def test_loss_by_import_path_is_trained(build, name):
    """Cross-entropy by its path is the default, and another loss is another."""
    smooth = {"train.label_smoothing": 0.1}
    changes = (smooth, smooth | {"train.loss": SAME}, {"train.loss": f"{__name__}:constant_loss"})
    default, same, (total, count) = losses_of([build(CHOOSE[name], **change) for change in changes])
    np.testing.assert_allclose(same, default, rtol=1e-5)
    assert total == 3 * count > 0 and default[0] > 0


def constant_loss(logits, targets, mask, label_smoothing):
    assert logits.shape[:-1] == targets.shape == mask.shape
    return 3.0 * jnp.sum(mask, dtype=jnp.float32), jnp.sum(mask, dtype=jnp.float32)


TRAINED = [model for model in MODELS if model.custom_loss]


@pytest.mark.parametrize("model", TRAINED, ids=lambda model: type(model).__name__)
def test_task_with_fixed_loss_rejects_custom_loss(build, model):
    with pytest.raises(InputError, match=f"--train.loss .*{type(model).__name__}.*{SAME}"):
        build(model, **{"train.loss": SAME})


def test_every_model_takes_a_loss_or_refuses_it():
    kinds = {model.task.rpartition(":")[0].rpartition(".")[2]: model.custom_loss for model in MODELS}
    assert {kind for kind, has_custom_loss in kinds.items() if has_custom_loss} == {
        "memory",
        "graph_attention",
        "pointer",
    }
    assert {model.task for model in CHOOSE.values()} == {model.task for model in MODELS if not model.custom_loss}


@pytest.mark.parametrize("wrong", ["mean", "absent"])
def test_what_is_no_loss_is_one_line(wrong):
    train = replace(Train(), loss=f"{__name__}:{wrong}")
    rows = jnp.zeros((2, 4)), jnp.array([0, 3]), jnp.ones(2)
    for call in (
        lambda: class_loss(train, *rows),
        lambda: readout_loss(train, rows[0], jnp.eye(4), jnp.ones(4), *rows[1:]),
    ):
        with pytest.raises(InputError, match=f"{__name__}:{wrong}") as error:
            call()
        assert "\n" not in str(error.value)


def mean(logits, targets, mask, label_smoothing):
    return jnp.mean(logits)
