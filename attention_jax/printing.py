"""The command line in messages. Standard library only."""

import sys
from pathlib import Path

PROGRAMS = {"attention-jax": "attention-jax", "__main__.py": "python -m attention_jax"}
"""The command of an installed package, by the name of its script."""


def program() -> str:
    """Return the command: `python launch.py` in a checkout, `attention-jax` after an installation."""
    return PROGRAMS.get(Path(sys.argv[0]).name, "python launch.py")


def as_typed(text: str) -> str:
    """A message that names commands as `launch.py COMMAND`, with the command line that the user has."""
    return text if program() == "python launch.py" else text.replace("launch.py", program())
