"""What an installation without a checkout and without extras can do, and what it says about the rest."""

from pathlib import Path

import jax
import jax.numpy as jnp

import attention_jax
from attention_jax import Gaussian, InputError, attend, causal, load_experiment, nadaraya_watson, train_run
from attention_jax.config import Config, Dates, LuongSeq2seq

assert not (Path(attention_jax.__file__).parents[1] / "experiments").exists(), "this is a checkout"

query, key, value = (jax.random.normal(jax.random.PRNGKey(i), (6, 4)) for i in range(3))
plain = attend(query, key, value, score=Gaussian(), mask=causal(), implementation="plain")
fused = attend(query, key, value, score=Gaussian(), mask=causal(), implementation="fused")
assert plain.shape == (6, 4) and jnp.abs(plain - fused).max() < 1e-5
assert jnp.abs(plain[0] - value[0]).max() < 1e-6, "the first query may look at the first key only"
assert (
    jnp.abs(nadaraya_watson(query, key, value, Gaussian()) - attend(query, key, value, score=Gaussian())).max() < 1e-5
)


def refused(call, *words):
    """The one line with which `call` is refused."""
    try:
        call(*words)
    except InputError as error:
        assert "\n" not in str(error), error
        return str(error)
    raise AssertionError(f"{call} was not refused")


assert "need a checkout" in refused(load_experiment, "date_luong")
assert "pip install " in refused(train_run, Config("x", Dates(), LuongSeq2seq()), "run")
print(f"the front door of {attention_jax.__file__} opens")
