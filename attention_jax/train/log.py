"""What a run says and writes: metrics.jsonl, and progress on a terminal or as plain lines."""

import contextlib
import json
import os
import platform
import sys
import time
from importlib import metadata
from pathlib import Path

import jax
import numpy as np

from attention_jax import provenance
from attention_jax.files import metrics_row, write_json, write_whole
from attention_jax.train import hosts
from attention_jax.train.sinks import Sinks


class MetricsLog:
    """metrics.jsonl: one object a line, each with its step; an epoch's row has its seconds, too.

    Lines after `step` go, and so do rows after those of the first `epochs`: a resumed run writes them again. A full
    disk ends no training: what cannot be written is written with the next line that can.
    """

    def __init__(self, directory: Path, step: int, epochs: int, sinks: tuple[str, ...] = ()):
        path, self.unwritten = directory / "metrics.jsonl", b""
        self.sinks = Sinks(sinks if hosts.first() else (), directory)
        if not hosts.first():
            self.file = Path(os.devnull).open("wb", buffering=0)  # noqa: SIM115
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True) if path.exists() else []
        write_whole(path, "".join(line for line in lines if line.endswith("\n") and _stays(line, step, epochs)))
        self.file = path.open("ab", buffering=0)

    def write(self, step: int, **values):
        self.unwritten += (json.dumps({"step": step, **values}) + "\n").encode()
        with contextlib.suppress(OSError):
            self.unwritten = self.unwritten[self.file.write(self.unwritten) :]
        self.sinks.write(step, values)

    def close(self):
        self.file.close()
        self.sinks.close()


def _stays(line: str, step: int, epochs: int) -> bool:
    """Whether a line of metrics.jsonl is about what was done up to `step` and the first `epochs`, and not damaged."""
    row = metrics_row(line)
    return row is not None and row["step"] <= step and not ("seconds" in row and row["epoch"] > epochs)


def environment() -> dict:
    """Versions, machine, devices and provenance, for environment.json."""
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
    """None where a package is not installed: not every run needs every one."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return None


class Pace:
    """Examples a second and the share of the time in which data were waited for, from a `begin` to the last `note`.

    >>> pace = Pace()
    >>> pace.begin(examples=100, now=0.0); pace.note(examples=300, waited=0.5, now=2.0); str(pace)
    '100 examples/s, 25 % of the time waiting for data'
    """

    def __init__(self):
        self.waited = 0.0  # at the last note
        self.begin(0)

    def begin(self, examples: int, now: float | None = None):
        now = time.perf_counter() if now is None else now
        self.first = self.last = (now, examples, self.waited)

    def note(self, examples: int, waited: float, now: float | None = None):
        self.waited = waited
        self.last = (time.perf_counter() if now is None else now, examples, waited)

    def rates(self) -> tuple[float, float]:
        """Examples a second, and the share of the time in which data were waited for."""
        seconds, examples, waited = (b - a for a, b in zip(self.first, self.last))
        return examples / max(seconds, 1e-9), waited / max(seconds, 1e-9)

    def __str__(self) -> str:
        rate, waiting = self.rates()
        return f"{rate:.4g} examples/s, {100 * waiting:.0f} % of the time waiting for data"


class Status:
    """progress.json: how far a run is, for `launch.py watch`; at most once a second, as it is not worth more.

    It stands beside metrics.jsonl, whose steps say nothing about time: they are the same for a run that was interrupted
    and one that was not.
    """

    def __init__(self, directory: Path, total_steps: int):
        self.path, self.total_steps, self.due = directory / "progress.json", total_steps, 0.0

    def write(self, state: str, step: int, pace: Pace, seconds_left: float | None):
        """`state`: training, trained (its evaluation follows), stopped (it can be resumed) or diverged."""
        now = time.monotonic()
        if not hosts.first() or (state == "training" and now < self.due):
            return
        self.due = now + 1.0
        rate, waiting = pace.rates()
        values = {"state": state, "step": step, "total_steps": self.total_steps, "seconds_left": seconds_left}
        values |= {"examples_per_second": rate, "waiting_share": waiting}
        with contextlib.suppress(OSError):  # a full disk ends no training
            write_json(self.path, values | {"host": platform.node(), "process": os.getpid()})


class Progress:
    """A bar with the running loss on a terminal; otherwise one plain line an epoch."""

    def __init__(self, total_steps: int, done: int, quiet: bool = False):
        self.quiet, self.bar = quiet, None
        if sys.stderr.isatty() and not quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress as Bar, TextColumn, TimeRemainingColumn

            self.bar = Bar(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeRemainingColumn(),
                transient=True,
            )
            self.bar.start()
            self.task = self.bar.add_task("training", total=total_steps, completed=done)

    def step(self, done: int, loss: float, pace: Pace):
        if self.bar:
            self.bar.update(self.task, completed=done, description=f"loss {loss:.4f}, {pace}")

    def epoch(self, values: dict, pace: Pace):
        """One line: epoch, step, seconds, then every metric; and the pace."""
        if self.quiet:
            return
        shown = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
        )
        shown = f"{shown}  ({pace})"
        print(shown, file=sys.stdout, flush=True) if self.bar is None else self.bar.console.print(
            shown, highlight=False
        )

    def close(self):
        if self.bar:
            self.bar.stop()


def scalars(sums: dict) -> dict[str, float]:
    """{"name": (sums, counts)} of several steps as {"train.name": their weighted mean}."""
    return {
        f"train.{name}": float(np.sum(total)) / max(float(np.sum(count)), 1e-9) for name, (total, count) in sums.items()
    }
