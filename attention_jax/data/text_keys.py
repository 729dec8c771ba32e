"""Keys by which texts are compared, so that two spellings of one text are not in two splits."""

import unicodedata


def to_nfc(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), in which an accented letter is spelled in one way.

    >>> to_nfc("cafe\\u0301") == "caf\\u00e9"
    True
    """
    return unicodedata.normalize("NFC", text)


def text_key(text: str) -> str:
    """Return a text in the composed form and with single spaces.

    >>> text_key(" two  words ")
    'two words'
    """
    return " ".join(to_nfc(text).split())
