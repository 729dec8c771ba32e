"""Numbers among the options of scores, normalizers and other rules, checked when a rule is made."""

import contextlib

import jax
import numpy as np

from attention_jax.errors import InputError
from attention_jax.ops.trees import is_number


def option_number(value: object) -> float | None:
    """A rule's option as a number, for checks when the rule is made; None if it is traced, or an array of several.

    >>> option_number(np.float32(1.5)), option_number(np.ones(3))
    (1.5, None)
    """
    if isinstance(value, jax.core.Tracer) or not is_number(value) or np.shape(value) != ():
        return None
    with contextlib.suppress(TypeError):  # a ShapeDtypeStruct
        return float(value)


def whole_number(value: object) -> object:
    """A whole number as an int, NumPy's too; anything else as it is.

    >>> whole_number(np.int32(2)), whole_number(2.5)
    (2, 2.5)
    """
    return int(value) if isinstance(value, int | np.integer) else value


def static_option(name: str, value: object, above: float) -> int | float:
    """The option `name` of a rule that is part of its structure, as a Python number; InputError if it is traced, or not
    above a bound.

    >>> static_option("power", np.array(2), above=0), static_option("power", 1.5, above=0)
    (2, 1.5)
    """
    if option_number(value) is None:
        raise InputError(f"{name} must be a number, which is compiled in: it can be no array of several and not traced")
    check_option(name, value, above)
    return value.item() if hasattr(value, "item") else value


def check_option(name: str, value: object, above: float) -> None:
    """Raise InputError if the option `name` of a rule is known, and not above a bound."""
    number = option_number(value)
    if number is not None and not number > above:
        raise InputError(f"{name} must be above {above:g}, got {value}")
