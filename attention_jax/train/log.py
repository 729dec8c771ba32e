"""Logging of a run: metrics.jsonl, progress.json, environment.json, and progress on the terminal."""

import contextlib
import os
import platform
import sys
import threading
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from attention_jax import printing, provenance
from attention_jax.files import directory_removed_error, metrics_row, to_json, write_atomically, write_json
from attention_jax.train import hosts, sinks


class MetricsLog:
    """Writer of metrics.jsonl: one JSON object a line with its "step"; the line of an epoch has "seconds", too.

    On resuming, lines after `step` and after the first `epochs` epochs are removed, since the run writes them again. A
    full disk does not stop training: lines that could not be written are written with the next one that can. A
    directory that was removed or replaced does: what is trained would be lost.
    """

    def __init__(self, directory: Path, step: int, epochs: int, names: tuple[str, ...] = ()):
        self.path, self.unwritten, self.size = directory / "metrics.jsonl", b"", 0
        self.sinks = sinks.Sinks(names if hosts.is_primary() else (), directory, step)
        if not hosts.is_primary():
            self.file = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115
            return
        path = self.path
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
        write_atomically(path, "".join(line for line in lines if line.endswith("\n") and _is_kept(line, step, epochs)))
        self.file = path.open("ab", buffering=0)
        self.opened = os.fstat(self.file.fileno())
        self.size = self.opened.st_size

    def write(self, step: int, **values):
        self.check()
        self.unwritten += (to_json({"step": step, **values}) + "\n").encode()
        with contextlib.suppress(OSError):
            written = self.file.write(self.unwritten)
            self.unwritten, self.size = self.unwritten[written:], self.size + written
        if "seconds" in values:  # of an epoch: its last step has values of the same names
            values = {_of_epoch(name): value for name, value in values.items() if name != "epoch"}
        self.sinks.write(step, values)

    def check(self):
        """Raise InputError if the file is no longer at its path."""
        if not self.is_in_place():
            raise directory_removed_error(self.path.parent)

    def is_in_place(self) -> bool:
        """Whether the file is at its path. Some file systems give a file a new number, so one of another number is
        another file only if its size differs, too."""
        try:
            stat = self.path.stat() if hosts.is_primary() else None
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:  # a server that does not answer
            return True
        return stat is None or os.path.samestat(stat, self.opened) or stat.st_size == self.size

    def close(self, status: sinks.Status = "FINISHED"):
        self.file.close()
        self.sinks.close(status)


def _of_epoch(name: str) -> str:
    """The name in other loggers of a metric of an epoch: its mean over the steps has one of its own.

    >>> _of_epoch("train.loss"), _of_epoch("valid.loss")
    ('train.loss_epoch', 'valid.loss')
    """
    return f"{name}_epoch" if name.startswith("train.") else name


def _is_kept(line: str, step: int, epochs: int) -> bool:
    """Whether a line of metrics.jsonl is valid and belongs to the steps up to `step` and the first `epochs` epochs."""
    row = metrics_row(line)
    return row is not None and row["step"] <= step and not ("seconds" in row and row["epoch"] > epochs)


def environment() -> dict:
    """Return versions, machine, devices and provenance: the contents of environment.json."""
    names = ("jax", "jaxlib", "flax", "optax", "numpy", "orbax-checkpoint", "tensorflow-datasets")
    processor, instructions = provenance.processor()
    cores, total = provenance.cores(), os.cpu_count()
    usable = f"{total} CPUs" if cores == total else f"{cores} of {total} CPUs"
    return {
        "python": platform.python_version(),
        **{name: _version(name) for name in names},
        "machine": f"{platform.system()} {platform.machine()}, {usable}",
        "processor": ", ".join(filter(None, [processor, *instructions[:1]])) or None,
        "instructions": instructions,
        "cores": cores,
        "devices": [f"{d.platform}: {d.device_kind}" for d in jax.devices()],
        "processes": jax.process_count(),
        "commit": provenance.commit(),
        "changed": provenance.changes(),
    }


def _version(package: str) -> str | None:
    """Return the version of a package, or None if it is not installed."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


class Pace:
    """Throughput in examples per second, and the fraction of the time spent waiting for data, since `begin`.

    >>> pace = Pace()
    >>> pace.begin(examples=100, now=0.0); pace.update(examples=300, waited=0.5, now=2.0); str(pace)
    '100 examples/s, 25 % of the time waiting for data'
    """

    def __init__(self):
        self.waited = 0.0  # at the last update
        self.begin(0)

    def begin(self, examples: int, now: float | None = None):
        now = time.perf_counter() if now is None else now
        self.first = self.last = (now, examples, self.waited)

    def update(self, examples: int, waited: float, now: float | None = None):
        self.waited = waited
        self.last = (time.perf_counter() if now is None else now, examples, waited)

    def rates(self) -> tuple[float, float]:
        """Return examples per second, and the input-bound fraction of the time."""
        seconds, examples, waited = (b - a for a, b in zip(self.first, self.last))
        return examples / max(seconds, 1e-9), waited / max(seconds, 1e-9)

    def __str__(self) -> str:
        rate, waiting = self.rates()
        return f"{rate:.4g} examples/s, {100 * waiting:.0f} % of the time waiting for data"


class Status:
    """Writer of progress.json, the state of a run for `launch.py list RUN`, at most once per second.

    Its times are not in metrics.jsonl, whose steps are the same whether or not a run was interrupted.
    """

    def __init__(self, directory: Path, total_steps: int):
        self.path, self.total_steps, self.due = directory / "progress.json", total_steps, 0.0

    def write(self, state: str, step: int, pace: Pace, seconds_left: float | None):
        """Write the file; `state` is training, trained (evaluation follows), stopped (can be resumed) or diverged."""
        now = time.monotonic()
        if not hosts.is_primary() or (state == "training" and now < self.due):
            return
        self.due = now + 1.0
        rate, waiting = pace.rates()
        values = {"state": state, "step": step, "total_steps": self.total_steps, "seconds_left": seconds_left}
        values |= {"examples_per_second": rate, "waiting_share": waiting}
        with contextlib.suppress(OSError):  # a full disk does not stop training
            write_json(self.path, values | {"host": platform.node(), "process": os.getpid(), "time": time.time()})


class Progress:
    """A progress bar on a terminal, with the seconds of compilation and then the current loss; otherwise a plain line
    per epoch, and one every `printing.LINE_SECONDS`, also during a long compiled call."""

    def __init__(self, total_steps: int, completed: int, quiet: bool = False):
        self.quiet, self.bar, self.total_steps = quiet, None, total_steps
        self.line, self.ended = f"step {completed} of {total_steps}  compiling", threading.Event()
        if sys.stderr and sys.stderr.isatty() and not quiet:
            from rich import progress

            columns = (progress.BarColumn, progress.MofNCompleteColumn, progress.TimeElapsedColumn)
            text, left = progress.TextColumn("{task.description}"), progress.TimeRemainingColumn()
            self.bar = progress.Progress(text, *(column() for column in columns), left, transient=True)
            self.bar.start()
            self.task = self.bar.add_task(
                "compiling", total=total_steps, completed=completed
            )  # until the first call ends
        elif not quiet:
            threading.Thread(target=self.print_lines, daemon=True).start()

    def step(self, completed: int, loss: float, pace: Pace):
        if self.bar:
            self.bar.update(self.task, completed=completed, description=f"loss {loss:.4f}, {pace}")
        self.line = f"step {completed} of {self.total_steps}  train.loss {loss:.4g}  ({pace})"

    def print_lines(self):
        """Print the last line about a step every `printing.LINE_SECONDS` until training ends; runs in a thread."""
        while not self.ended.wait(printing.LINE_SECONDS):
            print(self.line, flush=True)

    def epoch(self, values: dict, pace: Pace):
        """Print one line: epoch, step, seconds, every metric, and the throughput."""
        if self.quiet:
            return
        line = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        line = f"{line}  ({pace})"
        print(line, file=sys.stdout, flush=True) if self.bar is None else self.bar.console.print(line, highlight=False)

    def close(self):
        self.ended.set()
        if self.bar:
            self.bar.stop()


def scalars(sums: dict) -> dict[str, float]:
    """Return the weighted means {"train.name": mean} of {"name": (sums, counts)} of several steps."""
    return {
        f"train.{name}": float(np.sum(total)) / max(float(np.sum(count)), 1e-9) for name, (total, count) in sums.items()
    }
