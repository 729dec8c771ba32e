"""Sinusoidal and rotary encodings: the relations they were invented for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies

from attention_jax.ops.positions import YarnScaling, rotary, sinusoidal


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


def yarn(theta, width, factor, original, fast=32.0, slow=1.0, truncate=True):
    """The frequencies of YaRN in float64, pair by pair (Peng et al. 2023, section 3.2, with the ramp of the index)."""
    pair = lambda turns: width * np.log(original / (2 * np.pi * turns)) / (2 * np.log(theta))
    first, last = pair(fast), pair(slow)
    if truncate:
        first, last = np.floor(first), np.ceil(last)
    first, last, frequencies = max(first, 0), min(last, width - 1), []
    for i in range(width // 2):
        blend = min(max((i - first) / (last - first), 0), 1)
        frequencies.append(theta ** (-2 * i / width) * (1 - blend + blend / factor))
    return np.array(frequencies)


YARNS = [
    (YarnScaling(4.0, 32768), 1e6, 16),
    (YarnScaling(8.0, 2048, 16, 2, 1.5), 1e4, 12),
    (YarnScaling(32.0, 4096, truncate=False), 150_000.0, 16),
    (YarnScaling(2.0, 64), 100.0, 8),
]
YARN_OF_TRANSFORMERS = [
    [1.0, 0.17782794, 0.031622779, 0.0042175599, 0.00050000002, 4.4456985e-05, 7.9056936e-06, 1.4058534e-06],
    [1.0, 0.21544345, 0.032877915, 0.0041666664, 0.00026930429, 5.8019868e-05],
    [1.0, 0.225418, 0.050813273, 0.0067949593, 0.00045648392, 1.8188337e-05, 4.0999785e-06, 9.2420896e-07],
    [1.0, 0.26352313, 0.066666663, 0.015811389],
]
"""ROPE_INIT_FUNCTIONS["yarn"](LlamaConfig(head_dim=width, rope_parameters={"rope_type": "yarn", ...}), "cpu")[0] of
transformers 5.24 for `YARNS`, in float32; its attention factors are 1.138629436111989, 1.5 and 1.3465735902799727."""


@pytest.mark.parametrize(("case", "expected"), list(zip(YARNS, YARN_OF_TRANSFORMERS)))
def test_frequencies_of_yarn_are_the_formula(case, expected):
    scaling, theta, width = case
    numbers = scaling.factor, scaling.original, scaling.fast, scaling.slow, scaling.truncate
    actual = scaling(theta ** (-np.arange(0, width, 2) / width))
    np.testing.assert_allclose(actual, yarn(theta, width, *numbers), rtol=1e-12)
    np.testing.assert_allclose(actual, expected, rtol=1e-6)


def test_the_amplitude_of_yarn_is_equation_22():
    assert [scaling.amplitude for scaling, *_ in YARNS[:3]] == [1.138629436111989, 1.5, 1.3465735902799727]
    assert YarnScaling(1.0, 64).amplitude == 1


@pytest.mark.parametrize("case", YARNS[:3])
def test_yarn_turns_near_and_far_by_the_same_frequencies(case):
    """Far ones by integer arithmetic, and both in float64, under a jit that does not know the frequencies."""
    scaling, theta, width = case
    positions = np.array([0, 1, 7, 4095, 4096, 131_071, 10**6])
    numbers = scaling.factor, scaling.original, scaling.fast, scaling.slow, scaling.truncate
    angles = positions[:, None] * yarn(theta, width, *numbers)
    expected = scaling.amplitude * np.concatenate([np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)], 1)
    run = lambda x: rotary(x, jnp.asarray(positions), theta, scaling)
    atol = np.where(positions < 4096, positions * 1e-7 + 1e-6, 2e-6)[:, None]
    assert (np.abs(jax.jit(run)(jnp.ones((7, width))) - expected) <= atol).all()
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.jit(run)(jnp.ones((7, width), jnp.float64)), expected, atol=1e-9)


def test_yarn_of_few_or_fast_pairs_keeps_them():
    scaling = YarnScaling(4.0, 10**6)
    np.testing.assert_array_equal(scaling(np.ones(1)), [1.0])
    fast = 2.0 ** (-np.arange(4) / 4)  # all turn more than 32 times, and the ramp begins beyond the last
    np.testing.assert_array_equal(scaling(fast), fast)


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


def test_the_inverse_rotation_undoes_the_amplitude_too():
    x, positions, scaling = jax.random.normal(jax.random.key(0), (5, 7)), jnp.arange(5) * 1000, YarnScaling(4.0, 64.0)
    rotated = rotary(x, positions, 10_000.0, scaling)
    np.testing.assert_allclose(rotary(rotated, positions, 10_000.0, scaling, inverse=True), x, atol=1e-5)


def partial_rotary(x, positions, frequencies, amplitude=1.0):
    """As transformers: apply_rotary_pos_emb of the first channels, and what is left beside them (GLM, StableLM)."""
    half = len(frequencies)
    angles = np.concatenate([positions[:, None] * frequencies] * 2, axis=1)
    turned, passed = x[:, : 2 * half], x[:, 2 * half :]
    rotated_half = np.concatenate([-turned[:, half:], turned[:, :half]], axis=1)
    turned = amplitude * (turned * np.cos(angles) + rotated_half * np.sin(angles))
    return np.concatenate([turned, passed], axis=1)


@pytest.mark.parametrize("scaling", [None, YarnScaling(4.0, 64)])
def test_a_fraction_of_the_channels_is_rotated(scaling):
    """Frequencies are those of a head as wide as what is rotated, int(16 * 0.6) = 9 without its odd channel."""
    x, positions = np.random.default_rng(0).normal(size=(7, 16)), np.arange(3, 10)
    frequencies = 100.0 ** (-np.arange(4) / 4) if scaling is None else yarn(100.0, 8, 4.0, 64)
    for fraction in (0.5, 0.6):
        expected = partial_rotary(x, positions, frequencies, getattr(scaling, "amplitude", 1.0))
        arguments = jnp.asarray(positions), 100.0, scaling
        actual = rotary(jnp.asarray(x, jnp.float32), *arguments, fraction=fraction)
        np.testing.assert_allclose(actual, expected, atol=1e-5)
        back = rotary(actual, *arguments, inverse=True, fraction=fraction)
        np.testing.assert_allclose(back, x, atol=1e-5)
