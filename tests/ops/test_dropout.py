"""Dropout: free at 0, unbiased, and the rate may be traced."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.dropout import dropout

x = jnp.ones((200, 200))


def test_rate_and_mean():
    y = dropout(x, 0.3, jax.random.key(0))
    assert abs((y == 0).mean() - 0.3) < 0.01
    np.testing.assert_allclose(y[y > 0], 1 / 0.7, rtol=1e-6)


def test_no_key_or_no_rate_changes_nothing():
    assert dropout(x, 0.5, None) is x
    assert dropout(x, 0.0, jax.random.key(0)) is x


def test_traced_rate_compiles_once_and_reaches_both_ends():
    f = jax.jit(dropout)
    np.testing.assert_array_equal(f(x, 0.0, jax.random.key(0)), x)
    np.testing.assert_array_equal(f(x, 1.0, jax.random.key(0)), 0 * x)
    np.testing.assert_array_equal(f(x, 0.25, jax.random.key(0)), dropout(x, 0.25, jax.random.key(0)))
    assert f._cache_size() == 1


def test_gradient_passes_where_the_value_passes():
    y, back = jax.vjp(lambda v: dropout(v, 0.5, jax.random.key(1)), x)
    np.testing.assert_array_equal(back(x)[0], y)


def test_draws_look_independent():
    """Of one another, of their neighbors in each direction, and between keys: correlations are within 4 / sqrt(n)."""
    noise = [np.asarray(dropout(x, 0.5, jax.random.key(seed))) - 1 for seed in range(4)]
    for sample in noise:
        for shift, axis in ((1, 0), (1, 1), (2, 1), (64, 1)):
            assert abs((sample * np.roll(sample, shift, axis)).mean()) < 4 / 200
        assert np.abs(sample.mean(0)).max() < 5 / 200**0.5 and np.abs(sample.mean(1)).max() < 5 / 200**0.5
    for i in range(4):
        for j in range(i):
            assert abs((noise[i] * noise[j]).mean()) < 4 / 200
