"""Every family names the metrics that it will give, so that an option can be refused before training."""

import gc
import weakref

import jax
import pytest
from tiny import MODELS, builder

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.runs import lifecycle
from attention_jax.sweep import driver
from attention_jax.train import loop

FAMILIES = {model.task: model for model in MODELS}
NOT_ALWAYS = {f"{split}.bleu_kept_beyond_30" for split in ("valid", "test")}


QUICK = ("language", "nodes")
"""Families whose evaluation compiles little; the others' metrics are compared in the slow tests."""
MARKED = [
    pytest.param(model, id=name, marks=() if name.partition(":")[0] in QUICK else pytest.mark.slow)
    for model in FAMILIES.values()
    for name in [model.task.rpartition(".")[2]]
]


@pytest.mark.parametrize("model", MARKED)
def test_named_metrics_are_those_of_an_evaluation(model, tmp_path):
    task = builder(tmp_path)(model)
    params = jax.jit(task.init)(jax.random.PRNGKey(0))
    for full in (False, True):
        assert set(task.metric_names(full)) - NOT_ALWAYS == task.evaluate(params, full).metrics.keys() - NOT_ALWAYS
    evaluated = weakref.ref(task)
    del task
    gc.collect()
    assert evaluated() is None, "an evaluation keeps its task and the data alive"


def test_final_evaluation_has_additional_metrics(tmp_path):
    task = builder(tmp_path)(configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8))
    loop.check_metric(task, "--metric", "valid.bleu", full=True)
    loop.check_metric(task, "--train.best-metric", "train.loss")
    with pytest.raises(InputError, match="--train.best-metric .*valid.loss.*; got valid.bleu"):
        loop.check_metric(task, "--train.best-metric", "valid.bleu")


def test_an_absent_best_metric_is_refused_before_training(tmp_path):
    train = configs.Train(total_epochs=1, best_metric="valid.blue")
    config = configs.Config(
        "x", configs.Dates(examples=100), configs.LuongSeq2seqConfig(), train=train, decode=configs.Decode()
    )
    with pytest.raises(InputError, match="--train.best-metric .*got valid.blue"):
        lifecycle.start(config, tmp_path / "runs" / "x")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_absent_metric_of_a_sweep_is_refused(tmp_path, seeds):
    model = configs.LuongSeq2seqConfig(hidden_size=4, embed_size=4)
    train = configs.Train(total_epochs=1, best_metric="train.loss")
    config = configs.Config("date_luong", configs.Dates(examples=100), model, train=train, decode=configs.Decode())
    settings = driver.settings_of(config, {"optim.learning-rate": "0.1,0.2"}, "auto", 0, seeds, "valid.blue")
    with pytest.raises(InputError, match="--metric .*train.loss; got valid.blue"):
        driver.sweep(settings, tmp_path / "sweeps" / "x")
    assert not (tmp_path / "sweeps" / "x").exists()
