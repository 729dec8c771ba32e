"""What a card computes: `python -m pytest -m gpu`, where jax[cuda12] or jax[cuda13] is installed (cards.py).

The most important tests come first, so that a time limit cuts the least important ones. Attention is held against
float64 by the rule of rounding.py, training steps and runs against the CPU beside the card. The bodies know no card:
a case of each runs on a CPU, too, where the tests of each package run what the others do.
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
from rounding import assert_error_of_rounding, evaluate_definitions, in_type, reference_attention, with_gradients
from tiny import MODELS, builder, every_score

from attention_jax import config as configs, tasks
from attention_jax.catalog import load_experiment
from attention_jax.ops import normalizers, scores
from attention_jax.ops.attention import attend
from attention_jax.ops.masks import causal, lengths, window
from attention_jax.sweep import batch
from attention_jax.train.loop import train_one
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state
from benchmarks import _attention_check

ROOT = Path(__file__).resolve().parents[1]


def everywhere(names: str, cases, by_default=()):
    """Parametrize by the device and by cases, tuples: all of them on a GPU, in their order; on a CPU those that run
    `by_default`, or else the first as a slow test."""
    ids = lambda case: "-".join(getattr(type(x), "__name__", "") if hasattr(x, "task") else str(x) for x in case)
    on = lambda platform, case, *marks: pytest.param(platform, *case, marks=marks, id=f"{platform}-{ids(case)}")
    params = [on("gpu", case, pytest.mark.gpu) for case in cases]
    params += [on("cpu", case) for case in by_default] or [on("cpu", cases[0], pytest.mark.slow)]
    return pytest.mark.parametrize(["device", *names.split()], params, indirect=["device"])


@pytest.fixture
def device(request):
    """The first device of a platform, to which arrays go; a test of a GPU is skipped where jax has none (cards.py)."""
    try:
        first = jax.devices(request.param)[0]
    except RuntimeError:
        pytest.skip("needs a GPU, and jax[cuda12] or jax[cuda13]")
    with jax.default_device(first):
        yield first


# --- generated kernels, which no card has run yet ---------------------------------------------------------------------

KERNEL_CASES = [(name, tokens) for tokens in (17, 1023) for name in _attention_check.KERNELS]


@everywhere("name tokens", KERNEL_CASES)
def test_kernel_is_plain_with_gradients(device, name, tokens):
    assert _attention_check.kernel_error(name, tokens) < 1e-4


# --- attend -----------------------------------------------------------------------------------------------------------

BATCH, HEADS, TOKENS, WIDTH = 2, 2, 64, 32
SCORES = every_score(WIDTH) | {"Boxcar": scores.Boxcar(8.0), "Triangular": scores.Triangular(8.0)}
"""The arrays are about 4 apart: nobody is at the edge of a kernel, where rounding decides."""
MASKS = {
    "none": lambda n: None,
    "causal": lambda n: causal(),
    "lengths": lengths,
    "causal & lengths": lambda n: causal() & lengths(n),
    "causal & window": lambda n: causal() & window(5),
}
ROUTES = [
    (None, "bfloat16", TOKENS),  # what a user gets: cuDNN on a GPU
    (None, "bfloat16", TOKENS - 1),  # as the 1,023 tokens of a language model
    ("fused", "bfloat16", TOKENS),
    ("cudnn", "float16", TOKENS),
    ("fused", "float32", TOKENS),
    ("plain", "bfloat16", TOKENS),
    (None, "float32", TOKENS),
]


def sample(tokens: int) -> list[np.ndarray]:
    """Query, key, value and a cotangent [B, T, H, D], that every type holds alike."""
    values = 0.5 * np.random.default_rng(0).standard_normal((4, BATCH, tokens, HEADS, WIDTH)).astype(np.float32)
    rounded = [np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32)) for x in values]
    return [x.astype(jnp.float16).astype(np.float32) for x in rounded]


def over_batch_and_heads(attention, tokens: int):
    """`attention(length, query, key, value)` of one head as a function of arrays [B, T, H, D]."""
    ns = np.array([tokens, 41], np.int32)
    return lambda *arrays: jax.vmap(jax.vmap(attention, in_axes=(None, 1, 1, 1), out_axes=1))(ns, *arrays)


def assert_attention_is_exact(device, rules: list[dict], implementations, dtype, tokens=TOKENS):
    """The output and the gradients of `attend` with each of the rules: {"score", "mask", "normalizer"}, by each
    implementation, in one program."""

    def by_definition(score, mask, normalizer=None):
        score = in_type(score, dtype)  # what rounding does to parameters is no error of the implementation
        return over_batch_and_heads(
            lambda n, *arrays: reference_attention(score, mask(n), normalizer=normalizer)(*arrays), tokens
        )

    def by_attend(implementation, score, mask, normalizer=None):
        call = {"score": in_type(score, dtype), "implementation": implementation}
        call |= {"normalizer": normalizer or normalizers.Softmax()}
        call |= {"block_q": 32, "block_k": 16} if implementation == "fused" else {}
        return over_batch_and_heads(lambda n, *arrays: attend(*arrays, mask=mask(n), **call), tokens)

    arrays, definitions = sample(tokens), [by_definition(**rule) for rule in rules]
    exact, rounded = (evaluate_definitions(definitions, arrays, kind) for kind in ("float64", dtype))
    for implementation in implementations:
        run = jax.jit(with_gradients([by_attend(implementation, **rule) for rule in rules]))
        with jax.default_matmul_precision("highest"):
            results = run(*(jax.device_put(jnp.asarray(x, dtype), device) for x in arrays))
        assert all(x.devices() == {device} for x in results)
        assert_error_of_rounding(results, rounded, exact, dtype)


@pytest.mark.slow
@everywhere("implementation dtype tokens", ROUTES, by_default=[(None, "bfloat16", TOKENS - 1)])
def test_a_route_is_exact_under_every_mask(device, implementation, dtype, tokens):
    rules = [{"score": scores.ScaledDot(), "mask": mask} for mask in MASKS.values()]
    assert_attention_is_exact(device, rules, [implementation], dtype, tokens)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_error_bound_detects_wrong_key_or_sign(dtype):
    """Of 64 keys; and it takes attention that is right."""
    definition = [over_batch_and_heads(lambda n, *x: reference_attention(scores.ScaledDot(), lengths(n))(*x), TOKENS)]
    exact, rounded = (evaluate_definitions(definition, sample(TOKENS), kind) for kind in ("float64", dtype))
    arrays = [jnp.asarray(x, dtype) for x in sample(TOKENS)]
    one_head = lambda score, fewer: lambda n, *x: attend(*x, score=score, mask=lengths(n - fewer))
    wrong = {"a key": (scores.ScaledDot(), 1), "a cap": (scores.SoftCap(5.0), 0)}
    kernels = {"right": (scores.ScaledDot(), 0), **wrong}
    run = jax.jit(with_gradients([over_batch_and_heads(one_head(*kernel), TOKENS) for kernel in kernels.values()]))
    results = dict(zip(kernels, np.split(np.arange(4 * len(kernels)), len(kernels))))
    by_kernel = run(*arrays)
    results = {name: [by_kernel[i] for i in at] for name, at in results.items()}
    assert_error_of_rounding(results["right"], rounded, exact, dtype)
    out, *bars = results["right"]
    results["a sign"] = [out, -bars[0], *bars[1:]]
    results["a key's value"] = [out, *bars[:2], bars[2].at[0, 0, 0].set(0)]
    results["not a number"] = [out.at[0, 0, 0, 0].set(jnp.nan), *bars]
    for name in results.keys() - {"right"}:
        with pytest.raises(AssertionError, match="is off by"):
            assert_error_of_rounding(results[name], rounded, exact, dtype)


# --- training ---------------------------------------------------------------------------------------------------------

IMPORTANT = ("LanguageModel", "ViT", "Transformer", "Attention", "Bahdanau", "GraphAttention", "NTM", "CCT")
FAMILIES = sorted(
    ((model,) for model in MODELS),
    key=lambda case: next((n for n, name in enumerate(IMPORTANT) if type(case[0]).__name__.startswith(name)), 99),
)
"""The families that others build on first."""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("data"))


def losses_of_three_steps(task, update, state):
    """By the training loop's own compiled call, wherever arrays go by default."""
    bucket, indices, weight = task.plan(0, 1)[0]
    program = Program(task.loss, update, matmul_precision="highest")
    state, data = program.put_state(state), program.put_data(task.buckets[bucket])
    repeat = lambda rows: np.repeat(rows[:1], 3, axis=0)
    _, metrics = program.train_steps(state, data, repeat(indices), repeat(weight))
    total, count = metrics["loss"]
    return total / count


@pytest.mark.slow
@everywhere("model", FAMILIES, by_default=FAMILIES[:1])
def test_three_training_steps_match_cpu(device, build, model):
    """From one initial state, so that one program is compiled on each: in float32, whose rounding training enlarges."""
    task = build(model)
    update = optimizer(task.config.optim, 3)
    with jax.default_device(jax.devices("cpu")[0]):
        state = jax.device_get(init_state(task.init, update, 0))
        reference = losses_of_three_steps(task, update, state)
    losses = losses_of_three_steps(task, update, state)
    np.testing.assert_allclose(losses, reference, rtol=2e-3)
    assert len(set(losses)) == 3, "nothing was learned"


def small(seed: int):
    """`date_luong` on 600 dates, 8 wide, two epochs."""
    changes = {"data.examples": 600, "model.hidden_size": 8, "model.embed_size": 4, "train.total_epochs": 2}
    return configs.replace(load_experiment("date_luong").config(), **changes, **{"train.seed": seed})


def losses_by_epoch(directory: Path) -> list[float]:
    return [row["train.loss"] for row in json.loads((directory / "result.json").read_text())["history"]]


@everywhere("", [()])
def test_a_population_is_its_runs_alone(device, tmp_path):
    setups = [small(seed) for seed in (0, 1)]
    members = [batch.Member(config, tmp_path / str(config.train.seed)) for config in setups]
    batch.train_batch(members, [tasks.build(config) for config in setups], tmp_path / "group")
    for config, member in zip(setups, members, strict=True):
        run, _ = train_one(tasks.build(config), config.optim, config.train, tmp_path / "alone" / str(config.train.seed))
        alone = [row["train.loss"] for row in run.history]
        np.testing.assert_allclose(losses_by_epoch(member.directory), alone, rtol=1e-3)


@everywhere("", [()])
def test_what_a_card_began_a_cpu_ends(device, tmp_path):
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


# --- rules ------------------------------------------------------------------------------------------------------------

NORMALIZERS = {
    "Softpick": normalizers.Softpick(),
    "Sparsemax": normalizers.Sparsemax(),
    "Entmax": normalizers.Entmax(1.5),
    "Sigmoid": normalizers.Sigmoid(-4.0),
    "Softmax with a sink": normalizers.Softmax(0.5),
    "TopK": normalizers.TopK(8),
    "StickBreaking": normalizers.StickBreaking(),
    "ReluPower": normalizers.ReluPower(2),
    "Signed": normalizers.Signed(),
}


@everywhere(
    "name dtype",
    [(name, dtype) for dtype in ("bfloat16", "float16", "float32") for name in SCORES],
    by_default=[("LeakySum", "float16")],
)
def test_score_is_exact_plain_and_blockwise(device, name, dtype):
    rules = [{"score": SCORES[name], "mask": lengths}]
    assert_attention_is_exact(device, rules, ["plain", "fused"], dtype)


@pytest.mark.slow
@everywhere("name dtype", [(name, "bfloat16") for name in NORMALIZERS], by_default=[("Sparsemax", "bfloat16")])
def test_normalizer_is_exact_plain_and_blockwise(device, name, dtype):
    rules = [{"score": scores.ScaledDot(), "mask": lengths, "normalizer": NORMALIZERS[name]}]
    assert_attention_is_exact(device, rules, ["plain", "fused"], dtype)
