"""The pictures in the repository: nothing is cut off, and text can be read where a page shows it 620 pixels wide."""

from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from attention_jax.report import style

ROOT = Path(__file__).resolve().parents[2]
PICTURES = sorted(path for place in ("experiments/results", "docs") for path in (ROOT / place).rglob("*.png"))
EARLIER = 44
"""Pictures, most of trained models, from before `save` stored the size of their text: fewer with each drawn again."""


def has_ink_at_border(pixels: np.ndarray) -> bool:
    """Whether a picture [H, W, 3] of bytes has other than (almost) white pixels in its outermost rows or columns."""
    return bool(min(edge.min() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])) < 250)


def read_points(path: Path) -> str | None:
    with Image.open(path) as picture:
        return picture.info.get("Points")


def test_ink_at_border_is_seen():
    picture = np.full((4, 5, 3), 255, np.uint8)
    picture[1:3, 1:4] = 0
    assert not has_ink_at_border(picture)
    picture[3, 2] = 90
    assert has_ink_at_border(picture)


@pytest.mark.slow
def test_no_committed_figure_is_cut_off():
    assert len(PICTURES) > 100
    for path in PICTURES:
        with Image.open(path) as picture:
            assert not has_ink_at_border(np.asarray(picture.convert("RGB"))), path.name


def test_text_of_committed_figures_has_seven_points():
    points = {path: read_points(path) for path in PICTURES}
    assert not {path.name: size for path, size in points.items() if size and float(size) < 7}
    from_records = "learning_curve", "learning_curves", "slices", "parallel_coordinates"
    old = [path.stem for path, size in points.items() if not size]
    assert not [name for name in old if name.partition("-")[2] in from_records], "make figures"
    assert len(old) <= EARLIER


def test_points_of_smallest_text_by_hand(tmp_path):
    """6.6 points in a figure of 6 inches, which a page scales to 620 / 96 inches: 6.6 x 6.458 / 6."""
    figure = style.canvas(6.0, 1.0)
    figure.add_artist(Text(0.5, 0.5, "a", fontsize=6.6))
    figure.add_artist(Text(0.5, 0.5, "b", fontsize=9))
    figure.add_artist(Text(0.5, 0.5, "", fontsize=1))
    assert read_points(style.save(figure, tmp_path / "a.png")) == "7.10"
