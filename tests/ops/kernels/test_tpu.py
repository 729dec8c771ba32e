"""The generated kernel for TPUs, forward: in JAX's interpreter on a CPU, and compiled for v5e where its compiler is."""

import importlib.util
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import biases, masks, normalizers, scores
from attention_jax.ops.attention import attend
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, KernelBlocks
from attention_jax.ops.dispatch import explain
from attention_jax.ops.kernels import generated
from benchmarks._targets import compile_for, parse_target

BLOCKS = Blocks(128, 128, kernel=KernelBlocks(128, 128, interpret=True, is_for_tpu=True))


@pytest.fixture(autouse=True)
def _ranks_of_the_interpreter():
    """JAX's interpreter of kernels promotes ranks itself."""
    with jax.numpy_rank_promotion("allow"):
        yield


slow = partial(pytest.param, marks=pytest.mark.slow)


def own_score(query, key):
    return -jnp.log1p(jnp.square(query @ key.T))


CALLS = {
    "soft cap": {"score": scores.SoftCap(5.0), "mask": masks.causal() & masks.lengths(jnp.int32(150))},
    "dot": {"mask": masks.window(20), "query_offset": 40},
    "Gaussian": {"score": scores.Gaussian(jnp.float32(3.0))},
    "cosine, no key": {"score": scores.Cosine(8.0), "mask": masks.lengths(jnp.int32(0))},
    "own score": {"score": jax.tree_util.Partial(own_score), "mask": masks.causal(), "bias": biases.ALiBi(0.1)},
}


@pytest.mark.parametrize("name", [name if name == "soft cap" else slow(name) for name in CALLS])
@pytest.mark.parametrize("dtype", ["float32", slow("bfloat16")])
def test_output_is_that_of_all_weights_at_once(name, dtype):
    """In float32. Lengths are no multiples of a block, and widths none of a tile."""
    random, call = np.random.default_rng(0), CALLS[name]
    query, key, value = (jnp.asarray(random.normal(size=size), dtype) for size in ((140, 24), (300, 24), (300, 40)))
    rules = call.get("score", scores.ScaledDot()), call.get("bias"), normalizers.Softmax()
    bias_query = query if "bias" in call else None
    inputs = Inputs(rules, query, key, value, bias_query, call.get("mask"), None, call.get("query_offset", 0))
    (out, log), _, _ = jax.jit(partial(generated.forward, blocks=BLOCKS))(inputs)
    wide = (x.astype(jnp.float32) for x in (query, key, value))
    expected, expected_log = attend(*wide, implementation="plain", return_log_sum_exp=True, **call)
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.float32(out), expected, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(jnp.where(log == jnp.inf, -jnp.inf, log), expected_log, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("call", "implementation", "reason"),
    [
        ({}, "kernel", 'the gradient is that of "fused"'),
        ({"score": scores.Additive(None, None, jnp.ones(8))}, "fused", "takes numbers as parameters on a TPU"),
        slow({"normalizer": normalizers.Sparsemax()}, "fused", "computes the softmax of one pass on a TPU"),
        slow({"block_q": 64}, "fused", "has blocks of multiples of 128 on a TPU, got 64 x 256"),
    ],
)
def test_a_tpu_takes_the_kernel_by_name_where_it_can(call, implementation, reason):
    x = jax.ShapeDtypeStruct((300, 8), jnp.float32)
    [by_name] = explain(attend, x, x, x, implementation="kernel", **call)
    assert by_name["tpu"].implementation == implementation and reason in by_name["tpu"].reason
    assert explain(attend, x, x, x, **call)[0]["tpu"].implementation != "kernel"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dot", "soft cap", "Gaussian", "cosine, no key", "own score"])
def test_call_compiles_for_v5e_with_gradient_of_blocks(name):
    """One kernel, that of the output, under vmap, with a parameter of each head."""
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs jax[tpu], which compiles for a TPU without one")
    x, lengths = jax.ShapeDtypeStruct((2, 1023, 64), jnp.bfloat16), jax.ShapeDtypeStruct((2,), jnp.int32)

    def head(query, key, value, length):
        mask = CALLS[name].get("mask", masks.causal()) & masks.lengths(length)
        return attend(query, key, value, implementation="kernel", **CALLS[name] | {"mask": mask})

    loss = lambda *arrays: jax.vmap(head)(*arrays).astype(jnp.float32).sum()
    program = compile_for(parse_target("v5e"), jax.value_and_grad(loss, (0, 1, 2)), x, x, x, lengths)
    assert program.as_text().count('custom_call_target="tpu_custom_call"') == 1
