"""Heatmaps of attention weights: any grid of them, with tokens on the axes."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax import InputError
from attention_jax.report.labels import shortened
from attention_jax.report.style import SMALLEST, WIDTH, canvas, drawable, families, ink, save, styled

LABEL = SMALLEST * 1.2 / 72
"""Inches that a line of a label takes."""
PAGE = 11.0
"""Inches; a figure is no higher if fewer labels can help it."""


class Panel(NamedTuple):
    """One matrix, its tokens (None: numbers) and its title."""

    weights: np.ndarray
    """[Q, K]"""
    queries: list[str] | None
    keys: list[str] | None
    title: str
    row: str
    """What its row is called."""

    def labelled(self, other: "Panel | None", side: int) -> bool:
        """Whether its labels (0: of queries, 1: of keys) are other ones than those of its neighbour."""
        same = other and self[1 + side] == other[1 + side] and self.weights.shape[side] == other.weights.shape[side]
        return not same


def show_heatmaps(
    weights,
    query_tokens: Sequence | None,
    key_tokens: Sequence | None,
    path: str | Path,
    *,
    titles: Sequence | None = None,
    xlabel: str = "key",
    ylabel: str | Sequence[str] = "query",
    vmax: float | None = None,
) -> Path:
    """Attention weights as a grid of heatmaps with one colour scale, from 0 to `vmax`
    (default: the largest weight shown).

    A row of panels goes on in the next line where the labels would have no room otherwise. Labels stand once where
    neighbours share them; those that no page has room for are thinned out.

    Args:
      weights: [rows, cols, Q, K] (as layers x heads), or [Q, K] for one; or, for panels of different sizes, a list of
        lists of arrays [Q, K]. NaN is left white.
      query_tokens: Q strings for all panels, or rows x cols lists of strings, or None for numbers. `key_tokens`
        likewise. Spaces are drawn as a mark; characters that no installed font has are drawn as their code, U+AC00.
      titles: one per column, or rows x cols of them.
      ylabel: for every row, or one per row ("layer 1", ...).
      path: where the PNG goes; returned.
    """
    grid = _panels(_grid(weights), query_tokens, key_tokens, titles, ylabel)
    largest = max((np.nanmax(p.weights) for row in grid for p in row if np.isfinite(p.weights).any()), default=1.0)
    lines = _lines(grid, _columns(grid))
    heights = [_height(line, below) for line, below in zip(lines, [*lines[1:], []])]
    columns = max(map(len, lines))
    figure = canvas(_width(lines, columns), sum(heights) + 0.35)
    with styled():
        axes = figure.subplots(len(lines), columns, squeeze=False, height_ratios=heights)
        for (i, j), axis in np.ndenumerate(axes):
            if j >= len(lines[i]):
                axis.set_visible(False)
                continue
            panel = lines[i][j]
            above = lines[i - 1][j] if i and j < len(lines[i - 1]) else None
            below = lines[i + 1][j] if i + 1 < len(lines) and j < len(lines[i + 1]) else None
            labelled = panel.labelled(lines[i][j - 1] if j else None, 0), panel.labelled(below, 1)
            image = _draw(axis, panel, vmax or largest or 1.0, *labelled)
            if above is None or panel.title != above.title:
                axis.set_title(panel.title, fontfamily=families())
            if below is None:
                axis.set_xlabel(xlabel)
            if j == 0:
                axis.set_ylabel(panel.row)
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 1.8 / figure.get_figheight()), aspect=18, pad=0.01)
        bar.outline.set_linewidth(0.5)
        bar.ax.tick_params(width=0.5)
    return save(figure, path)


def _draw(axis, panel: Panel, vmax: float, queries: bool, keys: bool):
    """One matrix [Q, K] with a thin frame; its labels of queries and of keys if asked for."""
    image = axis.imshow(panel.weights, vmin=0.0, vmax=vmax, aspect="auto", interpolation="nearest")
    axis.spines[:].set(visible=True, linewidth=0.5, color=ink(), alpha=0.5)
    sides = zip((axis.yaxis, axis.xaxis), (panel.queries, panel.keys), panel.weights.shape, (queries, keys))
    for of_axis, tokens, count, shown in sides:
        ticks, texts = tick_labels(tokens, count) if shown else ([], [])
        upright = of_axis is axis.xaxis and tokens is not None and max(map(len, texts), default=0) > 1
        of_axis.set_ticks(ticks, texts, fontfamily=families(), fontsize=SMALLEST, rotation=90 if upright else 0)
    axis.tick_params(length=0, pad=2)
    return image


def tick_labels(tokens: Sequence[str] | None, count: int) -> tuple[np.ndarray, list[str]]:
    """Tick positions and texts for an axis of `count` places: the tokens, or a few numbers.

    >>> tick_labels(["a", "b"], 2)
    (array([0, 1]), ['a', 'b'])
    >>> tick_labels(None, 100)[1]
    ['0', '20', '40', '60', '80']
    """
    if tokens is not None:
        return np.arange(count), list(tokens)
    stride = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, count) if count / s <= 8 or s == count)
    ticks = np.arange(0, count, stride)
    return ticks, list(map(str, ticks))


def _columns(grid: list[list[Panel]]) -> int:
    """How many panels stand side by side: as many as leave room for every label, on a page; else as few as a page
    has room for."""
    most, fits = max(map(len, grid)), []
    for columns in range(most, 0, -1):
        lines = _lines(grid, columns)
        if sum(_height(line, below) for line, below in zip(lines, [*lines[1:], []])) <= PAGE:
            fits.append(columns)
            if all(_cell(line, columns) >= LABEL for line in lines if line[0].keys):
                return columns
    return min(fits, default=most)


def _lines(grid: list[list[Panel]], columns: int) -> list[list[Panel]]:
    """The rows of panels, broken into lines of at most so many."""
    return [row[start : start + columns] for row in grid for start in range(0, len(row), columns)]


def _left(line: list[Panel]) -> float:
    """Inches beside the panels of a line for their labels of queries."""
    before = [None, *line[:-1]]
    shown = [panel for panel, other in zip(line, before) if panel.labelled(other, 0)]
    return 0.2 + sum(0.1 + 0.055 * max(map(len, panel.queries or ["00"])) for panel in shown)


def _cell(line: list[Panel], columns: int) -> float:
    """Inches that a key has across the widest panel of a line, where `columns` of them fill the width."""
    keys = max(panel.weights.shape[1] for panel in line)
    return max((WIDTH - 0.5 - _left(line)) / columns - 0.08, 0.3) / keys


def _height(line: list[Panel], below: list[Panel]) -> float:
    """Inches of a line with its labels: cells are about square, and as high as a label."""
    queries = max(len(panel.weights) for panel in line)
    cell = min(_cell(line, len(line)), 0.16)
    shown = any(a.labelled(below[j] if j < len(below) else None, 1) for j, a in enumerate(line))
    labels = 0.055 * max(len(token) for panel in line for token in panel.keys or ["00"]) + 0.15 if shown else 0.0
    low = LABEL * queries if line[0].queries else 0.35
    return float(np.clip(cell * queries, min(low, 8), 8)) + labels + 0.2


def _width(lines: list[list[Panel]], columns: int) -> float:
    """Of the figure in inches: a single panel needs less than all."""
    if columns > 1:
        return WIDTH
    keys = max(panel.weights.shape[1] for line in lines for panel in line)
    return float(np.clip(0.2 * keys + max(map(_left, lines)) + 0.8, 3.0, WIDTH))


def _panels(grid, query_tokens, key_tokens, titles, ylabel) -> list[list[Panel]]:
    """Each matrix with what belongs to it."""
    rows = []
    for i, row in enumerate(grid):
        name = ylabel if isinstance(ylabel, str) else ylabel[i]
        rows.append([])
        for j, weights in enumerate(row):
            queries = _tokens(query_tokens, i, j, weights.shape[0], "queries")
            keys = _tokens(key_tokens, i, j, weights.shape[1], "keys")
            title = "" if titles is None else titles[i][j] if _nested(titles) else titles[j]
            rows[-1].append(Panel(weights, queries, keys, drawable(title) if title else "", name))
    return rows


def _tokens(tokens, i: int, j: int, count: int, what: str) -> list[str] | None:
    """The tokens of one axis of a panel as they are drawn."""
    mine = tokens[i][j] if _nested(tokens) else tokens
    if mine is not None and len(mine) != count:
        raise InputError(f"a heatmap with {count} {what} needs as many tokens, not {len(mine)}")
    return mine if mine is None else [shortened(drawable(token)) for token in mine]


def _grid(weights) -> list[list[np.ndarray]]:
    """Any accepted form of weights as rows of float arrays [Q, K]."""
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


def _nested(tokens) -> bool:
    return tokens is not None and len(tokens) > 0 and not isinstance(tokens[0], str)
