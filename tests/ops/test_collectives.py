"""`attend_heads` under `jax.jit` with sharded arrays: devices that have whole sequences and heads need not communicate.

One process with four emulated devices compiles a gradient for every normalizer and both axes.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_jax import attend_heads, causal, normalizers
from attention_jax.ops.normalizer_kinds import Threshold

ROOT = Path(__file__).resolve().parents[2]
B, T, H, D = 4, 16, 4, 4
COLLECTIVE = re.compile(r"= (.+?) (all-reduce|all-gather|reduce-scatter|collective-permute|all-to-all)(?:-start)?\(")


def every_normalizer() -> dict:
    """Each public normalizer once; leaves that are arrays have one number for each head."""
    class_args = {"TopK": [3], "ScalableSoftmax": [0.4]}
    classes = {name: getattr(normalizers, name) for name in normalizers.__all__}
    bases = {"Normalizer", "Ordered", "Pointwise", "Ratio", "Threshold", "Signed", "Local", "Exponential"}
    instances = {
        name: c(*class_args.get(name, [])) for name, c in classes.items() if isinstance(c, type) and name not in bases
    }
    return instances | {
        "sink": normalizers.Softmax(sink=jnp.zeros(H)),
        "TopK-Sparsemax": normalizers.TopK(3, normalizers.Sparsemax()),
    }


def collectives(normalizer, spec, implementation) -> list[str]:
    """The collective operations, with the types of their results, in the compiled gradient of all arrays."""
    mesh = Mesh(jax.devices(), ("devices",))
    sharding = NamedSharding(mesh, spec)
    x = jax.ShapeDtypeStruct((B, T, H, D), jnp.float32, sharding=sharding)
    call = {"normalizer": normalizer, "mask": causal(), "implementation": implementation, "block_q": 8, "block_k": 8}

    def gradient(query, key, value, bar):
        out, pull = jax.vjp(lambda *arrays: attend_heads(*arrays, **call), query, key, value)
        return out, pull(bar)

    compiled = jax.jit(gradient, out_shardings=sharding).lower(x, x, x, x).compile()
    return [f"{re.sub(r'{.*?}', '', kind)} {operation}" for kind, operation in COLLECTIVE.findall(compiled.as_text())]


def find():
    """Print {normalizer: {axis: {implementation: collectives}}} as JSON; axis 1 is the sequence, for which there must
    be some."""
    results = {}
    for name, normalizer in every_normalizer().items():
        specs = {axis: PartitionSpec(*[None] * axis, "devices") for axis in (0, 2)}
        each = {i: {axis: collectives(normalizer, spec, i) for axis, spec in specs.items()} for i in ("fused", "plain")}
        results[name] = each
    results["control"] = collectives(normalizers.Softmax(), PartitionSpec(None, "devices"), "plain")
    print(json.dumps(results))


@pytest.fixture(scope="module")
def search_results():
    script = (
        "import jax, runpy, sys; jax.config.update('jax_num_cpu_devices', 4); runpy.run_path(sys.argv[1])['find']()"
    )
    environment = os.environ | {"NPROC": "8", "PYTHONPATH": str(ROOT)}
    process = subprocess.run(
        [sys.executable, "-c", script, __file__], capture_output=True, text=True, env=environment, timeout=900
    )
    assert not process.returncode, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


@pytest.mark.slow
def test_sharded_sequences_are_seen_by_the_search(search_results):
    """What the other tests search for is there where keys are on other devices."""
    assert search_results["control"]


@pytest.mark.slow
@pytest.mark.parametrize("name", every_normalizer())
@pytest.mark.parametrize("axis", ["0", "2"])
@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_devices_with_whole_heads_send_no_numbers(search_results, name, axis, implementation):
    """Without blocks there is nothing to send, and in blocks booleans alone: whether any number is not finite, asked
    once for a call; whether a block may have all weights 0, for all sequences together; and, sharded over the heads,
    whether the mask allows a block, which is decided for all heads of a sequence together. The search for a threshold
    ends when all rows have theirs, which is a boolean for each step (`find_threshold` says why).

    `TopK` in blocks gathers scores, because XLA does not divide `lax.top_k` over devices.
    """
    normalizer, kinds = every_normalizer()[name], {*search_results[name][implementation][axis]}
    if isinstance(normalizer, normalizers.TopK) and implementation == "fused":
        assert any("f32" in kind and "all-gather" in kind for kind in kinds), "it gathers no more: say so in the docs"
        return
    searches = isinstance(normalizer, Threshold) or name == "TopK-Sparsemax"
    allowed = {"pred[] all-reduce"} if searches or implementation == "fused" else set()
    assert kinds <= (allowed | {f"pred[{B}] all-reduce"} if (implementation, axis) == ("fused", "2") else allowed)
    skips = name in ("ReluPower", "StickBreaking")
    if implementation == "fused" and not searches and not skips:
        assert search_results[name]["fused"][axis].count("pred[] all-reduce") <= 1, "once for a call"
