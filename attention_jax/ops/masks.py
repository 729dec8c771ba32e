"""Attention masks: callable pytrees `mask(query_positions [Q], key_positions [K]) -> bool [Q, K]`; True = may attend.

Causal, padding (`lengths`), sliding-window, packing (`segments`) and array masks (`dense`). A mask is a function of
positions, not an array, so that attention in blocks never needs the whole matrix. Masks combine by `&` and `|`, with
each other and with plain functions of positions:

>>> import jax.numpy as jnp
>>> (causal() & lengths(2))(jnp.arange(3), jnp.arange(3)).astype(int).tolist()
[[1, 0, 0], [1, 1, 0], [1, 1, 0]]

A custom mask is a registered dataclass that inherits from `Mask` and defines `__call__`. It may also bound, for
consecutive queries, which keys any of them may attend to (`key_range`) and which all of them may (`unmasked_range`):
the fused `attend` then skips fully masked blocks and does not evaluate the mask in unmasked ones.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from attention_jax.errors import InputError
from attention_jax.ops.positions import as_positions, saturating_add
from attention_jax.ops.trees import as_tree, pytree, with_arrays

__all__ = ["Mask", "causal", "dense", "lengths", "segments", "sliding_window", "window"]

Interval = tuple[Array | int, Array | int]
"""Key positions k with first <= k < stop."""

EVERYWHERE = (0, int(np.iinfo(np.int32).max))
NOWHERE = (0, 0)


class Mask:
    """Base class of masks: which keys each query may attend to, as a function of positions.

    A subclass is a dataclass registered by `pytree` that defines `__call__`. It may bound `key_range` and
    `unmasked_range`, with which the fused `attend` skips fully masked blocks and evaluates the mask less often.

    >>> (causal() & window(1))(jnp.arange(3), jnp.arange(3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    def __init_subclass__(cls, **options):
        """A class that overrides `__call__` does not inherit the bounds of another mask."""
        super().__init_subclass__(**options)
        if "__call__" in vars(cls):
            for bounds in ("key_range", "unmasked_range"):
                setattr(cls, bounds, vars(cls).get(bounds, vars(Mask)[bounds]))

    def __call__(self, query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"]) -> Bool[Array, "Q K"]:
        raise NotImplementedError

    def key_range(self, first: Array | int, last: Array | int) -> Interval:
        """An interval that holds every key that any query in first..last (inclusive) may attend to."""
        return EVERYWHERE

    def unmasked_range(self, first: Array | int, last: Array | int) -> Interval:
        """An interval of keys that every query in first..last (inclusive) may attend to."""
        return NOWHERE

    def __and__(self, other: "Mask | Callable") -> "Mask":
        return Both(self, as_mask(other))

    def __rand__(self, other: Callable) -> "Mask":
        return Both(as_mask(other), self)

    def __or__(self, other: "Mask | Callable") -> "Mask":
        return Either(self, as_mask(other))

    def __ror__(self, other: Callable) -> "Mask":
        return Either(as_mask(other), self)


class AssumeFinite(Mask):
    """A mask over keys and values without NaN and infinity: `attend` then need not replace these in masked keys, which
    takes longer than the attention of one decoding step over its KV cache."""


@pytree
@dataclass(frozen=True)
class Causal(Mask):
    """Query q may attend to keys k <= q."""

    def __call__(self, query_positions, key_positions):
        return key_positions[None, :] <= query_positions[:, None]

    def key_range(self, first, last):
        return 0, saturating_add(last, 1)

    def unmasked_range(self, first, last):
        return 0, saturating_add(first, 1)


@pytree
@dataclass(frozen=True)
class Lengths(Mask):
    """Keys k < length: what follows is padding. `length` is an integer scalar, one per example once vmapped."""

    length: Int[Array, ""] | int

    def __call__(self, query_positions, key_positions):
        allowed = key_positions < as_positions(self.length)  # [K]
        return jnp.broadcast_to(allowed[None, :], (query_positions.shape[0], key_positions.shape[0]))

    def key_range(self, first, last):
        return 0, as_positions(self.length)

    def unmasked_range(self, first, last):
        return 0, as_positions(self.length)


@pytree
@dataclass(frozen=True)
class Window(Mask):
    """Keys at most `width` positions away, on both sides: |q - k| <= width, 2 * width + 1 keys. `width` is static."""

    width: int = field(metadata={"static": True})

    def __call__(self, query_positions, key_positions):
        return jnp.abs(query_positions[:, None] - key_positions[None, :]) <= self.width

    def key_range(self, first, last):
        return saturating_add(first, -self.width), saturating_add(last, self.width + 1)

    def unmasked_range(self, first, last):
        return saturating_add(last, -self.width), saturating_add(first, self.width + 1)


@pytree
@dataclass(frozen=True)
class Dense(Mask):
    """Any boolean matrix, indexed by position; positions outside of it may not be attended to."""

    allowed: Bool[Array, "Q K"]

    def __call__(self, query_positions, key_positions):
        index = query_positions[:, None], key_positions[None, :]
        allowed = jnp.asarray(self.allowed).at[index]
        return allowed.get(mode="fill", fill_value=False, wrap_negative_indices=False)


@pytree
@dataclass(frozen=True)
class Segments(Mask):
    """Keys of the query's own segment. Positions without an id are in no segment."""

    query_ids: Int[Array, " Q"]
    key_ids: Int[Array, " K"]

    def __call__(self, query_positions, key_positions):
        same = self.query_ids[query_positions][:, None] == self.key_ids[key_positions][None, :]
        has_id = _is_index(query_positions, self.query_ids), _is_index(key_positions, self.key_ids)
        return same & has_id[0][:, None] & has_id[1][None, :]

    def key_range(self, first, last):
        return self._keys_between(first, last)[:2]

    def unmasked_range(self, first, last):
        start, stop, is_segment = self._keys_between(first, last)
        return start, jnp.where(is_segment, stop, 0)

    @partial(jnp.vectorize, excluded=(0,))
    def _keys_between(self, first, last):
        """The interval of the keys whose ids are between the least and the greatest of the queries first..last, which
        is no longer than needed for ids in order; and whether it is of one segment alone, that of all these queries."""
        bounds = jnp.iinfo(self.query_ids.dtype)
        low, high = (self.query_ids.dtype.type(bound) for bound in (bounds.min, bounds.max))
        query, key = jnp.arange(len(self.query_ids)), jnp.arange(len(self.key_ids))
        is_asked = (first <= query) & (query <= last)
        least = jnp.where(is_asked, self.query_ids, high).min(initial=high)
        greatest = jnp.where(is_asked, self.query_ids, low).max(initial=low)
        is_between = (least <= self.key_ids) & (self.key_ids <= greatest)
        start = jnp.where(is_between, key, len(key)).min(initial=len(key))
        stop = jnp.where(is_between, key + 1, 0).max(initial=0)
        has_ids = _is_index(first, self.query_ids) & _is_index(last, self.query_ids)
        return start, stop, has_ids & (least == greatest) & (is_between.sum() == stop - start)


def _is_index(positions, array):
    return (positions >= 0) & (positions < len(array))


@pytree
@dataclass(frozen=True)
class Both(Mask):
    """`left & right`."""

    left: Mask
    right: Mask

    def __call__(self, query_positions, key_positions):
        return self.left(query_positions, key_positions) & self.right(query_positions, key_positions)

    def key_range(self, first, last):
        return _intersection(self.left.key_range(first, last), self.right.key_range(first, last))

    def unmasked_range(self, first, last):
        return _intersection(self.left.unmasked_range(first, last), self.right.unmasked_range(first, last))


@pytree
@dataclass(frozen=True)
class Either(Mask):
    """`left | right`."""

    left: Mask
    right: Mask

    def __call__(self, query_positions, key_positions):
        return self.left(query_positions, key_positions) | self.right(query_positions, key_positions)

    def key_range(self, first, last):
        (a, b), (c, d) = _pair(self.left.key_range(first, last), self.right.key_range(first, last))
        return jnp.minimum(a, c), jnp.maximum(b, d)

    def unmasked_range(self, first, last):  # the longer of the two: a union need not be an interval
        (a, b), (c, d) = _pair(self.left.unmasked_range(first, last), self.right.unmasked_range(first, last))
        longer = (b - a) >= (d - c)
        return jnp.where(longer, a, c), jnp.where(longer, b, d)


@pytree
@dataclass(frozen=True)
class Rule(Mask):
    """A plain function of positions as a mask."""

    allowed: Callable

    def __call__(self, query_positions, key_positions):
        allowed = self.allowed(query_positions, key_positions)
        expected_shape = (query_positions.shape[0], key_positions.shape[0])
        if not jnp.issubdtype(jnp.result_type(allowed), jnp.bool_):
            raise InputError(
                f"a mask must return booleans, True = may attend, got {jnp.result_type(allowed)}: compare, as in "
                "x != 0, or pass an additive mask as a bias"
            )
        if jnp.ndim(allowed) != 2 or not is_broadcastable(allowed.shape, expected_shape):
            raise InputError(
                f"a mask must return booleans [Q, K] = {list(expected_shape)}, got {list(jnp.shape(allowed))}: write "
                "positions as query_positions[:, None] and key_positions[None, :]"
            )
        return jnp.broadcast_to(allowed, expected_shape)


def is_broadcastable(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether an array of `shape` broadcasts to the shape `target`.

    >>> [is_broadcastable(shape, (5, 8)) for shape in ((8,), (5, 1), (5,), (1, 5, 8))]
    [True, True, False, False]
    """
    return len(shape) <= len(target) and all(size in (1, n) for size, n in zip(shape[::-1], target[::-1]))


def as_mask(mask: Mask | Callable | None) -> Mask | None:
    """Return `mask`, or a plain function of positions as one; None stays None. Raises InputError for anything else."""
    if mask is not None and not callable(mask):
        raise InputError(f"a mask must be callable, got {type(mask).__name__}: an array is a mask as dense(array)")
    return with_arrays(mask) if mask is None or isinstance(mask, Mask) else Rule(as_tree(mask))


def split_mask(mask: Mask | None) -> list[Mask]:
    """The masks that `&` combines.

    >>> [type(part).__name__ for part in split_mask(causal() & lengths(3))], split_mask(None)
    (['Causal', 'Lengths'], [])
    """
    if isinstance(mask, Both):
        return split_mask(mask.left) + split_mask(mask.right)
    return [] if mask is None else [mask]


def unsupported_mask_reason(mask: Mask | None, query, key, query_offset) -> str | None:
    """Why an implementation that knows causal() and lengths(n) alone cannot take this mask of queries [Q, D] and keys
    [K, E]; None if it can."""
    kinds = [type(rule) for rule in split_mask(mask)]
    if len(set(kinds)) < len(kinds) or not set(kinds) <= {Causal, Lengths}:
        return "knows no masks but causal(), lengths(n) and causal() & lengths(n)"
    if Causal in kinds and (query.shape[0] != key.shape[0] or not isinstance(query_offset, int) or query_offset):
        return "needs as many queries as keys and query_offset=0 for a causal mask"
    return None


def _intersection(left: Interval, right: Interval) -> Interval:
    (a, b), (c, d) = _pair(left, right)
    return jnp.maximum(a, c), jnp.minimum(b, d)


def _pair(left: Interval, right: Interval) -> tuple[Interval, Interval]:
    return tuple(map(as_positions, left)), tuple(map(as_positions, right))


def causal() -> Mask:
    """A causal mask: each query attends to its own position and to those before it.

    >>> causal()(jnp.arange(2), jnp.arange(2)).astype(int).tolist()
    [[1, 0], [1, 1]]
    """
    return Causal()


def lengths(length: Int[Array, ""] | int) -> Mask:
    """A padding mask: only the first `length` keys may be attended to.

    For a batch of lengths [B], vmap it: `jax.vmap(lambda q, k, v, n: attend(q, k, v, mask=lengths(n)))`. Raises
    InputError if it is not an integer.

    >>> lengths(2)(jnp.arange(1), jnp.arange(3)).astype(int).tolist()
    [[1, 1, 0]]
    """
    dtype = jnp.dtype(int) if isinstance(length, int) else jnp.result_type(length)
    if not jnp.issubdtype(dtype, jnp.integer):
        raise InputError(f"lengths needs a whole number of keys, got {dtype}")
    return Lengths(as_positions(length))


def window(width: int) -> Mask:
    """Keys at most `width` positions away on either side, so that a query attends to at most 2 * width + 1 keys.

    `sliding_window(n)` is the causal window of n keys.

    >>> window(1)(jnp.arange(3), jnp.arange(3)).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    if not isinstance(width, int | np.integer) or width < 0:
        raise InputError(f"window needs a whole number of positions >= 0, got {width!r}")
    return Window(min(int(width), 2**30))  # a sum of positions and widths stays an int32


def sliding_window(size: int) -> Mask:
    """Sliding-window attention to the last `size` keys: a query's own position and the `size - 1` before it (Mistral).

    The same as `causal() & window(size - 1)`.

    >>> sliding_window(2)(jnp.arange(3), jnp.arange(3)).astype(int).tolist()
    [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if not isinstance(size, int | np.integer) or size < 1:
        raise InputError(f"sliding_window needs a whole number of keys >= 1, got {size!r}")
    return causal() & window(size - 1)


def segments(query_ids: Int[Array, " Q"], key_ids: Int[Array, " K"]) -> Mask:
    """A mask for packed sequences: each query attends to the keys of its own segment.

    There is one id per position, any integer, also for padding. In blocks, ids in order, rising or falling, are
    the fastest. Raises InputError for ids that are not integers.

    >>> segments(jnp.array([0, 1, 1]), jnp.array([0, 0, 1]))(jnp.arange(3), jnp.arange(3)).astype(int).tolist()
    [[1, 1, 0], [0, 0, 1], [0, 0, 1]]
    """
    query_ids, key_ids = _narrow_ids(query_ids), _narrow_ids(key_ids)
    for ids in (query_ids, key_ids):
        if ids.ndim == 0 or not jnp.issubdtype(ids.dtype, jnp.integer):
            raise InputError(f"segments needs integer ids of every position, got {ids.dtype} of shape {ids.shape}")
    dtype = np.promote_types(query_ids.dtype, key_ids.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype or not np.issubdtype(dtype, np.integer):
        raise InputError(
            f"segments needs ids that JAX can compare, got {query_ids.dtype} and {key_ids.dtype}: convert both to int32"
        )
    return Segments(jnp.asarray(query_ids, dtype), jnp.asarray(key_ids, dtype))


def _narrow_ids(ids):
    """Return a NumPy array in JAX's type if that holds its numbers."""
    if not isinstance(ids, np.ndarray) or ids.dtype.kind not in "iu":
        return ids
    narrow = ids.astype(jax.dtypes.canonicalize_dtype(ids.dtype))
    return narrow if (narrow == ids).all() else ids


def dense(allowed: Bool[Array, "Q K"]) -> Mask:
    """A mask from a boolean matrix [Q, K], True = may attend; other shapes and types raise InputError.

    >>> dense(jnp.eye(2, dtype=bool))(jnp.arange(2), jnp.arange(2)).astype(int).tolist()
    [[1, 0], [0, 1]]
    """
    if allowed.ndim != 2 or allowed.dtype != bool:
        raise InputError(
            f"dense needs a boolean matrix [Q, K] (True = may attend), got {allowed.dtype} of shape {allowed.shape}"
        )
    return Dense(allowed)
