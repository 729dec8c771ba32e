"""Parts of attention that options name, built in or by import path, with their learned arrays owned by a module.

A part is a dataclass registered by `pytree`. A class with `init(rng, query_width, key_width, hidden)` has learned
parameters, its fields; arguments in an option are the values at which the first of them start. A class without `init`
is made from its arguments, which are constants.
"""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from attention_jax.config.options import option_name, resolve_name
from attention_jax.errors import InputError
from attention_jax.ops.masks import Mask
from attention_jax.ops.trees import child_names, is_registered

SIGNATURE = "init(cls, rng, query_width, key_width, hidden)"


@dataclass(frozen=True)
class Started:
    """A part of the class `kind` that learns, with some `fields` set to other values than those of `init`."""

    kind: type
    fields: Mapping[str, Any]

    def init(self, rng, query_width: int, key_width: int, hidden: int):
        initial = self.kind.init(rng, query_width, key_width, hidden)
        learned = child_names(self.kind)
        start = {
            name: _start(initial, name, value) if name in learned else value for name, value in self.fields.items()
        }
        return dataclasses.replace(initial, **start)


def _start(initial, name: str, value):
    like = getattr(initial, name)
    try:
        return jnp.broadcast_to(jnp.asarray(value, jnp.result_type(like)), jnp.shape(like))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} of {type(initial).__name__} cannot start at {value!r}: it must fit the shape {jnp.shape(like)}"
        ) from error


def parse_part(
    option: str, value: str, names: Mapping[str, str], base: type, convert: Callable = lambda value: value
) -> Any:
    """What makes the part that `option` names: an object with `init` if the part learns, else a function without
    arguments. `convert` turns what is not of the class `base`, such as a plain function, into a part.

    Raises InputError for what is not such a part: of another class, without `pytree`, or with parameters that neither
    `init` nor arguments provide.
    """
    flag = f"{option_name(option, 'model')} {value}"
    target, arguments = resolve_name(value, names)
    kind = target if isinstance(target, type) else None
    starts = kind is not None and hasattr(kind, "init") and not _draws(kind) and not issubclass(kind, nn.Module)
    if kind is not None and not starts:  # the others draw a part from their own fields, as `Learned` does
        _check(flag, kind, base)
    if not callable(target):
        raise InputError(f"{option_name(option, 'model')} must be a {base.__name__.lower()}, got {value}")
    if kind is not None and _draws(kind):
        return kind if arguments is None else Started(kind, _fields(flag, kind, arguments))
    instance = target if kind is None and arguments is None else _call_with(flag, target, arguments or (), base)
    if hasattr(instance, "init") and _draws(type(instance)):  # what a function returns
        _check(flag, type(instance), base)
        return Started(
            type(instance), {field.name: getattr(instance, field.name) for field in dataclasses.fields(instance)}
        )
    if hasattr(instance, "init"):  # draws from its own fields
        return instance
    instance = instance if isinstance(instance, base) else convert(instance)
    _check(flag, type(instance), base)
    return lambda: instance


def _fields(flag: str, kind: type, arguments: list) -> dict[str, Any]:
    """Name the arguments: they are the first fields of a dataclass."""
    names = [field.name for field in dataclasses.fields(kind) if field.init]
    if len(arguments) > len(names):
        raise InputError(f"{flag} must have at most {len(names)} arguments, {', '.join(names)}; got {len(arguments)}")
    return dict(zip(names, arguments))


def _call_with(flag: str, function: Callable, arguments, base: type):
    try:
        return function(*arguments)
    except (TypeError, ValueError) as error:
        learns = "" if base is Mask else f", or define {SIGNATURE}, which draws its learned parameters"
        raise InputError(
            f"{flag} cannot be made ({error}): give its arguments in parentheses, as literals{learns}"
        ) from error


def _check(flag: str, kind: type, base: type):
    """Raise InputError unless a class is a dataclass that inherits from `base` and whose objects are pytrees."""
    if not issubclass(kind, base):
        raise InputError(f"{flag} must be a class that inherits from {base.__module__}.{base.__name__}")
    if not (dataclasses.is_dataclass(kind) and is_registered(kind)):
        raise InputError(
            f"{flag} must be a dataclass with @pytree above @dataclass(frozen=True); the class {kind.__name__} is not"
        )


def _draws(kind: type) -> bool:
    """Whether `init` is a method of the class, and not of objects that hold their start."""
    return isinstance(inspect.getattr_static(kind, "init", None), classmethod | staticmethod)


def shapes_of(draw: Callable, role: str):
    """Return the shapes of the part that `draw(rng)` returns; InputError if its `init` has another signature."""
    try:
        return jax.eval_shape(draw, jax.random.key(0))
    except TypeError as error:
        raise InputError(f"{role} must have {SIGNATURE} that returns one of its class: {error}") from error


def make_part(module: nn.Module, name: str, kind, *widths: int):
    """The part that `kind`, of `parse_part`, makes, with its arrays as the parameter `name` of `module`."""
    if not hasattr(kind, "init"):
        return kind()
    draw = lambda rng: kind.init(rng, *widths)
    shapes = shapes_of(draw, f"the {name}")
    arrays = module.param(name, lambda rng: {child: getattr(draw(rng), child) for child in child_names(type(shapes))})
    return dataclasses.replace(shapes, **arrays)


def make_part_per_head(module: nn.Module, prefix: str, kind, heads: int, size: int):
    """A pytree whose leaves lead with the heads: what `kind.init` draws for each, as parameters of `module`, or where
    it has none `kind()` for all."""
    if not hasattr(kind, "init"):
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (heads, *jnp.shape(leaf))), kind())

    def draw(rng):
        return jax.vmap(lambda rng: kind.init(rng, size, size, size))(jax.random.split(rng, heads))

    shapes = shapes_of(draw, f"the {prefix}")
    parameter = lambda name: module.param(f"{prefix}_{name}", lambda rng: getattr(draw(rng), name))
    return dataclasses.replace(shapes, **{name: parameter(name) for name in child_names(type(shapes))})
