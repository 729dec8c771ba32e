"""Terminal monitor of a run: progress, metrics with sparklines, and the latest samples, all read from its files."""

import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from attention_jax.errors import InputError, lower_is_better
from attention_jax.files import is_of_attention, metrics_row
from attention_jax.printing import escape_control
from attention_jax.report.curves import NOT_METRICS
from attention_jax.report.tables import number

BLOCKS = "▁▂▃▄▅▆▇█"
SAMPLES = 4
PROGRESS = (
    "state", "step", "total_steps", "seconds_left", "examples_per_second", "waiting_share", "host", "process", "time",
)  # fmt: skip
"""The contents of progress.json (train/log.py)."""
SILENCE = 60.0
"""The seconds without news from which on that is shown: compiling and evaluating may take longer."""


class Status(NamedTuple):
    """The state of a run in words, and whether it is final."""

    words: str
    over: bool


def status(directory: Path) -> Status:
    """Return the state of a run: not started, training, or ended, and how."""
    result, failed = _json(directory / "result.json", "seconds"), _json(directory / "failure.json", "reason")
    progress = _json(directory / "progress.json", *PROGRESS)
    name = _json(directory / "config.json").get("name", "NAME")
    resume = f"continue with `launch.py train {name} --resume --out {directory}`"
    is_local, written = progress.get("host") == platform.node(), progress.get("time", 0.0)
    alive = is_local and _is_alive(progress["process"], written)
    if result and not (alive and progress["state"] == "training"):  # a run that has ended may be resumed
        return Status(f"ended after {duration(result['seconds'])}", True)
    if failed:
        return Status(f"failed: {failed['reason']}", True)
    if not (directory / "config.json").exists():
        return Status("there is no run yet; waiting for it", False)
    if not progress:
        return Status("not training yet: reading data and compiling", False)
    where = f"step {progress['step']}"
    if progress["state"] == "diverged":
        return Status(f"diverged after {where}", True)
    if progress["state"] == "stopped":
        return Status(f"interrupted at {where}; {resume}", True)
    if is_local and not alive:
        return Status(f"its process has ended after {where}; {resume}", True)
    if progress["state"] == "trained":
        return Status("trained; evaluating and drawing figures", False)
    left = "" if progress["seconds_left"] is None else f", about {duration(progress['seconds_left'])} left"
    pace = f"{progress['examples_per_second']:.4g} examples/s, {progress['waiting_share']:.0%} of the time without data"
    share = progress["step"] / max(progress["total_steps"], 1)
    age = time.time() - written
    silent = f"; last heard of {duration(age)} ago" if age > SILENCE else ""
    return Status(f"{where} of {progress['total_steps']} ({share:.0%}){left}; {pace}{silent}", False)


def duration(seconds: float) -> str:
    """Format a duration in seconds.

    >>> duration(9.4), duration(125), duration(7300)
    ('9 s', '2 min 5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def sparkline(values: list[float], width: int = 32) -> str:
    """Return a sparkline of at most `width` blocks between minimum and maximum, each the last number of its bin.

    >>> sparkline([0.0, 1.0, 2.0, 7.0]), sparkline([1.0, 1.0]), sparkline(list(range(64)), 4)
    ('▁▂▃█', '▁▁', '▁▃▅█')
    """
    bins = min(width, len(values))
    bin_values = [values[(i + 1) * len(values) // bins - 1] for i in range(bins)]
    low, size = min(bin_values), max(bin_values) - min(bin_values) or 1
    return "".join(BLOCKS[int((value - low) / size * (len(BLOCKS) - 1))] for value in bin_values)


def rows_of(path: Path) -> list[dict]:
    """Return the rows of a metrics.jsonl so far, without an incomplete last line."""
    if not path.is_file():
        return []
    return [
        row
        for line in path.read_text("utf-8", "replace").splitlines()
        if (row := metrics_row(line)) and not is_of_attention(row)
    ]


def metrics_table(rows: list[Mapping], curves: bool = True):
    """A rich table: last value, best value and curve of each metric."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    rich_table = Table("metric", "last", "best", *["curve"] * curves, box=box.ASCII if not curves else box.SIMPLE)
    names = dict.fromkeys(name for row in rows for name in row if name not in NOT_METRICS)
    for name in sorted(names, key=lambda name: (name.rpartition(".")[2], name)):
        values = [float(row[name]) for row in rows if isinstance(row.get(name), int | float)]
        finite = [value for value in values if abs(value) < float("inf")]
        if finite:
            best = min(finite) if lower_is_better(name) else max(finite)
            cells = escape_control(name), number(values[-1]), number(best), sparkline(finite)
            rich_table.add_row(*map(Text, cells[: 3 + curves]))
    return rich_table


def progress_view(directory: Path, rows: list[Mapping], curves: bool = True):
    """Progress, table and newest samples, as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    epochs = [row for row in rows if "seconds" in row]
    blocks = [Text(escape_control(f"{directory}: {status(directory).words}"))]
    if epochs:
        blocks.append(Text(f"epoch {epochs[-1]['epoch']}, {duration(epochs[-1]['seconds'])} of training"))
    if rows:
        blocks.append(metrics_table(rows, curves))
    if (directory / "samples.txt").is_file():
        with (directory / "samples.txt").open(encoding="utf-8", errors="replace") as file:
            blocks.append(Text("newest samples:\n" + "".join(map(escape_control, islice(file, SAMPLES))), no_wrap=True))
    return Group(*blocks)


def follow(directory: Path, once: bool = False, interval: float = 1.0):
    """Show a run until it ends: a refreshed table on a terminal; in a pipe one line per epoch, then the table.

    Waits for the directory if it does not exist yet. With `once` the current table is shown once.

    Raises InputError for a directory that is no run's.
    """
    waits = not directory.exists() or (directory.is_dir() and not any(directory.glob("*/*")))
    if not (directory / "config.json").exists() and (once or not waits):
        raise InputError(f"there is no run in {directory}; give the directory of a run, such as runs/date_luong/001")
    from rich.console import Console
    from rich.live import Live

    terminal, metrics = sys.stdout.isatty(), directory / "metrics.jsonl"
    console = Console(width=None if terminal else 100, highlight=False)
    curves = terminal and "utf" in console.encoding.lower()
    if terminal and not once:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            over = False
            while not over:
                over = status(directory).over
                live.update(progress_view(directory, rows_of(metrics), curves), refresh=True)
                time.sleep(0 if over else interval)
        return
    if not once:
        _tell(directory, metrics, interval)
    console.print(progress_view(directory, rows_of(metrics), curves))


def _tell(directory: Path, metrics: Path, interval: float):
    """A line for each epoch that ends, until the run is over."""
    num_printed, previous_words = 0, ""
    while True:
        now = status(directory)
        epochs = [row for row in rows_of(metrics) if "seconds" in row]
        num_printed = min(num_printed, len(epochs))  # fewer after a resume from an earlier epoch
        for row in epochs[num_printed:]:
            print(escape_control("  ".join(f"{name} {number(value)}" for name, value in row.items())), flush=True)
        num_printed = len(epochs)
        if not epochs and now.words != previous_words and not now.over:
            print(escape_control(f"{directory}: {now.words}"), flush=True)
        previous_words = now.words
        if now.over:
            return
        time.sleep(interval)


def _is_alive(process: int, written: float) -> bool:
    """Whether the process of this id on this machine is the one that had it at the time `written`.

    The system gives an id again, to a process that starts later.
    """
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    started = _process_start_time(process)
    return started is None or started < written + 2  # seconds: the time of the boot is known in whole ones


def _process_start_time(process: int) -> float | None:
    """When a process started, infinity if it has ended and its parent does not know yet; None where the system has no
    /proc or hides it."""
    try:
        state, *values = Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()
        [boot] = re.findall(r"^btime (\d+)", Path("/proc/stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return float("inf") if state in "ZX" else int(boot) + int(values[18]) / os.sysconf("SC_CLK_TCK")


def _json(path: Path, *names: str) -> dict:
    """Return the JSON object in a file; {} if the file is missing or damaged, or lacks one of `names`."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.keys() >= set(names) else {}
