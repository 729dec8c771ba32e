"""Nothing is chosen on a test split: no epoch, no sweep, and no experiment asks for it."""

import pytest

from attention_jax import catalog
from attention_jax.config import Config, Dates, LuongSeq2seqConfig, Train, replace
from attention_jax.errors import InputError
from attention_jax.runs import api, lifecycle
from attention_jax.sweep import driver

TINY = Config("tiny", Dates(examples=100), LuongSeq2seqConfig(hidden_size=4, embed_size=4), train=Train(total_epochs=1))
ON_TEST = replace(TINY, **{"train.best_metric": "test.loss"})


@pytest.mark.parametrize("name", catalog.experiment_names())
def test_best_checkpoint_is_never_chosen_on_test_split(name):
    experiment = catalog.load_experiment(name)
    configs = {"config": experiment.config(), "smoke": experiment.smoke()}
    for config_name, config in (configs | experiment.variants() | experiment.presets()).items():
        assert not any(name.startswith("test") for name in config.train.best_metric.split(",")), config_name


@pytest.mark.parametrize("options", [{}, {"train.use_best": True}, {"train.patience": 1}])
@pytest.mark.parametrize("start", [lifecycle.start, api.train_run], ids=["runs.start", "train_run"])
def test_epoch_is_not_chosen_on_test_split(tmp_path, options, start):
    """Without the options, too: an interrupted run is loaded with the weights of its best checkpoint."""
    with pytest.raises(InputError, match="--train.best-metric.* valid.loss .*; got test.loss"):
        start(replace(ON_TEST, **options), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_sweep_selects_on_validation():
    settings = lambda config, metric: driver.settings_of(config, {"optim.learning-rate": "1,2"}, "auto", 0, 1, metric)
    for config, metric in [
        (TINY, "test.exact_match"),
        (TINY, "test_2017.bleu"),
        (TINY, "gates.change"),  # of a study: the metrics of its test sentences have other names
        (ON_TEST, ""),
        (replace(TINY, **{"train.best_metric": "train.loss"}), ""),
    ]:
        with pytest.raises(InputError, match="--metric valid.loss"):
            settings(config, metric)
    with pytest.raises(InputError, match="--train.best-metric"):
        settings(ON_TEST, "valid.loss")
    assert settings(TINY, "valid.loss").metric == settings(TINY, "").metric == "valid.loss"
    assert settings(TINY, "train.loss").metric == "train.loss"
