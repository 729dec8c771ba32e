"""Metrics of each class and of calibration, against scikit-learn and by hand."""

import warnings

import numpy as np
import pytest
from matplotlib import image as png

from attention_jax.report import style
from attention_jax.report.class_report import BINS, class_bars, class_table, reliability, report_classes

NAMES = ("a", "b", "c", "never")


@pytest.fixture(scope="module")
def example():
    """500 examples of three classes of four; the fourth is sometimes predicted, the third never."""
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 500, p=[0.7, 0.2, 0.1])
    logits = rng.normal(size=(500, 4)) + 2 * np.eye(4)[labels] - np.array([0, 0, 9, 0])
    return labels, np.exp(logits) / np.exp(logits).sum(1, keepdims=True)


def test_metrics_of_classes_equal_scikit_learn(example):
    """Precision, recall, F1, support, confusions, macro F1, balanced accuracy and loss (1 CPU-second)."""
    metrics = pytest.importorskip("sklearn.metrics")
    labels, probabilities = example
    guesses, report = probabilities.argmax(1), report_classes(labels, probabilities, NAMES)
    options = {"labels": range(4), "zero_division": 0}
    expected = metrics.precision_recall_fscore_support(labels, guesses, **options)
    rows = np.array([[row[name] for name in ("precision", "recall", "f1", "support")] for row in report["classes"]])
    np.testing.assert_allclose(rows.T, np.array(expected), atol=5.1e-5)  # four decimals
    assert report["confusion"] == metrics.confusion_matrix(labels, guesses, labels=range(4)).tolist()
    assert rows[2, :2].tolist() == [0.0, 0.0] and rows[3, 3] == 0 and rows[:, 3].sum() == report["examples"] == 500
    exact = {"macro_f1": metrics.f1_score(labels, guesses, average="macro", **options)}
    exact |= {"accuracy": metrics.accuracy_score(labels, guesses)}
    exact |= {"loss": metrics.log_loss(labels, probabilities, labels=range(4))}
    with warnings.catch_warnings(action="ignore"):  # of a class without examples, which has no recall
        exact["balanced_accuracy"] = metrics.balanced_accuracy_score(labels, guesses)
    assert {name: report[name] for name in exact} == pytest.approx(exact, abs=5.1e-5)


def test_calibration_equals_scikit_learn_bin_by_bin(example):
    calibration = pytest.importorskip("sklearn.calibration")
    labels, probabilities = example
    report = report_classes(labels, probabilities, NAMES)
    correct, confidence = probabilities.argmax(1) == labels, probabilities.max(1)
    accuracy, mean = calibration.calibration_curve(correct, confidence, n_bins=BINS, strategy="uniform")
    rows = report["calibration"]
    np.testing.assert_allclose([row["accuracy"] for row in rows], accuracy, atol=5.1e-5)
    np.testing.assert_allclose([row["confidence"] for row in rows], mean, atol=5.1e-5)
    counts = [((confidence > row["above"]) & (confidence <= row["to"] + 5e-5)).sum() for row in rows]
    assert abs(np.array(counts) - [row["count"] for row in rows]).max() <= 1  # edges have four decimals
    gaps = np.array([row["count"] for row in rows]) @ abs(accuracy - mean) / 500
    assert report["ece"] == pytest.approx(gaps, abs=5.1e-5) and sum(row["count"] for row in rows) == 500


def test_calibrated_probabilities_have_no_error():
    """Of 1,000 examples of confidence 0.75 three in four are right; sure and always wrong is an error of 1."""
    labels, probabilities = np.arange(1000) % 4 // 3, np.tile([0.75, 0.25], (1000, 1))
    assert report_classes(labels, probabilities, "ab")["ece"] == 0.0
    assert report_classes(np.ones(5, int), np.tile([1.0, 0.0], (5, 1)), "ab")["ece"] == 1.0


def test_figures_and_table_show_every_class(example, tmp_path):
    """(1.5 CPU-seconds)"""
    report = report_classes(*example, NAMES)
    assert [row[0] for row in class_table(report).rows] == list(NAMES)
    for figure in (class_bars, reliability):
        picture = png.imread(figure(report, tmp_path / f"{figure.__name__}.png"))
        assert picture.shape[1] <= style.WIDTH * style.DPI + 1 and picture[..., :3].std() > 0.01
