"""Names that `--only` selects, for several benchmarks, and tables between two markers of a page."""

import re
from collections.abc import Sequence
from pathlib import Path

from attention_jax.claims.pages import replace_between
from attention_jax.errors import InputError


def is_selected(name: str, only: Sequence[str]) -> bool:
    """Whether a name begins with the parts of one of `only`; all do if it is empty.

    >>> is_selected("train/vit/transformers", ("train/vit",)), is_selected("train/vit/transformers", ("tra",))
    (True, False)
    """
    return not only or any(f"{name}/".startswith(f"{prefix.rstrip('/')}/") for prefix in only)


def check_page(page: str, start: str, end: str):
    """InputError for a page without the two markers; "" is no page."""
    if page and not (Path(page).is_file() and re.search(f"{start}.*{end}", Path(page).read_text("utf-8"), re.S)):
        raise InputError(f"--page needs a file with {start.strip()} and {end} on lines of their own, got {page}")


def write_page(page: str, start: str, end: str, text: str):
    """Write `text` between the markers of a page; "" is no page."""
    if page:
        path = Path(page)
        path.write_text(replace_between(path.read_text(encoding="utf-8"), start, end, text), encoding="utf-8")
