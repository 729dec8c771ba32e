"""What replaces the activations of a call, as variables of the model: from {site: value} to the edits of its taps."""

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import zip_longest
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import unflatten_dict
from jaxtyping import Array, Bool, Float, Int

from attention_jax.errors import InputError
from attention_jax.interpret.sites import (
    Site,
    as_name_list,
    find_sites,
    heads_axis,
    positions_axis,
    select_sites,
    split_head,
)
from attention_jax.models.taps import SET, Edit
from attention_jax.ops.trees import pytree

Indices = Sequence[int] | int | None
INDEXED = ("heads", "positions", "keys", "rows")


@pytree
@dataclass(frozen=True)
class Part:
    """A replacement of an activation or a part of it: by a value, by a function of it, or by its sum with a value.

    `value` has the shape of the activation or is broadcast to it; with `adds` it is added, as to steer by a direction.

    It replaces the whole activation, or only some `heads`, `positions` (of queries, in scores and weights), `keys` (of
    these two) and `rows` of the batch, each one index or several, negative ones counted from the end, which of each
    text of a `Batch` is its own; and only where the boolean array `where`, broadcast to the whole shape, is true.

    >>> edge = {"decoder.23.scores": Part(-jnp.inf, heads=3, positions=-1, keys=9)}  # one edge of one head
    >>> edge["decoder.23.scores"].heads
    (3,)
    """

    value: Float[Array, "..."] | None = None
    where: Bool[Array, "..."] | None = None
    function: Callable | None = field(default=None, metadata={"static": True})
    adds: bool = field(default=False, metadata={"static": True})
    heads: Indices = field(default=None, metadata={"static": True})
    positions: Indices = field(default=None, metadata={"static": True})
    keys: Indices = field(default=None, metadata={"static": True})
    rows: Indices = field(default=None, metadata={"static": True})

    def __post_init__(self):
        for name in INDEXED:
            object.__setattr__(self, name, as_index_tuple(getattr(self, name)))


def as_index_tuple(indices: Indices) -> tuple[int, ...] | None:
    """Indices as a tuple; None means all. Raises InputError for what is not one or more integers."""
    if indices is None:
        return None
    values = tuple(indices) if isinstance(indices, Iterable) and np.ndim(indices) else (indices,)
    try:
        if not values or any(isinstance(i, bool | np.bool) for i in values):
            raise TypeError
        return tuple(operator.index(i) for i in values)
    except TypeError as error:
        raise InputError(
            "heads, positions, keys and rows are one or more integers, known when a call is traced, got "
            f"{indices!r}: a mask is Part(where=...)"
        ) from error


def as_count(value, least: int, message: str) -> int:
    """`value` as an int; InputError with `message` for what is no integer, or below `least`.

    >>> as_count(np.int8(2), 1, "steps is a number")
    2
    """
    try:
        if isinstance(value, bool) or operator.index(value) < least:
            raise TypeError
        return operator.index(value)
    except TypeError as error:
        raise InputError(f"{message}, got {value!r}") from error


def expand_names(sites: Mapping[str, Any], names: str | Iterable[str]) -> list[str]:
    """Expand names and patterns to the names of sites, and of heads in the short form, each once."""
    expanded: dict[str, None] = {}
    for name in as_name_list(names):
        site, head = (name, None) if name in sites else split_head(name)
        head_name = lambda site_name, head=head: (
            site_name if head is None else f"{site_name.removesuffix('_output')}.{head}"
        )
        expanded |= dict.fromkeys(head_name(site_name) for site_name in select_sites(sites, [site]))
    return list(expanded)


def select_head(name: str, x):
    """The activation x, or its slice for one head if `name` is the name of a head."""
    site, head = split_head(name)
    return x if head is None else x[:, :, normalize_index(name, "head", head, x.shape[heads_axis(site)])]


def normalize_index(name: str, axis_name: str, index: int, size: int) -> int:
    """An index counted from the start. Raises InputError for an index out of range."""
    if not -size <= index < size:
        raise InputError(f"{name} has {axis_name}s 0 to {size - 1} in this call, got {axis_name} {index}")
    return index % size


def edit_variables(
    sites: Mapping[str, Site], replacements: Mapping[str, Any], lengths: Int[Array, "B"] | None = None
) -> dict:
    """The variables of the collection "set" for what `run` is given: {module: {...: {tap: edits}}}. With the `lengths`
    of texts, negative positions are counted from the end of each.

    Raises InputError for what does not fit its site.
    """
    edits = _edits_by_path(sites, replacements, lengths)
    if lengths is not None and not isinstance(lengths, jax.core.Tracer):
        for name, spec in replacements.items():
            spec = spec if isinstance(spec, Part) else Part()
            for axis_name, indices in (("position", spec.positions), ("key", spec.keys)):
                for index in indices or ():
                    normalize_index(name, axis_name, index, int(np.min(lengths)))
    return unflatten_dict(edits)


def _edits_by_path(
    sites: Mapping[str, Site], replacements: Mapping[str, Any], lengths
) -> dict[tuple, tuple[Edit, ...]]:
    """{the path of a tap's variable: its edits}."""
    if not isinstance(replacements, Mapping):
        raise InputError(f"set is {{site: an array, a function or a Part}}, got a {type(replacements).__name__}")
    edits: dict[str, list[Edit]] = {name: [] for name in sites}
    for name, value in replacements.items():
        for site_name in expand_names(sites, name):
            site = split_head(site_name)[0]
            edits[site].append(_make_edit(site_name, sites[site], value, lengths))
    by_path: dict[tuple, dict] = {}  # {the path of a variable: {its layer, None if it has no axis of layers: edits}}
    for name, site in sites.items():
        by_path.setdefault(site.path, {})[site.layer] = edits[name]
    variable_edits = lambda layers: tuple(layers[None]) if None in layers else _stack_edits([*layers.values()])
    return {path: variable_edits(layers) for path, layers in by_path.items() if any(layers.values())}


@pytree
@dataclass(frozen=True)
class DecodingEdits:
    """The edits of a text that is written token by token with a KV cache: what a full pass over the text as far as it
    is written would replace, restricted to the positions that a call computes."""

    edits: tuple[tuple[Edit, ...], ...]
    taps: tuple[tuple[str, tuple[str, ...], int], ...] = field(metadata={"static": True})
    """Of each entry of `edits`: a site, the path of its variable, and the axis of the batch, after that of layers."""

    def of_prompt(self, width: int) -> dict:
        """The variables of the call that reads prompts of `width` tokens."""
        return self._variables(lambda name, batch, edit: _slice_edit(name, batch, edit, 0, width, width))

    def of_step(self, position: Int[Array, ""], width: int, row: Int[Array, ""]) -> dict:
        """The variables of the call that reads one token of a text of the batch at a position, with a cache of `width`
        positions."""

        def one_token(name, batch, edit):
            edit = jax.tree.map(lambda x: _slice_axis(x, batch, row, 1), edit)
            if edit.function is not None and _is_cached(name):  # positions behind this one have no activation
                written = (jnp.arange(width) <= position).reshape(*(1,) * (batch + 1), -1, 1, 1)  # [1, T, 1, 1]
                edit = replace(edit, where=written if edit.where is None else edit.where & written)
            return _slice_edit(name, batch, edit, position, 1, width)

        return self._variables(one_token)

    def _variables(self, at: Callable) -> dict:
        variables = {
            path: tuple(at(name, batch, edit) for edit in edits)
            for (name, path, batch), edits in zip(self.taps, self.edits, strict=True)
        }
        return {SET: unflatten_dict(variables)} if variables else {}


def decoding_edits(
    model: nn.Module, params, prompt: Int[Array, "B P"], lengths: Int[Array, "B"], length: int, set: Mapping[str, Any]
) -> DecodingEdits:
    """What `attention_jax.generate` takes as `edits`, for its prompts and the `length` of a continuation.

    `set` is that of `run`, for texts of P + `length` - 1 tokens; negative positions are counted from the end of each
    prompt, and arrays of the positions of a prompt, as those of `trace`, replace these.

    A function is called with the activations of one pass, [B, P, ...] of the prompts and then [B, 1, ...] of each new
    token (keys and values: of all tokens so far), so it has to treat each position by itself.
    """
    lengths = np.asarray(lengths)
    text = jax.ShapeDtypeStruct((prompt.shape[0], prompt.shape[1] + length - 1), jnp.int32)
    sites = find_sites(model, params, (text,))
    widths = {prompt.shape[1], *lengths.tolist()} if len(prompt) == 1 else {prompt.shape[1]}
    replacements = {
        site_name: _extend(site_name, sites[split_head(site_name)[0]], replacement, widths, lengths)
        for name, replacement in set.items()
        for site_name in expand_names(sites, name)
    }
    by_path = _edits_by_path(sites, replacements, lengths)
    names = {site.path: (name, int(site.layer is not None)) for name, site in sites.items()}
    return DecodingEdits(tuple(by_path.values()), tuple((names[path][0], path, names[path][1]) for path in by_path))


def _extend(name: str, site: Site, replacement, widths: set[int], lengths: Int[np.ndarray, "B"]):
    """A replacement whose array is of the positions of prompts, one of `widths`, as one of the tokens of these prompts
    in the whole text."""
    spec = replacement if isinstance(replacement, Part) else Part(replacement)
    if spec.value is None or callable(spec.value):
        return replacement
    axis = -3 if len(site.shape) == 4 and split_head(name)[1] is None else -2  # [B, T, H, E] or [B, T, D]
    size, width = jnp.shape(spec.value)[axis] if jnp.ndim(spec.value) >= -axis else 1, site.shape[1]
    if size not in widths or size in (1, width) or heads_axis(name) == 1:
        return replacement
    pad = lambda x: jnp.pad(x, [(0, width - size) if i == x.ndim + axis else (0, 0) for i in range(x.ndim)])
    in_prompt = (np.arange(width) < lengths[:, None]).reshape(-1, width, *(1,) * (-axis - 1))  # [B, T, 1 ...]
    where = jnp.asarray(in_prompt)
    if spec.where is not None:
        where &= _fit_shape(
            f"`where` of {name}", spec.where, (*where.shape[:2], *site.shape[axis + 1 :]), jnp.dtype(bool)
        )
    return replace(spec, value=pad(jnp.asarray(spec.value)), where=where)


def has_positions(replacements: Mapping[str, Any]) -> bool:
    """Whether an array of `replacements` may have values of their own for positions, so that it fits texts of one
    length only."""
    sizes = [
        jnp.shape(x) if name.endswith(("scores", "weights")) else jnp.shape(x)[:-1]  # theirs end with keys
        for name, replacement in replacements.items()
        for x in ((replacement.value, replacement.where) if isinstance(replacement, Part) else (replacement,))
        if x is not None and not callable(x)
    ]
    return any(np.prod(shape) > 1 for shape in sizes)


def _is_cached(name: str) -> bool:
    """Whether a site is that of keys or values, which a call has of all positions so far."""
    return name.rpartition(".")[2] in ("key", "value")


def _slice_edit(name: str, batch: int, edit: Edit, first, count: int, width: int) -> Edit:
    """An edit for `count` queries from the position `first` and the keys of the first `width` positions."""

    def restrict(x):
        axis = positions_axis(name, x.ndim - batch) + batch
        x = _slice_axis(x, axis, *((0, width) if _is_cached(name) else (first, count)))
        return _slice_axis(x, axis + 1, 0, width) if heads_axis(name) == 1 else x  # scores and weights: [B, H, Q, K]

    return jax.tree.map(restrict, edit)


def _slice_axis(x: Array, axis: int, first, count: int) -> Array:
    """`count` entries of an axis; an axis of one entry is broadcast, and stays."""
    return x if x.shape[axis] == 1 else jax.lax.dynamic_slice_in_dim(jnp.asarray(x), first, count, axis)


def _make_edit(name: str, site: Site, replacement, lengths=None) -> Edit:
    """The edit of a site by what is given for it or one of its heads; its arrays have all axes of the activation."""
    spec = (
        replacement
        if isinstance(replacement, Part)
        else Part(function=replacement)
        if callable(replacement)
        else Part(replacement)
    )
    if (spec.value is None) == (spec.function is None) or (spec.adds and spec.value is None):
        raise InputError(f"{name} needs an array or a function, or a Part with one of them; adds is of an array")
    site_name, head = split_head(name)
    shape = site.shape if head is None else site.shape[:2] + site.shape[3:]
    value, function = spec.value, spec.function
    if function is None:
        value = _fit_shape(name, value, shape, site.dtype, exact=spec is not replacement)
    else:
        _check_function(name, function, jax.ShapeDtypeStruct(shape, site.dtype))
    masks = [] if spec.where is None else [_fit_shape(f"`where` of {name}", spec.where, shape, jnp.dtype(bool))]
    axes = heads_axis(name), positions_axis(name, len(shape)), 3 if heads_axis(name) == 1 else None, 0
    for axis_name, axis in zip(INDEXED, axes, strict=True):
        indices = getattr(spec, axis_name)
        if indices is not None and axis_name in ("positions", "keys") and axis is not None and lengths is not None:
            masks.append(_position_mask(name, indices, axis, shape, lengths))
        elif indices is not None:
            masks.append(_index_mask(name, axis_name, indices, axis, shape))
    if head is not None:  # of all heads, true for one of them
        value, *masks = (x if x is None else x.reshape(*x.shape[:2], 1, -1) for x in (value, *masks))
        masks.append(_index_mask(site_name, "heads", (head,), heads_axis(site_name), site.shape))
        function = function and _HeadFunction(function, head)
    if site.layer is not None and not masks:  # of all layers, true for one of them
        masks.append(np.ones((1,) * len(site.shape), bool))
    return Edit(value, reduce(operator.and_, masks) if masks else None, function, spec.adds)


def _index_mask(name: str, axis_name: str, indices: Sequence[int], axis: int | None, shape) -> Bool[np.ndarray, "..."]:
    """True at some indices of an axis, with all axes of `shape`. Raises InputError for indices out of range."""
    if axis is None:
        raise InputError(f"{name} has no {axis_name}: its activation is {list(shape)}")
    mask = np.zeros(shape[axis], bool)
    mask[[normalize_index(name, axis_name[:-1], i, shape[axis]) for i in indices]] = True
    return mask.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def _position_mask(name: str, positions: tuple[int, ...], axis: int, shape, lengths) -> Bool[Array, "B ..."]:
    """True at some positions of each text, with all axes of `shape`. Raises InputError for one that a text has not."""
    if not isinstance(lengths, jax.core.Tracer):
        shortest = int(np.min(lengths))
        for position in positions:
            normalize_index(name, "position", position, shortest if position < 0 else shape[axis])
    positions = jnp.asarray(positions)[None]
    chosen = positions + jnp.where(positions < 0, jnp.asarray(lengths)[:, None], 0)  # [B, n]
    mask = (jnp.arange(shape[axis])[None, :, None] == chosen[:, None, :]).any(-1)  # [B, T]
    return mask.reshape([shape[0] if i == 0 else shape[axis] if i == axis else 1 for i in range(len(shape))])


@dataclass(frozen=True)
class _HeadFunction:
    """A function of the activation of one head as one of all of them, which other heads do not see."""

    function: Callable
    head: int

    def __call__(self, x):
        return jnp.expand_dims(self.function(x[:, :, self.head]), 2)


def _stack_edits(layers: Sequence[Sequence[Edit]]) -> tuple[Edit, ...]:
    """The edits of scanned layers, with a leading axis of layers: the first ones of all layers together, and so on."""
    stacked, kind = [], lambda edit: edit and (edit.function, edit.adds)
    for edits in zip_longest(*layers):
        for first_edit in {kind(edit): edit for edit in edits if edit}.values():
            no_edit = jax.tree.map(lambda x: np.zeros((1,) * x.ndim, x.dtype), first_edit)
            aligned = [edit if kind(edit) == kind(first_edit) else no_edit for edit in edits]
            stacked.append(jax.tree.map(lambda *rows: _stack_rows(rows), *aligned))
    return tuple(stacked)


def _stack_rows(rows: Sequence[Array]) -> Array:
    xp = np if all(isinstance(x, np.ndarray) for x in rows) else jnp  # which compiles nothing
    return xp.stack(xp.broadcast_arrays(*rows))


def _check_function(name: str, function: Callable, like: jax.ShapeDtypeStruct):
    output = raised = None
    try:
        output = jax.eval_shape(lambda x: jnp.asarray(function(x)), like)
        problem = f"got {list(output.shape)} {output.dtype}"
    except Exception as error:  # of a user's code: of any kind
        raised, problem = error, " ".join(f"but raised {type(error).__name__}: {error}".split())[:120]
    if output is None or output.shape != like.shape or not jnp.issubdtype(output.dtype, jnp.floating):
        message = f"the function for {name} must return an array of its shape, {list(like.shape)}, {problem}"
        raise InputError(message) from raised


def _fit_shape(name: str, x, shape, dtype, exact: bool = False) -> Array:
    """x with all axes of `shape`. Raises InputError unless it has this shape, or is broadcast to it if not `exact`."""
    is_float = jnp.issubdtype(dtype, jnp.floating)
    try:
        x = jnp.asarray(x)
        fits = x.shape == shape if exact else np.broadcast_shapes(x.shape, shape) == shape
    except (TypeError, ValueError):
        fits = False
    if not fits or not (jnp.issubdtype(x.dtype, jnp.floating) if is_float else x.dtype == dtype):
        received = f"{x.dtype} {list(x.shape)}" if isinstance(x, jax.Array) else f"a {type(x).__name__}"
        is_patch = is_float and isinstance(x, jax.Array) and x.ndim == len(shape) and x.shape[-1] == shape[-1]
        hint = ": patch between inputs of one shape, texts of one length" if is_patch else ""
        raise InputError(f"{name} is {dtype} {list(shape)} in this call, got {received}{hint}")
    return x.reshape((1,) * (len(shape) - x.ndim) + x.shape).astype(dtype)
