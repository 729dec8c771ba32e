"""Base classes of the options, which are validated on creation and registered by name for config.json."""

import ast
import difflib
import functools
import importlib
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from attention_jax.config.fields import check, option_name
from attention_jax.config.per_layer import per_layer_options
from attention_jax.errors import InputError

LARGEST = (2 - 2**-23) * 2.0**127
"""The largest number in float32."""


@dataclass(frozen=True)
class OneOf:
    """Annotation of a string that is one of these names, or an import path "package.file:name"."""

    names: tuple[str, ...]
    arguments: bool = False
    """A name may be followed by arguments in parentheses (`build_from_name`)."""

    def __contains__(self, value) -> bool:
        name = value.partition("(")[0] if self.arguments and isinstance(value, str) else value
        return name in self.names or (isinstance(value, str) and ":" in value)

    def __iter__(self):
        return iter((*self.names, "package.file:name"))


def kind_name(kind: type) -> str:
    """The name of a class in config.json: its own name, or its import path if it is from another package.

    >>> kind_name(DataOptions), kind_name(dict)
    ('DataOptions', 'builtins:dict')
    """
    is_foreign = kind.__module__.partition(".")[0] != "attention_jax"
    return f"{kind.__module__}:{kind.__qualname__}" if is_foreign else kind.__name__


def model_name(options) -> str:
    """The name of the model that options are of, for messages.

    >>> from attention_jax.config import ViTConfig
    >>> model_name(ViTConfig())
    'ViT'
    """
    return type(options).__name__.removesuffix("Config")


class Options:
    """Base of the frozen dataclasses of options.

    Every value is checked on creation, from the command line or from Python: its type, its bounds (see
    `attention_jax.config.option`), and that a `Literal` lists it. Defining a subclass registers its name for
    `from_json`.
    """

    kinds: ClassVar[dict[str, type]] = {}
    """All subclasses that have been defined, by `kind_name`."""
    section: ClassVar[str] = ""
    """The field of `Config` that has these options: "model" for --model.hidden-size."""

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        Options.kinds[kind_name(cls)] = cls

    def __post_init__(self):
        for name, value, allowed in self._iterate_choices():
            if value not in allowed:
                near = difflib.get_close_matches(str(value), [str(choice) for choice in allowed], n=1)
                hint = f"; perhaps you meant {near[0]}" if near else ""
                listed = ", ".join(map(repr, allowed))
                name = option_name(name, self.section)
                raise InputError(f"{name} must be one of {listed}; got {value!r}{hint}")
        check(self, self.section)

    def _iterate_choices(self):
        """Iterate over (field, value, allowed values) of options with a choice, and of each entry of a tuple."""
        for name, allowed in _choices(type(self)).items():
            value = getattr(self, name)
            for entry in value if isinstance(value, tuple) else (value,):
                yield name, entry, allowed


class ModelOptions(Options):
    """Options of a model: they name the Flax module that holds them and the task that trains it, each as
    "package.file:name".
    """

    section: ClassVar[str] = "model"
    module: ClassVar[str]
    """Import path of the Flax module: module(options, *sizes), with sizes from the data such as vocabularies."""
    task: ClassVar[str]
    """Called as task(config)."""
    custom_loss: ClassVar[bool] = False
    """Whether its task has a fixed loss, so that --train.loss raises an error."""
    supports_packing: ClassVar[bool] = False
    """Whether it supports packed sequences (attention_jax/data/pairs.py)."""
    needs_joint_vocabulary: ClassVar[bool] = False
    """Whether source and target tokens have one table of embeddings."""
    logit_cap: ClassVar[float] = 0.0
    """Soft cap of the output logits; 0 has none."""
    longest_input: ClassVar[int | None] = None
    """The maximum number of tokens with learned positions; None has no limit."""


class DataOptions(Options):
    """Options of a dataset: they name the function that loads it, as "package.file:name"."""

    section: ClassVar[str] = "data"
    loader: ClassVar[str]
    stream: ClassVar[str] = "never"
    """Whether the data are streamed; options of `Streamed` data, as `packing` is of a `Corpus`."""
    packing: ClassVar[int] = 0
    reverse_source: ClassVar[bool] = False
    predict_padding: ClassVar[bool] = False
    pad_source: ClassVar[bool] = False
    max_length: ClassVar[int | None] = None

    @property
    def downloads(self) -> str:
        """Directory in the cache of data that are downloaded: "multi30k/tok_de_en"; "" if nothing is downloaded."""
        return ""

    @property
    def without_file(self) -> str:
        """What is used instead of the user's file if none is given, in a line; "" for data that need none.

        >>> from attention_jax.config import Corpus
        >>> Corpus(examples=2000).without_file
        'no --data.tsv-file given: using 2,000 generated date pairs'
        """
        return ""


def type_from_name(name: str) -> type[Options]:
    """Return the dataclass of options with that `kind_name`; one from outside of this package is imported.

    Raises ValueError if there is none.
    """
    kind = Options.kinds.get(name) or (import_object(name) if ":" in name else None)
    if not (isinstance(kind, type) and issubclass(kind, Options)):
        raise ValueError(f"unknown configuration type {name!r}")
    return kind


@functools.lru_cache
def _choices(kind: type) -> dict[str, tuple | OneOf]:
    """The fields of a dataclass with a choice of values, and these values."""
    choices = {}
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        if typing.get_origin(hint) is tuple and typing.get_origin(typing.get_args(hint)[0]) is Literal:
            hint = typing.get_args(hint)[0]
        if typing.get_origin(hint) is Literal:
            choices[name] = typing.get_args(hint)
        elif typing.get_origin(hint) is Annotated:
            choices.update((name, mark) for mark in hint.__metadata__ if isinstance(mark, OneOf))
    return choices


def code_paths(values: dict) -> set[str]:
    """The values of a dataclass in config.json that may be import paths, because their fields are a `OneOf`.

    >>> from attention_jax.config import Optim
    >>> code_paths({"type": "Optim", "name": "a:b"}), code_paths({"type": "Config", "name": "a:b"})
    ({'a:b'}, set())
    """
    kind = Options.kinds.get(str(values.get("type", "")))
    if kind is None:
        return set()
    names = {name for name, allowed in _choices(kind).items() if isinstance(allowed, OneOf)}
    return {str(values[name]) for name in names & values.keys()} | _paths_of_layers(values.get("per_layer", ""))


def _paths_of_layers(per_layer) -> set[str]:
    """The values in an option `per_layer`; none if it cannot be parsed, which raises an error later."""
    try:
        return {value for _, values in per_layer_options(str(per_layer or "")) for value in values.values()}
    except InputError:
        return set()


def import_object(import_path: str) -> Any:
    """Return the object with the import path "package.file:name"; InputError if it cannot be imported.

    >>> import_object("math:sqrt")(9.0)
    3.0
    """
    file, colon, name = import_path.partition(":")
    try:
        module = importlib.import_module(file)
    except (ModuleNotFoundError, ValueError, TypeError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{file}.".startswith(f"{error.name}."):
            raise  # the file is there; a package that it imports is not
        hint = "install the package, or add its directory to PYTHONPATH"
        if not colon or file.endswith(".py"):
            hint = "write package.file:name, such as mine.scores:Radial for Radial in mine/scores.py"
        raise InputError(
            f"{import_path!r} must be package.file:name of something that can be imported; {error}: {hint}"
        ) from error
    if not hasattr(module, name):
        names = [public for public in vars(module) if public[0] != "_"]
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"is {near[0]} meant?" if near else f"it has {', '.join(names[:8]) or 'no names'}"
        raise InputError(f"{import_path!r} must be package.file:name; {module.__name__} has no {name!r}: {hint}")
    return getattr(module, name)


def resolve_name(value: str, names: Mapping[str, str]) -> tuple[Any, list | None]:
    """Return the object that the option `value` names, and the arguments in parentheses after it, Python literals; None
    without parentheses.

    A name is a key of `names`, whose values are import paths, or an import path "package.file:name". A key of `names`
    takes at most one argument, a number. Raises InputError.

    >>> resolve_name("math:gcd(12, 18)", {}), resolve_name("floor", {"floor": "math:floor"})
    ((<built-in function gcd>, [12, 18]), (<built-in function floor>, None))
    """
    name, called, arguments = value.partition("(")
    if name not in names and ":" not in name and (near := difflib.get_close_matches(name, names, n=1)):
        raise InputError(f"{value!r} is no name of {', '.join(names)}, nor package.file:name: is {near[0]} meant?")
    target = import_object(names.get(name, name))
    if not called:
        return target, None
    try:
        if not arguments.endswith(")"):
            raise ValueError("the parenthesis is not closed")
        arguments = _literals(arguments[:-1])
        if name in names and not (
            len(arguments) <= 1 and all(type(argument) in (int, float) for argument in arguments)
        ):
            raise ValueError(f"{name} takes at most one number, got {', '.join(map(repr, arguments))}")
        return target, arguments
    except ValueError as error:
        raise InputError(f"{value}: {error}") from error


def _literals(text: str) -> list:
    """The Python literals in a list; ValueError for anything else, and for numbers beyond float32.

    >>> _literals("30, 'relu'")
    [30, 'relu']
    """
    try:
        nodes, literals = ast.walk(ast.parse(f"[{text}]", mode="eval")), ast.literal_eval(f"[{text}]")
    except (ValueError, SyntaxError, TypeError):
        raise ValueError("its arguments must be literals, such as 30, without names") from None
    numbers = [value for node in nodes if isinstance(value := getattr(node, "value", None), int | float | complex)]
    if not all(abs(number) <= LARGEST for number in numbers):
        raise ValueError("its numbers must be finite in float32")
    return literals


def build_from_name(value: str, names: Mapping[str, str]) -> Any:
    """Return the object that the option `value` names, called with its arguments if it has any (`resolve_name`).

    >>> build_from_name("floor", {"floor": "math:floor"})
    <built-in function floor>
    >>> build_from_name("floor(2.5)", {"floor": "math:floor"}), build_from_name("math:gcd(12, 18)", {})
    (2, 6)
    """
    target, arguments = resolve_name(value, names)
    try:
        return target if arguments is None else target(*arguments)
    except (ValueError, TypeError) as error:
        cause = re.sub(r"^\w+(\.__init__)?\(\) ", "", str(error))  # the name of what has raised it
        raise InputError(f"{value}: {cause}") from error


Method = Literal["auto", "grid", "random", "tpe"]
"""Search methods, of which the last two stop bad trials early (attention_jax/sweep/search.py)."""
