"""NTM addressing against the paper written as NumPy loops, and the relations that must hold between its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attention_jax.ops import addressing as ops


def paper(memory, previous, key, beta, gate, shifts, gamma):
    """Equations (5) to (9) of Graves et al. 2014, index by index."""
    n = len(memory)
    norm = lambda vector: np.sqrt(sum(a * a for a in vector))
    similarity = [sum(a * b for a, b in zip(row, key)) / (norm(row) * norm(key)) for row in memory]
    content = [np.exp(beta * s) for s in similarity]
    content = [c / sum(content) for c in content]
    gated = [gate * content[i] + (1 - gate) * previous[i] for i in range(n)]
    reach = len(shifts) // 2
    shifted = [
        sum(gated[j] * shifts[(i - j + reach) % n] for j in range(n) if (i - j + reach) % n < len(shifts))
        for i in range(n)
    ]
    powers = [w**gamma for w in shifted]
    return np.array(powers) / sum(powers)


def draw(seed, n=7, width=4, shifts=3):
    rng = np.random.default_rng(seed)
    memory, previous = rng.normal(size=(n, width)), rng.dirichlet(np.ones(n))
    address = (
        rng.normal(size=width),
        rng.uniform(0, 20),
        rng.uniform(),
        rng.dirichlet(np.ones(shifts)),
        rng.uniform(1, 5),
    )
    return memory, previous, address


def f32(tree):
    return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)


@given(st.integers(0, 10**6), st.sampled_from([1, 3, 5]))
@settings(max_examples=20, deadline=None)
def test_locate_is_the_paper(seed, shifts):
    memory, previous, address = draw(seed, shifts=shifts)
    actual = jax.jit(ops.locate)(f32(memory), f32(previous), ops.Address(*f32(address)))
    np.testing.assert_allclose(actual, paper(memory, previous, *address), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("by", [-2, -1, 0, 1, 2])
def test_one_hot_shift_is_a_roll(by):
    weights = f32(np.random.default_rng(0).dirichlet(np.ones(9)))
    np.testing.assert_array_equal(ops.shift(weights, jax.nn.one_hot(by + 2, 5)), jnp.roll(weights, by))


def test_sharpening_by_one_or_by_much():
    weights = f32(np.random.default_rng(0).dirichlet(np.ones(9)))
    np.testing.assert_allclose(ops.sharpen(weights, jnp.array(1.0)), weights, atol=1e-6)
    np.testing.assert_allclose(ops.sharpen(weights, jnp.array(1e4)), jax.nn.one_hot(weights.argmax(), 9), atol=1e-5)


def test_gate_interpolates_between_previous_and_content_weights():
    memory, previous, (key, beta, _, _, _) = draw(1)
    stay, gamma = jnp.array([0.0, 1.0, 0.0]), jnp.array(1.0)
    closed = ops.Address(f32(key), jnp.float32(beta), jnp.array(0.0), stay, gamma)
    np.testing.assert_allclose(ops.locate(f32(memory), f32(previous), closed), previous, atol=1e-6)
    opened, content = closed._replace(gate=gamma), ops.content_weights(f32(memory), f32(key), jnp.float32(beta))
    np.testing.assert_allclose(ops.locate(f32(memory), f32(previous), opened), content, atol=1e-6)


def test_erasing_fully_and_adding_replaces_the_row():
    rng = np.random.default_rng(0)
    memory, new = f32(rng.normal(size=(5, 3))), f32(rng.normal(size=3))
    written = ops.write(memory, jax.nn.one_hot(jnp.array([2]), 5), jnp.ones((1, 3)), new[None])
    np.testing.assert_allclose(written, memory.at[2].set(new), atol=1e-6)
    np.testing.assert_allclose(ops.read(written, jax.nn.one_hot(2, 5)), new, atol=1e-6)


def test_write_heads_commute_and_match_paper():
    rng = np.random.default_rng(0)
    memory, weights, erase, add = (
        rng.normal(size=(6, 3)),
        rng.dirichlet(np.ones(6), 2),
        rng.uniform(size=(2, 3)),
        rng.normal(size=(2, 3)),
    )
    expected = memory.copy()
    for i in range(6):
        for j in range(3):
            for h in range(2):
                expected[i, j] *= 1 - weights[h, i] * erase[h, j]
            expected[i, j] += sum(weights[h, i] * add[h, j] for h in range(2))
    np.testing.assert_allclose(ops.write(*f32((memory, weights, erase, add))), expected, atol=1e-5)
    np.testing.assert_allclose(ops.write(*f32((memory, weights[::-1], erase[::-1], add[::-1]))), expected, atol=1e-5)


@jax.jit
def value_and_gradients(memory, previous, address):
    """Of a number that depends on every weight."""
    objective = lambda *case: (ops.locate(*case) * jnp.arange(6.0)).sum()
    return jax.value_and_grad(objective, (0, 1, 2))(memory, previous, address)


@pytest.mark.parametrize("memory", [0.0, 1e-6, 1e6])
@pytest.mark.parametrize("beta", [0.0, 1.0, 1e6])
@pytest.mark.parametrize("gamma", [1.0, 1e4])
def test_gradients_are_finite_at_the_edge(memory, beta, gamma):
    address = ops.Address(jnp.zeros(4), jnp.array(beta), jnp.array(1.0), jnp.array([0.0, 1.0, 0.0]), jnp.array(gamma))
    for key in (jnp.zeros(4), jnp.ones(4)):
        case = jnp.full((6, 4), memory), jax.nn.one_hot(0, 6), address._replace(key=key)
        value, gradients = value_and_gradients(*case)
        assert np.isfinite(value) and all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
