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

    def theirs(x, scale, bias):
        return nn.LayerNorm(1e-5).apply({"params": {"scale": scale, "bias": bias}}, x)

    np.testing.assert_allclose(layer_norm(x, scale, bias, 1e-5), theirs(x, scale, bias), atol=1e-5)
    ours_bar, theirs_bar = (
        jax.jit(jax.grad(lambda *args, f=f: (f(*args) * weight).sum(), argnums=(0, 1, 2)))(x, scale, bias)
        for f in (layer_norm, theirs)
    )
    for our_bar, their_bar in zip(ours_bar, theirs_bar, strict=True):
        np.testing.assert_allclose(our_bar, their_bar, atol=2e-5)


def test_float64_stays_float64():
    with jax.enable_x64(True):
        x = jax.random.normal(jax.random.key(0), (3, 8), jnp.float64)
        loss = lambda x: ((x + layer_norm(x, jnp.ones(8), jnp.zeros(8))) ** 2).sum()
        plain = lambda x: ((x + (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)) ** 2).sum()
        assert jax.grad(loss)(x).dtype == jnp.float64
        np.testing.assert_allclose(jax.grad(loss)(x), jax.grad(plain)(x), rtol=1e-12)


def test_bfloat16_keeps_float32_statistics():
    x = (jax.random.normal(jax.random.key(0), (4, 64)) + 100.0).astype(jnp.bfloat16)
    got = layer_norm(x, jnp.ones(64), jnp.zeros(64))
    assert got.dtype == jnp.bfloat16
    np.testing.assert_allclose(
        got.astype(jnp.float32), layer_norm(x.astype(jnp.float32), jnp.ones(64), jnp.zeros(64)), atol=0.02
    )
    gradients = jax.jit(jax.grad(lambda *a: layer_norm(*a).astype(jnp.float32).sum(), argnums=(0, 1, 2)))
    x_bar, scale_bar, _ = gradients(x, jnp.ones(64), jnp.zeros(64))
    assert x_bar.dtype == jnp.bfloat16 and scale_bar.dtype == jnp.float32


@pytest.mark.slow
def test_in_half_precision_the_gradient_is_that_of_float64_and_keeps_x():
    x, bar = jax.random.normal(jax.random.key(0), (2, 4, 64)).astype(jnp.bfloat16) + 1
    scale = jax.random.normal(jax.random.key(1), (64,))
    pull = jax.vjp(layer_norm, x, scale, jnp.zeros(64))[1]
    kept = [leaf for leaf in jax.tree.leaves(pull) if leaf.shape == x.shape]
    assert [leaf.dtype for leaf in kept] == [jnp.bfloat16] and (kept[0] == x).all()
    with jax.enable_x64(True):
        wide = lambda array: jnp.asarray(np.asarray(array, np.float64))
        normal = lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        norm = lambda x, scale, bias: normal(x) * scale[None] + bias[None]
        exact = jax.vjp(norm, wide(x), wide(scale), jnp.zeros(64))[1](wide(bar))
        for ours, theirs, tolerance in zip(pull(bar), exact, (1e-2, 1e-5, 1e-5), strict=True):
            np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, atol=tolerance * np.abs(theirs).max())


def test_a_constant_row_is_finite():
    value, slope = jax.value_and_grad(lambda x: layer_norm(x, jnp.ones(3), jnp.ones(3)).sum())(jnp.full((1, 3), 5.0))
    assert value == 3.0 and np.isfinite(slope).all()


@pytest.mark.slow
def test_the_gradients_have_the_types_of_scale_and_bias():
    x, scale, bias = jnp.ones((3, 8)), jnp.ones(8, jnp.float32), jnp.zeros(8, jnp.bfloat16)
    gradients = jax.grad(lambda *args: layer_norm(*args).sum(), argnums=(1, 2))(x, scale, bias)
    assert [gradient.dtype for gradient in gradients] == [jnp.float32, jnp.bfloat16]
