"""Date conversion: "TUESDAY, SEPTEMBER 25, 1984" -> "1984-09-25", the task of "Deep
Learning from Scratch 2", chapter 8.

The book's 50,000 lines have four formats in equal shares - "9/25/84", "Sep 25, 1984", "September 25, 1984",
"Tuesday, September 25, 1984" (the short, medium, long and full format of Unicode CLDR, English) -, half of the
worded ones as they are, a quarter in lower and a quarter in upper case, and uniform days from 1970-01-01 to
2017-07-24 (counted on the published file). Days are sampled with replacement, so about 28 % of the test inputs occur
in train as well; `PairData.seen` marks them.
"""

import datetime

import numpy as np

from attention_jax import config as settings
from attention_jax.data import fixed_width
from attention_jax.data.pairs import PairData, Texts

FORMATS = ("short", "medium", "long", "full")
FIRST, LAST = datetime.date(1970, 1, 1), datetime.date(2017, 7, 24)
SOURCE_WIDTH = 29
ALPHABET = " ,-/0123456789ABCDEFGHIJLMNOPRSTUVWY_abcdefghijlmnoprstuvwy"
MOST = 10_000_000


def generate(examples: int, seed: int = 1984) -> Texts:
    """Generate `examples` date conversions with Babel, deterministically."""
    from babel.dates import format_date

    rng = np.random.default_rng(seed)
    days = rng.integers(0, (LAST - FIRST).days + 1, examples)
    formats = rng.integers(0, len(FORMATS), examples)
    cases = rng.choice(3, examples, p=[0.5, 0.25, 0.25])
    change = (str, str.lower, str.upper)
    sources, targets = [], []
    for day, style, case in zip(days.tolist(), formats.tolist(), cases.tolist()):
        date = FIRST + datetime.timedelta(days=day)
        sources.append(change[case](format_date(date, FORMATS[style], locale="en_US")).ljust(SOURCE_WIDTH))
        targets.append(date.isoformat())
    return Texts(sources, targets)


class DateConversion(fixed_width.GeneratedPairs):
    """Generated date conversions."""

    DESCRIPTION = "Human-readable dates and their ISO 8601 form, generated with Babel in the mix of the published file."
    generate = staticmethod(generate)


def load(config: settings.Dates, batch_size: int = 128) -> PairData:
    """Load the dataset of `config`: the published file at `config.path`, or generated pairs, which are cached."""
    if config.path:
        splits = fixed_width.split(fixed_width.read_file(config.path, "date"))
    else:
        splits = fixed_width.load_generated(DateConversion, config.examples, max_examples=MOST)
    splits = fixed_width.with_validation(splits, config.validation)
    return fixed_width.assemble(splits, ALPHABET, config.reverse_source, batch_size)
