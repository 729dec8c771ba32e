"""A mutant: one small wrong edit of the code, as a person could make it, and the tests that should see it."""

import ast
from pathlib import Path
from typing import NamedTuple


class Mutant(NamedTuple):
    """A wrong edit of one file."""

    name: str
    """The fault, in a few words with hyphens; unique."""
    file: str
    """The file, from the root of the checkout."""
    old: str
    """Text that occurs exactly once in the file."""
    new: str
    """The wrong text in its place."""
    tests: tuple[str, ...]
    """Test files or node ids that could see it, the cheapest first. The doctests of the file itself always run, too."""


def apply_mutant(root: Path, mutant: Mutant) -> str:
    """The text of the mutant's file below `root` with the wrong edit in it.

    Raises:
      ValueError: the edit does not fit the file any more, changes nothing, or is not Python.
    """
    text = (root / mutant.file).read_text(encoding="utf-8")
    if (count := text.count(mutant.old)) != 1:
        raise ValueError(f"{mutant.name}: the code has moved: {mutant.file} has {count} times {mutant.old!r}")
    wrong = text.replace(mutant.old, mutant.new)
    if ast.dump(ast.parse(wrong)) == ast.dump(ast.parse(text)):
        raise ValueError(f"{mutant.name} changes nothing in {mutant.file}")
    return wrong


def check_tests(root: Path, mutant: Mutant):
    """Raise ValueError unless the mutant's tests are files below `root`, with a function of each name that is given."""
    for test in mutant.tests:
        file, *names = test.split("::")
        if not (root / file).is_file():
            raise ValueError(f"{mutant.name}: there is no test file {file}")
        if names and f"def {names[-1]}(" not in (root / file).read_text(encoding="utf-8"):
            raise ValueError(f"{mutant.name}: {file} has no test {names[-1]}")
