"""Attention over edges is `attend` with the adjacency matrix as its mask: values, gradients, dropout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax.ops import scores
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.masks import dense
from experiments.papers.graph_attention import attend_edges, edge_weights

DRAW = np.random.default_rng(0)
QUERY, KEY, VALUE = (jnp.asarray(DRAW.normal(size=shape), jnp.float32) for shape in ((9, 4), (7, 4), (7, 3)))
ADJACENCY = DRAW.random((9, 7)) < 0.4
ADJACENCY[3] = False  # a node without neighbors
EDGES = jnp.asarray(DRAW.permutation(np.argwhere(ADJACENCY)), jnp.int32)
SCORES = {
    "LeakySum": scores.LeakySum.init(jax.random.key(1), 4, 4),
    "Additive": scores.Additive.init(jax.random.key(1), 4, 4, 6),
    "ScaledDot": scores.ScaledDot(),
    "Constant": scores.Constant(),
    "Boxcar": scores.Boxcar(2.0),  # -inf for some edges
}


def both(score, dropout):
    """(output, gradients of score, query, key and value) over the edges and with the matrix."""
    options = {"dropout": dropout, "rng": jax.random.key(5)}
    bar = jnp.asarray(np.random.default_rng(1).normal(size=(9, 3)), jnp.float32)

    def over_edges(score, query, key, value):
        out = attend_edges(query, key, value, EDGES, score=score, **options)
        return (out * bar).sum(), out

    def over_matrix(score, query, key, value):
        out = attend(query, key, value, score=score, mask=dense(jnp.asarray(ADJACENCY)), **options)
        return (out * bar).sum(), out

    every = dict(argnums=(0, 1, 2, 3), has_aux=True)
    return [jax.jit(jax.grad(f, **every))(score, QUERY, KEY, VALUE) for f in (over_edges, over_matrix)]


CASES = [(score, dropout) for score in SCORES for dropout in (0.0, 0.6)]


@pytest.mark.slow
@pytest.mark.parametrize(("score", "dropout"), slow_but([*((s, 0.0) for s in SCORES), ("LeakySum", 0.6)], CASES))
def test_it_is_attend_with_the_adjacency_matrix(score, dropout):
    actual, expected = both(SCORES[score], dropout)
    assert not actual[1][3].any() and actual[1].any()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), actual, expected)


def test_dropout_drops():
    run = lambda rng: attend_edges(QUERY, KEY, VALUE, EDGES, score=SCORES["LeakySum"], dropout=0.6, rng=rng)
    with_it, without = jax.jit(lambda: [run(rng) for rng in (jax.random.key(0), None)])()
    assert not np.allclose(with_it, without)


def test_edge_weights_equal_matrix_and_sum_to_one():
    score = SCORES["LeakySum"]

    @jax.jit
    def both():
        matrix = attention_weights(QUERY, KEY, score=score, mask=dense(jnp.asarray(ADJACENCY)))
        return edge_weights(QUERY, KEY, EDGES, score=score), matrix

    weights, matrix = map(np.asarray, both())
    np.testing.assert_allclose(weights, matrix[EDGES[:, 0], EDGES[:, 1]], rtol=1e-5)
    total = np.bincount(EDGES[:, 0], weights, minlength=9)
    np.testing.assert_allclose(total, ADJACENCY.any(1).astype(float), atol=1e-6)


def test_large_scores_do_not_overflow():
    out = jax.jit(lambda: attend_edges(1e3 * QUERY, 1e3 * KEY, VALUE, EDGES, score=scores.Dot()))()
    assert np.isfinite(out).all()
