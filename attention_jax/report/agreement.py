"""A figure of published numbers beside ours, each with its range."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.report.style import INK, WIDTH, canvas, color, figure_style, save, short

COLORS = {"agree": 0, "undecided": 4, "differ": 1}
"""The color of a verdict."""
LIMITS = (0.6, 1.4)
"""The limits of the axis; what lies beyond is an arrow at the edge."""
LABEL = "this code / published (losses: published / this code)"
ROW = 0.21
"""The height of a row in inches."""


class Row(NamedTuple):
    """A published number and ours, as a ratio to the published one."""

    name: str
    measured: float
    low: float
    high: float
    published: tuple[float, float]
    """The range of the source's own runs; (1, 1) if it is not known."""
    verdict: str


def agreement(rows: Sequence[Row], path: str | Path, inputs=None) -> Path:
    """A row for each number: a gray bar for the source's range, a dot and a line for the median and range of ours."""
    figure = canvas(WIDTH, ROW * len(rows) + 0.9)
    with figure_style():
        axis = figure.subplots()
        for y, row in enumerate(rows):
            _row(axis, y, row, *LIMITS)
        axis.axvline(1, color=INK, linewidth=0.6, zorder=0)
        axis.set(xlim=LIMITS, ylim=(len(rows) - 0.4, -0.6), xlabel=LABEL)
        axis.set_yticks(range(len(rows)), [short(row.name, 70) for row in rows])
        axis.tick_params(axis="y", length=0)
        handles = [axis.plot([], [], "o", markersize=4, color=color(i))[0] for i in COLORS.values()]
        handles.append(axis.plot([], [], color=INK, alpha=0.3, linewidth=4)[0])
        figure.legend(handles, [*COLORS, "the source's runs"], loc="outside lower center", ncols=4)
    return save(figure, path, inputs)


def _row(axis, y: int, row: Row, left: float, right: float):
    inside = lambda x: min(max(x, left), right)
    tint = color(COLORS[row.verdict])
    axis.plot([inside(x) for x in row.published], [y, y], color=INK, alpha=0.3, linewidth=6, solid_capstyle="butt")
    axis.plot([inside(row.low), inside(row.high)], [y, y], color=tint, linewidth=1.2)
    beyond = math.isnan(row.measured) or not left <= row.measured <= right
    marker = ">" if row.measured > right else "<" if beyond else "o"
    axis.plot([inside(row.measured)], [y], marker, color=tint, markersize=4, clip_on=False)
