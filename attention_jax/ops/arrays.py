"""Arrays in place of rules: a boolean array [Q, K] as a mask, a floating one as a bias. In attention by blocks, a block
of scores reads its slice of them.

Row i of an array is the i-th query of the call, also where `query_offset` is not 0; `masks.dense` is indexed by
position instead.
"""

from dataclasses import dataclass
from functools import reduce
from operator import and_

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.errors import InputError
from attention_jax.ops.biases import Bias
from attention_jax.ops.kernels.terms import Terms, terms_of_bias
from attention_jax.ops.masks import Mask, as_mask, is_broadcastable
from attention_jax.ops.trees import as_tree, pytree


@pytree
@dataclass(frozen=True)
class ArrayMask(Mask):
    """A boolean array [Q, K] over the queries and keys of a call; the first query is at position `first`."""

    allowed: Bool[Array, "Q K"]
    first: Int[Array, ""] | int

    def __call__(self, query_positions, key_positions):
        return _slice_block(self.allowed, query_positions - self.first, key_positions)


@pytree
@dataclass(frozen=True)
class ArrayBias(Bias):
    """An array [Q, K] that is added to the scores of a call; the first query is at position `first`."""

    added: Float[Array, "Q K"]
    first: Int[Array, ""] | int

    def __call__(self, query, query_positions, key_positions):
        return _slice_block(self.added, query_positions - self.first, key_positions)

    def terms(self, query_positions, key_positions, causal):
        one_row = self.added.shape[0] == 1
        return Terms(key_term=jnp.broadcast_to(self.added[0], key_positions.shape)) if one_row else None


@pytree
@dataclass(frozen=True)
class Sum(Bias):
    """The sum of several biases."""

    biases: tuple

    def __call__(self, query, query_positions, key_positions):
        return sum(bias(query, query_positions, key_positions) for bias in self.biases)

    def terms(self, query_positions, key_positions, causal):
        terms = [terms_of_bias(bias, query_positions, key_positions, causal) for bias in self.biases]
        return None if None in terms else [term for bias_terms in terms for term in bias_terms]


def _slice_block(array, rows, columns):
    """The slice of an array at consecutive rows [q] and columns [k], [q, k]; an axis of 1 is broadcast. As large as the
    array it is the array: a generated kernel gives a rule its block."""
    if array.shape == (rows.shape[0], columns.shape[0]):
        return array
    start = lambda n, at: at[0] if n > 1 and at.shape[0] else 0
    size = lambda n, at: at.shape[0] if n > 1 else n
    pairs = tuple(zip(array.shape, (rows, columns), strict=True))
    starts = [jnp.asarray(start(n, at), rows.dtype) for n, at in pairs]
    block = jax.lax.dynamic_slice(array, starts, [size(n, at) for n, at in pairs])
    return jnp.broadcast_to(block, (rows.shape[0], columns.shape[0]))


def is_array(rule) -> bool:
    """Whether a rule is given as an array of JAX or NumPy."""
    return isinstance(rule, jax.Array | np.ndarray)


def as_tuple(rule) -> tuple:
    """The masks or biases of a call as a tuple: a plain tuple itself, or (rule,) for a single one."""
    return rule if type(rule) is tuple else (rule,)


def as_rules(bias, mask, query: Float[Array, "Q D"], key: Float[Array, "K E"], query_offset):
    """(bias, mask) of a call as rules, of arrays [Q, K], of rules and of tuples of both; InputError for arrays of other
    shapes and types."""
    pairs = query.shape[0], key.shape[0]

    def as_rule(name, entry, kind, convert):
        if not is_array(entry):
            return convert(entry)
        check_type(name, entry)
        if entry.ndim != 2 or not is_broadcastable(entry.shape, pairs):
            raise InputError(
                f"{name} must be [Q, K] = {list(pairs)}, an axis of 1 is broadcast, got {list(entry.shape)}"
                + (": attend_heads takes [B, H, Q, K]" if entry.ndim > 2 else "")
            )
        return kind(jnp.asarray(entry), query_offset)

    biases = tuple(as_rule("bias", entry, ArrayBias, as_tree) for entry in as_tuple(bias) if entry is not None)
    masks = [as_rule("mask", entry, ArrayMask, as_mask) for entry in as_tuple(mask) if entry is not None]
    bias_sum = Sum(biases) if len(biases) > 1 else biases[0] if biases else None
    return bias_sum, reduce(and_, masks) if masks else None


def check_type(name: str, array):
    """Raise InputError for a mask that is not boolean, and for a bias that is not of a floating type."""
    if name == "mask" and array.dtype != bool:
        raise InputError(
            f"mask must be boolean, True = may attend, got {array.dtype} {list(array.shape)}: compare, as in x != 0, "
            "or pass numbers that are added to the scores as bias"
        )
    if name == "bias" and not jnp.issubdtype(array.dtype, jnp.floating):
        raise InputError(
            f"bias must be of a floating type, got {array.dtype} {list(array.shape)}: convert integers with "
            "x.astype(jnp.float32), and pass booleans as mask"
        )
    if name not in ("mask", "bias"):
        raise InputError(f"{name} must be a rule, got an array of shape {list(array.shape)}")


def squeeze_head_axes(name: str, array, batch: int, heads: int, pairs: tuple[int, int]) -> tuple[Array, str]:
    """Return an array [B or 1, H or 1, Q, K], [Q, K] or, for a bias, [H, Q, K] without leading axes of 1, and which
    axes it begins with: "", "b", "h" or "bh".

    >>> array, axes = squeeze_head_axes("mask", jnp.ones((2, 1, 5, 8), bool), 2, 4, (5, 8))
    >>> array.shape, axes
    ((2, 5, 8), 'b')
    """
    check_type(name, array)
    shapes = [("", pairs), ("bh", (batch, heads, *pairs))] + ([("h", (heads, *pairs))] if name == "bias" else [])
    matches = [axes for axes, shape in shapes if array.ndim == len(shape) and is_broadcastable(array.shape, shape)]
    if not matches:
        queries, keys = pairs
        head_shape = ", one for each head [H, Q, K]" if name == "bias" else ""
        raise InputError(
            f"{name} must be [Q, K] = [{queries}, {keys}]{head_shape} or [B, 1 or H, Q, K] = [{batch}, 1 or {heads}, "
            f"{queries}, {keys}], got {list(array.shape)}"
            + (": for one mask per sequence write mask[:, None]" if name == "mask" and array.ndim == 3 else "")
        )
    axes = matches[0]
    single = [i for i in range(len(axes)) if array.shape[i] == 1]
    return jnp.squeeze(jnp.asarray(array), single), "".join(a for i, a in enumerate(axes) if i not in single)
