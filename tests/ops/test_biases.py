"""Biases against their formulas at far positions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.ops.biases import ALiBi, Forget, Location, ShawBias, T5Bias, TransformerXLBias
from tests.ops import oracle

Q, K, D = 5, 300, 4
QUERY = np.random.default_rng(0).standard_normal((Q, D))
QUERY_POSITIONS, KEY_POSITIONS = 140 + np.arange(Q), np.arange(K)


def of(bias):
    return jax.jit(lambda *args: bias(*args))(np.float32(QUERY), QUERY_POSITIONS, KEY_POSITIONS)


BIASES = {
    "ALiBi": ALiBi(0.25),
    "Forget": Forget(-jnp.cumsum(jnp.arange(310.0) / 500)),
    "ShawBias": ShawBias.init(jax.random.key(0), D, reach=3),
    "TransformerXLBias": TransformerXLBias.init(jax.random.key(0), D, sinusoids=6),
    "T5Bias": T5Bias(jnp.arange(20.0), max_distance=100),
    "T5Bias, causal": T5Bias(jnp.arange(20.0), max_distance=100, bidirectional=False),
    "Location": Location.init(jax.random.key(0), D, positions=310),
}


@pytest.mark.parametrize("name", BIASES)
def test_biases_are_their_formulas(name):
    """At positions from 140, of 300 keys."""
    bias = jax.tree.map(np.float64, BIASES[name])
    expected = oracle.bias_of(bias, QUERY, QUERY_POSITIONS[:, None], KEY_POSITIONS[None], 140)
    tolerance = 1e-4 if name == "TransformerXLBias" else 1e-6
    np.testing.assert_allclose(of(BIASES[name]), expected, rtol=1e-5, atol=tolerance)


def test_location():
    """Luong et al. 2015, eq. 8: row k of W_a for position k, wherever the block of keys begins."""
    bias = Location.init(jax.random.key(0), D, positions=310)
    table = np.asarray(bias.kernel, np.float64)
    block = bias(jnp.float32(QUERY), jnp.asarray(QUERY_POSITIONS), jnp.arange(308, 312))
    np.testing.assert_allclose(block[:, :2], QUERY @ table[:, 308:], rtol=1e-5, atol=1e-6)
    assert np.isnan(block[:, 2:]).all()  # positions that it does not know
    with pytest.raises(InputError, match="309 source positions, got 310"):
        Location(bias.kernel[:, :309])(jnp.float32(QUERY), jnp.asarray(QUERY_POSITIONS), jnp.arange(310))


def test_slopes_of_alibi():
    np.testing.assert_allclose(ALiBi.slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_allclose(ALiBi.slopes(3), [2.0**-4, 2.0**-8, 2.0**-2])  # two of two heads, then the first of four
