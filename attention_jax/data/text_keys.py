"""Keys by which texts are compared, so that two spellings of one text are not in two splits."""

import unicodedata


def composed(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), in which an accented letter is spelled in one way.

    >>> composed("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def comparable(text: str) -> str:
    """Return a text in the composed form and with single spaces.

    >>> comparable(" two  words ")
    'two words'
    """
    return " ".join(composed(text).split())
