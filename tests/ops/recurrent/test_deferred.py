"""deferred_scan is lax.scan: same values, same gradients, for shared and for per-example matrices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan

T, B, K, N = 4, 3, 5, 2


def step(w, carry, x):
    inner = jnp.tanh(carry @ w["w"] + x["a"] * w["s"][None, :])  # [B, K]
    pooled = inner @ w["m"]  # [B, N]
    carry = inner * 0.5 + pooled @ w["back"]
    return carry, {"pooled": pooled * x["b"], "carry": carry}


def draw_arguments():
    r = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(r.normal(size=shape), jnp.float32)
    arrays = {"w": draw(K, K), "m": draw(B, K, N), "back": draw(N, K), "s": draw(K)}
    return arrays, draw(B, K), {"a": draw(T, B, K), "b": draw(T, B, N)}


def loss(scan, arguments):
    carry, ys = scan(*arguments)
    return jnp.sin(carry).sum() + sum((leaf**2).sum() for leaf in jax.tree.leaves(ys))


def run_deferred(arrays, carry, xs, step=step):
    return deferred_scan(step, {name: x if name == "s" else DeferredWeight(x) for name, x in arrays.items()}, carry, xs)


def plain(arrays, carry, xs):
    """The same by NumPy-like code without a DeferredWeight."""

    def body(carry, x):
        inner = jnp.tanh(carry @ arrays["w"] + x["a"] * arrays["s"][None, :])
        pooled = jnp.einsum("bk,bkn->bn", inner, arrays["m"])
        carry = inner * 0.5 + pooled @ arrays["back"]
        return carry, {"pooled": pooled * x["b"], "carry": carry}

    return jax.lax.scan(body, carry, xs)


def test_equals_scan_in_value_and_gradient():
    actual = jax.jit(jax.value_and_grad(functools.partial(loss, run_deferred)))(draw_arguments())
    expected = jax.jit(jax.value_and_grad(functools.partial(loss, plain)))(draw_arguments())
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), actual, expected)


def test_weight_used_twice_raises_unused_has_no_gradient():
    twice = lambda w, carry, x: (jnp.tanh(carry @ w["w"] @ w["w"]), None)
    with pytest.raises(ValueError, match="twice"):
        jax.grad(functools.partial(loss, functools.partial(run_deferred, step=twice)))(draw_arguments())
    once = lambda w, carry, x: (jnp.tanh(carry @ w["w"]), None)
    d_arrays, _, _ = jax.grad(functools.partial(loss, functools.partial(run_deferred, step=once)))(draw_arguments())
    assert (d_arrays["w"] != 0).all() and not d_arrays["back"].any() and not d_arrays["m"].any()


def equations(jaxpr, inside=False):
    """Every equation of a jaxpr at any depth, with whether it is inside a scan."""
    for equation in jaxpr.eqns:
        yield equation, inside
        for leaf in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            body = getattr(leaf, "jaxpr", leaf)
            if hasattr(body, "eqns"):
                yield from equations(body, inside or equation.primitive.name == "scan")


def carry_shapes(scan):
    """The shapes that a scan carries: results with no axis of steps before what its body gives."""
    body = getattr(scan.params["jaxpr"], "jaxpr", scan.params["jaxpr"])
    pairs = zip(scan.outvars, body.outvars, strict=True)
    return [outside.aval.shape for outside, inside in pairs if outside.aval.shape == inside.aval.shape]


def test_weight_gradient_is_one_product_after_scan():
    """Structure, so that speed needs no clock."""
    jaxpr = jax.make_jaxpr(jax.grad(functools.partial(loss, run_deferred)))(draw_arguments()).jaxpr
    outside = [e for e, inside in equations(jaxpr) if e.primitive.name == "dot_general" and not inside]
    assert len(outside) == 3  # w, m, back
    scans = lambda jaxpr: [e for e, _ in equations(jaxpr) if e.primitive.name == "scan"]
    carries = [shape for scan in scans(jaxpr) for shape in carry_shapes(scan)]
    assert (K, K) not in carries and (N, K) not in carries and (B, K, N) not in carries
    accumulating = jax.make_jaxpr(jax.grad(functools.partial(loss, plain)))(draw_arguments()).jaxpr
    accumulators = [shape for scan in scans(accumulating) for shape in carry_shapes(scan)]
    assert (K, K) in accumulators, "the test sees the accumulator that plain autodiff has"
