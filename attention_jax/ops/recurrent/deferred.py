"""A scan that computes each weight gradient as a single matmul after it.

The gradient of `lax.scan` adds one small matmul per step to the gradient of every weight matrix of the step. But
sum_t input_t^T d_output_t over all steps is one large matmul, if the inputs and the cotangents of the outputs are kept,
which is cheap. `deferred_scan` does that for any step function: the weights that a step multiplies by are wrapped as
`DeferredWeight`, and the rest of its gradient is ordinary autodiff.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops import precision
from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.trees import pytree


@pytree
@dataclass(frozen=True)
class DeferredWeight:
    """A weight [K, N] of a recurrence, or one for each example, [B, K, N]: `x [B, K] @ matrix` is [B, N].

    >>> jnp.ones((1, 2)) @ DeferredWeight(jnp.eye(2))
    Array([[1., 1.]], dtype=float32)
    """

    array: Float[Array, "K N"] | Float[Array, "B K N"]
    __array_ufunc__ = None  # NumPy arrays then defer to `__rmatmul__`

    def __rmatmul__(self, x: Float[Array, "B K"]) -> Float[Array, "B N"]:
        return _product(x, self.array)


def _product(x, weight):
    return precision.product(x, weight) if weight.ndim == 2 else jnp.einsum("bk,bkn->bn", x, weight)  # [B, N]


def deferred_scan(step, w, carry, xs):
    """`lax.scan(partial(step, w), carry, xs)`; the gradient of each `DeferredWeight` in `w` is computed after it.

    Args:
      step: `step(w, carry, x) -> (carry, y)`, a pure function of its arguments.
      w: a pytree. All other leaves are differentiated as usual.
      carry, xs: as in `lax.scan`; leaves of xs are [T, B, ...].

    Raises ValueError, when the gradient is taken, if the step multiplies by one `DeferredWeight` twice.

    >>> step = lambda w, h, x: (jnp.tanh(x + h @ w), h.sum())
    >>> h, y = deferred_scan(step, DeferredWeight(jnp.eye(2)), jnp.zeros((1, 2)), jnp.ones((3, 1, 2)))
    >>> y.shape
    (3,)
    """
    return loopable(functools.partial(_scan_with_weights, step))(w, carry, xs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _scan_with_weights(step, w, carry, xs):
    return jax.lax.scan(functools.partial(step, w), carry, xs)


class _Tapped:
    """A `DeferredWeight` in one step of the gradient's forward pass, which records its left factor."""

    __array_ufunc__ = None

    def __init__(self, array, tap):
        self.array, self.tap, self.input = array, tap, None

    def __rmatmul__(self, x):
        if self.input is not None:
            raise ValueError(
                "a step used one DeferredWeight twice: wrap the weight in another DeferredWeight for each use"
            )
        self.input = x
        return _tap_product(x, self.array, self.tap)


@jax.custom_vjp
def _tap_product(x, weight, tap):
    """Compute x times weight. The tap is an unused input that receives the cotangent of the product."""
    return _product(x, weight)


def _tap_product_backward(weight, d):
    return precision.input_gradient(d, weight) if weight.ndim == 2 else _product(d, weight.swapaxes(1, 2)), None, d


_tap_product.defvjp(lambda x, weight, tap: (_product(x, weight), weight), _tap_product_backward)


def _is_matrix(leaf) -> bool:
    return isinstance(leaf, DeferredWeight)


def _forward(step, w, carry, xs):
    leaves, tree = jax.tree.flatten(w, is_leaf=_is_matrix)
    plain_leaves = [None if _is_matrix(leaf) else leaf for leaf in leaves]
    arrays = [leaf.array for leaf in leaves if _is_matrix(leaf)]
    steps, batch = jax.tree.leaves(xs)[0].shape[:2]
    taps = [vary_like(jnp.zeros((steps, batch, array.shape[-1]), array.dtype), xs) for array in arrays]
    arrays = [precision.cast_for_matmul(array) if array.ndim == 2 else array for array in arrays]

    def run(plain_leaves, carry, xs, taps):
        def body(carry, x):
            x, tap = x
            tapped = [_Tapped(*pair) for pair in zip(arrays, tap, strict=True)]
            matrices = iter(tapped)
            step_leaves = [
                next(matrices) if _is_matrix(leaf) else plain for leaf, plain in zip(leaves, plain_leaves, strict=True)
            ]
            carry, y = step(jax.tree.unflatten(tree, step_leaves), carry, x)
            return carry, (y, [matrix.input for matrix in tapped])

        carry, (ys, inputs) = jax.lax.scan(body, carry, (xs, taps))
        return (carry, ys), inputs

    out, back, inputs = jax.vjp(run, plain_leaves, carry, xs, taps, has_aux=True)
    return out, (back, inputs, w)


def _backward(step, residuals, cotangents):
    back, inputs, w = residuals
    d_rest, d_carry, d_xs, d_taps = back(cotangents)
    leaves, tree = jax.tree.flatten(w, is_leaf=_is_matrix)
    used = iter(zip(inputs, d_taps, strict=True))
    d_w = [
        _weight_gradient(*next(used), leaf) if _is_matrix(leaf) else d for leaf, d in zip(leaves, d_rest, strict=True)
    ]
    return jax.tree.unflatten(tree, d_w), d_carry, d_xs


def _weight_gradient(
    x: Float[Array, "T B K"] | None, d: Float[Array, "T B N"], matrix: DeferredWeight
) -> DeferredWeight:
    if x is None:  # the step did not use this one
        return DeferredWeight(jnp.zeros_like(matrix.array))
    return DeferredWeight(
        precision.weight_gradient(x, d) if matrix.array.ndim == 2 else jnp.einsum("tbk,tbn->bkn", x, d)  # [(B,) K, N]
    )


_scan_with_weights.defvjp(_forward, _backward)
