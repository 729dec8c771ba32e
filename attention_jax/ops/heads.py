"""Multi-head attention without parameters: `attend` over a batch and its heads. Grouped-query attention (GQA) and
multi-query attention (MQA) are fewer heads of keys and values than of queries.

`attend_heads` takes arrays [batch, position, head, feature] (BTHD), as `jax.nn.dot_product_attention` and Flax do;
`over_heads`, the lift over heads below it, [batch, head, position, feature] (BHTD), as the modules and their caches.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from attention_jax.errors import InputError
from attention_jax.ops.arrays import as_tuple, is_array, squeeze_head_axes
from attention_jax.ops.attention import Options, attend_head, attention_weights, check_offset, check_rules
from attention_jax.ops.biases import Bias
from attention_jax.ops.dispatch import Implementation
from attention_jax.ops.masks import Mask, as_mask
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Softmax, as_normalizer
from attention_jax.ops.pooling import Mean, Pool, as_pool
from attention_jax.ops.scores import ScaledDot, Score
from attention_jax.ops.trees import Closure, as_tree


@dataclass(frozen=True)
class PerSequence:
    """A rule of `attend_heads`, such as a bias that is computed from the inputs, whose leaves differ between sequences
    and heads: they lead with [B, H].

    >>> from attention_jax.ops.biases import Forget
    >>> from attention_jax.ops.masks import causal
    >>> gates, x = jnp.full((2, 3, 4), 0.5), jnp.ones((2, 4, 3, 8))  # of two sequences and three heads
    >>> forget = PerSequence(Forget(jnp.cumsum(jnp.log(gates), axis=2)))
    >>> attend_heads(x, x, x, bias=forget, mask=causal()).shape
    (2, 4, 3, 8)
    """

    rule: Bias | Mask


def attend_heads(
    query: Float[Array, "B T H D"],
    key: Float[Array, "B S G E"],
    value: Float[Array, "B S G V"],
    *,
    score: Score = ScaledDot(),
    bias: Bias | Float[Array, "..."] | tuple | None = None,
    mask: Mask | Bool[Array, "..."] | tuple | None = None,
    normalizer: Normalizer | Callable = Softmax(),
    pool: Pool = Mean(),
    dropout: Float[Array, ""] | float = 0.0,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | Int[Array, " B"] | int = 0,
    return_log_sum_exp: bool = False,
    return_statistics: bool = False,
    implementation: Implementation | None = None,
    block_q: int | None = None,
    block_k: int | None = None,
) -> Float[Array, "B T H V"] | tuple[Float[Array, "..."], ...]:
    """`attend` for every sequence of a batch and every head, [B, T, H, V]: multi-head, grouped- or multi-query.

    There may be fewer heads of keys and values than of queries: G must divide H, and the heads h of queries with the
    same h // (H / G) share one (grouped-query attention, GQA, Ainslie et al. 2023; G = 1 is the multi-query attention,
    MQA, of Shazeer 2019). Keys and values are not repeated in memory.

    Args (what is computed):
      query, key, value: [B, T, H, D], [B, S, G, E] and [B, S, G, V], of a floating type.
      score, normalizer, pool: as in `attend`. Leaves that are single numbers, and arrays that a function reads from the
        functions around it, are shared by all heads; the other leaves begin with an axis H.
      bias: the same, or `PerSequence(bias)`, whose leaves begin with [B, H]; or a floating array that is added to the
        scores: [T, S], [H, T, S] or [B, H, T, S]. A tuple of biases is their sum.
      mask: leaves that are single numbers are shared by the batch; the others begin with an axis B. Or a boolean array,
        True = may attend: [T, S] or [B, H, T, S]. Axes of such arrays may be 1. A tuple of masks allows what all of
        them allow, as in `mask=(causal(), array)`.
      dropout: as in `attend`.
      rng: as in `attend`, or a key for each sequence and head, [B, H].
      query_offset: the position of the first query, a number or one for each sequence, [B].

    Args (how, and what else is returned):
      implementation, block_q, block_k, return_log_sum_exp, return_statistics: as in `attend`.

    Returns:
      [B, T, H, V]; then log-sum-exp and `Statistics`, if requested, each [B, T, H].

    Raises:
      InputError: for what `attend` does not take, and for leaves and arrays of other shapes.

    >>> query, key = jnp.ones((2, 5, 4, 8)), jnp.ones((2, 6, 2, 8))
    >>> attend_heads(query, key, key, normalizer=Softmax(sink=jnp.zeros(4))).shape
    (2, 5, 4, 8)
    """
    query, key, value = map(jnp.asarray, (query, key, value))
    _check_shapes(query, key, value)
    rules = {"score": score, "bias": bias, "mask": mask, "normalizer": normalizer, "pool": pool}
    options = Options(implementation, block_q, block_k, return_log_sum_exp, return_statistics)
    by_head = (x.swapaxes(1, 2) for x in (query, key, value))  # [B, H, T, D], [B, G, S, E], [B, G, S, V]
    # [B, H, T, V], and [B, H, T] of the log-sum-exp and of statistics
    out = over_heads(partial(attend_head, options, dropout), *by_head, rules, rng, query_offset)
    return jax.tree.map(lambda x: x.swapaxes(1, 2), out)  # [B, T, H, V], [B, T, H]


def over_heads(
    function: Callable,
    query: Float[Array, "B H Q D"],
    key: Float[Array, "B G K E"],
    value: Float[Array, "B G K V"],
    rules: dict,
    rng: Key[Array, ""] | None = None,
    query_offset: Int[Array, ""] | Int[Array, " B"] | int = 0,
):
    """The lift of `attend_head` over heads: `function(query [Q, D], key [K, E], value [K, V], rules, rng,
    query_offset)` for every sequence and head, [B, H, ...].

    `rules` are score, bias, mask, normalizer and, for `attend_head`, pool, with the axes that `attend_heads` documents.
    Heads of queries that share keys and values are a further axis, [B, G, H / G, ...].
    """
    (batch, heads, queries), groups = query.shape[:3], key.shape[1]
    leaves, axes, structure = _with_axes(rules, batch, heads, (queries, key.shape[2]))
    offsets = _offsets(query_offset, queries)
    _check_axes("query_offset", [] if offsets is None else [offsets], "sequences", batch)
    rngs = rng if rng is None or _has_key_per_head(rng, batch, heads) else jax.random.split(rng, (batch, heads))

    query_offset = query_offset if offsets is None else offsets
    # for each vmap, the rules' axes: 0 or None for each leaf
    axes_over = lambda axis: jax.tree.unflatten(structure, [0 if axis in of_leaf else None for of_leaf in axes])
    if groups == heads:
        lifted = jax.vmap(function, in_axes=(0, 0, 0, axes_over("h"), 0, None))  # [H, Q, V]
    else:
        in_groups = lambda x, axis: x.reshape(*x.shape[:axis], groups, heads // groups, *x.shape[axis + 1 :])
        leaves = [in_groups(x, a.index("h")) if "h" in a else x for x, a in zip(leaves, axes, strict=True)]
        query, rngs = in_groups(query, 1), None if rngs is None else in_groups(rngs, 1)  # [B, G, H / G, Q, D]
        lifted = jax.vmap(function, in_axes=(0, None, None, axes_over("h"), 0, None))  # the heads of one group
        lifted = jax.vmap(lifted, in_axes=(0, 0, 0, axes_over("h"), 0, None))  # [G, H / G, Q, V]
    over_batch = (0, 0, 0, axes_over("b"), 0, None if offsets is None else 0)
    out = jax.vmap(lifted, in_axes=over_batch)(query, key, value, structure.unflatten(leaves), rngs, query_offset)
    return out if groups == heads else jax.tree.map(lambda x: x.reshape(batch, heads, *x.shape[3:]), out)


def head_weights(
    query: Float[Array, "B H Q D"], key: Float[Array, "B G K E"], rules: dict, query_offset=0
) -> Float[Array, "B H Q K"]:
    """The attention maps of all sequences and heads, by `rules` as in `over_heads`, without pool."""
    return over_heads(_attention_map, query, key, key, rules, query_offset=query_offset)


def _attention_map(query, key, value, rules, rng, query_offset):
    return attention_weights(query, key, **rules, query_offset=query_offset)


def _with_axes(rules, batch, heads, pairs):
    """The leaves of `rules`, which axes each begins with - "", "b", "h" or "bh" - and the structure of the tree."""
    single = lambda rule: rule.rule if isinstance(rule, PerSequence) else rule
    singles = {name: tuple(map(single, x)) if type(x) is tuple else single(x) for name, x in rules.items()}
    check_rules(*(singles[name] for name in ("score", "bias", "mask", "normalizer")))
    convert = {"score": as_tree, "bias": as_tree, "mask": as_mask, "normalizer": as_normalizer, "pool": as_pool}
    trees, axes = {}, {}
    for name, rule in rules.items():
        trees_and_axes = [_with_axes_of(name, entry, convert[name], batch, heads, pairs) for entry in as_tuple(rule)]
        trees[name], axes[name] = (tuple(x) for x in zip(*trees_and_axes)) if type(rule) is tuple else trees_and_axes[0]
    leaves, structure = jax.tree.flatten(trees)
    return leaves, jax.tree.leaves(axes), structure


def _with_axes_of(name, rule, convert, batch, heads, pairs):
    """One rule, or an array in its place, with the axes that each leaf begins with."""
    if is_array(rule):
        return squeeze_head_axes(name, rule, batch, heads, pairs)
    per_sequence = isinstance(rule, PerSequence)
    tree = jax.tree.map(jnp.asarray, convert(rule.rule if per_sequence else rule))
    is_closure = lambda node: isinstance(node, Closure)  # all sequences and heads share what a function captures
    leaves = [leaf for leaf in jax.tree.leaves(tree, is_leaf=is_closure) if not is_closure(leaf)]
    if per_sequence and any(leaf.shape[:2] != (batch, heads) for leaf in leaves):
        shapes = ", ".join(str(list(leaf.shape)) for leaf in leaves)
        raise InputError(
            f"a leaf of a {name} PerSequence must lead with sequences and heads, [{batch}, {heads}], got {shapes}"
        )
    unit, size, first = ("sequences", batch, "b") if name == "mask" else ("heads", heads, "h")
    if not per_sequence:
        _check_axes(f"a leaf of the {name}", leaves, unit, size)
    axes = lambda leaf: "bh" if per_sequence else first if leaf.ndim else ""
    of_node = lambda node: jax.tree.map(lambda leaf: "", node) if is_closure(node) else axes(node)
    return tree, jax.tree.map(of_node, tree, is_leaf=is_closure)


def _has_key_per_head(rng, batch, heads):
    """Whether there is a key for each sequence and head; InputError for keys of another shape."""
    if not jnp.issubdtype(rng.dtype, jax.dtypes.prng_key) or not rng.ndim:
        return False
    if rng.shape != (batch, heads):
        raise InputError(f"rng must be one key, or one for each sequence and head [{batch}, {heads}], got {rng.shape}")
    return True


def _check_shapes(query, key, value):
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


def _offsets(query_offset, queries):
    """Return the `query_offset` of each sequence in an array, or None if it is one for all."""
    if jnp.ndim(query_offset) != 1:
        return None
    if isinstance(query_offset, jax.core.Tracer):
        return query_offset
    return jnp.asarray([check_offset(x, queries) for x in query_offset], int)


def _check_axes(name, leaves, unit, size):
    for x in leaves:
        if x.ndim and x.shape[0] != size:
            raise InputError(
                f"{name} must be a single number, or have one entry for each of {size} {unit}, got {x.shape}"
            )
