"""A run while it trains, in a terminal: curves, pace, time left, the newest samples. Reads the run's files alone."""

import itertools
import json
import os
import platform
import shutil
import sys
import textwrap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from attention_jax import InputError, lower_is_better
from attention_jax.files import metrics_row
from attention_jax.printing import escaped
from attention_jax.report.curves import NOT_METRICS, kinds
from attention_jax.report.tables import number
from attention_jax.report.terminal import COLOURS, LETTERS, Cell, beside, chart

PANEL = 56
"""Characters that a panel has beside others."""
ROWS = 2, 8
"""Fewest and most lines of a chart."""
SAMPLES = 4
PROGRESS = ("state", "step", "total_steps", "seconds_left", "examples_per_second", "waiting_share", "host", "process")
"""What progress.json tells (train/log.py)."""


class Lines:
    """The whole lines of a metrics.jsonl that another process writes; half a line waits for its end."""

    def __init__(self, path: Path):
        self.path, self.rows, self._begin = path, [], lambda: (None, 0, b"")
        self._file, self._at, self._rest = self._begin()

    def read(self) -> list[dict]:
        """All rows so far; from the start again where the file is another one (a run that was resumed)."""
        if not self.path.is_file():
            return self.rows
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            if found.st_ino != self._file or found.st_size < self._at:
                self.rows, (_, self._at, self._rest) = [], self._begin()
            self._file = found.st_ino
            file.seek(self._at)
            new = file.read()
        self._at += len(new)
        *whole, self._rest = (self._rest + new).split(b"\n")
        self.rows += [row for line in whole if (row := metrics_row(line))]
        return self.rows


class Standing(NamedTuple):
    """How a run stands, in words, and whether nothing more will come."""

    words: str
    over: bool


def standing(directory: Path) -> Standing:
    """Whether the run has not begun, trains, or has ended, and how."""
    result, failed = _json(directory / "result.json", "seconds"), _json(directory / "failure.json", "reason")
    progress = _json(directory / "progress.json", *PROGRESS)
    name = _json(directory / "config.json").get("name", "NAME")
    again = f"go on with `launch.py train {name} --resume --out {directory}`"
    here = progress.get("host") == platform.node()
    alive = here and _alive(progress["process"])
    if result and not (alive and progress["state"] == "training"):  # which goes on with --resume
        return Standing(f"ended after {duration(result['seconds'])}", True)
    if failed:
        return Standing(f"failed: {failed['reason']}", True)
    if not (directory / "config.json").exists():
        return Standing("there is no run yet; waiting for it", False)
    if not progress:
        return Standing("not begun to train: data are read and programs compiled", False)
    where = f"step {progress['step']}"
    if progress["state"] == "diverged":
        return Standing(f"diverged after {where}", True)
    if progress["state"] == "stopped":
        return Standing(f"interrupted at {where}; {again}", True)
    if here and not alive:
        return Standing(f"its process has gone after {where}; {again}", True)
    if progress["state"] == "trained":
        return Standing("trained; it is evaluated and its figures are drawn", False)
    share = progress["step"] / max(progress["total_steps"], 1)
    left = progress["seconds_left"]
    words = f"{where} of {progress['total_steps']} ({share:.0%})"
    words += "" if left is None else f", {duration(left)} left at most"
    waiting = f"{progress['waiting_share']:.0%} of the time waiting for data"
    return Standing(f"{words}; {progress['examples_per_second']:.4g} examples/s, {waiting}", False)


def duration(seconds: float) -> str:
    """Seconds as one says them.

    >>> duration(9.4), duration(125), duration(7300)
    ('9 s', '2 min 5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def picture(
    directory: Path, rows: list[Mapping], width: int, braille: bool = True, height: int = 1000
) -> list[list[Cell]]:
    """The run in lines of at most `width` characters: how it stands, a chart for each kind of metric, samples.

    The charts are as high as `height` lines in all leave them.
    """
    epochs = [row for row in rows if "seconds" in row]
    lines = _wrapped(f"{directory}: {standing(directory).words}", width)
    if epochs:
        lines += _wrapped(f"epoch {epochs[-1]['epoch']}, {duration(epochs[-1]['seconds'])} of training", width)
    columns, shown = max(1, width // PANEL), kinds(_metrics(rows))
    each = (height - len(lines) - SAMPLES - 3) // max(-(-len(shown) // columns), 1) - 2  # without title and space
    size = width // columns - 1, min(max(each, ROWS[0]), ROWS[1])
    panels = [_panel(kind, names, rows, *size, braille) for kind, names in shown.items()]
    for start in range(0, len(panels), columns):
        lines += [[], *beside(panels[start : start + columns], width // columns)]
    samples = directory / "samples.txt"
    if samples.is_file():
        shown = samples.read_text(encoding="utf-8", errors="replace").splitlines()[:SAMPLES]
        lines += [[], *([(c, -1) for c in line[:width]] for line in ["what it wrote last:", *map(escaped, shown)])]
    return lines


def _panel(kind: str, names: list[str], rows: list, width: int, height: int, braille: bool) -> list[list[Cell]]:
    """The title of a chart, which says the last values and the best ones, and the chart."""
    series, title = {}, [(c, -1) for c in escaped(f"{kind.replace('_', ' ')} ")]
    for i, name in enumerate(names):
        calls = [row for row in rows if name in row and "seconds" not in row] if name.startswith("train.") else []
        shown = calls or [row for row in rows if name in row]
        series[name] = [row["step"] for row in shown], [row[name] for row in shown]
        values = [row[name] for row in rows if name in row]
        best = min(values) if lower_is_better(name) else max(values)
        split = name.rpartition(".")[0] or name
        said = f" {'●' if braille else LETTERS[i % len(LETTERS)]} {split} {number(float(values[-1]))}"
        said += f" (best {number(float(best))})" if not calls and best != values[-1] else ""
        title += [(c, i) for c in escaped(said)]
    ends = 0, max(row["step"] for row in rows)
    return [title[:width], *chart(series, ends, width, height, braille)]


def _metrics(rows: list[Mapping]) -> list[str]:
    names = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float))
    return [name for name in names if name not in NOT_METRICS]


def _wrapped(text: str, width: int) -> list[list[Cell]]:
    return [[(c, -1) for c in line] for line in textwrap.wrap(escaped(text), max(width, 10))]


def follow(directory: Path, once: bool = False, interval: float = 1.0):
    """Show the run until it is over: on a terminal a picture that is drawn anew, in a pipe a line an epoch and the
    picture at the end. A directory that is not there yet is waited for. With `once` the picture as it is now.

    Raises InputError for a directory that is no run's.
    """
    begun = (directory / "config.json").exists()
    waits = not directory.exists() or (directory.is_dir() and not any(directory.glob("*/*")))
    if not begun and (once or not waits):
        raise InputError(f"there is no run in {directory}; give the directory of a run, such as runs/date_luong/001")
    lines = Lines(directory / "metrics.jsonl")
    if once or not sys.stdout.isatty():
        if not once:
            _tell(directory, lines, interval)
        _show(directory, lines.read())
        return
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            over = standing(directory).over
            shown = picture(directory, lines.read(), console.width, _can(console.encoding), console.height)
            live.update(_coloured(shown), refresh=True)
            if over:
                return
            time.sleep(interval)


def _tell(directory: Path, lines: Lines, interval: float):
    """A line for each epoch that ends, until the run is over."""
    told, before = 0, ""
    while True:
        now = standing(directory)
        epochs = [row for row in lines.read() if "seconds" in row]
        if len(epochs) < told:  # it was resumed from an earlier epoch
            told = len(epochs)
        for row in epochs[told:]:
            print(escaped("  ".join(f"{name} {number(value)}" for name, value in row.items())), flush=True)
        told = len(epochs)
        if not epochs and now.words != before and not now.over:
            print(escaped(f"{directory}: {now.words}"), flush=True)
        before = now.words
        if now.over:
            return
        time.sleep(interval)


def _show(directory: Path, rows: list[Mapping]):
    """The picture without colours: on a terminal as wide as that is, in a pipe 100 characters."""
    width = shutil.get_terminal_size((100, 24)).columns
    if sys.stdout.isatty():
        from rich.console import Console

        Console(width=width).print(_coloured(picture(directory, rows, width, _can(sys.stdout.encoding))))
        return
    for line in picture(directory, rows, width, braille=False):
        print("".join(character for character, _ in line).rstrip())


def _coloured(lines: list[list[Cell]]):
    from rich.text import Text

    text = Text(no_wrap=True, overflow="crop")
    for line in lines:
        for place, cells in itertools.groupby(line, key=lambda cell: cell[1]):
            text.append("".join(c for c, _ in cells), COLOURS[place % len(COLOURS)] if place >= 0 else None)
        text.append("\n")
    return text


def _can(encoding: str | None) -> bool:
    """Whether braille can be written."""
    return "utf" in (encoding or "").lower()


def _alive(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _json(path: Path, *names: str) -> dict:
    """The object in a file; {} where it is not there, or is damaged so that one of `names` is not in it."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) and value.keys() >= set(names) else {}
