"""Text for the terminal, and streams that cannot take it. Standard library only."""

import ast
import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

PROGRAMS = {"attention-jax": "attention-jax", "__main__.py": "python -m attention_jax"}
"""The command of an installed package, by the name of its script."""

LINE_SECONDS = 30.0
"""The seconds between lines about the progress of what is not watched on a terminal."""
NARROWEST, WIDEST = 40, 1000
"""Columns between which text is laid out; in fewer than five the parser's help takes seconds or never ends."""


def escape_control(text: str) -> str:
    """Escape the control characters of `text` other than newline and tab, since escape sequences in a data file could
    change a terminal's title or clear its screen.

    >>> print(escape_control("ça \\x1b[2J"))
    ça \\x1b[2J
    """
    control = lambda character: unicodedata.category(character) == "Cc" and character not in "\n\t"
    return "".join(f"\\x{ord(character):02x}" if control(character) else character for character in text)


def in_a_line(facts: Mapping) -> str:
    """Format the numbers and names in a dictionary of facts about data in one line, without nested values.

    >>> in_a_line({"train_pairs": 32000, "buckets": [{"pairs": 1}], "streamed": True})
    'train pairs 32,000, streamed True'
    """
    plain = {name.replace("_", " "): value for name, value in facts.items() if isinstance(value, int | float | str)}
    number = lambda value: f"{value:,}" if isinstance(value, int | float) and not isinstance(value, bool) else value
    return ", ".join(f"{name} {number(value)}" for name, value in plain.items())


def program() -> str:
    """Return the command: `python launch.py` in a checkout, `attention-jax` after an installation."""
    return PROGRAMS.get(Path(sys.argv[0]).name, "python launch.py")


def as_typed(text: str) -> str:
    """A message that names commands as `launch.py COMMAND`, with the command line that the user has."""
    return text if program() == "python launch.py" else text.replace("launch.py", program())


def docstrings(path: Path | str) -> dict[str, str]:
    """The docstrings of a file ("") and of its functions and classes, by name, from its source: `python -OO` has none.

    >>> docstrings(__file__)["as_typed"][:9]
    'A message'
    """
    tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    definitions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return {name: ast.get_docstring(node) or "" for name, node in {"": tree, **definitions}.items()}


class Lasting:
    """A text stream that outlasts its reader: what cannot be written is dropped, with one note on standard error."""

    def __init__(self, stream):
        self.stream = stream

    def __getattr__(self, name: str):
        return getattr(self.stream, name)

    def write(self, text: str) -> int:
        self._attempt(self.stream.write, text)
        return len(text)

    def flush(self):
        self._attempt(self.stream.flush)

    def _attempt(self, act: Callable, *arguments: str):
        try:
            act(*arguments)
        except OSError as error:  # a closed pipe, a terminal that hung up, a full disk
            discard(self.stream)
            self.write = self.flush = lambda *_: None
            note = f"nothing can be printed any more ({error.strerror}); the work continues and is saved"
            print(note, file=sys.stderr)


@contextlib.contextmanager
def outlasting_readers() -> Iterator[None]:
    """Context in which printing never ends the work, as in `launch.py train date_luong | head`."""
    with contextlib.redirect_stderr(Lasting(sys.stderr)), contextlib.redirect_stdout(Lasting(sys.stdout)):
        try:
            yield
        finally:
            sys.stdout.flush()


def discard(stream):
    """Send what a stream still holds and gets to /dev/null: at exit, Python would fail to write it once more."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: a stream without a file
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def prepare_streams():
    """Make every text printable on standard output and error, whatever they are.

    A closed one (`>&-`) becomes /dev/null: else the next file that is opened would get its number, and what is printed.
    What the encoding cannot write is escaped. An odd or tiny width of the terminal is replaced.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 (it gets the lowest free number, its own)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")
    columns = shutil.get_terminal_size().columns
    if "COLUMNS" in os.environ or columns < NARROWEST:
        os.environ["COLUMNS"] = str(min(max(columns, NARROWEST), WIDEST))
