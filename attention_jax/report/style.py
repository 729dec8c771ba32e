"""The style of all figures: sizes, colors (safe for color blindness), fonts, and `save`.

Figures are `matplotlib.figure.Figure` objects (Agg) with constrained layout, without pyplot, which needs no display.
The widest figure has `WIDTH` inches: in a page, 620 pixels wide, its smallest text (`SMALLEST` points) has 7 points.
"""

import hashlib
import json
import re
import unicodedata
from functools import lru_cache
from pathlib import Path

import numpy as np

DPI = 200
WIDTH = 6.0
"""Inches; no figure is wider."""
PAGE_PIXELS = 620
"""The width of a figure in a page."""
SMALLEST = 6.6
"""Points; no text is smaller."""

PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31")
"""Okabe and Ito's colors, distinguishable under every common color blindness; no yellow, which fades on white."""

DASHES = ("-", "--", "-.", ":")
MARKERS = "osD^vP*X"
OVERLAY = "inferno"
"""Overlay on photographs: dark for weight 0, bright for the largest weight."""

TEXT = {"font.size": 7, "axes.titlesize": 7.5, "axes.labelsize": 7, "legend.fontsize": 6.6, "legend.frameon": False}
TEXT |= {"xtick.labelsize": 6.6, "ytick.labelsize": 6.6, "figure.titlesize": 8, "legend.title_fontsize": 6.6}
TEXT |= {"axes.spines.top": False, "axes.spines.right": False, "axes.titleweight": "normal"}
TEXT |= {"image.cmap": "Blues"}  # weights from white (0) to dark blue (1): lightness carries the value, in print too


INK = "black"
"""The color of text and thin lines."""


def color(i: int) -> str:
    """Return the i-th color of lines and bars."""
    return PALETTE[i % len(PALETTE)]


def canvas(width: float = WIDTH, height: float = 3.0):
    """Create an empty figure of this size in inches, with Matplotlib's constrained layout."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=DPI, layout="constrained")


def figure_style():
    """A context in which new axes have the text sizes and the color map of this style: `with figure_style(): ...`."""
    import matplotlib

    return matplotlib.rc_context(TEXT)


def save(figure, path: str | Path, inputs=None) -> Path:
    """Write the figure (its format follows the path's ending, PNG by default), creating the directory.

    Characters that no font has are explained below the figure. A PNG stores the size of its smallest text in a page,
    `points_in_page(figure)`, as its text "Points", and the hash of `inputs`, the data of the figure, as "Inputs":
    `fingerprint(inputs)`. Returns the path.
    """
    path = Path(path)
    if not path.suffix:
        path = path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    with figure_style():
        if note := missing_fonts(figure):
            figure.supxlabel("\n".join(filter(None, [figure.get_supxlabel(), note])), fontsize=SMALLEST)
        facts = {"Points": f"{points_in_page(figure):.2f}"} | (
            {} if inputs is None else {"Inputs": fingerprint(inputs)}
        )
        figure.savefig(path, metadata=facts if path.suffix == ".png" else None)
    return path


def points_in_page(figure) -> float:
    """Return the size in points of the smallest text of a figure that a page shows 620 pixels wide, of 96 an inch."""
    from matplotlib.text import Text

    sizes = [text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
    return min(sizes, default=SMALLEST) * PAGE_PIXELS / (96 * figure.get_figwidth())


def fingerprint(inputs) -> str:
    """Return a hash of JSON-serializable data.

    >>> fingerprint({"b": 1, "a": [2.0]}) == fingerprint({"a": [2.0], "b": 1}) != fingerprint({})
    True
    """
    text = json.dumps(inputs, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def short(text: str, most: int = 24) -> str:
    """Truncate to at most `most` characters with an ellipsis.

    >>> short("orangefarbenen", 8), short("hat", 8)
    ('orangef…', 'hat')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


PLAIN = 5
"""Decades of an axis whose labels are plain numbers."""


def log_scale(axes, which: str, values):
    """Make the axis `which` ("x" or "y") of the axes logarithmic, with plain numbers as labels, over more than
    `PLAIN` decades with powers of ten.

    Up to seven distinct `values` of x are labeled; an axis of less than three decades also has labels at 2 and 5.
    """
    from matplotlib import ticker

    axes.set(**{f"{which}scale": "log"})
    axis = getattr(axes, f"{which}axis")
    positions = sorted({float(value) for value in np.ravel(values) if np.isfinite(value) and value > 0})
    if which == "x" and 0 < len(positions) <= 7:
        axis.set_ticks(positions, [f"{position:g}" for position in positions])
    elif positions:
        decades = np.log10(positions[-1] / positions[0])
        several = ticker.LogLocator(subs=(1.0,) if decades > 3 else (1.0, 2.0, 5.0), numticks=12)
        axis.set_major_locator(several if decades > 0.8 else ticker.MaxNLocator(5))
        axis.set_major_formatter(ticker.LogFormatterMathtext() if decades > PLAIN else "{x:g}")
    axis.set_minor_locator(ticker.NullLocator())


def line_style(i: int) -> dict:
    """Return color, dash and marker of the i-th line: no two lines differ by color alone."""
    dash, marker = DASHES[(i // 2) % len(DASHES)], MARKERS[i % len(MARKERS)]
    return {"color": color(i), "linestyle": dash, "marker": marker, "markersize": 3}


@lru_cache(maxsize=1)
def _fonts() -> tuple[tuple[str, frozenset[int]], ...]:
    """Return installed font families with the characters of each, matplotlib's default first."""
    from matplotlib import font_manager

    default = "DejaVu Sans"
    wide = ("Noto Sans", "NanumGothic", "Malgun", "Apple SD", "Hiragino", "Source Han", "WenQuanYi")
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
    """Return a token as it can be plotted: spaces and other blanks become marks, and characters that no installed font
    has become their code, which `save` explains.

    >>> drawable(" "), drawable("a b"), drawable("\\n"), drawable(""), drawable("<eos>")
    ('␣', 'a b', '⏎', '∅', '<eos>')
    """
    marks = {"\n": "⏎", "\t": "⇥", "\r": "⏎", "\u2581": "_"}  # the last is sentencepiece's mark of a word's beginning
    if token == "":
        return "∅"
    if token.strip(" \u00a0\u3000") == "":
        return "␣" * len(token)
    text = "".join(marks.get(c, c) for c in token)
    font_characters = [characters for _, characters in _fonts()]
    printable = "".join(
        c if any(ord(c) in characters for characters in font_characters) else f"U+{ord(c):04X}" for c in text
    )
    return printable.replace("$", r"\$")  # a dollar would start a formula


def missing_fonts(figure) -> str:
    """Return a line about the fonts that the codes in the texts of a figure (`drawable`) need; "" without codes."""
    from matplotlib.text import Text

    codes = re.findall(r"U\+([0-9A-F]{4,6})", " ".join(text.get_text() for text in figure.findobj(Text)))
    scripts = sorted({unicodedata.name(chr(int(code, 16)), "such").split()[0] for code in codes})
    if not scripts:
        return ""
    font_names = ", ".join(
        "Noto Sans CJK" if s in ("CJK", "HANGUL", "HIRAGANA", "KATAKANA") else s.title() for s in scripts
    )
    return f"U+...: no font for these characters is installed ({font_names})"


def families() -> list[str]:
    """Return font families in order of preference, for `fontfamily=`."""
    return [name for name, _ in _fonts()]


QUARTILES_FROM = 5
"""Runs from which on a band shows the middle half of them instead of all."""


def band(y) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return median, lower and upper edge over runs: y is [N] (one run) or [runs, N], NaN for missing values.

    The edges are minimum and maximum, with five runs or more the quartiles.

    >>> [x.tolist() for x in band([[1.0, 2.0], [3.0, 6.0], [2.0, 9.0]])]
    [[2.0, 6.0], [1.0, 2.0], [3.0, 9.0]]
    >>> [x.tolist() for x in band([[0.0], [1.0], [2.0], [3.0], [90.0]])]
    [[2.0], [1.0], [3.0]]
    """
    y = np.atleast_2d(np.asarray(y, float))
    low, high = (25, 75) if len(y) >= QUARTILES_FROM else (0, 100)
    measured = ~np.isnan(y).all(axis=0)
    out = np.full((3, y.shape[1]), np.nan)
    out[:, measured] = np.nanpercentile(y[:, measured], (50, low, high), axis=0)
    return tuple(out)


def band_in_words(runs: int) -> str:
    """Return the legend text of a band over the given number of runs.

    >>> band_in_words(3), band_in_words(5), band_in_words(1)
    ('median and range of 3 runs', 'median and quartiles of 5 runs', '')
    """
    spread = "quartiles" if runs >= QUARTILES_FROM else "range"
    return f"median and {spread} of {runs} runs" if runs > 1 else ""
