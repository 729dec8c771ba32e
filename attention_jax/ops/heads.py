"""Attention of many sequences and heads at once, for arrays in the order [batch, position, head, feature]."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend, check_offset, check_rules
from attention_jax.ops.biases import Bias
from attention_jax.ops.dispatch import Implementation
from attention_jax.ops.masks import Mask, as_mask
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Softmax, as_normalizer
from attention_jax.ops.scores import ScaledDot, Score
from attention_jax.ops.trees import as_tree


def attend_heads(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S G E"],
    value: Float[Array, "B S G V"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | None = None,
    mask: Mask | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    dropout: float = 0.0,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | Int[Array, " B"] | int = 0,
    return_log_sum_exp: bool = False,
    implementation: Implementation | None = None,
) -> Float[Array, "B T H V"] | tuple[Float[Array, "B T H V"], Float[Array, "B T H"]]:
    """`attend` for every sequence of a batch and every head, [B, T, H, V]; with `return_log_sum_exp` also [B, T, H].

    There may be fewer heads of keys and values than of queries: G must divide H, and the heads h of queries with the
    same h // (H / G) share one (grouped queries, Ainslie et al. 2023; G = 1 is Shazeer 2019's multi-query attention).
    Keys and values are not repeated in memory.

    Leaves of `score`, `bias` and `normalizer` that are single numbers are shared by all heads; of all others the first
    axis is H. Leaves of `mask` that are single numbers are shared by the batch; of all others the first axis is B.
    `query_offset`, the position of the first query, is a number or one for each sequence, [B].

    >>> query, key = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 6, 2, 8))
    >>> attend_heads(query, key, key, normalizer=Softmax(sink=jnp.zeros(4))).shape
    (2, 5, 4, 8)
    """
    query, key, value = map(jnp.asarray, (query, key, value))
    shapes = f"query {query.shape}, key {key.shape} and value {value.shape}"
    if not query.ndim == key.ndim == value.ndim == 4 or not query.shape[0] == key.shape[0] == value.shape[0]:
        raise InputError(
            f"attend_heads needs query [B, T, H, D], key [B, S, G, E] and value [B, S, G, V], got {shapes}"
        )
    heads, groups = query.shape[2], key.shape[2]
    if value.shape[2] != groups or not groups or heads % groups:
        raise InputError(
            f"attend_heads needs as many heads of values as of keys, and a number that divides the heads of queries, "
            f"got {heads}, {groups} and {value.shape[2]} heads of queries, keys and values"
        )
    check_rules(score, bias, mask, normalizer)
    rules, structure = jax.tree.flatten((as_tree(score), as_tree(bias), as_normalizer(normalizer)))
    parts, mask_structure = jax.tree.flatten(as_mask(mask))
    offsets = _offsets(query_offset, query.shape[1])
    rules, parts = [jnp.asarray(x) for x in rules], [jnp.asarray(x) for x in parts]
    _check_axes("a leaf of score, bias or normalizer", rules, "heads", heads)
    _check_axes("a leaf of the mask", parts, "sequences", query.shape[0])
    _check_axes("query_offset", [] if offsets is None else [offsets], "sequences", query.shape[0])
    by_group = lambda x: x.reshape(groups, heads // groups, *x.shape[1:]) if x.ndim else x
    rngs = None if rng is None else jax.random.split(rng, (query.shape[0], groups, heads // groups))

    def one(query, key, value, rules, parts, rng, offset):
        score, bias, normalizer = jax.tree.unflatten(structure, rules)
        call = {"score": score, "bias": bias, "normalizer": normalizer, "implementation": implementation}
        call |= {"query_offset": query_offset if offset is None else offset, "return_log_sum_exp": return_log_sum_exp}
        mask = jax.tree.unflatten(mask_structure, parts)
        return attend(query, key, value, mask=mask, dropout=dropout, rng=rng, **call)

    leading = lambda leaves: [0 if x.ndim else None for x in leaves]
    over = jax.vmap(one, in_axes=(0, None, None, leading(rules), None, 0, None))  # the heads of one group
    over = jax.vmap(over, in_axes=(0, 0, 0, leading(rules), None, 0, None))
    over = jax.vmap(over, in_axes=(0, 0, 0, None, leading(parts), 0, 0))
    grouped = query.reshape(*query.shape[:2], groups, heads // groups, query.shape[3]).transpose(0, 2, 3, 1, 4)
    key, value = key.transpose(0, 2, 1, 3), value.transpose(0, 2, 1, 3)
    out = over(grouped, key, value, [by_group(x) for x in rules], parts, rngs, offsets)
    in_order = lambda x: jnp.moveaxis(x, 3, 1).reshape(*query.shape[:3], *x.shape[4:])  # x [B, G, H / G, T, ...]
    return jax.tree.map(in_order, out)


def _offsets(query_offset, queries):
    """Return the `query_offset` of each sequence in an array, or None if it is one for all."""
    if jnp.ndim(query_offset) != 1:
        return None
    if isinstance(query_offset, jax.core.Tracer):
        return query_offset
    return jnp.asarray([check_offset(x, queries) for x in query_offset], int)


def _check_axes(what, leaves, of, size):
    for x in leaves:
        if x.ndim and x.shape[0] != size:
            raise InputError(
                f"{what} must be a single number, or have one entry for each of {size} {of}, got {x.shape}"
            )
