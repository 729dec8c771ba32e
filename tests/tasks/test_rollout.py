"""Attention rollout against the product written out."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.tasks.attention_maps import rollout


def test_two_layers_by_hand():
    first = jnp.array([[1.0, 0.0], [1.0, 0.0]])  # everybody looks at position 0
    second = jnp.array([[0.0, 1.0], [0.0, 1.0]])  # everybody looks at position 1
    # A1 = [[1, 0], [.5, .5]], A2 = [[.5, .5], [0, 1]], rollout = A2 A1
    actual = rollout(jnp.stack([first, second])[:, None])
    np.testing.assert_allclose(actual, [[0.75, 0.25], [0.5, 0.5]], atol=1e-6)


def test_rows_sum_to_one_and_causal_stays_causal():
    weights = jax.nn.softmax(
        jax.random.normal(jax.random.key(0), (3, 2, 5, 5)), where=jnp.tril(jnp.ones((5, 5), bool))[None, None]
    )
    actual = rollout(weights)
    np.testing.assert_allclose(actual.sum(axis=-1), np.ones(5), atol=1e-6)
    assert np.array_equal(np.triu(actual, 1), np.zeros((5, 5)))
    assert np.tril(actual).min() >= 0 and actual[4, 0] > 0
