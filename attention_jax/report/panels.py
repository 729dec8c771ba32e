"""Pictures of single things: attention over an image, a memory over time, a confusion matrix, the trials of a sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax import InputError
from attention_jax.report.style import SEQUENTIAL, WIDTH, canvas, drawable, families, save, styled

HEAT = "magma"  # over photographs: dark where nothing is looked at, bright where all is


def overlay_attention(images, weights, path: str | Path, *, titles: Sequence[str] | None = None) -> Path:
    """Images above, and below each the same image in grey under the attention it received.

    Args:
      images: [N, H, W], [N, H, W, 1] or [N, H, W, 3]; integers are 0 .. 255, floats 0 .. 1.
      weights: [N, h, w], non-negative, one per patch; stretched over the image, each scaled to its own largest.
      titles: one per image (a class, or predicted / true).
    """
    images, weights = np.asarray(images), np.asarray(weights, float)
    if images.ndim not in (3, 4) or weights.ndim != 3 or len(images) != len(weights) or not len(images):
        raise InputError(
            f"an overlay needs images [N, H, W, C] and weights [N, h, w], not {images.shape} and {weights.shape}"
        )
    pictures = images / 255.0 if np.issubdtype(images.dtype, np.integer) else images.astype(float)
    pictures = pictures[..., None] if pictures.ndim == 3 else pictures
    pictures = np.clip(np.repeat(pictures, 3, axis=-1) if pictures.shape[-1] == 1 else pictures, 0, 1)
    count, (height, width) = len(pictures), pictures.shape[1:3]
    each = min(1.4, (WIDTH - 0.1) / count)
    figure = canvas(each * count + 0.1, 2 * each * height / width + (0.35 if titles else 0.1))
    with styled():
        axes = figure.subplots(2, count, squeeze=False)
        for i in range(count):
            axes[0, i].imshow(pictures[i], interpolation="nearest")
            axes[1, i].imshow(pictures[i].mean(-1), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            frame = (-0.5, width - 0.5, height - 0.5, -0.5)
            axes[1, i].imshow(
                weights[i],
                cmap=HEAT,
                vmin=0,
                vmax=weights[i].max() or 1,
                alpha=0.6,
                extent=frame,
                interpolation="bilinear",
            )
            if titles:
                axes[0, i].set_title(drawable(titles[i]), fontfamily=families(), fontsize=7.5)
        for axis in axes.flat:
            axis.axis("off")
    return save(figure, path)


def over_time(
    panels: Mapping[str, np.ndarray], path: str | Path, *, xlabel: str = "time step", title: str = ""
) -> Path:
    """Matrices over one time axis, one below the other: {name: [T, channels]}, as the inputs,
    outputs and weightings of an NTM.

    Each panel has its own colour scale, from its least value (at most 0) to its largest.
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
    heights = [float(np.clip(0.07 * array.shape[1], 0.5, 2.0)) for array in arrays.values()]
    figure = canvas(6.4, sum(heights) + 0.3 * len(heights) + 0.5)
    with styled():
        axes = figure.subplots(len(arrays), 1, squeeze=False, sharex=True, height_ratios=heights)[:, 0]
        for axis, (name, array) in zip(axes, arrays.items()):
            low, high = min(np.nanmin(array), 0.0), np.nanmax(array)
            high = high if high > low else low + 1
            image = axis.imshow(array.T, cmap=SEQUENTIAL, vmin=low, vmax=high, aspect="auto", interpolation="nearest")
            axis.set_title(name, loc="left", pad=3)
            axis.yaxis.get_major_locator().set_params(integer=True, nbins=3)
            figure.colorbar(image, ax=axis, pad=0.01, aspect=10, ticks=[low, high])
        axes[-1].set_xlabel(xlabel)
        axes[-1].xaxis.get_major_locator().set_params(integer=True)
        if title:
            figure.suptitle(title, fontsize=9)
    return save(figure, path)


def confusion_matrix(counts, classes: Sequence[str], path: str | Path, *, title: str = "") -> Path:
    """Counts [C, C] (row: true class, column: predicted) as shares of each true class,
    with the percentages written in."""
    counts = np.asarray(counts, float)
    if counts.shape != (len(classes), len(classes)):
        raise InputError(
            f"a confusion matrix of {len(classes)} classes needs counts [{len(classes)}, {len(classes)}], "
            f"not {counts.shape}"
        )
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    size = float(np.clip(0.42 * len(classes) + 1.6, 3.0, WIDTH))
    figure = canvas(size, size * 0.92)
    with styled():
        axis = figure.subplots()
        axis.imshow(shares, cmap=SEQUENTIAL, vmin=0, vmax=1)
        names = [drawable(name) for name in classes]
        axis.set_xticks(range(len(names)), names, rotation=45, ha="right", fontfamily=families())
        axis.set_yticks(range(len(names)), names, fontfamily=families())
        axis.tick_params(length=0)
        for (i, j), share in np.ndenumerate(shares):
            if share >= 0.005 and len(names) <= 20:
                axis.text(
                    j,
                    i,
                    f"{100 * share:.0f}",
                    ha="center",
                    va="center",
                    fontsize=6.5,
                    color="white" if share > 0.5 else "black",
                )
        axis.set(xlabel="predicted", ylabel="true", title=title or "share of each true class, %")
    return save(figure, path)


def sweep_slices(trials: Sequence[Mapping], path: str | Path, *, metric: str, log: Sequence[str] = ()) -> Path:
    """The result of every trial over each of its parameters: `trials` are {"params": {name:
    value}, "value": number or None}.

    Trials without a finite value (failed, pruned) are crosses on the lower edge. `log` names the parameters on a
    logarithmic axis; parameters that are not numbers are spread over places.
    """
    names = _parameters(trials)
    cols = min(len(names), 4)
    rows = -(-len(names) // cols)
    figure = canvas(min(WIDTH, 2.2 * cols + 0.6), 2.1 * rows + 0.2)
    values = _values(trials)
    done = np.isfinite(values)
    with styled():
        axes = figure.subplots(rows, cols, squeeze=False, sharey=True)
        for axis, name in zip(axes.flat, names):
            x, ticks = _positions([trial["params"][name] for trial in trials])
            points = axis.scatter(
                x[done], values[done], c=np.flatnonzero(done), cmap="viridis", s=16, edgecolor="0.3", linewidth=0.3
            )
            if not done.all():  # (an empty line upsets the layout)
                edge = axis.get_xaxis_transform()
                axis.plot(
                    x[~done],
                    np.zeros((~done).sum()),
                    "x",
                    color="0.4",
                    transform=edge,
                    clip_on=False,
                    markersize=4,
                    zorder=5,
                )
            if name in log:
                axis.set_xscale("log")
            if ticks:
                axis.set_xticks(range(len(ticks)), ticks)
            axis.set_xlabel(name)
            axis.grid(alpha=0.25, linewidth=0.5)
        for axis in axes.flat[len(names) :]:
            axis.axis("off")
        for row in axes:
            row[0].set_ylabel(metric)
        figure.colorbar(points, ax=axes, label="trial", pad=0.01, aspect=25).ax.yaxis.get_major_locator().set_params(
            integer=True
        )
    return save(figure, path)


def parallel_coordinates(trials: Sequence[Mapping], path: str | Path, *, metric: str, log: Sequence[str] = ()) -> Path:
    """One line per finished trial through all of its parameters to its result (last axis);
    brighter lines have larger results.

    `trials` and `log` as in `sweep_slices`; a trial without a finite value is left out.
    """
    names = _parameters(trials)
    values = _values(trials)
    trials, values = [t for t, v in zip(trials, values) if np.isfinite(v)], values[np.isfinite(values)]
    if not trials:
        raise InputError("parallel coordinates need at least one finished trial")
    columns = [_positions([trial["params"][name] for trial in trials]) for name in names] + [(values, [])]
    figure = canvas(min(WIDTH, 1.5 * len(columns) + 0.8), 3.0)
    with styled():
        import matplotlib

        axis = figure.subplots()
        heights, colours = [], matplotlib.colormaps["viridis"](_unit(values)[0])
        for i, (name, (x, ticks)) in enumerate(zip([*names, metric], columns)):
            unit, low, high = _unit(np.log10(x) if name in log else x)
            heights.append(unit)
            axis.axvline(i, color="0.4", linewidth=0.8)
            marks = ticks or [f"{10**v if name in log else v:.3g}" for v in (low, high)]
            places = np.linspace(0, 1, len(marks)) if len(marks) > 1 else [0.5]
            for mark, place in zip(marks, places):
                box = {"boxstyle": "round,pad=0.15", "color": "white", "alpha": 0.8}
                axis.annotate(
                    mark,
                    (i, place),
                    xytext=(4, 0),
                    textcoords="offset points",
                    fontsize=6.5,
                    va="center",
                    bbox=box,
                    zorder=5,
                )
        for line in np.argsort(values):
            axis.plot(range(len(columns)), [h[line] for h in heights], color=colours[line], linewidth=1.1, alpha=0.8)
        axis.set_xticks(range(len(columns)), [*names, metric])
        axis.set(yticks=[], xlim=(-0.2, len(columns) - 0.6), ylim=(-0.06, 1.06))
        for spine in axis.spines.values():
            spine.set_visible(False)
    return save(figure, path)


def _parameters(trials: Sequence[Mapping]) -> list[str]:
    names = list(dict.fromkeys(name for trial in trials for name in trial["params"]))
    if not names or any(name not in trial["params"] for trial in trials for name in names):
        raise InputError("a figure of a sweep needs trials that all have the same parameters, at least one")
    return names


def _values(trials: Sequence[Mapping]) -> np.ndarray:
    return np.array([np.nan if trial["value"] is None else trial["value"] for trial in trials], float)


def _positions(values: list) -> tuple[np.ndarray, list[str]]:
    """Numbers as they are; anything else as places 0, 1, ... with their names."""
    if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        return np.array(values, float), []
    places = sorted(set(map(str, values)))
    return np.array([places.index(str(v)) for v in values], float), places


def _unit(x: np.ndarray) -> tuple[np.ndarray, float, float]:
    """x scaled to 0 .. 1 (0.5 where all are equal), with its ends."""
    low, high = float(x.min()), float(x.max())
    return (np.full(len(x), 0.5) if high == low else (x - low) / (high - low)), low, high
