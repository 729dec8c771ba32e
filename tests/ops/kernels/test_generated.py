"""Generated kernels, by JAX's interpreter on a CPU, against definitions in float64 that are written here.

One table has every score with every normalizer; masks, biases, types, sizes and heads go along, so that each of their
pairs with a score or a normalizer occurs, too. Values and gradients of queries, keys, values and all parameters are as
close to float64 as rounding allows (tests/rounding.py).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import combinations, product
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial
from rounding import SCORES as FORMULAS, UNITS, in_type

from attention_jax import pytree
from attention_jax.errors import InputError
from attention_jax.ops import attention, biases, masks, normalizers, scores
from attention_jax.ops.attention import attend
from attention_jax.ops.blockwise import derivatives
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.kernels import generated

HEADS = 2


@pytest.fixture(autouse=True)
def _ranks_of_the_interpreter():
    """JAX's interpreter of kernels promotes ranks itself."""
    with jax.numpy_rank_promotion("allow"):
        yield


# --- the table: scores ------------------------------------------------------------------------------------------------


def soft_cap(cap, query, key):
    cap = jnp.asarray(cap, query.dtype)
    return cap * jnp.tanh(query @ key.T / cap)


def manhattan(query, key):
    return -jnp.abs(query[:, None] - key[None]).sum(-1)


def positive_features(query, key):
    """Linear attention (Katharopoulos et al. 2020), whose features are not 0 where a tile has more than a head."""
    return jnp.log((jax.nn.elu(query) + 1) @ (jax.nn.elu(key) + 1).T)


def gatv2(vector, query, key):
    return jax.nn.leaky_relu(query[:, None] + key[None], 0.2) @ vector.astype(query.dtype)


SCORES = {
    "Dot": lambda draw, d: scores.Dot(),
    "ScaledDot": lambda draw, d: scores.ScaledDot(),
    "Bilinear": lambda draw, d: scores.Bilinear(draw(d, d) / 4),
    "Additive": lambda draw, d: scores.Additive(draw(d, 6) / 2, draw(d, 6) / 2, draw(6)),
    "Concat": lambda draw, d: scores.Concat(draw(2 * d, 8) / 2, draw(8)),
    "LeakySum": lambda draw, d: scores.LeakySum(draw(d) / 2, draw(d) / 2, draw(), draw()),
    "Cosine": lambda draw, d: scores.Cosine(3 + draw() / 4),
    "QKNorm": lambda draw, d: scores.QKNorm(1 + draw(d) / 4, 1 + draw(d) / 4),
    "SoftCap": lambda draw, d: scores.SoftCap(2.0, scores.Dot()),
    "NegativeSquaredDistance": lambda draw, d: scores.NegativeSquaredDistance(),
    "Gaussian": lambda draw, d: scores.Gaussian(1.5 + draw() / 4),
    "Gaussian of 3 features": lambda draw, d: scores.Gaussian(0.7 + draw() / 8),
    "Boxcar": lambda draw, d: scores.Boxcar(1 + 0.2 * d + draw() / 8),
    "Triangular": lambda draw, d: scores.Triangular(1 + 0.3 * d + draw() / 8),
    "a function with a parameter": lambda draw, d: Partial(soft_cap, 2 + draw() / 4),
    "Constant": lambda draw, d: scores.Constant(),
    "positive features": lambda draw, d: positive_features,
    "L1": lambda draw, d: manhattan,
    "GATv2": lambda draw, d: Partial(gatv2, draw(d) / 2),
}
"""(draw(*shape) of normal numbers, head size) -> score."""


def _triangular(score, query, key):
    kernel = 1 - jnp.sqrt(jnp.sum((query[:, None] - key[None]) ** 2, axis=-1)) / score.width
    return jnp.where(kernel > 0, jnp.log(jnp.where(kernel > 0, kernel, 1.0)), -jnp.inf).astype(query.dtype)


FORMULAS = FORMULAS | {"SoftCap": lambda s, q, k: soft_cap(s.cap, q, k), "Triangular": _triangular}


def score_formula(score, query, key):
    by_class = FORMULAS.get(type(score).__name__)
    return score(query, key) if by_class is None else by_class(score, query, key)


# --- biases and masks -------------------------------------------------------------------------------------------------


def by_distance(table, query, query_positions, key_positions):
    """A parameter for each relative position from -4 to 4, those beyond sharing the last one."""
    return table[jnp.clip(query_positions[:, None] - key_positions[None, :], -4, 4) + 4]


def gates(sums, query, query_positions, key_positions):
    """The sums of the logarithms of gates up to each position (forgetting attention, Lin et al. 2025)."""
    return sums[query_positions][:, None] - sums[key_positions][None, :]


def waves(query, query_positions, key_positions):
    return jnp.cos((query_positions[:, None] - key_positions[None, :]).astype(jnp.float32) / 3)


BIASES = {
    "none": lambda draw, q, k: None,
    "ALiBi": lambda draw, q, k: biases.ALiBi(0.3 + draw() / 16),
    "T5Bias": lambda draw, q, k: biases.T5Bias(draw(8), 16),
    "array": lambda draw, q, k: draw(q, k),
    "row": lambda draw, q, k: draw(1, k),
    "a table": lambda draw, q, k: Partial(by_distance, draw(9)),
    "a function": lambda draw, q, k: waves,
    "a sum": lambda draw, q, k: (Partial(gates, draw(max(q, k))), draw(1, k)),
}


def bucket_of_t5(distance: int) -> int:
    """Of 8 buckets up to a distance of 16, in both directions (Raffel et al. 2020): 0, 1, 2 to 5 and 6 or more."""
    return (4 if distance > 0 else 0) + (np.abs(distance) >= np.array([1, 2, 6])).sum()


def bias_formula(bias, shape, dtype):
    """The formula of a bias, [Q, K]."""
    i, j = np.arange(shape[0])[:, None], np.arange(shape[1])[None, :]
    if bias is None:
        return jnp.zeros(shape, dtype)
    if isinstance(bias, tuple):
        return sum(bias_formula(summand, shape, dtype) for summand in bias)
    if isinstance(bias, biases.ALiBi):
        return -bias.slope * jnp.asarray(np.abs(i - j), dtype)
    if isinstance(bias, biases.T5Bias):
        return bias.table[np.vectorize(bucket_of_t5)(j - i)]
    if isinstance(bias, Partial):
        [leaf] = bias.args
        return leaf[i] - leaf[j] if bias.func is gates else leaf[np.clip(i - j, -4, 4) + 4]
    return jnp.asarray(np.cos((i - j) / 3), dtype) if bias is waves else jnp.broadcast_to(bias, shape)


def _sliding_window(draw, i, j):
    """Of 66 for 197 keys: before and after its blocks without masked pairs there are some with."""
    size = 1 + j.size // 3
    return masks.sliding_window(size), (j <= i) & (j > i - size)


def _lengths(draw, i, j):
    length = np.array([1 + 2 * j.size // 3, 0])  # the second head has no key
    return masks.Lengths(length), j < length[:, None, None]


def _segments(draw, i, j):
    """Two packed sequences and padding, of other lengths in each head."""
    ends = np.array([[0.3, 0.8], [0.5, 0.6]])[..., None]
    query_ids, key_ids = ((np.arange(x.size) / x.size >= ends).sum(axis=1) for x in (i, j))
    return masks.Segments(query_ids, key_ids), query_ids[:, :, None] == key_ids[:, None, :]


def _array(make):
    def mask(draw, i, j):
        allowed = draw(HEADS, i.size, j.size) > 0.5
        allowed[:, 1:2] = False  # a query that may attend to nothing
        return make(allowed), allowed

    return mask


def _both(draw, i, j):
    mask, allowed = _lengths(draw, i, j)
    return masks.causal() & mask, allowed & (j <= i)


MASKS = {
    "none": lambda draw, i, j: (None, i >= 0),
    "causal": lambda draw, i, j: (masks.causal(), j <= i),
    "sliding_window": _sliding_window,
    "lengths": _lengths,
    "causal & lengths": _both,
    "segments": _segments,
    "dense": _array(masks.Dense),
    "array": _array(lambda allowed: allowed),
    "window | lengths": lambda draw, i, j: (
        masks.window(3) | masks.Lengths(np.array([5, 40])),
        (np.abs(i - j) <= 3) | (j < np.array([5, 40])[:, None, None]),
    ),
    "a function": lambda draw, i, j: (lambda i, j: (i[:, None] + j[None, :]) % 3 < 2, (i + j) % 3 < 2),
}
"""(draw, positions [Q, 1] and [1, K]) -> the mask, whose leaves have an axis of heads, and its matrix [..., Q, K]."""


# --- normalizers ------------------------------------------------------------------------------------------------------


@pytree
@dataclass(frozen=True)
class Softplus(normalizers.Ratio):
    """A ratio of one's own, with a parameter in the function and one beside the sum."""

    sharpness: jax.Array
    unused: jax.Array

    def __call__(self, x):
        return jax.nn.softplus(self.sharpness.astype(x.dtype) * x)

    def extra(self):
        return self.unused.astype(jnp.float32)


NORMALIZERS = {
    "Softmax": lambda draw: normalizers.Softmax(),
    "Softmax with a sink": lambda draw: normalizers.Softmax(draw()),
    "StudentKernel": lambda draw: normalizers.StudentKernel(1.5 + draw() / 8),
    "Sigmoid": lambda draw: normalizers.Sigmoid(draw() / 2),
    "ReluPower": lambda draw: normalizers.ReluPower(2),
    "Signed": lambda draw: normalizers.Signed(),
    "a function": lambda draw: jnp.tanh,
    "CompactKernel": lambda draw: normalizers.CompactKernel(2),
    "a ratio": lambda draw: Softplus(1 + draw() / 8, 2 + draw() / 8),
    "Sparsemax": lambda draw: normalizers.Sparsemax(),
    "Entmax": lambda draw: normalizers.Entmax(1.5 + draw() / 16),
    "Normmax": lambda draw: normalizers.Normmax(2 + draw() / 8),
    "Budget": lambda draw: normalizers.Budget(2),
    "TopK": lambda draw: normalizers.TopK(5),
}


def where_allowed(function, x, allowed, instead=0.0):
    return jnp.where(allowed, function(jnp.where(allowed, x, instead)), 0.0)


def softmax(x, allowed, sink=None):
    top = jax.lax.stop_gradient(jnp.max(jnp.where(allowed, x, -jnp.inf), axis=1, keepdims=True))
    top = jnp.where(top == -jnp.inf, 0.0, top)
    mass = where_allowed(lambda x: jnp.exp(x - top), x, allowed)
    total = mass.sum(axis=1, keepdims=True) + (0.0 if sink is None else jnp.exp(sink - top))
    return mass / jnp.where(total == 0, 1.0, total)


def ratio(mass, unused=0.0):
    total = mass.sum(axis=1, keepdims=True) + unused
    return mass / jnp.where(total == 0, 1.0, total)


def largest(x, allowed, k):
    """Which keys are the k largest of their row."""
    last = jnp.sort(jnp.where(allowed, x, -jnp.inf), axis=1)[:, -min(k, x.shape[1])]
    return allowed & (x >= last[:, None])


def sparsemax(x, allowed):
    """By sorting (Martins & Astudillo 2016, algorithm 1)."""
    ordered = jnp.sort(jnp.where(allowed, x, -1e30), axis=1)[:, ::-1]
    place = jnp.arange(1, x.shape[1] + 1, dtype=x.dtype)[None]
    support = (1 + place * ordered > jnp.cumsum(ordered, axis=1)) & (ordered > -1e30)
    count = jnp.maximum(support.sum(axis=1), 1)
    threshold = (jnp.where(support, ordered, 0.0).sum(axis=1) - 1) / count.astype(x.dtype)
    return where_allowed(lambda x: jnp.maximum(x - threshold[:, None], 0), x, allowed)


def by_bisection(equation, total, x, allowed):
    """The t of each row with sum_j equation(x_j - t) = total, by bisection, and one step of Newton's method, whose
    derivative is that of t."""
    fixed_equation, fixed = jax.lax.stop_gradient((equation, jnp.where(allowed, x, 0.0)))
    mass = lambda t: where_allowed(lambda x: fixed_equation(x - t), fixed, allowed).sum(axis=1, keepdims=True)

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) / 2
        is_low = mass(middle) >= total
        return jnp.where(is_low, middle, low), jnp.where(is_low, high, middle)

    high = jnp.max(fixed, axis=1, keepdims=True)
    low = jnp.min(fixed, axis=1, keepdims=True) - 16
    t = jax.lax.fori_loop(0, 60, halve, (low, high))[0]
    slope = jax.jvp(mass, (t,), (-jnp.ones_like(t),))[1]
    residual = where_allowed(lambda x: equation(x - t), x, allowed).sum(axis=1, keepdims=True) - total
    return t + jnp.where(slope > 0, residual / jnp.where(slope > 0, slope, 1.0), 0.0)


def power(x, exponent):
    return jnp.where(x > 0, jnp.where(x > 0, x, 1.0) ** exponent, 0.0)


def entmax(rule, x, allowed):
    """Peters et al. 2019, equation 10."""
    weigh = Partial(lambda alpha, x: power((alpha - 1) * x, 1 / (alpha - 1)), rule.alpha)
    t = by_bisection(weigh, 1.0, x, allowed)
    return where_allowed(lambda x: weigh(x - t), x, allowed)


def normmax(rule, x, allowed):
    """Blondel, Martins & Niculae 2020, section 4.3."""
    alpha = rule.alpha
    t = by_bisection(Partial(lambda alpha, x: power(x, alpha / (alpha - 1)), alpha), 1.0, x, allowed)
    return ratio(where_allowed(lambda x: power(x - t, 1 / (alpha - 1)), x, allowed))


def budget(rule, x, allowed):
    """Malaviya et al. 2018, equation 5."""
    total = jnp.minimum(allowed.sum(axis=1, keepdims=True), rule.budget).astype(x.dtype)
    clip = Partial(lambda x: jnp.clip(x, 0.0, 1.0))
    t = by_bisection(clip, total, x, allowed)
    return where_allowed(lambda x: clip(x - t), x, allowed)


WEIGHTS = {
    "Softmax": lambda n, x, allowed: softmax(x, allowed),
    "Softmax with a sink": lambda n, x, allowed: softmax(x, allowed, n.sink),
    "StudentKernel": lambda n, x, allowed: ratio(where_allowed(lambda x: (1 - x) ** -n.power, x, allowed)),
    "Sigmoid": lambda n, x, allowed: where_allowed(lambda x: 1 / (1 + jnp.exp(-x - n.bias)), x, allowed),
    "ReluPower": lambda n, x, allowed: (
        where_allowed(lambda x: jnp.maximum(x, 0) ** 2, x, allowed)
        / jnp.maximum(allowed.sum(axis=1, keepdims=True), 1).astype(x.dtype)
    ),
    "Signed": lambda n, x, allowed: where_allowed(lambda x: x, x, allowed),
    "a function": lambda n, x, allowed: where_allowed(jnp.tanh, x, allowed),
    "CompactKernel": lambda n, x, allowed: ratio(where_allowed(lambda x: jnp.maximum(1 + x, 0) ** 2, x, allowed)),
    "a ratio": lambda n, x, allowed: ratio(
        where_allowed(lambda x: jnp.log1p(jnp.exp(n.sharpness * x)), x, allowed), n.unused
    ),
    "Sparsemax": lambda n, x, allowed: sparsemax(x, allowed),
    "Entmax": entmax,
    "Normmax": normmax,
    "Budget": budget,
    "TopK": lambda n, x, allowed: softmax(x, allowed & largest(x, allowed, 5)),
}
"""(rule, scores [Q, K], allowed) -> weights, by the formulas of their papers."""


# --- a case -----------------------------------------------------------------------------------------------------------


class Size(NamedTuple):
    queries: int
    keys: int
    width: int
    value_width: int


SIZES = {
    "37 x 37": Size(37, 37, 12, 5),
    "64 x 64": Size(64, 64, 16, 16),
    "1 x 197": Size(1, 197, 16, 8),
    "197 x 37": Size(197, 37, 8, 16),
    "5 x 64": Size(5, 64, 12, 5),
    "1 x 1": Size(1, 1, 8, 8),
    "197 x 197": Size(197, 197, 20, 8),
}
LIFTS = {"one head": None, "vmap": (0, 0, 0, 0, 0), "grouped heads": (0, 0, 0, None, None)}
"""The axes of (parameters, mask, query, key, value) under `jax.vmap`; heads of a group share keys and values."""


class Case(NamedTuple):
    score: str
    normalizer: str
    mask: str
    bias: str
    dtype: str
    size: str
    heads: str


NEGATIVE = ("NegativeSquaredDistance", "Gaussian", "Gaussian of 3 features", "Boxcar", "Triangular", "Constant", "L1")
"""Scores that a `StudentKernel` takes, which are below 1."""


def table() -> list[Case]:
    """Every score with every normalizer, and along with them the entries of the other columns in turn."""
    cases = []
    at = lambda column, n: list(column)[n % len(column)]  # steps with which all pairs of two columns occur
    for s, score in enumerate(SCORES):
        for n, normalizer in enumerate(NORMALIZERS):
            bias = at(BIASES, 3 * s + 5 * n + (s + n) // 10 + 2 * (s // 8) + 5)
            if normalizer == "StudentKernel":
                if score not in NEGATIVE:
                    continue
                bias = ("none", "ALiBi")[s % 2]
            dtype = ("float32", "bfloat16", "float16")[(s + n) % 3]
            cases.append(
                Case(score, normalizer, at(MASKS, s + n), bias, dtype, at(SIZES, s + 2 * n + 4), at(LIFTS, s // 2 + n))
            )
    return cases


class Data(NamedTuple):
    """The arrays of a case, in float32 with no more digits than its type has."""

    floats: list  # the parameters of score, bias and normalizer, [heads, ...]
    combine: Callable  # parameters -> {"score": ..., "bias": ..., "normalizer": ...}
    mask: object
    allowed: np.ndarray  # [heads, Q, K]
    arrays: list  # query, key, value [heads, ...]
    bar: np.ndarray  # [heads, Q, V]


def round_to(x, dtype: str) -> np.ndarray:
    return np.asarray(np.asarray(x, dtype), np.float32)


def draw_case(case: Case) -> Data:
    random = np.random.default_rng(0)
    draw = lambda *shape: round_to(random.normal(size=shape), case.dtype)
    queries, keys, width, value_width = SIZES[case.size]
    width = 3 if "3 features" in case.score else width
    make = lambda: {
        "score": SCORES[case.score](draw, width),
        "bias": BIASES[case.bias](draw, queries, keys),
        "normalizer": NORMALIZERS[case.normalizer](draw),
    }
    heads = [jax.tree.flatten(make()) for _ in range(HEADS)]
    structure, leaves = heads[0][1], list(zip(*(leaves for leaves, _ in heads)))
    is_float = [not callable(leaf[0]) for leaf in leaves]
    floats = [round_to(np.stack(leaf), case.dtype) for leaf, f in zip(leaves, is_float) if f]

    def combine(floats):
        remaining = iter(floats)
        return structure.unflatten([next(remaining) if f else leaf[0] for leaf, f in zip(leaves, is_float)])

    mask, allowed = MASKS[case.mask](draw, np.arange(queries)[:, None], np.arange(keys)[None, :])
    allowed = np.broadcast_to(allowed, (HEADS, queries, keys))
    shapes = (queries, width), (keys, width), (keys, value_width), (queries, value_width)
    *arrays, bar = (draw(HEADS, *shape) for shape in shapes)
    arrays = [round_to(x * scale, case.dtype) for x, scale in zip(arrays, (0.75, 0.75, 1))]
    return Data(floats, combine, mask, allowed, arrays, bar)


def lift(function, case: Case, data: Data, mask):
    """(the function of (parameters, mask, query, key, value) over the heads of a case, its arguments, cotangent)."""
    axes, of_head = LIFTS[case.heads], partial(jax.tree.map, lambda x: x[0])
    arguments, bar = [data.floats, mask, *data.arrays], data.bar
    if axes is None:
        return function, of_head(arguments), bar[0]
    arguments = [x if axis == 0 else of_head(x) for x, axis in zip(arguments, axes)]
    return jax.vmap(function, axes), arguments, bar


COMPILER = {"xla_allow_excess_precision": False}


def by_kernel(case: Case, data: Data) -> list:
    """The output and the gradients of queries, keys, values and parameters, by the kernel."""
    leaf_dtype = "float32" if case.dtype == "bfloat16" else case.dtype
    plain = data.mask if callable(data.mask) and not isinstance(data.mask, masks.Mask) else None  # a function

    def attention(floats, mask, *arrays):
        rules, mask = data.combine(floats), plain or mask
        return attend(*arrays, mask=mask, implementation="kernel", block_q=32, block_k=32, **rules)

    function, (floats, mask, *arrays), bar = lift(attention, case, data, None if plain else data.mask)
    floats, arrays, bar = in_type(floats, leaf_dtype), in_type(arrays, case.dtype), jnp.asarray(bar, case.dtype)

    def run(floats, mask, arrays, bar):
        out, pull = jax.vjp(lambda floats, *arrays: function(floats, mask, *arrays), floats, *arrays)
        floats_bar, *arrays_bar = pull(bar)
        return [out, *arrays_bar, *floats_bar]

    results = jax.jit(run)(floats, mask, arrays, bar)
    assert [x.dtype for x in results] == [case.dtype] * 4 + [leaf_dtype] * len(floats)
    return [np.asarray(x, np.float64) for x in results]


def by_definition(case: Case, data: Data, dtype: str, by_query: bool = False) -> list:
    """The same by the definition, whose arrays and parameters are all in a type. `by_query`: gradients of parameters as
    they come from each query, [Q, ...]."""

    def attention(floats, allowed, query, key, value):
        rules, wide = data.combine(floats), jnp.promote_types(dtype, "float32")
        logits = score_formula(rules["score"], query, key).astype(dtype) + bias_formula(
            rules["bias"], allowed.shape, dtype
        )
        logits = logits.astype(wide)
        normalizer = in_type(rules["normalizer"], wide) if case.normalizer != "a function" else None
        weights = WEIGHTS[case.normalizer](normalizer, logits, allowed & (logits != -jnp.inf))
        return weights.astype(dtype) @ value

    function, (floats, allowed, *arrays), bar = lift(attention, case, data, data.allowed)

    def run(floats, arrays, bar):
        out, pull = jax.vjp(lambda floats, *arrays: function(floats, allowed, *arrays), floats, *arrays)
        floats_bar, *arrays_bar = pull(bar)
        if by_query and floats:
            rows = jnp.arange(bar.shape[-2])
            floats_bar = jax.lax.map(lambda i: pull(jnp.where((rows == i)[:, None], bar, 0))[0], rows)
        return [out, *arrays_bar, *floats_bar]

    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        compiled = jax.jit(run, compiler_options=COMPILER)
        results = compiled(*jax.tree.map(lambda x: jnp.asarray(x, dtype), (floats, arrays, bar)))
        return [np.asarray(x, np.float64) for x in results]


def check(case: Case) -> None:
    """Raise AssertionError unless the kernel is as close to float64 as the rule of tests/rounding.py demands: its error
    is at most twice that of the definition in the same type, plus the rounding of the result.

    A parameter's gradient is a sum over the pairs, in which the definition's errors may cancel by chance: its rounding
    is four times that of the sum of the magnitudes which the queries contribute.
    """
    data = draw_case(case)
    kernel, rounded = by_kernel(case, data), by_definition(case, data, case.dtype)
    exact = by_definition(case, data, "float64", by_query=True)
    names = ["output", "query", "key", "value"] + [f"parameter {n}" for n in range(len(exact) - 4)]
    epsilon = float(jnp.finfo(case.dtype).eps / 2 + UNITS * jnp.finfo(jnp.float32).eps)
    for name, result, definition, right in zip(names, kernel, rounded, exact, strict=True):
        magnitude = np.abs(right)
        if name.startswith("parameter"):
            right, magnitude = right.sum(axis=0), 4 * magnitude.sum(axis=0)
        assert result.shape == right.shape and np.isfinite(right).all()
        bound = 2 * np.abs(definition - right).max() + epsilon * max(1.0, magnitude.max())  # of terms that cancel
        error = np.abs(result - right).max()
        assert error <= bound, f"{name}: off by {error:.3g} of {magnitude.max():.3g}, rounding explains {bound:.3g}"
    assert exact[0].any() or case.normalizer in ("ReluPower", "CompactKernel")  # of scores that are negative
    has_no_key = ~data.allowed.any(axis=-1)  # [heads, Q]
    for result in kernel[:2]:
        assert not result[has_no_key if result.ndim == 3 else has_no_key[0]].any()


def sample(cases: list[Case], *first: Case) -> list[Case]:
    """Cases that together have every entry of every column, after the first ones that with the most new entries."""
    chosen, covered = [*first], {entry for case in first for entry in enumerate(case)}
    new_entries = lambda case: len({*enumerate(case)} - covered)
    while max(map(new_entries, cases)):
        chosen.append(max(cases, key=new_entries))
        covered |= {*enumerate(chosen[-1])}
    return chosen


TABLE = table()
LONG_WINDOW = next(case for case in TABLE if case[2:4] + case[5:6] == ("sliding_window", "array", "197 x 197"))
FEW_FEATURES = next(case for case in TABLE if "3 features" in case.score and case.bias == "T5Bias")


FAST = sample(TABLE, LONG_WINDOW, FEW_FEATURES)
SLOW = TABLE[::8]


def tier(case: Case):
    """The case as parameters: of the fast tier, of the slow one, or of `-m kernels`, which has all others."""
    marks = () if case in FAST else pytest.mark.slow if case in SLOW else pytest.mark.kernels
    return pytest.param(*case, marks=marks)


@pytest.mark.parametrize(Case._fields, [tier(case) for case in TABLE])
def test_error_is_at_most_twice_that_of_the_definition(score, normalizer, mask, bias, dtype, size, heads, monkeypatch):
    """The gradient is the kernel's, too, but for that of a row [1, K] as a bias, which blocks in XLA compute."""
    for module in (attention, derivatives):  # trace no kernel for a GPU, which takes a third of the time
        monkeypatch.setattr(module, "by_platform", lambda function, choice, *args: function(choice["cpu"], *args))
    gradients, backward = [], generated.backward
    monkeypatch.setattr(generated, "backward", lambda *args: gradients.append(backward(*args)) or gradients[-1])
    check(Case(score, normalizer, mask, bias, dtype, size, heads))
    is_row = bias in ("row", "a sum") or (bias == "array" and SIZES[size].queries == 1)
    assert bool(gradients) != is_row


def test_the_table_has_all_pairs_of_entries():
    columns = SCORES, NORMALIZERS, MASKS, BIASES, ("float32", "bfloat16", "float16"), SIZES, LIFTS
    for (a, first), (b, second) in combinations(enumerate(columns), 2):
        pairs = {(case[a], case[b]) for case in TABLE}
        missing = {pair for pair in product(first, second) if "StudentKernel" not in pair} - pairs
        assert not missing


# --- what is not in the table -----------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(1)
normal = lambda *shape: jnp.asarray(RANDOM.normal(size=shape), jnp.float32)
by_blocks = partial(attend, implementation="kernel", block_q=16, block_k=16)


def with_gradients(function):
    """arrays -> the outputs of a function and the gradients of the sum of their sines, in a list; compiled."""

    def run(*arrays):
        outputs, pull = jax.vjp(lambda *arrays: jax.tree.leaves(function(*arrays)), *arrays)
        return [*outputs, *pull([jnp.cos(x) for x in outputs])]

    return jax.jit(run)


def test_dropout_has_the_bits_of_plain():
    """With unit vectors as values the outputs are the weights."""
    query, key, value = normal(20, 8), normal(37, 8), jnp.eye(37)
    call = {"dropout": jnp.float32(0.4), "rng": jax.random.key(5)}
    kernel, plain = (with_gradients(partial(f, **call))(query, key, value) for f in (by_blocks, attend))
    np.testing.assert_array_equal(kernel[0] == 0, plain[0] == 0)
    assert 0.3 < (kernel[0] == 0).mean() < 0.5
    for a, b in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_log_sum_exp_largest_score_and_entropy():
    """Their values, and the gradient through the log-sum-exp, of 20 queries that begin at position 30."""
    arrays = normal(20, 8), normal(50, 8), normal(50, 8)
    call = {"mask": masks.causal(), "return_log_sum_exp": True, "return_max_score": True, "return_entropy": True}
    kernel = with_gradients(lambda *x: by_blocks(*x, query_offset=jnp.int32(30), **call))(*arrays)

    def definition(query, key, value):
        logits = jnp.where(np.tri(20, 50, 30, bool), query @ key.T / 8**0.5, -1e30)
        weights = jnp.exp(logits) / jnp.exp(logits).sum(axis=1, keepdims=True)
        fixed = jax.lax.stop_gradient((logits, weights))
        entropy = -(fixed[1] * jnp.log(jnp.maximum(fixed[1], 1e-30))).sum(axis=1)
        return weights @ value, jnp.log(jnp.exp(logits).sum(axis=1)), fixed[0].max(axis=1), entropy

    with jax.enable_x64(True):
        exact = with_gradients(definition)(*(jnp.asarray(x, jnp.float64) for x in arrays))
    for a, b in zip(kernel, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_entropy_of_sparse_weights():
    arrays, normalizer = (normal(20, 8), normal(37, 8), jnp.eye(37)), normalizers.Sparsemax()
    weights, entropy = jax.jit(lambda *x: by_blocks(*x, normalizer=normalizer, return_entropy=True))(*arrays)
    weights = np.asarray(weights, np.float64)
    exact = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=1)
    np.testing.assert_allclose(entropy, exact, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-5)
    assert (weights == 0).mean() > 0.3


def test_forward_mode_and_second_derivatives():
    """Of a score with a parameter: the kernel's own derivative is of the first order, in reverse mode."""
    primals = jnp.float32(2.0), normal(20, 8), normal(37, 8), normal(37, 8)
    tangents = tuple(normal(*x.shape) for x in primals)

    def derivatives(attention, primals, tangents):
        loss = lambda cap, *arrays: jnp.sum(jnp.sin(attention(cap, *arrays)))
        run = lambda *x: (jax.jvp(loss, *x), jax.jvp(jax.grad(loss, (0, 1, 2, 3)), *x))
        return jax.tree.leaves(jax.jit(run)(primals, tangents))

    kernel = derivatives(lambda cap, *x: by_blocks(*x, score=Partial(soft_cap, cap)), primals, tangents)
    with jax.enable_x64(True):
        wide = in_type((primals, tangents), jnp.float64)
        exact = derivatives(lambda cap, q, k, v: jax.nn.softmax(soft_cap(cap, q, k)) @ v, *wide)
    for a, b in zip(kernel, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_nan_in_a_masked_key_has_no_effect():
    query, key, value = normal(20, 8), normal(37, 8), normal(37, 8)
    dirty = key.at[21:].set(jnp.nan), value.at[25:].set(jnp.inf)
    function = with_gradients(partial(by_blocks, score=scores.Gaussian(jnp.float32(2)), mask=masks.lengths(21)))
    clean, with_nan = function(query, key, value), function(query, *dirty)
    for a, b in zip(clean, with_nan, strict=True):
        np.testing.assert_array_equal(a, b)
    assert not with_nan[2][21:].any() and not with_nan[3][21:].any()


def test_attend_heads_with_grouped_heads():
    """Slopes of each head, and lengths of each sequence, of which one is 0."""
    arrays = normal(2, 20, 4, 8), normal(2, 37, 2, 8), normal(2, 37, 2, 8)

    def run(slopes, *arrays, **blocks):
        call = {"bias": biases.ALiBi(slopes), "mask": masks.Lengths(jnp.array([30, 0]))}
        return attend_heads(*arrays, **call, **blocks)

    slopes = jnp.array([0.5, 0.25, 0.125, 0.0625])
    call = {"implementation": "kernel", "block_q": 16, "block_k": 16}
    kernel, plain = (with_gradients(partial(run, **x))(slopes, *arrays) for x in (call, {}))
    for a, b in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not kernel[0][1].any()


def test_a_table_of_many_numbers_has_its_gradient():
    """By blocks in XLA: no kernel keeps sums of as many numbers."""
    table, arrays = normal(5000), (normal(20, 8), normal(37, 8), normal(37, 8))
    bias = lambda table, query, i, j: table[(i[:, None] * 37 + j[None, :]) * 3 % 5000]
    run = lambda attention: with_gradients(lambda t, *x: attention(*x, bias=Partial(bias, t)))(table, *arrays)
    for a, b in zip(run(by_blocks), run(partial(attend, implementation="plain")), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"normalizer": normalizers.StickBreaking()}, "knows no normalizer StickBreaking"),
        ({"score": lambda query, key: jnp.sort(query @ key.T)}, "knows no sort"),
        ({"bias": lambda query, i, j: jax.lax.digamma(query.sum(axis=1, keepdims=True))}, "knows no digamma"),
        ({"mask": lambda i, j: jnp.cumsum(i)[:, None] >= jnp.cumsum(j)[None, :]}, "knows no cumsum"),
        ({"normalizer": lambda x: jax.lax.lgamma(jnp.exp(x))}, "knows no lgamma"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_a_kernel_cannot_compute_is_named_before_lowering(call, reason):
    """Where the call is traced: the error names the primitive, and what to do."""
    x = [jax.ShapeDtypeStruct((n, 8), jnp.float32) for n in (20, 37, 37)]
    with pytest.raises(InputError, match=f'implementation="kernel" {reason}: take "fused"'):
        jax.eval_shape(partial(by_blocks, **call), *x)


def test_float64_is_refused():
    with jax.enable_x64(True), pytest.raises(InputError, match="sums in float32, got float64, float64, float64"):
        jax.eval_shape(by_blocks, *[jax.ShapeDtypeStruct((20, 8), jnp.float64)] * 3)
