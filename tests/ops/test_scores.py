"""Every score against its formula, pair by pair in float64; what they promise about preparation."""

import inspect
from dataclasses import is_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import scores
from attention_jax.ops.attention import attend

D, H = 5, 7
DRAW = np.random.default_rng(1)
QUERY, KEY = DRAW.standard_normal((4, D)), DRAW.standard_normal((6, D))
W, WQ, WK, V = (DRAW.standard_normal(shape) for shape in ((D, D), (D, H), (D, H), (H,)))


def norm(x):
    return np.sqrt((x**2).sum())


def rms(x):
    return np.sqrt((x**2).mean())


def log(x):
    return np.log(x) if x > 0 else -np.inf


def leaky(x):
    return x if x > 0 else 0.2 * x


TABLE = {
    scores.Dot: (scores.Dot(), lambda q, k: q @ k),
    scores.ScaledDot: (scores.ScaledDot(), lambda q, k: q @ k / np.sqrt(D)),
    scores.Bilinear: (scores.Bilinear(jnp.float32(W)), lambda q, k: q @ W @ k),
    scores.Additive: (
        scores.Additive(jnp.float32(WQ), jnp.float32(WK), jnp.float32(V)),
        lambda q, k: V @ np.tanh(q @ WQ + k @ WK),
    ),
    scores.Concat: (
        scores.Concat(jnp.float32(np.concatenate([WQ, WK])), jnp.float32(V)),
        lambda q, k: V @ np.tanh(np.concatenate([WQ, WK]).T @ np.concatenate([q, k])),
    ),
    scores.LeakySum: (
        scores.LeakySum(jnp.float32(W[0]), jnp.float32(W[1]), jnp.float32(0.3), jnp.float32(-0.5)),
        lambda q, k: leaky(W[0] @ q + 0.3 + W[1] @ k - 0.5),
    ),
    scores.Cosine: (scores.Cosine(3.0), lambda q, k: 3 * q @ k / norm(q) / norm(k)),
    scores.NegativeSquaredDistance: (scores.NegativeSquaredDistance(), lambda q, k: -(norm(q - k) ** 2)),
    scores.Gaussian: (scores.Gaussian(0.8), lambda q, k: -(norm(q - k) ** 2) / (2 * 0.8**2)),
    scores.Boxcar: (scores.Boxcar(3.0), lambda q, k: log(float(norm(q - k) < 3))),
    scores.Triangular: (scores.Triangular(3.0), lambda q, k: log(max(0, 1 - norm(q - k) / 3))),
    scores.Constant: (scores.Constant(), lambda q, k: 0.0),
    scores.QKNorm: (
        scores.QKNorm(jnp.float32(W[0]), jnp.float32(W[1])),
        lambda q, k: (W[0] * q / rms(q)) @ (W[1] * k / rms(k)) / np.sqrt(D),
    ),
    scores.SoftCap: (scores.SoftCap(0.7, scores.Dot()), lambda q, k: 0.7 * np.tanh(q @ k / 0.7)),
}


def test_the_table_holds_every_score():
    every = {
        c for _, c in inspect.getmembers(scores, inspect.isclass) if issubclass(c, scores.Score) and is_dataclass(c)
    }
    assert every == set(TABLE)


@pytest.mark.parametrize("score, formula", TABLE.values(), ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("width", [D, 2])
def test_scores_are_their_formulas(score, formula, width):
    if width < D and jax.tree.leaves(score) and jnp.ndim(jax.tree.leaves(score)[0]):
        pytest.skip("parameters are for width D")
    query, key = QUERY[:, :width], KEY[:, :width]
    scale = np.sqrt(D / width) if isinstance(score, scores.ScaledDot) else 1.0
    expected = np.array([[formula(q, k) for k in key] for q in query]) * scale
    out = jax.jit(lambda query, key: score(query, key))(jnp.float32(query), jnp.float32(key))
    assert out.dtype == jnp.float32 and out.shape == (4, 6)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", [score for score, _ in TABLE.values()], ids=lambda x: type(x).__name__)
def test_preparing_changes_nothing(score):

    @jax.jit
    def every(query, key):
        of_key, keys = score.prepare_key(key)
        of_query, queries = score.prepare_query(query)
        of_both, *sides = scores.prepare(score, query, key)
        return score(query, key), (of_key(query, keys), of_query(queries, key), of_both(*sides))

    expected, prepared = every(jnp.float32(QUERY), jnp.float32(KEY))
    for actual in prepared:
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", [score for score, _ in TABLE.values()], ids=lambda x: type(x).__name__)
def test_gradients_are_finite_at_the_edge(score):
    """Equal points, zero vectors: where distances and norms have no slope."""
    points = jnp.zeros((3, D)).at[0].set(1.0)
    loss = lambda score, q, k: jnp.where(jnp.isfinite(s := score(q, k)), s, 0.0).sum()
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(score, points, points)
    for leaf in jax.tree.leaves(gradients):
        assert np.isfinite(leaf).all()


@pytest.mark.parametrize("kind", [scores.Bilinear, scores.Additive, scores.Concat])
def test_init_makes_parameters_for_different_widths(kind):
    score = jax.eval_shape(lambda: kind.init(jax.random.key(0), query_width=3, key_width=5, hidden=4))
    assert jax.eval_shape(lambda score, *x: score(*x), score, jnp.ones((2, 3)), jnp.ones((6, 5))).shape == (2, 6)
    assert {leaf.dtype for leaf in jax.tree.leaves(score)} == {jnp.dtype("float32")}


def test_one_score_per_head():
    heads = jax.vmap(lambda rng: scores.Additive.init(rng, D, D, H))(jax.random.split(jax.random.key(0), 3))
    query, key = jnp.float32(QUERY), jnp.float32(KEY)
    one_head = lambda score: attend(query, key, key, score=score, implementation="fused", block_k=4)
    out, alone = jax.jit(jax.vmap(one_head))(heads), jax.jit(lambda score: attend(query, key, key, score=score))
    for h in range(3):
        expected = alone(jax.tree.map(lambda x: x[h], heads))
        np.testing.assert_allclose(out[h], expected, rtol=1e-5, atol=1e-6)


def test_a_cosine_stays_between_minus_one_and_one():
    """Of vectors with themselves and their negatives, within two roundings of 1, so that none is clearly above it."""
    x = jnp.float32(np.random.default_rng(0).standard_normal((200, 33)))
    actual = np.asarray(jax.jit(lambda x: scores.Cosine(1.0)(x, jnp.concatenate([x, -x])))(x))
    assert np.abs(actual).max() <= 1 + 2 * np.finfo(np.float32).eps
    np.testing.assert_allclose(np.diag(actual[:, :200]), 1, rtol=1e-6)
