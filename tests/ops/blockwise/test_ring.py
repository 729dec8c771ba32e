"""Attention over a sequence sharded over devices: what one device computes from the whole arrays.

By default the devices are the axis of a `jax.vmap`, which has the same collectives; the slow cases run in one process
of their own with four emulated devices. Both are in float64, so that agreement is not a matter of rounding.
"""

import importlib.util
import json
import math
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from attention_jax import attend, attend_sharded, causal, lengths, window
from attention_jax.errors import InputError
from attention_jax.ops.biases import ALiBi, ShawBias
from attention_jax.ops.normalizers import Normalizer, ScalableSoftmax, Softmax, Sparsemax, TopK
from attention_jax.ops.pooling import Moments
from attention_jax.ops.scores import Additive, Dot, Gaussian, ScaledDot
from benchmarks import _targets as targets

Q, K, D, V = 16, 24, 4, 3
SHARDED = PartitionSpec("sequence")


def third(query_positions, key_positions):
    return (query_positions[:, None] + key_positions[None]) % 3 != 0


def late(query_positions, key_positions):
    """The first six queries have no key."""
    return key_positions[None] + 5 < query_positions[:, None]


def cases():
    """{name: (normalizer, score, bias, mask, dropout)}; every floating leaf has a gradient."""
    number = lambda x: jnp.asarray(x, float)
    width, slope = Gaussian(number(0.8)), ALiBi(number(0.3))
    table = ShawBias(jax.random.normal(jax.random.key(1), (7, D), float))
    network = Additive(*(jax.random.normal(jax.random.key(2), (4, 4), float),) * 2, jnp.ones(4, float))
    return {
        "sink": (Softmax(number(0.4)), width, slope, causal() & window(9), 0.3),
        "no sink": (Softmax(), ScaledDot(), table, late, None),
        "network": (Softmax(), network, None, third, None),
        "scalable": (ScalableSoftmax(number(0.6)), Dot(), None, causal(), None),
        "scalable with a bias": (ScalableSoftmax(number(0.6)), width, slope, lengths(17), 0.3),
    }


def arrays():
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape)) for shape in ((Q, D), (K, D), (K, V)))


def with_gradients(function):
    """(gradients, outputs) of a sum of the outputs of a function of (query, key, value, rules)."""

    def loss(*arguments):
        outputs = function(*arguments)
        return sum(jnp.sin(jnp.where(x == -jnp.inf, 0, x)).sum() for x in outputs), outputs

    return jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)


def difference(name, shard):
    """The largest difference of gradients, outputs and log-sum-exp of `attend_sharded`, as `shard` runs it, from those
    of `attend`, relative to the largest number."""
    normalizer, score, bias, mask, dropout = cases()[name]
    query, key, value = arrays()
    if mask == lengths(17):
        key, value = (x.at[17:].set(jnp.nan) for x in (key, value))
    call = {"mask": mask, "dropout": dropout or 0.0, "rng": jax.random.key(7), "return_log_sum_exp": True}

    def apply(attention, query, key, value, rules, **options):
        score, bias, normalizer = rules
        return attention(query, key, value, score=score, bias=bias, normalizer=normalizer, **call, **options)

    sharded = shard(partial(apply, attend_sharded, axis_name="sequence", block_q=4, block_k=4))
    whole = with_gradients(partial(apply, attend, implementation="plain"))
    arguments = query, key, value, (score, bias, normalizer)
    actual, expected = (map(np.asarray, jax.tree.leaves(jax.jit(run)(*arguments))) for run in (sharded, whole))
    pairs = [np.where(np.stack([a, b]) == -np.inf, 0, np.stack([a, b])) for a, b in zip(actual, expected, strict=True)]
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-3)) for a, b in pairs)


def by_vmap(run_device, count=4):
    """Of the whole sequence each of `count` examples of a `jax.vmap` has a part, and differentiates its own call."""
    run = jax.vmap(with_gradients(run_device), in_axes=(0, 0, 0, None), axis_name="sequence")
    join = lambda x: x.reshape(-1, *x.shape[2:])

    def whole(query, key, value, rules):
        shards = (x.reshape(count, -1, x.shape[1]) for x in (query, key, value))
        (*gradients, of_rules), outputs = run(*shards, rules)
        return [*map(join, gradients), *(x.sum(axis=0) for x in jax.tree.leaves(of_rules)), *map(join, outputs)]

    return whole


def by_devices(run_device, devices, check=False):
    mesh = jax.sharding.Mesh(np.array(devices), ("sequence",), axis_types=(AxisType.Auto,))
    specs = SHARDED, SHARDED, SHARDED, PartitionSpec()
    return jax.shard_map(run_device, mesh=mesh, in_specs=specs, out_specs=SHARDED, check_vma=check)


def test_four_parts_agree_with_the_whole():
    """Values and gradients against those by hand, of dot products with `causal` and `ALiBi`; compiled once, 2 s."""
    query, key, value = (np.asarray(x, np.float64) for x in arrays())
    query = np.concatenate([query, query[: K - Q]])  # as many as keys, for the last to have all of them
    distance = np.arange(K)[:, None] - np.arange(K)[None]
    weights = np.exp(np.where(distance >= 0, query @ key.T - 0.3 * distance, -np.inf))
    weights /= weights.sum(axis=1, keepdims=True)
    out = weights @ value
    out_bar = np.cos(out)  # of the sum of sin(out)
    scores_bar = weights * (out_bar @ value.T - (out * out_bar).sum(axis=1, keepdims=True))
    slope_bar = -(scores_bar * distance).sum()
    expected = [scores_bar @ key, scores_bar.T @ query, weights.T @ out_bar, slope_bar, out]

    def run_device(query, key, value, slope):
        call = {"score": Dot(), "bias": ALiBi(slope), "mask": causal(), "block_q": 4, "block_k": 4}
        return (attend_sharded(query, key, value, "sequence", **call),)

    with jax.enable_x64(True):
        actual = jax.jit(by_vmap(run_device))(*map(jnp.asarray, (query, key, value)), jnp.asarray(0.3, float))
    for a, b in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)


# --- on four devices --------------------------------------------------------------------------------------------------


def batch_errors():
    """Largest difference of a batch with heads and lengths, in bfloat16, and of a gradient taken inside `shard_map`."""
    query, key, value = jax.random.normal(jax.random.key(0), (3, 2, 3, 8, 4), jnp.bfloat16)
    counts, mesh = jnp.array([3, 8]), jax.make_mesh((2,), ("sequence",), axis_types=(AxisType.Auto,))
    over = lambda function: jax.vmap(jax.vmap(function, in_axes=(0, 0, 0, None)))
    spec = PartitionSpec(None, None, "sequence")
    sharded = over(lambda q, k, v, n: attend_sharded(q, k, v, "sequence", mask=lengths(n)))
    specs = spec, spec, spec, PartitionSpec()
    sharded = jax.jit(jax.shard_map(sharded, mesh=mesh, in_specs=specs, out_specs=spec, check_vma=False))
    whole = over(lambda q, k, v, n: attend(q, k, v, mask=lengths(n), implementation="plain"))
    error = (sharded(query, key, value, counts) - whole(query, key, value, counts)).astype(float)
    x = query[0, 0].astype(float)
    local = lambda width, x: attend_sharded(x, x, x, "sequence", score=Gaussian(width)).sum()
    inside = lambda width, x: jax.lax.psum(jax.grad(local)(width, x), "sequence")
    specs = PartitionSpec(), SHARDED
    inside = jax.shard_map(inside, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    expected = jax.grad(lambda width: attend(x, x, x, score=Gaussian(width)).sum())(1.5)
    return float(jnp.abs(error).max()), float(jnp.abs(jax.jit(inside)(1.5, x) / expected - 1))


def log_without_values():
    """Largest difference of the log-sum-exp of four devices without values from that with them."""
    query, key, value = arrays()
    call = {"return_log_sum_exp": True, "mask": causal()}
    run = by_devices(lambda query, key, value, _: attend_sharded(query, key, value, "sequence", **call), jax.devices())
    return float(jnp.abs(run(query, key, value[:, :0], ())[1] - attend(query, key, value, **call)[1]).max())


def traffic(devices, length, widths=(16, 16, 24)):
    """(elements of the largest array, shapes that one hop moves, bytes of temporaries) of the compiled gradient, for a
    part of `length` positions on each device."""
    ring = partial(attend_sharded, axis_name="sequence", mask=causal(), block_q=128, block_k=128)
    run = by_devices(lambda query, key, value, rules: ring(query, key, value), devices)
    loss = lambda query, key, value: run(query, key, value, ()).sum()
    sharding = NamedSharding(jax.sharding.Mesh(np.array(devices), ("sequence",)), SHARDED)
    shapes = [jax.ShapeDtypeStruct((len(devices) * length, n), jnp.float32, sharding=sharding) for n in widths]
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes).compile()
    text = compiled.as_text()
    largest = max(math.prod(map(int, dims.split(","))) for dims in re.findall(r"\b[a-z]+\d*\[([\d,]+)\]", text))
    assert not re.search(r"(all-gather|all-to-all|reduce-scatter)(-start)?\(", text)
    moved = re.findall(r"= \(?(\w+\[[\d,]+\]).* collective-permute(?:-start)?\(", text)
    return largest, sorted(moved), compiled.memory_analysis().temp_size_in_bytes


if __name__ == "__main__":  # in a process with four devices
    places = {f"{count} devices": (jax.devices()[:count], False) for count in (1, 2, 4)}
    places |= {"4 devices, checked": (jax.devices(), True)}
    results = {
        f"{name}, {place}": difference(name, lambda run, where=where: with_gradients(by_devices(run, *where)))
        for name in cases()
        for place, where in places.items()
        if name in ("sink", "no sink") or place == "4 devices"
    }
    results |= {"batched": batch_errors(), "traffic": [traffic(jax.devices()[:count], 2048) for count in (2, 4)]}
    print(json.dumps(results | {"without values": log_without_values()}))


@pytest.fixture(scope="module")
def on_four_devices():
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    environment |= {"JAX_NUM_CPU_DEVICES": "4", "JAX_ENABLE_X64": "1"}
    environment |= {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    command = [sys.executable, __file__]
    process = subprocess.run(command, env=environment, timeout=600, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", cases())
def test_any_number_of_devices_agrees_with_one(on_four_devices, name):
    errors = [error for place, error in on_four_devices.items() if place.startswith(f"{name}, ")]
    assert errors and max(errors) < 1e-9


@pytest.mark.slow
def test_vmap_and_gradient_inside_shard_map(on_four_devices):
    error, relative = on_four_devices["batched"]
    assert error < 0.02  # two roundings to bfloat16
    assert relative < 1e-9


@pytest.mark.slow
def test_log_sum_exp_without_values(on_four_devices):
    assert on_four_devices["without values"] < 1e-12


@pytest.mark.slow
def test_hop_moves_one_block_in_linear_memory(on_four_devices):
    (_, _, of_two), (largest, moved, of_four) = on_four_devices["traffic"]
    assert largest < 8192 * 8192 / 16  # the queries of one device times its keys
    assert moved == sorted(["f32[2048,16]", "f32[2048,24]"] * 3)  # forward; backward with the gradients
    assert of_four <= 1.01 * of_two  # no device keeps the blocks that have visited it


@pytest.mark.slow
def test_hop_on_eight_tpus_moves_one_block():
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu, which is not installed")
    largest, moved, _ = traffic(targets.devices(targets.parse_target("v5e:2x4")), 2048)
    assert largest < 16384 * 16384 / 64
    assert moved == sorted(["f32[2048,16]", "f32[2048,24]"] * 3)


# --- on one device ----------------------------------------------------------------------------------------------------


def alone(function):
    """`function` of one array, inside `shard_map` over one device."""
    mesh = jax.make_mesh((1,), ("sequence",), axis_types=(AxisType.Auto,))
    run = jax.shard_map(function, mesh=mesh, in_specs=SHARDED, out_specs=SHARDED)
    return run(jnp.ones((4, 2)))


class Unknown(Normalizer):
    def weights(self, scores, allowed):
        return scores


GATHER = ("all_gather", "query_offset")


@pytest.mark.parametrize(
    "run, words",
    [
        (lambda: attend_sharded(*jnp.ones((3, 4, 2)), "sequence"), ("'sequence'", "shard_map")),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "other")), ("'other'", "shard_map")),
        (lambda: alone(lambda x: attend_sharded(x, x, x[:3], "sequence")), ("4 keys", "3 values")),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=Unknown())), ("Unknown",)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=Sparsemax())), ("Sparsemax", *GATHER)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=TopK(2))), ("TopK", *GATHER)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", normalizer=jnp.tanh)), ("tanh", *GATHER)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", pool=Moments())), ("Moments", *GATHER)),
        (lambda: alone(lambda x: attend_sharded(x, x, x, "sequence", pool=jnp.mean)), ("must be a pooling",)),
    ],
    ids=["outside", "another axis", "unequal parts", "normalizer", "sparsemax", "top-k", "function", "pool", "no pool"],
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
