"""deferred_scan is lax.scan: same values, same gradients, for shared and for per-example matrices."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.deferred import deferred_scan

T, B, K, N = 4, 3, 5, 2


def step(dot, shared, carry, x):
    inner = jnp.tanh(dot("w", carry) + x["a"] * shared["s"][None, :])  # [B, K]
    pooled = dot("m", inner)  # [B, N]
    carry = inner * 0.5 + dot("back", pooled)
    return carry, {"pooled": pooled * x["b"], "carry": carry}


def test_equals_scan_in_value_and_gradient():
    r = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(r.normal(size=shape), jnp.float32)
    arguments = (
        {"w": draw(K, K), "m": draw(B, K, N), "back": draw(N, K)},
        {"s": draw(K)},
        draw(B, K),
        {"a": draw(T, B, K), "b": draw(T, B, N)},
    )

    def plain(weights, shared, carry, xs):
        def dot(name, v):
            return jnp.einsum("bk,kn->bn" if weights[name].ndim == 2 else "bk,bkn->bn", v, weights[name])

        return jax.lax.scan(lambda c, x: step(dot, shared, c, x), carry, xs)

    def loss(scan, arguments):
        carry, ys = scan(*arguments)
        return jnp.sin(carry).sum() + sum((leaf**2).sum() for leaf in jax.tree.leaves(ys))

    got = jax.jit(jax.value_and_grad(lambda a: loss(lambda *a: deferred_scan(step, *a), a)))(arguments)
    want = jax.jit(jax.value_and_grad(lambda a: loss(plain, a)))(arguments)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), got, want)
