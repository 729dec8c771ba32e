"""Heatmaps of attention weights: any grid of them, with tokens on the axes."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_jax import InputError
from attention_jax.report.style import SEQUENTIAL, WIDTH, canvas, drawable, families, labels, save, styled


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

    Args:
      weights: [rows, cols, Q, K] (as layers x heads), or [Q, K] for one; or, for panels of different sizes, a list of
        lists of arrays [Q, K]. NaN is left white.
      query_tokens: Q strings for all panels, or rows x cols lists of strings, or None for numbers. `key_tokens`
        likewise. Spaces are drawn as a mark; characters that no installed font has are drawn as their code, U+AC00.
      titles: one per column, or rows x cols of them.
      ylabel: for every row, or one per row ("layer 1", ...).
      path: where the PNG goes; returned.
    """
    grid = _grid(weights)
    largest = max((np.nanmax(panel) for row in grid for panel in row if np.isfinite(panel).any()), default=1.0)
    same = len({panel.shape for row in grid for panel in row}) == 1
    own_y = _nested(query_tokens) or not same  # every panel with its own labels, or only the outer ones
    own_x = _nested(key_tokens) or not same
    figure = canvas(*_size(grid, query_tokens, key_tokens, own_x, own_y))
    with styled():
        axes = figure.subplots(len(grid), max(map(len, grid)), squeeze=False)
        for (i, j), axis in np.ndenumerate(axes):
            if j >= len(grid[i]):
                axis.axis("off")
                continue
            lowest = all(j >= len(row) for row in grid[i + 1 :])
            image = _panel(axis, grid[i][j], vmax or largest or 1.0)
            _token_axis(axis.yaxis, _of_panel(query_tokens, i, j), grid[i][j].shape[0])
            _token_axis(axis.xaxis, _of_panel(key_tokens, i, j), grid[i][j].shape[1], turn=True)
            axis.tick_params(length=0, pad=2, labelleft=own_y or j == 0, labelbottom=own_x or lowest)
            title = _title(titles, i, j)
            if title:
                axis.set_title(drawable(title), fontfamily=families())
            if lowest:
                axis.set_xlabel(xlabel)
            if j == 0:
                axis.set_ylabel(ylabel if isinstance(ylabel, str) else ylabel[i])
        bar = figure.colorbar(image, ax=axes, shrink=min(1.0, 2.5 / figure.get_figheight()), aspect=22, pad=0.01)
        bar.outline.set_linewidth(0.5)
    return save(figure, path)


def _size(grid, query_tokens, key_tokens, own_x: bool, own_y: bool) -> tuple[float, float]:
    """Width and height of the figure in inches, with room for the labels."""
    rows, columns = len(grid), max(map(len, grid))
    queries = max(panel.shape[0] for row in grid for panel in row)
    keys = max(panel.shape[1] for row in grid for panel in row)
    left, below = (0.07 * _longest(tokens, grid) + 0.1 for tokens in (query_tokens, key_tokens))
    width = WIDTH if columns > 1 else float(np.clip(0.17 * keys + left + 1.3, 3.2, WIDTH))
    panel_width = max((width - 0.9 - (columns if own_y else 1) * left) / columns - 0.08, 0.4)
    panel_height = float(np.clip(panel_width * queries / keys, 0.35, 2.2 * panel_width))
    height = rows * (panel_height + 0.2) + (rows if own_x else 1) * (below + 0.1) + 0.35
    return width, height


def _panel(axis, weights, vmax: float):
    """One matrix [Q, K] with a thin frame."""
    image = axis.imshow(weights, cmap=SEQUENTIAL, vmin=0.0, vmax=vmax, aspect="auto", interpolation="nearest")
    for spine in axis.spines.values():
        spine.set(visible=True, linewidth=0.5, color="0.6")
    return image


def _title(titles, i: int, j: int) -> str | None:
    """The panel's own title, or that of its column above the first row."""
    if titles is None:
        return None
    if _nested(titles):
        return titles[i][j]
    return titles[j] if i == 0 else None


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


def _of_panel(tokens, i: int, j: int):
    return tokens[i][j] if _nested(tokens) else tokens


def _longest(tokens, grid) -> int:
    """Characters of the longest label of an axis, for the room it needs."""
    if _nested(tokens):
        panels = [tokens[i][j] for i, row in enumerate(grid) for j in range(len(row))]
    else:
        panels = [tokens or ["00"]]
    return max(len(drawable(token)) for panel in panels for token in (panel or ["00"]))


def _token_axis(axis, tokens, count: int, turn: bool = False):
    """Token labels on one axis of a heatmap; long ones on the x axis are turned upright."""
    if tokens is not None and len(tokens) != count:
        raise InputError(
            f"a heatmap with {count} {'keys' if turn else 'queries'} needs as many tokens, not {len(tokens)}"
        )
    ticks, texts = labels(tokens, count)
    size = 7 if len(ticks) <= 40 else 5
    rotation = 90 if turn and max(map(len, texts)) > (1 if len(ticks) > 16 else 2) and tokens is not None else 0
    axis.set_ticks(ticks, texts, fontfamily=families(), fontsize=size, rotation=rotation)
