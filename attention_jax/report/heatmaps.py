"""Heatmaps of attention weights: any grid of them, with tokens on the axes."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from textwrap import fill
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError
from attention_jax.report.style import SMALLEST, WIDTH, canvas, drawable, families, figure_style, ink, save, short

LABEL = SMALLEST * 1.25 / 72
"""Inches that a label takes across its line."""
LETTER = 0.055
"""Inches that a letter of a label takes along it."""
DIVERGING = "RdBu"
"""Colors of numbers on both sides of zero: red, white, blue."""
PAGE = 14.0
"""Inches; a figure whose labels need more height has numbers instead of tokens."""


class Panel(NamedTuple):
    """One matrix [Q, K] with its tokens (None: numbers), its title and the name of its row."""

    weights: np.ndarray
    queries: list[str] | None
    keys: list[str] | None
    title: str
    row: str


class Layout(NamedTuple):
    """How the panels of a figure are arranged and which of their axes have tokens as labels."""

    queries: bool
    """Whether tokens label the queries; otherwise their positions do."""
    keys: bool
    shared: bool
    """Whether all panels have the same axes, which are labeled once, at the left and below."""
    lines: list[list[Panel]]
    """The panels side by side, from top to bottom."""
    heights: list[float]
    """Inches of each line."""
    inner: list[float]
    """Inches of its panels alone."""


def show_heatmaps(
    weights,
    query_tokens: Sequence | None,
    key_tokens: Sequence | None,
    path: str | Path,
    *,
    titles: Sequence | None = None,
    xlabel: str = "key",
    ylabel: str | Sequence[str] = "query",
    limits: tuple[float, float] | None = None,
    color_label: str = "",
) -> Path:
    """Plot attention weights as a grid of heatmaps with one color scale, by default 0 to the largest weight.

    A row of panels continues in the next line if its labels need the width. If not all tokens fit, an axis shows
    positions, counted from 0.

    Args:
      weights: [rows, cols, Q, K] (as layers x heads), or [Q, K] for one; or, for panels of different sizes, a list of
        lists of arrays [Q, K]. NaN is left white.
      query_tokens: Q strings for all panels, or rows x cols lists of strings, or None for positions. `key_tokens`
        likewise. Spaces are shown as a mark; characters that no installed font has are shown as their code, U+AC00.
      titles: one per column, or rows x cols of them.
      ylabel: for every row, or one per row ("layer 1", ...).
      limits: of the color scale, which has two hues if zero is between them.
      path: the PNG file; returned.
    """
    grid = _panels(_grid(weights), query_tokens, key_tokens, titles, ylabel)
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


def _draw(axis, panel: Panel, limits: tuple[float, float], layout: Layout, left: bool, below: bool):
    """Plot one matrix [Q, K] with a thin frame, and optionally labels of queries on the left and of keys below."""
    (vmin, vmax), style = limits, {"aspect": "auto", "interpolation": "nearest"}
    image = axis.imshow(panel.weights, DIVERGING if vmin < 0 < vmax else None, vmin=vmin, vmax=vmax, **style)
    axis.spines[:].set(visible=True, linewidth=0.5, color=ink(), alpha=0.5)
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


def _layout(grid: list[list[Panel]]) -> Layout:
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
        columns = max(1, min(int(room / (across + (0.08 if shared else left_margin))), max(map(len, grid))))
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


def _panels(grid, query_tokens, key_tokens, titles, ylabel) -> list[list[Panel]]:
    """Return each matrix with its tokens and titles."""
    rows = []
    for i, row in enumerate(grid):
        name = ylabel if isinstance(ylabel, str) else ylabel[i]
        rows.append([])
        for j, weights in enumerate(row):
            queries = _tokens(query_tokens, i, j, weights.shape[0], "queries")
            keys = _tokens(key_tokens, i, j, weights.shape[1], "keys")
            title = "" if titles is None else titles[i][j] if _is_nested(titles) else titles[j]
            rows[-1].append(Panel(weights, queries, keys, short(drawable(title)) if title else "", name))
    return rows


def _tokens(tokens, i: int, j: int, count: int, axis_name: str) -> list[str] | None:
    """Return the labels of one axis of a panel."""
    mine = tokens[i][j] if _is_nested(tokens) else tokens
    if mine is not None and len(mine) != count:
        raise InputError(f"a heatmap with {count} {axis_name} needs as many tokens, not {len(mine)}")
    return mine if mine is None else [short(drawable(token)) for token in mine]


def _grid(weights) -> list[list[np.ndarray]]:
    """Convert any accepted form of weights to rows of float arrays [Q, K]."""
    if isinstance(weights, Sequence):
        grid = [[np.asarray(w, float) for w in row] for row in weights]
    else:
        array = np.asarray(weights, float)
        if array.ndim not in (2, 4):
            raise InputError(
                "heatmaps need weights [rows, cols, queries, keys] or [queries, keys], "
                f"not an array of shape {array.shape}"
            )
        grid = [list(row) for row in array] if array.ndim == 4 else [[array]]
    shapes = {w.ndim for row in grid for w in row}
    if shapes != {2} or any(not w.size for row in grid for w in row):
        raise InputError("heatmaps need at least one panel, each of them a matrix [queries, keys] that is not empty")
    return grid


def _is_nested(tokens) -> bool:
    return tokens is not None and len(tokens) > 0 and not isinstance(tokens[0], str)
