"""Habits that keep the package easy to find one's way in."""

from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "attention_jax"


def test_no_two_modules_share_a_name():
    """Two files called memory.py in two rooms make `from ... import memory` a riddle."""
    names = Counter(path.stem for path in PACKAGE.rglob("*.py") if path.stem != "__init__")
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []
