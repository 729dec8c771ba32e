"""Attention over a sequence sharded over devices: what one device computes from the whole arrays, for every normalizer.

The cases run in one process of their own with four emulated devices, in float64, so that agreement is not a matter of
rounding.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention_jax import attend, attend_sharded, causal, lengths, pytree, window
from attention_jax.compile import targets
from attention_jax.errors import InputError
from attention_jax.ops.biases import ALiBi, ShawBias
from attention_jax.ops.normalizers import (
    Entmax,
    Normalizer,
    Ratio,
    ReluPower,
    ScalableSoftmax,
    Sigmoid,
    Softmax,
    Softpick,
    Sparsemax,
    StickBreaking,
    TopK,
)
from attention_jax.ops.pooling import Moments
from attention_jax.ops.scores import Additive, Dot, Gaussian, ScaledDot

Q, K, D, V = 16, 24, 4, 3
SHARDED = PartitionSpec("sequence")


@pytree
@dataclass(frozen=True)
class OffByMore(Ratio):
    offset: jax.Array

    def __call__(self, x):
        return jnp.exp(x)

    def extra(self):
        return self.offset


def third(query_positions, key_positions):
    return (query_positions[:, None] + key_positions[None]) % 3 != 0


def cases():
    """{name: (normalizer, score, bias, mask, dropout)}; every floating leaf has a gradient."""
    number = lambda x: jnp.asarray(x, float)
    width, slope = Gaussian(number(0.8)), ALiBi(number(0.3))
    table = ShawBias(jax.random.normal(jax.random.key(1), (7, D), float))
    network = Additive(*(jax.random.normal(jax.random.key(2), (4, 4), float),) * 2, jnp.ones(4, float))
    return {
        "softmax": (Softmax(), ScaledDot(), table, causal(), None),
        "sigmoid": (Sigmoid(number(-0.5)), width, None, lengths(17), 0.3),
        "sparsemax": (Sparsemax(), Dot(), slope, causal(), None),
        "stick-breaking": (StickBreaking(), Dot(), slope, window(8), 0.3),
        "softmax with a sink": (Softmax(number(0.4)), width, slope, causal() & window(9), 0.3),
        "entmax": (Entmax(number(1.4)), width, table, window(8), 0.3),
        "relu": (ReluPower(2), network, None, causal(), None),
        "divisor with more": (OffByMore(number(0.7)), Dot(), None, third, None),
        "top-k": (TopK(3), Dot(), None, causal(), None),
        "scalable softmax": (ScalableSoftmax(number(0.6)), Dot(), None, causal(), None),
        "scalable softmax with a bias": (ScalableSoftmax(number(0.6)), width, slope, lengths(17), 0.3),
        "softpick": (Softpick(), Dot(), slope, causal(), 0.3),
    }


FAST = ("softmax", "sparsemax", "stick-breaking")
EIGHT = tuple(cases())[:8]
"""Compared on every number of devices, the others on four."""


def ring(devices, call):
    """A function of the whole query, key and value and of (score, bias, normalizer)."""

    def run_device(query, key, value, rules):
        score, bias, normalizer = rules
        return attend_sharded(query, key, value, "sequence", score=score, bias=bias, normalizer=normalizer, **call)

    mesh = jax.sharding.Mesh(np.array(devices), ("sequence",), axis_types=(AxisType.Auto,))
    specs = SHARDED, SHARDED, SHARDED, PartitionSpec()
    return jax.shard_map(run_device, mesh=mesh, in_specs=specs, out_specs=SHARDED, check_vma=False)


def errors(name, counts):
    """For each number of devices the largest difference of output and gradients, relative to the largest number."""
    normalizer, score, bias, mask, dropout = cases()[name]
    rng = np.random.default_rng(0)
    query, key, value, out_bar = (jnp.asarray(rng.normal(size=s)) for s in ((Q, D), (K, D), (K, V), (Q, V)))
    if mask == lengths(17):
        key, value = (x.at[17:].set(jnp.nan) for x in (key, value))
    arguments = query, key, value, (score, bias, normalizer)
    call = {"mask": mask, "dropout": dropout, "rng": jax.random.key(7)}

    def whole(query, key, value, rules):
        score, bias, normalizer = rules
        rules = {"score": score, "bias": bias, "normalizer": normalizer}
        return attend(query, key, value, implementation="plain", **rules, **call)

    def with_gradients(function):
        def loss(*arguments):
            out = function(*arguments)
            return (out * out_bar).sum(), out

        return jax.tree.leaves(jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True))(*arguments))

    expected, max_errors = with_gradients(whole), {}
    for count in counts:
        actual = with_gradients(ring(jax.devices()[:count], call | {"block_q": 4, "block_k": 4}))
        pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(actual, expected, strict=True)]
        max_errors[count] = max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)) for a, b in pairs)
    return max_errors


def batch_errors():
    """Largest difference of a batch with heads and lengths, in bfloat16, and of a gradient taken inside `shard_map`."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 3, 8, 4), jnp.bfloat16)
    counts, mesh = jnp.array([3, 8]), jax.make_mesh((2,), ("sequence",), axis_types=(AxisType.Auto,))
    over = lambda function: jax.vmap(jax.vmap(function, in_axes=(0, 0, 0, None)))
    spec = PartitionSpec(None, None, "sequence")
    sharded = over(lambda q, k, v, n: attend_sharded(q, k, v, "sequence", mask=lengths(n), normalizer=Entmax()))
    specs = spec, spec, spec, PartitionSpec()
    sharded = jax.jit(jax.shard_map(sharded, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False))
    whole = over(lambda q, k, v, n: attend(q, k, v, mask=lengths(n), normalizer=Entmax(), implementation="plain"))
    difference = (sharded(query, key, value, counts) - whole(query, key, value, counts)).astype(float)
    x = query[0, 0].astype(float)
    local = lambda width, x: attend_sharded(x, x, x, "sequence", score=Gaussian(width)).sum()
    inside = lambda width, x: jax.lax.psum(jax.grad(local)(width, x), "sequence")
    specs = PartitionSpec(), SHARDED
    inside = jax.shard_map(inside, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    expected = jax.grad(lambda width: attend(x, x, x, score=Gaussian(width)).sum())(1.5)
    return float(jnp.abs(difference).max()), float(jnp.abs(jax.jit(inside)(1.5, x) / expected - 1))


def traffic(devices, normalizer, T, widths=(16, 16, 24)):
    """(elements of the largest array, shapes that one hop moves) of the compiled gradient."""
    call = {"mask": causal(), "block_q": 128, "block_k": 128}
    run = ring(devices, call)
    loss = lambda query, key, value: run(query, key, value, (ScaledDot(), None, normalizer)).sum()
    mesh = jax.sharding.Mesh(np.array(devices), ("sequence",))
    sharding = NamedSharding(mesh, SHARDED)
    shapes = [jax.ShapeDtypeStruct((T, width), jnp.float32, sharding=sharding) for width in widths]
    text = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile().as_text()
    largest = max(math.prod(map(int, dims.split(","))) for dims in re.findall(r"\b[a-z]+\d*\[([\d,]+)\]", text))
    assert not re.search(r"(all-gather|all-to-all|reduce-scatter)(-start)?\(", text)
    moved = re.findall(r"= \(?(\w+\[[\d,]+\]).* collective-permute(?:-start)?\(", text)
    return largest, sorted(moved)


if __name__ == "__main__":  # in a process with four devices
    names, counts = json.loads(sys.argv[1])
    results = {name: errors(name, counts if name in EIGHT else counts[-1:]) for name in names}
    if len(names) == len(FAST):
        results |= {"batched": batch_errors(), "traffic": traffic(jax.devices(), Softmax(), 8192)}
    print(json.dumps(results))


def elsewhere(names, counts):
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    environment |= {"JAX_NUM_CPU_DEVICES": "4", "JAX_ENABLE_X64": "1"}
    environment |= {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    command = [sys.executable, __file__, json.dumps([names, counts])]
    process = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def on_four_devices():
    return elsewhere(FAST, [4])


@pytest.fixture(scope="module")
def on_all_counts():
    return elsewhere(list(cases()), [1, 2, 4])


@pytest.mark.parametrize("name", FAST)
def test_four_devices_agree_with_one(on_four_devices, name):
    assert on_four_devices[name]["4"] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_any_number_of_devices_agrees_with_one(on_all_counts, name):
    assert max(on_all_counts[name].values()) < 1e-9


def test_vmap_and_gradient_inside_shard_map(on_four_devices):
    difference, relative = on_four_devices["batched"]
    assert difference < 0.02  # two roundings to bfloat16
    assert relative < 1e-9


def test_hop_moves_one_block_in_linear_memory(on_four_devices):
    largest, moved = on_four_devices["traffic"]
    assert largest < 8192 * 8192 / 16  # the queries of one device times its keys
    assert moved == sorted(["f32[2048,16]", "f32[2048,24]"] * 3)  # forward; backward with the gradients


@pytest.mark.slow
def test_hop_on_eight_tpus_moves_one_block():
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu, which is not installed")
    largest, moved = traffic(targets.devices(targets.parse_target("v5e:2x4")), Softmax(), 16384)
    assert largest < 16384 * 16384 / 64
    assert moved == sorted(["f32[2048,16]", "f32[2048,24]"] * 3)


def alone(function):
    """`function` of one array, inside `shard_map` over one device."""
    mesh = jax.make_mesh((1,), ("sequence",), axis_types=(AxisType.Auto,))
    run = jax.shard_map(function, mesh=mesh, in_specs=SHARDED, out_specs=SHARDED)
    return run(jnp.ones((4, 2)))


class Unknown(Normalizer):
    def weights(self, scores, allowed):
        return scores


@pytest.mark.parametrize(
    "run, words",
    [
        (lambda: attend_sharded(*jnp.ones((3, 4, 2)), "sequence"), ("'sequence'", "shard_map")),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "other")), ("'other'", "shard_map")),
        (lambda: alone(lambda x: attend_sharded(x, x, x[:3], "sequence")), ("4 keys", "3 values")),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=Unknown())), ("Unknown",)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", pool=Moments())), ("the mean alone", "Moments")),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", pool=jnp.mean)), ("must be a pooling",)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=Sparsemax(), return_log_sum_exp=True)),
         ("needs the softmax", "Sparsemax")),
    ],
    ids=["outside", "another axis", "unequal parts", "normalizer", "pool", "no pool", "log-sum-exp"],
)  # fmt: skip
def test_misuse_is_one_line(run, words):
    with pytest.raises(InputError) as error:
        run()
    assert all(word in str(error.value) for word in words) and "\n" not in str(error.value)


def test_no_dropout_without_rng():
    """Traced only: of both functions the program is that without dropout, and another one with a key."""

    def program(**call):
        ring = lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", **call))
        return [str(jax.make_jaxpr(run)()) for run in (ring, lambda: attend(*jnp.ones((3, 4, 2)), **call))]

    without, silent, dropped = program(), program(dropout=0.5), program(dropout=0.5, rng=jax.random.key(0))
    assert silent == without and all(a != b for a, b in zip(dropped, without, strict=True))


def log_sum_exps():
    """The output and log-sum-exp of four devices against those of one, and the gradient of both, with and without the
    checks of `shard_map`, with a sink, with queries that may attend to nothing, and without values."""
    rng = np.random.default_rng(0)
    arrays = tuple(jnp.asarray(rng.normal(size=s)) for s in ((Q, D), (K, D), (K, V)))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("sequence",), axis_types=(AxisType.Auto,))
    late = lambda rows, columns: columns[None] + 5 < rows[:, None]  # the first six queries have no key
    for normalizer in (Softmax(), Softmax(jnp.asarray(0.4))):
        call = {"mask": late, "normalizer": normalizer, "return_log_sum_exp": True}
        run_device = lambda query, key, value: attend_sharded(query, key, value, "sequence", **call)
        both = lambda attention, *arrays: sum(jnp.sin(jnp.where(x == -jnp.inf, 0, x)).sum() for x in attention(*arrays))
        for check in (True, False):
            sharded = jax.shard_map(run_device, mesh=mesh, in_specs=SHARDED, out_specs=SHARDED, check_vma=check)
            run_whole = lambda query, key, value: attend(query, key, value, **call)
            for a, b in zip(jax.jit(sharded)(*arrays), run_whole(*arrays), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-12)
            grad = lambda attention: jax.jit(jax.grad(lambda *x: both(attention, *x), argnums=(0, 1, 2)))(*arrays)
            for a, b in zip(grad(sharded), grad(run_whole), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-12)
        np.testing.assert_allclose(sharded(*arrays[:2], arrays[2][:, :0])[1], run_whole(*arrays)[1], atol=1e-12)


@pytest.mark.slow
def test_log_sum_exp_gradient_on_four_devices():
    script = "import jax, runpy, sys; jax.config.update('jax_num_cpu_devices', 4); "
    script += "jax.config.update('jax_enable_x64', True); runpy.run_path(sys.argv[1])['log_sum_exps']()"
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    process = subprocess.run(
        [sys.executable, "-c", script, __file__], env=environment, capture_output=True, text=True, timeout=600
    )
    assert not process.returncode, process.stderr
