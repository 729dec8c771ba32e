"""What the hypotheses of one sentence share while it is decoded: nobody has to copy or reorder it.

A decoding cache is a pytree whose leaves lead with the k hypotheses of all B sentences, rows R = B k, hypotheses of one
sentence side by side. A beam search reorders it at every step. Two parts of it stay where they are, and lead with B:
what is `Shared`, and what is `Written`, in which every row finds its own by a table of its `ancestors`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Int

from attention_jax.ops.trees import pytree


class Shared(NamedTuple):
    """A part of a decoding cache that all hypotheses of a sentence read, such as the projected source."""

    value: Any


@pytree
@dataclasses.dataclass(frozen=True)
class Written:
    """What the hypotheses of a sentence have written, position by position, such as a decoder's keys: the k entries of
    position 0 along `axis`, then those of position 1, ...

    A hypothesis reads the entries of its `ancestors`, in place: when a beam search reorders its hypotheses, the table
    of small integers moves and the large entries do not.
    """

    value: Array
    axis: int = dataclasses.field(metadata={"static": True})

    def write(self, entries: Array, position: Int[Array, ""]) -> "Written":
        """The same with the k `entries` of one position, side by side along `axis`."""
        start = position * entries.shape[self.axis]
        value = lax.dynamic_update_slice_in_dim(self.value, entries.astype(self.value.dtype), start, self.axis)
        return dataclasses.replace(self, value=value)


def sign(ancestors: Int[Array, "R T"], position: Int[Array, ""], hypotheses: int) -> Int[Array, "R T"]:
    """Every hypothesis is its own ancestor at the position that it now writes."""
    number = jnp.arange(ancestors.shape[0], dtype=ancestors.dtype) % hypotheses
    return lax.dynamic_update_slice_in_dim(ancestors, number[:, None], position, 1)


def readable(ancestors: Int[Array, "R T"], position: Int[Array, ""], hypotheses: int) -> Bool[Array, "B k Tk"]:
    """Which of the T k entries that are `Written` each hypothesis reads: those of its ancestors up to `position`.

    >>> readable(jnp.array([[0, 0, 0], [0, 1, 0]]), 1, 2).astype(int).tolist()
    [[[1, 0, 1, 0, 0, 0], [1, 0, 0, 1, 0, 0]]]
    """
    rows, length = ancestors.shape
    entry = jnp.arange(length * hypotheses)
    own = jnp.repeat(ancestors, hypotheses, axis=1) == entry[None] % hypotheses
    return (own & (entry[None] // hypotheses <= position)).reshape(rows // hypotheses, hypotheses, -1)


def map_own(function: Callable, cache: Any) -> Any:
    """`jax.tree.map(function, cache)`, in which everything that is `Shared` or `Written` stays as it is.

    >>> map_own(lambda x: -x, {"state": 1, "memory": Shared(2)})
    {'memory': Shared(value=2), 'state': -1}
    """
    return _map(function, lambda stays: stays, cache)


def spread(cache: Any, hypotheses: int) -> Any:
    """The cache of B sentences, for `hypotheses` equal rows of each."""

    def make_room(stays):
        if isinstance(stays, Shared):
            return stays
        return dataclasses.replace(stays, value=jnp.repeat(stays.value, hypotheses, axis=stays.axis))

    return _map(lambda leaf: jnp.repeat(leaf, hypotheses, axis=0), make_room, cache)


def _map(own: Callable, stays: Callable, cache: Any) -> Any:
    """`own` of the leaves that move with their hypotheses, `stays` of every `Shared` and `Written`."""
    kept = lambda node: isinstance(node, Shared | Written)
    return jax.tree.map(lambda node: stays(node) if kept(node) else own(node), cache, is_leaf=kept)
