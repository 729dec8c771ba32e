"""`Run`: what one run remembers and says, and when it is over. `loop.fit` trains it, alone or beside others."""

import contextlib
import time
from pathlib import Path

import numpy as np

from attention_jax import Diverged, InputError, lower_is_better
from attention_jax.files import write_whole
from attention_jax.train import hosts
from attention_jax.train.log import MetricsLog, Pace, Progress, Status, scalars

LARGEST = float(np.sqrt(np.finfo(np.float32).max))
"""A mean loss beyond this (1.8e19) has no square in float32: the run has diverged, even where no NaN comes of it."""


class Run:
    """One run in `directory`, of at most `total_steps` optimizer steps; `train` is a `config.Train`.

    `plan(epoch)` gives the chunks of an epoch (data/batches.py). `share` runs train at the same time: each has its
    share of the seconds.
    """

    def __init__(self, train, plan, total_steps: int, directory: Path, *, share=1, quiet=False):
        self.train, self.total_steps, self.directory, self.share = train, total_steps, Path(directory), share
        self.plan = lambda epoch: plan(epoch, train.steps_per_call)
        self.quiet = quiet or not hosts.first()
        self.step = self.examples = 0
        self.history, self.failure = [], None
        self.past, self.started = 0.0, None  # seconds before this process, and when it began
        self.calls = []  # the metrics of this epoch's calls
        self.done = 0  # steps of a chunk inside which the last step was
        self.pace = Pace()

    def begin(self, progress: dict | None):
        """Go on from what `progress` said, or from nothing; open the log."""
        if progress:
            self.step, self.examples, self.history = progress["step"], progress["examples"], progress["history"]
            self.past, self.failure = progress["seconds"], progress["failure"] and Diverged(*progress["failure"])
            self.calls = [
                {name: tuple(map(as_array, parts)) for name, parts in call.items()}
                for call in progress.get("calls", [])
            ]
            self.done = progress.get("done", 0)
            if self.calls and not self.failure and self.step < self.total_steps:
                self.history = [row for row in self.history if row["step"] < self.step]  # its last epoch goes on
        self.log = MetricsLog(self.directory, self.step, len(self.history), self.train.log)
        self.status, self.timed = Status(self.directory, self.total_steps), None
        self.bar = Progress(self.total_steps, self.step, self.quiet)
        self.started = time.perf_counter()
        self.pace.begin(self.examples)

    def progress(self) -> dict:
        """What `begin` needs, as plain values."""
        failure = [self.failure.step, self.failure.loss] if self.failure else None
        calls = [{name: [part.tolist() for part in parts] for name, parts in call.items()} for call in self.calls]
        said = {"step": self.step, "examples": self.examples, "history": list(self.history), "calls": calls}
        return said | {"done": self.done, "seconds": self.seconds(), "failure": failure}

    def seconds(self) -> float:
        """Seconds of training so far, those of earlier processes included."""
        return self.past + (0.0 if self.started is None else (time.perf_counter() - self.started) / self.share)

    def seconds_left(self) -> float | None:
        """Until the last step, at the pace since the first call of this process, which compiles; None before that."""
        now = time.perf_counter()
        began, first = self.timed = self.timed or (now, self.step)
        return (now - began) / (self.step - first) * (self.total_steps - self.step) if self.step > first else None

    @property
    def open(self) -> bool:
        """Whether it trains on: it has not diverged, come to its last step or epoch, or run out of patience."""
        ended = self.step >= self.total_steps or len(self.history) >= self.train.total_epochs
        return not (self.failure or ended or self.stale())

    def stale(self) -> bool:
        """Whether the last `patience` epochs were no better than one before them."""
        if not (self.train.patience and self.history):
            return False
        values = self.qualities()
        several = values.shape[1] > 1
        latest = np.flatnonzero(unsurpassed(values).any(axis=1))[-1] if several else values.argmax()
        return len(values) - 1 - latest >= self.train.patience

    def qualities(self) -> np.ndarray:
        """Each metric of `best_metric` after each epoch [epochs, metrics], signed so that higher is better."""
        names = self.train.best_metric.split(",")
        return np.array([[comparable(quality(row, name)) for name in names] for row in self.history])

    def within(self, weight: np.ndarray) -> np.ndarray:
        """Weights [K, B] of a chunk, 0 in steps that are done, beyond the last one, and in all once the run is over."""
        steps, done = np.cumsum(weight.sum(1) > 0), self.done  # [K]
        most = done + self.total_steps - self.step
        self.done = most if self.open and most < steps[-1] else 0
        return weight * (self.open & (done < steps) & (steps <= most))[:, None].astype(weight.dtype)

    def note(self, epoch: int, weight: np.ndarray, metrics: dict, waited: float = 0.0):
        """Take in what a call made of `weight` [K, B], {name: (sums [K], counts [K])}; nothing if the run is over.

        `waited`: the seconds for which data were waited for, since this process began.
        """
        if not self.open:
            return
        total, count = metrics["loss"]
        mean, steps = total / np.where(count > 0, count, 1), self.step + np.cumsum(count > 0)
        bad = (count > 0) & ~(np.abs(mean) <= LARGEST)  # NaN is not smaller either
        if bad.any():
            self.failure, self.calls = Diverged(int(steps[bad.argmax()]), float(mean[bad.argmax()])), []
            return
        self.step, self.examples = int(steps[-1]), self.examples + int((weight > 0).sum())
        self.calls.append(metrics)
        self.log.write(self.step, epoch=epoch, **scalars(metrics))
        self.pace.note(self.examples, waited)
        self.bar.step(self.step, scalars(metrics)["train.loss"], self.pace)
        self.status.write("training", self.step, self.pace, self.seconds_left())

    def end_epoch(self, epoch: int, evaluated: dict, whole: bool = True):
        """Write the row of an epoch that has ended: the means of its steps, and what was `evaluated` after it.

        One that is not `whole`, cut short by the last step, may go on one day: its calls are kept.
        """
        sums = {name: [np.concatenate([c[name][i] for c in self.calls]) for i in (0, 1)] for name in self.calls[0]}
        values, self.calls = hosts.agree({**scalars(sums), **evaluated}), [] if whole else self.calls
        row = {"epoch": epoch, "step": self.step, "seconds": round(self.seconds(), 2), **values}
        for name in self.train.best_metric.split(","):
            quality(row, name)  # a metric that does not exist is said before anything is saved
        self.history.append(row)
        self.log.write(self.step, **{name: value for name, value in row.items() if name != "step"})
        self.bar.epoch(row, self.pace)
        self.pace.begin(self.examples)

    def show(self, samples: tuple[str, ...]):
        """Keep lines that the model wrote after an epoch in samples.txt, until its report writes them."""
        if samples and hosts.first():
            with contextlib.suppress(OSError):
                write_whole(self.directory / "samples.txt", "\n".join(samples) + "\n")

    def quality_after(self, epoch: int) -> float:
        """How good it was after `epoch`: worse than anything where it was over before.

        Of several metrics it is the number of the epoch where none was ever better in any of them.
        """
        if not self.history or self.history[-1]["epoch"] != epoch:
            return -np.inf
        values = self.qualities()
        if values.shape[1] == 1:
            return float(values[-1, 0])
        return float(epoch) if unsurpassed(values)[-1].all() else -np.inf

    def close(self):
        """Stop the clock, close the log."""
        state = "diverged" if self.failure else "stopped" if self.open else "trained"
        self.status.write(state, self.step, self.pace, self.seconds_left())
        self.past, self.started = self.seconds(), None
        self.bar.close()
        self.log.close()


def quality(metrics: dict, name: str) -> float:
    """The metric that decides what is best, signed so that higher is better.

    >>> quality({"valid.loss": 2.0}, "valid.loss"), quality({"valid.bleu": 2.0}, "valid.bleu")
    (-2.0, 2.0)
    """
    if name not in metrics:
        known = [metric for metric in metrics if metric not in ("epoch", "step", "seconds")]
        raise InputError(f"train.best_metric must be one of {', '.join(known)}; got {name}")
    return -metrics[name] if lower_is_better(name) else metrics[name]


def unsurpassed(values: np.ndarray) -> np.ndarray:
    """Whether each value [epochs, metrics] is at least as large as all before it (Velickovic et al. 2018, section 3.3).

    >>> unsurpassed(np.array([[1.0, 5.0], [2.0, 4.0], [2.0, 5.0]])).tolist()
    [[True, True], [True, False], [True, True]]
    """
    return values >= np.maximum.accumulate(values, axis=0)


def comparable(value: float) -> float:
    """A quality that is no number is worse than any other."""
    return -np.inf if np.isnan(value) else value


def as_array(values: list) -> np.ndarray:
    """Sums or counts of steps as they were before `Run.progress` made a list of them."""
    return np.array(values, np.float32 if isinstance(values[0], float) else None)
