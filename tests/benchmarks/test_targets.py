"""Names of targets, and what is said where one is wrong or its compiler is not installed."""

import importlib.util
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

from attention_jax.errors import InputError
from benchmarks import _targets as targets


@pytest.mark.parametrize(
    "name, shape, count",
    [("v5e:2x4", (2, 4), 8), ("V6E:2x2", (2, 2), 4), ("v5p:2x2x1", (2, 2, 1), 4), ("h200:8", (8,), 8),
     ("a100", (1,), 1), ("v5e", (1, 1), 1), ("v5p:1", (1, 1, 1), 1)],
)  # fmt: skip
def test_a_name_means_devices_of_a_kind(name, shape, count):
    target = targets.parse_target(name)
    assert (target.shape, target.devices) == (shape, count)


@pytest.mark.parametrize(
    "name, message",
    [("h20:8", "perhaps you meant h200"), ("v5:2x4", "perhaps you meant v5"), ("abacus", "choose one of v5e"),
     ("v5e:8", "as in v5e:2x4"), ("h200:2x4", "as in h200:8"), ("v5p:2x2", "as in v5p:2x2x1"), ("h200:0", "h200:8"),
     ("v5e:twoxfour", "as in v5e:2x4")],
)  # fmt: skip
def test_wrong_target_name_error_has_suggestion(name, message):
    with pytest.raises(InputError) as error:
        targets.parse_target(name)
    assert message in str(error.value) and repr(name) in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("name, package", [("v5e:2x4", "jax[tpu]"), ("h200:8", "jax[cuda12]")])
def test_missing_compiler_error_has_install_command(name, package, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="not installed") as error:
        targets.devices(targets.parse_target(name))
    assert f'pip install "{package}=={jax.__version__}"' in str(error.value) and "\n" not in str(error.value)


def test_a_gpu_is_described_to_its_compiler():
    text = targets.target_config(targets.CHIPS["h200"])
    assert 'device_description_str: "NVIDIA H200"' in text
    assert "core_count: 132 " in text and "device_memory_size: 151397597184 " in text
    assert text.count("{") == text.count("}")


@pytest.mark.parametrize("name, package", [("v5e:2x4", "libtpu"), ("h200:8", "jax_cuda12_plugin")])
def test_absent_devices_are_described_by_their_compiler(name, package):
    if not importlib.util.find_spec(package):
        pytest.skip(f"needs {package}, which is not installed")
    absent = targets.devices(targets.parse_target(name))
    assert len(absent) == 8 and {device.process_index for device in absent} == {0}


def double_tanh(x):
    """A Triton kernel, whose lowering asks from jax 0.11 on which GPU it is for."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    def kernel(x_ref, out_ref):
        out_ref[...] = 2 * jnp.tanh(x_ref[...])

    parameters = triton.CompilerParams(num_warps=4, num_stages=2)
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), compiler_params=parameters)(x)


@pytest.mark.parametrize("name", [name for name, chip in targets.CHIPS.items() if chip.platform == "cuda"])
def test_kernel_lowers_for_absent_gpu(name, monkeypatch):
    device = SimpleNamespace(device_kind=f"NVIDIA {name.upper()}", core_count=132)
    monkeypatch.setattr(targets, "devices", lambda target: [device])
    with targets.lowering_for(targets.parse_target(name)):
        described = jax.sharding.get_abstract_mesh().abstract_device
        traced = jax.jit(double_tanh).trace(jax.ShapeDtypeStruct((64, 64), jnp.float32))
        lowered = traced.lower(lowering_platforms=("cuda",)).as_text()
    assert (described.device_kind, described.num_cores, described.platform) == (device.device_kind, 132, "cuda")
    assert "triton" in lowered and jax.sharding.get_abstract_mesh().abstract_device is None


def test_a_cpu_is_no_absent_device():
    with targets.lowering_for(targets.parse_target("cpu")):
        assert jax.sharding.get_abstract_mesh().abstract_device is None


@pytest.mark.slow
def test_kernel_compiles_for_absent_gpu():
    packages = [name for name in ("jax_cuda12_plugin", "jax_cuda13_plugin") if importlib.util.find_spec(name)]
    if not packages:
        pytest.skip("needs jax_cuda12_plugin or jax_cuda13_plugin, which are not installed")
    shape = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    compiled = targets.compile_for(targets.parse_target("h100"), double_tanh, shape)
    assert "triton" in compiled.as_text() and compiled.memory_analysis().argument_size_in_bytes == 4 * 64 * 64


def test_too_few_devices_are_an_error():
    with pytest.raises(InputError, match="JAX_NUM_CPU_DEVICES=4096"):
        targets.devices(targets.parse_target("cpu:4096"))
