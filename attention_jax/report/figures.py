"""Import all figure functions from here. Each writes a PNG and returns its path."""

from attention_jax.report.curves import bars, learning_curves, lines, read_history, trial_curves
from attention_jax.report.heatmaps import show_heatmaps
from attention_jax.report.panels import (
    confusion_matrix,
    over_time,
    parallel_coordinates,
    sweep_slices,
)

__all__ = [
    "bars",
    "confusion_matrix",
    "learning_curves",
    "lines",
    "over_time",
    "parallel_coordinates",
    "read_history",
    "show_heatmaps",
    "sweep_slices",
    "trial_curves",
]
