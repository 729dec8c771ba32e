"""Blockwise attention means what plain attention means: in value, in every gradient, for every
score, mask, bias and dropout."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tiers import slow_but

from attention_jax.ops import scores
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi, Location, ShawBias, T5Bias, TransformerXLBias
from attention_jax.ops.masks import causal, dense, lengths, segments, window

WIDTH, VALUE_WIDTH = 4, 3
KEY = jax.random.key(0)
AS_USERS_DO = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""XLA's own options: those of conftest.py compile without optimization."""
if jax.__version__.startswith("0.10."):
    AS_USERS_DO["xla_cpu_use_fusion_emitters"] = True

SCORES = {
    "Dot": scores.Dot(),
    "ScaledDot": scores.ScaledDot(),
    "Bilinear": scores.Bilinear.init(KEY, WIDTH, WIDTH),
    "Additive": scores.Additive.init(KEY, WIDTH, WIDTH, 6),
    "Concat": scores.Concat.init(KEY, WIDTH, WIDTH, 6),
    "LeakySum": scores.LeakySum.init(KEY, WIDTH, WIDTH),
    "Cosine": scores.Cosine(jnp.float32(2.0)),
    "Gaussian": scores.Gaussian(jnp.float32(0.8)),
    "Boxcar": scores.Boxcar(jnp.float32(2.0)),
    "Triangular": scores.Triangular(jnp.float32(9.0)),
    "Constant": scores.Constant(),
    "NegativeSquaredDistance": scores.NegativeSquaredDistance(),
    "QKNorm": scores.QKNorm(jnp.array([0.5, 1.5, 2.0, -1.0]), jnp.array([1.0, 0.7, 1.3, 2.0])),
    "SoftCap": scores.SoftCap(0.8, scores.Bilinear.init(KEY, WIDTH, WIDTH)),
}
BIASES = {
    "none": None,
    "Shaw": ShawBias.init(KEY, WIDTH, 2),
    "TransformerXL": TransformerXLBias.init(KEY, WIDTH, 6),
    "T5": T5Bias.init(KEY, 8, 16),
    "ALiBi": ALiBi(jnp.float32(0.3)),
    "Location": Location.init(KEY, WIDTH, 16),
}


def thirds(table):
    """Three segments of queries and keys; the last third of the keys is of a fourth that no query is of."""
    queries, keys = (np.arange(size, dtype=np.int32) * 3 // size for size in table.shape)
    return segments(jnp.asarray(queries), jnp.asarray(np.where(keys == 2, 3, keys)))


MASKS = {
    "none": lambda table: None,
    "causal": lambda table: causal(),
    "lengths": lambda table: lengths(table.shape[1] // 2),
    "window": lambda table: window(2),
    "causal & lengths": lambda table: causal() & lengths(table.shape[1] - 1),
    "causal & window": lambda table: causal() & window(3),
    "window | lengths": lambda table: window(1) | lengths(2),
    "dense": dense,
    "empty": lambda table: lengths(0),
    "segments": lambda table: thirds(table),
    "causal & segments": lambda table: causal() & thirds(table),
}


def value_and_gradients(implementation, blocks, dropout, offset, *case):
    def loss(query, key, value, score, bias, mask):
        out = attend(
            query,
            key,
            value,
            score=score,
            bias=bias,
            mask=mask,
            dropout=dropout,
            rng=jax.random.key(5),
            query_offset=offset,
            implementation=implementation,
            block_q=blocks[0],
            block_k=blocks[1],
        )
        return jnp.sin(out + jnp.arange(out.shape[1])[None, :].astype(out.dtype)).sum(), out

    (_, out), gradients = jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(*case)
    return out, gradients


quickly, optimized = (
    jax.jit(value_and_gradients, static_argnums=(0, 1, 2, 3), compiler_options=options)
    for options in (None, AS_USERS_DO)
)


def run(implementation, *case, blocks=(None, None), dropout=None, offset=0, compiled=quickly):
    """Output and all gradients of a case (query, key, value, score, bias, mask), of all but the mask."""
    return jax.tree.map(np.asarray, compiled(implementation, blocks, dropout, offset, *case))


def in_float64(tree):
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64) if jnp.issubdtype(jnp.result_type(x), jnp.floating) else x, tree
    )


def assert_exact(case, blocks, tolerance=1e-5, compiled=quickly, **options):
    """Fused in float32 against plain in float64; `case` is (query, key, value, score, bias, mask)."""
    run_fused = run("fused", *case, blocks=blocks, compiled=compiled, **options)
    with jax.enable_x64(True):
        exact = run("plain", *in_float64(case), **options)
    scale = max([1.0] + [np.abs(x).max() for x in jax.tree.leaves(exact)])
    for actual, expected in zip(jax.tree.leaves(run_fused), jax.tree.leaves(exact), strict=True):
        assert actual.dtype == np.float32 and expected.dtype == np.float64
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)


def arrays(queries, keys, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return [draw(shape).astype(np.float32) for shape in ((queries, WIDTH), (keys, WIDTH), (keys, VALUE_WIDTH))]


def table(queries, keys, seed=0):
    return np.random.default_rng(seed).random((queries, keys)) < 0.4


def test_every_score_is_here():
    every = {
        c.__name__
        for _, c in inspect.getmembers(scores, inspect.isclass)
        if issubclass(c, scores.Score) and c is not scores.Score
    }
    assert every == set(SCORES)


@pytest.mark.slow
def test_no_queries_or_no_keys():
    for queries, keys in ((2, 0), (0, 3)):
        query, key, value = jnp.ones((queries, 2)), jnp.ones((keys, 2)), jnp.ones((keys, 3))
        out = attend(query, key, value, implementation="fused")
        assert np.array_equal(out, np.zeros((queries, 3)))


BIAS_NAMES = list(BIASES)
PAIRS = [(s, list(MASKS)[i % len(MASKS)], BIAS_NAMES[(i + 1) % 6], (0, 0.3)[i % 2]) for i, s in enumerate(SCORES)]


def test_the_fast_pairs_have_every_mask_and_bias():
    assert ({mask for _, mask, _, _ in PAIRS}, {bias for _, _, bias, _ in PAIRS}) == (set(MASKS), set(BIASES))


@pytest.mark.parametrize("score, mask, bias, dropout", PAIRS)
def test_every_score_mask_and_bias(score, mask, bias, dropout):
    case = *arrays(7, 9), SCORES[score], BIASES[bias], MASKS[mask](table(7, 9))
    assert_exact(case, (3, 4), dropout=dropout)


OPTIMIZED = [PAIRS[i] for i in (1, 3, 4, 6, 7, 8, 11)]


@pytest.mark.slow
@pytest.mark.parametrize("score, mask, bias, dropout", OPTIMIZED)
def test_the_programs_that_users_run(score, mask, bias, dropout):
    """XLA's optimization may reorder sums and contract products: the same oracle, and hidden NaN stays hidden."""
    case = *arrays(7, 9), SCORES[score], BIASES[bias], MASKS[mask](table(7, 9))
    assert_exact(case, (3, 4), dropout=dropout, compiled=optimized)
    if mask.startswith("causal"):  # nobody attends to the last key
        run_fused = lambda: run("fused", *case, blocks=(3, 4), dropout=dropout, compiled=optimized)
        clean = run_fused()
        case[1][8], case[2][8] = np.nan, np.nan
        jax.tree.map(np.testing.assert_array_equal, run_fused(), clean)


def test_the_optimized_pairs_have_every_bias():
    assert {bias for _, _, bias, _ in OPTIMIZED} == set(BIASES)


@pytest.mark.parametrize("queries, keys, blocks, offset", [(1, 3, (2, 3), 3), (5, 11, (64, 64), 0)])
def test_a_few_shapes(queries, keys, blocks, offset):
    case = *arrays(queries, keys), SCORES["Additive"], BIASES["Shaw"], MASKS["causal & lengths"](table(queries, keys))
    assert_exact(case, blocks, offset=offset)


@pytest.mark.slow
@settings(max_examples=5, deadline=None)
@given(st.data())
def test_any_shape(data):
    draw = lambda *options: data.draw(st.sampled_from(options))
    queries, keys = draw(1, 2, 5, 8, 13), draw(1, 3, 8, 11)
    blocks = draw((1, 1), (2, 3), (4, 4), (8, 2), (64, 64), (5, 64))
    seed = data.draw(st.integers(0, 1000))
    case = (
        *arrays(queries, keys, seed),
        SCORES[draw(*SCORES)],
        BIASES[draw(*BIASES)],
        MASKS[draw(*MASKS)](table(queries, keys, seed)),
    )
    assert_exact(case, blocks, dropout=draw(None, 0.2), offset=draw(0, 3))


HIDDEN = [
    (score, implementation) for score in ("ScaledDot", "Additive", "Gaussian") for implementation in ("plain", "fused")
]


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize(("score", "implementation"), slow_but([HIDDEN[0], HIDDEN[1], HIDDEN[5]], HIDDEN))
def test_what_nobody_may_see_does_not_leak(score, implementation, poison):
    query, key, value = arrays(7, 9)
    hidden = SCORES[score], BIASES["Shaw"], causal() & lengths(5)
    expected = run(implementation, query, key, value, *hidden, blocks=(3, 4), offset=-2)
    key[5:], value[6:], query[:2] = poison, poison, poison  # queries at -2 and -1 see nothing
    out, gradients = run(implementation, query, key, value, *hidden, blocks=(3, 4), offset=-2)
    for actual, clean in zip(jax.tree.leaves((out, gradients)), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual, clean, rtol=1e-5, atol=1e-6)
    assert (
        not out[:2].any() and not gradients[0][:2].any() and not gradients[1][5:].any() and not gradients[2][5:].any()
    )


BROKEN = {  # rows that are not finite: an array of the case, the index and the number
    "NaN key": (1, (2, slice(None)), np.nan),
    "infinite key": (1, (2, 1), np.inf),
    "NaN query": (0, (3, slice(None)), np.nan),
    "infinite query": (0, (3, 1), -np.inf),
}


OPEN_MASKS = {"none": None, "causal": causal(), "lengths": lengths(5)}
VISIBLE = [(score, mask) for score in ("ScaledDot", "Additive", "Gaussian") for mask in OPEN_MASKS]


@pytest.mark.parametrize(("score", "mask"), slow_but([("ScaledDot", "causal"), ("Gaussian", "none")], VISIBLE))
@pytest.mark.parametrize("broken", BROKEN)
def test_attended_nan_reaches_output(broken, score, mask):
    """And never a row of zeros, the output of a query without any key."""
    mask = OPEN_MASKS[mask]
    case, (array, index, number) = arrays(7, 9), BROKEN[broken]
    case[array][index] = number
    (plain, _), (run_fused, gradients) = (
        run(i, *case, SCORES[score], None, mask, blocks=(3, 4)) for i in ("plain", "fused")
    )
    if score != "Additive" or broken.startswith("NaN"):  # tanh makes infinity finite where nothing is prepared
        np.testing.assert_allclose(run_fused, plain, rtol=1e-5, atol=1e-6)  # NaN at the same queries
    nan = np.isnan(run_fused).all(axis=1)
    if broken == "NaN key":
        assert nan.tolist() == [mask is not OPEN_MASKS["causal"] or query >= 2 for query in range(7)]
    if broken == "NaN query":
        assert nan.tolist() == [query == 3 for query in range(7)]
    assert np.isnan(gradients[2]).any() == nan.any()


@pytest.mark.parametrize("score", slow_but(["ScaledDot"], ["ScaledDot", "Cosine", "Gaussian"]))
def test_scores_with_large_rounding_errors(score):
    """A score is one number: a multiplication that XLA contracts with the difference to the largest score would make
    that difference hundreds where it is zero. Width 8: its root is no power of two, so that the product rounds."""
    draw = np.random.default_rng(0).standard_normal
    query, key, value = (jnp.asarray(draw(shape), jnp.float32) for shape in ((4, 8), (9, 8), (9, 3)))
    rule = {"ScaledDot": scores.ScaledDot(), "Cosine": scores.Cosine(1e10), "Gaussian": scores.Gaussian(1e-5)}[score]
    query = query * (1e10 if score == "ScaledDot" else 1.0)
    best = value[np.argmax(rule(query, key), axis=1)]

    def pool_and_output(query, key, value):
        out = attend(query, key, value, score=rule, implementation="fused")
        return out.sum(), out

    (_, out), gradients = jax.jit(
        jax.value_and_grad(pool_and_output, (0, 1, 2), has_aux=True), compiler_options=AS_USERS_DO
    )(query, key, value)
    np.testing.assert_array_equal(out, best)
    assert all(np.isfinite(gradient).all() for gradient in gradients)
    np.testing.assert_array_equal(gradients[2].sum(axis=0), [4, 4, 4])  # each query has one key


def test_very_large_and_all_equal_scores():
    query, key, value = arrays(7, 9)
    out, gradients = run("fused", query * 1e2, key * 1e2, value, scores.Dot(), None, causal(), blocks=(3, 4))
    plain = run("plain", query * 1e2, key * 1e2, value, scores.Dot(), None, causal())
    assert (np.abs(query @ key.T).max() * 1e4) > 1e4
    for actual, expected in zip(jax.tree.leaves((out, gradients)), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)
    equal = run("fused", query, np.ones_like(key), value, scores.ScaledDot(), None, None, blocks=(3, 4))[0]
    np.testing.assert_allclose(equal, np.broadcast_to(value.mean(axis=0), equal.shape), rtol=1e-5, atol=1e-6)


def test_lengths_that_differ_between_examples():
    query, key, value = (jnp.stack([x] * 4) for x in arrays(7, 9))
    n = jnp.array([9, 0, 3, 5])

    def loss(implementation, query):
        attend_example = lambda q, k, v, n: attend(
            q, k, v, mask=lengths(n), implementation=implementation, block_q=3, block_k=2
        )
        return jnp.sin(jax.vmap(attend_example)(query, key, value, n)).sum()

    run_fused, plain = (jax.jit(jax.grad(lambda q, i=i: loss(i, q)))(query) for i in ("fused", "plain"))
    np.testing.assert_allclose(run_fused, plain, rtol=1e-5, atol=1e-6)
    assert not run_fused[1].any()


@pytest.mark.slow
def test_composes_with_jax_transformations_without_recompiling():
    query, key, value = (jnp.asarray(x) for x in arrays(7, 9))
    heads = jax.vmap(lambda rng: scores.Additive.init(rng, WIDTH, WIDTH, 6))(jax.random.split(KEY, 2))
    traces = []

    def loss(implementation, heads, query):
        traces.append(implementation)
        attend_head = lambda score, q: attend(
            q, key, value, score=score, mask=causal(), implementation=implementation, block_q=4, block_k=4
        )
        layer = jax.checkpoint(
            lambda q: jnp.pad(jax.vmap(attend_head, (0, None))(heads, q).mean(axis=0), ((0, 0), (0, 1)))
        )
        return jnp.sin(jax.lax.scan(lambda q, _: (layer(q), None), query, None, length=3)[0]).sum()

    step = {i: jax.jit(jax.grad(lambda heads, q, i=i: loss(i, heads, q))) for i in ("plain", "fused")}
    for seed in (0, 1):
        q = query + seed
        for actual, expected in zip(
            jax.tree.leaves(step["fused"](heads, q)), jax.tree.leaves(step["plain"](heads, q)), strict=True
        ):
            np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    assert traces.count("fused") == 1 and step["fused"]._cache_size() == 1
    mapped = jax.pmap(jax.grad(lambda heads, q: loss("fused", heads, q)), in_axes=(None, 0))(heads, query[None])
    np.testing.assert_allclose(mapped.vector[0], step["plain"](heads, query).vector, rtol=1e-4, atol=1e-5)


def test_second_derivatives():
    query, key, value = (jnp.asarray(x) for x in arrays(3, 4))
    loss = lambda implementation: (
        lambda q: jnp.sin(attend(q, key, value, implementation=implementation, mask=causal(), block_k=2)).sum()
    )
    second = {i: jax.jit(jax.jacfwd(jax.grad(loss(i))))(query) for i in ("fused", "plain")}
    np.testing.assert_allclose(second["fused"], second["plain"], rtol=1e-4, atol=1e-5)
    again = {i: jax.jit(jax.jacrev(jax.grad(loss(i))))(query) for i in ("fused", "plain")}
    np.testing.assert_allclose(again["fused"], again["plain"], rtol=1e-4, atol=1e-5)


def temporary(score, implementation, length, blocks=(None, None)):
    """Bytes of temporary memory that XLA plans for the gradient of one head."""
    loss = lambda q, k, v: attend(
        q, k, v, score=score, implementation=implementation, block_q=blocks[0], block_k=blocks[1]
    ).sum()
    shapes = [jax.ShapeDtypeStruct((length, width), jnp.float32) for width in (WIDTH, WIDTH, VALUE_WIDTH)]
    return jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize(
    "score",
    [
        score if score in ("ScaledDot", "Additive", "Cosine") else pytest.param(score, marks=pytest.mark.slow)
        for score in SCORES
    ],
)
def test_no_gradient_materializes_the_matrix(score):
    """At 16,384 a matrix of one bit a pair would take 32 MiB; blocks of 64 x 64 and six arrays of
    the inputs' size take under 8."""
    assert temporary(SCORES[score], "fused", 16384, (64, 64)) < 8 * 2**20


def test_memory_is_linear():
    small, large = (temporary(scores.Gaussian(), "fused", length) for length in (4096, 32768))
    assert np.log(large / small) / np.log(8) <= 1.1
    assert temporary(scores.ScaledDot(), "plain", 2048) > 10 * temporary(scores.ScaledDot(), "fused", 2048)
