"""The figures of a run: learning curves, the figures of the task, and the page of attention maps."""

from collections.abc import Sequence
from pathlib import Path

from attention_jax.errors import InputError
from attention_jax.report.attention_page import page
from attention_jax.report.curves import learning_curves
from attention_jax.report.run_page import run_page


def draw_figures(task, params, evaluation, directory: Path) -> list[Path]:
    """Plot learning curves and those of the task, write the page of attention maps and page.md, which
    shows them all; return the figures' paths."""
    figures = [
        learning_curves([directory / "metrics.jsonl"], directory / "figures" / "learning_curve.png", task.config)
    ]
    figures += task.report(params, evaluation, directory / "figures")
    try:
        attention_html = attention_page(task, params, run=directory.name)
    except InputError:  # held-out inputs that are too long for a page; `launch.py look` says which
        attention_html = None
    if attention_html is not None:
        figures.append(attention_html.save(directory / "figures" / "look.html"))
    run_page(directory)
    return figures


def attention_page(task, params, texts: Sequence[str] = (), run: str = ""):
    """Return the page of attention maps for `texts`, or for some held-out inputs, of the run with this name; None
    without attention."""
    records = task.attention_maps(params, list(texts))
    return page(records, ", run ".join(filter(None, [task.config.name, run]))) if records else None
