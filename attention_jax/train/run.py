"""`Run`: the history, logs and stopping rule of a run, which `loop.fit` trains."""

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np

from attention_jax.errors import Diverged, InputError, Interrupted, lower_is_better
from attention_jax.files import write_atomically
from attention_jax.train import hosts, sinks
from attention_jax.train.log import MetricsLog, Pace, Progress, Status, scalars

LARGEST = float(np.sqrt(np.finfo(np.float32).max))
"""The square of a larger mean loss (1.8e19) overflows float32: the run has diverged, even without a NaN."""


class Run:
    """One run in `directory` of at most `total_steps` optimizer steps.

    `train` is a `config.Train`, `plan(epoch, steps_per_call)` returns the chunks of an epoch (data/batches.py), and
    `share` is the number of runs that train at the same time, by which the elapsed time is divided. `attention` is an
    `attention_log.AttentionLog` or None.
    """

    def __init__(self, train, plan, total_steps: int, directory: Path, *, share=1, quiet=False, attention=None):
        self.train, self.total_steps, self.directory, self.share = train, total_steps, Path(directory), share
        self.plan = lambda epoch: plan(epoch, train.steps_per_call)
        self.quiet = quiet or not hosts.is_primary()
        self.step = self.first = self.examples = 0
        self.history, self.failure = [], None
        self.past, self.started = np.zeros(2), None  # seconds before this process, and its `clocks` when it began
        self.calls = []  # the metrics of this epoch's calls
        self.steps_in_chunk = 0  # of a chunk inside which the last step was
        self.pace = Pace()
        self.attention, self.observed = attention, 0

    def begin(self, progress: dict | None):
        """Resume from `progress`, or start if it is None; open the log."""
        if progress:
            self.step, self.examples, self.history = progress["step"], progress["examples"], progress["history"]
            self.past = np.array([progress["seconds"], progress.get("processor_seconds", np.nan)])
            self.failure = progress["failure"] and Diverged(*progress["failure"])
            self.calls = [
                {name: tuple(map(as_array, pair)) for name, pair in call.items()} for call in progress["calls"]
            ]
            self.steps_in_chunk = progress["done"]
            if self.calls and not self.failure and self.step < self.total_steps:
                self.history = [row for row in self.history if row["step"] < self.step]  # its last epoch continues
        self.log = MetricsLog(self.directory, self.step, len(self.history), self.train.log)
        self.first = self.observed = self.step  # of this process
        self.status, self.timed = Status(self.directory, self.total_steps), None
        if self.step and self.active and not self.quiet:
            print(f"training goes on from step {self.step} of {self.total_steps}", flush=True)
        self.bar = Progress(self.total_steps, self.step, self.quiet)
        self.started = clocks()
        self.pace.begin(self.examples)

    def progress(self) -> dict:
        """Return the state that `begin` resumes from, as JSON values."""
        failure = [self.failure.step, self.failure.loss] if self.failure else None
        calls = [{name: [values.tolist() for values in pair] for name, pair in call.items()} for call in self.calls]
        state = {"step": self.step, "examples": self.examples, "history": list(self.history), "calls": calls}
        seconds, processor_seconds = map(float, self.both_seconds())
        state |= {"seconds": seconds, "processor_seconds": processor_seconds}
        return state | {"done": self.steps_in_chunk, "failure": failure}

    def both_seconds(self) -> np.ndarray:
        """Return the seconds of training so far, including earlier processes, and the processor seconds of all threads,
        which depend less on what else the machine does."""
        return self.past + (0.0 if self.started is None else (clocks() - self.started) / self.share)

    def seconds(self) -> float:
        """Return the seconds of training so far, including earlier processes."""
        return float(self.both_seconds()[0])

    def seconds_left(self) -> float | None:
        """Estimate the seconds to the last step from the pace after the first call, which compiles; None before it."""
        now = time.perf_counter()
        began, first = self.timed = self.timed or (now, self.step)
        return (now - began) / (self.step - first) * (self.total_steps - self.step) if self.step > first else None

    @property
    def active(self) -> bool:
        """Whether it is still training: not diverged, not at its last step or epoch, and not out of patience."""
        ended = self.step >= self.total_steps or len(self.history) >= self.train.total_epochs
        return not (self.failure or ended or self.stale())

    def stale(self) -> bool:
        """Whether the last `patience` epochs brought no improvement (early stopping)."""
        if not (self.train.patience and self.history):
            return False
        return len(self.history) - 1 - last_improvement(self.qualities(), self.train.min_delta) >= self.train.patience

    def why_stopped(self) -> str:
        """Return in one line why nothing was trained, or that training ended early for lack of improvement; or ""."""
        if self.failure or self.active:
            return ""
        if self.step >= self.total_steps or len(self.history) >= self.train.total_epochs:
            behind = f"nothing to train: the run has its {self.step} steps behind it; more are"
            return f"{behind} a larger --train.total-epochs or --train.max-steps" if self.step == self.first else ""
        train, best = self.train, 1 + last_improvement(self.qualities(), self.train.min_delta)
        return (
            f"stopped after epoch {len(self.history)}: {train.best_metric} has not improved since epoch {best}; "
            f"a --train.patience larger than {train.patience}, or 0, continues"
        )

    def qualities(self) -> np.ndarray:
        """Return each metric of `best_metric` after each epoch, [epochs, metrics], signed so that higher is better."""
        names = self.train.best_metric.split(",")
        return np.array([[comparable(quality(row, name)) for name in names] for row in self.history])

    def mask_finished_steps(self, weight: np.ndarray) -> np.ndarray:
        """Set the weights [K, B] of steps to 0 that are done or beyond the last one; all, if the run has ended."""
        steps, finished_steps = np.cumsum(weight.sum(1) > 0), self.steps_in_chunk  # [K]
        most = finished_steps + self.total_steps - self.step
        self.steps_in_chunk = most if self.active and most < steps[-1] else 0
        return weight * (self.active & (finished_steps < steps) & (steps <= most))[:, None].astype(weight.dtype)

    def record(self, epoch: int, weight: np.ndarray, metrics: dict, waited: float = 0.0):
        """Record the metrics {name: (sums [K], counts [K])} of a call with `weight` [K, B], unless the run has ended.

        `waited` is the seconds spent waiting for data since this process began.
        """
        if not self.active:
            return
        total, count = metrics["loss"]
        mean, steps = total / np.where(count > 0, count, 1), self.step + np.cumsum(count > 0)
        bad = (count > 0) & ~(np.abs(mean) <= LARGEST)  # also true of NaN
        if bad.any():
            self.failure, self.calls = Diverged(int(steps[bad.argmax()]), float(mean[bad.argmax()])), []
            return
        self.step, self.examples = int(steps[-1]), self.examples + int((weight > 0).sum())
        self.calls.append(metrics)
        self.log.write(self.step, epoch=epoch, **scalars(metrics))
        self.pace.update(self.examples, waited)
        self.bar.step(self.step, scalars(metrics)["train.loss"], self.pace)
        self.status.write("training", self.step, self.pace, self.seconds_left())

    def log_attention(self, params: Callable):
        """Log statistics of the attention with `params()` if the last call has passed a multiple of
        `--train.log-attention` steps."""
        every, previous_step = self.train.log_attention, self.observed
        self.observed = self.step
        if self.attention and not self.failure and previous_step // every < self.step // every:
            self.log.write(self.step, **self.attention(params()))

    def evaluate(self, task, params, epoch: int, whole: bool):
        """Evaluate a run that has trained in `epoch`, and log the metrics."""
        if self.calls:
            evaluation = task.evaluate(params, False)
            self.end_epoch(epoch, evaluation.metrics, whole)
            self.write_samples(evaluation.samples)

    def end_epoch(self, epoch: int, evaluated: dict, whole: bool = True):
        """Log an epoch: the means over its steps, and the metrics `evaluated` after it.

        An epoch that is not `whole`, cut short by the last step, may be resumed with more steps: its metrics are kept.
        """
        sums = {name: [np.concatenate([c[name][i] for c in self.calls]) for i in (0, 1)] for name in self.calls[0]}
        values, self.calls = hosts.broadcast({**scalars(sums), **evaluated}), [] if whole else self.calls
        row = {"epoch": epoch, "step": self.step, "seconds": round(self.seconds(), 2), **values}
        for name in self.train.best_metric.split(","):
            quality(row, name)  # InputError for an unknown metric, before anything is saved
        self.history.append(row)
        losses = [divergent_loss(row) for row in (self.history if self.train.use_best else [row])]
        if not self.active and None not in losses:  # before that, the next epoch may be better
            self.failure = Diverged(self.step, losses[-1])
        self.log.write(self.step, **{name: value for name, value in row.items() if name != "step"})
        self.bar.epoch(row, self.pace)
        self.pace.begin(self.examples)

    def check_parameters(self, params):
        """Mark a run that has trained in this epoch as diverged if its parameters are not finite: each loss is that
        before an update, so the loop has not seen what the last update gave."""
        if self.calls and not all(np.isfinite(x).all() for x in jax.tree.leaves(params)):
            self.failure, self.calls = Diverged(self.step, None), []

    def write_samples(self, samples: tuple[str, ...]):
        """Write text that the model generated after an epoch to samples.txt, until the final report replaces it."""
        if samples and hosts.is_primary():
            with contextlib.suppress(OSError):
                write_atomically(self.directory / "samples.txt", "\n".join(samples) + "\n")

    def qualities_after(self, epoch: int) -> list[float]:
        """Return the step after `epoch` if that is the best epoch so far, else -inf (also if the run had ended before):
        one value, as a population of runs has one for each.

        Of equal metrics the lower loss of their split is better, and else the earlier epoch. With several metrics an
        epoch is the best so far if no earlier one is better in any.
        """
        if not self.history or self.history[-1]["epoch"] != epoch:
            return [-np.inf]
        values = self.qualities()
        if values.shape[1] > 1:
            is_best = is_running_max(values)[-1].all()
        else:
            loss = f"{self.train.best_metric.rpartition('.')[0]}.loss"
            ranks = [(value, comparable(-row.get(loss, 0.0))) for value, row in zip(values[:, 0], self.history)]
            is_best = ranks.index(max(ranks)) == len(ranks) - 1
        return [float(self.step) if is_best else -np.inf]

    def close(self, error: BaseException | None = None):
        """Stop the clock and close the log; `error` is what ended the training before its end, if anything did."""
        self.write_status()
        self.past, self.started = self.both_seconds(), None
        self.bar.close()
        self.log.close(self.exit_status(error))

    def exit_status(self, error: BaseException | None) -> sinks.Status:
        """Return how training ended, in the words of the loggers."""
        stopped = isinstance(error, Interrupted | KeyboardInterrupt | SystemExit)
        if self.failure or (error and not stopped):
            return "FAILED"
        return "KILLED" if stopped or self.active else "FINISHED"

    def write_status(self):
        """Write how training has ended to progress.json, if the directory is still that of this run."""
        state = "diverged" if self.failure else "stopped" if self.active else "trained"
        if self.log.is_in_place():
            self.status.write(state, self.step, self.pace, self.seconds_left())


def clocks() -> np.ndarray:
    """Return the time and the processor time of this process, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def divergent_loss(metrics: dict) -> float | None:
    """Return the loss by which an evaluation shows divergence (see LARGEST), or None if it has one that does not.

    A model may fail on one split alone, such as that of longer sequences: that is a result.

    >>> divergent_loss({"train.loss": 4.1, "valid.loss": float("nan"), "valid.accuracy": 0.0})
    nan
    >>> divergent_loss({"valid.loss": 2.0, "test_longer.loss": float("inf")})
    """
    losses = [x for name, x in metrics.items() if name.endswith(".loss") and not name.startswith("train.")]
    return None if any(abs(loss) <= LARGEST for loss in losses) else next(iter(losses), None)


def quality(metrics: dict, name: str) -> float:
    """Return a metric, signed so that higher is better; InputError if there is none of this name.

    >>> quality({"valid.loss": 2.0}, "valid.loss"), quality({"valid.bleu": 2.0}, "valid.bleu")
    (-2.0, 2.0)
    """
    if name not in metrics:
        valid_names = [metric for metric in metrics if metric not in ("epoch", "step", "seconds")]
        raise InputError(f"train.best_metric must be one of {', '.join(valid_names)}; got {name}")
    return -metrics[name] if lower_is_better(name) else metrics[name]


def is_running_max(values: np.ndarray) -> np.ndarray:
    """Whether each value [epochs, metrics] is at least as large as all before it (Velickovic et al. 2018, section 3.3).

    >>> is_running_max(np.array([[1.0, 5.0], [2.0, 4.0], [2.0, 5.0]])).tolist()
    [[True, True], [True, False], [True, True]]
    """
    return values >= np.maximum.accumulate(values, axis=0)


def last_improvement(values: np.ndarray, min_delta: float) -> int:
    """Return the index of the last epoch in which a metric of [epochs, metrics] was better than the best before by more
    than `min_delta`; of several metrics, by at least that.

    >>> values = np.array([[1.0], [1.5], [1.6], [1.7]])
    >>> last_improvement(values, 0.0), last_improvement(values, 0.15), last_improvement(values, 0.3)
    (3, 3, 1)
    """
    better = np.greater if values.shape[1] == 1 else np.greater_equal
    best, last = values[0], 0
    for epoch, now in enumerate(values[1:], 1):
        improved = better(now, best + min_delta)
        best, last = np.where(improved, now, best), epoch if improved.any() else last
    return last


def comparable(value: float) -> float:
    """Replace NaN by -inf, worse than any other quality."""
    return -np.inf if np.isnan(value) else value


def as_array(values: list) -> np.ndarray:
    """Convert a list of sums or counts in `Run.progress` back to an array."""
    return np.array(values, np.float32 if isinstance(values[0], float) else None)
