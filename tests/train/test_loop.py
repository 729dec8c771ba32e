"""The loop on least squares: what it computes, that it resumes exactly, that devices do not change it."""

import errno
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import printing
from attention_jax.config import Optim, Train
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.tasks import Evaluation
from attention_jax.train.checkpoint import Checkpoints
from attention_jax.train.log import MetricsLog
from attention_jax.train.loop import train_one
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program, row_program, split_over_devices
from attention_jax.train.run import Run
from attention_jax.train.step import gradient_sums, init_state, train_step
from tests.interruptions import interrupt_after
from tests.tiers import slow_but

X = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
Y = (X @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)


def plan(epoch, steps_per_call, batch=16):
    order = np.random.default_rng(epoch).permutation(50)
    indices, weight = np.zeros(64, np.int32), np.zeros(64, np.float32)
    indices[:50], weight[:50] = order, 1
    return [(0, i, w) for i, w in zip(indices.reshape(-1, 2, batch), weight.reshape(-1, 2, batch), strict=True)]


def loss(params, batch, rng):
    error = (batch["x"] @ params["w"] - batch["y"]) ** 2 * batch["weight"]
    return error.sum(), batch["weight"].sum(), {}


def evaluate(params, full):
    return Evaluation({"valid.loss": float(np.mean((X @ np.asarray(params["w"]) - Y) ** 2))}, {})


def one_step_calls(epoch, steps_per_call):
    """`plan` with one step in each call, and a position between them, as a stream has."""
    return [(b, i[k : k + 1], w[k : k + 1]) for b, i, w in plan(epoch, steps_per_call) for k in range(2)]


def replay_losses(values):
    """An evaluation that finds these losses, one after another."""
    values = iter(values)
    return lambda params, full: Evaluation({"valid.loss": next(values)}, {})


def least_squares(loss=loss, *, evaluate=evaluate, plan=plan):
    """What the loop needs of a task."""
    init = lambda rng: {"w": jax.random.normal(rng, (3,))}
    buckets = ({"x": X, "y": Y},)
    return types.SimpleNamespace(init=init, loss=loss, buckets=buckets, plan=plan, evaluate=evaluate, describe=dict)


OPTIM = Optim("sgd", learning_rate=0.1)


def test_the_steps_are_plain_gradient_descent(tmp_path):
    run, params = train_one(least_squares(), OPTIM, Train(total_epochs=2, batch_size=16), tmp_path, quiet=True)
    w = np.asarray(jax.random.normal(jax.random.split(jax.random.PRNGKey(0))[0], (3,)), np.float64)
    for epoch in range(2):
        order = np.random.default_rng(epoch).permutation(50)
        for first in range(0, 50, 16):  # the last batch has two rows and is averaged over two
            x, y = X[order[first : first + 16]].astype(np.float64), Y[order[first : first + 16]]
            w = w - 0.1 * 2 * x.T @ (x @ w - y) / len(x)
    assert run.step == 8
    np.testing.assert_allclose(params["w"], w, rtol=1e-5)


def test_matmul_precision_applies_to_steps_only(tmp_path):
    precisions = {"loss": set(), "evaluate": set()}

    def peek(name, of):
        return lambda *args: (precisions[name].add(jax.config.jax_default_matmul_precision), of(*args))[1]

    task = least_squares(peek("loss", loss), evaluate=peek("evaluate", evaluate))
    train_one(task, OPTIM, Train(total_epochs=1, matmul_precision="bfloat16"), tmp_path, quiet=True)
    assert precisions == {"loss": {"bfloat16"}, "evaluate": {None}}


ADAM = Optim(learning_rate=0.1)


def read_log(directory) -> list[dict]:
    return [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]


def timeless(directory) -> list[dict]:
    """What is logged but the seconds, which no two runs have alike."""
    without_seconds = lambda line: {name: value for name, value in line.items() if name != "seconds"}
    return [without_seconds(line) | {"row": "seconds" in line} for line in read_log(directory)]


def test_progress_and_samples_are_there_to_be_watched(tmp_path):
    progress = {}

    def look(params, full):
        progress.update(json.loads((tmp_path / "progress.json").read_text()))
        return Evaluation({"valid.loss": 0.0}, {}, ("a -> b",))

    train_one(least_squares(evaluate=look), OPTIM, Train(total_epochs=2, steps_per_call=1), tmp_path, quiet=True)
    assert progress["state"] == "training" and progress["total_steps"] == 8 and progress["process"] == os.getpid()
    ended = json.loads((tmp_path / "progress.json").read_text())
    assert ended["state"] == "trained" and ended["step"] == 8 and ended["seconds_left"] == 0.0
    assert (tmp_path / "samples.txt").read_text() == "a -> b\n"
    with interrupt_after(1):
        train_one(least_squares(), OPTIM, Train(total_epochs=2), tmp_path / "part", quiet=True)
    assert json.loads((tmp_path / "part" / "progress.json").read_text())["state"] == "stopped"


@pytest.mark.usefixtures("hangup")
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1])
def test_signals_stop_training_after_saving(number, tmp_path):
    def evaluate_and_kill(params, full):
        os.kill(os.getpid(), number)
        return Evaluation({"valid.loss": 1.0}, {})

    with pytest.raises(Interrupted, match="the checkpoint of step 4 is complete"):
        train_one(least_squares(evaluate=evaluate_and_kill), OPTIM, Train(total_epochs=2), tmp_path, quiet=True)


@pytest.mark.parametrize("chunk", slow_but([0, 3], range(8)))
def test_resuming_after_a_signal_gives_the_same_bits(chunk, tmp_path):
    """Two chunks an epoch, which odd ones end; the signal comes while chunk number `chunk` is made ready."""
    train = Train(total_epochs=4)
    _, whole = train_one(least_squares(), ADAM, train, tmp_path / "whole", quiet=True)
    task = least_squares()

    class Chunks(list):
        def __getitem__(self, place):
            if 2 * self.epoch + place == chunk:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().__getitem__(place)

    def plan_and_kill(epoch, steps_per_call):
        chunks = Chunks(plan(epoch, steps_per_call))
        chunks.epoch = epoch
        return chunks

    with pytest.raises(Interrupted) as stopped:
        train_one(least_squares(plan=plan_and_kill), ADAM, train, tmp_path / "part", quiet=True)
    assert stopped.value.step == 2 * (chunk + 1)
    _, resumed = train_one(task, ADAM, train, tmp_path / "part", quiet=True)
    assert (resumed["w"] == whole["w"]).all()
    assert timeless(tmp_path / "whole") == timeless(tmp_path / "part")


@pytest.mark.slow
@pytest.mark.parametrize("steps", slow_but([5, 6], [5, 6, 7, 8]))
def test_more_steps_continue_after_last_step(steps, tmp_path):
    """Four steps an epoch, two a chunk: inside a chunk, between two, and after an epoch."""
    _, whole = train_one(least_squares(), ADAM, Train(total_epochs=3), tmp_path / "whole", quiet=True)
    cut = Train(total_epochs=3, max_steps=steps)
    run, _ = train_one(least_squares(), ADAM, cut, tmp_path / "part", quiet=True)
    logged = [2, 4, 4, *range(6, steps + 1, 2), *[steps] * (1 + steps % 2)]  # each call, and each epoch once more
    assert run.step == steps and [line["step"] for line in read_log(tmp_path / "part")] == logged
    again, _ = train_one(least_squares(), ADAM, cut, tmp_path / "part", quiet=True)
    assert [row["step"] for row in run.history] == [row["step"] for row in again.history] == [4, steps]
    run, resumed = train_one(least_squares(), ADAM, Train(total_epochs=3), tmp_path / "part", quiet=True)
    assert (resumed["w"] == whole["w"]).all()
    epochs = [[line for line in timeless(tmp_path / name) if "valid.loss" in line] for name in ("whole", "part")]
    assert epochs[0] == epochs[1]


def test_an_only_epoch_goes_on_with_more_steps(tmp_path):
    train_one(least_squares(), ADAM, Train(total_epochs=1, max_steps=2), tmp_path, quiet=True)
    run, _ = train_one(least_squares(), ADAM, Train(total_epochs=1), tmp_path, quiet=True)
    assert [(row["epoch"], row["step"]) for row in run.history] == [(1, 4)]


def test_best_and_last_checkpoints_are_kept_and_averaged(tmp_path):
    train = Train(total_epochs=5, average_last=2)
    _, params = train_one(least_squares(), OPTIM, train, tmp_path, quiet=True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", train, best_of=1)
    states = [checkpoints.restore(step, _state())[0].params["w"] for step in (16, 20)]
    np.testing.assert_allclose(params["w"], np.mean(states, axis=0), rtol=1e-6)
    assert checkpoints.best() == 20
    checkpoints.close()


def test_processor_seconds_leave_out_waiting(tmp_path):
    def sleep(params, full):
        time.sleep(0.2)
        return evaluate(params, full)

    start, seconds = time.process_time(), 0.0
    for epochs in (1, 2):  # the second one resumes
        run, _ = train_one(least_squares(evaluate=sleep), OPTIM, Train(total_epochs=epochs), tmp_path, quiet=True)
        assert seconds < run.both_seconds()[1] <= time.process_time() - start and run.seconds() >= 0.2 * epochs
        seconds = run.both_seconds()[1]


def test_average_over_fewer_epochs_is_noted(tmp_path, capsys):
    train_one(least_squares(), OPTIM, Train(total_epochs=3), tmp_path, quiet=True)
    assert "average" not in capsys.readouterr().err
    train_one(least_squares(), OPTIM, Train(total_epochs=3, average_last=3), tmp_path, quiet=True)
    assert "--train.average-last 3 averages 1 epochs" in capsys.readouterr().err
    train_one(least_squares(), OPTIM, Train(total_epochs=2, average_last=5), tmp_path / "all", quiet=True)
    assert "average" not in capsys.readouterr().err, "there are no more than two"


def test_use_best_returns_best_epoch_parameters(tmp_path):
    task = least_squares(evaluate=replay_losses([3.0, 1.0, 2.0, 2.5]))
    _, best = train_one(task, OPTIM, Train(total_epochs=4, use_best=True), tmp_path / "best", quiet=True)
    _, second = train_one(least_squares(), OPTIM, Train(total_epochs=2), tmp_path / "second", quiet=True)
    assert (best["w"] == second["w"]).all()


@pytest.mark.parametrize(
    "accuracies, losses, best",
    [
        ([0.5, 0.9, 0.8, 0.9], [1.0, 0.069, 0.2, 0.163], 2),  # images: epoch 4 was kept, with a loss of 0.163
        ([0.9, 0.9, 0.9], [0.3, 0.2, float("nan")], 2),
        ([0.9, 0.9, 0.5], [0.3, 0.3, 0.1], 1),
    ],
)
def test_equal_epochs_are_decided_by_loss(accuracies, losses, best, tmp_path):
    values, params_by_epoch = iter(zip(accuracies, losses)), []

    def evaluate(params, full):
        params_by_epoch.append(params["w"])
        return Evaluation(dict(zip(("valid.accuracy", "valid.loss"), next(values))), {})

    train = Train(total_epochs=len(losses), use_best=True, best_metric="valid.accuracy")
    _, params = train_one(least_squares(evaluate=evaluate), OPTIM, train, tmp_path, quiet=True)
    assert [bool((params["w"] == w).all()) for w in params_by_epoch].index(True) == best - 1


def _state():
    from attention_jax.train.checkpoint import to_host

    return to_host(init_state(least_squares().init, optimizer(OPTIM, 1), 0))


@pytest.mark.parametrize(
    ("losses", "epochs"), [([3.0, 2.0, 2.5, 2.2, 2.1, 0.0, 0.0], 4), ([math.nan, 3.0, math.nan, 2.0], 4)]
)
def test_patience_ends_a_run_that_no_longer_improves(losses, epochs, tmp_path):
    """After two epochs in a row; one whose loss is NaN is never the best."""
    train = Train(total_epochs=len(losses), patience=2)
    run, _ = train_one(least_squares(evaluate=replay_losses(losses)), OPTIM, train, tmp_path, quiet=True)
    assert len(run.history) == epochs


def test_best_epoch_of_two_metrics(tmp_path):
    """The rule of execute_cora.py in PetarV-/GAT: a tie counts, and the counter starts again after it."""
    metrics = iter([(3.0, 0.5), (2.0, 0.6), (1.5, 0.4), (1.8, 0.6), (1.6, 0.5), (1.7, 0.5), (0.0, 1.0)])
    params_by_epoch = []

    def both(params, full):
        params_by_epoch.append(params["w"])
        return Evaluation(dict(zip(("valid.loss", "valid.accuracy"), next(metrics))), {})

    train = Train(total_epochs=7, patience=2, use_best=True, best_metric="valid.loss,valid.accuracy")
    run, params = train_one(least_squares(evaluate=both), OPTIM, train, tmp_path, quiet=True)
    assert len(run.history) == 6  # epochs 3 (loss) and 4 (accuracy, a tie) start the counter again; 5 and 6 do not
    assert (params["w"] == params_by_epoch[1]).all() and not (
        params["w"] == params_by_epoch[0]
    ).all()  # neither 3 nor 4 is best in both


def test_nonfinite_loss_names_its_step(tmp_path):
    def explode(params, batch, rng):
        total, count, metrics = loss(params, batch, rng)
        return jnp.where(batch["weight"].sum() < 16, jnp.nan, total), count, metrics

    with pytest.raises(Diverged) as stopped:
        train_one(least_squares(explode), OPTIM, Train(total_epochs=1), tmp_path, quiet=True)
    assert stopped.value.step == 4  # the fourth batch is the short one


@jax.custom_vjp
def steep(x, slope):
    """x, with this slope in place of 1."""
    return x


steep.defvjp(lambda x, slope: (x, slope), lambda slope, g: (g * slope, None))


def overflowing(least):
    """A loss that stays small, with a gradient that is not finite in batches of `least` rows and fewer."""

    def loss_fn(params, batch, rng):
        total, count, metrics = loss(params, batch, rng)
        return steep(total, jnp.where(count <= least, jnp.inf, 1.0)), count, metrics

    return loss_fn


@pytest.mark.parametrize("train", [Train(total_epochs=1), Train(total_epochs=3, max_steps=4), Train(total_epochs=3)])
def test_nonfinite_final_parameters_are_divergence(train, tmp_path):
    """Each loss is computed before its update, so none is NaN in the step that breaks the parameters."""
    with pytest.raises(Diverged, match="parameters are not finite after step 4") as stopped:
        train_one(least_squares(overflowing(2)), OPTIM, train, tmp_path, quiet=True)
    assert stopped.value.step == 4
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == "diverged"
    assert not list((tmp_path / "checkpoints").glob("[0-9]*")), "no checkpoint has such parameters"


def test_checkpoint_never_has_nonfinite_parameters(tmp_path):
    train = Train(total_epochs=2, steps_per_call=1, save_minutes=1e-9)
    with pytest.raises(Diverged, match="after step 1;"):
        train_one(least_squares(overflowing(16), plan=one_step_calls), OPTIM, train, tmp_path, quiet=True)
    assert not list((tmp_path / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize(
    "values, options, step",
    [([1.0, math.nan], {}, 8), ([math.nan, math.inf], {"use_best": True}, 8), ([1.0, 1e20], {"average_last": 2}, 8)],
)
def test_nonfinite_last_evaluation_is_divergence(values, options, step, tmp_path):
    """An update of 1e30 leaves parameters that are finite and a model that is not."""
    with pytest.raises(Diverged, match=f"at step {step}"):
        train_one(
            least_squares(evaluate=replay_losses(values)), OPTIM, Train(total_epochs=2, **options), tmp_path, quiet=True
        )
    assert json.loads((tmp_path / "progress.json").read_text())["state"] == "diverged"


@pytest.mark.parametrize("values, options", [([math.nan, 1.0], {}), ([1.0, math.nan], {"use_best": True})])
def test_nonfinite_intermediate_evaluation_continues(values, options, tmp_path):
    train = Train(total_epochs=2, best_metric="valid.loss", **options)
    run, params = train_one(least_squares(evaluate=replay_losses(values)), OPTIM, train, tmp_path, quiet=True)
    assert run.step == 8 and np.isfinite(params["w"]).all()
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes()[:1] == b"{"]
    assert {path.name for path in files} >= {"metrics.jsonl", "progress.json", "metrics"}
    assert not [path for path in files if re.search(r"\b(NaN|Infinity)\b(?!\")", path.read_text())], "they are no JSON"


def remove(directory):
    shutil.rmtree(directory)


def replace_by_another_run(directory):
    directory.rename(directory.with_name("elsewhere"))
    directory.mkdir()
    (directory / "metrics.jsonl").write_text('{"step": 1, "epoch": 0, "train.loss": 1.0}\n')


def replace_by_a_file(directory):
    shutil.rmtree(directory)
    directory.write_text("a file")


@pytest.mark.parametrize("lose", [remove, replace_by_another_run, replace_by_a_file])
def test_run_stops_if_directory_is_replaced(lose, tmp_path, monkeypatch):
    """At its next write, and it writes nothing where its directory was."""
    evaluated, save = [], Checkpoints.save
    monkeypatch.setattr(Checkpoints, "save", lambda self, *args: (save(self, *args), self.writing.result()))

    def lose_at_second_epoch(params, full):
        evaluated.append(params)
        if len(evaluated) == 2:
            lose(tmp_path / "run")
        return evaluate(params, full)

    with pytest.raises(InputError, match="run was removed or replaced"):
        task = least_squares(evaluate=lose_at_second_epoch)
        train_one(task, OPTIM, Train(total_epochs=9, save_minutes=0), tmp_path / "run", quiet=True)
    assert len(evaluated) == 2
    if lose is remove:
        assert not (tmp_path / "run").exists()
    elif lose is replace_by_another_run:
        assert [path.name for path in (tmp_path / "run").iterdir()] == ["metrics.jsonl"]


def test_log_survives_new_inode_and_silent_server(tmp_path, monkeypatch):
    """As on file systems in user space, and NFS: the log is the same file."""
    log = MetricsLog(tmp_path, 0, 0)
    log.write(1, loss=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "samestat", lambda *_: False)
        log.write(2, loss=0.5)
        patch.setattr(Path, "stat", lambda *_, **__: (_ for _ in ()).throw(OSError(errno.ESTALE, "Stale")))
        log.write(3, loss=0.5)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.raises(InputError, match="removed"):
        log.write(4, loss=0.5)
    log.close()


def test_a_warm_up_that_never_ends_is_said(tmp_path, capsys):
    optim = Optim(learning_rate=0.1, warmup_steps=1_000)
    train_one(least_squares(), optim, Train(total_epochs=1), tmp_path)
    assert "warms up over 1000 steps and training has" in capsys.readouterr().out


@pytest.mark.parametrize("names", ["valid.blue", "valid.loss,valid.blue"])
def test_an_unknown_best_metric_is_named(names, tmp_path):
    with pytest.raises(InputError, match="train.best_metric must be one of .*; got valid.blue"):
        train_one(least_squares(), OPTIM, Train(total_epochs=1, best_metric=names), tmp_path, quiet=True)


def compile_programs(rows=16):
    """The training call and an evaluation of `rows` rows, compiled for all devices."""
    task, update = least_squares(), optimizer(ADAM, 1)
    program, state = Program(loss, update), init_state(task.init, update, 0)
    batches = map(program.put_batches, (np.zeros((2, rows), np.int32), np.zeros((2, rows), np.float32)))
    train = program.compiled.lower(state, task.buckets[0], *batches)
    predict = lambda params, batch: batch["x"] @ params["w"]
    x = split_over_devices(X[:rows], axis=0) if jax.device_count() > 1 else X[:rows]
    score = row_program(predict).lower(state.params, {"x": x})
    return train.compile(), score.compile()


def test_programs_of_one_device():
    train, score = compile_programs()
    assert "s32[2,16]" in train.as_text() and "all-reduce" not in train.as_text()
    assert "f32[16,3]" in score.as_text()


TWO_DEVICES = """
import jax, runpy, sys, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
from pathlib import Path
here = runpy.run_path(sys.argv[1])
task, optim, train = here["least_squares"](), here["ADAM"], here["Train"](total_epochs=2)
_, params = here["train_one"](task, optim, train, Path(sys.argv[2]), quiet=True)
assert jax.device_count() == 2
np.save(sys.argv[3], params["w"])
train, score = here["compile_programs"](rows=15)
assert "all-reduce" in train.as_text() and "s32[2,1,8]" in train.as_text(), train.as_text()
assert "f32[8,3]" in score.as_text() or "f32[1,8,3]" in score.as_text(), score.as_text()
"""


@pytest.mark.slow
def test_two_devices_give_the_parameters_of_one(tmp_path):
    """25 rows a device in the whole batches; the last batch has one row on each."""
    _, single = train_one(least_squares(), ADAM, Train(total_epochs=2), tmp_path / "one", quiet=True)
    (tmp_path / "two").mkdir()
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    command = [sys.executable, "-c", TWO_DEVICES, __file__, str(tmp_path / "two"), str(tmp_path / "two.npy")]
    subprocess.run(command, check=True, env=environment, timeout=300)
    np.testing.assert_allclose(np.load(tmp_path / "two.npy"), single["w"], atol=1e-4)
    assert [line["step"] for line in read_log(tmp_path / "two")] == [
        line["step"] for line in read_log(tmp_path / "one")
    ]


TOKENS = """
from attention_jax.config import Config, Decode, Optim, Reverse, Train, TransformerConfig
model = TransformerConfig(1, 1, hidden_size=16, num_heads=2, mlp_dim=16, dropout=0.0, tied_embeddings="all")
optim = Optim(schedule="inverse_sqrt", warmup_steps=4)
train = Train(total_epochs=1, steps_per_call=1, label_smoothing=0.1)
data = Reverse(examples=400, batch_tokens=777, joint_vocabulary=True, max_buckets=2)
config = Config("reverse", data, model, optim, train, Decode())
sizes = {int((weight > 0).sum()) for _, _, weight in tasks.build(config).plan(0, 1)}
assert len(sizes) > 3, sizes
"""


@pytest.mark.slow
def test_four_devices_give_the_losses_of_one(tmp_path):
    """A small Transformer on batches of unequal sizes; with a sharded state the losses of a replicated one."""
    script = f"""
import sys, jax, numpy as np
from jax.extend.backend import clear_backends
from attention_jax import tasks
from attention_jax.train import loop, placement
from attention_jax.config import replace
from pathlib import Path
placement.SHARDED_FROM = 1000
{TOKENS}
def fetch(program, state, fetch=placement.Program.fetch):
    for leaf in jax.tree.leaves(state):
        copies = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        if name == "shards" and not leaf.is_fully_replicated:
            assert copies[0].size == leaf.size // 4
            continue
        assert all((copy == copies[0]).all() for copy in copies), "replicas differ"
        assert len(copies) == jax.device_count() and copies[0].shape == leaf.shape
    return fetch(program, state)
placement.Program.fetch = fetch
task = tasks.build(config)
type(task).evaluate = lambda *_: tasks.Evaluation({{"valid.loss": 0.0, "test.loss": 0.0}}, {{}})
for name, devices in (("one", 1), ("copies", 4), ("shards", 4)):
    clear_backends()
    jax.config.update("jax_num_cpu_devices", devices)
    assert jax.device_count() == devices
    train = replace(config, **{{"train.shard_parameters": name == "shards"}}).train
    loop.train_one(task, config.optim, train, Path(sys.argv[1], name), quiet=True)
"""
    for name in ("one", "copies", "shards"):
        (tmp_path / name).mkdir()
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=environment, timeout=300)
    single, copies, shards = (
        [line["train.loss"] for line in read_log(tmp_path / name) if "seconds" not in line]
        for name in ("one", "copies", "shards")
    )
    assert len(single) == 13
    np.testing.assert_allclose(copies, single, atol=1e-4)
    np.testing.assert_allclose(shards, copies, atol=1e-6)


def test_each_step_draws_anew():
    def loss(params, batch, rng):
        return params.sum(), jnp.float32(1), {"drawn": (jax.random.uniform(rng), jnp.float32(1))}

    update = optimizer(Optim("sgd"), 10)
    state = init_state(lambda rng: jax.random.uniform(rng, (1,)), update, 0)
    gradients, rows = functools.partial(gradient_sums, loss, 1), (jnp.zeros(1, int), jnp.ones(1))
    step, draws = jax.jit(train_step, static_argnums=(0, 1)), [float(state.params[0])]
    for _ in range(3):
        state, metrics = step(gradients, update, {}, state, rows)
        draws.append(float(metrics["drawn"][0]))
    assert len(set(draws)) == 4


@pytest.mark.parametrize("min_delta, epochs", [(0.0, 8), (0.15, 7), (0.35, 6), (0.5, 5)])
def test_improvement_below_min_delta_is_ignored(tmp_path, min_delta, epochs):
    """By hand, with the best before counted from the last improvement: small steps add up."""
    run = Run(Train(total_epochs=8, patience=2, min_delta=min_delta), plan, 100, tmp_path, quiet=True)
    for loss in (3.0, 2.6, 2.3, 2.2, 2.1, 2.05, 2.0, 1.9):
        if run.active:
            run.history.append({"valid.loss": loss})
    assert len(run.history) == epochs


def test_reason_for_stopping_is_one_line(tmp_path, capsys):
    losses = [3.0, 2.0, 2.5, 2.2, 2.1, 0.0]
    lines = []
    for train in (Train(total_epochs=5, patience=2), Train(total_epochs=6, patience=2), Train(total_epochs=4)):
        run, _ = train_one(least_squares(evaluate=replay_losses(losses)), OPTIM, train, tmp_path)
        messages = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("epoch")]
        lines.append(messages)
    assert len(run.history) == 4
    early = "stopped after epoch 4: valid.loss has not improved since epoch 2; "
    assert lines[0] == lines[1] == [f"{early}a --train.patience larger than 2, or 0, continues"]
    assert len(lines[2]) == 1 and lines[2][0].startswith("nothing to train: the run has its 16 steps behind it")


def test_last_epochs_returns_requested_number(tmp_path):
    train = Train(total_epochs=4, keep_last=4)
    train_one(least_squares(), OPTIM, train, tmp_path, quiet=True)
    checkpoints = Checkpoints(tmp_path / "checkpoints", train)
    assert (
        checkpoints.numbers() == [4, 8, 12, 16]
        and checkpoints.last_epochs(1) == [16]
        and checkpoints.last_epochs(3) == [8, 12, 16]
    )
    checkpoints.close()


def test_log_has_lines_within_an_epoch_and_where_it_resumes(tmp_path, monkeypatch, capsys):
    """With a line every hundredth of a second an evaluation of a quarter of one has several (1.2 CPU-seconds)."""

    def evaluate_slowly(params, full):
        time.sleep(0.25)
        return evaluate(params, full)

    monkeypatch.setattr(printing, "LINE_SECONDS", 0.01)
    with interrupt_after(1):
        train_one(least_squares(evaluate=evaluate_slowly), OPTIM, Train(total_epochs=2), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    within = [line for line in lines if re.match(r"step 4 of 8  train\.loss \d.* examples/s", line)]
    assert len(within) >= 3 and "goes on" not in "".join(lines) and any(line.startswith("epoch 1") for line in lines)
    train_one(least_squares(), OPTIM, Train(total_epochs=2), tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == "training goes on from step 4 of 8"
