"""Biases against loops written from the papers."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.errors import InputError
from attention_jax.ops.biases import ALiBi, Location, ShawBias, T5Bias, TransformerXLBias

Q, K, D = 5, 300, 4
QUERY = np.random.default_rng(0).standard_normal((Q, D))
QUERY_POSITIONS, KEY_POSITIONS = 140 + np.arange(Q), np.arange(K)


def of(bias):
    return jax.jit(lambda *args: bias(*args))(np.float32(QUERY), QUERY_POSITIONS, KEY_POSITIONS)


def test_shaw():
    bias = ShawBias.init(jax.random.key(0), D, reach=3)
    table = np.asarray(bias.table, np.float64)
    expected = [
        [QUERY[i] @ table[np.clip(k - q, -3, 3) + 3] / 2 for k in KEY_POSITIONS] for i, q in enumerate(QUERY_POSITIONS)
    ]
    np.testing.assert_allclose(of(bias), expected, rtol=1e-5, atol=1e-6)


def test_transformer_xl():
    """W r(i - j) with r written out: cosines of the distance times 10000^(-2 f / S), then the sines."""
    bias = TransformerXLBias.init(jax.random.key(0), D, sinusoids=6)
    kernel, frequencies = np.asarray(bias.kernel, np.float64), 10000.0 ** (-np.arange(3) / 3)
    wave = lambda distance: np.concatenate([np.cos(distance * frequencies), np.sin(distance * frequencies)])
    expected = [[QUERY[i] @ kernel @ wave(q - k) / 2 for k in KEY_POSITIONS] for i, q in enumerate(QUERY_POSITIONS)]
    np.testing.assert_allclose(of(bias), expected, rtol=1e-4, atol=1e-4)


def test_location():
    """Luong et al. 2015, eq. 8: row k of W_a for position k, wherever the block of keys begins."""
    bias = Location.init(jax.random.key(0), D, positions=310)
    table = np.asarray(bias.kernel, np.float64)
    np.testing.assert_allclose(of(bias), QUERY @ table[:, :K], rtol=1e-5, atol=1e-6)
    block = bias(jnp.float32(QUERY), jnp.asarray(QUERY_POSITIONS), jnp.arange(308, 312))
    np.testing.assert_allclose(block[:, :2], QUERY @ table[:, 308:], rtol=1e-5, atol=1e-6)
    assert np.isnan(block[:, 2:]).all()  # positions that it does not know
    with pytest.raises(InputError, match="309 source positions, got 310"):
        Location(bias.kernel[:, :309])(jnp.float32(QUERY), jnp.asarray(QUERY_POSITIONS), jnp.arange(310))


def bucket(relative, buckets, max_distance, bidirectional):
    """Raffel et al. 2020: exact buckets for the near half, logarithmic ones up to max_distance, one for all beyond."""
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if relative > 0 else 0
        relative = abs(relative)
    else:
        relative = max(-relative, 0)
    exact = buckets // 2
    if relative < exact:
        return offset + relative
    far = exact + int(math.log(relative / exact) / math.log(max_distance / exact) * (buckets - exact))
    return offset + min(far, buckets - 1)


@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5(bidirectional):
    table = jnp.arange(20, dtype=jnp.float32)
    bias = T5Bias(table, max_distance=100, bidirectional=bidirectional)
    expected = [[bucket(k - q, 20, 100, bidirectional) for k in KEY_POSITIONS] for q in QUERY_POSITIONS]
    np.testing.assert_array_equal(of(bias), expected)


def test_alibi():
    expected = -0.25 * np.abs(QUERY_POSITIONS[:, None] - KEY_POSITIONS[None, :])
    np.testing.assert_allclose(of(ALiBi(0.25)), expected)
    np.testing.assert_allclose(ALiBi.slopes(8), [2.0**-i for i in range(1, 9)])
    np.testing.assert_allclose(ALiBi.slopes(3), [2.0**-4, 2.0**-8, 2.0**-2])  # two of two heads, then the first of four
