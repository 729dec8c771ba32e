"""`python launch.py bench card`: the programs of `bench compile` on the chip that is here, beside PyTorch's.

A loss and the gradient of all parameters: how long a call takes, which share of the chip's peak its products reach, and
how much memory it took; beside each what the compiler had said. Each program has a process of its own, so that one's
peak is not another's and what does not fit is a row that says so. PyTorch is compiled by its own compiler, under
bfloat16 autocast, and left out where it is not installed.
"""

import importlib.util
import json
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp

from attention_jax import InputError
from attention_jax.bench import bench_compile
from attention_jax.compile import targets as chips
from attention_jax.compile.report import report

CASES = ("vit_s", "vit_b", "transformer", "attention_4k", "attention_32k")
KINDS = {"h200": "h200", "h100": "h100", "a100": "a100", "b200": "b200", "v5 lite": "v5e", "v5p": "v5p", "v6": "v6e"}
"""A part of what JAX calls a device, and the chip's name in `compile.targets`."""


def main(
    cases: tuple[str, ...] = CASES,
    layers: int = 0,
    calls: int = 20,
    total_seconds: float = 480.0,
    torch: bool = True,
    output: str = "runs/bench_card.json",
) -> list[dict]:
    """Time training gradients on the chip that is here.

    Args:
        cases: vit_s, vit_b, transformer, bahdanau, attention_4k, attention_32k.
        layers: Of the ViTs, and of the Transformer's encoder and decoder each; 0 is as published.
        calls: Timed calls of each program, after three that are not.
        total_seconds: Programs that would begin later than this are left out, and say so.
        torch: Measure PyTorch too, if it is installed.
        output: The JSON, written after every row.
    """
    unknown = [name for name in cases if name not in bench_compile.CASES]
    if unknown:
        raise InputError(f"--cases knows {', '.join(bench_compile.CASES)}, got {', '.join(unknown)}")
    end, rows, place = time.monotonic() + total_seconds, [], Path(output)
    place.parent.mkdir(parents=True, exist_ok=True)
    print(HEADER)
    for case in cases:
        for program in ("flax", "ours", *(["torch"] if torch and has_torch(case) else [])):
            late = time.monotonic() > end
            row = {"error": "left out: --total-seconds are over"} if late else alone(case, layers, program, calls)
            rows.append({"case": case, "program": program, "layers": layers} | row)
            place.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            print(line(rows[-1]), flush=True)
    print(f"written: {place}")
    return rows


def has_torch(case: str) -> bool:
    """Whether PyTorch is here and has a peer for the case."""
    return case.split("_")[0] in ("vit", "transformer") and importlib.util.find_spec("torch") is not None


HEADER = f"{'case':14}{'program':9}{'a call':>11}{'at least':>10}{'of peak':>9}{'memory':>12}{'as planned':>12}  device"


def line(row: dict) -> str:
    """A row of the table.

    >>> line({"case": "vit_s", "program": "ours", "error": "left out"})
    'vit_s         ours     left out'
    """
    start = f"{row['case']:14}{row['program']:9}"
    if "error" in row:
        return start + row["error"]
    number = lambda value, form, width: format("-" if value is None else format(value, form), f">{width}")
    mib = lambda size: None if size is None else size / 2**20
    least = row["least_seconds"]
    return (
        f"{start}{1e3 * row['seconds']:>8.2f} ms{number(least and 1e3 * least, '.2f', 7)} ms"
        f"{number(row['share_of_peak'], '.1%', 9)}{number(mib(row['peak_bytes']), ',.0f', 8)} MiB"
        f"{number(mib(row['planned_bytes']), ',.0f', 8)} MiB  {row['device']}"
    )


def alone(case: str, layers: int, program: str, calls: int) -> dict:
    """What a process of its own measures; its failure is a row."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # the allocator's peak is then the program's
    measure = theirs if program == "torch" else ours
    receive, send = multiprocessing.get_context("spawn").Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(
        target=in_process, args=(send, measure, case, layers, program, calls)
    )
    process.start()
    send.close()
    try:
        return receive.recv()
    except EOFError:
        return {"error": "the process ended without an answer"}
    finally:
        process.join()


def in_process(send, measure: Callable, *words):
    """Send what `measure` returns, or why it did not."""
    try:
        row = measure(*words)
    except Exception as error:
        row = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    send.send(row)


def ours(case: str, layers: int, program: str, calls: int) -> dict:
    """Of a program of `bench compile`."""
    device = jax.devices()[0]
    function, shapes = bench_compile.CASES[case](layers)[program]
    with jax.default_matmul_precision("bfloat16"):
        compiled = jax.jit(function).lower(*shapes).compile()
    inputs = jax.jit(lambda: jax.tree.map(drawn, shapes))()
    seconds = median_seconds(lambda: jax.block_until_ready(compiled(*inputs)), calls)
    chip = next((chip for part, chip in KINDS.items() if part in device.device_kind.lower()), "cpu")
    said = report(compiled, chips.parse(chip))
    known = chip != "cpu"
    return {
        "seconds": seconds,
        "least_seconds": said.least_seconds if known else None,
        "share_of_peak": said.compute_seconds / seconds if known else None,
        "peak_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use"),
        "planned_bytes": said.total,
        "operations": said.flops,
        "device": f"{device.device_kind}, jax {jax.__version__}",
    }


def drawn(shape: jax.ShapeDtypeStruct):
    """Numbers for an argument: small normal ones, or integers from 4 to 999 (labels and tokens; lengths are cut)."""
    key = jax.random.key(0)
    if jnp.issubdtype(shape.dtype, jnp.integer):
        return jax.random.randint(key, shape.shape, 4, 1000, shape.dtype)
    return 0.02 * jax.random.normal(key, shape.shape, shape.dtype)


def theirs(case: str, layers: int, program: str, calls: int) -> dict:
    """Of the same model in PyTorch."""
    import torch

    from attention_jax.bench import _torch_gradients

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    gradient = _torch_gradients.CASES[case](torch, device, layers)
    card = device.type == "cuda"

    def run():
        gradient()
        if card:
            torch.cuda.synchronize()

    seconds = median_seconds(run, calls)
    return {
        "seconds": seconds,
        "least_seconds": None,
        "share_of_peak": None,
        "peak_bytes": torch.cuda.max_memory_allocated() if card else None,
        "planned_bytes": None,
        "device": f"{torch.cuda.get_device_name() if card else 'cpu'}, torch {torch.__version__}",
    }


def median_seconds(call: Callable, calls: int) -> float:
    """Of `calls` calls after three that do not count."""
    seconds = []
    for _ in range(3 + calls):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds[3:])


if __name__ == "__main__":
    main()
