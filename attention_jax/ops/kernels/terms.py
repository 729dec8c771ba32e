"""Standard attention in disguise: scores and biases as dot products, for kernels that compute nothing else.

A term of the query alone cancels in the softmax of its row, and a term of the key alone is the product of one more
feature of the key with a constant feature of the query. With a scale s, a term a_i of the query and b_j of the key,

    s q_i . k_j + a_i + b_j    and    s [q_i, 1] . [k_j, b_j / s]

have the same weights. Squared distances, Gaussian kernels, ALiBi under a causal mask and every bias of the key alone
are such products, and an attention sink is one more key, whose value is zero. Their gradients are those of the product,
by ordinary differentiation.

Kernels take features in half precision and sum products in float32; they round gradients to half precision, those of
the logits (dS in FlashAttention) included. Hence

* a number in float32 is given in several parts in the array's type, each the rounding error of those before it, whose
  sum is the number (Dekker 1971). All parts have one cotangent, which one of them carries;
* a parameter c of a term c b_j (a slope, a width, a sink) is a feature of the queries and b_j one of the keys. Its
  gradient is then a sum over queries of sum_j dL/dlogits_ij b_j, in which what all b_j have in common cancels before
  it is rounded. As a feature of the keys, c b_j would have the rounded sum over queries first;
* a_i is a feature of the queries whose value is 0 and whose gradient is that of a_i: sum_j dS_ij, which is 0 only
  before dS is rounded. With it, the gradient of a slope is the sum of dS_ij (j - i), and not that of large positions.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.masks import Causal, Mask, split_mask
from attention_jax.ops.trees import describes_call

FACTORS = 2.0**5, 1.0, 2.0**-5
"""Constant features of a query: what the three parts of a key's term are divided by, so that float16 holds them."""

LARGEST = 128
"""Features, those of the terms included, up to which features in float32 are given in two parts. Where only a few
exceed it, as 7 of 64 beside the terms of a Gaussian of learned width, the last have one part."""


class Terms(NamedTuple):
    """logits_ij = scale * query_i . key_j + factor * (key_term_j + query_term_i).

    Features are arrays of the type of the call's queries and keys, or in float32 if they have more digits. `scale` is a
    Python number other than 0; `factor` is a parameter, one number. A bias has no features. None is 0: the term of the
    query cancels in a softmax, but not beside a sink, nor do its digits in gradients.

    >>> Terms(jnp.ones((1, 2)), jnp.ones((3, 2)), scale=0.5).key_term is None
    True
    """

    query: Float[Array, "Q F"] | None = None
    key: Float[Array, "K F"] | None = None
    key_term: Float[Array, " K"] | None = None
    query_term: Float[Array, " Q"] | None = None
    factor: Float[Array, ""] | float | None = None
    scale: float = 1.0


class Product(NamedTuple):
    """A call as a kernel computes it: softmax(scale query . key, where=mask) value, of one head size H."""

    query: Float[Array, "Q H"]
    key: Float[Array, "K H"]
    value: Float[Array, "K H"]
    scale: float
    attended: Bool[Array, " Q"] | None
    """False for queries all of whose keys have the bias -inf; None without a bias."""


def as_product(query, key, value, score, bias, mask, sink=None) -> Product:
    """Return the call as a product, whose head size is a multiple of 8.

    A sink is a key before all others, and under a causal mask there is a query before all others, too, so that the
    diagonal stays where it is. The output has one row more then, and at least as many features as the values.
    """
    dtype, queries = value.dtype, query.shape[0]
    # 1. logits_ij = s q_i . k_j + sum of c (b_j + a_i), with terms b_j of the keys [K] and a_i of the queries [Q]
    terms, *added = terms_of(query, key, score, bias, mask)
    with_term = [x for x in (terms, *added) if x.key_term is not None]
    attended = has_finite_bias(sum(x.key_term.astype(jnp.float32) for x in added), mask, queries) if added else None
    # 2. the sink is key 0: its other terms are 0, and one more term, sink * b_j, is b = (1, 0, ..., 0)
    if sink is not None:
        with_term = [x._replace(key_term=jnp.pad(x.key_term, (1, 0))) for x in with_term]
        is_sink = jnp.arange(1 + key.shape[0]) == 0
        with_term.append(Terms(key_term=is_sink.astype(jnp.float32), factor=sink))
        value, queries = jnp.pad(value, ((1, 0), (0, 0))), queries + is_causal(mask)
    # 3. each term c b_j is C more features, [Q, C] and [K, C], whose product is c b_j / s; all c a_i are one
    columns = [_columns(x, queries, terms.scale, dtype) for x in with_term]
    of_queries = [_times(x.query_term, x.factor) for x in (terms, *added) if x.query_term is not None]
    if of_queries:
        sizes = queries, value.shape[0]
        columns.append(_of_queries(sum(of_queries) / terms.scale, sink is not None, sizes, dtype))
    # 4. the score's own features in parts, zeros before them for the sink, then all side by side: [Q, H], [K, H]
    query, key = _in_parts(terms, dtype, LARGEST - sum(of_query.shape[1] for of_query, _ in columns))
    query, key = (jnp.pad(x, ((n - x.shape[0], 0), (0, 0))) for x, n in ((query, queries), (key, value.shape[0])))
    query, key = (jnp.concatenate(side, axis=1) for side in zip((query, key), *columns))
    size = -(-max(query.shape[1], value.shape[1]) // 8) * 8
    query, key, value = (jnp.pad(x, ((0, 0), (0, size - x.shape[1]))) for x in (query, key, value))
    return Product(query, key, value, terms.scale, attended)


def terms_of(query, key, score, bias, mask) -> list[Terms] | None:
    """Return the terms of a score and of the biases that are added to it; None where they are not a product."""
    terms = score.terms(query, key) if describes_call(score, "terms") else None
    if terms is None or terms.query.shape[1] != terms.key.shape[1]:  # which the score itself refuses
        return None
    positions = jnp.arange(query.shape[0]), jnp.arange(key.shape[0])
    added = [] if bias is None else terms_of_bias(bias, *positions, is_causal(mask))
    return None if added is None else [terms, *added]


def terms_of_bias(
    bias, query_positions: Int[Array, " Q"], key_positions: Int[Array, " K"], causal: bool
) -> list[Terms] | None:
    """Return the terms of a bias, of several for a sum; None if it depends on the query."""
    terms = bias.terms(query_positions, key_positions, causal) if describes_call(bias, "terms") else None
    return [terms] if isinstance(terms, Terms) else terms


def is_causal(mask: Mask | None) -> bool:
    return any(type(rule) is Causal for rule in split_mask(mask))


def has_finite_bias(key_term, mask: Mask | None, queries: int) -> Bool[Array, " Q"]:
    """Whether a key that a query may attend to has a term other than -inf. The mask allows an interval of keys."""
    keys, positions = key_term.shape[0], jnp.arange(queries)
    start, stop = (0, keys) if mask is None else mask.key_range(positions, positions)
    # finite terms in start..stop, a difference of running counts: the mask [Q, K] is never evaluated
    count = jnp.pad(jnp.cumsum(key_term != -jnp.inf), (1, 0))  # [K + 1], of the keys before each
    count_before = lambda position: count[jnp.clip(jnp.broadcast_to(position, (queries,)), 0, keys)]
    return count_before(stop) > count_before(start)


def hide(key: Float[Array, "K E"], is_real: Bool[Array, " K"]) -> Float[Array, "K E"]:
    """Keys of which those that no query may attend to are copies of the first, finite and without gradient: they change
    nothing that is computed of all keys, such as their range."""
    first = lax.stop_gradient(jnp.where(jnp.isfinite(key[:1]), key[:1], jnp.ones_like(key[:1])))
    return jnp.where(is_real[:, None], key, first)


def _in_parts(terms: Terms, dtype, most: int) -> tuple[Array, Array]:
    """The features of query and key in `dtype`: (high + low) . key = high . key + low . key. The last low
    parts are left out where there would be more than `most` features."""
    # from the largest product to the smallest: high . high, high . low, low . high, low . low, of F features each
    pairs = [(q, k) for q in _two_parts(terms.query, dtype) for k in _two_parts(terms.key, dtype)]
    size = max(most, terms.query.shape[1])
    query, key = (jnp.concatenate(side, axis=1)[:, :size] for side in zip(*pairs, strict=True))
    return query, key


def _columns(terms: Terms, queries: int, scale: float, dtype) -> tuple[Float[Array, "Q C"], Float[Array, "K C"]]:
    """Features of the queries and of the keys whose product is factor * key_term / scale."""
    term = terms.key_term.astype(jnp.float32) / scale
    # sum_p C_p (b_j / s)_p with the constants C_p of `FACTORS` as features of the query: 3 columns; a learned factor c
    # is in parts of its own, and the columns are all pairs (part of c) C_p . (b_j / s)_p
    if terms.factor is None or isinstance(terms.factor, int | float):
        term, of_query = _times(term, terms.factor), [jnp.ones(queries, dtype)]
    else:
        largest = _limit(dtype) / FACTORS[0] ** 2
        factor = jnp.clip(jnp.asarray(terms.factor, jnp.float32), -largest, largest)
        of_query = _two_parts(jnp.broadcast_to(factor, queries), dtype)  # whose gradients are summed in float32
    of_query = [(x.astype(jnp.float32) * constant).astype(dtype) for x in of_query for constant in FACTORS]
    of_key = three_parts(term, dtype)
    return jnp.stack(of_query, axis=1), jnp.stack(of_key * (len(of_query) // len(of_key)), axis=1)


def _of_queries(term: Float[Array, " Q"], sink: bool, rows: tuple[int, int], dtype):
    """Features whose product is a term of the queries, with all keys but a sink; without a sink, which other keys
    compete with, one feature whose value is 0 and whose gradient is that of the term."""
    if sink:
        of_query, constants = jnp.stack(three_parts(term, dtype), axis=1), FACTORS
    else:  # a - a with the second held constant: 0, with the derivative 1
        value = jnp.where(jnp.isfinite(term), term - lax.stop_gradient(term), 0.0)
        of_query, constants = value.astype(dtype)[:, None], (1.0,)
    of_key = jnp.broadcast_to(jnp.asarray(constants, dtype), (rows[1] - int(sink), len(constants)))
    return tuple(jnp.pad(x, ((n - x.shape[0], 0), (0, 0))) for x, n in zip((of_query, of_key), rows, strict=True))


def _times(term, factor):
    term = term.astype(jnp.float32)
    return term if factor is None else term * jnp.asarray(factor, jnp.float32)


def _two_parts(x, dtype) -> list:
    if x.dtype == dtype:
        return [x]
    high = round_to(x, dtype)  # x = high + low
    return [high, round_to(lax.stop_gradient(x - high.astype(x.dtype)), dtype)]


def _limit(dtype) -> float:
    """The largest number that has three parts."""
    return min(FACTORS[0] / 2 * float(jnp.finfo(dtype).max), 1e30)


def three_parts(term: Float[Array, " N"], dtype) -> tuple[Array, Array, Array]:
    """Three parts of a term in `dtype`, whose product with `FACTORS` is the term; the second carries the gradient. -inf
    is the lowest number in range, whose weight is 0."""
    term, (large, _, small) = jnp.clip(term, -_limit(dtype), _limit(dtype)), FACTORS
    # term = large * high + middle + small * low, each the rounding error of the sum before it
    high = round_to(lax.stop_gradient(term) / large, dtype)
    remainder = term - high.astype(term.dtype) * large
    middle = round_to(remainder, dtype)
    low = round_to(lax.stop_gradient(remainder - middle.astype(term.dtype)) / small, dtype)
    return high, middle, low


def round_to(x, dtype):
    """`x.astype(dtype)`, which XLA may not leave out: it takes a float32 for its own rounding elsewhere."""
    kind = jnp.finfo(dtype)
    return lax.reduce_precision(x, exponent_bits=kind.nexp, mantissa_bits=kind.nmant).astype(dtype)


def not_a_product(call) -> str | None:
    """Return why a call in half precision, `dispatch.Call`, is no product for a kernel of any head size; None if it
    is."""
    query, key, value, score, bias, mask, dropout, *_ = call
    dtype, (keys, _), causal = value.dtype, key.shape, is_causal(mask)
    terms = jax.eval_shape(lambda query, key: terms_of(query, key, score, None, mask), query, key)
    if terms is None:
        return f"computes scores that say their terms, not {_name(score)}"
    positions = jnp.arange(query.shape[0]), jnp.arange(keys)
    added = [] if bias is None else jax.eval_shape(lambda: terms_of_bias(bias, *positions, causal))
    if added is None:
        return f"adds biases of the key alone, not {_name(bias)}" + ("" if causal else " without causal()")
    if dropout is not None:
        return "is used without dropout"
    longest = int(float(jnp.finfo(dtype).eps) * 2**22)
    if added and keys > longest:
        return f"adds a bias exactly to {longest:,} keys in {dtype}, got {keys:,}"
    [terms] = terms
    in_parts = (1 + (terms.query.dtype != dtype)) * (1 + (terms.key.dtype != dtype))
    features = terms.query.shape[1] * in_parts
    if in_parts > 1 and features > LARGEST:
        return f"needs {_name(score)} in {in_parts} parts in {dtype}, up to {LARGEST} features, got {features}"
    return None


def _name(rule) -> str:
    return getattr(rule, "func", type(rule)).__name__
