"""What is printed of data and texts cannot command a terminal. Standard library only."""

import unicodedata


def escaped(text: str) -> str:
    """`text` with its control characters, other than newline and tab, as Python writes them: an escape sequence in a
    data file would set a terminal's title or clear its screen.

    >>> print(escaped("ça \\x1b[2J"))
    ça \\x1b[2J
    """
    control = lambda character: unicodedata.category(character) == "Cc" and character not in "\n\t"
    return "".join(f"\\x{ord(character):02x}" if control(character) else character for character in text)
