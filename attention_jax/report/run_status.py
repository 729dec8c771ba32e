"""The state of a run: progress, metrics with sparklines, and the latest samples, all read from its files."""

import json
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

from attention_jax.errors import lower_is_better
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


def status(directory: Path) -> str:
    """Return the state of a run in words: not training yet, training, or ended, and how."""
    result, failed = _json(directory / "result.json", "seconds"), _json(directory / "failure.json", "reason")
    progress = _json(directory / "progress.json", *PROGRESS)
    name = _json(directory / "config.json").get("name", "NAME")
    resume = f"continue with `launch.py train {name} --resume --out {directory}`"
    is_local, written = progress.get("host") == platform.node(), progress.get("time", 0.0)
    alive = is_local and _is_alive(progress["process"], written)
    has_result = isinstance(result.get("seconds"), int | float)
    if has_result and not (alive and progress["state"] == "training"):  # a run that has ended may be resumed
        return f"ended after {duration(result['seconds'])}"
    if failed:
        return f"failed: {failed['reason']}"
    if not progress:
        return "not training yet: reading data and compiling"
    where = f"step {progress['step']}"
    if progress["state"] == "diverged":
        return f"diverged after {where}"
    if progress["state"] == "stopped":
        return f"interrupted at {where}; {resume}"
    if is_local and not alive:
        return f"its process has ended after {where}; {resume}"
    if progress["state"] == "trained":
        return "trained; evaluating and drawing figures"
    left = "" if progress["seconds_left"] is None else f", about {duration(progress['seconds_left'])} left"
    pace = f"{progress['examples_per_second']:.4g} examples/s, {progress['waiting_share']:.0%} of the time without data"
    share = progress["step"] / max(progress["total_steps"], 1)
    age = time.time() - written
    silent = f"; last heard of {duration(age)} ago" if age > SILENCE else ""
    return f"{where} of {progress['total_steps']} ({share:.0%}){left}; {pace}{silent}"


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
        if values:
            best = (min if lower_is_better(name) else max)(finite, default=None)
            cells = escape_control(name), number(values[-1]), number(best), sparkline(finite) if finite else ""
            rich_table.add_row(*map(Text, cells[: 3 + curves]))
    return rich_table


def progress_view(directory: Path, rows: list[Mapping], curves: bool = True):
    """Progress, table and newest samples, as a rich renderable."""
    from rich.console import Group
    from rich.text import Text

    epochs = [row for row in rows if "seconds" in row]
    blocks = [Text(escape_control(f"{directory}: {status(directory)}"))]
    if epochs:
        blocks.append(Text(f"epoch {epochs[-1]['epoch']}, {duration(epochs[-1]['seconds'])} of training"))
    if rows:
        blocks.append(metrics_table(rows, curves))
    if (directory / "samples.txt").is_file():
        with (directory / "samples.txt").open(encoding="utf-8", errors="replace") as file:
            blocks.append(Text("newest samples:\n" + "".join(map(escape_control, islice(file, SAMPLES))), no_wrap=True))
    return Group(*blocks)


def print_status(directory: Path):
    """Print the state of the run in `directory` as it is now, without curves where they cannot be shown."""
    from rich.console import Console

    terminal = sys.stdout.isatty()
    console = Console(width=None if terminal else 100, highlight=False)
    curves = terminal and "utf" in console.encoding.lower()
    console.print(progress_view(directory, rows_of(directory / "metrics.jsonl"), curves))


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
