"""The ViT and the ResNet that are compared: of one size, and each at the learning rate that validation chooses."""

import jax
import pytest

from attention_jax.catalog import load_experiment
from attention_jax.runs import lifecycle
from attention_jax.tasks import build_model
from experiments import vit_resnet_fashion_mnist as compared


def size(config) -> int:
    model = build_model(config, 10, 28)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.numpy.zeros((1, 28, 28, 1)))
    return sum(x.size for x in jax.tree.leaves(shapes))


def test_compared_models_differ_in_architecture_only():
    vit, resnet = compared.variants().values()
    assert size(vit) == pytest.approx(size(resnet), rel=0.1)
    assert (vit.data, vit.optim, vit.train) == (resnet.data, resnet.optim, resnet.train)


@pytest.mark.slow
def test_the_learning_rate_is_chosen_on_validation_images(tmp_path):
    metrics = lifecycle.start(compared.smoke(), tmp_path / "run", study=compared.study, quiet=True)["metrics"]
    accuracy = {rate: metrics[f"valid.accuracy_{rate}"] for rate in compared.RATES}
    assert metrics["valid.accuracy"] == accuracy[metrics["learning_rate"]] == max(accuracy.values())
    assert {claim.metric for claim in load_experiment("vit_resnet_fashion_mnist").claims} <= set(metrics)
