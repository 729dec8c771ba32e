"""Dropout of attention weights by position: rates at the ends, given as a number or traced."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.attention import attend
from attention_jax.ops.dropout import dropout_bits, dropout_factor

WORDS = dropout_bits(jax.random.key(0), 200, 300)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5])
def test_traced_rate_equals_number(rate):
    plain, traced = dropout_factor(*WORDS, rate), jax.jit(lambda rate: dropout_factor(*WORDS, rate))(rate)
    np.testing.assert_allclose(plain, traced, rtol=1e-6)
    assert np.mean(plain == 0) == pytest.approx(rate, abs=0.01)


@pytest.mark.slow
def test_traced_rate_of_one_drops_all_weights():
    query, key, value = jax.random.normal(jax.random.key(0), (3, 4, 8))
    call = lambda rate, query: attend(query, key, value, dropout=rate, rng=jax.random.key(1)).sum()
    out, gradients = jax.value_and_grad(call, argnums=(0, 1))(jnp.float32(1.0), query)
    assert out == 0 and all(np.isfinite(gradient).all() for gradient in gradients)
