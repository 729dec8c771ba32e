"""Metric loggers besides metrics.jsonl: TensorBoard, Weights & Biases and MLflow (`--train.log`).

A sink is a function of a run's directory and the step that it resumes from, and returns `write(step, {name: number})`
and `close(status)`, which may be called again with another status. Steps after that one, which an interrupted process
has logged, come again, with the same values, and must be there once. A missing package is an error before training; a
sink that fails later is disabled with one warning.
"""

import contextlib
import functools
import importlib.util
import json
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from attention_jax.files import directory_lock, write_atomically

Status = Literal["FINISHED", "FAILED", "KILLED"]
"""How a run ended, in MLflow's words: KILLED was stopped, by a signal or by its sweep, and may be resumed."""
Sink = tuple[Callable[[int, dict[str, float]], object], Callable[[Status], object]]


def tensorboard(directory: Path, resumed: int) -> Sink:
    """Write event files to DIRECTORY/tensorboard; TensorBoard drops what earlier ones have after step `resumed`.

    It reads them in the order of their names, which begin with the time. The new one is named to be the last, also if
    the clock went back.
    """
    from tensorboardX import SummaryWriter

    place, unique = directory / "tensorboard", uuid.uuid4().hex[:8]
    earlier = set(place.glob("events.out.tfevents.*"))
    board = SummaryWriter(str(place), purge_step=resumed + 1, filename_suffix=f".{unique}")
    last = max(earlier, default=None)
    for new in {*place.glob("events.out.tfevents.*")} - earlier if last else ():
        if new < last:
            new.rename(f"{last}.{unique}")

    def write(step, values):
        for name, value in values.items():
            board.add_scalar(name.replace(".", "/"), value, step)

    return write, lambda status: board.close()


def wandb(directory: Path, resumed: int) -> Sink:
    """Log to a run of the project named after the experiment, and resume it with the run. With WANDB_MODE=offline only
    files in DIRECTORY/wandb are written. It ignores steps that it has. Without a key it fails, and does not ask."""
    import wandb

    id_path = directory / "wandb_id.txt"
    with _without_input():
        run = wandb.init(
            project=_config(directory)["name"],
            name="/".join(directory.parts[-2:]),
            dir=str(directory),
            config=_config(directory),
            id=_tracking_id(id_path),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(silent=True, init_timeout=30),
        )
    write_atomically(id_path, f"{run.id}\n{directory.resolve()}")
    close = lambda status: run.finish(exit_code=int(status != "FINISHED"))
    return lambda step, values: run.log(values, step=step), close


def mlflow(directory: Path, resumed: int) -> Sink:
    """Log to a run of the MLflow experiment of the same name at MLFLOW_TRACKING_URI, and resume it with the run. Steps
    that it has are not written again."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # training does not wait minutes for a server
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    config, id_path = _config(directory), directory / "mlflow_run.txt"
    with _first_use():
        client = MlflowClient()
        if run := _tracking_id(id_path):
            client.update_run(run, status="RUNNING")
        else:
            experiment = _experiment(client, config["name"])
            run = client.create_run(experiment, run_name="/".join(directory.parts[-2:])).info.run_id
            write_atomically(id_path, f"{run}\n{directory.resolve()}")
            client.set_tag(run, "config", json.dumps(config)[:5000])
    now = lambda: int(1000 * time.time())

    @functools.cache
    def last(name: str) -> int:
        return max((metric.step for metric in client.get_metric_history(run, name)), default=-1)

    def write(step, values):
        if fresh := [Metric(name, x, now(), step) for name, x in values.items() if step > last(name)]:
            client.log_batch(run, fresh)

    return write, lambda status: client.set_terminated(run, status=status)


def _tracking_id(path: Path) -> str | None:
    """The id in the first line of a file; None, with a note, if the run's directory is not that of the second line:
    the steps of a run and of its copy must not be mixed."""
    if not path.exists():
        return None
    identifier, _, place = path.read_text(encoding="utf-8").partition("\n")
    if place in ("", str(path.parent.resolve())):
        return identifier
    print(f"note: {path.parent} was copied or moved from {place}, and is logged as a new run", file=sys.stderr)
    return None


@contextlib.contextmanager
def _without_input():
    """Context in which standard input is no terminal that a question could be asked in."""
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin


def _first_use():
    """Context that one process of this machine is in at a time: the first one makes the tables of a new database, in
    which several would be in each other's way. A server does that itself."""
    if os.environ.get("MLFLOW_TRACKING_URI", "").startswith(("http", "databricks")):
        return contextlib.nullcontext()
    directory = Path(tempfile.gettempdir(), f"attention_jax-mlflow-{os.getuid()}")
    directory.mkdir(exist_ok=True)
    return directory_lock(directory)


def _experiment(client, name: str) -> str:
    """Return the id of the experiment of this name, which is created if need be."""
    if existing := client.get_experiment_by_name(name):
        return existing.experiment_id
    try:
        return client.create_experiment(name)
    except Exception:  # MlflowException: a run that began at the same time has created it
        if existing := client.get_experiment_by_name(name):
            return existing.experiment_id
        raise


SINKS = {"tensorboard": tensorboard, "wandb": wandb, "mlflow": mlflow}
PACKAGES = {"tensorboard": "tensorboardX", "wandb": "wandb", "mlflow": "mlflow"}


def check(names: Sequence[str]):
    """Raise ModuleNotFoundError for a package that a sink needs and that is not installed."""
    for name in names:
        if importlib.util.find_spec(PACKAGES[name]) is None:
            raise ModuleNotFoundError(f"No module named {PACKAGES[name]!r}", name=PACKAGES[name])


class Sinks:
    """The sinks of one run, without those that have failed."""

    def __init__(self, names: Sequence[str], directory: Path, resumed: int = 0):
        check(names)
        self.open: dict[str, Sink] = {}
        for name in names:
            self._try(name, lambda name=name: self.open.update({name: SINKS[name](directory, resumed)}))

    def write(self, step: int, values: dict):
        """Write the numbers among `values` to every sink."""
        numbers = {name: float(x) for name, x in values.items() if isinstance(x, int | float)}
        for name, (write, _) in list(self.open.items()):
            self._try(name, lambda write=write: write(step, numbers))

    def close(self, status: Status = "FINISHED"):
        for name, (_, close) in list(self.open.items()):
            self._try(name, lambda close=close: close(status))

    def _try(self, name: str, act: Callable[[], object]):
        try:
            act()
        except Exception as error:  # a failing server or client does not stop training
            self.open.pop(name, None)
            reason = " ".join(str(error).split())[:200]
            print(f"warning: --train.log {name} failed and is disabled: {reason}", file=sys.stderr)


def _config(directory: Path) -> dict:
    """Return the run's config.json; without one, its directory's name."""
    path = directory / "config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"name": directory.name}
