"""Text for the terminal: control characters made harmless, commands as the user types them. Standard library only."""

import sys
import unicodedata
from collections.abc import Mapping
from pathlib import Path

PROGRAMS = {"attention-jax": "attention-jax", "__main__.py": "python -m attention_jax"}
"""The command of an installed package, by the name of its script."""


def escaped(text: str) -> str:
    """Escape the control characters of `text` other than newline and tab, since escape sequences in a data file could
    change a terminal's title or clear its screen.

    >>> print(escaped("ça \\x1b[2J"))
    ça \\x1b[2J
    """
    control = lambda character: unicodedata.category(character) == "Cc" and character not in "\n\t"
    return "".join(f"\\x{ord(character):02x}" if control(character) else character for character in text)


def in_a_line(facts: Mapping) -> str:
    """Format the numbers and names in a dictionary of facts about data in one line, without nested values.

    >>> in_a_line({"train_pairs": 32000, "buckets": [{"pairs": 1}], "streamed": True})
    'data: train pairs 32,000, streamed True'
    """
    plain = {name.replace("_", " "): value for name, value in facts.items() if isinstance(value, int | float | str)}
    number = lambda value: f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else value
    return "data: " + ", ".join(f"{name} {number(value)}" for name, value in plain.items()) if plain else ""


def program() -> str:
    """Return the command: `python launch.py` in a checkout, `attention-jax` after an installation."""
    return PROGRAMS.get(Path(sys.argv[0]).name, "python launch.py")


def as_typed(text: str) -> str:
    """A message that names commands as `launch.py COMMAND`, with the command line that the user has."""
    return text if program() == "python launch.py" else text.replace("launch.py", program())
