"""A figure of published numbers against ours, each with its range."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.report.style import SMALLEST, WIDTH, canvas, color, figure_style, ink, save, short

COLORS = {
    "reproduced": 0, "beaten": 0, "near": 0, "holds": 0, "better": 2, "worse": 4, "undecided": 4, "missed": 1,
    "measured": 6,
}  # fmt: skip
"""The color of a verdict."""
LEGEND = {
    "reproduced, near, or same sign": 0, "better": 2, "worse or undecided": 4, "missed": 1, "measured only": 6
}  # fmt: skip
ROW = 0.108
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


def agreement(panels: Mapping[str, tuple[Sequence[Row], tuple[float, float]]], path: str | Path, inputs=None) -> Path:
    """Panels below each other, {title: (rows, limits of the axis)}: a row has a gray bar for the source's range, and a
    dot and a line for the median and range of ours. What lies beyond the limits is an arrow at the edge."""
    heights = [len(rows) for rows, _ in panels.values()]
    figure = canvas(WIDTH, ROW * sum(heights) + 0.75 * len(heights))
    with figure_style():
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, (title, (rows, limits)) in zip(axes, panels.items()):
            for y, row in enumerate(rows):
                _row(axis, y, row, *limits)
            for x, style in ((1, "-"), (0, ":")):
                axis.axvline(x, color=ink(), linewidth=0.6, linestyle=style, zorder=0)
            axis.set(xlim=limits, ylim=(len(rows) - 0.4, -0.6), title=title)
            axis.set_yticks(range(len(rows)), [short(row.name, 62) for row in rows], fontsize=SMALLEST)
            axis.tick_params(axis="y", length=0)
        handles = [axes[0].plot([], [], "o", markersize=3, color=color(i))[0] for i in LEGEND.values()]
        handles.append(axes[0].plot([], [], color=ink(), alpha=0.3, linewidth=4)[0])
        figure.legend(handles, [*LEGEND, "range of the source's runs"], loc="outside lower center", ncols=3)
    return save(figure, path, inputs)


def _row(axis, y: int, row: Row, left: float, right: float):
    inside = lambda x: min(max(x, left), right)
    tint = color(COLORS[row.verdict])
    axis.plot([inside(x) for x in row.published], [y, y], color=ink(), alpha=0.3, linewidth=4, solid_capstyle="butt")
    axis.plot([inside(row.low), inside(row.high)], [y, y], color=tint, linewidth=0.9)
    beyond = math.isnan(row.measured) or not left <= row.measured <= right
    marker = ">" if row.measured > right else "<" if beyond else "o"
    axis.plot([inside(row.measured)], [y], marker, color=tint, markersize=3, clip_on=False)
