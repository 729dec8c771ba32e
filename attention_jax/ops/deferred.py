"""A scan whose weight gradients are products made once, after it.

The gradient of `lax.scan` adds one small product per step to the gradient of every weight matrix the step uses. But
sum_t input_t^T d_output_t over all steps is a single large product, if the inputs and the output cotangents are kept, and
keeping them is cheap. `deferred_scan` does that for any step function: the step multiplies through `dot`, and the rest of
its gradient is ordinary autodiff.
"""

import functools

import jax
import jax.numpy as jnp

from attention_jax.ops import precision


def product(x, weight):
    """`x [B, K] @ weight [K, N]`, or with one matrix per example, `weight [B, K, N]`."""
    return precision.product(x, weight) if weight.ndim == 2 else jnp.einsum("bk,bkn->bn", x, weight)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def deferred_scan(step, weights, shared, carry, xs):
    """`lax.scan(lambda carry, x: step(dot, shared, carry, x), carry, xs)` where `dot(name, v)` is v times `weights[name]`.

    Args:
      step: `step(dot, shared, carry, x) -> (carry, y)`, a pure function of its arguments; it may use each weight once.
      weights: dict of matrices [K, N] shared by all examples, or [B, K, N] with one per example.
      shared: everything else the step reads (a pytree), differentiated as usual.
      carry, xs: as in `lax.scan`; leaves of xs are [T, B, ...].

    >>> step = lambda dot, shared, h, x: (jnp.tanh(x + dot("w", h)), h.sum())
    >>> h, y = deferred_scan(step, {"w": jnp.eye(2)}, (), jnp.zeros((1, 2)), jnp.ones((3, 1, 2)))
    >>> y.shape
    (3,)
    """
    dot = lambda name, v: product(v, weights[name])
    return jax.lax.scan(lambda carry, x: step(dot, shared, carry, x), carry, xs)


@jax.custom_vjp
def _tapped(x, weight, tap):
    """x times weight. The tap is not read: it is where the cotangent of the product comes out."""
    return product(x, weight)


def _tapped_backward(weight, d):
    return precision.input_gradient(d, weight) if weight.ndim == 2 else product(d, weight.swapaxes(1, 2)), None, d


_tapped.defvjp(lambda x, weight, tap: (product(x, weight), weight), _tapped_backward)


def _forward(step, weights, shared, carry, xs):
    steps, batch = jax.tree.leaves(xs)[0].shape[:2]
    taps = {name: jnp.zeros((steps, batch, w.shape[-1]), w.dtype) for name, w in weights.items()}
    weights = {name: precision.factor(w) if w.ndim == 2 else w for name, w in weights.items()}

    def run(shared, carry, xs, taps):
        def body(carry, x):
            x, tap = x
            inputs = {}

            def dot(name, v):
                inputs[name] = v
                return _tapped(v, weights[name], tap[name])

            carry, y = step(dot, shared, carry, x)
            return carry, (y, inputs)

        carry, (ys, inputs) = jax.lax.scan(body, carry, (xs, taps))
        return (carry, ys), inputs

    out, back, inputs = jax.vjp(run, shared, carry, xs, taps, has_aux=True)
    return out, (back, inputs, weights)


def _backward(step, residuals, cotangents):
    back, inputs, weights = residuals
    d_shared, d_carry, d_xs, d_taps = back(cotangents)
    d_weights = {}
    for name, weight in weights.items():
        x, d = inputs[name], d_taps[name]  # [T, B, K], [T, B, N]
        if weight.ndim == 2:
            d_weights[name] = precision.weight_gradient(x, d)
        else:
            d_weights[name] = jnp.einsum("tbk,tbn->bkn", x, d)
    return d_weights, d_shared, d_carry, d_xs


deferred_scan.defvjp(_forward, _backward)
