"""Parts of attention that options name, such as scores and normalizers, with their learned arrays owned by a module.

A part is a dataclass registered by `pytree`. `parse_part` reads an option, and `make_part` and `make_part_per_head`
make the part inside a Flax module. What an option names decides whether the part learns:

| the option names                  | result            | its arguments, in parentheses, are            |
|-----------------------------------|-------------------|-----------------------------------------------|
| a class with a classmethod `init` | `PartInitializer` | initial values of its first fields            |
| a class whose objects have `init` | `PartInitializer` | arguments of the class, such as `LearnedSink` |
| any other class                   | `ConstantPart`    | arguments of the class                        |
| a function, with arguments        | as its result     | arguments of the function                     |
| a function, without               | `ConstantPart`    | none: the function itself becomes a part      |

`named_scores.py` reads scores, normalizers and poolings, and has those of them that learn a number for each head;
`config/per_layer.py` reads which options a single layer has of its own; `part_checks.py` is `check`, which measures
whether a part computes the same in every way.
"""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.config.options import option_name, resolve_name
from attention_jax.errors import InputError
from attention_jax.ops.masks import Mask
from attention_jax.ops.trees import child_names, is_registered

SIGNATURE = "init(cls, rng, query_width, key_width, hidden)"


@runtime_checkable
class PartInitializer(Protocol):
    """Draws a part with learned parameters, its fields. A class with a classmethod `init` is one itself."""

    def init(self, rng, query_width: int, key_width: int, hidden: int) -> Any:
        """Return the part with initial parameters for queries and keys of these widths."""


@dataclass(frozen=True)
class PartWithInitialValues:
    """A `PartInitializer` of the class `kind` in which some fields start at `initial_values`."""

    kind: type
    initial_values: Mapping[str, Any]

    def init(self, rng, query_width: int, key_width: int, hidden: int) -> Any:
        drawn_part = self.kind.init(rng, query_width, key_width, hidden)
        learned_names = child_names(self.kind)
        fields = {
            name: _initial_value(drawn_part, name, value) if name in learned_names else value
            for name, value in self.initial_values.items()
        }
        return dataclasses.replace(drawn_part, **fields)


@dataclass(frozen=True)
class ConstantPart:
    """A part without learned parameters."""

    value: Any


PartFactory = PartInitializer | ConstantPart


def parse_part(
    option: str, value: str, names: Mapping[str, str], base: type, convert: Callable = lambda instance: instance
) -> PartFactory:
    """Return the part that the `value` of an option names.

    Args:
      option: the name of the option, as in "head_pool".
      value: a key of `names` or an import path "package.file:name", with arguments or without, as in "soft_cap(30)".
      names: the import paths of the built-in parts, by name.
      base: the class that the parts of this option inherit from.
      convert: makes a part of an object of another class, such as a plain function.

    Raises InputError for what is not such a part: of another class, without `pytree`, or with parameters that neither
    `init` nor arguments provide.

    >>> from attention_jax.config import SCORES
    >>> from attention_jax.ops.scores import Score
    >>> parse_part("score", "soft_cap(30)", SCORES, Score)
    ConstantPart(value=SoftCap(cap=30, score=ScaledDot()))
    >>> parse_part("score", "gaussian", SCORES, Score)
    <class 'attention_jax.ops.scores.Gaussian'>
    >>> parse_part("score", "gaussian(2.5)", SCORES, Score).initial_values
    {'sigma': 2.5}
    """
    flag = f"{option_name(option, 'model')} {value}"
    target, arguments = resolve_name(value, names)
    is_class = isinstance(target, type)
    if not callable(target):
        raise InputError(f"{option_name(option, 'model')} must be a {base.__name__.lower()}, got {value}")
    if is_class and not _has_instance_init(target):  # before its arguments, about which the error would be otherwise
        _check_class(flag, target, base)
    if is_class and _has_class_init(target):
        return target if arguments is None else PartWithInitialValues(target, _name_arguments(flag, target, arguments))
    if not is_class and arguments is None and value not in names:
        return _parse_instance(flag, target, base, convert)
    return _parse_instance(flag, _call(flag, target, arguments or (), base), base, convert)


def _parse_instance(flag: str, instance: Any, base: type, convert: Callable) -> PartFactory:
    """The part that an object is, or that `convert` makes of it; learned fields of the object are initial values."""
    kind = type(instance)
    if _has_class_init(kind):
        _check_class(flag, kind, base)
        return PartWithInitialValues(
            kind, {field.name: getattr(instance, field.name) for field in dataclasses.fields(kind)}
        )
    if isinstance(instance, PartInitializer):
        return instance
    if not (isinstance(instance, base) or callable(instance)):
        raise InputError(f"{flag} must be a {base.__name__.lower()}, got {instance!r}")
    converted = instance if isinstance(instance, base) else convert(instance)
    _check_class(flag, type(converted), base)
    return ConstantPart(converted)


def _has_class_init(kind: type) -> bool:
    """Whether `init` is a method of the class, which draws the fields of its objects."""
    return isinstance(inspect.getattr_static(kind, "init", None), classmethod | staticmethod)


def _has_instance_init(kind: type) -> bool:
    """Whether `init` is a method of the objects, which hold the initial values; that of a Flax module is another."""
    return hasattr(kind, "init") and not _has_class_init(kind) and not issubclass(kind, nn.Module)


def _check_class(flag: str, kind: type, base: type):
    """Raise InputError unless a class is a dataclass that inherits from `base` and whose objects are pytrees."""
    if not issubclass(kind, base):
        raise InputError(f"{flag} must be a class that inherits from {base.__module__}.{base.__name__}")
    if not (dataclasses.is_dataclass(kind) and is_registered(kind)):
        raise InputError(
            f"{flag} must be a dataclass with @pytree above @dataclass(frozen=True); the class {kind.__name__} is not"
        )


def _name_arguments(flag: str, kind: type, arguments: list) -> dict[str, Any]:
    """{field: argument}; the arguments are the first fields of a dataclass, which checks them if it needs no others."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    if len(arguments) > len(names):
        raise InputError(f"{flag} must have at most {len(names)} arguments, {', '.join(names)}; got {len(arguments)}")
    if len(arguments) == len(names):
        _call(flag, kind, [np.asarray(argument) for argument in arguments], Mask)
    return dict(zip(names, arguments))


def _call(flag: str, function: Callable, arguments, base: type) -> Any:
    """Call a class or a function. Raises InputError for arguments that it does not take."""
    try:
        inspect.signature(function).bind(*arguments)
    except ValueError:  # a function in C has no signature
        pass
    except TypeError as error:
        names = ", ".join(inspect.signature(function).parameters)
        name = flag.split()[1].partition("(")[0]
        is_missing, is_own = "missing" in str(error), ":" in name and base is not Mask
        hint = "give its arguments in parentheses, as literals, " if is_missing else "write "
        hint += f"{name}({names})"
        hint += f", or define {SIGNATURE}, which draws its learned parameters" if is_missing and is_own else ""
        raise InputError(f"{flag}: {error}: {hint}") from error
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"{flag}: {error}") from error


def _initial_value(drawn_part, name: str, value):
    """`value` with the shape and type that `init` has drawn for this field: a number also where `init` is traced, so
    that the part checks it."""
    like, is_traced = getattr(drawn_part, name), isinstance(value, jax.core.Tracer)
    try:
        with contextlib.nullcontext() if is_traced else jax.ensure_compile_time_eval():
            return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(like)), jnp.shape(like))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} of {type(drawn_part).__name__} cannot start at {value!r}: it must fit the shape {jnp.shape(like)}"
        ) from error


def shapes_of(draw: Callable, role: str):
    """Return the shapes of the part that `draw(rng)` returns; InputError if its `init` has another signature."""
    try:
        return jax.eval_shape(draw, jax.random.key(0))
    except TypeError as error:
        raise InputError(f"{role} must have {SIGNATURE} that returns one of its class: {error}") from error


def make_part(module: nn.Module, name: str, parsed: PartFactory, *widths: int):
    """Make a part in the setup of `module`; if it learns, its arrays are the parameter `name`, {field: array}.

    `widths` are those of `PartInitializer.init`.
    """
    if isinstance(parsed, ConstantPart):
        return parsed.value
    draw = lambda rng: parsed.init(rng, *widths)
    shapes = shapes_of(draw, f"the {name}")
    arrays = module.param(name, lambda rng: {child: getattr(draw(rng), child) for child in child_names(type(shapes))})
    return dataclasses.replace(shapes, **arrays)


def make_part_per_head(module: nn.Module, prefix: str, parsed: PartFactory, heads: int, size: int):
    """Make a part for each head, as one pytree whose leaves have a leading head axis, [heads, ...].

    If the part learns, each head draws its own for queries and keys of width `size`, and the array of each field is the
    parameter "{prefix}_{field}" of `module`; a constant part is repeated.
    """
    if isinstance(parsed, ConstantPart):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (heads, *jnp.shape(leaf))), parsed.value)

    def draw(rng):
        return jax.vmap(lambda rng: parsed.init(rng, size, size, size))(jax.random.split(rng, heads))

    shapes = shapes_of(draw, f"the {prefix}")
    parameter = lambda name: module.param(f"{prefix}_{name}", lambda rng: getattr(draw(rng), name))
    return dataclasses.replace(shapes, **{name: parameter(name) for name in child_names(type(shapes))})
