"""Example texts for a first run without data: dates in several languages, and the reference of Python."""

import datetime
from collections.abc import Sequence

import numpy as np

from attention_jax.errors import InputError

FIRST_EXAMPLE, DAYS = datetime.date(1900, 1, 1), 73_000
LANGUAGES = ("de", "en", "es", "fr", "it", "nl")


def format_dates(locales: Sequence[str], count: int) -> list[list[str]]:
    """Format `count` different days in every language, half of them with the day of the week.

    >>> format_dates(("en", "de"), 1)
    [['April 13, 1948'], ['13. April 1948']]
    """
    from babel.dates import format_date

    if count > DAYS:
        raise InputError(f"--data.examples must be at most {DAYS:,}, one for each day there is; got {count:,}")
    rng = np.random.default_rng(0)
    days = [FIRST_EXAMPLE + datetime.timedelta(days=int(day)) for day in rng.permutation(DAYS)[:count]]
    styles = rng.choice(["full", "long"], count).tolist()
    return [[format_date(day, style, locale) for day, style in zip(days, styles)] for locale in locales]


def dates_by_language(count: int) -> list[tuple[str, str]]:
    """Generate `count` pairs (language, date) in six languages."""
    languages = np.random.default_rng(1).integers(0, len(LANGUAGES), count).tolist()
    columns = format_dates(LANGUAGES, count)
    return [(LANGUAGES[number], columns[number][row]) for row, number in enumerate(languages)]


def manual() -> str:
    """The language reference of Python as `help()` shows it: 700,000 characters of English."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))
