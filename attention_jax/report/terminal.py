"""Curves in a terminal: lines of dots, eight to a character, or letters where there is no colour."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

COLOURS = ("blue", "yellow", "green", "magenta", "cyan", "red")
LETTERS = ".*+ox#"
DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
"""The bits of Unicode's braille patterns, four rows of two."""
Cell = tuple[str, int]
"""A character, and the number of the line it belongs to (-1: text)."""


def chart(series: Mapping[str, tuple], ends: tuple, width: int, height: int, braille: bool = True) -> list[list[Cell]]:
    """Lines {name: (x [N], y [N])} in `height` rows of at most `width` characters, the scale on the left; x goes from
    one of the `ends` to the other.

    The scale is logarithmic where the greatest value is more than a hundred times the least. Values that are no numbers
    are passed over.

    >>> for row in chart({"loss": ([0, 1, 2], [2.0, 1.0, 0.0])}, (0, 2), 12, 3, False):
    ...     print("".join(character for character, _ in row).rstrip())
       2 |..
         |  ..
       0 |    ..
    """
    lines = [(np.asarray(x, float), np.asarray(y, float)) for x, y in series.values()]
    lines = [(x[np.isfinite(y)], y[np.isfinite(y)]) for x, y in lines]
    values = np.concatenate([y for _, y in lines] or [np.zeros(0)])
    if not len(values) or width < 10:
        return [_text("")] * height
    log = 0 < values.min() < values.max() / 100
    high, low = _unlike(values.max(), values.min())
    margin = max(4, len(high), len(low))
    across, down = (2, 4) if braille else (1, 1)
    grid = np.zeros((len(lines), height * down, (width - margin - 2) * across), bool)
    for dots, (x, y) in zip(grid, lines):
        _draw(dots, x, np.log(y) if log else y, np.asarray(ends), np.log(values) if log else values)
    rows = []
    for row, label in enumerate([high, *[""] * (height - 2), low]):
        here = grid[:, row * down : (row + 1) * down].reshape(len(lines), down, -1, across)
        rows.append([*_text(f"{label:>{margin}} |"), *_cells(here.transpose(0, 2, 1, 3), braille)])
    return rows


def _unlike(high: float, low: float) -> tuple[str, str]:
    """Both ends of a scale in as few digits as tell them apart."""
    texts = [(f"{high:.{digits}g}", f"{low:.{digits}g}") for digits in (3, 4, 6, 9)]
    return next((pair for pair in texts if pair[0] != pair[1]), texts[0])


def _draw(dots: np.ndarray, x, y, places, values):
    """One line into its dots [rows, columns]: the mean of what falls into a column, joined by what lies between."""
    if not len(x):
        return
    rows, columns = dots.shape
    column = _scaled(x, places, columns)
    used = np.unique(column)
    means = [y[column == place].mean() for place in used]
    height = rows - 1 - _scaled(np.interp(np.arange(used[0], used[-1] + 1), used, means), values, rows)
    for at, (before, after) in enumerate(zip([height[0], *height[:-1]], height), used[0]):
        start = before + np.sign(after - before)
        dots[min(start, after) : max(start, after) + 1, at] = True


def _scaled(x, ends, count: int) -> np.ndarray:
    """Places 0 .. count - 1 of x between the least and the greatest of `ends`."""
    low, high = ends.min(), ends.max()
    return np.rint((x - low) / ((high - low) or 1) * (count - 1)).astype(int)


def _cells(dots: np.ndarray, braille: bool) -> list[Cell]:
    """The characters of a row: dots [lines, columns, 4, 2] or [lines, columns, 1, 1]; the last line lies on top."""
    cells = []
    for column in range(dots.shape[1]):
        drawn = np.flatnonzero(dots[:, column].any(axis=(1, 2)))
        if not len(drawn):
            cells.append((" ", -1))
        elif braille:
            cells.append((chr(0x2800 + int(DOTS[dots[:, column].any(axis=0)].sum())), int(drawn[-1])))
        else:
            cells.append((LETTERS[drawn[-1] % len(LETTERS)], int(drawn[-1])))
    return cells


def _text(text: str) -> list[Cell]:
    return [(character, -1) for character in text]


def beside(charts: Sequence[list[list[Cell]]], width: int) -> list[list[Cell]]:
    """Charts of equal height side by side, each filled up to `width`."""
    filled = [[(row + _text(" " * width))[:width] for row in chart] for chart in charts]
    return [list(itertools.chain(*rows)) for rows in zip(*filled)]
