"""Graph attention networks: equations 1 to 6 in NumPy, node by node; neighbors that are none; dropout; sizes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.papers.graph_attention import GraphAttention, GraphHeads, WordProjection
from experiments.papers.options import GraphAttentionConfig

N, F, C, H, U = 6, 5, 3, 2, 4
DRAW = np.random.default_rng(0)
WORDS = jnp.array([[1, 4], [0, 0], [3, 2], [2, 0], [4, 0], [0, 3]])
VALUES = jnp.array([[0.5, 0.5], [1.0, 0.0], [0.3, 0.7], [1.0, 0.0], [1.0, 0.0], [0.2, 0.8]])
EDGES = jnp.array([[0, 0], [0, 1], [0, 2], [1, 1], [2, 0], [2, 2], [3, 3], [3, 4], [4, 3], [4, 4], [5, 5]])


def model(**changes):
    return GraphAttention(GraphAttentionConfig(**({"num_heads": H, "hidden_size": U} | changes)), F, C)


@pytest.fixture(scope="module")
def variables():
    shapes = jax.eval_shape(model().init, jax.random.key(0), WORDS, VALUES, EDGES)
    return jax.tree.map(lambda x: jnp.asarray(DRAW.normal(size=x.shape), jnp.float32), shapes)


def apply(variables, *inputs, of=None, **options):
    of = of or model()
    return jax.jit(lambda variables, *inputs: of.apply(variables, *inputs, **options))(variables, *inputs)


def layer(x, kernels, p):
    """One head after the other, one node after the other: the mean of the neighbors' vectors by equation 3."""
    heads = []
    for h, kernel in enumerate(kernels):
        vectors = x @ kernel
        out = np.zeros_like(vectors)
        for i in range(N):
            neighbors = [k for q, k in np.asarray(EDGES).tolist() if q == i]
            e = [
                vectors[i] @ p["score_query_vector"][h]
                + p["score_query_bias"][h]
                + vectors[j] @ p["score_key_vector"][h]
                + p["score_key_bias"][h]
                for j in neighbors
            ]
            e = np.exp([z if z > 0 else 0.2 * z for z in e])
            for weight, j in zip(e / e.sum(), neighbors, strict=True):
                out[i] += weight * vectors[j]
        heads.append(out + p["bias"][h])
    return heads


def test_logits_are_the_equations(variables):
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), variables["params"])
    x = np.zeros((N, F))
    for n in range(N):
        for word, value in zip(WORDS[n].tolist(), VALUES[n].tolist()):
            x[n, word] += value
    heads = layer(x, p["hidden_projection"]["kernel"].swapaxes(0, 1), p["hidden"])
    hidden = np.concatenate([np.where(head > 0, head, np.exp(np.minimum(head, 0)) - 1) for head in heads], axis=1)
    [logits] = layer(hidden, [p["output_projection"]["kernel"]], p["output"])
    np.testing.assert_allclose(apply(variables, WORDS, VALUES, EDGES)[0], logits, rtol=1e-4, atol=1e-5)


def test_distant_nodes_have_no_effect(variables):
    logits = apply(variables, WORDS, VALUES, EDGES)[0]
    changed_logits = apply(variables, WORDS.at[3].set(1), VALUES.at[3].set(9.0), EDGES)[
        0
    ]  # 3 and 4 know each other alone
    np.testing.assert_array_equal(changed_logits[jnp.array([0, 1, 2, 5])], logits[jnp.array([0, 1, 2, 5])])
    assert not np.allclose(changed_logits[3:5], logits[3:5])
    further = apply(variables, WORDS, VALUES.at[1].set(9.0), EDGES)[0]
    assert not np.allclose(further[2], logits[2])  # 2 attends to 0, which attends to 1


@pytest.mark.slow
def test_without_dropout_training_is_evaluation(variables):
    logits = apply(variables, WORDS, VALUES, EDGES)[0]
    rngs = {"dropout": jax.random.key(3)}
    still = apply(variables, WORDS, VALUES, EDGES, of=model(dropout=0.0, attention_dropout=0.0), train=True, rngs=rngs)
    np.testing.assert_allclose(still[0], logits, rtol=1e-6)
    for rates in ({"dropout": 0.0}, {"attention_dropout": 0.0}):
        dropped = apply(variables, WORDS, VALUES, EDGES, of=model(**rates), train=True, rngs=rngs)[0]
        assert not np.allclose(dropped, logits)


@pytest.mark.slow
def test_values_and_weights_are_both_dropped():
    """Nodes that attend to themselves alone, with vectors of ones: what is kept is divided by 0.4, for each dropout."""
    self_edges, vectors = jnp.repeat(jnp.arange(50)[:, None], 2, axis=1), jnp.ones((50, H, U))
    outputs = {}
    for rates in ((0.6, 0.0), (0.0, 0.6), (0.6, 0.6)):
        heads, rngs = GraphHeads("mean", *rates), {"params": jax.random.key(0), "dropout": jax.random.key(1)}
        (out, _), _ = heads.init_with_output(rngs, vectors, self_edges, train=True)
        outputs[rates] = np.asarray(out)
    assert [set(np.unique(out.round(4)).tolist()) for out in outputs.values()] == [{0.0, 2.5}, {0.0, 2.5}, {0.0, 6.25}]
    assert (np.ptp(outputs[0.6, 0.0], axis=2) > 0).any() and not np.ptp(outputs[0.0, 0.6], axis=2).any()


def test_each_head_drops_inputs_independently():
    projection = WordProjection(F, 8, 1, 0.6)
    kernel = {"params": {"kernel": jnp.ones((F, 8, 1))}}
    out = projection.apply(kernel, WORDS, VALUES, train=True, rngs={"dropout": jax.random.key(0)})
    assert len(np.unique(np.asarray(out)[:, :, 0], axis=1).T) > 1
    word_outputs = np.asarray(out)[1, :, 0]  # a single word of value 1
    assert set(word_outputs.round(4)) <= {0.0, 2.5}


def test_weights_that_are_shown_sum_to_one(variables):
    _, weights = apply(variables, WORDS, VALUES, EDGES, return_weights=True)
    assert weights["hidden"].shape == (H, len(EDGES)) and weights["output"].shape == (1, len(EDGES))
    for row in (*weights["hidden"], *weights["output"]):
        np.testing.assert_allclose(np.bincount(EDGES[:, 0], row), 1.0, rtol=1e-5)


def test_sizes_and_initial_values_match_official_code():
    """Counted for Cora: (1433 8 + 2 (8 + 1) + 8) 8 numbers in the first layer and 64 7 + 2 (7 + 1) + 7 in the second;
    Glorot's bound is that of one head's matrix, sqrt(6 / (1433 + 8))."""
    cora = GraphAttention(GraphAttentionConfig(), 1433, 7)
    params = jax.jit(cora.init)(jax.random.key(0), WORDS, VALUES, EDGES)["params"]
    assert sum(x.size for x in jax.tree.leaves(params)) == (1433 * 8 + 18 + 8) * 8 + 64 * 7 + 16 + 7
    largest = float(jnp.abs(params["hidden_projection"]["kernel"]).max())
    bound = (6 / (1433 + 8)) ** 0.5
    assert 0.99 * bound < largest <= bound
    vectors = params["hidden"]["score_query_vector"]
    assert vectors.shape == (8, 8) and 0.8 * (6 / 9) ** 0.5 < float(jnp.abs(vectors).max()) <= (6 / 9) ** 0.5
    assert not params["hidden"]["score_key_bias"].any() and not params["output"]["bias"].any()
