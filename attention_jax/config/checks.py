"""Whether the values of a configuration are possible: their types, and what the names of its numbers mean."""

import dataclasses
import functools
import typing

from attention_jax import InputError
from attention_jax.files import is_utf8

AT_LEAST_1 = ("_size", "widths", "heads", "layers", "overlap", "total_epochs", "steps_per_call", "accumulate")
"""Ends of names; those that follow are whole names. The metadata of a field may give another {"least": 0}."""
COUNTS = ("width", "ffn", "locations", "shifts", "truncation_length")
SHARES = ("dropout", "label_smoothing", "momentum", "b1", "b2", "stochastic_depth")
LARGEST = {"seed": 2**32 - 1}
"""The largest whole numbers by name; all others are int32 on the devices."""
TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text in UTF-8"}


def validate(config, prefix: str = ""):
    """Check a configuration, or a part of it; raise InputError naming the option.

    Values have the types of their fields. Sizes, layers and epochs are at least 1, a learning rate is positive, a rate
    of dropout or smoothing lies in [0, 1), no number is negative, and no whole number is too large for the devices.
    """
    for f in dataclasses.fields(config):
        value, option = getattr(config, f.name), "--" + (prefix + f.name).replace("_", "-")
        if dataclasses.is_dataclass(value):
            validate(value, f"{prefix}{f.name}.")
            continue
        check_type(_hints(type(config))[f.name], option, value)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int | float) and not isinstance(one, bool):
                check_number(f, option, one)


@functools.lru_cache
def _hints(kind: type) -> dict:
    return typing.get_type_hints(kind)


def check_type(hint, option: str, value):
    """InputError unless `value` has the type of its field. `Options` itself checks choices; the types of other fields
    than numbers and texts are their own affair."""
    if typing.get_origin(hint) is tuple:
        one, *rest = typing.get_args(hint)
        if not isinstance(value, tuple) or (rest != [Ellipsis] and len(value) != 1 + len(rest)):
            count = "any number of" if rest == [Ellipsis] else 1 + len(rest)
            raise InputError(f"{option} must be {count} values, got {value!r}")
        for entry in value:
            check_type(one, option, entry)
    elif hint in TYPES and not _has_type(hint, value):
        raise InputError(f"{option} must be {TYPES[hint]}, got {value!a}")


def _has_type(hint: type, value) -> bool:
    if hint is str:
        return isinstance(value, str) and is_utf8(value)
    return isinstance(value, int | float if hint is float else hint) and isinstance(value, bool) == (hint is bool)


def check_number(f: dataclasses.Field, option: str, value: float):
    """`validate` one number of a field."""
    least = f.metadata.get("least", 1 if f.name.endswith(AT_LEAST_1) or f.name in COUNTS else 0)
    if f.name == "learning_rate" and not 0 < value < float("inf"):
        raise InputError(f"{option} must be a positive number, got {value}")
    if f.name.endswith(SHARES) and not 0 <= value < 1:
        raise InputError(f"{option} must be at least 0 and below 1, got {value}")
    if not value >= least:
        raise InputError(f"{option} must {f'be at least {least}' if least else 'not be negative'}, got {value}")
    if isinstance(value, int) and value > LARGEST.get(f.name, 2**31 - 1):
        raise InputError(f"{option} must be at most {LARGEST.get(f.name, 2**31 - 1)}, got {value}")
