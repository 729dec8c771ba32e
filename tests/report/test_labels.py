"""No label of any figure touches another one or leaves the picture, and all can be read where a figure is 600 pixels
wide: matplotlib is asked for the extents of every text that it has drawn."""

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from attention_jax.report import bleu, curves, heatmaps, image_figures, panels, style
from benchmarks import _attention_figure

PACKAGE = Path(style.__file__).parents[1]
LEGIBLE = 8
"""Pixels of height in a picture of 600."""
rng = np.random.default_rng(0)


def weights(*shape):
    """Rows that add up to 1."""
    logits = 3 * rng.normal(size=shape)
    return np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)


def words(count, length=12):
    """So many words, some of them long."""
    return [("orangefarbenen@@ und ein Mann"[: 1 + (7 * i) % length]) or "." for i in range(count)]


def history(names, epochs=12, scale=1.0):
    rows = [{"epoch": e + 1, "step": 10 * e, "seconds": 1.0} for e in range(epochs)]
    return [row | {name: scale * (1 + i) / (1 + row["epoch"]) for i, name in enumerate(names)} for row in rows]


def trials(count, parameters, value=lambda i: 0.5 + 0.01 * i):
    return [{"params": {k: v(i) for k, v in parameters.items()}, "value": value(i)} for i in range(count)]


def images(count, size=8):
    return rng.integers(0, 255, (count, size, size, 1)).astype(np.uint8)


def maps(count, heads):
    return {"rollout": rng.random((count, 4, 4)), "last": rng.random((count, 4, 4)),
            "heads": rng.random((count, heads, 4, 4))}  # fmt: skip


def measured(cases, implementations=_attention_figure.IMPLEMENTATIONS):
    return [
        {"case": c, "implementation": n, "length": 512 << k, "blocks": [None], "problem": "", "device": "cpu",
         "batch": 1, "heads": 8, "dtype": "float32", "gradient_seconds": 0.01 * (1 + i) * 3**k,
         "temporary_bytes": 2**20 * (1 + i) * (k + 1)}
        for c in cases for i, n in enumerate(implementations) for k in range(6)
    ]  # fmt: skip


KINDS = ("loss", "perplexity", "token_accuracy", "exact_match_of_unseen_dates_in_every_calendar", "bits", "chrf")
EVERY = [f"{split}.{kind}" for split in ("train", "valid", "test") for kind in KINDS]
LONG = "a name that is much longer than any that one would give, with_an_option=0.0001 and another"
SEARCHED = {
    "optim.learning_rate": lambda i: 10.0 ** (-5 + i % 9 / 2),
    "model.encoder_dropout_rate_of_every_layer": lambda i: 0.05 * (i % 7),
    "model.score": lambda i: ("a_score_with_a_very_long_name_indeed", "dot", "general", "location", "concat")[i % 5],
    "warmup_steps": lambda i: (1, 60, 64, 4000)[i % 4],
    "width": lambda i: (64, 96, 100, 128)[i % 4],
}
SHORT, ALL = "short", "long"
CASES = {  # (module, function): {length of the input: call of it with a path}
    (curves, "lines"): {
        SHORT: lambda path: curves.lines({"a": ([1], [1])}, path, xlabel="x", ylabel="y"),
        "log": lambda path: curves.lines(
            {"a": ([1000, 1500, 1600, 2400], [1.1e-5, 1.2e-5, 1.3e-5, 1.9e-5])}, path, xlabel="x", ylabel="y", log="xy"
        ),
        ALL: lambda path: curves.lines(
            {f"{LONG} {i}": (range(1, 40), rng.random((5, 39)) * 10.0**i) for i in range(7)},
            path, xlabel=LONG, ylabel=LONG, title=LONG, log="xy", points={LONG: ([1, 2], [3, 4])},
            reference={f"published {LONG}": 3.0, "also published": 3.01},
        ),
    },
    (curves, "bars"): {
        SHORT: lambda path: curves.bars(["a"], {"x": [1]}, path, ylabel="y"),
        ALL: lambda path: curves.bars(
            [f"{LONG} {i}"[i:] for i in range(30)], {f"{LONG} {i}": [[1e9, 2e9]] * 30 for i in range(3)},
            path, ylabel=LONG, title=LONG, reference={"published": [2e9] * 30},
        ),
    },
    (curves, "learning_curves"): {
        SHORT: lambda path: curves.learning_curves(history(["train.loss"], 1), path),
        "two": lambda path: curves.learning_curves(
            [history(["train.loss", "valid.loss", "valid.accuracy"], scale=s) for s in (1, 2, 3)], path
        ),
        ALL: lambda path: curves.learning_curves(
            [history([*EVERY, "gradient_norm"], 120, scale=s) for s in (1e-6, 1e6, 1)], path, title=LONG
        ),
    },
    (curves, "trial_curves"): {
        SHORT: lambda path: curves.trial_curves({"lr=1": ([1], [1])}, path, ylabel="loss"),
        ALL: lambda path: curves.trial_curves(
            {f"{LONG} {i}": (range(1, 30), rng.random((3, 29))) for i in range(4)}, path, ylabel=LONG
        ),
    },
    (heatmaps, "show_heatmaps"): {
        SHORT: lambda path: heatmaps.show_heatmaps(weights(1, 1), ["a"], ["b"], path),
        "sentences": lambda path: heatmaps.show_heatmaps(
            [[weights(n, n + 2) for n in (4, 12, 20, 30)]], [[words(n, 18) for n in (4, 12, 20, 30)]],
            [[words(n + 2) for n in (4, 12, 20, 30)]], path, xlabel="source", ylabel="output",
        ),
        "characters": lambda path: heatmaps.show_heatmaps(
            weights(1, 4, 24, 24), list("time␣traveller␣the␣time t"[:24]), list("time traveller the time t"[:24]), path,
            titles=["head 1", "head 2", "head 3", "head 4"], ylabel=["layer 1"],
        ),
        "numbers": lambda path: heatmaps.show_heatmaps(
            weights(1, 4, 50, 50), None, None, path, titles=[LONG] * 4, xlabel="inputs, in order", ylabel=LONG
        ),
        ALL: lambda path: heatmaps.show_heatmaps(
            weights(1, 8, 40, 45), words(40, 29), words(45, 29), path, titles=[f"head {i}" for i in range(8)],
            ylabel=[f"layer {i}" for i in range(1)],
        ),
        "very long": lambda path: heatmaps.show_heatmaps(weights(150, 130), words(150, 29), words(130, 29), path),
    },
    (image_figures, "show_attention"): {
        SHORT: lambda path: image_figures.show_attention(images(1), maps(1, 1), ["0"], path),
        ALL: lambda path: image_figures.show_attention(
            images(3), maps(3, 12), ["sea anemone or anemone fish (hammerhead shark 0.98)"] * 3, path
        ),
    },
    (image_figures, "mistakes"): {
        SHORT: lambda path: image_figures.mistakes(images(1), np.array([0]), np.array([[0.2, 0.8]]), ["a", "b"], path),
        ALL: lambda path: image_figures.mistakes(
            images(9), np.zeros(9, int), np.array([[0.2, 0.8]] * 9), ["hammerhead shark, tiger shark", LONG], path
        ),
    },
    (image_figures, "position_similarity"): {
        SHORT: lambda path: image_figures.position_similarity(np.eye(4), path),
        ALL: lambda path: image_figures.position_similarity(rng.normal(size=(16, 8)), path),
    },
    (panels, "over_time"): {
        SHORT: lambda path: panels.over_time({"a": np.zeros((1, 1))}, path),
        ALL: lambda path: panels.over_time(
            {f"{LONG} {i}": 1e4 * rng.normal(size=(200, n)) for i, n in enumerate((1, 8, 128))}, path, xlabel=LONG,
            title=LONG,
        ),
    },
    (panels, "confusion_matrix"): {
        SHORT: lambda path: panels.confusion_matrix(np.eye(2), ["a", "b"], path),
        "twelve": lambda path: panels.confusion_matrix(np.eye(12) * 9 + 1, words(12, 29), path),
        ALL: lambda path: panels.confusion_matrix(np.eye(60), words(60, 29), path, title=LONG),
    },
    (panels, "sweep_slices"): {
        SHORT: lambda path: panels.sweep_slices(trials(1, {"lr": lambda i: 0.1}), path, metric="loss", log=["lr"]),
        "two": lambda path: panels.sweep_slices(
            trials(12, {"rate": lambda i: (0.001, 0.003, 0.01, 0.03)[i % 4], "warmup": lambda i: (1, 50, 200)[i % 3]}),
            path, metric="test.loss", log=["rate", "warmup"],
        ),
        ALL: lambda path: panels.sweep_slices(
            trials(30, SEARCHED, lambda i: None if i % 5 == 2 else 1e-6 * i), path, metric="valid.exact_match_unseen",
            log=["optim.learning_rate", "warmup_steps", "width"],
        ),
    },
    (panels, "parallel_coordinates"): {
        SHORT: lambda path: panels.parallel_coordinates(trials(1, {"lr": lambda i: 0.1}), path, metric="loss"),
        ALL: lambda path: panels.parallel_coordinates(
            trials(40, SEARCHED | {"name": lambda i: f"{i} {LONG}"}), path, metric="valid.exact_match_unseen",
            log=["optim.learning_rate"],
        ),
    },
    (bleu, "length_figure"): {
        SHORT: lambda path: bleu.length_figure({"a": [bleu.LengthBin(1, 10, 3, 1.0)]}, path),
        ALL: lambda path: bleu.length_figure(
            {f"{LONG} {i}": [bleu.LengthBin(n, n + 9, 12345, 30.0 - i) for n in range(1, 150, 10)] for i in range(2)},
            path, title=LONG,
        ),
    },
    (_attention_figure, "draw"): {
        SHORT: lambda path: _attention_figure.draw(measured(["causal"], ["fused"]), path, "cpu"),
        ALL: lambda path: _attention_figure.draw(
            measured(["scaled_dot", "causal", "window", "gaussian"]), path, "cpu"
        ),
    },
}  # fmt: skip
DRAWN = [(module, name, length) for (module, name), cases in CASES.items() for length in cases]
HEAVY = {ALL, "very long", "sentences", "characters", "numbers", "twelve"}


def functions_that_draw() -> set[str]:
    """The public functions of the package that are given the path of a picture."""
    found = set()
    for path in [*(PACKAGE / "report").glob("*.py"), Path(_attention_figure.__file__)]:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "path" in {a.arg for a in node.args.args + node.args.kwonlyargs}:
                found |= {f"{path.stem}.{node.name}"} if not node.name.startswith("_") else set()
    return found - {"style.save"}


def test_every_function_that_draws_is_tried_short_and_long():
    assert {f"{module.__name__.rpartition('.')[2]}.{name}" for module, name in CASES} == functions_that_draw()
    assert all({SHORT, ALL} <= set(cases) for cases in CASES.values())


def test_pictures_are_saved_in_one_place():
    """What is saved elsewhere has neither this look nor these labels."""
    saving = [path for path in PACKAGE.rglob("*.py") if "savefig" in path.read_text(encoding="utf-8")]
    assert saving == [PACKAGE / "report" / "style.py"]


@pytest.fixture
def texts(monkeypatch) -> list[Text]:
    """The texts of the last picture that was saved, as they were drawn."""
    drawn, draw = {}, Text.draw
    monkeypatch.setattr(Text, "draw", lambda self, *args: (drawn.__setitem__(id(self), self), draw(self, *args)))
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (drawn.clear(), self.draw_without_rendering()))
    return drawn


def drawn_by(module, name, length, texts, path) -> list[tuple[Text, np.ndarray]]:
    """Each text of a figure with its box [x0, y0, x1, y1] in pixels."""
    CASES[module, name][length](path)
    found = [text for text in texts.values() if text.get_text().strip() and text.get_visible()]
    assert all(text.get_rotation() in (0, 90) for text in found), "the box of a slanted text says little"
    return [(text, text.get_window_extent().extents) for text in found]


@pytest.mark.parametrize(
    "module, name, length",
    [pytest.param(*case, id=f"{case[1]}-{case[2]}", marks=[pytest.mark.slow] * (case[2] in HEAVY)) for case in DRAWN],
)
def test_no_label_touches_another(module, name, length, texts, tmp_path):
    found = drawn_by(module, name, length, texts, tmp_path / "figure.png")
    touching = []
    for (a, p), (b, q) in itertools.combinations(found, 2):
        overlap = np.minimum(p[2:], q[2:]) - np.maximum(p[:2], q[:2])
        if (overlap > 1).all():  # pixels, of 200 an inch
            touching.append((a.get_text(), b.get_text()))
    assert not touching, f"{len(touching)} pairs of {len(found)} texts: {touching[:4]}"
    figure = found[0][0].get_figure(root=True)
    outside = [t.get_text() for t, p in found if (p[:2] < -1).any() or (p[2:] > figure.bbox.size + 1).any()]
    assert not outside
    assert figure.get_figwidth() <= style.WIDTH
    small = {t.get_text() for t, _ in found if t.get_fontsize() / 72 * 600 / style.WIDTH < LEGIBLE}
    assert not small


def test_figures_for_a_dark_page_have_light_letters(texts, tmp_path):
    with style.dark():
        found = drawn_by(curves, "learning_curves", "two", texts, tmp_path / "dark.png")
    assert {text.get_color() for text, _ in found} == {style.DARK["text.color"]}
    assert found[0][0].get_figure(root=True).get_facecolor()[:3] < (0.2, 0.2, 0.2)
    again = drawn_by(curves, "learning_curves", "two", texts, tmp_path / "light.png")
    assert {text.get_color() for text, _ in again} == {"black"}
