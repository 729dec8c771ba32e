"""Normalizers: weights as in the papers, written again in NumPy; gradients by finite differences of those; blockwise as
plain; and the contract of `attend` for all of them."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.errors import InputError
from attention_jax.ops import normalizers
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.masks import causal, dense, lengths
from attention_jax.ops.normalizer_kinds import Normalizer, Pointwise
from attention_jax.ops.normalizers import (
    Budget,
    CompactKernel,
    Entmax,
    Normmax,
    ReluPower,
    Sigmoid,
    Signed,
    Softmax,
    Sparsemax,
    StickBreaking,
    StudentKernel,
    TopK,
    kth_largest,
)
from attention_jax.ops.trees import pytree

number = jnp.float32


# --- weights of one row, from the papers ------------------------------------------------------------------------------


def bisect(mass, low, high, total):
    """t with mass(t) = total for a decreasing mass."""
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mass(middle) >= total else (low, middle)
    return low


def entmax(s, alpha):
    weights = lambda t: np.maximum((alpha - 1) * (s - t), 0) ** (1 / (alpha - 1))
    return weights(bisect(lambda t: weights(t).sum(), s.max() - 1 / (alpha - 1), s.max(), 1))


def normmax(s, alpha):
    u = lambda t: np.maximum(s - t, 0) ** (1 / (alpha - 1))
    weights = u(bisect(lambda t: (u(t) ** alpha).sum(), s.max() - 1, s.max(), 1))
    return weights / weights.sum()


def sparsemax(s):
    """Martins & Astudillo 2016, algorithm 1."""
    ordered = np.sort(s)[::-1]
    support = 1 + np.arange(len(s)) * 1.0
    k = int(support[1 + support * ordered > np.cumsum(ordered)].max())
    return np.maximum(s - (ordered[:k].sum() - 1) / k, 0)


def budget(s, k):
    weights = lambda t: np.clip(s - t, 0, 1)
    return weights(bisect(lambda t: weights(t).sum(), s.min() - 1, s.max(), min(k, len(s))))


def top_k(s, k, weights):
    chosen = np.zeros(len(s), bool)
    chosen[np.argsort(s)[-k:]] = True
    result = np.zeros(len(s))
    result[chosen] = weights(s[chosen])
    return result


def stick_breaking(s):
    weights, left = np.zeros(len(s)), 1.0
    for j in reversed(range(len(s))):
        weights[j] = left / (1 + np.exp(-s[j]))
        left -= weights[j]
    return weights


def over_sum(x, extra=0.0):
    return x / (x.sum() + extra) if x.sum() + extra else x


ORACLES = {  # normalizer, the same in NumPy for the allowed scores of one query and the leaves, where scores must lie
    "softmax": (Softmax(), lambda s: over_sum(np.exp(s)), None),
    "sink": (Softmax(number(0.4)), lambda s, sink: over_sum(np.exp(s), np.exp(sink)), None),
    "sigmoid": (Sigmoid(number(-0.3)), lambda s, bias: 1 / (1 + np.exp(-s - bias)), None),
    "relu": (ReluPower(1), lambda s: np.maximum(s, 0) / len(s), None),
    "relu squared": (ReluPower(2), lambda s: np.maximum(s, 0) ** 2 / len(s), None),
    "signed": (Signed(), lambda s: s, None),
    "epanechnikov": (CompactKernel(1), lambda s: over_sum(np.maximum(1 + s, 0)), "negative"),
    "biweight": (CompactKernel(2), lambda s: over_sum(np.maximum(1 + s, 0) ** 2), "negative"),
    "student": (StudentKernel(number(1.5)), lambda s, power: over_sum((1 - s) ** -power), "negative"),
    "sparsemax": (Sparsemax(), sparsemax, None),
    "entmax 1.5": (Entmax(number(1.5)), entmax, None),
    "entmax 1.2": (Entmax(number(1.2)), entmax, None),
    "normmax": (Normmax(number(1.7)), normmax, None),
    "budget": (Budget(3), lambda s: budget(s, 3), None),
    "top-k": (TopK(3), lambda s: top_k(s, min(3, len(s)), lambda s: over_sum(np.exp(s))), None),
    "top-k entmax": (TopK(4, Entmax(number(1.5))), lambda s, a: top_k(s, min(4, len(s)), lambda s: entmax(s, a)), None),
    "stick-breaking": (StickBreaking(), stick_breaking, None),
}
EACH_KIND = ("softmax", "sigmoid", "sparsemax", "top-k", "stick-breaking")
"""One of each way in which weights are computed; the others of a test over all of them are slow."""


def negative(query, key):
    return -jnp.square(query @ key.T)


def dot(query, key):
    return query @ key.T


def score_of(name):
    return negative if ORACLES[name][2] else dot


def oracle(name, query, key, value, leaves, allowed):
    """Attention of the scores `score_of`, query by query, in float64."""
    scores = query @ key.T
    scores = -(scores**2) if ORACLES[name][2] else scores
    out = np.zeros((len(query), value.shape[1]))
    for q, row in enumerate(allowed):
        if row.any():
            out[q] = ORACLES[name][1](scores[q][row], *leaves) @ value[row]
    return out


def case(queries=9, keys=11, seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return draw((queries, 4)), draw((keys, 4)) * 0.7, draw((keys, 3))


def test_every_normalizer_is_here():
    kinds = {c for _, c in inspect.getmembers(normalizers, inspect.isclass) if c.__module__ == normalizers.__name__}
    assert kinds == {type(normalizer) for normalizer, _, _ in ORACLES.values()}
    assert all(issubclass(kind, Normalizer) for kind in kinds)


TWINS = ("relu squared", "biweight", "entmax 1.2")
"""Of which a neighbor in `ORACLES` is computed by the same code with another number."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in TWINS else n for n in ORACLES])
def test_values_and_gradients_are_those_of_the_paper(name):
    """In float64, against NumPy and its finite differences along a direction, leaves included."""
    normalizer = ORACLES[name][0]
    allowed = np.random.default_rng(7).random((9, 11)) < 0.7
    allowed[4] = False
    with jax.enable_x64(True):
        leaves, structure = jax.tree.flatten(normalizer)
        leaves = [np.float64(leaf) for leaf in leaves]

        def run(query, key, value, leaves):
            rule = jax.tree.unflatten(structure, leaves)
            call = {"score": score_of(name), "mask": dense(jnp.asarray(allowed)), "normalizer": rule}
            return attend(query, key, value, implementation="plain", **call)

        rng = np.random.default_rng(0)
        arrays = (*case(), leaves)
        along = jax.tree.map(lambda x: rng.standard_normal(np.shape(x)), arrays)
        bar = rng.standard_normal((9, 3))

        @jax.jit
        def derivatives(arrays, along, bar):
            out, tangent = jax.jvp(run, arrays, along)
            return out, tangent, jax.vjp(run, *arrays)[1](bar)

        out, tangent, bars = derivatives(*jax.tree.map(jnp.asarray, (arrays, along, bar)))
        np.testing.assert_allclose(out, oracle(name, *arrays, allowed), rtol=1e-8, atol=1e-10)
        moved = (jax.tree.map(lambda x, d: x + step * d, arrays, along) for step in (1e-6, -1e-6))
        ahead, behind = (oracle(name, *each, allowed) for each in moved)
        difference = (ahead - behind) / 2e-6
        np.testing.assert_allclose(tangent, difference, rtol=2e-5, atol=2e-6)
        products = jax.tree.map(lambda a, b: float((np.asarray(a) * b).sum()), bars, along)
        np.testing.assert_allclose(sum(jax.tree.leaves(products)), (difference * bar).sum(), rtol=2e-5, atol=2e-5)


def value_and_gradients(implementation, name, masked, query, key, value, normalizer, slope):
    def loss(query, key, value, normalizer, slope):
        options = {"bias": ALiBi(slope), "mask": causal() & lengths(9)} if masked else {}
        call = {"block_q": 4, "block_k": 4} if implementation == "fused" else {}
        call |= {"dropout": 0.3, "rng": jax.random.key(3)} if masked else {}
        out = attend(
            query,
            key,
            value,
            score=score_of(name),
            normalizer=normalizer,
            implementation=implementation,
            **call,
            **options,
        )
        return jnp.sin(out + jnp.arange(3).astype(out.dtype)[None, :]).sum(), out

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3, 4), has_aux=True)(query, key, value, normalizer, slope)


compiled = jax.jit(value_and_gradients, static_argnums=(0, 1, 2))


OPEN = "softmax", "signed", "entmax 1.5", "top-k", "stick-breaking"
MASKED = [(name, True) for name in (*EACH_KIND, "relu", "epanechnikov")]
BOTH = [*((name, True) for name in ORACLES), *((name, False) for name in OPEN)]


@pytest.mark.parametrize(("name", "masked"), slow_but(MASKED, BOTH))
def test_blockwise_is_plain(name, masked):
    """Blockwise in float32 against plain in float64, with bias, mask and dropout or none: output, all gradients."""
    inputs = (*case(13, 11, seed=1), ORACLES[name][0], np.float32(0.2))
    floats = lambda dtype: jax.tree.map(lambda x: jnp.asarray(x, dtype), inputs)
    fused = jax.tree.map(np.asarray, compiled("fused", name, masked, *floats(jnp.float32)))
    with jax.enable_x64(True):
        plain = jax.tree.map(np.asarray, compiled("plain", name, masked, *floats(jnp.float64)))
    for actual, exact in zip(jax.tree.leaves(fused), jax.tree.leaves(plain), strict=True):
        assert actual.dtype == np.float32
        np.testing.assert_allclose(actual, exact, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(exact).max()))


@pytest.mark.parametrize(
    "name", [name if name in EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in ORACLES]
)
def test_vmap_over_heads_with_leaves_and_lengths(name):
    """Under `jax.vmap` and `jax.jit` each head is as it is alone, in bfloat16 too, up to its rounding."""
    query, key, value = (jnp.asarray(np.stack([x, x[::-1] * 0.5]), jnp.float32) for x in case(8, 8))
    normalizer = jax.tree.map(lambda x: jnp.stack([x, x * 1.1]), ORACLES[name][0])
    length = jnp.array([8, 5])

    def run_head(query, key, value, normalizer, length):
        call = {"score": score_of(name), "mask": lengths(length), "normalizer": normalizer, "block_q": 4, "block_k": 4}
        return attend(query, key, value, implementation="fused", **call)

    every_head = jax.jit(jax.vmap(run_head))(query, key, value, normalizer, length)
    half = None
    if name not in ("top-k", "top-k entmax", "entmax 1.2", "relu"):  # rounding may exchange keys; two have a twin
        half = jax.jit(jax.vmap(run_head))(*(x.astype(jnp.bfloat16) for x in (query, key, value)), normalizer, length)
        assert half.dtype == jnp.bfloat16
    for head in range(2):
        alone = jax.tree.map(lambda x: np.asarray(x[head], np.float64), (query, key, value))
        leaves = [np.float64(leaf[head]) for leaf in jax.tree.leaves(normalizer)]
        allowed = np.broadcast_to(np.arange(8) < int(length[head]), (8, 8))
        exact = oracle(name, *alone, leaves, allowed)
        np.testing.assert_allclose(every_head[head], exact, atol=2e-5 * max(1, np.abs(exact).max()))
        if half is not None:
            assert np.abs(half[head].astype(np.float32) - exact).max() < 0.05 * max(1, np.abs(exact).max())


CONTRACTS = [*((name, "fused") for name in ORACLES), *((name, "plain") for name in EACH_KIND)]


@pytest.mark.parametrize(
    ("name", "implementation"),
    slow_but([(n, i) for n, i in CONTRACTS if n in EACH_KIND], CONTRACTS),
)
def test_the_contract_of_attend(name, implementation):
    """A masked key has no effect, not even NaN; NaN that is not masked stays; a query without keys gets zeros."""
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case(8, 8))
    allowed = np.ones((8, 8), bool)
    allowed[:, 2] = allowed[5] = False

    def run(query, key, value):
        call = {"score": score_of(name), "mask": dense(jnp.asarray(allowed)), "normalizer": ORACLES[name][0]}
        return attend(query, key, value, implementation=implementation, **call)

    @jax.jit
    def both(*arrays):
        out, pull = jax.vjp(run, *arrays)
        return out, pull(2 * out)

    clean, gradients = both(query, key, value)
    assert not clean[5].any() and not gradients[0][5].any()
    assert not gradients[1][2].any() and not gradients[2][2].any()
    poisoned = query, key.at[2].set(jnp.nan), value.at[2].set(jnp.inf)
    actual, bars = both(*poisoned)
    assert np.array_equal(actual, clean)
    for actual, expected in zip(bars, gradients, strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-6)
    spoiled, _ = both(query, key.at[3].set(jnp.nan), value)
    assert np.isnan(spoiled[np.arange(8) != 5]).all() and not spoiled[5].any()


# --- single facts -----------------------------------------------------------------------------------------------------

ROW = jnp.ones((1, 1)), jnp.array([[-2.0], [0.0], [0.5]])


@pytest.mark.parametrize(
    "normalizer, published",
    [
        (Sparsemax(), [0, 0.25, 0.75]),
        (Entmax(1.5), [0, 0.3260, 0.6740]),
        (Normmax(2.0), [0, 0.3110, 0.6890]),
        (Budget(2), [0, 1, 1]),
    ],
    ids=["sparsemax", "entmax", "normmax", "budget"],
)
def test_the_examples_of_the_package_entmax(normalizer, published):
    weights = jax.jit(lambda: attention_weights(*ROW, normalizer=normalizer)[0])()
    np.testing.assert_allclose(weights, published, atol=5e-5)


def test_the_weights_of_a_budget_sum_to_it():
    """Also where the sum bends both ways, so that steps of Newton's method alone would go back and forth for ever."""
    scores = np.random.default_rng(0).standard_normal((500, 8)).astype(np.float32)
    weights = np.asarray(Budget(4).weights(jnp.asarray(scores), jnp.ones(scores.shape, bool)))
    assert abs(weights.sum(axis=1) - 4).max() < 1e-5
    np.testing.assert_allclose(weights, [budget(row, 4) for row in np.float64(scores)], atol=1e-5)


@pytest.mark.parametrize("kind", [jnp.float32, jnp.bfloat16])
def test_the_k_th_largest_of_a_sorted_row(kind):
    """Ties, infinities, zeros of both signs and numbers near zero among them; NaN where there are fewer."""
    x = np.random.default_rng(0).standard_normal((6, 10)).astype(np.float32)
    x[0, :5], x[1], x[2, 3:], x[3] = 1.0, -np.inf, -np.inf, np.tile([0.0, -0.0], 5)
    x[4, 2], x[5] = np.inf, 1e-30 * x[5]
    x = jnp.asarray(x, kind)
    actual = [kth_largest(k, x) for k in range(1, 12)]
    np.testing.assert_array_equal(np.float32(actual[:10]), np.sort(np.float32(x), axis=1).T[::-1])
    assert np.isnan(np.float32(actual[10])).all()


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_alpha_gradient_matches_entmax_package(implementation):
    """d p_0 / d alpha = -0.2562 for the scores -1, 0 and 0.5 at alpha 1.33 (its README)."""
    key, first = jnp.array([[-1.0], [0.0], [0.5]]), jnp.array([[1.0], [0.0], [0.0]])
    call = {"implementation": implementation}
    weight = lambda alpha: attend(jnp.ones((1, 1)), key, first, normalizer=Entmax(alpha), **call)[0, 0]
    value, slope = jax.jit(jax.value_and_grad(weight))(jnp.float32(1.33))
    assert abs(value - 0.0460) < 5e-5 and abs(slope + 0.2562) < 5e-5


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_sink_is_key_with_zero_value(implementation):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    sink = jnp.float32(0.7)

    def with_zero_key(query, key, value, sink):
        scores = jnp.concatenate([query @ key.T, jnp.broadcast_to(sink, (9, 1))], axis=1)
        return jax.nn.softmax(scores) @ jnp.concatenate([value, jnp.zeros((1, 3))])

    def with_sink(query, key, value, sink):
        return attend(query, key, value, score=dot, normalizer=Softmax(sink), implementation=implementation)

    bar = jnp.asarray(np.random.default_rng(1).standard_normal((9, 3)), jnp.float32)

    def value_and_gradients(function):
        out, pull = jax.vjp(function, query, key, value, sink)
        return out, *pull(bar)

    for a, b in zip(
        *jax.jit(lambda: [value_and_gradients(with_sink), value_and_gradients(with_zero_key)])(), strict=True
    ):
        np.testing.assert_allclose(a, b, atol=2e-6)


def test_off_by_one_softmax_is_zero_sink():
    weights = jax.jit(lambda key: attention_weights(jnp.ones((1, 1)), key, normalizer=Softmax(0.0)))
    assert weights(jnp.full((5, 1), -200.0)).sum() == 0
    near = weights(jnp.zeros((5, 1)))
    np.testing.assert_allclose(near, np.full((1, 5), 1 / 6), rtol=1e-6)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_top_n_of_n_keys_is_dense(implementation):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    call = {"implementation": implementation}
    run = lambda normalizer: attend(query, key, value, normalizer=normalizer, **call)  # jit would fuse them differently
    assert np.array_equal(run(TopK(11)), run(Softmax()))


def test_a_stick_loses_what_was_broken_off():
    query, key = (jnp.asarray(x, jnp.float32) for x in case()[:2])
    total = jax.jit(lambda: attention_weights(query, key, score=dot, normalizer=StickBreaking()).sum(axis=1))()
    np.testing.assert_allclose(total, 1 - jnp.prod(1 - jax.nn.sigmoid(query @ key.T), axis=1), rtol=1e-5)


def test_entmax_at_its_ends():
    query, key = (jnp.asarray(x, jnp.float32) for x in case()[:2])
    weights = jax.jit(lambda normalizer: attention_weights(query, key, normalizer=normalizer))
    np.testing.assert_allclose(weights(Entmax(2.0)), weights(Sparsemax()), atol=1e-6)
    np.testing.assert_allclose(weights(Entmax(1.0001)), weights(Softmax()), atol=1e-3)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_a_normalizer_of_ones_own(implementation):
    @pytree
    @dataclasses.dataclass(frozen=True)
    class Softplus(Pointwise):
        shift: jax.Array

        def __call__(self, score):
            return jax.nn.softplus(score - self.shift)

    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    call = {"score": dot, "implementation": implementation}
    shift = jnp.float32(0.2)
    loss = lambda shift: attend(query, key, value, normalizer=Softplus(shift), **call).sum()
    exact = lambda shift: (jax.nn.softplus(query @ key.T - shift) @ value).sum()
    both = jax.jit(lambda shift: [jax.value_and_grad(function)(shift) for function in (loss, exact)])
    np.testing.assert_allclose(*both(shift), rtol=2e-5)
    function = jax.jit(lambda: attend(query, key, value, normalizer=jax.nn.softplus, **call))()
    np.testing.assert_allclose(function, jax.nn.softplus(query @ key.T) @ value, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_the_log_sum_exp_and_its_gradient(implementation):
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    bar = jnp.asarray(np.random.default_rng(1).standard_normal(9), jnp.float32)

    def loss(query, key):
        call = {"score": dot, "return_log_sum_exp": True, "implementation": implementation}
        out, log = attend(query, key, value, mask=lengths(6), block_q=4, block_k=4, **call)
        return (log * bar).sum() + out.sum()

    def exact(query, key):
        scores = query @ key[:6].T
        return (jax.nn.logsumexp(scores, axis=1) * bar).sum() + (jax.nn.softmax(scores) @ value[:6]).sum()

    both = jax.jit(lambda *arrays: [jax.grad(function, (0, 1))(*arrays) for function in (loss, exact)])
    for a, b in zip(*both(query, key), strict=True):
        np.testing.assert_allclose(a, b, atol=3e-6)
    call = {"return_log_sum_exp": True, "implementation": implementation}
    assert (jax.jit(lambda: attend(query, key, value, mask=lengths(0), **call))()[1] == -jnp.inf).all()


def test_what_cannot_be_asked_for():
    query, key, value = (jnp.asarray(x, jnp.float32) for x in case())
    for call in (
        {"normalizer": Sparsemax(), "implementation": "flash"},
        {"normalizer": Sparsemax(), "return_log_sum_exp": True},
        {"normalizer": Sparsemax},
        {"normalizer": 3},
    ):
        with pytest.raises(InputError):
            attend(query, key, value, **call)
    for wrong in (lambda: Entmax(1.0), lambda: Entmax(2.5), lambda: TopK(0), lambda: Budget(0), lambda: TopK(1.5)):
        with pytest.raises(InputError):
            wrong()
