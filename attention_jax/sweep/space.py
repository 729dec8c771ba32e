"""Search spaces: `--over NAME=VALUES`, validated against the typed configuration before anything is trained.

`optim.learning-rate=1e-4..1e-2:log` is a range, `model.hidden-size=128,256` a list; `1e-4..1e-2:log:5` is a range
that a grid takes at 5 points.
"""

import dataclasses
import difflib
import itertools
import typing
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from attention_jax import config as configs
from attention_jax.config.fields import suggest_options
from attention_jax.errors import InputError


class Values(NamedTuple):
    """A parameter that takes one of some values."""

    choices: tuple


class Range(NamedTuple):
    """A parameter between two numbers, both included."""

    low: float
    high: float
    log: bool
    whole: bool
    """Whole numbers only."""
    points: int
    """The number of grid points; 0: the range has no grid."""

    def grid(self) -> tuple:
        """`points` values, evenly spaced (by ratio if `log`).

        >>> Range(1e-4, 1e-2, True, False, 3).grid(), Range(1, 4, False, True, 9).grid()
        ((0.0001, 0.001, 0.01), (1, 2, 3, 4))
        """
        values = (
            np.geomspace(self.low, self.high, self.points)
            if self.log
            else np.linspace(self.low, self.high, self.points)
        )
        rounded = [round(float(x)) if self.whole else min(max(float(f"{x:.6g}"), self.low), self.high) for x in values]
        return tuple(dict.fromkeys(rounded))


Space = dict[str, Values | Range]
Point = dict[str, int | float | bool | str]


def options(config, prefix: str = "") -> dict[str, type]:
    """Dotted names and types of everything that can be swept over."""
    hints, types = typing.get_type_hints(type(config)), {}
    for f in dataclasses.fields(config):
        value = getattr(config, f.name)
        if dataclasses.is_dataclass(value):
            types |= options(value, f"{prefix}{f.name}.")
        elif prefix and (hints[f.name] in (int, float, bool, str) or typing.get_origin(hints[f.name]) is Literal):
            types[prefix + f.name] = hints[f.name]
    return types


def field_value(config, name: str):
    """The value of a dotted name."""
    for field in name.split("."):
        config = getattr(config, field)
    return config


def assignments(words: Sequence[str]) -> dict[str, str]:
    """`["a=1", "b=2"]` as a dict."""
    texts = {}
    for word in words:
        name, equals, text = (piece.strip() for piece in word.partition("="))
        if not (name and equals and text):
            raise InputError(f"--over needs NAME=VALUES, such as optim.learning-rate=1e-4..1e-2:log; got {word!r}")
        if name in texts:
            raise InputError(f"--over names {name} twice; write all its values in one list")
        texts[name] = text
    return texts


def parse(config, over: Mapping[str, str]) -> Space:
    """Parse the space `over`: a range or a list for each name, validated by the types of `config`, or InputError.

    >>> config = configs.Config("x", configs.Dates(), configs.LuongSeq2seqConfig())
    >>> parse(config, {"optim.learning-rate": "1e-4..1e-2:log", "model.hidden-size": "64,128"})["model.hidden_size"]
    Values(choices=(64, 128))
    """
    option_types, space = options(config), {}
    for spelled, text in over.items():
        name = spelled.replace("-", "_")
        if name == "train.seed":
            raise InputError("seeds are independent of the parameters: give --seeds N instead of --over train.seed")
        if name not in option_types:
            raise InputError(f"there is no parameter {spelled}; {_hint(name, option_types)}")
        if name in space:
            raise InputError(f"--over has {spelled} twice, in two spellings: give it once, with all values")
        space[name] = _dimension(spelled, option_types[name], text)
        dimension = space[name]
        for value in dimension.choices if isinstance(dimension, Values) else (dimension.low, dimension.high):
            configs.replace(config, **{name: value})  # refuses what is out of bounds
    if not space:
        raise InputError(
            "a sweep needs at least one parameter: "
            "--over NAME=VALUES, such as --over optim.learning-rate=1e-4..1e-2:log"
        )
    return space


def _hint(name: str, option_names: Mapping[str, type]) -> str:
    """Return suggestions for a misspelled name."""
    near = suggest_options(name, option_names)
    return (
        f"perhaps you meant {' or '.join(near).replace('_', '-')}"
        if near
        else "launch.py train NAME --help-all shows all"
    )


def _dimension(name: str, kind: type, text: str) -> Values | Range:
    """Parse the range or list of a parameter."""
    low, dots, high_text = text.partition("..")
    if not dots or (kind is str and not low.isdigit()) or (kind not in (int, float) and "," in text):
        return Values(tuple(dict.fromkeys(_value(name, kind, word) for word in split_list(text))))
    if kind not in (int, float):
        raise InputError(f"{name} is not a number, so it has no range; list its values: {name}={_example(kind)}")
    high, *marks = [mark.strip() for mark in high_text.split(":")]
    log, points = "log" in marks, [mark for mark in marks if mark.isdecimal() and int(mark) > 0]
    if sorted(marks) != sorted(["log"] * log + points[:1]):
        raise InputError(
            "a range is LOW..HIGH, LOW..HIGH:log or, for a grid of 1 or more points, LOW..HIGH:log:5; "
            f"got {name}={text}"
        )
    low, high = _value(name, kind, low), _value(name, kind, high)
    if not low < high:
        raise InputError(f"the range of {name} is empty: its low end must be below its high end; got {text}")
    if log and low <= 0:
        raise InputError(f"a logarithmic range cannot touch zero: {name} must start above 0; got {text}")
    return Range(low, high, log, kind is int, int(points[0]) if points else 0)


def split_list(text: str) -> list[str]:
    """Split a list of values at its commas, except for those inside parentheses; spaces around values are dropped.

    >>> split_list("mine.ideas:Two(0.1,0.2), scaled_dot")
    ['mine.ideas:Two(0.1,0.2)', 'scaled_dot']
    """
    words, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth <= 0:
            words.append("")
        else:
            words[-1] += letter
    return [word.strip() for word in words]


def _value(name: str, kind: type, word: str):
    """Parse a value of a parameter's type."""
    if typing.get_origin(kind) is Literal:
        allowed = typing.get_args(kind)
        if word not in allowed:
            near = difflib.get_close_matches(word, allowed, n=1)
            hint = f"; perhaps you meant {near[0]}" if near else ""
            raise InputError(f"{name} must be one of {', '.join(map(str, allowed))}; got {word!r}{hint}")
        return word
    if kind is bool:
        if word.lower() not in ("true", "false"):
            raise InputError(f"{name} must be true or false; got {word!r}")
        return word.lower() == "true"
    try:
        number = kind(word)
    except ValueError:
        raise InputError(f"{name} must be {'a whole number' if kind is int else 'a number'}; got {word!r}") from None
    if kind is float and not np.isfinite(number):
        raise InputError(f"{name} must be a finite number; got {word!r}")
    return number


def _example(kind: type) -> str:
    return (
        ",".join(typing.get_args(kind)[:3])
        if typing.get_origin(kind) is Literal
        else "true,false"
        if kind is bool
        else "a,b"
    )


def format_space(space: Space) -> dict[str, str]:
    """Format the space as `--over` has it, for a sweep's settings.json."""
    words = {}
    for name, dimension in space.items():
        if isinstance(dimension, Values):
            words[name] = ",".join(map(str, dimension.choices))
        else:
            marks = [":log"] * dimension.log + [f":{dimension.points}"] * bool(dimension.points)
            words[name] = f"{dimension.low}..{dimension.high}{''.join(marks)}"
    return words


def spans_decades(dimension: Values | Range) -> bool:
    """Whether a parameter wants a logarithmic axis."""
    if isinstance(dimension, Range):
        return dimension.log
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) and v > 0 for v in dimension.choices)
    return numbers and max(dimension.choices) >= 8 * min(dimension.choices)


def is_finite(space: Space) -> bool:
    """Whether a grid can be laid over the space."""
    return all(isinstance(dimension, Values) or dimension.points for dimension in space.values())


def grid(space: Space) -> list[Point]:
    """Every combination, the last parameter varying fastest; InputError for a range without a number of points."""
    for name, dimension in space.items():
        if isinstance(dimension, Range) and not dimension.points:
            raise InputError(
                f"a grid needs to know how many values of {name}: "
                f"list them, or write {dimension.low}..{dimension.high}:log:5"
            )
    axes = [d.choices if isinstance(d, Values) else d.grid() for d in space.values()]
    return [dict(zip(space, values)) for values in itertools.product(*axes)]


def short_names(names: Sequence[str]) -> list[str]:
    """Return the last parts of dotted names, or the full names if two would be equal.

    >>> short_names(["optim.name", "model.kind"]), short_names(["optim.name", "name"])
    (['name', 'kind'], ['optim.name', 'name'])
    """
    short = [name.rsplit(".", 1)[-1] for name in names]
    return short if len(set(short)) == len(short) else list(names)


def label(point: Point, exact: bool = False) -> str:
    """A short label of a point; with `exact`, different points have different labels.

    >>> label({"optim.learning_rate": 0.003, "model.score": "dot"}), label({"optim.b2": 0.99991}, exact=True)
    ('learning_rate=0.003 score=dot', 'b2=0.99991')
    """
    values = [f"{x:.4g}" if isinstance(x, float) and not exact else str(x) for x in point.values()]
    return " ".join(f"{name}={value}" for name, value in zip(short_names(list(point)), values))
