"""Loops over arrays that vary over the devices of `jax.shard_map`, with its checks, or are sharded over explicit mesh
axes: values and gradients are those of one device without a mesh.

By default a few programs are traced for a mesh without devices, whose types JAX checks. In the slow tier all are
computed, in one process of their own with two emulated devices; each compiles three programs.
"""

import json
import math
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from attention_jax import attend, attend_heads, attend_sharded, causal
from attention_jax.decode import beam_search, greedy
from attention_jax.ops import linear, norm
from attention_jax.ops.delta import chunked_delta, recurrent_delta
from attention_jax.ops.kernel_regression import learn_width
from attention_jax.ops.losses import linear_cross_entropy
from attention_jax.ops.normalizers import (
    Entmax,
    Softmax,
    Sparsemax,
    StickBreaking,
)
from attention_jax.ops.pooling import LocalLinear, Moments
from attention_jax.ops.recurrent import bptt, cells
from attention_jax.ops.recurrent.deferred import DeferredWeight, deferred_scan
from attention_jax.ops.retention import chunked_retention, quadratic_retention, recurrent_retention
from attention_jax.ops.scores import Gaussian
from attention_jax.sampling import sample
from attention_jax.tasks.attention_maps import rollout

T, D = 12, 4
BATCH = PartitionSpec("d")


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def rules():
    """{name: arguments of `attend`}; the table of `cases.py` has the others inside of `shard_map`."""
    return {
        "causal": {"mask": causal(), "implementation": "fused", "block_q": 4, "block_k": 4},
        "sparsemax": {"normalizer": Sparsemax(), "score": Gaussian(jnp.float32(1.2)), "mask": causal()},
        "dropout": {"dropout": 0.3, "rng": jax.random.key(1)},
        "moments": {"pool": Moments(), "mask": causal()},
        "local linear": {"pool": LocalLinear(), "mask": causal()},
        "linear": {"score": linear.Elu(), "mask": causal(), "implementation": "linear"},
    }


def attention(name):
    """Values of both implementations for x [B, T, D] and the floating leaves of the rules."""
    call = rules()[name]
    rule_args = {name: call.pop(name) for name in ("score", "bias", "normalizer") if name in call}
    leaves, structure = jax.tree.flatten(rule_args)
    blocks = {"implementation": "fused", "block_q": 4, "block_k": 4}

    def run(x, leaves):
        each = [call] if "implementation" in call else [call | {"implementation": "plain"}, call | blocks]
        outs = [jax.vmap(lambda x: attend(x, x, x, **jax.tree.unflatten(structure, leaves), **c))(x) for c in each]
        return jnp.concatenate(outs, axis=1)

    return run, leaves


def recurrences():
    """{name: (function of x [B, T, D] and weights, the weights)}."""
    decay = np.full(T, -0.1, np.float32)
    over_batch = lambda function: lambda x, weights: jax.vmap(lambda x: function(x, *weights))(x)
    retained = {
        "quadratic retention": lambda x, g: quadratic_retention(x, x, x, g),
        "recurrent retention": lambda x, g: recurrent_retention(x, x, x, g)[0],
        "chunked retention": lambda x, g: chunked_retention(x, x, x, g, chunk=5)[0],
        "recurrent delta": lambda x, g: recurrent_delta(x, 0.3 * x, x, jnp.ones(T), g)[0],
        "chunked delta": lambda x, g: chunked_delta(x, 0.3 * x, x, jnp.ones(T), g, chunk=5)[0],
    }
    functions = {
        "linear attention": lambda x: linear.recurrent(x, x, x, linear.Elu()),
        "rollout": lambda x: rollout(jax.nn.softmax(x[None, None, :D])),
        "width": lambda x: learn_width(x, x, steps=2)[None],
    }
    first = lambda x, n: jnp.zeros((x.shape[0], n))
    kernel, bias = 0.3 * normal(D // 2, 2 * D, seed=3), normal(D // 2, seed=4)
    stepped = {
        "lstm": (lambda x, w: cells.lstm(jnp.tile(x, 2).swapaxes(0, 1), w[0], (first(x, 2),) * 2)[0], [kernel]),
        "gru": (
            lambda x, w: cells.gru(jnp.tile(x, 2)[..., :6].swapaxes(0, 1), w[0][:, :6], w[1], (first(x, 2),))[0],
            [kernel, bias],
        ),
        "deferred": (
            lambda x, w: deferred_scan(
                lambda w, h, x: (jnp.tanh(x + h @ w),) * 2, DeferredWeight(w[0]), first(x, D), x.swapaxes(0, 1)
            )[1],
            [normal(D, D, seed=3)],
        ),
        "truncated": (
            lambda x, w: bptt.scan_with_factors(
                lambda h, x: (jnp.tanh(x + h @ w[0]),) * 2,
                first(x, D),
                x.swapaxes(0, 1),
                (jnp.arange(T) % 2).astype(jnp.float32),
            )[1],
            [normal(D, D, seed=3)],
        ),
        "layer norm": (lambda x, w: norm.layer_norm(x, *w), [normal(D, seed=3), normal(D, seed=4)]),
    }

    def by_batch(function):  # of what has time first
        return lambda x, w: out.swapaxes(0, 1) if (out := function(x, w)).shape[0] == T else out

    cases = {name: (over_batch(function), [decay]) for name, function in retained.items()}
    cases |= {name: (over_batch(function), []) for name, function in functions.items()}
    cases |= {name: (by_batch(function), weights) for name, (function, weights) in stepped.items()}
    targets = np.arange(T, dtype=np.int32) % 5
    loss = lambda x, *w: linear_cross_entropy(x, *w, targets, jnp.ones(T))[0][None]
    return cases | {"loss": (over_batch(loss), [normal(D, 5, seed=3), normal(5, seed=4)])}


def decoders():
    """{name: function of a bias of the logits [B, V] and their table in a list}; the cache begins with zeros."""
    start = lambda bias: {"bias": bias, "count": jnp.zeros(len(bias), int), "sum": jnp.zeros(bias.shape)}

    def step(chain, tokens, cache):
        bias = cache["bias"]
        return chain[tokens] + bias, {"bias": 0.9 * bias, "count": cache["count"] + 1, "sum": cache["sum"] + bias}

    searched = {"bos": 0, "eos": 2, "pad": 0, "max_length": 5}
    return {
        "greedy": lambda b, w: greedy(partial(step, *w), start(b), len(b), **searched),
        "beam search": lambda b, w: beam_search(partial(step, *w), start(b), len(b), beam_size=2, n_best=2, **searched)[
            0
        ],
        "sample": lambda b, w: sample(
            partial(step, *w), start(b), jnp.ones((len(b), 2), jnp.int32), 4, temperature=0.0
        ),
    }


def meshes():
    devices = np.array(jax.devices())
    return (Mesh(devices, ("d",), axis_types=(AxisType.Auto,)), jax.make_mesh((2,), ("d",)))  # the default is explicit


def difference(actual, expected):
    pairs = zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True)
    relative = lambda a, b: np.abs(np.asarray(a) - np.asarray(b)).max(initial=0) / max(np.abs(np.asarray(b)).max(), 1)
    return float(max(relative(a, b) for a, b in pairs))


def shard(run, mesh, x, weights):
    """`run` in a `shard_map` over the batch; gradients of weights are those of all of it."""
    outputs = (BATCH, BATCH, PartitionSpec()) if isinstance(jax.eval_shape(run, x, weights), tuple) else BATCH
    return jax.shard_map(run, mesh=mesh, in_specs=(BATCH, PartitionSpec()), out_specs=outputs)


def errors(run, x, weights):
    """The largest difference in `shard_map` and on an explicit mesh."""
    auto, explicit = meshes()
    place = lambda tree, spec: jax.device_put(tree, NamedSharding(explicit, spec))
    expected = jax.jit(run)(x, weights)
    checked = jax.jit(shard(run, auto, x, weights))(x, weights)
    placed = jax.jit(run)(place(x, BATCH), place(weights, PartitionSpec()))
    return difference(checked, expected), difference(placed, expected)


def with_gradients(run):
    def both(x, weights):
        def total(x, weights):
            out = run(x, weights)
            size = math.prod(out.shape[1:])
            return (out * (jnp.arange(1.0, 1 + size) / size).reshape(1, *out.shape[1:])).sum(), out

        gradients, out = jax.grad(total, argnums=(0, 1), has_aux=True)(x, weights)
        return out, *gradients

    return both


def heads_with_set_mesh():
    """`attend_heads` on the explicit mesh that is set, by its default route in blocks, against "plain"."""
    _, explicit = meshes()
    x = normal(2, 300, 2, 4)
    with jax.set_mesh(explicit):
        actual = jax.jit(lambda x: attend_heads(x, x, x, mask=causal()))(
            jax.device_put(x, NamedSharding(explicit, BATCH))
        )
    return (difference(actual, attend_heads(x, x, x, mask=causal(), implementation="plain")),)


def entropy(normalizer):
    call = {"mask": causal(), "normalizer": normalizer, "implementation": "fused", "block_q": 4, "block_k": 4}
    head_entropy = lambda x: attend(x, x, x, **call, return_statistics=True)[1].entropy
    return lambda x, _: jax.vmap(head_entropy)(x), normal(2, T, D), []


def programs():
    """{name: (a function of the batch and of weights, the batch, the weights)}."""
    every = {f"attend {name}": attention(name) for name in rules()} | recurrences()
    every = {name: (with_gradients(run), normal(2, T, D), weights) for name, (run, weights) in every.items()}
    every |= {name: (run, normal(4, 5), [normal(5, 5, seed=1)]) for name, run in decoders().items()}
    return every | {f"entropy {type(n).__name__}": entropy(n) for n in (Softmax(), Sparsemax(), StickBreaking())}


def sequence_parallel():
    """Values and gradients of `attend_sharded` inside a `shard_map` with its checks, against `attend`."""
    auto, _ = meshes()
    call = {"dropout": 0.3, "rng": jax.random.key(1), "mask": causal()}
    total = lambda attend, x, width: (attend(x, x, x, score=Gaussian(width), **call) ** 3).sum()
    gradients = lambda attend: jax.grad(partial(total, attend), argnums=(0, 1))
    ring = partial(attend_sharded, axis_name="d", block_q=3, block_k=3)
    ring = jax.shard_map(
        gradients(ring), mesh=auto, in_specs=(BATCH, PartitionSpec()), out_specs=(BATCH, PartitionSpec())
    )
    x, width = normal(T, D), jnp.float32(1.2)
    return (difference(jax.jit(ring)(x, width), gradients(attend)(x, width)),)


def without_jit():
    """Rules that are tried, a score and a normalizer, inside a `shard_map` that is not compiled; 2 s."""
    auto, _ = meshes()
    call = {"score": lambda query, key: query @ key.T, "normalizer": Entmax(jnp.array(1.5)), "mask": causal()}
    run = jax.vmap(lambda x: attend(x, x, x, **call))
    x = normal(2, T, D)
    return (difference(jax.shard_map(run, mesh=auto, in_specs=BATCH, out_specs=BATCH)(x), run(x)),)


PROGRAMS = {name: partial(errors, *program) for name, program in programs().items()}
CASES = PROGRAMS | {"ring": sequence_parallel, "heads": heads_with_set_mesh, "rules without jit": without_jit}

if __name__ == "__main__":  # in a process with two devices
    for name in json.loads(sys.argv[1]):
        try:
            print(json.dumps([name, CASES[name]()]), flush=True)
        except Exception as error:
            print(json.dumps([name, f"{type(error).__name__}: {error}"[:500]]), flush=True)


def elsewhere(names):
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    environment |= {"JAX_NUM_CPU_DEVICES": "2", "JAX_NUMPY_DTYPE_PROMOTION": "strict"}
    command = [sys.executable, __file__, json.dumps(list(names))]
    process = subprocess.run(command, env=environment, timeout=1200, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return dict(json.loads(line) for line in process.stdout.splitlines())


@pytest.fixture(scope="module")
def all_errors():
    return elsewhere(CASES)


@pytest.mark.parametrize("name", ["attend causal", "recurrent retention", "greedy", "entropy Softmax"])
def test_types_of_arrays_on_a_mesh(name):
    run, x, weights = programs()[name]
    auto, explicit = (AbstractMesh((2,), ("d",), axis_types=(kind,)) for kind in (AxisType.Auto, AxisType.Explicit))
    kinds = lambda *call: jax.tree.map(lambda x: (x.shape, x.dtype), jax.eval_shape(*call))
    placed = jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(explicit, BATCH))
    assert kinds(run, placed, weights) == kinds(run, x, weights)
    assert kinds(shard(run, auto, x, weights), x, weights) == kinds(run, x, weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_mesh_changes_no_number(all_errors, name):
    result = all_errors[name]
    assert not isinstance(result, str) and max(result) < 1e-4, result
