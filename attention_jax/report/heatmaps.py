"""Heatmaps of attention weights: any grid of them, with tokens on the axes."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError
from attention_jax.report.style import INK, SMALLEST, WIDTH, canvas, drawable, families, figure_style, save, short

LABEL = SMALLEST * 1.25 / 72
"""Inches that a label takes across its line."""
LETTER = 0.055
"""Inches that a letter of a label takes along it."""
DIVERGING = "RdBu"
"""Colors of numbers on both sides of zero: red, white, blue."""
PAGE = 14.0
"""Inches; a figure whose labels need more height has numbers instead of tokens."""


class Heatmap(NamedTuple):
    """One matrix of weights with its labels."""

    weights: np.ndarray
    """[Q, K], from 0; NaN is left white."""
    queries: Sequence[str] | None = None
    """Q tokens; None for positions, counted from 0."""
    keys: Sequence[str] | None = None
    title: str = ""
    row: str = ""
    """The name of its row in a figure, instead of that of the axis."""


def layer_heatmaps(weights: np.ndarray, queries: Sequence[str] | None, keys: Sequence[str] | None) -> list:
    """The rows of a figure of weights [layers, heads, Q, K].

    >>> [[heatmap]] = layer_heatmaps(np.zeros((1, 1, 2, 2)), ["a", "b"], None)
    >>> heatmap.row, heatmap.title
    ('layer 1', 'head 1')
    """
    return [
        [Heatmap(head, queries, keys, f"head {h}", f"layer {i}") for h, head in enumerate(layer, 1)]
        for i, layer in enumerate(weights, 1)
    ]


class Layout(NamedTuple):
    """How the panels of a figure are arranged and which of their axes have tokens as labels."""

    queries: bool
    """Whether tokens label the queries; otherwise their positions do."""
    keys: bool
    shared: bool
    """Whether all panels have the same axes, which are labeled once, at the left and below."""
    lines: list[list[Heatmap]]
    """The panels side by side, from top to bottom."""
    heights: list[float]
    """Inches of each line."""
    inner: list[float]
    """Inches of its panels alone."""


def show_heatmaps(
    rows: Sequence[Sequence[Heatmap]],
    path: str | Path,
    *,
    xlabel: str = "key",
    ylabel: str = "query",
    limits: tuple[float, float] | None = None,
    color_label: str = "",
) -> Path:
    """Plot rows of heatmaps with one color scale, from 0 to the largest weight, to the PNG file `path`, and return it.

    The scale may have other `limits`, with two hues if zero is between them.
    A row continues in the next line if its labels need the width. If not all tokens fit, an axis shows positions.
    Spaces are shown as a mark; characters that no installed font has are shown as their code, U+AC00. Raises
    InputError for weights that are no matrices, and for tokens of another number.
    """
    grid = [[_with_labels(panel, ylabel) for panel in row] for row in rows]
    if not any(grid):
        raise InputError("a figure of heatmaps needs at least one of them")
    largest = max((np.nanmax(p.weights) for row in grid for p in row if np.isfinite(p.weights).any()), default=1.0)
    layout = _layout(grid)
    lines, columns = layout.lines, max(map(len, layout.lines))
    keys = max(panel.weights.shape[1] for line in lines for panel in line)
    figure = canvas(WIDTH if columns > 1 else float(np.clip(0.2 * keys + 1.8, 3.0, WIDTH)), sum(layout.heights) + 0.35)
    with figure_style():
        axes = figure.subplots(len(lines), columns, squeeze=False, height_ratios=layout.heights)
        for (i, j), axis in np.ndenumerate(axes):
            if j >= len(lines[i]):
                axis.set_visible(False)
                continue
            panel, last = lines[i][j], i + 1 == len(lines) or j >= len(lines[i + 1])
            left, below = not layout.shared or j == 0, not layout.shared or last
            image = _draw(axis, panel, limits or (0.0, largest or 1.0), layout, left, below)
            if i == 0 or j >= len(lines[i - 1]) or panel.title != lines[i - 1][j].title:
                axis.set_title(panel.title, fontfamily=families())
            name = _axis_label(panel.row, panel.queries, layout.queries) if j == 0 else ""
            axis.set_ylabel(fill(name, int((layout.inner[i] + 0.6) / (1.2 * LETTER))))
        figure.supxlabel(_axis_label(xlabel, lines[0][0].keys, layout.keys), fontsize=SMALLEST + 1)
        shrink = min(1.0, 1.8 / figure.get_figheight())
        figure.colorbar(image, ax=axes, shrink=shrink, aspect=18, pad=0.01, label=color_label)
    return save(figure, path)


def _draw(axis, panel: Heatmap, limits: tuple[float, float], layout: Layout, left: bool, below: bool):
    """Plot one matrix [Q, K] with a thin frame, and optionally labels of queries on the left and of keys below."""
    (vmin, vmax), style = limits, {"aspect": "auto", "interpolation": "nearest"}
    image = axis.imshow(panel.weights, DIVERGING if vmin < 0 < vmax else None, vmin=vmin, vmax=vmax, **style)
    axis.spines[:].set(visible=True, linewidth=0.5, color=INK, alpha=0.5)
    rows = tick_labels(panel.queries if layout.queries else None, len(panel.weights)) if left else ([], [])
    columns = tick_labels(panel.keys if layout.keys else None, panel.weights.shape[1]) if below else ([], [])
    upright = layout.keys and max(map(len, columns[1]), default=0) > 1
    axis.set_yticks(*rows, fontfamily=families(), fontsize=SMALLEST)
    axis.set_xticks(*columns, fontfamily=families(), fontsize=SMALLEST, rotation=90 if upright else 0)
    axis.tick_params(length=0, pad=2)
    return image


def _axis_label(name: str, tokens, shows_tokens: bool) -> str:
    """Return the label of an axis, with a note if it shows positions instead of tokens."""
    return f"{name} (position)" if name and tokens is not None and not shows_tokens else name


def tick_labels(tokens: Sequence[str] | None, count: int) -> tuple[np.ndarray, list[str]]:
    """Return tick positions and labels of an axis of `count` tokens: the tokens, or a few numbers.

    >>> tick_labels(["a", "b"], 2)
    (array([0, 1]), ['a', 'b'])
    >>> tick_labels(None, 100)[1]
    ['0', '50']
    """
    if tokens is not None:
        return np.arange(count), list(tokens)
    stride = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, count) if count / s <= 4 or s == count)
    ticks = np.arange(0, count, stride)
    return ticks, list(map(str, ticks))


def _layout(grid: list[list[Heatmap]]) -> Layout:
    """Return the layout with the most tokens that fits a page."""
    panels = [panel for row in grid for panel in row]
    axes = lambda p: (p.queries, p.keys, p.weights.shape)
    shared = all(axes(panel) == axes(panels[0]) for panel in panels)
    for queries, keys in product((True, False), repeat=2):
        queries, keys = queries and panels[0].queries is not None, keys and panels[0].keys is not None
        left_margin = 0.2 + (LETTER * max(len(t) for p in panels for t in p.queries) if queries else 0.15)
        bottom_margin = 0.2 + (LETTER * max(len(t) for p in panels for t in p.keys) if keys else 0.1)
        across = max(p.weights.shape[1] for p in panels) * LABEL if keys else 0.3
        room = WIDTH - 0.6 - (left_margin if shared else 0)
        most_columns = max(1, int(room / (across + (0.08 if shared else left_margin))))
        columns = max(-(-len(row) // -(-len(row) // most_columns)) for row in grid)  # lines of a row are equally long
        fits = across + (0 if shared else left_margin) <= room
        lines = [row[start : start + columns] for row in grid for start in range(0, len(row), columns)]
        each, most = (LABEL, PAGE) if queries else (0.15, room / columns)
        highest = [max(len(panel.weights) for panel in line) for line in lines]
        inner = [float(np.clip(each * count, 0.4, most)) for count in highest]
        heights = [height + 0.25 + bottom_margin * (not shared) for height in inner]
        heights[-1] += bottom_margin * shared
        if fits and sum(heights) <= PAGE:
            break
    return Layout(queries, keys, shared, lines, heights, inner)


def _with_labels(panel: Heatmap, ylabel: str) -> Heatmap:
    """Return a heatmap of floats with labels that can be drawn."""
    weights = np.asarray(panel.weights, float)
    if weights.ndim != 2 or not weights.size:
        raise InputError(f"a heatmap needs a matrix [queries, keys] that is not empty, not an array {weights.shape}")
    for name, tokens, count in zip(("queries", "keys"), (panel.queries, panel.keys), weights.shape):
        if tokens is not None and len(tokens) != count:
            raise InputError(f"a heatmap with {count} {name} needs as many tokens, not {len(tokens)}")
    queries, keys = (
        None if tokens is None else [short(drawable(token)) for token in tokens]
        for tokens in (panel.queries, panel.keys)
    )
    return Heatmap(weights, queries, keys, short(drawable(panel.title)) if panel.title else "", panel.row or ylabel)
