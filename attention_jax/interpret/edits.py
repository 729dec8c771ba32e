"""What replaces the activations of a call, as variables of the model: from {site: value} to the edits of its taps."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import Array, Bool, Float

from attention_jax.errors import InputError
from attention_jax.interpret.sites import Site, chosen, heads_axis, listed, of_head, positions_axis
from attention_jax.models.taps import Edit
from attention_jax.ops.trees import pytree

Indices = Sequence[int] | int | None
INDEXED = ("heads", "positions", "rows")


@pytree
@dataclass(frozen=True)
class Part:
    """A replacement of an activation or a part of it: by a value, by a function of it, or by its sum with a value.

    `value` has the shape of the activation or is broadcast to it; with `adds` it is added, as to steer by a direction.

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

    def __post_init__(self):
        for what in INDEXED:
            object.__setattr__(self, what, several(getattr(self, what)))


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
    """An index from the start. Raises InputError for one that is not there."""
    if not -size <= index < size:
        raise InputError(f"{name} has {what}s 0 to {size - 1} in this call, got {what} {index}")
    return index % size


def collection(found: Mapping[str, Site], given: Mapping[str, Any]) -> dict:
    """The variables of the collection "set" for what `run` is given: {module: {...: {tap: edits}}}.

    Raises InputError for what does not fit its site.
    """
    if not isinstance(given, Mapping):
        raise InputError(f"set is {{site: an array, a function or a Part}}, got a {type(given).__name__}")
    edits: dict[str, list[Edit]] = {name: [] for name in found}
    for name, value in given.items():
        for one in wanted(found, name):
            site = of_head(one)[0]
            edits[site].append(_edit(one, found[site], value))
    by_path: dict[tuple, dict] = {}  # {the path of a variable: {its layer, None if it has no axis of layers: edits}}
    for name, site in found.items():
        by_path.setdefault(site.path, {})[site.layer] = edits[name]
    of_variable = lambda layers: tuple(layers[None]) if None in layers else _stacked([*layers.values()])
    return unflatten_dict({path: of_variable(layers) for path, layers in by_path.items() if any(layers.values())})


def _edit(name: str, site: Site, given) -> Edit:
    """The edit of a site by what is given for it or one of its heads; its arrays have all axes of the activation."""
    part = given if isinstance(given, Part) else Part(function=given) if callable(given) else Part(given)
    if (part.value is None) == (part.function is None) or (part.adds and part.value is None):
        raise InputError(f"{name} needs an array or a function, or a Part with one of them; adds is of an array")
    whole, head = of_head(name)
    shape = site.shape if head is None else site.shape[:2] + site.shape[3:]
    value, function = part.value, part.function
    if function is None:
        value = _fitted(name, value, shape, site.dtype, exact=part is not given)
    else:
        _check_function(name, function, jax.ShapeDtypeStruct(shape, site.dtype))
    masks = [] if part.where is None else [_fitted(f"`where` of {name}", part.where, shape, jnp.dtype(bool))]
    for what, axis in zip(INDEXED, (heads_axis(name), positions_axis(name, len(shape)), 0), strict=True):
        if getattr(part, what) is not None:
            masks.append(_at(name, what, getattr(part, what), axis, shape))
    if head is not None:  # of all heads, true for one of them
        value, *masks = (x if x is None else x.reshape(*x.shape[:2], 1, -1) for x in (value, *masks))
        masks.append(_at(whole, "heads", (head,), heads_axis(whole), site.shape))
        function = function and _OfHead(function, head)
    if site.layer is not None and not masks:  # of all layers, true for one of them
        masks.append(np.ones((1,) * len(site.shape), bool))
    return Edit(value, reduce(operator.and_, masks) if masks else None, function, part.adds)


def _at(name: str, what: str, indices: Sequence[int], axis: int | None, shape) -> Bool[np.ndarray, "..."]:
    """True at some indices of an axis, with all axes of `shape`. Raises InputError for what is not there."""
    if axis is None:
        raise InputError(f"{name} has no {what}: its activation is {list(shape)}")
    places = np.zeros(shape[axis], bool)
    places[[index(name, what[:-1], i, shape[axis]) for i in indices]] = True
    return places.reshape([-1 if i == axis else 1 for i in range(len(shape))])


@dataclass(frozen=True)
class _OfHead:
    """A function of the activation of one head as one of all of them, which other heads do not see."""

    function: Callable
    head: int

    def __call__(self, x):
        return jnp.expand_dims(self.function(x[:, :, self.head]), 2)


def _stacked(layers: Sequence[Sequence[Edit]]) -> tuple[Edit, ...]:
    """The edits of scanned layers, with a leading axis of layers: the first ones of all layers together, and so on."""
    made, kind = [], lambda edit: edit and (edit.function, edit.adds)
    for edits in zip_longest(*layers):
        for one in {kind(edit): edit for edit in edits if edit}.values():
            none = jax.tree.map(lambda x: np.zeros((1,) * x.ndim, x.dtype), one)
            same = [edit if kind(edit) == kind(one) else none for edit in edits]
            made.append(jax.tree.map(lambda *rows: _rows(rows), *same))
    return tuple(made)


def _rows(rows: Sequence[Array]) -> Array:
    xp = np if all(isinstance(x, np.ndarray) for x in rows) else jnp  # which compiles nothing
    return xp.stack(xp.broadcast_arrays(*rows))


def _check_function(name: str, function: Callable, like: jax.ShapeDtypeStruct):
    made = raised = None
    try:
        made = jax.eval_shape(lambda x: jnp.asarray(function(x)), like)
        said = f"got {list(made.shape)} {made.dtype}"
    except Exception as error:  # of a user's code: of any kind
        raised, said = error, " ".join(f"but raised {type(error).__name__}: {error}".split())[:120]
    if made is None or made.shape != like.shape or not jnp.issubdtype(made.dtype, jnp.floating):
        needs = f"the function for {name} must return an array of its shape, {list(like.shape)}, {said}"
        raise InputError(needs) from raised


def _fitted(name: str, x, shape, dtype, exact: bool = False) -> Array:
    """x with all axes of `shape`. Raises InputError unless it has this shape, or is broadcast to it if not `exact`."""
    is_float = jnp.issubdtype(dtype, jnp.floating)
    try:
        x = jnp.asarray(x)
        fits = x.shape == shape if exact else np.broadcast_shapes(x.shape, shape) == shape
    except (TypeError, ValueError):
        fits = False
    if not fits or not (jnp.issubdtype(x.dtype, jnp.floating) if is_float else x.dtype == dtype):
        got = f"{x.dtype} {list(x.shape)}" if isinstance(x, jax.Array) else f"a {type(x).__name__}"
        hint = ": patch between inputs of one shape, texts of one length" if is_float else ""
        raise InputError(f"{name} is {dtype} {list(shape)} in this call, got {got}{hint}")
    return x.reshape((1,) * (len(shape) - x.ndim) + x.shape).astype(dtype)
