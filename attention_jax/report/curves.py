"""Line plots, learning curves and grouped bars, with the spread over seeds and published numbers for comparison."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill

import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.files import is_of_attention, metrics_row
from attention_jax.report.forest import Row, draw_rows
from attention_jax.report.intervals import mean_half_width
from attention_jax.report.style import (
    INK,
    SMALLEST,
    WIDTH,
    band,
    band_in_words,
    canvas,
    color,
    drawable,
    figure_style,
    line_style,
    log_scale,
    save,
    short,
)

SPLITS = ("train", "valid", "test")
NOT_METRICS = ("epoch", "step", "seconds")
PANELS = 6
"""Kinds of metrics in one figure of learning curves."""


def lines(
    series: Mapping[str, tuple],
    path: str | Path,
    *,
    xlabel: str,
    ylabel: str,
    log: str = "",
    title: str = "",
    points: Mapping[str, tuple] | None = None,
    reference: Mapping[str, float] | None = None,
    ticks: Mapping[float, str] | None = None,
    inputs=None,
) -> Path:
    """Lines over a common axis: `series` is {name: (x [N], y [N] or [seeds, N])}; seeds give
    the median and a band.

    `log` names the logarithmic axes: "", "x", "y" or "xy". `points`, {name: (x [N], y [N])}, are plotted as dots (the
    data that the lines explain), `reference` as horizontal lines (published numbers). `ticks` names positions of the x
    axis. `inputs` as in `style.save`.
    """
    figure = canvas(4.8, 2.6)
    with figure_style():
        axis = figure.subplots()
        for name, (x, y) in (points or {}).items():
            axis.plot(x, y, "o", color=INK, alpha=0.6, markersize=3.5, markeredgewidth=0, label=name, zorder=3)
        for i, (name, (x, y)) in enumerate(series.items()):
            _line(axis, name, x, y, line_style(i) | ({"marker": ""} if points else {}))
        for i, (name, value) in enumerate((reference or {}).items()):
            axis.axhline(value, color=INK, alpha=0.7, linewidth=0.9, linestyle=(0, (6, 2 + 2 * i)), label=name)
        _scales(axis, series, log)
        if ticks:
            axis.set_xticks(list(ticks), list(ticks.values()), rotation=90 * (len(ticks) > 7))
        axis.set(xlabel=xlabel, ylabel=ylabel, title=short(title, 70))
        if len(axis.get_lines()) > 1 or list(series) != [ylabel]:
            runs = max((np.atleast_2d(y).shape[0] for _, y in series.values()), default=1)
            _legend(figure, [axis], runs)
    return save(figure, path, inputs)


def line_panels(panels: Mapping[str, tuple], path: str | Path) -> Path:
    """Panels of lines, two in a row: {title: (series, xlabel, ylabel, log)}, each as in `lines`, with its legend."""
    figure = canvas(WIDTH, 2.1 * -(-len(panels) // 2))
    with figure_style():
        axes = np.ravel(figure.subplots(-(-len(panels) // 2), 2, squeeze=False))
        for axis, (title, (series, xlabel, ylabel, log)) in zip(axes, panels.items()):
            for i, (name, (x, y)) in enumerate(series.items()):
                _line(axis, name, x, y, line_style(i))
            _scales(axis, series, log)
            axis.set(xlabel=xlabel, ylabel=ylabel, title=short(title, 40))
            if len(series) > 1:
                axis.legend()
        for axis in axes[len(panels) :]:
            axis.remove()
    return save(figure, path)


def curves_and_differences(
    series: Mapping[str, tuple], differences: Sequence[Row], path: str | Path, *, ylabel: str, xlabel: str
) -> Path:
    """Learning curves of variants, {name: (epochs [N], y [seeds, N])}, and beside them the forest plot of their
    `differences`, in the same colors; without differences the curves alone.

    Where no variant was evaluated more than once, their means with 95 % intervals take the place of the curves.
    """
    tints = {name: color(i) for i, name in enumerate(dict.fromkeys([*(row.name for row in differences), *series]))}
    evaluated_once = all(len(epochs) == 1 for epochs, _ in series.values())
    columns = 1 + bool(differences)
    figure = canvas(WIDTH if columns == 2 else 4.8, max(1.4 if evaluated_once else 2.4, 0.35 * len(tints) + 0.8))
    with figure_style():
        left, *right = figure.subplots(1, columns, squeeze=False, width_ratios=(3, 2)[:columns])[0]
        figure.get_layout_engine().set(w_pad=0.08)
        if evaluated_once:
            seeds = {name: np.ravel(y) for name, (_, y) in series.items()}
            means = [Row(name, "", y.mean(), mean_half_width(y), "") for name, y in seeds.items()]
            _forest(left, means, tints, f"{ylabel}, mean (95 %)")
        else:
            for name, (x, y) in series.items():
                _line(left, name, x, y, line_style([*tints].index(name)))
            _scales(left, series)
            left.set(xlabel="epoch", ylabel=ylabel)
            _legend(figure, [left], max(len(y) for _, y in series.values()))
        for axis in right:
            _forest(axis, differences, tints, xlabel)
            axis.axvline(0, color=INK, linewidth=0.6, zorder=0)
            axis.tick_params(labelleft=not evaluated_once or [*series] != [row.name for row in differences])
    return save(figure, path)


def _forest(axis, rows: Sequence[Row], tints: Mapping[str, str], xlabel: str):
    """A forest plot on one of several axes, with names in lines of 20 characters."""
    draw_rows(axis, [row._replace(name=fill(short(row.name, 60), 20)) for row in rows], [tints[r.name] for r in rows])
    axis.set_xlabel(xlabel)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.grid(axis="x", alpha=0.15, linewidth=0.5)


def _line(axis, name: str, x, y, style: Mapping):
    """The median of y [N] or [runs, N], and the band of several runs."""
    middle, low, high = band(y)
    axis.plot(x, middle, label=name, linewidth=1.2, **style | ({"marker": ""} if len(middle) > 40 else {}))
    if np.atleast_2d(np.asarray(y)).shape[0] > 1:
        axis.fill_between(x, low, high, color=style["color"], alpha=0.18, linewidth=0)
    axis.grid(alpha=0.15, linewidth=0.5)


def _scales(axis, series: Mapping[str, tuple], log: str = ""):
    """Set logarithmic axes, and integer ticks on an axis of integers."""
    positions, values = ([np.ravel(pair[i]).astype(float) for pair in series.values()] for i in (0, 1))
    if "x" in log:
        log_scale(axis, "x", np.concatenate(positions))
    elif positions and all(np.all(x == np.round(x)) for x in positions):
        axis.xaxis.get_major_locator().set_params(integer=True)
    if "y" in log:
        log_scale(axis, "y", np.concatenate(values))
    else:
        axis.yaxis.set_major_formatter("{x:g}")


def _legend(figure, axes: Sequence, runs: int = 1):
    """Add one legend below all axes, each name once, in as many columns as fit."""
    handles = {}
    for axis in axes:
        handles |= {text: handle for handle, text in zip(*axis.get_legend_handles_labels()) if text not in handles}
    names = [short(name, 70) for name in handles]
    columns = int(figure.get_figwidth() * 72 / (0.65 * SMALLEST * (8 + max(map(len, names), default=1))))
    columns = max(1, min(columns, len(names)))
    title = {"title": band_in_words(runs)} if runs > 1 else {}
    figure.set_figheight(figure.get_figheight() + 0.13 * (-(-len(names) // columns) + (runs > 1)))
    figure.legend(handles.values(), names, loc="outside lower center", ncols=columns, **title)


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence],
    path: str | Path,
    *,
    xlabel: str,
    reference: Mapping[str, Sequence[float | None]] | None = None,
    dots: bool = False,
    inputs=None,
) -> Path:
    """Grouped bars, from above: `series` is {name: one entry per group}, an entry a number or a list over seeds.

    `dots` plots points instead, on an axis without zero, for values that differ little. Of several seeds the bar is the
    median and the whiskers are the range, as the legend says. None and NaN leave a gap.
    `reference` is {name: one number or None per group}, shown as a tick across the group (published numbers).
    """
    count, slot = len(groups), 0.8 / max(len(series), 1)
    figure = canvas(4.8, 0.6 + count * max(0.2, (0.065 if dots else 0.11) * len(series)))
    with figure_style():
        axis = figure.subplots()
        for i, (name, entries) in enumerate(series.items()):
            values = [np.atleast_1d(np.asarray([np.nan] if e is None else e, float)) for e in entries]
            middle, low, high = (np.array([pick(seeds) for seeds in values]) for pick in (np.median, np.min, np.max))
            y = np.arange(count) + (i - (len(series) - 1) / 2) * slot
            if dots:
                axis.plot(middle, y, "o", color=color(i), markersize=4, label=name)
            else:
                axis.barh(y, middle, slot * 0.92, color=color(i), label=name)
            many = np.array([len(seeds) > 1 for seeds in values])
            if many.any():
                spread = np.stack([middle - low, high - middle])[:, many]
                axis.errorbar(middle[many], y[many], xerr=spread, fmt="none", ecolor=INK, elinewidth=0.9, capsize=2)
        for name, numbers in (reference or {}).items():
            positions = np.array([group for group, number in enumerate(numbers) if number is not None])
            at = [number for number in numbers if number is not None]
            axis.vlines(at, positions - 0.45, positions + 0.45, color=INK, linewidth=1.2, label=name)
        axis.set_yticks(range(count), [short(drawable(group), 32) for group in groups])
        axis.set(xlabel=xlabel, ylim=(count - 0.4, -0.6))
        axis.margins(x=0.08)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.grid(axis="x", alpha=0.15, linewidth=0.5)
        axis.set_axisbelow(True)
        runs = max((np.size(entry) for entries in series.values() for entry in entries if entry is not None), default=1)
        if len(series) > 1 or reference or runs > 1:
            _legend(figure, [axis])
        if runs > 1:
            figure.legends[0].set_title(f"median and range of up to {runs} runs")
    return save(figure, path, inputs)


def read_history(source: str | Path | Sequence[Mapping]) -> list[dict]:
    """Return the rows of a learning curve, from a metrics.jsonl (its epochs, or steps before the first epoch ends) or
    from a history.

    An incomplete last line of a killed run is ignored; any other malformed line is an InputError.
    """
    if not isinstance(source, str | Path):
        return [dict(row) for row in source]
    rows = []
    text = Path(source).read_text(encoding="utf-8", errors="replace").split("\n")
    for number, line in enumerate(text, 1):
        row = metrics_row(line)
        if row and not is_of_attention(row):
            rows.append(row)
        elif not row and line.strip() and number < len(text):  # a complete line has a newline, so something follows
            raise InputError(f"{source}, line {number} is no row of metrics in JSON: {line[:60]!r}; delete the line")
    epochs = [row for row in rows if "seconds" in row]
    return epochs or rows


def learning_curves(
    histories: Sequence[str | Path | Sequence[Mapping]],
    path: str | Path,
    config: configs.Config | None = None,
    *,
    title: str = "",
) -> Path:
    """Plot one panel for each kind of metric (loss first, at most `PANELS`) with a line for each split, over epochs, or
    over steps before the first epoch ends.

    `histories` are files (metrics.jsonl) or their rows, of one run or of all seeds of a configuration: median and band.
    The kind is the part after the last dot: train.loss and valid.loss have the same. An axis is logarithmic if the
    largest value is more than a hundred times the smallest. The legend says what `config` adds to the training loss
    alone, such as dropout. The PNG stores the hash of the histories (`style.save`).
    """
    histories = [read_history(source) for source in histories]
    training = in_training_alone(config) if config else ""
    rows = [row for history in histories for row in history]
    axis_name = "epoch" if all("seconds" in row or "step" not in row for row in rows) else "step"
    x = sorted({row[axis_name] for row in rows})
    names = list(dict.fromkeys(name for row in rows for name in row if name not in NOT_METRICS))
    curves = {name: (x, _align(histories, axis_name, x, name)) for name in names}
    panels = kinds([name for name, (_, values) in curves.items() if not np.isnan(values).all()])
    if not panels:
        raise InputError("learning curves need a run with at least one logged number")
    columns = 2 if len(panels) in (2, 4) else min(len(panels), 3)
    lines_of_panels = -(-len(panels) // columns)
    figure = canvas(4.0 if columns == 1 else WIDTH, 0.3 + 1.9 * lines_of_panels)
    with figure_style():
        axes = figure.subplots(lines_of_panels, columns, squeeze=False, sharex=True).ravel()
        for axis in axes[len(panels) :]:
            axis.set_visible(False)
        for axis, (kind, metric_names) in zip(axes, panels.items()):
            for name in metric_names:
                label = f"{_split(name)} (with {training})" if training and _split(name) == "train" else _split(name)
                _line(axis, label, *curves[name], line_style(_position(name)))
            values = np.concatenate([np.ravel(curves[name][1]) for name in metric_names])
            values = values[~np.isnan(values)]
            _scales(
                axis,
                {name: curves[name] for name in metric_names},
                "y" if 0 < values.min() < values.max() / 100 else "",
            )
            axis.set(xlabel=axis_name, ylabel=kind.replace("_", " "))
            axis.tick_params(labelbottom=True)
        _legend(figure, axes[: len(panels)], len(histories))
        figure.suptitle(short(title, 70))
    return save(figure, path, histories)


def kinds(names: Sequence[str]) -> dict[str, list[str]]:
    """Group metrics by kind, loss first, without the perplexity, which is its exponential; at most `PANELS`.

    >>> kinds(["train.accuracy", "train.loss", "test.accuracy", "test.loss", "test.perplexity"])
    {'loss': ['train.loss', 'test.loss'], 'accuracy': ['train.accuracy', 'test.accuracy']}
    """
    groups = {}
    for name in sorted(names, key=lambda name: not name.endswith("loss")):
        groups.setdefault(name.rpartition(".")[2], []).append(name)
    if "loss" in groups:
        groups.pop("perplexity", None)
    return dict(list(groups.items())[:PANELS])


def _split(name: str) -> str:
    """Return the split of a metric, or its name without one."""
    return name.rpartition(".")[0] or name


def _position(name: str) -> int:
    """Return the index of the style of a split, the same in every figure."""
    return SPLITS.index(_split(name)) if _split(name) in SPLITS else len(SPLITS)


def _align(histories, axis_name: str, x: list, name: str) -> np.ndarray:
    """Return one metric of several runs over a common axis, [runs, len(x)], NaN for missing values."""
    values = np.full((len(histories), len(x)), np.nan)
    where = {at: i for i, at in enumerate(x)}
    for run, history in enumerate(histories):
        for row in history:
            if isinstance(row.get(name), int | float) and not isinstance(row[name], bool):
                values[run, where[row[axis_name]]] = row[name]
    return values


def in_training_alone(config: configs.Config) -> str:
    """Return what affects the training loss only: label smoothing, dropout and augmentation.

    >>> in_training_alone(configs.Config("x", configs.Images(mixup=0.2), configs.ViTConfig()))
    'mixup'
    """
    rates = [rate for name, rate in vars(config.model).items() if name.endswith(("dropout", "stochastic_depth"))]
    causes = ["label smoothing"] * (config.train.label_smoothing > 0) + ["dropout"] * any(rates)
    return ", ".join([*causes, *(name for name in ("mixup", "cutmix") if getattr(config.data, name, 0))])
