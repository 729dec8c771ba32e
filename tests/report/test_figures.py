"""Figures are written, have the promised size, show something, and show the right thing."""

import json
import subprocess
import sys

import numpy as np
import pytest
from matplotlib import image as png

from attention_jax.errors import InputError
from attention_jax.report import curves, heatmaps, panels, style
from attention_jax.report.curves import _align
from attention_jax.report.heatmaps import Heatmap


def pixels(path):
    """The picture [height, width, 3]; it must be at most the promised width, and not blank."""
    picture = png.imread(path)[..., :3]
    assert picture.shape[1] <= style.WIDTH * style.DPI + 1
    assert picture.std() > 0.01
    return picture


def area_of(picture, color, tolerance=0.02):
    return int((np.abs(picture - np.array(color)).max(-1) < tolerance).sum())


def test_importing_figures_does_not_import_matplotlib():
    code = "import sys; from attention_jax.report import bleu, curves, tables; print('matplotlib' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
        == "False"
    )


def test_figures_leave_no_global_state(tmp_path):
    import matplotlib
    from matplotlib import pyplot

    settings = dict(matplotlib.rcParams)
    curves.lines({"a": ([1, 2], [1, 2])}, tmp_path / "a.png", xlabel="x", ylabel="y")
    assert not pyplot.get_fignums() and dict(matplotlib.rcParams) == settings


def test_heatmap_shows_the_weights_where_they_are(tmp_path):
    """One weight of 1 at query 0, key 3 of four: the dark square lies in the upper right quarter of the picture."""
    weights = np.zeros((4, 4))
    weights[0, 3] = 1
    picture = pixels(heatmaps.show_heatmaps([[Heatmap(weights, list("abcd"), list("wxyz"))]], tmp_path / "h.png"))
    dark = np.argwhere(np.abs(picture - np.array([0.031, 0.188, 0.42])).max(-1) < 0.02)  # the end of "Blues"
    dark = dark[dark[:, 1] < 0.8 * picture.shape[1]]  # without the color bar
    y, x = np.median(dark, axis=0) / picture.shape[:2]
    assert y < 0.35 and x > 0.5


def test_heatmap_grid_shares_one_scale(tmp_path):
    """A panel of 0.1 beside a panel of 1 stays light."""
    weights = np.stack([np.full((2, 2), 0.1), np.full((2, 2), 1.0)])[None]
    picture = pixels(heatmaps.show_heatmaps(heatmaps.layer_heatmaps(weights, None, None), tmp_path / "g.png"))
    left, right = picture[:, : 2 * picture.shape[1] // 5], picture[:, picture.shape[1] // 2 :]
    assert area_of(left, (0.031, 0.188, 0.42)) == 0 < area_of(right, (0.031, 0.188, 0.42))


def test_heatmap_takes_any_panel_size_and_token(tmp_path):
    tokens = [["a", " ", "\n"], ["나는", "학생"], ["$x$", "", "<eos>", "é"]]
    first, second, third = (Heatmap(np.eye(len(row)), row, row, "title") for row in tokens)
    pixels(heatmaps.show_heatmaps([[first, second], [third]], tmp_path / "deep" / "er"))
    assert (tmp_path / "deep" / "er.png").exists()


@pytest.mark.slow
@pytest.mark.parametrize("heads", range(2, 6))
def test_heatmap_lines_that_are_broken_unevenly(tmp_path, heads):
    """Two layers whose heads do not fit side by side: each line is titled although the one above it is shorter."""
    tokens = [f"word {i}" for i in range(14)]
    weights = np.full((2, heads, 14, 14), 1 / 14)
    pixels(heatmaps.show_heatmaps(heatmaps.layer_heatmaps(weights, tokens, tokens), tmp_path / "uneven.png"))


@pytest.mark.slow
def test_heatmap_of_zeros_and_long_axes(tmp_path):
    rows = heatmaps.layer_heatmaps(np.zeros((1, 2, 100, 120)), [str(i) for i in range(100)], None)
    pixels(heatmaps.show_heatmaps(rows, tmp_path / "z.png"))


@pytest.mark.parametrize(
    "rows",
    [[[Heatmap(np.zeros((2, 3, 4)))]], [[Heatmap(np.zeros((2, 2)), ["a"])]], [[Heatmap(np.zeros((0, 2)))]], [], [[]]],
)
def test_heatmaps_refuse_what_they_cannot_draw(tmp_path, rows):
    with pytest.raises(InputError):
        heatmaps.show_heatmaps(rows, tmp_path / "no.png")


def test_undrawable_characters_become_their_code(monkeypatch):
    monkeypatch.setattr(style, "_fonts", lambda: (("DejaVu Sans", frozenset(map(ord, "ab"))),))
    assert style.drawable("a가") == "aU+AC00"
    assert style.drawable("  ") == "␣␣"


def history(seed, epochs=4):
    rows = [{"epoch": e, "step": 10 * e, "seconds": 1.0, "train.loss": 3.0 / e + seed} for e in range(1, epochs + 1)]
    return [row | {"valid.loss": 3.5 / row["epoch"], "test.bleu": 5.0 * row["epoch"]} for row in rows]


def test_learning_curves_from_a_file_and_from_seeds(tmp_path):
    steps = [{"step": 5 * i, "epoch": i // 2, "train.loss": 9.0} for i in range(8)]
    (tmp_path / "metrics.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in steps + history(0)) + '{"step": 4', encoding="utf-8"
    )
    assert curves.read_history(tmp_path / "metrics.jsonl") == history(
        0
    )  # epochs only; the half-written last line is passed over
    single = pixels(curves.learning_curves([tmp_path / "metrics.jsonl"], tmp_path / "one.png"))
    band = pixels(curves.learning_curves([history(0), history(1, epochs=2)], tmp_path / "band.png", title="two seeds"))
    pale = 0.18 * np.array([0, 0x72, 0xB2]) / 255 + 0.82  # the band's color over white
    assert area_of(single, pale) < 500 < area_of(band, pale)


def test_learning_curves_before_the_first_epoch_ends(tmp_path):
    rows = [{"step": s, "epoch": 0, "train.loss": 1.0 / s} for s in (1, 2, 3)]
    pixels(curves.learning_curves([rows], tmp_path / "early.png"))
    with pytest.raises(InputError):
        curves.learning_curves([], tmp_path / "none.png")


def test_a_malformed_line_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    with pytest.raises(InputError, match="line 2"):
        curves.read_history(tmp_path / "metrics.jsonl")


def test_seeds_are_aligned_by_epoch():
    histories = [[{"epoch": 1, "a": 1.0}, {"epoch": 3, "a": 3.0}], [{"epoch": 2, "a": 2.0}, {"epoch": 3, "a": None}]]
    np.testing.assert_array_equal(_align(histories, "epoch", [1, 2, 3], "a"), [[1, np.nan, 3], [np.nan, 2, np.nan]])
    middle, _, _ = style.band(_align(histories, "epoch", [1, 2, 3], "a"))
    np.testing.assert_array_equal(middle, [1, 2, 3])


def test_lines_and_bars(tmp_path):
    series = {"fused": ([128, 256], [[1, 2], [2, 3]]), "plain": ([128, 256], [4, 8])}
    pixels(
        curves.lines(series, tmp_path / "l.png", xlabel="length", ylabel="ms", log="xy", reference={"published": 3.0})
    )
    published = {"published": [2, None]}
    picture = pixels(
        curves.bars(["dot", "none"], {"ours": [[1, 3], None]}, tmp_path / "b.png", xlabel="BLEU", reference=published)
    )
    blue = np.argwhere(np.abs(picture - np.array([0, 0x72, 0xB2]) / 255).max(-1) < 0.02)
    rows = blue[blue[:, 1] < 0.3 * picture.shape[1], 0]  # left of the legend's mark
    assert len(rows) and rows.max() < 0.4 * picture.shape[0], "the second group, below the first, is a gap"


def test_curves_without_a_number_are_refused(tmp_path):
    with pytest.raises(InputError, match="at least one logged number"):
        curves.learning_curves([[{"epoch": 1, "seconds": 1.0, "train.loss": float("nan")}]], tmp_path / "c.png")


TRIALS = [
    {"params": {"lr": 1e-4, "score": "dot", "deep": True}, "value": 0.5},
    {"params": {"lr": 1e-2, "score": "general", "deep": False}, "value": 0.9},
    {"params": {"lr": 1e-3, "score": "dot", "deep": True}, "value": None},
    {"params": {"lr": 1e-3, "score": "dot", "deep": True}, "value": float("nan")},
]


@pytest.mark.slow
def test_many_panels_over_time_fit_a_page(tmp_path):
    """Those of a memory with five read and five write heads, as of the task of priority sort."""
    arrays = {f"read weights {i}": np.eye(40, 128) for i in range(10)} | {"input": np.ones((40, 1))}
    height, width, _ = pixels(panels.over_time(arrays, tmp_path / "t.png")).shape
    assert height < 1.2 * width


def test_over_time(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"input": rng.random((12, 8)), "read": rng.random((12, 30)), "constant": np.zeros((12, 1))}
    pixels(panels.over_time(arrays, tmp_path / "t.png"))
    with pytest.raises(InputError):
        panels.over_time({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, tmp_path / "t.png")


def test_confusion_matrix(tmp_path):
    """Counts are normalized by row: a class without examples divides by nothing."""
    pixels(panels.confusion_matrix([[9, 1, 0], [0, 5, 5], [0, 0, 0]], ["cat", "dog", "rare"], tmp_path / "c.png"))
    with pytest.raises(InputError):
        panels.confusion_matrix(np.eye(2), ["a"], tmp_path / "c.png")


def test_sweep_figures(tmp_path):
    pixels(panels.sweep_slices(TRIALS, tmp_path / "s.png", metric="valid.loss", log=["lr"]))
    pixels(panels.parallel_coordinates(TRIALS, tmp_path / "p.png", metric="valid.loss", log=["lr"]))


def test_sweep_figures_need_trials(tmp_path):
    with pytest.raises(InputError):
        panels.sweep_slices([], tmp_path / "s.png", metric="x")
    with pytest.raises(InputError):
        panels.parallel_coordinates(TRIALS[2:], tmp_path / "p.png", metric="x")
    with pytest.raises(InputError):
        panels.sweep_slices(
            [{"params": {"a": 1}, "value": 1.0}, {"params": {"b": 1}, "value": 1.0}], tmp_path / "s.png", metric="x"
        )
