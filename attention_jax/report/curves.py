"""Curves and bars: learning curves, lines and grouped bars, with the spread over seeds and
published numbers beside them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax import InputError
from attention_jax.report.style import PALETTE, WIDTH, band, canvas, drawable, line_style, save, styled


def lines(
    series: Mapping[str, tuple],
    path: str | Path,
    *,
    xlabel: str,
    ylabel: str,
    log: str = "",
    title: str = "",
    reference: Mapping[str, float] | None = None,
    ticks: Mapping[float, str] | None = None,
) -> Path:
    """Lines over a common axis: `series` is {name: (x [N], y [N] or [seeds, N])}; seeds give
    the median and a band min - max.

    `log` names the logarithmic axes: "", "x", "y" or "xy". `reference` draws labelled horizontal lines
    (published numbers). `ticks` names places of the x axis.
    """
    figure = canvas(5.6, 3.2)
    with styled():
        axis = figure.subplots()
        _lines(axis, series, xlabel, ylabel, log, title, reference)
        if ticks:
            axis.set_xticks(list(ticks), list(ticks.values()))
    return save(figure, path)


def _lines(axis, series, xlabel, ylabel, log="", title="", reference=None):
    for i, (name, (x, y)) in enumerate(series.items()):
        middle, low, high = band(y)
        style = line_style(i) if len(middle) <= 40 else line_style(i) | {"marker": ""}
        axis.plot(x, middle, label=name, linewidth=1.4, **style)
        if np.atleast_2d(np.asarray(y)).shape[0] > 1:
            axis.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    for name, value in (reference or {}).items():
        axis.axhline(value, color="0.35", linewidth=1, linestyle=(0, (6, 3)), zorder=0)
        axis.annotate(
            name, (1, value), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=7, color="0.3"
        )
    if "x" in log:
        axis.set_xscale("log")
        ticks = sorted({float(at) for x, _ in series.values() for at in x})
        if len(ticks) <= 8:  # few places (sizes): name them rather than powers of ten
            axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.minorticks_off()
    elif series and all(np.all(np.asarray(x, float) == np.round(np.asarray(x, float))) for x, _ in series.values()):
        axis.xaxis.get_major_locator().set_params(integer=True)
    if "y" in log:
        axis.set_yscale("log")
    axis.set(xlabel=xlabel, ylabel=ylabel, title=title)
    axis.grid(alpha=0.25, linewidth=0.5)
    if len(series) > 1 or list(series) != [ylabel]:
        axis.legend(frameon=False)


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence],
    path: str | Path,
    *,
    ylabel: str,
    title: str = "",
    reference: Mapping[str, Sequence[float | None]] | None = None,
) -> Path:
    """Grouped bars: `series` is {name: one entry per group}, an entry a number or a list over
    seeds (median, whiskers min - max).

    None and NaN leave a gap. `reference` is {name: one number or None per group}, drawn as a tick across
    the group (published numbers).
    """
    count, slot = len(groups), 0.8 / max(len(series), 1)
    figure = canvas(float(np.clip(0.5 + 0.34 * count * max(len(series), 2), 3.4, WIDTH)), 3.0)
    with styled():
        axis = figure.subplots()
        for i, (name, entries) in enumerate(series.items()):
            values = [np.atleast_1d(np.asarray([np.nan] if e is None else e, float)) for e in entries]
            middle = np.array([np.median(seeds) for seeds in values])
            low = np.array([np.min(seeds) for seeds in values])
            high = np.array([np.max(seeds) for seeds in values])
            x = np.arange(count) + (i - (len(series) - 1) / 2) * slot
            axis.bar(x, middle, slot * 0.92, color=PALETTE[i % len(PALETTE)], label=name)
            many = np.array([len(seeds) > 1 for seeds in values])
            if many.any():
                spread = np.stack([middle - low, high - middle])[:, many]
                axis.errorbar(x[many], middle[many], spread, fmt="none", ecolor="0.2", elinewidth=0.9, capsize=2)
        for name, numbers in (reference or {}).items():
            places = np.array([group for group, number in enumerate(numbers) if number is not None])
            heights = [number for number in numbers if number is not None]
            axis.hlines(heights, places - 0.45, places + 0.45, color="k", linewidth=1.4, label=name)
        crowded = max(map(len, groups), default=0) * count > 60
        slant = {"rotation": 30, "ha": "right"} if crowded else {}
        axis.set_xticks(range(count), [drawable(g) for g in groups], **slant)
        axis.set(ylabel=ylabel, title=title)
        axis.grid(axis="y", alpha=0.25, linewidth=0.5)
        axis.set_axisbelow(True)
        if len(series) > 1 or reference:
            axis.legend(frameon=False)
    return save(figure, path)


def read_history(source: str | Path | Sequence[Mapping]) -> list[dict]:
    """The rows of a learning curve: of a metrics.jsonl (its epochs; before the first one has
    ended, its steps) or of a history.

    A last line that a killed run left half-written is passed over; any other malformed line is named.
    """
    if not isinstance(source, str | Path):
        return [dict(row) for row in source]
    rows = []
    text = Path(source).read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(text, 1):
        try:
            if line.strip():
                rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            if number < len(text):  # a complete line ends with a newline, so something follows it
                raise InputError(f"{source}, line {number} is not JSON: {line[:60]!r}") from error
    epochs = [row for row in rows if "seconds" in row]
    return epochs or rows


def learning_curves(runs, path: str | Path, *, quality: Sequence[str] = (), title: str = "") -> Path:
    """Losses on the left, quality on the right, over epochs (over steps before the first epoch has ended).

    Args:
      runs: one metrics.jsonl or history, or a list of them (the seeds of one configuration: median and band min - max).
      quality: metric names for the right panel; default: every other metric, at most four, `valid.` and `test.`
        before `train.`.
    """
    one = isinstance(runs, str | Path) or (len(runs) > 0 and isinstance(runs[0], Mapping))
    histories = [read_history(run) for run in ([runs] if one else runs)]
    if not any(histories):
        raise InputError("learning curves need a run with at least one logged line")
    rows = [row for history in histories for row in history]
    axis_name = "epoch" if all("seconds" in row or "step" not in row for row in rows) else "step"
    x = sorted({row[axis_name] for row in rows})
    names = list(dict.fromkeys(name for row in rows for name in row if name not in ("epoch", "step", "seconds")))
    curves = {}
    for name in names:
        values = _aligned(histories, axis_name, x, name)
        if not np.isnan(values).all():
            curves[name] = x, values
    panels = []
    losses = [name for name in curves if name.rsplit(".", 1)[-1] == "loss"]
    if losses:
        panels.append((losses, "loss"))
    others = sorted(set(curves) - set(losses), key=lambda name: (name.startswith("train."), names.index(name)))
    others = [name for name in quality if name in curves] or others[:4]
    if others:
        panels.append((others, others[0].rsplit(".", 1)[-1].replace("_", " ") if len(others) == 1 else "quality"))
    figure = canvas(WIDTH if len(panels) == 2 else 4.6, 2.9)
    with styled():
        for axis, (shown, label) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
            _lines(axis, {name: curves[name] for name in shown}, axis_name, label)
        if title:
            figure.suptitle(title, fontsize=9)
    return save(figure, path)


def _aligned(histories, axis_name: str, x: list, name: str) -> np.ndarray:
    """One metric of several runs over the common axis: [runs, len(x)], NaN where a run has no number."""
    values = np.full((len(histories), len(x)), np.nan)
    where = {at: i for i, at in enumerate(x)}
    for run, history in enumerate(histories):
        for row in history:
            if isinstance(row.get(name), int | float) and not isinstance(row[name], bool):
                values[run, where[row[axis_name]]] = row[name]
    return values
