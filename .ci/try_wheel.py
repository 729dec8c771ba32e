"""What an installation without a checkout and without extras can do, and what it says about the rest."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp

import attention_jax
from attention_jax import attend, causal, load_experiment, nadaraya_watson, scores, train_run
from attention_jax.config import import_object
from attention_jax.errors import InputError

assert not (Path(attention_jax.__file__).parents[1] / "experiments").exists(), "this is a checkout"

query, key, value = (jax.random.normal(jax.random.PRNGKey(i), (6, 4)) for i in range(3))
plain = attend(query, key, value, score=scores.Gaussian(), mask=causal(), implementation="plain")
fused = attend(query, key, value, score=scores.Gaussian(), mask=causal(), implementation="fused")
assert plain.shape == (6, 4) and jnp.abs(plain - fused).max() < 1e-5
assert jnp.abs(plain[0] - value[0]).max() < 1e-6, "the first query may look at the first key only"
assert (
    jnp.abs(
        nadaraya_watson(query, key, value, scores.Gaussian()) - attend(query, key, value, score=scores.Gaussian())
    ).max()
    < 1e-5
)


def input_error(call, *words):
    """The one line with which `call` is refused."""
    try:
        call(*words)
    except InputError as error:
        assert "\n" not in str(error), error
        return str(error)
    raise AssertionError(f"{call} was not refused")


experiment = load_experiment("date_luong")
assert experiment.file.parent == Path(attention_jax.__file__).parent / "experiments", experiment.file
for name in ("cct_cifar10", "gat_cora", "multi30k_deen_conv", "multi30k_ende_gru", "pointer_networks"):
    module = import_object(load_experiment(name).config().model.module)
    assert module.__module__.startswith("experiments.papers."), module
message = input_error(train_run, experiment.smoke(), "run")
assert all(package in message for package in ("tensorboardX", "tensorflow-datasets", "sacrebleu")), message
assert not Path("run").exists(), "a run was begun that cannot end"
expected_predictions = json.loads(Path("date_luong.json").read_text(encoding="utf-8"))["predictions"]
for words, expected in (
    (["list"], "date_luong"),
    (
        ["predict", "date_luong", *expected_predictions],
        "".join(f"{text} -> {output}\n" for text, output in expected_predictions.items()),
    ),
    (["look", "date_luong", *expected_predictions, "--out", "look.html"], "look.html"),
    (["export", "date_luong", "--out", "exported"], "exported"),
):
    command = subprocess.run([Path(sys.executable).with_name("attention-jax"), *words], capture_output=True, text=True)
    assert command.returncode == 0 and expected in command.stdout, command
print(f"the installed package {attention_jax.__file__} works")
