"""Layer normalization against flax's, forward and backward."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.norm import layer_norm


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 4)])
def test_values_and_gradients(shape):
    x, weight = jax.random.normal(jax.random.key(0), (2, *shape)) + 3.0
    scale, bias = jax.random.normal(jax.random.key(1), (2, shape[-1]))

    def oracle(x, scale, bias):
        return nn.LayerNorm(1e-5).apply({"params": {"scale": scale, "bias": bias}}, x)

    both = jax.jit(lambda *args: [layer_norm(*args, 1e-5), oracle(*args)])
    np.testing.assert_allclose(*both(x, scale, bias), atol=1e-5)
    ours_bar, theirs_bar = (
        jax.jit(jax.grad(lambda *args, f=f: (f(*args) * weight).sum(), argnums=(0, 1, 2)))(x, scale, bias)
        for f in (layer_norm, oracle)
    )
    for our_bar, their_bar in zip(ours_bar, theirs_bar, strict=True):
        np.testing.assert_allclose(our_bar, their_bar, atol=2e-5)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (3, 8), jnp.float64)
        loss = lambda x: ((x + layer_norm(x, jnp.ones(8), jnp.zeros(8))) ** 2).sum()
        plain = lambda x: ((x + (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)) ** 2).sum()
        actual, expected = jax.jit(lambda x: [jax.grad(function)(x) for function in (loss, plain)])(x)
        assert actual.dtype == jnp.float64
        np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_bfloat16_keeps_float32_statistics():
    x = (jax.random.normal(jax.random.key(0), (4, 64)) + 100.0).astype(jnp.bfloat16)
    norm = jax.jit(lambda x: layer_norm(x, jnp.ones(64), jnp.zeros(64)))
    actual = norm(x)
    assert actual.dtype == jnp.bfloat16
    np.testing.assert_allclose(actual.astype(np.float32), norm(x.astype(jnp.float32)), atol=0.02)
    gradients = jax.jit(jax.grad(lambda *a: layer_norm(*a).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
    x_bar, scale_bar, _ = gradients(x, jnp.ones(64), jnp.zeros(64))
    assert x_bar.dtype == jnp.bfloat16 and scale_bar.dtype == jnp.float32


def test_half_precision_gradient_is_exact_and_saves_x():
    """Two programs."""
    draw = np.random.default_rng(0).normal
    x, bar, scale = jnp.bfloat16(draw(size=(4, 64)) + 1), jnp.bfloat16(draw(size=(4, 64))), np.float32(draw(size=64))

    @jax.jit
    def pull_and_bars():
        pull = jax.vjp(layer_norm, x, scale, jnp.zeros(64))[1]
        return pull, pull(bar)

    pull, bars = pull_and_bars()
    residuals = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape == x.shape]
    assert [leaf.dtype for leaf in residuals] == [jnp.bfloat16] and (residuals[0] == x).all()
    with jax.enable_x64(True):
        wide = lambda array: jnp.asarray(np.asarray(array, np.float64))
        normal = lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        norm = lambda x, scale, bias: normal(x) * scale[None] + bias[None]
        exact = jax.jit(lambda *at: jax.vjp(norm, *at)[1](wide(bar)))(wide(x), wide(scale), jnp.zeros(64))
        for actual, expected, tolerance in zip(bars, exact, (1e-2, 1e-5, 1e-5), strict=True):
            np.testing.assert_allclose(
                np.asarray(actual, np.float64), expected, atol=tolerance * np.abs(expected).max()
            )


def test_a_constant_row_is_finite():
    total = lambda x: layer_norm(x, jnp.ones(3), jnp.ones(3)).sum()
    value, slope = jax.jit(jax.value_and_grad(total))(jnp.full((1, 3), 5.0))
    assert value == 3.0 and np.isfinite(slope).all()


@pytest.mark.slow
def test_gradient_types_match_scale_and_bias():
    x, scale, bias = jnp.ones((3, 8)), jnp.ones(8, jnp.float32), jnp.zeros(8, jnp.bfloat16)
    gradients = jax.grad(lambda *args: layer_norm(*args).sum(), argnums=(1, 2))(x, scale, bias)
    assert [gradient.dtype for gradient in gradients] == [jnp.float32, jnp.bfloat16]
