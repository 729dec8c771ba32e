"""What is said of data of one's own before a model trains on them: counts, lengths, classes, in words."""

import zlib
from collections.abc import Iterable, Sequence

import numpy as np


def counted(number: int, word: str) -> str:
    """A number and what it counts.

    >>> counted(1, "pair"), counted(5000, "pair"), counted(2, "class")
    ('1 pair', '5,000 pairs', '2 classes')
    """
    return f"{number:,} {word if number == 1 else word + ('es' if word.endswith('s') else 's')}"


def spread(lengths: np.ndarray, unit: str = "tokens") -> str:
    """The mean and the largest of some lengths.

    >>> spread(np.array([2, 3]))
    '2.5 tokens in the mean, 3 at most'
    """
    return f"{lengths.mean():.1f} {unit} in the mean, {int(lengths.max())} at most"


def classes(names: Sequence[str], label: np.ndarray) -> str:
    """How many examples the classes have, and what share the most frequent one has.

    >>> classes(("cat", "dog", "owl"), np.array([0, 0, 1, 2, 2, 2]))
    '3 classes, from 1 (dog) to 3 (owl; always saying so would be right for 50.0%)'
    """
    counts = np.bincount(label, minlength=len(names))
    least, most = int(counts.argmin()), int(counts.argmax())
    if counts[least] == counts[most]:
        return f"{counted(len(names), 'class')} of {counts[most]:,} each"
    share = counts[most] / counts.sum()
    return (
        f"{counted(len(names), 'class')}, from {counts[least]:,} ({names[least]}) to {counts[most]:,} ({names[most]}; "
        f"always saying so would be right for {share:.1%})"
    )


def left_out(complaints: Sequence[str]) -> str:
    """How many lines were left out, and why the first of them was; nothing where none was.

    >>> left_out([]), left_out(["a.tsv line 3 is empty"])
    ('', '1 line left out (the first: a.tsv line 3 is empty)')
    """
    return f"{counted(len(complaints), 'line')} left out (the first: {complaints[0]})" if complaints else ""


def fingerprint(texts: Iterable[str]) -> str:
    """A few digits that other texts do not have, but for one in four thousand million.

    >>> fingerprint(["a", "b"]), fingerprint(["ab"])
    ('18572a97', '014a983e')
    """
    digits = 0
    for text in texts:
        digits = zlib.crc32(text.encode() + b"\n", digits)
    return f"{digits:08x}"


def sentence(*parts: str) -> str:
    """The parts that say something, in one line.

    >>> sentence("data: 3 pairs", "", "en -> de")
    'data: 3 pairs; en -> de'
    """
    return "; ".join(part for part in parts if part)
