"""Markdown page of one run: its settings, metrics and figures."""

from collections.abc import Mapping
from pathlib import Path

from attention_jax.errors import InputError
from attention_jax.files import read_object, write_atomically
from attention_jax.report.tables import Table, markdown, number


def run_page(directory: str | Path) -> Path:
    """Write `page.md` into a run's directory from its result.json and figures/*.png; returns the page's path.

    Every number of result.json is shown, nested names joined by dots; lists (the history)
    are left to the learning curve.
    """
    directory = Path(directory)
    source = directory / "result.json"
    if not source.exists():
        raise InputError(f"{directory} has no result.json: the run must have ended before it gets a page")
    result = read_object(source)
    rows = [(name, number(value) if isinstance(value, int | float) else str(value)) for name, value in _flat(result)]
    sections = [f"# {directory.resolve().name}", markdown(Table("", ("what", "value"), rows, right=("value",)))]
    for figure in sorted((directory / "figures").glob("*.png")):
        sections.append(f"## {figure.stem.replace('_', ' ')}\n\n![{figure.stem}](figures/{figure.name})")
    if (directory / "figures" / "look.html").exists():
        sections.append("## where the model looks\n\n[figures/look.html](figures/look.html), for a browser")
    page = directory / "page.md"
    write_atomically(page, "\n\n".join(sections) + "\n")
    return page


def _flat(value: Mapping, prefix: str = "") -> list[tuple[str, object]]:
    """Flatten nested mappings to (dotted name, scalar); lists and None are skipped."""
    rows = []
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            rows += _flat(entry, f"{prefix}{name}.")
        elif isinstance(entry, str | int | float):
            rows.append((prefix + name, entry))
    return rows
