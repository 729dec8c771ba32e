"""What a card computes: `python -m pytest -m gpu` where jax[cuda12] is installed. Elsewhere everything here is skipped.

Routes of `attend` are held against float64 on the CPU beside the card, training steps and runs against that CPU.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny import MODELS, builder, every_score

from attention_jax import config as configs, tasks
from attention_jax.claims.catalog import load_experiment
from attention_jax.ops import scores
from attention_jax.ops.attention import attend
from attention_jax.ops.masks import causal, lengths, window
from attention_jax.sweep import population
from attention_jax.train.loop import train_one
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state

CARD = "gpu"
ROOT = Path(__file__).resolve().parents[1]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != CARD, reason="needs a GPU: python -m pytest -m gpu, with jax[cuda12]"),
]


def on_the_cpu():
    return jax.default_device(jax.devices("cpu")[0])


# --- attend -----------------------------------------------------------------------------------------------------------

BATCH, HEADS, TOKENS, WIDTH = 2, 2, 64, 32
SCORES = every_score(WIDTH) | {"Boxcar": scores.Boxcar(8.0), "Triangular": scores.Triangular(8.0)}
"""The arrays are about 4 apart: nobody is at the edge of a kernel, where rounding decides."""
LENGTHS = np.array([64, 41], np.int32)
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: causal() & lengths(n),
    "causal & window": lambda n: causal() & window(5),
}
TOLERANCE = {"float32": 2e-5, "bfloat16": 4e-2}
"""Relative to the largest value: float32 with products in float32, bfloat16 with 8 bits of mantissa."""


def by_attend(score, mask, implementation):
    """One head, (length, query, key, value [T, D]) -> [T, D]."""
    return lambda n, q, k, v: attend(q, k, v, score=score, mask=mask(n), implementation=implementation)


def as_one_writes_it(score, mask):
    """The same by its definition."""

    def one(n, query, key, value):
        positions, scores, masked = jnp.arange(TOKENS), score(query, key), mask(n)
        allowed = True if masked is None else masked(positions, positions)
        return jax.nn.softmax(jnp.where(allowed, scores, -jnp.inf)) @ value

    return one


def output_and_gradients(one):
    """(query, key, value, bar [B, T, H, D]) -> what `one` head gives over batch and heads, and three gradients."""

    def run(query, key, value, bar):
        over_heads = jax.vmap(one, in_axes=(None, 1, 1, 1), out_axes=1)
        out, pull = jax.vjp(lambda *arrays: jax.vmap(over_heads)(LENGTHS, *arrays), query, key, value)
        return out, *pull(bar)

    return jax.jit(run)


def arrays(dtype):
    """Four arrays [B, T, H, D] that every dtype holds alike."""
    drawn = 0.5 * np.random.default_rng(0).standard_normal((4, BATCH, TOKENS, HEADS, WIDTH)).astype(np.float32)
    return [np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32)).astype(dtype) for x in drawn]


def assert_as_in_float64(score, mask, implementation, dtype):
    score = jax.tree.map(lambda leaf: leaf if isinstance(leaf, float) else leaf.astype(dtype), score)
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), on_the_cpu():
        doubled = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), score)
        exact = output_and_gradients(as_one_writes_it(doubled, mask))(*arrays(np.float64))
        exact = jax.tree.map(np.asarray, exact)
    assert exact[0].dtype == np.float64
    with jax.default_matmul_precision("highest"):
        ours = output_and_gradients(by_attend(score, mask, implementation))(*arrays(jnp.dtype(dtype)))
    for x, y in zip(ours, exact, strict=True):
        assert x.devices() == {jax.devices()[0]}
        np.testing.assert_allclose(np.asarray(x, np.float64), y, rtol=0, atol=TOLERANCE[dtype] * abs(y).max())


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("implementation", [None, "plain", "fused", "cudnn"])
def test_every_route_under_every_mask(implementation, mask, dtype):
    if implementation == "cudnn" and dtype == "float32":
        pytest.skip("cuDNN's kernel is for half precision")
    assert_as_in_float64(SCORES["ScaledDot"], MASKS[mask], implementation, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("implementation", ["plain", "fused"])
@pytest.mark.parametrize("name", SCORES)
def test_every_score(name, implementation, dtype):
    assert_as_in_float64(SCORES[name], lengths, implementation, dtype)


# --- training ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("data"))


def losses_of_three_steps(task):
    """By the training loop's own compiled call, wherever arrays go by default."""
    update = optimizer(task.config.optim, 3)
    bucket, indices, weight = task.plan(0, 1)[0]
    program = Program(task.loss, update, matmul_precision="highest")
    state, data = program.put_state(init_state(task.init, update, 0)), program.put_data(task.buckets[bucket])
    repeat = lambda rows: np.repeat(rows[None, :1], 3, axis=1)
    _, metrics = program.train_steps(state, data, repeat(indices), repeat(weight))
    [total], [count] = metrics["loss"]
    return total / count


@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_three_training_steps_of_every_family_are_those_of_a_cpu(build, model):
    ours = losses_of_three_steps(build(model))
    with on_the_cpu():
        theirs = losses_of_three_steps(build(model))
    np.testing.assert_allclose(ours, theirs, rtol=2e-3)
    assert len(set(ours)) == 3, "nothing was learned"


def small(seed: int):
    """`date_luong` on 600 dates, 8 wide, two epochs."""
    changes = {"data.examples": 600, "model.hidden_size": 8, "model.embed_size": 4, "train.total_epochs": 2}
    return configs.replace(load_experiment("date_luong").config(), **changes, **{"train.seed": seed})


def losses_by_epoch(directory: Path) -> list[float]:
    return [row["train.loss"] for row in json.loads((directory / "result.json").read_text())["history"]]


def test_a_population_is_its_runs_alone(tmp_path):
    setups = [small(seed) for seed in (0, 1)]
    members = [population.Member(config, tmp_path / str(config.train.seed)) for config in setups]
    population.train_many(members, [tasks.build(config) for config in setups], tmp_path / "group", until=2)
    for config, member in zip(setups, members, strict=True):
        run, _ = train_one(tasks.build(config), config.optim, config.train, tmp_path / "alone" / str(config.train.seed))
        alone = [row["train.loss"] for row in run.history]
        np.testing.assert_allclose(losses_by_epoch(member.directory), alone, rtol=1e-3)


def test_what_a_card_began_a_cpu_ends(tmp_path):
    """Interrupted in its second epoch on the card, a run goes on where there is none."""
    words = [
        "--data.examples",
        "600",
        "--model.hidden-size",
        "8",
        "--model.embed-size",
        "4",
        "--train.total-epochs",
        "9",
    ]
    command = [sys.executable, str(ROOT / "launch.py"), "train", "date_luong"]
    with subprocess.Popen([*command, *words, "--out", str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert any(line.startswith("epoch 1") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=300)
    assert process.returncode == 130
    elsewhere = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([*command, "--resume", "--out", str(tmp_path)], check=True, timeout=300, env=elsewhere)
    losses = losses_by_epoch(tmp_path)
    assert len(losses) == 9 and losses[-1] < losses[0]
