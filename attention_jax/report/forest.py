"""A forest plot of published numbers: a dot for each difference, a bar for its resolution, sorted by verdict."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.report.style import INK, SMALLEST, WIDTH, canvas, color, figure_style, save

COLORS = {"reproduced": 0, "consistent": 5, "near": 2, "differs": 1, "open": 6, "one run": 3}
"""The color of a verdict; rows are in this order."""
LIMIT = 20.0
"""The axis ends at this difference to both sides; what lies beyond is an arrow."""
ROW = 0.2
"""The height of a row in inches."""
LABEL = "difference to the source, % (of fractions: percentage points)"


class Row(NamedTuple):
    """The difference of a number of ours to that of its source."""

    name: str
    verdict: str
    difference: float
    """NaN leaves the row empty."""
    resolution: float | None
    """Half of the interval around the difference; None of one run."""
    text: str
    """The difference as text, at the right."""


def forest(rows: Sequence[Row], path: str | Path, inputs=None) -> Path:
    """Draw a row for each number: a dot at the difference, and a bar of its resolution to both sides."""
    rows = sorted(rows, key=lambda row: list(COLORS).index(row.verdict))
    figure = canvas(WIDTH, ROW * len(rows) + 0.9)
    with figure_style():
        axis = figure.subplots()
        draw_rows(axis, rows, [color(COLORS[row.verdict]) for row in rows], LIMIT)
        axis.axvline(0, color=INK, linewidth=0.6, zorder=0)
        axis.set(xlim=(-LIMIT, LIMIT), xlabel=LABEL)
        verdicts = [verdict for verdict in COLORS if any(row.verdict == verdict for row in rows)]
        handles = [axis.plot([], [], "o", markersize=4, color=color(COLORS[verdict]))[0] for verdict in verdicts]
        figure.legend(handles, verdicts, loc="outside lower center", ncols=len(verdicts))
    return save(figure, path, inputs)


def draw_rows(axis, rows: Sequence[Row], tints: Sequence[str], limit: float = math.inf):
    """Draw the interval of each row on an axis, from above, in its tint; what lies beyond +-`limit` is an arrow."""
    for y, (row, tint) in enumerate(zip(rows, tints)):
        _draw_row(axis, y, row, tint, limit)
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    axis.tick_params(axis="y", length=0)


def _draw_row(axis, y: int, row: Row, tint: str, limit: float):
    inside = lambda x: min(max(x, -limit), limit)
    low, high = (row.difference + sign * (row.resolution or 0.0) for sign in (-1, 1))
    axis.plot([inside(low), inside(high)], [y, y], color=tint, linewidth=1.5, solid_capstyle="butt")
    for end, marker in ((min(low, high), "<"), (max(low, high), ">")):
        if abs(end) > limit and (end > 0) == (marker == ">"):
            axis.plot([inside(end)], [y], marker, color=tint, markersize=4, clip_on=False)
    if abs(row.difference) <= limit:
        axis.plot([row.difference], [y], "o", color=tint, markersize=4)
    axis.annotate(row.text, (1.04, y), xycoords=("axes fraction", "data"), va="center", fontsize=SMALLEST)
