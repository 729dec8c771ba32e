"""`python launch.py bench compile`: compile our models, and straightforward ones in Flax Linen, for GPUs and TPUs that
are not installed.

The program is a loss and the gradient of all parameters (of query, key and value for attention), compiled for one
device: temporary memory, and bytes and operations as XLA counts them (the body of a loop once). Nothing is run. "flax"
keeps float32 where ours does; "flax, usual" is the common form (softmax and logits in bfloat16, tanh GELU; attention by
cuDNN on a GPU): its difference from "flax" is the cost of our precision.

Each compiler needs a separate environment (docs/devices.md), so there is a file for each target.
"""

import functools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from attention_jax import config
from attention_jax.compile import targets as chips
from attention_jax.compile.report import DoesNotFit, compile_for, report
from attention_jax.errors import InputError
from attention_jax.models.bahdanau import Bahdanau
from attention_jax.models.transformer import Transformer
from attention_jax.models.vit import ViT
from attention_jax.ops.attention import attend
from attention_jax.ops.losses import linear_cross_entropy, masked_cross_entropy
from benchmarks import _flax_peers as flax_peers

IMAGES, PIXELS, CLASSES = 128, 224, 1000
PAIRS, LENGTH, VOCABULARY = 384, 32, 37_000
"""24,576 source and target tokens."""
SENTENCES, WORDS = 80, 50
GRU = {"vocabulary": 30_000, "embed": 620, "hidden": 1000, "readout": 500}
"""Bahdanau et al. 2015, appendix B."""
HEADS, WIDTH = 16, 64
KERNELS = ("tpu_custom_call", "fmha")
"""Parts of the names of attention kernels in a compiled program."""


class Program(NamedTuple):
    """A program to compile: `function(*shapes)`."""

    function: Callable
    shapes: tuple


def shape(*sizes, dtype=jnp.int32) -> jax.ShapeDtypeStruct:
    """Return the shape of an argument."""
    return jax.ShapeDtypeStruct(sizes, dtype)


def gradient(model, loss: Callable, *batch) -> Program:
    """Value and gradient of `loss(params, *batch)` by the parameters of a Flax module whose inputs are the first of
    `batch`; the last are the targets."""
    params = jax.eval_shape(lambda *inputs: model.init(jax.random.key(0), *inputs), *batch[:-1])
    return Program(jax.value_and_grad(loss), (params, *batch))


def mean_loss(logits, targets, smoothing: float = 0.0):
    """Full logits [..., V] and targets [...] -> the mean cross-entropy."""
    total, count = masked_cross_entropy(logits, targets, jnp.ones(targets.shape), smoothing)
    return total / count


def flax_gradient(model, smoothing: float, *batch) -> Program:
    """Return the gradient of a peer, which returns logits."""
    return gradient(model, lambda p, *b: mean_loss(model.apply(p, *b[:-1]), b[-1], smoothing), *batch)


def vit(size: str, layers: int) -> dict[str, Program]:
    """A ViT with patches of 16 pixels, bfloat16."""
    sizes = config.VIT_SIZES[size] | ({"num_layers": layers} if layers else {})
    options = config.ViTConfig(patch_size=16, pool="mean", dtype="bfloat16", **sizes)
    batch = shape(IMAGES, PIXELS, PIXELS, 3, dtype=jnp.float32), shape(IMAGES)
    model = ViT(options, CLASSES, PIXELS)
    peer = lambda exact: flax_peers.ViT(
        options.hidden_size, options.num_heads, options.mlp_dim, options.num_layers, exact
    )
    program = gradient(model, lambda p, x, y: mean_loss(model.apply(p, x, train=True)[0], y), *batch)
    return {"ours": program} | {name: flax_gradient(peer(exact), 0.0, *batch) for name, exact in PEERS.items()}


def teacher_forced(model, smoothing: float, *batch) -> Program:
    """Return the gradient of one of our encoder-decoders, with the loss of its task."""

    def loss(params, source, length, target_in, target):
        def run(module):
            memory = module.encode(source, length, train=True)
            return module.decode(memory, target_in, train=True)[0], module.output()

        hidden, output = model.apply(params, method=run, rngs={"dropout": jax.random.key(0)})  # the rates are 0
        rows = hidden.reshape(-1, hidden.shape[-1]), *output, target.reshape(-1), jnp.ones(target.size)
        total, count = linear_cross_entropy(*rows, smoothing)
        return total / count

    return gradient(model, loss, *batch)


def transformer(layers: int) -> dict[str, Program]:
    """The base model with a shared vocabulary, label smoothing 0.1, bfloat16, without dropout."""
    depth = {"num_encoder_layers": layers, "num_decoder_layers": layers} if layers else {}
    o = config.TransformerConfig(tied_embeddings="all", output_bias=False, dropout=0.0, dtype="bfloat16", **depth)
    batch = shape(PAIRS, LENGTH), shape(PAIRS), shape(PAIRS, LENGTH), shape(PAIRS, LENGTH)
    program = teacher_forced(Transformer(o, VOCABULARY, VOCABULARY), 0.1, *batch)
    peer = functools.partial(
        flax_peers.Transformer, VOCABULARY, o.hidden_size, o.num_heads, o.mlp_dim, o.num_encoder_layers
    )
    return {"ours": program} | {name: flax_gradient(peer(exact), 0.1, *batch) for name, exact in PEERS.items()}


def bahdanau(layers: int) -> dict[str, Program]:
    """The paper's model: activations in float32, products in bfloat16; the usual peer is in bfloat16."""
    options = config.BahdanauConfig(hidden_size=GRU["hidden"], embed_size=GRU["embed"], readout_size=GRU["readout"])
    batch = shape(SENTENCES, WORDS), shape(SENTENCES), shape(SENTENCES, WORDS), shape(SENTENCES, WORDS)
    program = teacher_forced(Bahdanau(options, GRU["vocabulary"], GRU["vocabulary"]), 0.0, *batch)
    peer = functools.partial(flax_peers.Bahdanau, **GRU)
    return {"ours": program} | {name: flax_gradient(peer(exact=exact), 0.0, *batch) for name, exact in PEERS.items()}


def attention(length: int, layers: int) -> dict[str, Program]:
    """Gradient of `attend` and of `jax.nn.dot_product_attention`, [1, T, H, D] in bfloat16."""
    x = shape(1, length, HEADS, WIDTH, dtype=jnp.bfloat16)
    pool = {"ours": jax.vmap(jax.vmap(attend, 1, 1))}
    pool |= {name: flax_peers.attention_function(exact) for name, exact in PEERS.items()}

    def program(pool):
        loss = lambda q, k, v, out: jnp.vdot(pool(q, k, v).astype(jnp.float32), out.astype(jnp.float32))
        return Program(jax.value_and_grad(loss, (0, 1, 2)), (x, x, x, x))

    return {name: program(pool_fn) for name, pool_fn in pool.items()}


PEERS = {"flax": True, "flax, usual": False}
"""Name and `exact`."""

CASES = {
    "vit_s": functools.partial(vit, "S"),
    "vit_b": functools.partial(vit, "B"),
    "transformer": transformer,
    "bahdanau": bahdanau,
    "attention_4k": functools.partial(attention, 4096),
    "attention_32k": functools.partial(attention, 32_768),
}


def main(
    cases: tuple[str, ...] = tuple(CASES),
    targets: tuple[str, ...] = ("v5e", "h200"),
    layers: int = 0,
    output: str = "runs/compile",
) -> list[dict]:
    """Compile our programs and their Flax peers for GPUs and TPUs that are not installed.

    Args:
        cases: vit_s, vit_b, transformer, bahdanau, attention_4k, attention_32k.
        targets: GPUs and TPUs to compile for, one device of each; those whose compiler is not installed are skipped.
        layers: Layers of the ViTs, and of each stack of the Transformer; 0 is as published.
        output: Directory of TARGET.json.
    """
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        raise InputError(f"--cases knows {', '.join(CASES)}, got {', '.join(unknown)}")
    rows = []
    for target in compilers(targets):
        print(f"{target.name}, jax {jax.__version__}{f', {layers} layers' if layers else ''}: one gradient\n{HEADER}")
        target_rows = [row for name in cases for row in measure_case(name, layers, target)]
        Path(output).mkdir(parents=True, exist_ok=True)
        place = Path(output) / f"{target.name.replace(':', '_')}.json"
        place.write_text(json.dumps(target_rows, indent=1) + "\n", encoding="utf-8")
        print(f"written: {place}")
        rows += target_rows
    return rows


def compilers(names: tuple[str, ...]) -> list[chips.Target]:
    """Return the targets with an installed compiler, after a line for each of the others; InputError without any."""
    available, missing = [], None
    for target in map(chips.parse_target, names):
        try:
            chips.devices(target)
            available.append(target)
        except InputError as error:
            missing = error
            print(f"{target.name} left out: {error}")
    if not available:
        raise missing or InputError("--targets needs a device, such as v5e")
    return available


HEADER = f"{'case':14}{'program':13}{'temporaries':>12}{'of flax':>9}{'GB':>9}{'TFLOP':>8}  attention kernels"
"""GB accessed and operations are XLA's own count, the body of a loop once; there is none for GPUs."""


def measure_case(name: str, layers: int, target: chips.Target) -> list[dict]:
    """Compile a case and print its rows; "flax" first, because the others are relative to it."""
    programs, rows = CASES[name](layers), {}
    for which in ("flax", "ours", "flax, usual"):
        common = {"case": name, "target": target.name, "layers": layers, "program": which, "jax": jax.__version__}
        rows[which] = common | figures(programs[which], target)
        print(line(rows[which], rows["flax"]), flush=True)
    return list(rows.values())


def figures(program: Program, target: chips.Target) -> dict:
    """Return the measurements of one compiled program, or {"error": reason}."""
    begin = time.perf_counter()
    try:
        with jax.default_matmul_precision("bfloat16"):
            compiled = compile_for(target, program.function, *program.shapes)
    except (DoesNotFit, InputError, RuntimeError) as error:
        return {"error": " ".join(str(error).split())[:200]}
    analysis, text = report(compiled), compiled.as_text()
    return {
        "temporaries": analysis.temporaries,
        "bytes_accessed": analysis.bytes_accessed,
        "flops": analysis.flops,
        "kernels": {name: text.count(name) for name in KERNELS if name in text},
        "compile_seconds": round(time.perf_counter() - begin, 1),
    }


def line(row: dict, flax: dict) -> str:
    """A row of the table.

    >>> row = {"case": "vit_s", "program": "ours", "temporaries": 2**20, "bytes_accessed": 10**9, "flops": None,
    ...     "kernels": {"fmha": 2}}
    >>> print(line(row, row))
    vit_s         ours              1.0 MiB    1.00x     1.00       -  2 fmha
    """
    start = f"{row['case']:14}{row['program']:13}"
    if "error" in row:
        return start + row["error"]
    relative = "-" if "error" in flax else f"{row['temporaries'] / max(flax['temporaries'], 1):.2f}x"
    traffic, flops = (
        "-" if row[key] is None else f"{row[key] / unit:.2f}"
        for key, unit in (("bytes_accessed", 1e9), ("flops", 1e12))
    )
    kernels = ", ".join(f"{n} {name}" for name, n in row["kernels"].items())
    return f"{start}{row['temporaries'] / 2**20:>8,.1f} MiB{relative:>9}{traffic:>9}{flops:>8}  {kernels}".rstrip()
