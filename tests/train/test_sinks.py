"""Metrics also go where they are asked to go, and nothing that fails there ends a training."""

import collections
import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from attention_jax import tasks
from attention_jax.config import Config, Dates, Decode, LuongSeq2seqConfig, Train, replace
from attention_jax.errors import Diverged, InputError, Interrupted, explain_errors
from attention_jax.files import directory_lock, write_json
from attention_jax.runs import lifecycle
from attention_jax.sweep import batch
from attention_jax.train import loop, sinks
from attention_jax.train.log import MetricsLog
from attention_jax.train.run import Run

TINY = Config(
    "tiny",
    Dates(examples=100),
    LuongSeq2seqConfig(hidden_size=4, embed_size=4),
    train=Train(total_epochs=1, max_steps=1, best_metric="train.loss"),
    decode=Decode(),
)


def log_three(directory, *names, checkpoint=0):
    """Three steps logged for these sinks in a run's directory, after a checkpoint of this step."""
    (directory / "config.json").write_text(json.dumps({"name": "toy"}))
    log = MetricsLog(directory, checkpoint, 0, names)
    for step in range(checkpoint + 1, checkpoint + 4):
        log.write(step, **{"train.loss": 1.0 / step})
    log.close()


def steps(directory):
    return [json.loads(line)["step"] for line in (directory / "metrics.jsonl").read_text().splitlines()]


def test_failing_sink_warns_once(tmp_path, monkeypatch, capsys):
    calls = []

    def leaving(directory, resumed):
        def write(step, values):
            if step == 2:
                raise ConnectionError("the server\nhas gone")

        return write, calls.append

    staying = lambda directory, resumed: (lambda step, values: calls.append((step, values["train.loss"])), print)
    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setattr(sinks, "SINKS", {"mlflow": leaving, "wandb": staying})
    log_three(tmp_path, "mlflow", "wandb")
    assert steps(tmp_path) == [1, 2, 3] and [step for step, _ in calls] == [1, 2, 3]
    stderr = capsys.readouterr().err
    assert stderr.count("\n") == 1 and "--train.log mlflow failed" in stderr and "the server has gone" in stderr


@pytest.mark.parametrize("name", sinks.SINKS)
def test_missing_sink_package_names_extra(name, monkeypatch):
    monkeypatch.setattr(sinks.importlib.util, "find_spec", lambda package: None)
    with pytest.raises(InputError, match=rf"not installed: pip install \w+ .*'\.\[(train|{name})\]'"), explain_errors():
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
    assert run.stat().st_size > 0 and (tmp_path / "wandb_id.txt").read_text().split()[0] in run.name


@pytest.mark.slow
def test_mlflow_goes_on_with_its_run(tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'store'}")
    run = tmp_path / "run"
    run.mkdir()
    log_three(run, "mlflow")
    log_three(run, "mlflow")
    [log_file] = (tmp_path / "store").glob("*/*/metrics/train.loss")
    assert [line.split()[1:] for line in log_file.read_text().splitlines()] == [
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
    log_three(tmp_path, "tensorboard", checkpoint=1)
    visible_steps = []
    for step, starts, tags in events(tmp_path):
        visible_steps = (
            [earlier for earlier in visible_steps if earlier < step] if starts else visible_steps + [step] * len(tags)
        )
    assert visible_steps == [1, 2, 3, 4] == steps(tmp_path)


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


def use_client(monkeypatch, client):
    """MLflow with this client in the place of its own."""
    metric = collections.namedtuple("Metric", "key value timestamp step")
    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setitem(sys.modules, "mlflow", types.SimpleNamespace(MlflowClient=lambda: client))
    monkeypatch.setitem(sys.modules, "mlflow.entities", types.SimpleNamespace(Metric=metric))


def test_steps_after_the_checkpoint_are_in_mlflow_once(tmp_path, monkeypatch):
    server = Server()
    use_client(monkeypatch, server)
    log_three(tmp_path, "mlflow")
    log_three(tmp_path, "mlflow", checkpoint=1)
    assert [entry.step for entry in server.written] == [1, 2, 3, 4]


class Statuses(Server):
    """A client that keeps every status of its run."""

    def __init__(self):
        super().__init__()
        self.statuses = []

    def update_run(self, run, status=None, name=None):
        self.statuses.append(status)

    def set_terminated(self, run, status=None, end_time=None):
        self.statuses.append(status or "FINISHED")


@pytest.mark.parametrize(
    "error, failure, step, status",
    [
        (None, None, 2, "FINISHED"),
        (Interrupted(1), None, 1, "KILLED"),
        (SystemExit(143), None, 1, "KILLED"),
        (None, None, 1, "KILLED"),  # a sweep stops it after a rung
        (InputError("no image file"), None, 1, "FAILED"),
        (RuntimeError("a fault"), None, 2, "FAILED"),
        (None, Diverged(1, float("nan")), 1, "FAILED"),
    ],
)
def test_mlflow_knows_how_a_run_ended(tmp_path, monkeypatch, error, failure, step, status):
    client = Statuses()
    use_client(monkeypatch, client)
    run = Run(Train(log=("mlflow",)), lambda *_: [], 2, tmp_path, quiet=True)
    run.begin(None)
    run.step, run.failure = step, failure
    run.close(error)
    assert client.statuses == [status]
    again = MetricsLog(tmp_path, 1, 0, ("mlflow",))
    again.close("FINISHED")
    assert client.statuses == [status, "RUNNING", "FINISHED"], "a run that goes on is running until it ends"


def test_a_run_whose_final_evaluation_fails_has_failed(tmp_path, monkeypatch):
    client = Statuses()
    use_client(monkeypatch, client)

    def train_nothing(task, optim, train, directory, **_):
        run = Run(train, lambda *_: [], 0, directory, quiet=True)
        run.begin(None)
        run.close()
        return run, None

    monkeypatch.setattr(loop, "train_one", train_nothing)
    monkeypatch.setattr(lifecycle, "finish", lambda *_: (_ for _ in ()).throw(RuntimeError("no figure")))
    with pytest.raises(RuntimeError):
        lifecycle.start(replace(TINY, **{"train.log": ("mlflow",)}), tmp_path / "run", quiet=True)
    assert client.statuses == ["FINISHED", "FAILED"]


@pytest.mark.parametrize(
    "error, status",
    [(RuntimeError("no evaluation"), "FAILED"), (Interrupted(1), "KILLED"), (None, "FINISHED")],
)
def test_members_of_a_population_whose_final_evaluation_fails_have_failed(tmp_path, monkeypatch, error, status):
    """The first one diverges in it; the second one meets the error."""
    client = Statuses()
    use_client(monkeypatch, client)

    def fit(program, start, task, members, *_):
        members.begin(None)
        for run in members.runs:
            run.step = run.total_steps
        members.close(None)

    def finish(config, task, run, params, **_):
        if config.train.seed == 0:
            run.failure = Diverged(1, float("nan"))
            raise run.failure
        if error:
            raise error
        write_json(run.directory / "result.json", {"metrics": {}, "history": []})

    monkeypatch.setattr(batch, "fit", fit)
    for name in ("initial_states", "Population", "final_params"):
        monkeypatch.setattr(batch, name, lambda *_: None)
    monkeypatch.setattr(lifecycle, "finish", finish)
    config = replace(TINY, **{"train.log": ("mlflow",)})
    members = [batch.Member(replace(config, **{"train.seed": n}), tmp_path / str(n)) for n in (0, 1)]
    with pytest.raises(type(error)) if error else contextlib.nullcontext():
        batch.train_batch(members, [tasks.build(config)] * 2, tmp_path / "group")
    assert client.statuses == ["FINISHED", "FINISHED", "FAILED", *[status] * bool(error)]


class Taken(Statuses):
    """A server on which another run creates the experiment between the question and the answer."""

    def __init__(self, answers):
        super().__init__()
        self.answers = answers

    def get_experiment_by_name(self, name):
        return self.answers.pop(0)

    def create_experiment(self, name):
        raise RuntimeError(f"Experiment(name={name}) already exists")

    def create_run(self, experiment, run_name):
        self.experiment = experiment
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))


def test_two_simultaneous_runs_are_both_logged(tmp_path, monkeypatch, capsys):
    client = Taken([None, types.SimpleNamespace(experiment_id="7")])
    use_client(monkeypatch, client)
    log_three(tmp_path, "mlflow")
    assert client.experiment == "7" and [entry.step for entry in client.written] == [1, 2, 3]
    assert not capsys.readouterr().err
    use_client(monkeypatch, Taken([None, None]))
    (tmp_path / "mlflow_run.txt").unlink()
    log_three(tmp_path, "mlflow")
    assert "already exists" in capsys.readouterr().err, "an error that stays is told"


@pytest.mark.parametrize("uri, alone", [("sqlite:///new.db", True), ("", True), ("http://localhost:5000", False)])
def test_new_database_is_initialized_by_one_process(tmp_path, monkeypatch, uri, alone):
    """Several would make its tables at the same time: MLflow 3.17 then fails with "duplicate column name"."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr(sinks.tempfile, "gettempdir", lambda: str(tmp_path))
    lock_states = []

    class Client(Statuses):
        def create_run(self, experiment, run_name):
            [place] = tmp_path.glob("attention_jax-mlflow-*") if alone else [tmp_path]
            with pytest.raises(InputError) if alone else contextlib.nullcontext(), directory_lock(place, wait=False):
                lock_states.append(not alone)
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="1"))

    use_client(monkeypatch, Client())
    log_three(tmp_path, "mlflow")
    assert lock_states == [True] * (not alone) and (tmp_path / "mlflow_run.txt").exists()


def test_a_name_has_one_value_at_a_step(tmp_path, monkeypatch):
    """The last step of an epoch has a loss, and so has the epoch: 0.5 and the mean, 0.75."""
    logged_names = []
    keep = lambda directory, resumed: (lambda step, values: logged_names.extend((step, name) for name in values), print)
    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setattr(sinks, "SINKS", {"wandb": keep})
    run = Run(Train(log=("wandb",), best_metric="train.loss"), lambda *_: [], 2, tmp_path, quiet=True)
    run.begin(None)
    for loss in (1.0, 0.5):
        run.record(0, np.ones((1, 1)), {"loss": (np.array([loss]), np.array([1.0]))})
    run.end_epoch(1, {"valid.loss": 2.0})
    run.close()
    assert len(logged_names) == len(set(logged_names)) and {
        (1, "train.loss"),
        (2, "train.loss"),
        (2, "train.loss_epoch"),
    } <= {*logged_names}
    assert (2, "valid.loss") in logged_names
    [*_, row] = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert row["train.loss"] == 0.75 and row["epoch"] == 1, "the names in metrics.jsonl are those of always"


@pytest.mark.parametrize("earlier", ["events.out.tfevents.9999999999.zz", "events.out.tfevents.0000000001.a"])
def test_newest_tensorboard_file_sorts_last(tmp_path, earlier):
    """TensorBoard reads them in that order, and a clock may go back."""
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / earlier).write_bytes(b"")
    for first in (0, 3):
        log = MetricsLog(tmp_path, first, 0, ("tensorboard",))
        log.write(first + 1, **{"train.loss": 1.0})
        log.close()
        [*_, last] = sorted((tmp_path / "tensorboard").iterdir())
        assert b"train/loss" in last.read_bytes() and last.stat().st_size == max(
            path.stat().st_size for path in (tmp_path / "tensorboard").iterdir()
        )
    assert len(list((tmp_path / "tensorboard").iterdir())) == 3


def test_wandb_finds_no_terminal_to_ask_in(tmp_path, monkeypatch, capsys):
    """The client asks for a key where standard input and error are terminals, and raises elsewhere."""
    terminal = types.SimpleNamespace(isatty=lambda: True)

    def init(**_):
        assert not sys.stdin.isatty(), "it asks, and training waits"
        raise RuntimeError("No API key configured. Use `wandb login` to log in.")

    monkeypatch.setattr(sinks, "check", lambda names: None)
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=init, Settings=lambda **_: None))
    monkeypatch.setattr(sys, "stdin", terminal)
    log_three(tmp_path, "wandb")
    assert sys.stdin is terminal and steps(tmp_path) == [1, 2, 3]
    assert "--train.log wandb failed and is disabled: No API key" in capsys.readouterr().err


@pytest.mark.slow
def test_simultaneous_runs_in_new_database_are_logged(tmp_path, runs=3):
    pytest.importorskip("mlflow", reason="the extra mlflow is not installed")
    script = "import sys, pathlib; from test_sinks import log_three; log_three(pathlib.Path(sys.argv[1]), 'mlflow')"
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/new.db"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[2])])
    processes = []
    for number in range(runs):
        (tmp_path / str(number)).mkdir()
        command = [sys.executable, "-c", script, str(tmp_path / str(number))]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path))
    outputs = [process.communicate()[1] for process in processes]
    assert not any("failed and is disabled" in text for text in outputs), outputs
    with contextlib.closing(sqlite3.connect(tmp_path / "new.db")) as database:
        assert database.execute("select status from runs").fetchall() == [("FINISHED",)] * runs
        assert database.execute("select step from metrics order by step").fetchall() == [
            (step,) for step in (1, 2, 3) for _ in range(runs)
        ]


def test_copy_of_a_run_is_tracked_as_another(tmp_path, monkeypatch, capsys):
    """Resumed in its place, it goes on; files of earlier versions do not say the place."""

    class Numbered(Statuses):
        created = 0

        def create_run(self, experiment, run_name):
            self.created += 1
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id=str(self.created)))

    client = Numbered()
    use_client(monkeypatch, client)
    (tmp_path / "a").mkdir()
    log_three(tmp_path / "a", "mlflow")
    log_three(tmp_path / "a", "mlflow")
    assert client.created == 1 and not capsys.readouterr().err
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    log_three(tmp_path / "b", "mlflow")
    assert client.created == 2 and f"b was copied or moved from {tmp_path}/a" in capsys.readouterr().err
    log_three(tmp_path / "b", "mlflow")
    (tmp_path / "a" / "mlflow_run.txt").write_text("7")
    log_three(tmp_path / "a", "mlflow")
    assert client.created == 2
