"""What replaces the activations of a call, as variables of the model: from {site: value} to the edits of its taps."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from attention_jax.errors import InputError
from attention_jax.interpret.sites import Site, chosen, heads_axis, listed, of_head, positions_axis
from attention_jax.models.taps import Edit
from attention_jax.ops.trees import pytree

Indices = Sequence[int] | int | None


@pytree
@dataclass(frozen=True)
class Part:
    """A replacement of a part of an activation: a value, a function of it, or a value that is added to it.

    What replaces a part of an activation: `value`, of its shape or broadcast to it, `function` of it, or with
    `adds` its sum with `value`, as to steer by a direction.

    The part is all of it, or that of some `heads`, `positions` (of queries, in scores and weights) and `rows` of the
    batch, each a number or several, from the end if negative; and `where` a boolean array, broadcast to its shape, is
    true.
    """

    value: Float[Array, "..."] | None = None
    where: Bool[Array, "..."] | None = None
    function: Callable | None = field(default=None, metadata={"static": True})
    adds: bool = field(default=False, metadata={"static": True})
    heads: Indices = field(default=None, metadata={"static": True})
    positions: Indices = field(default=None, metadata={"static": True})
    rows: Indices = field(default=None, metadata={"static": True})


def several(indices: Indices) -> tuple[int, ...] | None:
    """Indices as a tuple; None means all. Raises InputError for what is not one or more integers."""
    if indices is None:
        return None
    given = tuple(indices) if isinstance(indices, Iterable) and np.ndim(indices) else (indices,)
    try:
        if not given or any(isinstance(i, bool | np.bool) for i in given):
            raise TypeError
        return tuple(operator.index(i) for i in given)
    except TypeError as error:
        raise InputError(
            f"heads, positions and rows are one or more integers, known when a call is traced, got {indices!r}: a mask "
            "is Part(where=...)"
        ) from error


def wanted(known: Mapping[str, Any], names: str | Iterable[str]) -> list[str]:
    """The names of sites, and of heads in the short form, that names and patterns name, each once."""
    wanted: dict[str, None] = {}
    for name in listed(names):
        site, head = (name, None) if name in known else of_head(name)
        short = lambda one, head=head: one if head is None else f"{one.removesuffix('_output')}.{head}"
        wanted |= dict.fromkeys(short(one) for one in chosen(known, [site]))
    return list(wanted)


def part_of(name: str, x):
    """An activation, or that of the head that the name of a head names."""
    site, head = of_head(name)
    return x if head is None else x[:, :, index(name, "head", head, x.shape[heads_axis(site)])]


def index(name: str, what: str, index: int, size: int) -> int:
    if not -size <= index < size:
        raise InputError(f"{name} has {what}s 0 to {size - 1} in this call, got {what} {index}")
    return index % size


def collection(found: Mapping[str, Site], given: Mapping[str, Any]) -> dict:
    """The variables of the collection "set" for what `run` is given: {module: {...: {tap: edits}}}."""
    if not isinstance(given, Mapping):
        raise InputError(f"set is {{site: an array, a function or a Part}}, got a {type(given).__name__}")
    by_path: dict[tuple, dict] = {}
    layers = {}
    for name, value in given.items():
        for one in wanted(found, name):
            site = found[of_head(one)[0]]
            layers[site.path] = site.layers
            by_path.setdefault(site.path, {}).setdefault(site.layer, []).append(_edit(one, site, value))
    tree: dict = {}
    for path, edits in by_path.items():
        inner = tree
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = tuple(edits[None]) if layers[path] is None else _stacked(edits, layers[path])
    return tree


def _edit(name: str, site: Site, given) -> Edit:
    """The edit of one site. Raises InputError for what does not fit its shape."""
    whole, head = of_head(name)
    if given is None:
        raise InputError(f"{name} takes an array, a function or a Part, got None")
    part = given if isinstance(given, Part) else Part(function=given) if callable(given) else Part(given)
    shape, axes = site.shape, len(site.shape)
    by_axis = [(heads_axis(whole), "head", part.heads if head is None else (head,))]
    by_axis += [(positions_axis(whole, axes), "position", part.positions), (0, "row", part.rows)]
    inner = shape if head is None else shape[:2] + shape[3:]
    where = None if part.where is None else _checked_where(name, part.where, inner)
    where = where if head is None or where is None else jnp.expand_dims(where, 2)
    for axis, what, indices in by_axis:
        if indices is None:
            continue
        if axis is None:
            raise InputError(f"{name} has no {what}s: its activation is {list(shape)}")
        one_hot = np.zeros(shape[axis], bool)
        one_hot[[index(name, what, i, shape[axis]) for i in several(indices)]] = True
        one_hot = one_hot.reshape([-1 if i == axis else 1 for i in range(axes)])
        where = one_hot if where is None else where & one_hot
    shape = inner
    if (part.value is None) == (part.function is None) or (part.adds and part.value is None):
        raise InputError(f"the Part for {name} needs a value or a function, not both, and adds is of a value")
    if part.function is not None:
        _check_function(name, part.function, jax.ShapeDtypeStruct(shape, site.dtype))
        return Edit(None, where, part.function if head is None else _OfHead(part.function, head))
    value = _array(name, part.value)
    _check_value(name, value, shape, exact=part is not given)
    value = _of_rank(value, len(shape))
    return Edit(value if head is None else jnp.expand_dims(value, 2), where, adds=part.adds)


def _array(name: str, value) -> Array:
    try:
        return jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} takes an array, a function or a Part, got a {type(value).__name__}") from error


def _checked_where(name: str, where, shape) -> Bool[Array, "..."]:
    """A mask with an axis for each of `shape`."""
    where = _array(name, where)
    if where.dtype != bool or not _broadcasts(where.shape, shape):
        raise InputError(
            f"`where` of {name} is boolean and broadcast to {list(shape)}, got {where.dtype} {list(where.shape)}"
        )
    return _of_rank(where, len(shape))


def _of_rank(x: Array, axes: int) -> Array:
    return x.reshape((1,) * (axes - x.ndim) + x.shape)


def _check_value(name: str, value, shape, exact: bool):
    fits = value.shape == shape if exact else _broadcasts(value.shape, shape)
    if not fits or not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(
            f"{name} is {list(shape)} in this call, got {value.dtype} {list(value.shape)}: patch between inputs of one "
            "shape, texts of one length"
        )


def _broadcasts(shape, to) -> bool:
    return len(shape) <= len(to) and all(a in (1, b) for a, b in zip(shape[::-1], to[::-1]))


@dataclass(frozen=True)
class _OfHead:
    """A function of the activation of one head as one of all of them, which other heads do not see."""

    function: Callable
    head: int

    def __call__(self, x):
        return jnp.expand_dims(self.function(x[:, :, self.head]), 2)


def _check_function(name: str, function: Callable, like: jax.ShapeDtypeStruct):
    try:
        made = jax.eval_shape(lambda x: jnp.asarray(function(x)), like)
        said = f"{list(made.shape)} {made.dtype}"
    except (TypeError, ValueError) as error:
        made, said = None, " ".join(str(error).split())[:120]
    if made is None or made.shape != like.shape or not jnp.issubdtype(made.dtype, jnp.floating):
        raise InputError(f"the function for {name} must return an array of its shape, {list(like.shape)}, got {said}")


def _stacked(by_layer: Mapping[int, list[Edit]], layers: int) -> tuple[Edit, ...]:
    """The edits of scanned layers, with a leading axis of layers; the n-th of each layer together."""
    made = []
    for n in range(max(map(len, by_layer.values()))):
        edits = {layer: ones[n] for layer, ones in by_layer.items() if n < len(ones)}
        for adds in (False, True):
            values = {i: edit for i, edit in edits.items() if edit.function is None and edit.adds == adds}
            if values:
                rows = _rows([edit.value for edit in values.values()], values, layers)
                made.append(Edit(rows, _where(values, layers), adds=adds))
        for function in dict.fromkeys(edit.function for edit in edits.values() if edit.function is not None):
            made.append(
                Edit(None, _where({i: e for i, e in edits.items() if e.function == function}, layers), function)
            )
    return tuple(made)


def _where(edits: Mapping[int, Edit], layers: int) -> Bool[Array, "L ..."]:
    """Where the edits of some layers apply, in all layers."""
    axes = max(getattr(x, "ndim", 0) for edit in edits.values() for x in (edit.where, edit.value))
    given = (np.ones((), bool) if edit.where is None else edit.where for edit in edits.values())
    return _rows([_of_rank(x, axes) for x in given], edits, layers)


def _rows(arrays: Sequence[Array], at: Iterable[int], layers: int) -> Array:
    """Arrays, broadcast to one shape, as rows `at` of an array of zeros for each layer."""
    xp = np if all(isinstance(x, np.ndarray) for x in arrays) else jnp  # which compiles nothing
    shape = np.broadcast_shapes(*(x.shape for x in arrays))
    rows = {i: xp.broadcast_to(x, shape) for i, x in zip(at, arrays, strict=True)}
    zeros = xp.zeros(shape, arrays[0].dtype)
    return xp.stack([rows.get(i, zeros) for i in range(layers)])
