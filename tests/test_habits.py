"""Habits that keep the package easy to find one's way in, and its functions short enough to be read."""

import ast
from collections import Counter
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "attention_jax"
LONGEST = 60
"""Lines of a function, without its docstring: that of a public one lists arguments, results and errors."""


def test_no_two_modules_share_a_name():
    """Two files called memory.py in two packages make `from ... import memory` a riddle; only a view is named like the
    task that it belongs to."""
    views = {path for path in (PACKAGE / "views").glob("*.py") if (PACKAGE / "tasks" / path.name).exists()}
    names = Counter(path.stem for path in {*PACKAGE.rglob("*.py")} - views if path.stem != "__init__")
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []


def lengths() -> dict[str, int]:
    """{"package/file.py:function": lines} of all functions and methods of the package."""
    longest = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                place = f"{path.relative_to(PACKAGE).as_posix()}:{node.name}"
                first = node.body[0]
                documentation = first.end_lineno - first.lineno + 1 if ast.get_docstring(node) else 0
                longest[place] = max(longest.get(place, 0), node.end_lineno - node.lineno + 1 - documentation)
    return longest


def test_no_function_is_longer_than_60_lines():
    too_long = {place: lines for place, lines in lengths().items() if lines > LONGEST}
    assert not too_long
