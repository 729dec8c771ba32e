"""The special figures: written, at README width, showing what they were given."""

import numpy as np
import pytest
from matplotlib import image as png

from attention_jax.errors import InputError
from attention_jax.report import panels as panel_figures, style

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


def test_over_time(tmp_path):
    rng = np.random.default_rng(0)
    panels = {"input": rng.random((12, 8)), "read": rng.random((12, 30)), "constant": np.zeros((12, 1))}
    pixels(panel_figures.over_time(panels, tmp_path / "t.png"))
    with pytest.raises(InputError):
        panel_figures.over_time({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, tmp_path / "t.png")


def test_confusion_matrix(tmp_path):
    """Counts are normalized by row: a class without examples divides by nothing."""
    pixels(
        panel_figures.confusion_matrix([[9, 1, 0], [0, 5, 5], [0, 0, 0]], ["cat", "dog", "rare"], tmp_path / "c.png")
    )
    with pytest.raises(InputError):
        panel_figures.confusion_matrix(np.eye(2), ["a"], tmp_path / "c.png")


def test_sweep_figures(tmp_path):
    pixels(panel_figures.sweep_slices(TRIALS, tmp_path / "s.png", metric="valid.loss", log=["lr"]))
    pixels(panel_figures.parallel_coordinates(TRIALS, tmp_path / "p.png", metric="valid.loss", log=["lr"]))


def test_sweep_figures_need_trials(tmp_path):
    with pytest.raises(InputError):
        panel_figures.sweep_slices([], tmp_path / "s.png", metric="x")
    with pytest.raises(InputError):
        panel_figures.parallel_coordinates(TRIALS[2:], tmp_path / "p.png", metric="x")
    with pytest.raises(InputError):
        panel_figures.sweep_slices(
            [{"params": {"a": 1}, "value": 1.0}, {"params": {"b": 1}, "value": 1.0}], tmp_path / "s.png", metric="x"
        )
