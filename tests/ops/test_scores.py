"""Every score against its formula in float64; what they promise about preparation."""

import inspect
from dataclasses import is_dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import scores
from attention_jax.ops.attention import attend
from tests.ops import oracle
from tests.ops.cases import SCORES

D, H = 5, 7
DRAW = np.random.default_rng(1)
QUERY, KEY = DRAW.standard_normal((4, D)), DRAW.standard_normal((6, D))
draw = lambda *shape: jnp.asarray(DRAW.standard_normal(shape), jnp.float32)

EVERY = [make(draw, D) for make in SCORES.values()]
BY_CLASS = [score for score in EVERY if isinstance(score, scores.Score)]


def test_the_table_holds_every_score():
    every = {
        c for _, c in inspect.getmembers(scores, inspect.isclass) if issubclass(c, scores.Score) and is_dataclass(c)
    }
    assert every == set(map(type, BY_CLASS))


@pytest.mark.parametrize("score", EVERY, ids=oracle.name_of)
def test_scores_are_their_formulas(score):
    expected = oracle.SCORES[oracle.name_of(score)](jax.tree.map(np.float64, score), QUERY, KEY)
    out = jax.jit(lambda query, key: score(query, key))(jnp.float32(QUERY), jnp.float32(KEY))
    assert out.dtype == jnp.float32 and out.shape == (4, 6)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("score", BY_CLASS, ids=oracle.name_of)
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


@pytest.mark.slow
@pytest.mark.parametrize("score", BY_CLASS, ids=oracle.name_of)
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
