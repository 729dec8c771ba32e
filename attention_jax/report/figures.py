"""Every figure this project draws, in one place to import from. Each function writes a PNG and returns its path."""

from attention_jax.report.curves import bars, learning_curves, lines, read_history
from attention_jax.report.heatmaps import show_heatmaps

__all__ = ["bars", "learning_curves", "lines", "read_history", "show_heatmaps"]
