"""What the tests of sweeps train: a model of a few hundred parameters on a few hundred dates."""

import pytest

from attention_jax.config import Config, replace

TINY = {"data.examples": 440, "data.validation": 36, "train.best_metric": "valid.loss"}
TINY |= {"model.hidden_size": 6, "model.embed_size": 4}
TINY |= {"train.total_epochs": 3, "train.batch_size": 64, "train.steps_per_call": 3}


@pytest.fixture(scope="session")
def tiny() -> Config:
    """6 steps an epoch, 2 compiled calls an epoch."""
    from experiments import date_luong

    return replace(date_luong.config(), **TINY, **{"optim.warmup_steps": 2})
