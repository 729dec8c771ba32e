"""Blocks that shrink under `jax.vmap`: the results are those of plain attention, and memory is bounded."""

import importlib.util
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import attend, attend_heads, causal, normalizers
from attention_jax.ops import dispatch, scores
from attention_jax.ops.blockwise.score_blocks import Blocks
from attention_jax.ops.dispatch import choose_blocks
from benchmarks._targets import compile_for, parse_target

NORMALIZERS = {
    "softmax": normalizers.Softmax(),
    "sparsemax": normalizers.Sparsemax(),
    "entmax": normalizers.Entmax(jnp.float32(1.5)),
    "stick-breaking": normalizers.StickBreaking(),
}
QUERIES, KEYS, WIDTH = 150, 133, 4
"""Neither is a multiple of the smallest block."""


def negative_distance(query, key):
    return -jnp.abs(query[:, None] - key[None]).sum(axis=-1)


def additive(width, dtype=jnp.float32):
    score = scores.Additive.init(jax.random.key(1), width, width, width)
    return jax.tree.map(lambda x: x.astype(dtype), score)


@pytest.fixture
def small_blocks(monkeypatch, cpu_alone):
    """Blocks that shrink on CPUs as elsewhere, to one cell for more than one head: those used, by number of heads."""
    used = {}
    shared_by = Blocks.shrink_for_batch

    def record(self, examples):
        used[examples] = shared_by(self, examples)
        return used[examples]

    monkeypatch.setitem(dispatch.PAIRS_PER_BLOCK, "cpu", 128 * 128)
    monkeypatch.setitem(dispatch.PAIRS_OF_ALL, "cpu", QUERIES * KEYS)
    monkeypatch.setattr(Blocks, "shrink_for_batch", record)
    return used


def draw_arrays(*shapes):
    draw = np.random.default_rng(0).standard_normal
    return [jnp.asarray(draw(shape), jnp.float32) for shape in shapes]


def heads(*batch):
    return draw_arrays(*((*batch, rows, WIDTH) for rows in (QUERIES, KEYS, KEYS)))


def over_heads(implementation, normalizer, levels):
    """The sum of a nonlinear function of attention, for arrays with `levels` axes in front."""
    function = partial(attend, normalizer=NORMALIZERS[normalizer], mask=causal(), implementation=implementation)
    for _ in range(levels):
        function = jax.vmap(function)
    return lambda *arrays: jnp.sin(function(*arrays)).sum()


def assert_close(results, expected, tolerance=2e-5):
    for a, b in zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * max(1, np.abs(b).max()))


def of_both(program, normalizer, levels, *operands):
    """`program(function)(*operands)` of "fused" and of "plain"."""
    each = (over_heads(implementation, normalizer, levels) for implementation in ("fused", "plain"))
    return [jax.jit(program(function))(*operands) for function in each]


gradient = partial(jax.grad, argnums=(0, 1, 2))


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", ["softmax", "stick-breaking"])
def test_nested_vmap_gradient_equals_plain(normalizer, small_blocks):
    assert_close(*of_both(gradient, normalizer, 2, *heads(2, 3)))
    assert small_blocks[6][:2] == (64, 64)


def test_vmap_of_gradient_is_that_of_plain_attention(small_blocks):
    assert_close(*of_both(lambda f: jax.vmap(jax.vmap(gradient(f))), "sparsemax", 0, *heads(2, 3)))
    assert small_blocks[6][:2] == (64, 64)


@pytest.mark.slow
def test_forward_mode_over_heads_equals_plain(small_blocks):
    arrays, dots = heads(4), heads(4)[::-1]
    dots = [jnp.resize(dot, x.shape) for dot, x in zip(dots, arrays)]
    push = lambda f: lambda arrays, dots: jax.jvp(f, arrays, dots)
    assert_close(*of_both(push, "softmax", 1, tuple(arrays), tuple(dots)))
    assert small_blocks[4][:2] == (64, 64)


SECOND_ORDERS = [
    ("softmax", "forward over reverse"),
    pytest.param("entmax", "reverse over reverse", marks=pytest.mark.slow),
    pytest.param("softmax", "vmap of reverse over reverse", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("normalizer", "order"), SECOND_ORDERS)
def test_second_derivatives_over_heads_equal_plain(normalizer, order, small_blocks):
    arrays = heads(3)

    def program(f):
        along = lambda *arrays: sum(jnp.vdot(x, jnp.cos(bar)) for x, bar in zip(arrays, gradient(f)(*arrays)))
        if order == "forward over reverse":
            return lambda *arrays: jax.jvp(gradient(f), arrays, arrays)[1]
        return gradient(along) if order == "reverse over reverse" else jax.vmap(gradient(along))

    levels = 0 if order.startswith("vmap") else 1
    assert_close(*of_both(program, normalizer, levels, *arrays), tolerance=2e-4)


@pytest.mark.slow
def test_a_backward_pass_alone_may_be_vmapped(small_blocks):
    """Its blocks are then smaller than those of the forward pass, which has found which ones have weights."""
    query, key, value = heads()
    bars = draw_arrays((5, QUERIES, WIDTH))[0]

    def pull_back(implementation):
        attend_once = partial(attend, normalizer=NORMALIZERS["sparsemax"], mask=causal(), implementation=implementation)
        pull = jax.vjp(attend_once, 30 * query, key, value)[1]  # few weights are left by sparsemax
        return jax.vmap(pull)(bars)

    assert_close(pull_back("fused"), pull_back("plain"))
    assert small_blocks[1][:2] == (128, 128) and small_blocks[5][:2] == (64, 64)


@pytest.mark.slow
@pytest.mark.parametrize("score", [scores.Gaussian(), pytest.param(negative_distance, marks=pytest.mark.slow)])
def test_shared_key_heads_gradient_equals_plain(score, small_blocks):
    arrays = draw_arrays((2, QUERIES, 4, WIDTH), (2, KEYS, 2, WIDTH), (2, KEYS, 2, WIDTH))

    def loss(implementation):
        call = partial(attend_heads, score=score, mask=causal(), implementation=implementation)
        return jax.jit(gradient(lambda *arrays: jnp.sin(call(*arrays)).sum()))

    assert_close(loss("fused")(*arrays), loss("plain")(*arrays))
    assert small_blocks[8][:2] == (64, 64)


def test_one_head_keeps_its_blocks():
    x = jnp.ones((32768, 64), jnp.bfloat16)
    for score in (scores.ScaledDot(), negative_distance, additive(64, jnp.bfloat16)):
        for blocks in choose_blocks(score, x, x).values():
            assert blocks.shrink_for_batch(1)[:2] == blocks[:2]


def test_pairs_of_all_heads_are_bounded():
    """Down to 64 x 64 pairs for each, where the arrays themselves are as large."""
    x = jnp.ones((32768, 64), jnp.bfloat16)
    blocks = choose_blocks(scores.ScaledDot(), x, x)
    for heads in (2, 3, 16, 100, 128, 512):
        assert blocks["cpu"].shrink_for_batch(heads)[:2] == blocks["cpu"][:2]
        small = blocks["cuda"].shrink_for_batch(heads)
        assert heads * small.query * small.key <= 4096 * 512 < heads * small.query * small.key * 2.1
    assert blocks["cuda"].shrink_for_batch(10**6)[:2] == (64, 64)


def test_blocks_of_the_caller_are_kept():
    x = jnp.ones((300, 8))
    for blocks in choose_blocks(scores.ScaledDot(), x, x, 100, 30).values():
        assert blocks.shrink_for_batch(1000)[:2] == (100, 30)


def lower(score, normalizer, *batch):
    """The program of the gradient at T = 2,048 on a GPU, as it is given to the compiler."""
    x = jax.ShapeDtypeStruct((*batch, 2048, 64), jnp.bfloat16)
    function = partial(attend, score=score, normalizer=normalizer, mask=causal(), implementation="fused")
    for _ in batch:
        function = jax.vmap(function)
    loss = lambda *arrays: function(*arrays).astype(jnp.float32).sum()
    return jax.jit(gradient(loss)).trace(x, x, x).lower(lowering_platforms=("cuda",))


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", [normalizers.Softmax(), normalizers.Sparsemax()])
def test_gpu_gradient_arrays_are_no_larger_than_queries(normalizer):
    text = lower(scores.ScaledDot(), normalizer, 8, 16).as_text()
    shapes = {shape for shape in re.findall(r"tensor<((?:\d+x)+)(?:f32|bf16)>", text)}
    assert max(math.prod(map(int, shape.split("x")[:-1])) for shape in shapes) == 8 * 16 * 2048 * 64


def test_score_closing_over_tracer_keeps_head_blocks():
    """Documented as not supported in derivatives; outputs have to stay as they were."""
    query, key, value = heads(2)

    def output(scale, implementation):
        score = lambda query, key: scale * query @ key.T
        attend_once = partial(attend, score=score, implementation=implementation)
        return jax.vmap(attend_once)(query, key, value)

    program = jax.jit(output, static_argnums=1)
    lower = program.trace(jnp.float32(2.0), "fused").lower
    assert lower(lowering_platforms=("cuda",)).as_text()
    assert_close(program(2.0, "fused"), program(2.0, "plain"))


LIMIT = {"softmax": 300, "sparsemax": 300, "entmax": 300, "gaussian": 300, "l1": 300, "additive": 400}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIMIT)
def test_h100_gradient_temporaries_are_bounded(kind):
    """8 sequences of 16 causal heads of 64, T = 2,048, bfloat16, in MiB of XLA's plan."""
    if not importlib.util.find_spec("jax_cuda12_plugin"):
        pytest.skip('needs the compiler for NVIDIA GPUs: pip install "jax[cuda12]"')
    of_kind = {"gaussian": scores.Gaussian(), "l1": negative_distance, "additive": additive(64, jnp.bfloat16)}
    score, normalizer = of_kind.get(kind, scores.ScaledDot()), NORMALIZERS.get(kind, normalizers.Softmax())
    x = jax.ShapeDtypeStruct((8, 16, 2048, 64), jnp.bfloat16)
    attend_batch = jax.vmap(
        jax.vmap(partial(attend, score=score, normalizer=normalizer, mask=causal(), implementation="fused"))
    )
    loss = lambda *arrays: attend_batch(*arrays).astype(jnp.float32).sum()
    memory = compile_for(parse_target("h100"), gradient(loss), x, x, x).memory_analysis()
    assert memory.temp_size_in_bytes < LIMIT[kind] * 2**20
