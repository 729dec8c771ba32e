"""The look of every figure: a canvas without global state, colours for every eye, and token labels that can be read.

Figures are made as `matplotlib.figure.Figure` objects (Agg), without pyplot: no display, no window,
nothing left open. Widths are in inches at 150 dots per inch, so that 8 inches fill a README's column and
text of 8 points stays readable there.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

DPI = 150
WIDTH = 8.0
"""Inches; the widest figure unless its content needs more."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C6D31")
"""Okabe and Ito's colours, distinguishable under every common colour blindness; no yellow, which fades on white."""

DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"

SEQUENTIAL = "Blues"
"""White (nothing) to dark blue (all): lightness carries the value, so it survives grey printing too."""

TEXT = {"font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8, "legend.fontsize": 7.5}
TEXT |= {"axes.spines.top": False, "axes.spines.right": False}


def canvas(width: float = WIDTH, height: float = 3.0):
    """An empty figure of this size in inches, laid out by matplotlib's constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def styled():
    """A context in which new axes have this module's text sizes: `with styled(): ...`."""
    import matplotlib

    return matplotlib.rc_context(TEXT)


def save(figure, path: str | Path) -> Path:
    """Write the figure (its format follows the path's ending, PNG by default), creating
    the directory; returns the path."""
    path = Path(path)
    if not path.suffix:
        path = path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with styled():
        figure.savefig(path)
    return path


def line_style(i: int) -> dict:
    """Colour, dash and marker of the i-th line: two lines never differ by colour alone."""
    dash, marker = DASHES[(i // 2) % len(DASHES)], MARKERS[i % len(MARKERS)]
    return {"color": PALETTE[i % len(PALETTE)], "linestyle": dash, "marker": marker, "markersize": 3.5}


@lru_cache(maxsize=1)
def _fonts() -> tuple[tuple[str, frozenset[int]], ...]:
    """Installed font families with the characters each can draw, matplotlib's default first."""
    from matplotlib import font_manager

    default = "DejaVu Sans"
    wide = ("Noto Sans CJK", "Noto Sans KR", "NanumGothic", "Malgun", "Apple SD", "Hiragino", "Source Han", "WenQuanYi")
    fonts = {}
    for entry in font_manager.fontManager.ttflist:
        upright = entry.style == "normal" and entry.weight in (400, "normal", "regular") and entry.stretch == "normal"
        if upright and (entry.name == default or entry.name.startswith(wide)):
            fonts.setdefault(entry.name, (entry.name != default, entry.fname))
    from matplotlib.ft2font import FT2Font

    return tuple(
        (name, frozenset(FT2Font(path).get_charmap())) for name, (_, path) in sorted(fonts.items(), key=lambda x: x[1])
    )


def drawable(token: str) -> str:
    """A token as a figure can show it: spaces and other blanks become marks, what no
    installed font has becomes its code.

    >>> drawable(" "), drawable("a b"), drawable("\\n"), drawable(""), drawable("<eos>")
    ('␣', 'a b', '⏎', '∅', '<eos>')
    """
    marks = {"\n": "⏎", "\t": "⇥", "\r": "⏎", "\u2581": "_"}  # the last is sentencepiece's mark of a word's beginning
    if token == "":
        return "∅"
    if token.strip(" \u00a0\u3000") == "":
        return "␣" * len(token)
    text = "".join(marks.get(c, c) for c in token)
    known = [characters for _, characters in _fonts()]
    drawn = "".join(c if any(ord(c) in characters for characters in known) else f"U+{ord(c):04X}" for c in text)
    return drawn.replace("$", r"\$")  # a dollar would start a formula


def families() -> list[str]:
    """Font families to try in turn, for `fontfamily=`."""
    return [name for name, _ in _fonts()]


def labels(tokens: Sequence[str] | None, count: int, at_most: int = 80) -> tuple[np.ndarray, list[str]]:
    """Tick positions and texts for an axis of `count` places: the tokens, or numbers thinned out to fit.

    >>> labels(["a", " "], 2)
    (array([0, 1]), ['a', '␣'])
    >>> labels(None, 100)[1]
    ['0', '20', '40', '60', '80']
    """
    if tokens is not None and count <= at_most:
        return np.arange(count), [drawable(token) for token in list(tokens)[:count]]
    stride = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, count) if count / s <= 8 or s == count)
    ticks = np.arange(0, count, stride)
    return ticks, [str(t) for t in ticks] if tokens is None else [drawable(tokens[t]) for t in ticks]


def band(y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Median, least and greatest over seeds: y is [N] (one run) or [seeds, N], NaN where a seed has no value.

    >>> [x.tolist() for x in band([[1.0, 2.0], [3.0, 6.0], [2.0, 9.0]])]
    [[2.0, 6.0], [1.0, 2.0], [3.0, 9.0]]
    """
    y = np.atleast_2d(np.asarray(y, float))
    measured = ~np.isnan(y).all(axis=0)
    out = np.full((3, y.shape[1]), np.nan)
    for row, statistic in enumerate((np.nanmedian, np.nanmin, np.nanmax)):
        out[row, measured] = statistic(y[:, measured], axis=0)
    return tuple(out)
