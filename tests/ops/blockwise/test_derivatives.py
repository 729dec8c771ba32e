"""All derivatives of blockwise attention are those of plain attention: forward mode, reverse mode, and both twice."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.attention import attend
from attention_jax.ops.blockwise.linear_call import LinearMap, call_linear
from attention_jax.ops.masks import causal, lengths
from attention_jax.ops.normalizer_kinds import Pointwise
from attention_jax.ops.normalizers import Entmax, Sigmoid, Softmax, StickBreaking
from attention_jax.ops.scores import Gaussian, ScaledDot
from attention_jax.ops.trees import pytree
from tests.ops.cases import Diluted


@pytree
@dataclass(frozen=True)
class Share(Pointwise):
    """max(s + 2, 0) / count^power with a power to learn."""

    power: jax.Array
    sparse = True

    def __call__(self, x):
        return jnp.maximum(x + 2, 0)

    def factor(self, count):
        return count**-self.power


NORMALIZERS = {
    "factor": Share(jnp.float32(0.5)),
    "sink": Softmax(jnp.float32(0.3)),
    "sigmoid": Sigmoid(jnp.float32(0.2)),
    "entmax": Entmax(jnp.float32(1.5)),
    "diluted": Diluted(jnp.float32(0.3), jnp.float32(0.5)),
    "stick-breaking": StickBreaking(),
}


def arrays(seed=0, dtype=jnp.float32):
    draw = np.random.default_rng(seed).standard_normal
    return tuple(jnp.asarray(draw(shape), dtype) for shape in ((13, 4), (11, 4), (11, 3)))


def attention(implementation, mask=True):
    call = {"mask": causal() & lengths(9), "dropout": 0.2, "rng": jax.random.key(1)} if mask else {}
    call |= {"implementation": implementation, "block_q": 4, "block_k": 4}
    call |= {"bias": jnp.full((1, 11), 2.0)}  # so that some scores are above 0

    def run(query, key, value, normalizer, width):
        out = attend(query, key, value, score=Gaussian(width), normalizer=normalizer, **call)
        return jnp.sin(out + jnp.arange(3, dtype=out.dtype)[None])

    return run


def assert_close(actual, expected):
    for a, b in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(1.0, float(jnp.abs(b).max())))


def forward(run, inputs, dots):
    return jax.jvp(run, inputs, dots)


def linearize(run, inputs, dots):
    return jax.linearize(run, *inputs)[1](*dots)


def forward_over_reverse(run, inputs, dots):
    gradient = jax.grad(lambda *inputs: run(*inputs).sum(), range(5))
    return jax.jvp(gradient, inputs, dots)[1]


def reverse_over_forward(run, inputs, dots):
    return jax.grad(lambda *inputs: jnp.square(jax.jvp(run, inputs, dots)[1]).sum(), range(5))(*inputs)


def reverse_over_reverse(run, inputs, dots):
    gradient = jax.grad(lambda *inputs: run(*inputs).sum(), range(3))
    return jax.grad(lambda *inputs: sum(jnp.square(x).sum() for x in gradient(*inputs)), range(5))(*inputs)


def reverse(run, inputs, dots):
    return jax.grad(lambda *inputs: run(*inputs).sum(), range(5))(*inputs)


MODES = forward, linearize, forward_over_reverse, reverse_over_forward, reverse_over_reverse
CASES = [  # each rule once; then the softmax in every mode, and the others, whose rules are composed alike
    ("sink", forward_over_reverse),
    *((name, forward) for name in ("entmax", "stick-breaking", "factor", "diluted")),
    *(
        pytest.param(name, mode, marks=pytest.mark.slow)
        for name, mode in (
            *(("sink", mode) for mode in MODES if mode is not forward_over_reverse),
            ("sigmoid", linearize),
            ("factor", reverse),
            ("sigmoid", reverse_over_reverse),
            ("entmax", reverse_over_forward),
            ("diluted", reverse),
            ("diluted", reverse_over_reverse),
            ("stick-breaking", reverse_over_reverse),
        )
    ),
]


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_derivatives_of_every_leaf_and_order(name, mode):
    inputs = *arrays(), NORMALIZERS[name], jnp.float32(1.3)
    dots = *arrays(1), jax.tree.map(jnp.ones_like, NORMALIZERS[name]), jnp.float32(0.7)
    blockwise, plain = (jax.jit(partial(mode, attention(i))) for i in ("fused", "plain"))
    assert_close(blockwise(inputs, dots), plain(inputs, dots))


@pytest.mark.slow
def test_one_tangent_of_many_and_heads_at_once():
    """Only the query moves, for every head of two, which share their keys."""
    query, key, value = arrays()
    queries = jnp.stack([query, query[::-1]])

    def push_forward(implementation):
        call = {"mask": causal(), "implementation": implementation, "block_q": 4, "block_k": 4}
        heads = jax.vmap(lambda query, key: attend(query, key, value, **call), in_axes=(0, None))
        return lambda queries, key: jax.jvp(lambda queries: heads(queries, key), (queries,), (queries,))[1]

    assert_close(jax.jit(push_forward("fused"))(queries, key), push_forward("plain")(queries, key))
    loss = lambda implementation: lambda *inputs: jnp.sin(push_forward(implementation)(*inputs)).sum()
    bars = [jax.jit(jax.grad(loss(i), (0, 1))) for i in ("fused", "plain")]
    assert_close(bars[0](queries, key), bars[1](queries, key))


def test_the_gradient_of_a_mean_flow_loss():
    """u is trained towards v - (t - r) du/dt, whose derivative is forward mode (Geng et al. 2025, eq. 10)."""
    query, key, value = arrays()

    def loss(key, implementation):
        u = lambda query: attend(query, key, value, implementation=implementation, block_q=4, block_k=4)
        out, change = jax.jvp(u, (query,), (jnp.ones_like(query),))
        return jnp.square(out - jax.lax.stop_gradient(value[:1] - 0.5 * change)).sum()

    gradients = [jax.jit(jax.grad(loss), static_argnums=1)(key, i) for i in ("fused", "plain")]
    assert_close(*gradients)


@pytest.mark.slow
def test_forward_mode_in_half_precision():
    inputs, dots = arrays(dtype=jnp.bfloat16), arrays(1, jnp.bfloat16)
    run = lambda implementation: lambda *inputs: attend(*inputs, score=ScaledDot(), implementation=implementation)
    actual = jax.jvp(run("fused"), inputs, dots)[1].astype(jnp.float32)
    exact = [tuple(x.astype(jnp.float32) for x in each) for each in (inputs, dots)]
    np.testing.assert_allclose(actual, jax.jvp(run("plain"), *exact)[1], atol=0.1)


@pytest.mark.slow
def test_forward_mode_keeps_no_weights():
    """At 2,048 x 2,048 the tangent needs a fraction of the memory of one matrix of weights."""
    x = jax.ShapeDtypeStruct((2048, 8), jnp.float32)
    push = lambda query, key: jax.jvp(lambda q: attend(q, key, key, implementation="fused"), (query,), (query,))[1]
    memory = jax.jit(push).lower(x, x).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 2048 * 2048 * 4 / 2


@pytest.mark.slow
def test_a_linear_function_whose_transpose_is_given():
    """A matrix product whose two directions are functions of our own, in every mode and under vmap."""
    linear_map = LinearMap(lambda c, t: [c[0] @ t[0]], lambda c, b: [c[0].T @ b[0]])
    product = lambda matrix, x: call_linear(
        linear_map, linear_map, [jax.ShapeDtypeStruct((2,), jnp.float32)], [matrix], [x]
    )[0]
    matrix, x = jnp.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), jnp.array([1.0, 0.5, 2.0])
    np.testing.assert_allclose(product(matrix, x), matrix @ x)
    np.testing.assert_allclose(
        jax.linear_transpose(lambda x: product(matrix, x), x)(jnp.ones(2))[0], matrix.sum(axis=0)
    )
    loss = lambda f: lambda matrix, x: jnp.square(f(matrix, x)).sum()
    for mode in (jax.hessian, jax.jacfwd, lambda f: jax.jacrev(jax.jacrev(f))):
        np.testing.assert_allclose(mode(loss(product))(matrix, x), mode(loss(jnp.matmul))(matrix, x), rtol=1e-6)
    rows = jnp.stack([x, 2 * x])
    np.testing.assert_allclose(jax.vmap(product, (None, 0))(matrix, rows), rows @ matrix.T, rtol=1e-6)
    matrices = jnp.stack([matrix, -matrix])
    np.testing.assert_allclose(jax.vmap(product, (0, None))(matrices, x), matrices @ x, rtol=1e-6)
