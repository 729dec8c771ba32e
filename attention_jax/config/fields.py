"""`option`: a dataclass field with its validation rules and metadata, the checks of its value, and what a misspelled
name of an option may mean."""

import ast
import dataclasses
import difflib
import functools
import inspect
import itertools
import re
import textwrap
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from attention_jax.errors import InputError
from attention_jax.files import is_utf8

LARGEST = 2**31 - 1
"""The default upper limit of integer options: integers are int32 on the devices."""
TYPES = {int: "an integer", float: "a finite number", bool: "true or false", str: "a text in UTF-8"}


@dataclass(frozen=True)
class OptionInfo:
    """Metadata of an option besides its type, default and help text."""

    at_least: float = 0
    """The smallest value."""
    above: float | None = None
    """The value must be larger than this."""
    below: float | None = None
    """The value must be smaller than this."""
    at_most: float | None = None
    """The largest value; 2**31 - 1 for integers that name none."""
    smoke: int | None = None
    """The upper limit of a size in smoke runs of a few seconds (`smoke_config`)."""
    unlimited: bool = False
    """0 means no limit, so it is larger than any other value."""
    resumable: bool = False
    """Whether `train --resume` may change it: it affects how long or how a run is executed, not its past training."""
    traced: bool = False
    """A number in which the runs of one population may differ, except that 0 selects another program, without the
    operation (attention_jax/sweep/batch.py).
    """
    training_only: bool = False
    """Whether a model option does not affect the weights; it is not taken over with pretrained weights."""
    user_data: bool = False
    """Whether the option replaces an experiment's data by the user's files."""


def option(default: Any = dataclasses.MISSING, **info) -> Any:
    """Return a dataclass field with a default and the metadata of `OptionInfo`.

    The docstring below the field is its help text. Values are checked when the dataclass is created.

    >>> from attention_jax.config import Options
    >>> @dataclass(frozen=True)
    ... class Mine(Options):
    ...     rate: float = option(0.1, below=1)
    >>> Mine(rate=1.5)
    Traceback (most recent call last):
    attention_jax.errors.InputError: --rate must be below 1, got 1.5
    """
    return dataclasses.field(default=default, metadata={"option": OptionInfo(**info)})


def info_of(field: dataclasses.Field) -> OptionInfo:
    """Return the metadata of a field; a plain field has the defaults."""
    return field.metadata.get("option", OptionInfo())


def walk(options, prefix: str = ""):
    """Dotted name, `OptionInfo` and value of every option of a dataclass and of those in it.

    >>> from attention_jax.config import Config, Dates, ViTConfig
    >>> config = Config("x", Dates(), ViTConfig())
    >>> [(name, value) for name, info, value in walk(config) if info.smoke == 16]
    [('model.mlp_dim', 128)]
    """
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if dataclasses.is_dataclass(value):
            yield from walk(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, info_of(field), value


def check(options, section: str = ""):
    """Raise InputError unless every value has the type of its field and lies within its bounds."""
    for field in dataclasses.fields(options):
        value, info = getattr(options, field.name), info_of(field)
        if hasattr(value, "aval"):  # a tracer, such as a rate of a population
            continue
        name = option_name(field.name, section)
        check_type(_hints(type(options))[field.name], name, value)
        for entry in value if isinstance(value, tuple) else (value,):
            if isinstance(entry, int | float) and not isinstance(entry, bool):
                check_bounds(info, name, entry)


def option_name(field: str, section: str = "") -> str:
    """Return the command-line flag of an option.

    >>> option_name("hidden_size", "model")
    '--model.hidden-size'
    """
    return "--" + f"{section}.{field}".lstrip(".").replace("_", "-")


@functools.lru_cache
def _hints(kind: type) -> dict:
    return typing.get_type_hints(kind)


def check_type(hint, name: str, value):
    """Raise InputError unless `value` has the type `hint`, for numbers, strings, booleans and tuples."""
    if typing.get_origin(hint) is tuple:
        entry_hint, *further_hints = typing.get_args(hint)
        if not isinstance(value, tuple) or (further_hints != [Ellipsis] and len(value) != 1 + len(further_hints)):
            count = "any number of" if further_hints == [Ellipsis] else 1 + len(further_hints)
            raise InputError(f"{name} must be {count} values, got {value!r}")
        for entry in value:
            check_type(entry_hint, name, entry)
    elif hint in TYPES and not _has_type(hint, value):
        raise InputError(f"{name} must be {TYPES[hint]}, got {value!a}")


def _has_type(hint: type, value) -> bool:
    if hint is str:
        return isinstance(value, str) and is_utf8(value)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, int) or (hint is float and isinstance(value, float) and abs(value) < float("inf"))


def check_bounds(info: OptionInfo, name: str, value: float):
    """Raise InputError with the bound that `value` violates."""
    at_most = LARGEST if info.at_most is None and isinstance(value, int) else info.at_most
    bounds = {
        "above": (info.above, lambda bound: value > bound),
        "at least": (info.at_least, lambda bound: value >= bound),
        "below": (info.below, lambda bound: value < bound),
        "at most": (at_most, lambda bound: value <= bound),
    }
    for word, (bound, holds) in bounds.items():
        if bound is not None and not holds(bound):
            raise InputError(f"{name} must be {word} {bound}, got {value}")


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


def field_docs(kind: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, inherited ones included.

    >>> from attention_jax.config import Dates
    >>> field_docs(Dates)["path"]
    'A published date.txt or date.txt.gz; empty generates the data.'
    """
    docs = {}
    for parent in filter(dataclasses.is_dataclass, reversed(kind.__mro__)):
        body = ast.parse(textwrap.dedent(inspect.getsource(parent))).body[0].body
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                docs[field.target.id] = " ".join(text.value.value.split())
    return docs


def user_data(config) -> dict[str, str]:
    """Return {option: help} of the options that replace the experiment's data by the user's files.

    >>> from attention_jax.config import Config, Dates, Images, ViTConfig
    >>> user_data(Config("x", Dates(), ViTConfig()))
    {'--data.path': 'A published date.txt or date.txt.gz; empty generates the data.'}
    >>> user_data(Config("x", Images(), ViTConfig()))["--data.dataset"]
    'digits, fashion_mnist, cifar10, folder, tfds, or own: the folder at `path`, without one the digits.'
    """
    if config.data is None:
        return {}
    kind = type(config.data)
    help_of = field_docs(kind)
    options = {}
    for field in dataclasses.fields(kind):
        if info_of(field).user_data:
            *most, last = typing.get_args(typing.get_type_hints(kind)[field.name]) or ("",)
            choices = f"{', '.join(most)} or {last}." if most else ""
            options[f"--data.{field.name.replace('_', '-')}"] = help_of.get(field.name) or choices
    return options


COMMON_NAMES = {
    "lr": "learning_rate", "bs": "batch_size", "wd": "weight_decay", "dim": "hidden_size", "d_model": "hidden_size",
    "output_dir": "out",
}  # fmt: skip
"""{what other libraries call it: an option here}, where the spelling does not show it."""
ORDER = ("train.", "optim.", "model.", "data.", "decode.")
"""The order of sections in which an option that is typed without its own is searched for."""


def suggest_options(name: str, option_names: Iterable[str]) -> list[str]:
    """Return the options among `option_names` that `name` may mean, the most probable first; at most two.

    All are dotted names with underscores. An option of that name in another section comes before one that is spelled
    alike, and that before one that ends with the same word.

    >>> names = ["out", "optim.learning_rate", "decode.batch_size", "train.batch_size", "model.num_layers"]
    >>> [suggest_options(name, names) for name in ("optim.lr", "batch_size", "layers", "optim.lerning_rate", "x")]
    [['optim.learning_rate'], ['train.batch_size', 'decode.batch_size'], ['model.num_layers'], ...learning_rate'], []]
    """
    section, _, last = name.rpartition(".")
    last, last_names = COMMON_NAMES.get(last, last), {option: option.rpartition(".")[2] for option in option_names}
    near = difflib.get_close_matches(last, sorted({*last_names.values()}), n=1, cutoff=0.75)
    end = last.rpartition("_")[2]
    position = lambda option: next((i for i, start in enumerate(ORDER) if option.startswith(start)), -1)
    ending = [x for x in last_names.values() if x.rpartition("_")[2] == end]
    for names in [last], [f"num_{end}"], near, ending:
        if matches := [option for option, x in last_names.items() if x in names]:
            return sorted(matches, key=lambda x: (not x.startswith(f"{section}."), position(x), "num_" not in x))[:2]
    return []
