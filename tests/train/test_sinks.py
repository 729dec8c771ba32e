"""Metrics also go where they are asked to go, and nothing that fails there ends a training."""

import collections
import json
import sys
import types

import pytest

from attention_jax.config import Train
from attention_jax.errors import InputError, explained
from attention_jax.train import sinks
from attention_jax.train.log import MetricsLog


def log_three(directory, *names):
    """Three steps logged for these sinks in a run's directory."""
    (directory / "config.json").write_text(json.dumps({"name": "toy"}))
    log = MetricsLog(directory, 0, 0, names)
    for step in (1, 2, 3):
        log.write(step, **{"train.loss": 1.0 / step})
    log.close()


def steps(directory):
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_tensorboard_files_are_written(tmp_path):
    log_three(tmp_path, "tensorboard")
    [events] = (tmp_path / "tensorboard").iterdir()
    assert events.read_bytes().count(b"train/loss") == 3


def test_a_sink_that_fails_is_one_warning_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    seen = []

    def leaving(directory, resumed):
        def write(step, values):
            if step == 2:
                raise ConnectionError("the server\nhas gone")

        return write, lambda: seen.append("closed")

    staying = lambda directory, resumed: (lambda step, values: seen.append((step, values["train.loss"])), lambda: None)
    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setattr(sinks, "SINKS", {"mlflow": leaving, "wandb": staying})
    log_three(tmp_path, "mlflow", "wandb")
    assert steps(tmp_path) == [1, 2, 3] and [step for step, _ in seen] == [1, 2, 3]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "--train.log mlflow failed" in said and "the server has gone" in said


@pytest.mark.parametrize("name", sinks.SINKS)
def test_a_missing_package_is_one_line_that_names_the_extra(name, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(InputError, match=rf"not installed: pip install \w+ .*'\.\[(train|{name})\]'"), explained():
        sinks.check([name])


def test_only_known_sinks_are_options():
    assert set(sinks.SINKS) == set(sinks.PACKAGES)
    assert Train(log=tuple(sinks.SINKS)).log == tuple(sinks.SINKS)
    with pytest.raises(InputError, match="perhaps you meant wandb"):
        Train(log=("tensorboard", "wandbb"))


@pytest.mark.slow
def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log_three(tmp_path, "wandb")
    [run] = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    assert run.stat().st_size > 0 and (tmp_path / "wandb_id.txt").read_text() in run.name


@pytest.mark.slow
def test_mlflow_goes_on_with_its_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    run = tmp_path / "run"
    run.mkdir()
    log_three(run, "mlflow")
    log_three(run, "mlflow")
    [kept] = (tmp_path / "store").glob("*/*/metrics/train.loss")
    assert [line.split()[1:] for line in kept.read_text().splitlines()] == [
        ["1.0", "1"], ["0.5", "2"], ["0.3333333333333333", "3"]
    ], "each step once"  # fmt: skip


def events(directory):
    """(step, whether a session starts, tags) of every event in the order that TensorBoard reads the files.

    A record is length, checksum, event, checksum.
    """
    from tensorboardX.proto.event_pb2 import Event

    for path in sorted((directory / "tensorboard").iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content = path.read_bytes()
        while content:
            length = int.from_bytes(content[:8], "little")
            event = Event.FromString(content[12 : 12 + length])
            content = content[16 + length :]
            yield event.step, event.session_log.status == 1, [value.tag for value in event.summary.value]


def test_steps_after_the_checkpoint_are_in_tensorboard_once(tmp_path):
    """Three steps are logged and the checkpoint is of step 1; TensorBoard drops all from a session's start on."""
    log_three(tmp_path, "tensorboard")
    [first] = (tmp_path / "tensorboard").iterdir()
    first.rename(first.with_name(f"{first.name}.first"))  # its name is that of the second in which it was begun
    log = MetricsLog(tmp_path, 1, 0, ("tensorboard",))
    for step in (2, 3, 4):
        log.write(step, **{"train.loss": 1.0 / step})
    log.close()
    shown = []
    for step, starts, tags in events(tmp_path):
        shown = [one for one in shown if one < step] if starts else shown + [step] * len(tags)
    assert shown == [1, 2, 3, 4] == steps(tmp_path)


class Server:
    """What `sinks.mlflow` uses of an MlflowClient."""

    def __init__(self):
        self.written = []

    def get_metric_history(self, run, name):
        return [metric for metric in self.written if metric.key == name]

    def log_batch(self, run, metrics):
        self.written += metrics

    def __getattr__(self, name):
        return lambda *_, **__: types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"), experiment_id="1")


def test_steps_after_the_checkpoint_are_in_mlflow_once(tmp_path, monkeypatch):
    server = Server()
    metric = collections.namedtuple("Metric", "key value timestamp step")
    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=lambda: server))
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=metric))
    log_three(tmp_path, "mlflow")
    log = MetricsLog(tmp_path, 1, 0, ("mlflow",))
    for step in (2, 3, 4):
        log.write(step, **{"train.loss": 1.0 / step})
    log.close()
    assert [one.step for one in server.written] == [1, 2, 3, 4]
