"""Metric loggers besides metrics.jsonl: TensorBoard, Weights & Biases and MLflow (`--train.log`).

A sink is a function of a run's directory and the step that it resumes from, and returns `write(step, {name: number})`
and `close()`. Steps after that one, which an interrupted process has logged, come again, with the same values, and must
be there once. A missing package is an error before training; a sink that fails later is disabled with one warning.
"""

import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from attention_jax.files import write_atomically

Sink = tuple[Callable[[int, dict[str, float]], object], Callable[[], object]]


def tensorboard(directory: Path, resumed: int) -> Sink:
    """Write event files to DIRECTORY/tensorboard; TensorBoard drops what earlier ones have after step `resumed`."""
    from tensorboardX import SummaryWriter

    board = SummaryWriter(str(directory / "tensorboard"), purge_step=resumed + 1)

    def write(step, values):
        for name, value in values.items():
            board.add_scalar(name.replace(".", "/"), value, step)

    return write, board.close


def wandb(directory: Path, resumed: int) -> Sink:
    """Log to a run of the project named after the experiment, and resume it with the run. With WANDB_MODE=offline only
    files in DIRECTORY/wandb are written. It ignores steps that it has."""
    import wandb

    kept = directory / "wandb_id.txt"
    run = wandb.init(
        project=_config(directory)["name"],
        name="/".join(directory.parts[-2:]),
        dir=str(directory),
        config=_config(directory),
        id=kept.read_text() if kept.exists() else None,
        resume="allow",
        reinit="create_new",
        settings=wandb.Settings(silent=True, init_timeout=30),
    )
    write_atomically(kept, run.id)
    return lambda step, values: run.log(values, step=step), run.finish


def mlflow(directory: Path, resumed: int) -> Sink:
    """Log to a run of the MLflow experiment of the same name at MLFLOW_TRACKING_URI, and resume it with the run. Steps
    that it has are not written again."""
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")  # training does not wait minutes for a server
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    from mlflow import MlflowClient
    from mlflow.entities import Metric

    client, config, kept = MlflowClient(), _config(directory), directory / "mlflow_run.txt"
    if not kept.exists():
        known = client.get_experiment_by_name(config["name"])
        experiment = known.experiment_id if known else client.create_experiment(config["name"])
        run = client.create_run(experiment, run_name="/".join(directory.parts[-2:]))
        write_atomically(kept, run.info.run_id)
        client.set_tag(run.info.run_id, "config", json.dumps(config)[:5000])
    run, now = kept.read_text(), lambda: int(1000 * time.time())

    @functools.cache
    def last(name: str) -> int:
        return max((metric.step for metric in client.get_metric_history(run, name)), default=-1)

    def write(step, values):
        if fresh := [Metric(name, x, now(), step) for name, x in values.items() if step > last(name)]:
            client.log_batch(run, fresh)

    return write, lambda: client.set_terminated(run)


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

    def close(self):
        for name, (_, close) in list(self.open.items()):
            self._try(name, close)

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
