"""Sinusoidal and rotary encodings: the relations they were invented for."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings, strategies

from attention_jax.ops.positions import rotary, sinusoidal


def test_sinusoidal_is_the_paper_s_formula():
    actual, table = sinusoidal(jnp.arange(7), 6), np.zeros((7, 6))
    for t in range(7):
        for i in range(3):
            table[t, 2 * i] = np.sin(t / 10000 ** (2 * i / 6))
            table[t, 2 * i + 1] = np.cos(t / 10000 ** (2 * i / 6))
    np.testing.assert_allclose(actual, table, atol=1e-6)
    assert sinusoidal(jnp.arange(7), 5).shape == (7, 5)


def test_encodings_of_float64_are_those_of_float64():
    """Near and far, of which float32 would be off by 1e-7."""
    positions = np.array([0, 1, 7, 4095, 4096, 10**6])
    angles = positions[:, None] * 10_000.0 ** (-np.arange(3) / 3)
    with jax.enable_x64(True):
        table = sinusoidal(jnp.asarray(positions), 6, jnp.float64)
        turned = rotary(jnp.ones((6, 6), jnp.float64), jnp.asarray(positions))
    np.testing.assert_allclose(table, np.stack([np.sin(angles), np.cos(angles)], axis=2).reshape(6, 6), atol=1e-9)
    first, second = np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)
    np.testing.assert_allclose(turned, np.concatenate([first, second], axis=1), atol=1e-9)


@given(strategies.integers(0, 40))
@settings(max_examples=10, deadline=None)
def test_a_shift_is_one_linear_map(k):
    """PE(t + k) = R_k PE(t) for every t: a rotation of each pair of channels."""
    width = 8
    encoding, encoding_k_later = (
        np.asarray(sinusoidal(jnp.arange(30), width)),
        np.asarray(sinusoidal(k + jnp.arange(30), width)),
    )
    matrix = np.zeros((width, width))
    for i in range(width // 2):
        angle = k / 10000 ** (2 * i / width)
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    np.testing.assert_allclose(encoding @ matrix, encoding_k_later, atol=1e-5)


@jax.jit
def products(q, k, start):
    return rotary(q, start + jnp.arange(4)) @ rotary(k, start + jnp.arange(4)).T


@given(strategies.integers(0, 30), strategies.integers(0, 20))
@settings(max_examples=10, deadline=None)
def test_rotated_products_see_only_the_difference(start, shift):
    q, k = jax.random.normal(jax.random.key(0), (2, 4, 6))
    np.testing.assert_allclose(products(q, k, start), products(q, k, start + shift), atol=2e-5)


def test_rotation_keeps_lengths_and_position_zero():
    x = jax.random.normal(jax.random.key(0), (5, 7))  # odd: the last channel stays
    actual = jax.jit(rotary)(x, jnp.arange(5))
    np.testing.assert_allclose(jnp.linalg.norm(actual, axis=1), jnp.linalg.norm(x, axis=1), rtol=1e-5)
    np.testing.assert_array_equal(actual[0], x[0])
    np.testing.assert_array_equal(actual[:, 6], x[:, 6])
    assert np.abs(actual - x)[1:, :6].max() > 0.1
