"""Figures of memory accesses over time, confusion matrices and the trials of sweeps."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax.errors import InputError, lower_is_better
from attention_jax.report.style import (
    INK,
    SMALLEST,
    WIDTH,
    canvas,
    color,
    drawable,
    families,
    figure_style,
    log_scale,
    save,
    short,
)


def over_time(panels: Mapping[str, np.ndarray], path: str | Path) -> Path:
    """Plot matrices {name: [T, channels]} over a common time axis, such as inputs, outputs and weightings of an NTM.

    Each panel has its own color scale, from its smallest value (at most 0) to its largest, as the figure says.
    """
    arrays = {name: np.asarray(array, float) for name, array in panels.items()}
    if (
        not arrays
        or any(array.ndim != 2 for array in arrays.values())
        or len({len(array) for array in arrays.values()}) != 1
    ):
        raise InputError(
            f"panels over time need matrices [T, channels] with one T, not {[a.shape for a in arrays.values()]}"
        )
    columns = 1 + (len(arrays) > 6)
    highest = 1.5 / columns
    lines = [[*arrays.values()][start : start + columns] for start in range(0, len(arrays), columns)]
    heights = [max(float(np.clip(0.05 * array.shape[1], 0.45, highest)) for array in line) for line in lines]
    figure = canvas(WIDTH if columns == 2 else 5.0, sum(heights) + 0.25 * len(heights) + 0.4)
    with figure_style():
        grid = figure.subplots(len(lines), columns, squeeze=False, sharex=True, height_ratios=heights)
        for axis in grid.ravel()[len(arrays) :]:
            axis.remove()
        for axis, (name, array) in zip(grid.flat, arrays.items()):
            low, high = min(np.nanmin(array), 0.0), np.nanmax(array)
            high = high if high > low else low + 1
            image = axis.imshow(array.T, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
            axis.set_title(short(name, 60), loc="left", pad=3)
            axis.yaxis.get_major_locator().set_params(integer=True, nbins=3, min_n_ticks=1)
            if array.shape[1] == 1:
                axis.set_yticks([0])
            bar = figure.colorbar(image, ax=axis, pad=0.01, aspect=10, ticks=[low, high])
            bar.ax.set_yticklabels([f"{low:.3g}", f"{high:.3g}"])
        figure.supxlabel("time step" + " (each panel has a separate color scale)" * (len(arrays) > 1), fontsize=7)
        grid[0, 0].xaxis.get_major_locator().set_params(integer=True)
    return save(figure, path)


def count_confusions(labels: Sequence[int], predictions: Sequence[int], classes: int) -> np.ndarray:
    """Count the examples of each true class (row) and predicted class (column): [C, C].

    >>> count_confusions([0, 0, 1], [0, 1, 1], 2).tolist()
    [[1, 1], [0, 1]]
    """
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (labels, predictions), 1)
    return counts


def confusion_matrix(counts, classes: Sequence[str], path: str | Path) -> Path:
    """Plot counts [C, C] (row: true class, column: predicted) as percentages of each true class."""
    counts = np.asarray(counts, float)
    if counts.shape != (len(classes), len(classes)):
        raise InputError(
            f"a confusion matrix of {len(classes)} classes needs counts [{len(classes)}, {len(classes)}], "
            f"not {counts.shape}"
        )
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = float(np.clip(0.3 * len(classes) + 1.6, 3.0, WIDTH))
    figure = canvas(size, size * 0.95)
    with figure_style():
        axis = figure.subplots()
        image = axis.imshow(shares, vmin=0, vmax=1, aspect="auto")
        names = [short(drawable(name)) for name in classes]
        every = -(-len(names) // 40)  # only some labels, if not all fit
        ticks = {"ticks": range(0, len(names), every), "labels": names[::every]}
        axis.set_xticks(**ticks, fontfamily=families(), fontsize=SMALLEST, rotation=90 * (max(map(len, names)) > 2))
        axis.set_yticks(**ticks, fontfamily=families(), fontsize=SMALLEST)
        axis.tick_params(length=0)
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005 and len(names) <= 20:
                dark = np.dot(image.to_rgba(share)[:3], (0.3, 0.6, 0.1)) < 0.5
                written = {"ha": "center", "va": "center", "fontsize": SMALLEST, "color": "white" if dark else "black"}
                axis.text(j, i, f"{100 * share:.0f}", **written)
        figure.colorbar(image, ax=axis, shrink=0.7, aspect=20, format=lambda share, _: f"{100 * share:.0f} %")
        axis.set(xlabel="predicted", ylabel="true", title="% of each true class")
    return save(figure, path)


def sweep_slices(
    trials: Sequence[Mapping], path: str | Path, *, metric: str, log: Sequence[str] = (), inputs=None
) -> Path:
    """Plot the result of every trial over each of its parameters: `trials` are {"params": {name: value}, "value":
    number or None, "values": the numbers of its seeds, if there are several}.

    A line joins the medians of values that were tried more than once; a star is the best trial; a whisker is the range
    over a trial's seeds. Trials without a finite value (failed) are crosses on the lower edge. `log` names the
    parameters on a logarithmic axis; parameters that are not numbers are categorical. `inputs` as in `style.save`.
    """
    names, values = _parameters(trials), _values(trials)
    cols = min(len(names), 3)
    rows = -(-len(names) // cols)
    figure = canvas(max(2.0 * cols, 2.6), 1.9 * rows + 0.35)
    finished = np.isfinite(values)
    signed = np.where(finished, values if lower_is_better(metric) else -values, np.inf)
    best = int(signed.argmin()) if finished.any() else None
    with figure_style():
        axes = figure.subplots(rows, cols, squeeze=False, sharey=True)
        for axis in axes.ravel()[len(names) :]:
            axis.set_visible(False)
        for i, (axis, name) in enumerate(zip(axes.flat, names)):
            x, ticks = _positions([trial["params"][name] for trial in trials])
            _slice(axis, x, values, best)
            _whiskers(axis, x, trials)
            if name in log:
                log_scale(axis, "x", x)
            elif ticks:
                axis.set_xticks(range(len(ticks)), [short(tick, 16) for tick in ticks], rotation=90)
                axis.margins(x=0.15)
            elif len(set(x)) <= 6:
                axis.set_xticks(sorted(set(x)), [f"{position:g}" for position in sorted(set(x))])
            axis.set_xlabel(short(name, 32))
            if i % cols == 0:
                axis.set_ylabel(metric)
        handles, texts = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, texts, loc="outside lower center", ncols=4 if len(texts) <= 4 else 3)
    return save(figure, path, inputs)


def _slice(axis, x, values, best: int | None):
    """Plot the trials at positions x, the medians of equal positions, the best trial, and trials without a value."""
    finished = np.isfinite(values)
    positions = np.unique(x[finished])
    if len(positions) < finished.sum():
        medians = [np.median(values[finished & (x == position)]) for position in positions]
        axis.plot(positions, medians, color=color(0), linewidth=1.0, alpha=0.7, label="median")
    axis.plot(
        x[finished], values[finished], "o", color=color(0), markersize=3.5, alpha=0.6, markeredgewidth=0, label="trial"
    )
    if best is not None:
        label = f"best, trial {best}"
        axis.plot(x[best], values[best], "*", color=color(1), markersize=8, markeredgewidth=0, label=label)
    if not finished.all():  # (an empty line upsets the layout)
        cross_style = {
            "color": INK,
            "alpha": 0.6,
            "transform": axis.get_xaxis_transform(),
            "clip_on": False,
            "zorder": 5,
        }
        axis.plot(x[~finished], np.zeros((~finished).sum()), "x", markersize=4, label="without result", **cross_style)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.grid(alpha=0.15, linewidth=0.5)


def _whiskers(axis, x, trials: Sequence[Mapping]):
    """Mark the range over the seeds of each trial that has several."""
    many = [(place, trial["values"]) for place, trial in zip(x, trials) if len(trial.get("values", ())) > 1]
    if many:
        places, values = zip(*many)
        low, high = ([pick(seeds) for seeds in values] for pick in (min, max))
        axis.vlines(places, low, high, color=color(0), alpha=0.5, linewidth=0.8, label="range over its seeds")


def parallel_coordinates(
    trials: Sequence[Mapping], path: str | Path, *, metric: str, log: Sequence[str] = (), inputs=None
) -> Path:
    """Plot one line per finished trial through all of its parameters to its result, which its color shows, too.

    `trials`, `log` and `inputs` as in `sweep_slices`; a trial without a finite value is left out.
    """
    names = _parameters(trials)
    values = _values(trials)
    trials, values = [t for t, v in zip(trials, values) if np.isfinite(v)], values[np.isfinite(values)]
    if not trials:
        raise InputError("parallel coordinates need at least one finished trial")
    columns = [_positions([trial["params"][name] for trial in trials]) for name in names] + [(values, [])]
    figure = canvas(min(WIDTH, 1.3 * len(columns) + 0.6), 2.8)
    room = int(figure.get_figwidth() / len(columns) * 72 / (0.62 * SMALLEST))  # characters beside an axis
    with figure_style():
        import matplotlib

        axis = figure.subplots()
        dark = matplotlib.colors.ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0, 0.85, 256)))
        colors = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(values.min(), values.max()), dark)
        heights = []
        for i, (name, (x, ticks)) in enumerate(zip([*names, metric], columns)):
            unit = _unit(np.log10(x) if name in log else x)
            heights.append(unit)
            axis.axvline(i, color=INK, alpha=0.6, linewidth=0.8)
            texts = [ticks[int(value)] if ticks else f"{value:.3g}" for value in x]
            side = -1 if i == 0 else 1  # of the first and the last axis on which no lines are
            _marks(axis, i, {height: short(text, room - 2) for height, text in sorted(zip(unit, texts))}, side)
        for line in np.argsort(values):
            axis.plot(
                range(len(columns)), [h[line] for h in heights], color=colors.to_rgba(values[line]), linewidth=1.1
            )
        names = [name.replace("_", " ") for name in (*names, metric)]
        axis.set_xticks(range(len(columns)), ["\n".join(textwrap.wrap(name, room)) for name in names])
        axis.set(yticks=[], xlim=(-0.45, len(columns) - 0.4), ylim=(-0.06, 1.06))
        axis.spines[:].set_visible(False)
        figure.colorbar(colors, ax=axis, label=names[-1], aspect=30, pad=0.02)
    return save(figure, path, inputs)


def _marks(axis, position: int, marks: Mapping[float, str], side: int):
    """Label the values of a parallel axis, {height: text} from below, at its left (side -1) or right (1): both ends,
    and those with room between."""
    box = {"boxstyle": "square,pad=0.1", "color": "white"}
    top, below = max(marks), -1.0
    for height, mark in marks.items():
        if height == top or (height - below >= MARK and top - height >= MARK):
            offset = {"xytext": (4 * side, 0), "textcoords": "offset points", "va": "center"}
            offset["ha"] = "left" if side > 0 else "right"
            axis.annotate(mark, (position, height), **offset, fontsize=SMALLEST, bbox=box, zorder=5)
            below = height


MARK = 0.05
"""The least distance of two labels on one of the parallel axes, of its height."""


def _parameters(trials: Sequence[Mapping]) -> list[str]:
    names = list(dict.fromkeys(name for trial in trials for name in trial["params"]))
    if not names or any(name not in trial["params"] for trial in trials for name in names):
        raise InputError("a figure of a sweep needs trials that all have the same parameters, at least one")
    return names


def _values(trials: Sequence[Mapping]) -> np.ndarray:
    return np.array([np.nan if trial["value"] is None else trial["value"] for trial in trials], float)


def _positions(values: list) -> tuple[np.ndarray, list[str]]:
    """Return numbers unchanged, and other values as positions 0, 1, ... with labels."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values, float), []
    positions = sorted(set(map(str, values)))
    return np.array([positions.index(str(v)) for v in values], float), positions


def _unit(x: np.ndarray) -> np.ndarray:
    """Scale x to 0 .. 1 (0.5 if all are equal)."""
    low, high = float(x.min()), float(x.max())
    return np.full(len(x), 0.5) if high == low else (x - low) / (high - low)
