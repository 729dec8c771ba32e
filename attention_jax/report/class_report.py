"""How good a classifier is at each class, and how well its probabilities are calibrated: numbers, a table, figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from attention_jax.report.panels import count_confusions
from attention_jax.report.style import (
    SMALLEST,
    WIDTH,
    canvas,
    color,
    drawable,
    families,
    figure_style,
    save,
    short,
)
from attention_jax.report.tables import Table, number

BINS = 15
"""The bins of equal width of the confidence, from 0 to 1, as in Guo et al. 2017."""
CONFUSIONS = 100
"""The largest number of classes of which the confusions are listed."""


def report_classes(labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str]) -> dict:
    """Return the metrics of a classifier from true classes [N] and probabilities [N, C], as JSON values.

    * "classes": precision TP / (TP + FP), recall TP / (TP + FN), their harmonic mean F1, and the support TP + FN of
      each class; 0 where a denominator is 0. "macro_f1" is the mean of F1 over the classes, and "balanced_accuracy"
      that of the recall over those with support.
    * "confusion": counts [C, C], row: true class, column: predicted; null for more than `CONFUSIONS` classes.
    * "ece", the expected calibration error (Guo et al. 2017, equation 3): the mean over examples of |accuracy -
      confidence| of their bin, of `BINS` bins (a, b] of equal width of the confidence, the largest probability.
      "calibration" lists the bins that are not empty.

    >>> metrics = report_classes(np.array([0, 0, 1]), np.array([[0.9, 0.1], [0.3, 0.7], [0.3, 0.7]]), ("cat", "dog"))
    >>> metrics["classes"][1], metrics["confusion"]
    ({'name': 'dog', 'precision': 0.5, 'recall': 1.0, 'f1': 0.6667, 'support': 1}, [[1, 1], [0, 1]])
    >>> metrics["ece"], metrics["calibration"][0]  # (1 x |1 - 0.9| + 2 x |0.5 - 0.7|) / 3
    (0.1667, {'above': 0.6667, 'to': 0.7333, 'count': 2, 'confidence': 0.7, 'accuracy': 0.5})
    """
    probabilities = np.asarray(probabilities, np.float64)
    predictions, confidence = probabilities.argmax(1), probabilities.max(1)
    counts = count_confusions(labels, predictions, len(names))
    hits, support, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    precision, recall = hits / np.maximum(predicted, 1), hits / np.maximum(support, 1)
    f1 = 2 * hits / np.maximum(predicted + support, 1)
    calibration = calibration_bins(predictions == labels, confidence)
    gaps = [row["count"] * abs(row["accuracy"] - row["confidence"]) for row in calibration]
    likelihood = np.maximum(probabilities[np.arange(len(labels)), labels], np.finfo(np.float32).tiny)
    columns = zip(names, precision, recall, f1, support)
    return {
        "examples": len(labels),
        "loss": _round(-np.log(likelihood).mean()),
        "accuracy": _round(hits.sum() / len(labels)),
        "balanced_accuracy": _round(recall[support > 0].mean()),
        "macro_f1": _round(f1.mean()),
        "ece": _round(sum(gaps) / len(labels)),
        "bins": BINS,
        "classes": [
            {"name": str(name), "precision": _round(p), "recall": _round(r), "f1": _round(f), "support": int(n)}
            for name, p, r, f, n in columns
        ],
        "confusion": counts.tolist() if len(names) <= CONFUSIONS else None,
        "calibration": [{name: _round(value) for name, value in row.items()} for row in calibration],
    }


def calibration_bins(correct: np.ndarray, confidence: np.ndarray) -> list[dict]:
    """Return the number, the mean confidence and the accuracy of the examples [N] in each bin that is not empty."""
    edges = np.linspace(0, 1, BINS + 1)
    bins, rows = np.searchsorted(edges[1:-1], confidence), []
    for index in np.unique(bins):
        inside = bins == index
        row = {"above": float(edges[index]), "to": float(edges[index + 1]), "count": int(inside.sum())}
        rows.append(row | {"confidence": confidence[inside].mean(), "accuracy": correct[inside].mean()})
    return rows


def _round(value: float | int) -> float | int:
    return value if isinstance(value, int) else round(float(value), 4)


def class_table(report: Mapping, title: str = "") -> Table:
    """Return the metrics of each class as a table."""
    columns = ("class", "precision", "recall", "F1", "support")
    names = ("precision", "recall", "f1", "support")
    rows = [(row["name"], *(number(row[name]) for name in names)) for row in report["classes"]]
    return Table(title, columns, rows, right=columns[1:])


def class_bars(report: Mapping, path: str | Path) -> Path:
    """Plot precision, recall and F1 of each class, of the classes with the lowest F1 if there are more than 40."""
    rows = sorted(report["classes"], key=lambda row: row["f1"])[:40]
    figure = canvas(WIDTH * 0.75, 0.2 * len(rows) + 0.9)
    with figure_style():
        axis = figure.subplots()
        for i, (name, marker) in enumerate(zip(("precision", "recall", "f1"), "<>o")):
            style = {"marker": marker, "linestyle": "", "color": color(i), "markersize": 4, "clip_on": False}
            axis.plot([row[name] for row in rows], range(len(rows)), label=name.replace("f1", "F1"), **style)
        labels = [f"{short(drawable(row['name']))} ({row['support']:,})" for row in rows]
        axis.set_yticks(range(len(rows)), labels, fontfamily=families(), fontsize=SMALLEST)
        axis.set(xlim=(0, 1), ylim=(-0.6, len(rows) - 0.4), title="each class (support), worst below")
        axis.grid(axis="both", alpha=0.15, linewidth=0.5)
        figure.legend(loc="outside lower center", ncols=3)
    return save(figure, path)


def reliability(report: Mapping, path: str | Path) -> Path:
    """Plot the reliability diagram (Guo et al. 2017, figure 1): accuracy over confidence in each bin, and how many
    examples there are."""
    rows = report["calibration"]
    figure = canvas(3.4, 3.6)
    with figure_style():
        axis, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        left, width = [row["above"] for row in rows], 1 / report["bins"]
        axis.bar(left, [row["accuracy"] for row in rows], width, align="edge", color=color(0), edgecolor="black")
        axis.plot([row["confidence"] for row in rows], [row["accuracy"] for row in rows], "o", color=color(1), ms=3)
        axis.plot([0, 1], [0, 1], color="black", linewidth=0.8, linestyle="--")
        title = f"expected calibration error {number(report['ece'])}, {report['bins']} bins"
        axis.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy", title=title)
        below.bar(left, [row["count"] for row in rows], width, align="edge", color=color(0), edgecolor="black")
        below.set(xlabel="confidence: the largest probability", ylabel="examples")
        below.yaxis.get_major_locator().set_params(integer=True, nbins=3, min_n_ticks=1)
    return save(figure, path)
