"""A member of a population is the run alone, bit for bit; it diverges alone; the population resumes exactly."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from attention_jax import tasks
from attention_jax.config import Train, replace
from attention_jax.errors import InputError, Interrupted
from attention_jax.files import write_json
from attention_jax.runs import directory as run_directory, lifecycle
from attention_jax.sweep import batch
from attention_jax.sweep.partition import Member
from attention_jax.tasks import run_figures
from attention_jax.train import step
from attention_jax.train.checkpoint import load_params
from attention_jax.train.run import Run


@pytest.fixture(autouse=True, scope="module")
def _one_program():
    """The compiled call of a population is a pure function of its configuration: the tests here trace it once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch, "compile_members", functools.cache(batch.compile_members))
        yield


def members(configs, root):
    return [Member(config, root / str(place)) for place, config in enumerate(configs)]


def train_population(configs, root):
    batch.train_batch(members(configs, root), [tasks.build(config) for config in configs], root / "group")


def params(config, directory):
    return jax.tree.leaves(
        load_params(directory / "final", jax.eval_shape(tasks.build(config).init, jax.random.PRNGKey(0)))
    )


def result(directory):
    """Evaluations, exactly; and the logged training losses, whose sums are rounded as the whole program suggests."""
    result_json = json.loads((directory / "result.json").read_text())
    exact = [{k: v for k, v in row.items() if k not in ("seconds", "train.loss")} for row in result_json["history"]]
    logged = [json.loads(line)["train.loss"] for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return (result_json["metrics"], exact), np.array(logged)


def assert_same(directory, other_directory):
    (actual, logged), (expected, losses) = result(directory), result(other_directory)
    assert actual == expected
    np.testing.assert_allclose(logged, losses, rtol=1e-6)


@pytest.fixture(scope="module")
def three(tiny, tmp_path_factory):
    """Three configurations that differ in numbers and seeds, trained together."""
    changes = [(1e-2, 0, 0.05, 2.0, 2), (3e-2, 1, 0.1, 5.0, 1), (3e-3, 2, 0.2, 1.0, 4)]
    names = ("optim.learning_rate", "train.seed", "train.label_smoothing", "optim.clip_norm", "optim.warmup_steps")
    configs = [replace(tiny, **dict(zip(names, values))) for values in changes]
    root = tmp_path_factory.mktemp("population")
    train_population(configs, root)
    return configs, root


ALONE = """
import sys
from pathlib import Path
import jax, numpy as np
from attention_jax import tasks
from attention_jax.runs import lifecycle, directory as run_directory, saved
from attention_jax.sweep import batch

old, new = Path(sys.argv[1]), Path(sys.argv[2])
configs = [run_directory.read_config(old / str(i)) for i in range(2)]
members = [batch.Member(config, new / str(i)) for i, config in enumerate(configs)]
batch.train_batch(members, [tasks.build(config) for config in configs], new / "group")
lifecycle.start(configs[1], new / "alone", quiet=True)
ours, alone = (jax.tree.leaves(saved.load_trained(new / name)[2]) for name in ("1", "alone"))
for a, b in zip(ours, alone, strict=True):
    np.testing.assert_array_equal(a, b)
"""


def fresh_process(script: str, *words: str, environment: dict):
    """Run a script with the package of this checkout."""
    environment = environment | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", script, *words], check=True, env=environment, timeout=300)


@pytest.mark.slow
def test_members_are_the_runs_alone(three, tmp_path):
    configs, root = three
    lifecycle.start(configs[1], tmp_path / "1", quiet=True)
    assert_same(root / "1", tmp_path / "1")
    for actual, alone in zip(params(configs[1], root / "1"), params(configs[1], tmp_path / "1"), strict=True):
        np.testing.assert_allclose(actual, alone, atol=1e-6)


@pytest.mark.slow
def test_members_are_the_runs_alone_bit_for_bit(three, tmp_path):
    """As XLA compiles by default; the flags of conftest.py, for tests that compile quickly, sum in another order."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    fresh_process(ALONE, str(three[1]), str(tmp_path), environment=environment)


def test_matmul_precision_applies_inside_the_steps(tiny, tmp_path, monkeypatch):
    class PrecisionError(Exception):
        pass

    def raise_precision(*args):
        raise PrecisionError(jax.config.jax_default_matmul_precision)

    monkeypatch.setattr(step, "apply_gradient", raise_precision)
    with pytest.raises(PrecisionError, match="bfloat16"):
        train_population([replace(tiny, **{"train.matmul_precision": "bfloat16"})], tmp_path)


def test_members_are_not_resumed_on_other_data(tiny, tmp_path):
    write_json(tmp_path / "0" / "facts.json", {"fingerprint": "00000000"})
    with pytest.raises(InputError, match="the data of the run in .* have changed"):
        train_population([tiny], tmp_path)
    assert not (tmp_path / "0" / "config.json").exists()


def test_members_differ_from_each_other(three):
    configs, root = three
    assert not np.array_equal(params(configs[0], root / "0")[0], params(configs[2], root / "2")[0])


@pytest.mark.slow
def test_diverged_member_says_why_and_others_continue(three, tmp_path):
    configs, root = three
    train_population([configs[0], replace(configs[0], **{"optim.learning_rate": 1e30, "train.seed": 5})], tmp_path)
    assert "loss was" in json.loads((tmp_path / "1" / "failure.json").read_text())["reason"]
    assert not (tmp_path / "1" / "result.json").exists()
    assert_same(tmp_path / "0", root / "0")


ENDS = {
    "patience": {"train.patience": 1},
    "best": {"train.use_best": True},
    "average": {"train.average_last": 2},
}


@pytest.mark.parametrize("end", [pytest.param(end, marks=pytest.mark.slow) for end in ("patience", "best", "average")])
def test_members_end_as_the_runs_alone_would(end, tiny, tmp_path, monkeypatch, with_attributes):
    """Losses that go up and down, each member's in its own way: they stop after, or keep, different epochs."""
    losses = [[3.0, 2.0, 2.5], [1.0, 4.0, 0.5]]
    build = tasks.build

    def build_scripted(config, script=None):
        task, script = build(config), iter(losses[config.train.seed] if script is None else script)
        evaluate = lambda params, full: tasks.Evaluation({"valid.loss": 0.0 if full else next(script)}, {})
        return with_attributes(task, evaluate=evaluate)

    config = replace(tiny, **ENDS[end], **{"train.best_metric": "valid.loss", "optim.learning_rate": 0.03})
    config = replace(config, **{"train.log": ("tensorboard",)})
    configs = [replace(config, **{"train.seed": seed}) for seed in (0, 1)]
    both = [1.0 * x for pair in zip(*losses) for x in pair]  # a population evaluates them in turns
    if end == "patience":
        both = [3.0, 1.0, 2.0, 4.0, 2.5]  # the second stops after its second epoch
    shared = build_scripted(configs[0], both)
    batch.train_batch(members(configs, tmp_path), [shared, build(configs[1])], tmp_path / "group")
    monkeypatch.setattr(tasks, "build", build_scripted)
    for place, config in enumerate(configs):
        monkeypatch.setattr(run_figures, "draw_figures", lambda *_: [])
        alone = lifecycle.start(config, tmp_path / "alone" / str(place), quiet=True)
        together = run_directory.read_result(tmp_path / str(place))
        assert [row["valid.loss"] for row in together["history"]] == [row["valid.loss"] for row in alone["history"]]
        assert (tmp_path / str(place) / "page.md").exists()
        assert any((tmp_path / str(place) / "tensorboard").iterdir())
        for actual, reference in zip(
            params(config, tmp_path / str(place)), params(config, tmp_path / "alone" / str(place)), strict=True
        ):
            np.testing.assert_array_equal(actual, reference)
    epochs = [len(run_directory.read_result(tmp_path / str(place))["history"]) for place in (0, 1)]
    assert epochs == ([3, 2] if end == "patience" else [3, 3])


@pytest.mark.slow
@pytest.mark.parametrize("call", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_interrupted_population_resumes_to_the_same_bits(call, three, tmp_path, monkeypatch):
    import os
    import signal

    configs, root = three
    num_calls, train_steps = [0], batch.Population.train_steps

    def train_until_signal(*arguments):
        num_calls[0] += 1
        if num_calls[0] == call + 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_steps(*arguments)

    monkeypatch.setattr(batch.Population, "train_steps", train_until_signal)
    with pytest.raises(Interrupted):
        train_population(configs, tmp_path)
    assert num_calls[0] == call + 1 and not (tmp_path / "0" / "result.json").exists()
    train_population(configs, tmp_path)
    assert num_calls[0] == 6
    for place in range(3):
        for actual, whole in zip(
            params(configs[place], tmp_path / str(place)), params(configs[place], root / str(place)), strict=True
        ):
            np.testing.assert_array_equal(actual, whole)
        steps = [
            json.loads(line)["step"] for line in (tmp_path / str(place) / "metrics.jsonl").read_text().splitlines()
        ]
        assert steps == sorted(steps) and len(steps) == 9  # two calls and a row an epoch, each once


def test_finite_loss_with_infinite_square_is_divergence(tmp_path):
    run = Run(Train(), lambda *_: [], 9, tmp_path, quiet=True)
    run.begin(None)
    weight = np.ones((2, 4), np.float32)
    run.record(0, weight, {"loss": (np.float32([4.0, 8.0]), np.float32([4.0, 4.0]))})
    assert run.active and run.step == 2
    run.record(0, weight, {"loss": (np.float32([4.0, 1e30]), np.float32([4.0, 4.0]))})
    assert not run.active and str(run.failure).startswith("the loss was 2.5e+29 at step 4;")
    run.close()


def test_data_that_is_not_shared_is_found(tiny, with_attributes):
    task = tasks.build(tiny)
    other_task = with_attributes(task, buckets=({**task.buckets[0], "source": task.buckets[0]["source"] + 1},))
    two = with_attributes(task, buckets=task.buckets * 2)
    assert batch.classes([task, other_task, task], [0, 0, 1]) == [[0, 2], [1]]
    assert batch.classes([two, two, two], [0, 1, 0]) == [[0, 2], [1]]


def peeking(optim, total_steps):
    return lambda step: 0.1 if optim.learning_rate > 0.5 else 0.2


def test_number_branched_on_by_schedule_is_detected(tiny):
    config = replace(tiny, **{"optim.schedule": f"{__name__}:peeking"})
    batch.check_traceable(config, ["optim.b1"], tasks.build(config))
    with pytest.raises(jax.errors.TracerBoolConversionError):
        batch.check_traceable(config, ["optim.learning_rate"], tasks.build(config))


def test_number_branched_on_by_model_is_detected(tiny, monkeypatch, with_attributes):
    task = tasks.build(tiny)
    batch.check_traceable(tiny, ["optim.learning_rate", "train.label_smoothing"], task)
    peeks = lambda config: with_attributes(
        task, loss=lambda *a: task.loss(*a) if config.train.label_smoothing > 0 else None
    )
    monkeypatch.setattr(tasks, "build", peeks)
    with pytest.raises(jax.errors.ConcretizationTypeError):
        batch.check_traceable(tiny, ["train.label_smoothing"], task)


@pytest.mark.slow
def test_members_divided_over_devices_are_the_same(three, tmp_path):
    """Three members on two emulated devices: one device holds two, the other one and a filler."""
    configs, root = three
    script = (
        "import jax, sys; jax.config.update('jax_num_cpu_devices', 2)\n"
        "from pathlib import Path\nfrom attention_jax import tasks\n"
        "from attention_jax.runs import directory as run_directory\n"
        "from attention_jax.sweep import batch\n"
        "old, new = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "members = [batch.Member(run_directory.read_config(old / str(i)), new / str(i)) for i in range(3)]\n"
        "batch.train_batch(members, [tasks.build(m.config) for m in members], new / 'group')\n"
    )
    fresh_process(script, str(root), str(tmp_path), environment=dict(os.environ))
    for place in range(3):
        for actual, alone in zip(
            params(configs[place], tmp_path / str(place)), params(configs[place], root / str(place)), strict=True
        ):
            np.testing.assert_allclose(actual, alone, atol=1e-5)
