"""Layer normalization with its gradient written by hand, and root mean square normalization."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.meshes import vary_together
from attention_jax.ops.precision import accumulator, is_half


def layer_norm(
    x: Float[Array, "... D"], scale: Float[Array, "D"], bias: Float[Array, "D"], epsilon: float = 1e-5
) -> Float[Array, "... D"]:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis (Ba et al. 2016, eq. 4).

    Statistics are in float32 (of float64 in float64). The backward pass keeps the normalized x and uses the closed
    form; with autodiff, XLA's CPU backend recomputes the statistics for every use of their gradient, which takes three
    times as long. In half precision x itself is saved, which a residual stream holds anyway, and the two statistics, so
    no additional array of the size of x is stored.

    >>> print(layer_norm(jnp.array([[1.0, 3.0]]), jnp.ones(2), jnp.zeros(2)).round(3))
    [[-1.  1.]]
    """
    return _layer_norm(*vary_together((x, scale, bias)), epsilon)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3,))
def _layer_norm(x, scale, bias, epsilon):
    return _forward(x, scale, bias, epsilon)[0]


def _rows(vector, like):
    return vector.reshape((1,) * (like.ndim - 1) + vector.shape).astype(accumulator(like.dtype))  # [1, ..., D]


def _forward(x, scale, bias, epsilon):
    centered = x.astype(accumulator(x.dtype))
    mean = centered.mean(axis=-1, keepdims=True)
    centered = centered - mean
    inverse = jax.lax.rsqrt(jnp.square(centered).mean(axis=-1, keepdims=True) + epsilon)
    normal = centered * inverse
    out = normal * _rows(scale, x) + _rows(bias, x)
    return out.astype(x.dtype), (*((x, mean) if is_half(x.dtype) else (normal, None)), inverse, scale, bias)


def _backward(epsilon, saved, out_bar):
    x, mean, inverse, scale, bias = saved
    exact, dtype = accumulator(x.dtype), x.dtype
    normal, out_bar = x.astype(exact), out_bar.astype(exact)
    if mean is not None:
        normal = (normal - mean) * inverse
    bar = out_bar * _rows(scale, out_bar)
    x_bar = inverse * (bar - bar.mean(axis=-1, keepdims=True) - normal * (bar * normal).mean(axis=-1, keepdims=True))
    over = tuple(range(out_bar.ndim - 1))
    return (
        x_bar.astype(dtype),
        (out_bar * normal).sum(axis=over).astype(scale.dtype),
        out_bar.sum(axis=over).astype(bias.dtype),
    )


_layer_norm.defvjp(_forward, _backward)


def rms_norm(x: Float[Array, "... D"], scale: Float[Array, "D"], epsilon: float = 1e-5) -> Float[Array, "... D"]:
    """x / sqrt(mean(x^2) + epsilon) * scale over the last axis (Zhang and Sennrich 2019, eq. 4), in float32 at least.

    >>> print(rms_norm(jnp.array([[1.0, -1.0]]), jnp.array([2.0, 4.0]), epsilon=0.0))
    [[ 2. -4.]]
    """
    exact = x.astype(accumulator(x.dtype))
    inverse = jax.lax.rsqrt(jnp.square(exact).mean(axis=-1, keepdims=True) + epsilon)
    return (exact * inverse * _rows(scale, x)).astype(x.dtype)
