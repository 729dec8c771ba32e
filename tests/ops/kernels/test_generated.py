"""Generated kernels, by JAX's interpreter on a CPU: cases of the table of tests/ops/cases.py, and what is not in it.

A few cases are in the default tier, some in the slow one, and every score with every normalizer, every mask with every
size, every bias with every type in `python -m pytest -m kernels`.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.tree_util import Partial

from attention_jax.errors import InputError
from attention_jax.ops import biases, masks, normalizers
from attention_jax.ops.attention import attend
from attention_jax.ops.heads import attend_heads
from attention_jax.ops.kernels import generated
from attention_jax.ops.kernels.generated import triton
from attention_jax.ops.kernels.generated.block_step import Step
from attention_jax.ops.precision import matmul_transposed
from tests.ops.cases import check, cover


@pytest.fixture(autouse=True)
def _ranks_of_the_interpreter():
    """JAX's interpreter of kernels promotes ranks itself."""
    with jax.numpy_rank_promotion("allow"):
        yield


FAST = cover(0, "shape", "dtype", way="kernel")
SLOW = cover(1, "normalizer", "mask", "bias", way="kernel")
PAIRS = ("score", "normalizer"), ("mask", "shape"), ("bias", "dtype")
ALL = cover(2, *PAIRS, draws=6000, way="kernel")
CASES = [
    *FAST,
    *(pytest.param(case, marks=pytest.mark.slow) for case in SLOW),
    *(pytest.param(case, marks=pytest.mark.kernels) for case in ALL),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(map(str, case)))
def test_kernels_have_all_properties_of_attend(case, monkeypatch, cpu_alone):
    """The gradient is the kernel's, too, but for a bias with a number for each key (a row [1, K], forget gates), whose
    gradient blocks in XLA compute."""
    gradients, backward = [], generated.backward
    monkeypatch.setattr(generated, "backward", lambda *args: gradients.append(backward(*args)) or gradients[-1])
    check(case)
    is_row = case.bias in ("row", "a sum", "Forget") or (case.bias == "array" and case.sizes.queries == 1)
    assert bool(gradients) != is_row


# --- what is not in the table -----------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(1)
normal = lambda *shape: jnp.asarray(RANDOM.normal(size=shape), jnp.float32)
by_blocks = partial(attend, implementation="kernel", block_q=16, block_k=16)


def with_gradients(function):
    """arrays -> the outputs of a function and the gradients of the sum of their sines, in a list; compiled."""

    def run(*arrays):
        outputs, pull = jax.vjp(lambda *arrays: jax.tree.leaves(function(*arrays)), *arrays)
        return [*outputs, *pull([jnp.cos(x) for x in outputs])]

    return jax.jit(run)


def soft_cap(cap, query, key):
    return cap * jnp.tanh(query @ key.T / cap)


@pytest.mark.slow
def test_forward_mode_and_second_derivatives():
    """Of a score with a parameter: the kernel's own derivative is of the first order, in reverse mode."""
    primals = jnp.float32(2.0), normal(20, 8), normal(37, 8), normal(37, 8)
    tangents = tuple(normal(*x.shape) for x in primals)

    def derivatives(attention, primals, tangents):
        loss = lambda cap, *arrays: jnp.sum(jnp.sin(attention(cap, *arrays)))
        run = lambda *x: (jax.jvp(loss, *x), jax.jvp(jax.grad(loss, (0, 1, 2, 3)), *x))
        return jax.tree.leaves(jax.jit(run)(primals, tangents))

    kernel = derivatives(lambda cap, *x: by_blocks(*x, score=Partial(soft_cap, cap)), primals, tangents)
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), (primals, tangents))
        exact = derivatives(lambda cap, q, k, v: jax.nn.softmax(soft_cap(cap, q, k)) @ v, *wide)
    for a, b in zip(kernel, exact, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_attend_heads_with_grouped_heads():
    """Slopes of each head, and lengths of each sequence, of which one is 0."""
    arrays = normal(2, 20, 4, 8), normal(2, 37, 2, 8), normal(2, 37, 2, 8)

    def run(slopes, *arrays, **blocks):
        call = {"bias": biases.ALiBi(slopes), "mask": masks.Lengths(jnp.array([30, 0]))}
        return attend_heads(*arrays, **call, **blocks)

    slopes = jnp.array([0.5, 0.25, 0.125, 0.0625])
    call = {"implementation": "kernel", "block_q": 16, "block_k": 16}
    kernel, plain = (with_gradients(partial(run, **x))(slopes, *arrays) for x in (call, {}))
    for a, b in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert not kernel[0][1].any()


def test_a_table_of_many_numbers_has_its_gradient():
    """By blocks in XLA: no kernel keeps sums of as many numbers."""
    table, arrays = normal(5000), (normal(20, 8), normal(37, 8), normal(37, 8))
    bias = lambda table, query, i, j: table[(i[:, None] * 37 + j[None, :]) * 3 % 5000]
    run = lambda attention: with_gradients(lambda t, *x: attention(*x, bias=Partial(bias, t)))(table, *arrays)
    for a, b in zip(run(by_blocks), run(partial(attend, implementation="plain")), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ({"normalizer": normalizers.StickBreaking()}, "knows no normalizer StickBreaking"),
        ({"score": lambda query, key: jnp.sort(query) @ jnp.sort(key).T}, "knows no sort"),
        ({"bias": lambda query, i, j: jax.lax.digamma(query.sum(axis=1, keepdims=True))}, "knows no digamma"),
        ({"score": lambda query, key: jnp.cumsum(query, axis=1) @ key.T}, "knows no cumsum"),
        ({"normalizer": lambda x: jax.lax.lgamma(jnp.exp(x))}, "knows no lgamma"),
        ({"bias": biases.ShawBias(jnp.ones((5, 8)))}, "reads by index only single numbers"),
        ({"bias": biases.TransformerXLBias(jnp.ones((8, 6)))}, "does not reshape"),
        ({"bias": biases.Location(jnp.ones((8, 64)))}, "reads by index only single numbers"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_what_a_kernel_cannot_compute_is_named_before_lowering(call, reason):
    """Where the call is traced: the error names the primitive, and what to do."""
    x = [jax.ShapeDtypeStruct((n, 8), jnp.float32) for n in (20, 37, 37)]
    with pytest.raises(InputError, match=f'implementation="kernel" {reason}.*: take "fused"'):
        jax.eval_shape(partial(by_blocks, **call), *x)


def test_boolean_masks_beyond_int32_offsets_are_refused():
    """Of all heads together, where `jax.vmap` batches them; a mask that all share is small."""
    x, mask = jax.ShapeDtypeStruct((3, 3, 2**14, 8), jnp.bfloat16), jax.ShapeDtypeStruct((3, 3, 2**14, 2**14), bool)
    run = lambda x, mask: attend(x, x, x, mask=mask, implementation="kernel")
    with pytest.raises(InputError, match="indexes masks of up to 2.31 booleans, of all heads, got 2,415,919,104"):
        jax.eval_shape(jax.vmap(jax.vmap(run)), x, mask)
    shared = jax.ShapeDtypeStruct(mask.shape[2:], bool)
    assert jax.eval_shape(jax.vmap(jax.vmap(run, (0, None)), (0, None)), x, shared).shape == x.shape


@pytest.mark.slow
def test_half_precision_is_summed_in_float32():
    """Of 64 features of an L1 distance, in bfloat16: the error is that of rounding weights and output, 2^-9 each, and
    not that of the distance, of which bfloat16 has 0.25 at 64."""
    query, key, value = (normal(32, 64).astype(jnp.bfloat16) for _ in range(3))
    distance = lambda query, key: -jnp.abs(query[:, None, :] - key[None, :, :]).sum(axis=2)
    out = jax.jit(partial(by_blocks, score=distance))(query, key, value)
    query, key, value, out = (np.asarray(x, np.float64) for x in (query, key, value, out))
    weights = np.exp(distance(query, key))
    exact = weights / weights.sum(axis=1, keepdims=True) @ value
    assert np.sqrt(np.square(out - exact).mean()) < 2**-8 * np.sqrt(np.square(exact).mean())


def test_product_has_no_axes_of_one():
    """Which `matmul_transposed` adds for CPUs: in a kernel the factors would go through shared memory."""
    step = Step(matmul_transposed, *[jax.ShapeDtypeStruct((16, 32), jnp.bfloat16)] * 2)
    [product] = step.equations
    assert product.name == "dot_general" and product.inputs == step.arguments
    assert product.params["dimension_numbers"] == (([0], [0]), ([], []))


def test_instructions_have_their_stated_errors(monkeypatch):
    """With exact 2^x and 1 / x in the place of the card's."""
    monkeypatch.setattr(triton, "_unary", lambda name, x: {"ex2": jnp.exp2, "rcp": jnp.reciprocal}[name](x))
    x = np.linspace(-80, 80, 100_001).astype(np.float32)
    exp, tanh = (np.asarray(triton.INSTRUCTIONS[name](jnp.asarray(x)), np.float64) for name in ("exp", "tanh"))
    error = np.abs(exp / np.exp(x.astype(np.float64)) - 1) / np.finfo(np.float32).eps
    assert (error < 2 + 1.2 * np.abs(x)).all()
    assert np.abs(tanh - np.tanh(x.astype(np.float64))).max() < 2e-7
    ends = jnp.array([-jnp.inf, jnp.inf])
    assert [triton.INSTRUCTIONS[name](ends).tolist() for name in ("exp", "tanh")] == [[0.0, jnp.inf], [-1.0, 1.0]]


def test_float64_is_refused():
    with jax.enable_x64(True), pytest.raises(InputError, match="sums in float32, got float64, float64, float64"):
        jax.eval_shape(by_blocks, *[jax.ShapeDtypeStruct((20, 8), jnp.float64)] * 3)
