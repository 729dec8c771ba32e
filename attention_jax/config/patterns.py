"""Numbers by pattern over the paths of parameters: "encoder/.*=0.1"."""

import re

from attention_jax import InputError


def parse_pattern(option: str, text: str) -> tuple[re.Pattern, float]:
    """Return the regular expression and the factor in `text`; InputError if it has none, naming `option`.

    >>> parse_pattern("--optim.rates", "encoder/.*=0.1")
    (re.compile('encoder/.*'), 0.1)
    """
    pattern, _, factor = text.rpartition("=")
    try:
        if pattern and 0 <= float(factor) < float("inf"):
            return re.compile(pattern), float(factor)
    except (ValueError, re.error):
        pass
    raise InputError(
        f"{option} must be REGEX=FACTOR with a factor of at least 0, such as 'encoder/.*=0.1'; got {text!r}"
    )
