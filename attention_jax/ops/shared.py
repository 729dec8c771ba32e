"""What the hypotheses of one sentence share while it is decoded: nobody has to copy or reorder it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax


class Shared(NamedTuple):
    """A part of a decoding cache that all hypotheses of a sentence read, such as the projected source.

    Its leaves lead with the B sentences; the leaves of the rest lead with the B k hypotheses.
    """

    value: Any


def map_own(function: Callable, cache: Any) -> Any:
    """`jax.tree.map(function, cache)`, in which everything that is `Shared` stays as it is.

    >>> map_own(lambda x: -x, {"state": 1, "memory": Shared(2)})
    {'memory': Shared(value=2), 'state': -1}
    """
    is_shared = lambda node: isinstance(node, Shared)
    return jax.tree.map(lambda node: node if is_shared(node) else function(node), cache, is_leaf=is_shared)
