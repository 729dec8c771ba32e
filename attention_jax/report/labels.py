"""Labels that do not touch: after a figure is laid out they are wrapped, turned upright or thinned out to fit."""

import itertools
import re

import numpy as np

GAP = 2.5
"""Points between two labels side by side; lines of text one below the other need none."""
NAMED = 7
"""Places of a logarithmic axis that are few enough to be named one by one."""


def fit_labels(figure):
    """Lay the figure out and see to its labels; nothing moves afterwards.

    Titles and names of axes that are longer than their axes are wrapped; words below an axis that would touch are
    turned upright; the figure grows by what that takes; and of labels that still would touch, every second one is left
    out, or every third, ...
    """
    lay_out = figure.get_layout_engine().execute
    lay_out(figure)
    before, words = _heights(figure), {}
    for _ in range(2):
        if any([_wrap(figure, words), *map(_turn, figure.axes)]):
            lay_out(figure)
            if _grow(figure, before):
                lay_out(figure)
    figure.set_layout_engine("none")
    for axes in figure.axes:
        _thin(axes.xaxis)
        _thin(axes.yaxis)


def wrapped(text: str, most: int) -> str:
    """Lines of at most `most` characters, broken at spaces; words that are longer after `._/=,-`, or anywhere.

    >>> wrapped("of valid.token_accuracy in all", 12)
    'of valid.\\ntoken_\\naccuracy in\\nall'
    >>> wrapped("aaaaaa", 4)
    'aaaa\\naa'
    """
    most, parts = max(most, 1), []
    for word in re.findall(r"\S+\s*", text):
        broken = [word] if len(word.rstrip()) <= most else re.findall(r"[^._/=,-]*[._/=,-]*", word)
        parts += [piece for part in broken for piece in _pieces(part, most)]
    lines = [""]
    for part in parts:
        if lines[-1] and len((lines[-1] + part).rstrip()) > most:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _pieces(part: str, most: int) -> list[str]:
    """A part as it is, or cut where it is longer than a line."""
    return [part] if len(part.rstrip()) <= most else [part[i : i + most] for i in range(0, len(part), most)]


def shortened(text: str, most: int = 24) -> str:
    """At most `most` characters, the last one an ellipsis where something was left out.

    >>> shortened("orangefarbenen", 8), shortened("hat", 8)
    ('orangef…', 'hat')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


def log_scale(axes, which: str, values):
    """Make the axis `which` ("x" or "y") of the axes logarithmic, for these values.

    A few places of x are named one by one; otherwise decades are, and within few of them 2 and 5 as well.
    """
    from matplotlib import ticker

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    places = sorted({float(value) for value in np.ravel(values) if np.isfinite(value) and value > 0})
    axis.set_minor_locator(ticker.NullLocator())
    if which == "x" and 0 < len(places) <= NAMED:
        axis.set_ticks(places, [f"{place:g}" for place in places])
        return
    decades = np.log10(places[-1] / places[0]) if places else 1
    several = ticker.LogLocator(subs=(1.0,) if decades > 3 else (1.0, 2.0, 5.0), numticks=12)
    axis.set_major_locator(several if decades > 0.8 else ticker.MaxNLocator(5))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))


def _wrap(figure, words: dict) -> bool:
    """Wrap titles and names that are longer than their axes; whether any was. `words` keeps what they were before."""
    from matplotlib.text import Text

    changed = False
    for axes in figure.axes:
        box = axes.get_window_extent()
        titles = [child for child in axes.get_children() if isinstance(child, Text) and child not in axes.texts]
        changed |= any([_wrap_one(text, words, box.width) for text in (*titles, axes.xaxis.label)])
        changed |= _wrap_one(axes.yaxis.label, words, box.height)
    return any([_wrap_one(text, words, _along(text, figure.bbox)) for text in figure.texts]) or changed


def _heights(figure) -> dict[int, float]:
    """The height in pixels of the axes in each row of the figure's grid."""
    rows = {}
    for axes in figure.axes:
        place = axes.get_subplotspec()
        if place and axes.get_visible():
            rows.setdefault(place.rowspan.start, axes.get_window_extent().height)
    return rows


def _grow(figure, before: dict[int, float]) -> bool:
    """Make the figure higher by what its axes have lost; whether they had."""
    lost = sum(max(before[row] - height, 0) for row, height in _heights(figure).items())
    if lost > 2:  # pixels
        figure.set_figheight(figure.get_figheight() + lost / figure.dpi)
    return lost > 2


def _wrap_one(text, words: dict, room: float) -> bool:
    """Wrap a text that is longer than `room` pixels in the direction in which it is read."""
    before, length = text.get_text(), _along(text, text.get_window_extent())
    if not before or length <= room:
        return False
    most = int(room / length * max(map(len, before.split("\n"))))
    text.set_text("\n".join(wrapped(line, most) for line in words.setdefault(text, before).split("\n")))
    return text.get_text() != before


def _along(text, box) -> float:
    """The length of a box in the direction in which a text is read."""
    return box.height if text.get_rotation() == 90 else box.width


def _turn(axes) -> bool:
    """Turn words below the axes upright if they touch; whether they did."""
    labels = _shown(axes.xaxis)
    words = any(label.get_text()[0].isalpha() for label in labels)
    if not words or any(label.get_rotation() for label in labels) or _apart(labels, 0):
        return False
    axes.tick_params(axis="x", labelrotation=90)
    return True


def _thin(axis):
    """Leave out tick labels of an axis until none touches another: at regular places the same number each time."""
    side = 0 if axis.axis_name == "x" else 1
    labels = _shown(axis)
    if _apart(labels, side):
        return
    gaps = np.diff([sum(_span(label, side)) / 2 for label in labels])
    if np.ptp(gaps) < 3:  # pixels
        kept = next(labels[::n] for n in range(2, len(labels) + 1) if _apart(labels[::n], side))
    else:
        kept = labels[:1]
        for label in labels[1:]:
            kept = [*kept, label] if _apart([kept[-1], label], side) else kept
    for label in labels:
        label.set_visible(label in kept)


def _shown(axis) -> list:
    """The tick labels of an axis that are drawn, in the order of their places."""
    if not (axis.get_visible() and axis.axes.get_visible() and axis.axes.axison):
        return []
    low, high = sorted(axis.get_view_interval())
    slack = 1e-6 * (high - low)
    places = sorted(zip(axis.get_majorticklocs(), axis.get_majorticklabels()), key=lambda place: place[0])
    drawn = [label for place, label in places if low - slack <= place <= high + slack]
    return [label for label in drawn if label.get_visible() and label.get_text()]


def _apart(labels, side: int) -> bool:
    """Whether no label of an axis, given in order, touches the next one."""
    if len(labels) < 2:
        return True
    lines = (labels[0].get_rotation() == 90) == (side == 0)  # one below the other, as they are read
    gap = 0 if lines else GAP * labels[0].get_figure().dpi / 72
    spans = sorted(_span(label, side) for label in labels)
    return all(a[1] + gap <= b[0] for a, b in itertools.pairwise(spans))


def _span(label, side: int) -> tuple[float, float]:
    """Where a label begins and ends on the picture, in pixels along x (0) or y (1)."""
    box = label.get_window_extent()
    return box.p0[side], box.p1[side]
