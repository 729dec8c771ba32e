"""Labels can be read: matplotlib is asked for the extents of every text that it has drawn."""

import itertools

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attention_jax import config as configs
from attention_jax.report import bleu, curves, heatmaps, image_figures, panels, style
from attention_jax.report.forest import Row
from attention_jax.report.heatmaps import Heatmap

pytestmark = pytest.mark.slow

rng = np.random.default_rng(0)
WORDS = [
    *("ein", "mann", "mit", "einem", "orangefarbenen", "hut", "starrt", "etwas", "an", "und", "karate@@"),
    *("schnee", "winter@@", "fuß", "hintergrund", "."),
]


def weights(queries, keys):
    return rng.dirichlet(np.ones(keys), queries)


def sentence(length):
    return [WORDS[i % len(WORDS)] for i in range(length)]


def history(scale):
    names = [f"{split}.{kind}" for split in ("train", "valid") for kind in ("loss", "accuracy", "bleu")]
    return [{"epoch": e, "step": e, "seconds": 1.0} | {name: scale / e for name in names} for e in range(1, 20)]


TRIALS = [
    {"params": {"rate": 10.0**-i, "score": WORDS[i % 5]}, "value": 1.0 + i, "values": [1.0 + i, 2.0 + i]}
    for i in range(6)
]
DROPOUT = configs.Config("x", configs.Images(), configs.ViTConfig(dropout=0.1))
FIGURES = {
    "alignments": lambda path: heatmaps.show_heatmaps(
        [[Heatmap(weights(n, n + 2), sentence(n), sentence(n + 2)) for n in (10, 12, 13, 20)]], path, xlabel="source",
        ylabel="output",
    ),
    "heads": lambda path: heatmaps.show_heatmaps(
        heatmaps.layer_heatmaps(rng.random((3, 8, 56, 56)), *[["I_TURN_RIGHT", "I_WALK"] * 28] * 2), path
    ),
    "curves": lambda path: curves.learning_curves([history(1), history(2)], path, DROPOUT),
    "lines": lambda path: curves.lines(
        {name: (range(1, 30), rng.random(29) + 3 * i) for i, name in enumerate(("dot", "general", "none"))}, path,
        xlabel="epoch", ylabel="BLEU",
    ),
    "crowded": lambda path: curves.lines(
        {f"variant {i}": ([1, 2], [1, 1]) for i in range(6)}, path, xlabel="epoch", ylabel="BLEU"
    ),
    "one": lambda path: heatmaps.show_heatmaps(
        [[Heatmap(rng.random((4, 9)), WORDS[:4], WORDS[:9])]], path, xlabel="source",
        ylabel="output (last layer, mean of 4 heads)",
    ),
    "dots": lambda path: curves.bars(WORDS[:4], {"ours": [[1.9, 1.95]] * 4}, path, xlabel="loss", dots=True),
    "bars": lambda path: curves.bars(WORDS, {"ours": [[1, 2]] * 16, "theirs": [1] * 16}, path, xlabel="BLEU"),
    "lengths": lambda path: bleu.length_figure(
        {"a": [bleu.LengthBin(n, n + 9, 1234, 30.0) for n in range(1, 150, 10)]}, path
    ),
    "classes": lambda path: panels.confusion_matrix(np.eye(16) * 9 + 1, WORDS, path),
    "slices": lambda path: panels.sweep_slices(TRIALS, path, metric="valid.loss", log=["rate"]),
    "parallel": lambda path: panels.parallel_coordinates(TRIALS, path, metric="valid.loss", log=["rate"]),
    "trials": lambda path: curves.lines(
        {f"learning_rate=0.00{i} warmup_steps={50 * i}": ([1, 2, 3], rng.random((3, 3))) for i in range(6)}, path,
        xlabel="epoch", ylabel="valid.loss",
    ),
    "compared": lambda path: curves.curves_and_differences(
        {f"score={name} hidden_size={64 + i}": ([1, 2], rng.random((3, 2))) for i, name in enumerate(WORDS[:5])},
        [Row(f"score={name} hidden_size={64 + i}", "", 0.1 * i, 0.05, "") for i, name in enumerate(WORDS[:5])], path,
        ylabel="valid.accuracy", xlabel="valid.accuracy,\nminus that of the first (95 %)",
    ),
    "evaluated once": lambda path: curves.curves_and_differences(
        {name: ([1], rng.random((3, 1))) for name in WORDS[:3]},
        [Row(name, "", 0.1, None, "no shared seed") for name in WORDS[:3]], path, ylabel="valid.bleu", xlabel="minus",
    ),
    "memory": lambda path: panels.over_time({"input": rng.random((20, 9)), "read": rng.random((20, 30))}, path),
    "images": lambda path: image_figures.show_attention(
        rng.integers(0, 255, (3, 8, 8, 1)),
        {"rollout": rng.random((3, 4, 4)), "last": rng.random((3, 4, 4)), "heads": rng.random((3, 8, 4, 4))},
        ["ankle boot (sneaker 0.98)"] * 3, path,
    ),
}  # fmt: skip


@pytest.fixture
def texts(monkeypatch) -> dict[int, Text]:
    """The texts of the last figure that was saved, as they were drawn."""
    texts_by_id, draw = {}, Text.draw
    monkeypatch.setattr(Text, "draw", lambda self, *args: (texts_by_id.__setitem__(id(self), self), draw(self, *args)))
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, metadata: (texts_by_id.clear(), self.draw_without_rendering())
    )
    return texts_by_id


def texts_of_figure(name, texts, path) -> list[Text]:
    FIGURES[name](path)
    return [text for text in texts.values() if text.get_text().strip() and text.get_visible()]


@pytest.mark.parametrize("name", FIGURES)
def test_labels_neither_touch_nor_leave_the_figure(name, texts, tmp_path):
    visible_texts = texts_of_figure(name, texts, tmp_path / "figure.png")
    boxes = [(text.get_text(), text.get_window_extent().extents) for text in visible_texts]
    overlap = lambda p, q: (np.minimum(p[2:], q[2:]) - np.maximum(p[:2], q[:2]) > 1).all()  # pixels, of 200 an inch
    assert not [(a, b) for (a, p), (b, q) in itertools.combinations(boxes, 2) if overlap(p, q)]
    figure = visible_texts[0].get_figure(root=True)
    assert not [text for text, p in boxes if (p[:2] < -1).any() or (p[2:] > figure.bbox.size + 1).any()]
    assert figure.get_figwidth() <= style.WIDTH and min(text.get_fontsize() for text in visible_texts) >= style.SMALLEST


def test_tokens_label_an_axis_all_or_none(texts, tmp_path):
    """Every third token of a sentence reads as another sentence; positions are numbers, and the axis says so."""
    all_words = {text.get_text() for text in texts_of_figure("alignments", texts, tmp_path / "a.png")}
    assert all_words >= set(sentence(20)) and "output" in all_words
    heads = {text.get_text() for text in texts_of_figure("heads", texts, tmp_path / "b.png")}
    assert "I_WALK" not in heads and {"0", "key (position)", "layer 1 (position)"} <= heads


@pytest.mark.parametrize("name, count", [("lines", 3), ("crowded", 6)])
def test_a_legend_names_every_line(texts, tmp_path, name, count):
    texts_of_figure(name, texts, tmp_path / "lines.png")
    [legend] = next(iter(texts.values())).get_figure(root=True).legends
    assert len({text.get_text() for text in legend.get_texts()}) == count


def test_figures_explain_training_loss_and_whiskers(texts, tmp_path):
    assert "train (with dropout)" in {text.get_text() for text in texts_of_figure("curves", texts, tmp_path / "c.png")}
    assert any(
        text.get_text() == "range over its seeds" for text in texts_of_figure("slices", texts, tmp_path / "s.png")
    )
    assert any(
        "range of up to 2 runs" in text.get_text() for text in texts_of_figure("bars", texts, tmp_path / "b.png")
    )


def test_a_missing_font_is_named(texts, tmp_path, monkeypatch):
    monkeypatch.setattr(style, "_fonts", lambda: (("DejaVu Sans", frozenset(range(32, 127))),))
    heatmaps.show_heatmaps([[Heatmap(np.eye(2), ["房", "子"], ["a", "b"])]], tmp_path / "chinese.png")
    written = {text.get_text() for text in texts.values()}
    assert "U+623F" in written and any("Noto Sans CJK" in text for text in written)
    heatmaps.show_heatmaps([[Heatmap(np.eye(2), ["x", "y"], ["a", "b"])]], tmp_path / "latin.png")
    assert not any("Noto" in text.get_text() for text in texts.values())


def test_figure_stores_the_hash_of_its_inputs(tmp_path):
    from PIL import Image

    path = curves.learning_curves([history(1)], tmp_path / "curve.png")
    assert Image.open(path).text["Inputs"] == style.fingerprint([history(1)]) != style.fingerprint([history(2)])


def test_large_number_is_power_of_ten_in_every_label(texts, tmp_path):
    curves.lines({"loss": ([1, 2], [1e-8, 1e8])}, tmp_path / "a.png", xlabel="step", ylabel="loss", log="y")
    exponents = [text.get_text() for text in texts.values() if "10" in text.get_text()]
    assert len(exponents) > 2 and all("10^{" in text for text in exponents)
    curves.lines({"loss": ([1, 2], [0.01, 100])}, tmp_path / "b.png", xlabel="step", ylabel="loss", log="y")
    assert {"0.01", "1", "100"} <= {text.get_text() for text in texts.values()}


def test_heads_of_a_layer_fill_their_lines(texts, tmp_path):
    """Four heads for which three columns have room are two and two."""
    words = [f"orangefarbenen{i}" for i in range(9)]
    heatmaps.show_heatmaps(
        heatmaps.layer_heatmaps(rng.random((1, 4, 9, 12)), words, [*words, *"abc"]), tmp_path / "a.png"
    )
    titled = {text.get_text(): text.get_window_extent().y0 for text in texts.values() if "head" in text.get_text()}
    assert titled["head 1"] == titled["head 2"] > titled["head 3"] == titled["head 4"]


def test_figures_are_saved_in_one_place():
    """What is saved elsewhere has neither this style nor the hash of its inputs."""
    from pathlib import Path

    package = Path(style.__file__).parents[1]
    saving = [path for path in package.rglob("*.py") if ".savefig(" in path.read_text(encoding="utf-8")]
    assert saving == [package / "report" / "style.py"]
