"""A task that is read while it trains: the loop of all tasks, the same numbers, and no call lost or made twice."""

import types

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import Optim, Train, replace
from attention_jax.data.stream import Call, Share, Stream
from attention_jax.errors import InputError, Interrupted
from attention_jax.signals import Interrupt
from attention_jax.tasks import Evaluation
from attention_jax.train.loop import train_one

OPTIM, TRAIN = Optim("sgd", learning_rate=0.05), Train(total_epochs=3, batch_size=4, best_metric="valid.loss")
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)


def loss(params, batch, rng):
    error = (batch["x"] @ params["w"] - batch["x"].sum(1)) ** 2 * batch["weight"]
    return error.sum(), batch["weight"].sum(), {}


class Windows(Stream):
    """Calls of one step of 4 rows."""

    calls, epoch_steps = 6, 6

    def call(self, epoch, number, share):
        rows = np.random.default_rng([epoch, number]).integers(0, 40, (1, 4))
        return Call({"x": X[share.cut(rows).reshape(share.here, -1)]}, np.ones((1, 4), np.float32))


def task(stream):
    def evaluate(params, full):
        return Evaluation({"valid.loss": float(np.square(params["w"] - 1).sum())}, {})

    init = lambda rng: {"w": jnp.zeros(3)}
    plan = lambda epoch, steps: [(0, np.zeros((1, 4), np.int32), np.ones((1, 4), np.float32))] * 99
    return types.SimpleNamespace(
        init=init, loss=loss, stream=stream, buckets=(), plan=plan, evaluate=evaluate, describe=dict
    )


def by_hand(epochs):
    w = np.zeros(3)
    for epoch in range(epochs):
        for number in range(6):
            x = Windows().call(epoch, number, Share()).bucket["x"][0].astype(np.float64)
            w -= 0.05 * 2 * ((x @ w - x.sum(1)) @ x) / 4
    return w


def test_a_stream_is_trained_on_call_by_call(tmp_path):
    run, params = train_one(task(Windows()), OPTIM, TRAIN, tmp_path, quiet=True)
    assert run.step == 18
    np.testing.assert_allclose(params["w"], by_hand(3), atol=1e-5)


def test_streamed_training_resumes_after_any_call(tmp_path, monkeypatch):
    few, train = type("Few", (Windows,), {"calls": 3, "epoch_steps": 3})(), replace(TRAIN, total_epochs=2)
    _, whole = train_one(task(few), OPTIM, train, tmp_path / "whole", quiet=True)
    monkeypatch.setattr(Interrupt, "requested", True)
    for _ in range(20):
        try:
            run, params = train_one(task(few), OPTIM, train, tmp_path / "parts", quiet=True)
            break
        except Interrupted:
            continue
    assert [row["epoch"] for row in run.history] == [1, 2]
    assert np.array_equal(params["w"], whole["w"])


def test_unreadable_data_end_training_after_save(tmp_path):
    def fail_in_call(self, epoch, number, share, call=Windows.call):
        if (epoch, number) == (1, 2):
            raise InputError("cannot read part 6")
        return call(self, epoch, number, share)

    _, whole = train_one(task(Windows()), OPTIM, TRAIN, tmp_path / "whole", quiet=True)
    bad = type("Broken", (Windows,), {"call": fail_in_call})()
    for _ in range(2):  # the second time there is nothing new to save
        with pytest.raises(InputError, match="cannot read part 6"):
            train_one(task(bad), OPTIM, TRAIN, tmp_path / "parts", quiet=True)
        assert max(int(path.name) for path in (tmp_path / "parts" / "checkpoints").iterdir()) == 6 + 2
    run, params = train_one(task(Windows()), OPTIM, TRAIN, tmp_path / "parts", quiet=True)
    assert np.array_equal(params["w"], whole["w"]) and len(run.history) == 3


def test_skipped_record_is_reported_once_and_counted(tmp_path, capsys):
    class Damaged(Windows):
        def call(self, epoch, number, share):
            return super().call(epoch, number, share)._replace(damaged=(f"cannot read {number}",))

    run, _ = train_one(task(Damaged()), OPTIM, TRAIN, tmp_path, quiet=True)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and "cannot read 0" in lines[0] and f"{run.step} times" in lines[1]
