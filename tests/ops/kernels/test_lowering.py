"""Every kind of generated kernel lowers for CUDA where no card is, forward and with its gradients, with each version of
JAX that is supported; `launch.py bench registers` compiles the same ones."""

import importlib.util
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh
from tiers import slow_but

from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.ops.kernels import generated
from benchmarks import registers
from benchmarks._targets import compile_for, parse_target

if generated.missing():
    pytest.skip(generated.missing(), allow_module_level=True)

CASES = registers.cases()
DEFAULT = ("dot/causal/1023x64", "gaussian", "additive")
"""Steps with and without the mask; operations that JAX 0.12 composes in another way; a loop over features."""


@pytest.mark.parametrize("name", slow_but(DEFAULT, CASES))
def test_output_and_gradients_lower_without_card(name):
    device = AbstractDevice("NVIDIA H100", num_cores=132, platform="cuda")  # which jax asks for from 0.11 on
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        kernels = registers.kernels_of(registers.lower(CASES[name]))
    assert {kernel.name for kernel in kernels} == {"attend", "query_gradient", "key_gradient"}
    assert len(kernels) == 3 and all(kernel.code for kernel in kernels)


@pytest.mark.slow
@pytest.mark.skipif(jax.__version__ >= "0.11", reason="a later version writes code that it does not read")
def test_code_of_normalizer_with_python_number_verifies():
    """The number 1.5 has a weak type, with which a literal beside it would get the type of a condition."""
    from jax._src.lib.mlir import ir
    from jax._src.lib.triton import dialect

    kernels = registers.kernels_of(registers.lower(CASES["entmax"]._replace(length=64, width=16)))
    with ir.Context() as context:
        dialect.register_dialect(context)
        assert all(ir.Module.parse(kernel.code).operation.verify() for kernel in kernels)


@pytest.mark.slow
def test_model_with_kernels_compiles_for_absent_gpu():
    if not any(map(importlib.util.find_spec, ("jax_cuda12_plugin", "jax_cuda13_plugin"))):
        pytest.skip("needs jax[cuda12], which compiles for a GPU without one")
    model = MultiHeadAttention(num_heads=2, hidden_size=128, dtype=jnp.bfloat16, implementation="kernel")
    x = jax.ShapeDtypeStruct((2, 100, 128), jnp.bfloat16)
    parameters = jax.eval_shape(model.init, jax.random.key(0), x, x, x)
    loss = lambda parameters, x: model.apply(parameters, x, x, x)[0].astype(jnp.float32).sum()
    program = compile_for(parse_target("h100"), jax.grad(loss, (0, 1)), parameters, x).as_text()
    assert len(re.findall(r"custom_call_target=.*triton", program)) == 3
