"""The table of tests of `attend`, {score} x {mask} x {bias} x {normalizer} x {pool} x {dtype} x {way}, and the
properties of its cases.

A case compiles one program, of values and gradients, and is held against tests/ops/oracle.py:

* values, where masked keys are deleted; keys and queries where nobody may look may be NaN;
* gradients of queries, keys, values and all parameters, against finite differences of the oracle;
* keys in another order change nothing, nor does a number added to all scores of a shift-invariant normalizer;
* the first queries of a causal mask have no gradient with respect to later keys.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec
from jax.tree_util import Partial

from attention_jax import attend, attend_heads, pytree
from attention_jax.ops import biases, masks, normalizers, pooling, scores
from attention_jax.ops.dropout import dropout_bits, dropout_factor
from tests.ops import oracle

VALUES, HIDDEN, HEADS, GROUPS = 3, 6, 4, 2
"""Width of the values and of hidden layers; heads of queries, and of keys and values, of the way "heads"."""


@pytree
@dataclass(frozen=True)
class Softplus(normalizers.Ratio):
    """A ratio of one's own, with a parameter in the function and one beside the sum."""

    sharpness: jax.Array
    unused: jax.Array

    def __call__(self, x):
        return jax.nn.softplus(self.sharpness.astype(x.dtype) * x)

    def extra(self):
        return self.unused


@pytree
@dataclass(frozen=True)
class Diluted(normalizers.Ratio):
    """exp(s_j) / (unused + sum_l (exp(s_l) + share)): another function below the line, and no overflow."""

    share: jax.Array
    unused: jax.Array
    rescales = True

    def __call__(self, x, shift=0.0):
        return jnp.exp(x - shift)

    def summand(self, x, shift=0.0):
        return jnp.exp(x - shift) + self.share.astype(x.dtype) * jnp.exp(jnp.zeros_like(x) - shift)

    def extra(self):
        return self.unused


def gatv2(vector, query, key):
    return jax.nn.leaky_relu(query[:, None] + key[None], 0.2) @ vector.astype(query.dtype)


def manhattan(query, key):
    return -jnp.abs(query[:, None] - key[None]).sum(-1)


def by_distance(table, query, query_positions, key_positions):
    """A parameter for each relative position from -4 to 4, those beyond sharing the last one."""
    return table[jnp.clip(query_positions[:, None] - key_positions[None, :], -4, 4) + 4]


def stripes(query_positions, key_positions):
    return (query_positions[:, None] + key_positions[None, :]) % 3 != 1


SCORES = {
    "ScaledDot": lambda draw, d: scores.ScaledDot(),
    "Dot": lambda draw, d: scores.Dot(),
    "Bilinear": lambda draw, d: scores.Bilinear(draw(d, d) / 2),
    "Additive": lambda draw, d: scores.Additive(draw(d, HIDDEN), draw(d, HIDDEN), draw(HIDDEN)),
    "Concat": lambda draw, d: scores.Concat(draw(2 * d, HIDDEN), draw(HIDDEN)),
    "LeakySum": lambda draw, d: scores.LeakySum(draw(d), draw(d), draw(), draw()),
    "Cosine": lambda draw, d: scores.Cosine(3 + draw() / 4),
    "QKNorm": lambda draw, d: scores.QKNorm(1 + draw(d) / 4, 1 + draw(d) / 4),
    "SoftCap": lambda draw, d: scores.SoftCap(0.8, scores.Bilinear(draw(d, d) / 2)),
    "NegativeSquaredDistance": lambda draw, d: scores.NegativeSquaredDistance(),
    "Gaussian": lambda draw, d: scores.Gaussian(1.2 + draw() / 8),
    "Boxcar": lambda draw, d: scores.Boxcar(2.5 + draw() / 8),
    "Triangular": lambda draw, d: scores.Triangular(4 + draw() / 8),
    "Constant": lambda draw, d: scores.Constant(),
    "GATv2": lambda draw, d: Partial(gatv2, draw(d)),
    "L1": lambda draw, d: Partial(manhattan),
}
"""(draw(*shape) of normal numbers, width d of queries and keys) -> score."""

BIASES = {
    "none": lambda draw, q, k, d: None,
    "ALiBi": lambda draw, q, k, d: biases.ALiBi(0.3 + draw() / 16),
    "Forget": lambda draw, q, k, d: biases.Forget(-jnp.cumsum(jnp.exp(draw(q + k + 8)))),
    "T5Bias": lambda draw, q, k, d: biases.T5Bias(draw(8), 16),
    "ShawBias": lambda draw, q, k, d: biases.ShawBias(draw(5, d)),
    "TransformerXLBias": lambda draw, q, k, d: biases.TransformerXLBias(draw(d, 6)),
    "Location": lambda draw, q, k, d: biases.Location(draw(d, 16)),
    "array": lambda draw, q, k, d: draw(q, k),
    "row": lambda draw, q, k, d: draw(1, k),
    "a table": lambda draw, q, k, d: Partial(by_distance, draw(9)),
    "a sum": lambda draw, q, k, d: (biases.ALiBi(0.3 + draw() / 16), draw(q, 1)),
}


def draw_segments(draw, q, k):
    ids = np.sort(np.random.default_rng(int(1e6 * abs(draw()))).integers(0, 3, k))
    return masks.segments(ids[:q].astype(np.int32), ids.astype(np.int32))


def draw_table(draw, q, k):
    allowed = draw(q, k) > -0.3
    allowed[1:2] = False  # a query that may attend to nothing
    return allowed


MASKS = {
    "causal": lambda draw, q, k: masks.causal(),
    "none": lambda draw, q, k: None,
    "lengths": lambda draw, q, k: masks.lengths(jnp.int32(k - 2 - (draw() > 0))),
    "window": lambda draw, q, k: masks.window(2),
    "sliding_window": lambda draw, q, k: masks.sliding_window(3),
    "causal & lengths": lambda draw, q, k: masks.causal() & masks.lengths(jnp.int32(k - 4)),
    "window | lengths": lambda draw, q, k: masks.window(1) | masks.lengths(jnp.int32(2)),
    "segments": draw_segments,
    "causal & segments": lambda *x: masks.causal() & draw_segments(*x),
    "dense": lambda *x: masks.dense(draw_table(*x)),
    "array": draw_table,
    "a function": lambda draw, q, k: Partial(stripes),
}

NORMALIZERS = {
    "Softmax": lambda draw: normalizers.Softmax(),
    "sink": lambda draw: normalizers.Softmax(draw()),
    "ScalableSoftmax": lambda draw: normalizers.ScalableSoftmax(0.4 + draw() / 16),
    "Sigmoid": lambda draw: normalizers.Sigmoid(draw() / 2),
    "ReluPower": lambda draw: normalizers.ReluPower(2),
    "Signed": lambda draw: normalizers.Signed(),
    "a ratio": lambda draw: Softplus(1 + draw() / 8, 1 + draw() / 8),
    "Softpick": lambda draw: normalizers.Softpick(),
    "a diluted ratio": lambda draw: Diluted(1 + draw() / 8, 1 + draw() / 8),
    "Sparsemax": lambda draw: normalizers.Sparsemax(),
    "Entmax": lambda draw: normalizers.Entmax(1.5 + draw() / 16),
    "TopK": lambda draw: normalizers.TopK(3),
    "TopK of Entmax": lambda draw: normalizers.TopK(4, normalizers.Entmax(1.5 + draw() / 16)),
    "StickBreaking": lambda draw: normalizers.StickBreaking(),
}
SHIFT_INVARIANT = ("Softmax", "Sparsemax", "Entmax", "TopK", "TopK of Entmax")

POOLS = {
    "Mean": lambda draw: pooling.Mean(),
    "Moments": lambda draw: pooling.Moments(),
    "LocalLinear": lambda draw: pooling.LocalLinear(0.3 + abs(draw()) / 8),
    "LogMixture": lambda draw: pooling.LogMixture(),
}

TOLERANCE = {"float64": 1e-8, "float32": 3e-5, "float16": 1e-2, "bfloat16": 3e-2}


class Shape(NamedTuple):
    queries: int
    keys: int
    width: int
    blocks: tuple[int, int]


SHAPES = {
    "7 x 9": Shape(7, 9, 4, (3, 4)),
    "13 x 11": Shape(13, 11, 6, (4, 4)),
    "1 x 8": Shape(1, 8, 4, (2, 64)),
}
"""The last block begins early, or blocks are larger than the arrays. Of more than 4 features a distance is a product of
matrices."""
KERNEL_SHAPES = {
    "20 x 37": Shape(20, 37, 8, (16, 16)),
    "5 x 64": Shape(5, 64, 12, (16, 32)),
    "197 x 37": Shape(197, 37, 3, (32, 32)),
    "64 x 197": Shape(64, 197, 8, (32, 32)),
    "1 x 197": Shape(1, 197, 16, (16, 64)),
}

COLUMNS = {
    "way": ("fused", "plain", "vmap", "heads", "shard_map", "kernel"),
    "score": tuple(SCORES),
    "mask": tuple(MASKS),
    "bias": tuple(BIASES),
    "normalizer": tuple(NORMALIZERS),
    "pool": tuple(POOLS),
    "dtype": tuple(TOLERANCE),
    "shape": (*SHAPES, *KERNEL_SHAPES),
    "offset": (0, 3, -2),
    "dropout": (0.0, 0.3),
    "extras": (False, True),
}


class Case(NamedTuple):
    way: str
    score: str
    mask: str
    bias: str
    normalizer: str
    pool: str
    dtype: str
    shape: str
    offset: int
    dropout: float
    extras: bool  # also the log-sum-exp, the largest score and the entropy

    @property
    def sizes(self) -> Shape:
        return (SHAPES | KERNEL_SHAPES)[self.shape]

    @property
    def heads(self) -> tuple[int, int]:
        """Heads of queries, and of keys and values."""
        return {"vmap": (2, 2), "heads": (HEADS, GROUPS)}.get(self.way, (1, 1))

    @property
    def has_log(self) -> bool:
        return self.extras and self.normalizer in ("Softmax", "sink", "ScalableSoftmax", "TopK")


def is_valid(case: Case) -> bool:
    """What a kernel computes; no rounding that moves a key over the edge of a score or of `TopK`; poolings divide by
    the sum of the weights; one query is that of a cache."""
    is_half = case.dtype in ("float16", "bfloat16")
    if (case.way == "kernel") != (case.shape in KERNEL_SHAPES) or (case.sizes.queries == 1 and case.offset != 3):
        return False
    if case.way == "kernel" and (case.normalizer == "StickBreaking" or case.dtype == "float64" or case.pool != "Mean"):
        return False
    is_linear = case.score in ("ScaledDot", "Dot", "Bilinear") and case.bias == "none"
    if case.way == "kernel" and case.normalizer == "ScalableSoftmax" and not is_linear:
        return False
    if case.way == "kernel" and case.bias in ("ShawBias", "TransformerXLBias", "Location"):
        return False
    if is_half and (case.score in ("Boxcar", "Triangular") or case.normalizer.startswith("TopK")):
        return False
    if case.bias == "Location" and case.sizes.keys > 16:
        return False
    if case.pool != "Mean" and (case.normalizer == "Signed" or is_half):
        return False
    return not (case.way == "heads" and case.dropout)


# --- a case -----------------------------------------------------------------------------------------------------------


class Data(NamedTuple):
    """Numbers in float64, of at most the digits of the type of a case."""

    rules: list  # of each head: {"score": ..., "bias": ..., "normalizer": ..., "pool": ...}
    masks: list  # of each head, or of a sequence of heads
    arrays: list  # query [heads, Q, D], key [groups, K, D], value [groups, K, V]
    bars: tuple  # cotangents of the output [heads, Q, W] and of the log-sum-exp [heads, Q]


def draw_data(case: Case) -> Data:
    random, kind = np.random.default_rng(0), jnp.dtype("float32" if case.dtype == "float64" else case.dtype)
    draw = lambda *shape: np.float64(np.asarray(random.normal(size=shape)).astype(kind))
    (queries, keys, width, _), (heads, groups) = case.sizes, case.heads
    make = lambda: {
        "score": SCORES[case.score](draw, width),
        "bias": BIASES[case.bias](draw, queries, keys, width),
        "normalizer": NORMALIZERS[case.normalizer](draw),
        "pool": POOLS[case.pool](draw),
    }
    rules = jax.tree.map(np.float64, [make() for _ in range(heads)])
    masks = [MASKS[case.mask](draw, queries, keys) for _ in range(1 if case.way == "heads" else heads)]
    arrays = [draw(heads, queries, width) * 0.8, draw(groups, keys, width) * 0.8, draw(groups, keys, VALUES)]
    bars = draw(heads, queries, VALUES * (1 + (case.pool == "Moments"))), draw(heads, queries)
    right = exact(case, Data(rules, masks, arrays, bars))
    bars = bars[0] * np.isfinite(right.out), bars[1] * np.isfinite(right.log_sum_exp)
    return Data(rules, masks, [np.float64(x.astype(kind)) for x in arrays], bars)


def exact(case: Case, data: Data) -> oracle.Result:
    """The oracle's results for every head, [heads, ...]."""
    (queries, keys, *_), (heads, groups) = case.sizes, case.heads
    factor = None
    if case.dropout:
        factor = np.float64(dropout_factor(*dropout_bits(jax.random.key(5), queries, keys), jnp.float32(case.dropout)))
    query, key, value = data.arrays
    results = []
    for h, rules in enumerate(data.rules):
        arrays = query[h], key[h * groups // heads], value[h * groups // heads]
        mask = data.masks[h % len(data.masks)]
        results.append(oracle.attend(*arrays, **rules, mask=mask, offset=case.offset, factor=factor))
    return oracle.Result(*map(np.stack, zip(*results)))


class Program:
    """A compiled case: data -> (outputs, cotangents of the arrays, cotangents of the rules' leaves), in float64."""

    def __init__(self, case: Case, data: Data, **compiler_options):
        self.case, self.compiled = case, jax.jit(self.with_gradients, compiler_options=compiler_options or None)
        self.rules, self.mask = jax.tree.structure(data.rules[0]), jax.tree.structure(data.masks[0])
        self.call = {"implementation": case.way if case.way in ("plain", "kernel") else "fused"}
        self.call |= {} if case.way == "plain" else dict(zip(("block_q", "block_k"), case.sizes.blocks))
        extras = ["return_log_sum_exp"] * case.has_log + ["return_statistics"] * case.extras
        self.call |= dict.fromkeys(extras, True)

    def attend(self, leaves, mask, offset, *arrays):
        rules, mask = self.rules.unflatten(leaves), self.mask.unflatten(mask)
        dropout = {"dropout": jnp.float32(self.case.dropout), "rng": jax.random.key(5)} if self.case.dropout else {}
        return jax.tree.leaves(attend(*arrays, mask=mask, query_offset=offset, **rules, **dropout, **self.call))

    def attend_heads(self, leaves, mask, offset, *arrays):
        mask = self.mask.unflatten(mask if self.case.mask != "array" else [x[:, None] for x in mask])
        arrays = [x[None].swapaxes(1, 2) for x in arrays]  # [1, T, H, D]
        results = attend_heads(*arrays, mask=mask, query_offset=offset, **self.rules.unflatten(leaves), **self.call)
        return [x[0].swapaxes(0, 1) for x in jax.tree.leaves(results)]

    def attend_on_mesh(self, leaves, mask, offset, *arrays):
        """One device, whose arrays vary over the mesh, and rules do not."""
        over_heads = jax.vmap(self.attend, in_axes=(None, None, None, 0, 0, 0))
        mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Auto,))
        shared, divided = PartitionSpec(), PartitionSpec("d")
        specs = {"in_specs": (shared, shared, shared, divided, divided, divided), "out_specs": divided}
        run = jax.shard_map(over_heads, mesh=mesh, **specs)
        return run([x[0] for x in leaves], [x[0] for x in mask], offset, *arrays)

    def with_gradients(self, leaves, mask, offset, arrays, bars):
        run = {"heads": self.attend_heads, "shard_map": self.attend_on_mesh}.get(
            self.case.way, jax.vmap(self.attend, in_axes=(0, 0, None, 0, 0, 0))
        )
        outputs, pull = jax.vjp(lambda leaves, arrays: run(leaves, mask, offset, *arrays), leaves, arrays)
        return outputs, *pull([*bars, *map(jnp.zeros_like, outputs[len(bars) :])])

    def __call__(self, data: Data) -> tuple[list, list, list]:
        case, is_half = self.case, self.case.dtype in ("float16", "bfloat16")
        wide = "float32" if is_half else case.dtype  # of parameters, logits and sums
        stack = lambda trees: [np.stack(x) for x in zip(*map(jax.tree.leaves, trees))]
        of_type = lambda arrays, kind: [x.astype(jnp.dtype(kind)) for x in arrays]  # by NumPy: JAX compiles a program
        arrays, leaves, mask = of_type(data.arrays, case.dtype), of_type(stack(data.rules), wide), stack(data.masks)
        bars = [*of_type(data.bars[:1], case.dtype), *of_type(data.bars[1:], wide)][: 1 + case.has_log]
        outputs, leaf_bars, array_bars = self.compiled(leaves, mask, jnp.int32(case.offset), arrays, bars)
        assert all(x.dtype == case.dtype for x in (outputs[0], *array_bars))
        assert all(x.dtype == wide for x in (*outputs[1:], *leaf_bars))
        return tuple([np.float64(x) for x in results] for results in (outputs, array_bars, leaf_bars))


def assert_close(actual, expected, tolerance, name):
    scale = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, err_msg=name)


def check(case: Case, **compiler_options) -> None:
    """Raise AssertionError unless a case has all properties."""
    with (
        jax.enable_x64(case.dtype == "float64"),
        jax.numpy_rank_promotion("allow" if case.way == "kernel" else "raise"),  # JAX's interpreter promotes ranks
        np.errstate(invalid="ignore"),
    ):
        data = draw_data(case)
        program, right = Program(case, data, **compiler_options), exact(case, data)
        results = program(data)
        expected = {"output": right.out}
        expected |= {"log-sum-exp": right.log_sum_exp, "largest score": right.max_score} if case.has_log else {}
        expected |= {"entropy": right.entropy} if case.extras else {}
        for actual, name in zip(results[0], expected, strict=True):
            assert_close(actual, expected[name], TOLERANCE[case.dtype], name)
        check_gradients(case, data, results)
        for property_of in (check_hidden, check_order, check_shift, check_causality):
            property_of(case, data, program, results)


def check_gradients(case, data, results):
    """Vector-Jacobian products along a direction of all arrays and leaves are differences of the oracle."""
    random, step = np.random.default_rng(1), 1e-5
    along = jax.tree.map(lambda x: random.normal(size=np.shape(x)), (data.arrays, data.rules))

    def value(by):
        arrays, rules = jax.tree.map(lambda x, d: x + by * d, (data.arrays, data.rules), along)
        result, total = exact(case, data._replace(arrays=arrays, rules=rules)), 0.0
        for x, bar in zip((result.out, result.log_sum_exp), data.bars[: 1 + case.has_log]):
            total += (np.where(np.isfinite(x), x, 0.0) * bar).sum()
        return total

    of_leaves = [np.stack(x) for x in zip(*map(jax.tree.leaves, along[1]))]
    products = [x * d for x, d in zip((*results[1], *results[2]), (*along[0], *of_leaves), strict=True)]
    size, tolerance = sum(np.abs(x).sum() for x in products), max(1e-6, TOLERANCE[case.dtype])
    difference = (value(step) - value(-step)) / (2 * step)
    np.testing.assert_allclose(sum(x.sum() for x in products), difference, rtol=0, atol=tolerance * max(1, size))


def check_hidden(case, data, program, results):
    """Keys that no query may attend to, and queries that may attend to no key, may be NaN or infinite."""
    if data.masks[0] is None:
        return
    i, j = case.offset + np.arange(case.sizes.queries)[:, None], np.arange(case.sizes.keys)[None]
    allowed = np.stack([oracle.mask_matrix(mask, i, j) for mask in data.masks])  # [heads or 1, Q, K]
    hidden = ~allowed.any(axis=2), ~allowed.any(axis=1), ~allowed.any(axis=1)
    if not any(x.any() for x in hidden):
        return
    numbers = zip(data.arrays, hidden, (np.nan, np.inf, np.nan))
    outputs, gradients, _ = program(data._replace(arrays=[np.where(h[..., None], n, x) for x, h, n in numbers]))
    for actual, expected in zip((*outputs, *gradients), (*results[0], *results[1]), strict=True):
        assert_close(actual, expected, TOLERANCE[case.dtype] / 10, "NaN where nobody may look")
    for x, h in zip(gradients, hidden, strict=True):
        assert not x[np.broadcast_to(h, x.shape[:2])].any(), "a gradient where nobody may look"


def check_order(case, data, program, results):
    """Keys in another order change nothing."""
    is_array = case.mask in ("none", "array") and case.bias in ("none", "array", "row")
    if not is_array or case.normalizer == "StickBreaking" or case.dropout:
        return
    order = np.random.default_rng(2).permutation(case.sizes.keys)
    reorder = lambda x: None if x is None else x[:, order]
    rules = [rule | {"bias": reorder(rule["bias"])} for rule in data.rules]
    arrays = [data.arrays[0], *(x[:, order] for x in data.arrays[1:])]
    moved = data._replace(rules=rules, masks=[*map(reorder, data.masks)], arrays=arrays)
    outputs, (query, *of_keys), _ = program(moved)
    gradients = query, *(x[:, np.argsort(order)] for x in of_keys)
    for actual, expected in zip((*outputs, *gradients), (*results[0], *results[1]), strict=True):
        assert_close(actual, expected, TOLERANCE[case.dtype], "keys in another order")


def check_shift(case, data, program, results):
    """A number that is added to all scores changes the log-sum-exp and the largest score alone."""
    if case.bias not in ("array", "row") or case.normalizer not in SHIFT_INVARIANT or case.dtype == "bfloat16":
        return
    outputs, gradients, _ = program(data._replace(rules=[rule | {"bias": rule["bias"] + 32} for rule in data.rules]))
    shifted = [results[0][0], *(x + 32 * case.has_log for x in results[0][1:3]), *results[0][3:]]
    for actual, expected in zip((*outputs, *gradients), (*shifted, *results[1]), strict=True):
        assert_close(actual, expected, 32 * TOLERANCE[case.dtype], "a number added to all scores")


def check_causality(case, data, program, results):
    """The first queries have no gradient with respect to later keys and values, nor to later queries."""
    if "causal" not in case.mask and case.mask != "sliding_window":
        return
    rows = 1 + case.sizes.queries // 2
    bars = [np.where((np.arange(x.shape[1]) < rows).reshape(-1, *[1] * (x.ndim - 2)), x, 0.0) for x in data.bars]
    _, (query, *of_keys), _ = program(data._replace(bars=bars))
    assert not query[:, rows:].any()
    for x in of_keys:
        assert not x[:, max(rows + case.offset, 0) :].any(), "a gradient of the past with respect to the future"


# --- which cases ------------------------------------------------------------------------------------------------------


def draw_case(random: np.random.Generator, **fixed) -> Case:
    """A valid case, of float64 and the mean rather than other types and poolings, which compile for longer."""
    while True:
        values = {name: column[random.integers(len(column))] for name, column in COLUMNS.items()}
        values["dtype"] = random.choice(tuple(TOLERANCE), p=(0.6, 0.3, 0.04, 0.06)).item()
        values["pool"] = "Mean" if random.random() < 0.5 else values["pool"]
        if fixed.get("way") != "kernel":
            values["shape"] = random.choice(tuple(SHAPES), p=(0.55, 0.4, 0.05)).item()
        case = Case(**values | fixed)
        is_cheap = case.pool == "Mean" or case.normalizer in ("Softmax", "sink", "Sigmoid")  # several programs in one
        if is_valid(case) and is_cheap:
            return case


def cover(seed: int, *columns: str | tuple[str, ...], draws: int = 1500, **fixed) -> list[Case]:
    """Cases that together have every entry of some columns, and every combination of several: greedily, the case with
    the most new ones next."""
    random = np.random.default_rng(seed)
    cases = [draw_case(random, **fixed) for _ in range(draws)]
    places = [tuple(map(Case._fields.index, (name,) if isinstance(name, str) else name)) for name in columns]
    entries = [{(place, *(case[n] for n in place)) for place in places} for case in cases]
    chosen, covered = [], set()
    while True:
        new = [len(of_case - covered) for of_case in entries]
        if not max(new):
            return chosen
        best = new.index(max(new))
        chosen.append(cases[best])
        covered |= entries[best]
