"""The special figures: written, at README width, showing what they were given."""

import numpy as np
import pytest
from matplotlib import image as png

from attention_jax import InputError
from attention_jax.report import figures, style

TRIALS = [
    {"params": {"lr": 1e-4, "score": "dot", "deep": True}, "value": 0.5},
    {"params": {"lr": 1e-2, "score": "general", "deep": False}, "value": 0.9},
    {"params": {"lr": 1e-3, "score": "dot", "deep": True}, "value": None},
    {"params": {"lr": 1e-3, "score": "dot", "deep": True}, "value": float("nan")},
]


def pixels(path):
    picture = png.imread(path)[..., :3]
    assert picture.shape[1] <= style.WIDTH * style.DPI + 1 and picture.std() > 0.01
    return picture


@pytest.mark.parametrize(
    "images", [np.full((2, 8, 8, 3), 128, np.uint8), np.full((2, 8, 8), 0.5), np.full((2, 8, 8, 1), 0.5, np.float32)]
)
def test_overlay_is_brightest_where_attention_is(tmp_path, images):
    """All weight on the upper left patch: under the picture, red is strongest there."""
    weights = np.zeros((2, 2, 2))
    weights[:, 0, 0] = 1
    picture = pixels(figures.overlay_attention(images, weights, tmp_path / "o.png"))
    height, width = picture.shape[:2]
    panel = picture[height // 2 + 6 : height - 6, 6 : width // 2 - 6]  # the overlay of the first image
    brightest = np.unravel_index(panel.sum(-1)[8:-8, 8:-8].argmax(), panel.shape[:2])
    assert brightest[0] < panel.shape[0] / 2
    h, w = panel.shape[0] // 2, panel.shape[1] // 2
    assert panel[8:h, 8:w].mean() > panel[h:-8, w:-8].mean() + 0.05


def test_over_time(tmp_path):
    rng = np.random.default_rng(0)
    panels = {"input": rng.random((12, 8)), "read": rng.random((12, 30)), "constant": np.zeros((12, 1))}
    pixels(figures.over_time(panels, tmp_path / "t.png", title="copy"))
    with pytest.raises(InputError):
        figures.over_time({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, tmp_path / "t.png")


def test_confusion_matrix(tmp_path):
    """Counts are normalised by row: a class without examples divides by nothing."""
    pixels(figures.confusion_matrix([[9, 1, 0], [0, 5, 5], [0, 0, 0]], ["cat", "dog", "rare"], tmp_path / "c.png"))
    with pytest.raises(InputError):
        figures.confusion_matrix(np.eye(2), ["a"], tmp_path / "c.png")


def test_sweep_figures(tmp_path):
    pixels(figures.sweep_slices(TRIALS, tmp_path / "s.png", metric="valid.loss", log=["lr"]))
    pixels(figures.parallel_coordinates(TRIALS, tmp_path / "p.png", metric="valid.loss", log=["lr"]))


def test_sweep_figures_need_trials(tmp_path):
    with pytest.raises(InputError):
        figures.sweep_slices([], tmp_path / "s.png", metric="x")
    with pytest.raises(InputError):
        figures.parallel_coordinates(TRIALS[2:], tmp_path / "p.png", metric="x")
    with pytest.raises(InputError):
        figures.sweep_slices(
            [{"params": {"a": 1}, "value": 1.0}, {"params": {"b": 1}, "value": 1.0}], tmp_path / "s.png", metric="x"
        )


@pytest.mark.parametrize(
    "images, weights", [(np.zeros((2, 4)), np.zeros((2, 2, 2))), (np.zeros((2, 4, 4)), np.zeros((1, 2, 2)))]
)
def test_overlay_refuses_mismatched_arrays(tmp_path, images, weights):
    with pytest.raises(InputError):
        figures.overlay_attention(images, weights, tmp_path / "o.png")
