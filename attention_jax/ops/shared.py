"""KV caches for which beam search reorders small integer tables instead of keys and values.

The leaves of a decoding cache have the k hypotheses of all B sentences as their leading axis, R = B k, with the
hypotheses of one sentence adjacent. Beam search reorders them at every step, except for two kinds of parts, whose
leading axis is B: `BeamInvariant`, equal for all hypotheses, and `BeamKVCache`, indexed by a table of ancestors.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from attention_jax.ops.trees import pytree


class BeamInvariant(NamedTuple):
    """A part of a decoding cache with leaves [B, ...] that all hypotheses of a sentence share, such as the source."""

    value: Any


@pytree
@dataclasses.dataclass(frozen=True)
class BeamKVCache:
    """The keys or values of all hypotheses of a sentence, [..., B, H, ., .]: along `axis`, counted from the end, the k
    entries of position 0, then those of position 1, ...

    A hypothesis attends to the entries of its ancestors. Reordering hypotheses changes only the table of their
    ancestors [R, T]; the entries are never moved.
    """

    value: Array
    axis: int = dataclasses.field(metadata={"static": True})
    layer: Int[Array, ""] | None = None
    """The layer that reads and writes, if `value` has a leading axis of layers, [L, B, H, ., .]."""

    @property
    def entries(self) -> Array:
        """What the layer reads, [B, H, ., .]."""
        return self.value if self.layer is None else lax.dynamic_index_in_dim(self.value, self.layer, keepdims=False)

    def write(self, entries: Array, position: Int[Array, ""]) -> "BeamKVCache":
        """Return a copy in which the k `entries` of one position are written along `axis`."""
        start, entries = position * entries.shape[self.axis], entries.astype(self.value.dtype)
        if self.layer is None:
            value = lax.dynamic_update_slice_in_dim(self.value, entries, start, self.axis)
        else:
            places = [self.layer, 0, 0, 0, 0]
            places[self.axis] = start
            value = lax.dynamic_update_slice(self.value, entries[None], [jnp.asarray(x, jnp.int32) for x in places])
        return dataclasses.replace(self, value=value)


def mark_self(ancestors: Int[Array, "R T"], position: Int[Array, ""], hypotheses: int) -> Int[Array, "R T"]:
    """Return the ancestor table with every hypothesis as its own ancestor at `position`, the one being written."""
    number = jnp.arange(ancestors.shape[0], dtype=ancestors.dtype) % hypotheses
    return lax.dynamic_update_slice_in_dim(ancestors, number[:, None], position, 1)


def ancestor_mask(ancestors: Int[Array, "R T"], position: Int[Array, ""], hypotheses: int) -> Bool[Array, "B k Tk"]:
    """Return the mask of the T k entries of a `BeamKVCache` that are ancestors of each hypothesis, up to `position`.

    >>> ancestor_mask(jnp.array([[0, 0, 0], [0, 1, 0]]), 1, 2).astype(int).tolist()
    [[[1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]]
    """
    rows, length = ancestors.shape
    entry = jnp.arange(length * hypotheses)
    is_ancestor = jnp.repeat(ancestors, hypotheses, axis=1) == entry[None] % hypotheses  # [R, T k]
    is_written = entry[None] // hypotheses <= position  # [1, T k]
    return (is_ancestor & is_written).reshape(rows // hypotheses, hypotheses, -1)  # [B, k, T k]


def map_per_hypothesis(function: Callable, cache: Any) -> Any:
    """Apply `jax.tree.map(function, cache)` to the leaves that differ between hypotheses.

    >>> map_per_hypothesis(lambda x: -x, {"state": 1, "memory": BeamInvariant(2)})
    {'memory': BeamInvariant(value=2), 'state': -1}
    """
    return _map(function, lambda entry: entry, cache)


def repeat_for_beams(cache: Any, hypotheses: int) -> Any:
    """Repeat the cache of B sentences for B * `hypotheses` equal hypotheses."""

    def resize(entry):
        if isinstance(entry, BeamInvariant):
            return entry
        return dataclasses.replace(entry, value=jnp.repeat(entry.value, hypotheses, axis=entry.axis))

    return _map(lambda leaf: jnp.repeat(leaf, hypotheses, axis=0), resize, cache)


def map_rows(function: Callable, cache: Any, *row_args: Array) -> tuple[Any, Any]:
    """Apply `function(row of the cache, *row of row_args) -> (output, row of the cache)` to each row: the outputs
    [B, ...] and the cache. To the function a row is a batch of one, so each is at a position of its own."""
    is_part = lambda node: isinstance(node, BeamKVCache)
    axes = jax.tree.map(
        lambda x: dataclasses.replace(x, value=x.value.ndim - 4) if is_part(x) else 0, cache, is_leaf=is_part
    )

    def edit(row, change):
        edit_leaf = lambda x: (
            dataclasses.replace(x, value=change(x.value, x.value.ndim)) if is_part(x) else change(x, None)
        )
        return jax.tree.map(edit_leaf, row, is_leaf=is_part)

    def run_row(row, *row_args):
        row = edit(row, lambda x, ndim: jnp.expand_dims(x, 0 if ndim is None else ndim - 3))
        output, row = function(row, *row_args)
        return output, edit(row, lambda x, ndim: jnp.squeeze(x, 0 if ndim is None else ndim - 4))

    return jax.vmap(run_row, in_axes=(axes, *(0 for _ in row_args)), out_axes=(0, axes))(cache, *row_args)


def where_rows(rows: Bool[Array, "B"], cache: Any, fallback: Any) -> Any:
    """The rows of `cache` where `rows` is True, else the rows of `fallback`."""

    def choose(x, y):
        if isinstance(x, BeamKVCache):
            return dataclasses.replace(x, value=_where(rows, x.value, y.value, x.value.ndim - 4))
        return _where(rows, x, y, 0)

    return jax.tree.map(choose, cache, fallback, is_leaf=lambda node: isinstance(node, BeamKVCache))


def _where(rows, x, y, axis: int):
    return jnp.where(rows.reshape(-1, *(1 for _ in x.shape[axis + 1 :])), x, y)


def _map(per_hypothesis: Callable, per_sentence: Callable, cache: Any) -> Any:
    in_place = lambda node: isinstance(node, BeamInvariant | BeamKVCache)
    return jax.tree.map(lambda x: per_sentence(x) if in_place(x) else per_hypothesis(x), cache, is_leaf=in_place)
