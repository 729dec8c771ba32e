"""Fair timing of programs on one machine: alternating rounds, medians, and the conditions they ran under.

A ratio is printed only if other processes use few of the cores and the rounds agree; `--anyway` prints it all the same.
"""

import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from attention_jax import provenance
from attention_jax.errors import InputError
from attention_jax.train.placement import Program
from attention_jax.train.step import init_state

MOST_BUSY = 0.1
"""Largest number of cores that other processes may use while a ratio is measured."""
MOST_SPREAD = 0.15
"""Largest interquartile range of the rounds of a program, as a share of their median."""
MOST_DRIFT = 0.15
"""Largest change of the machine's matmul rate from before to after."""


def import_torch():
    """Import PyTorch, which only these comparisons need."""
    try:
        import torch
    except ImportError:
        raise InputError(
            "this comparison needs PyTorch 2.13.0, not found: pip install torch==2.13.0 (CPU wheels: pytorch.org)"
        ) from None
    return torch


# --- the machine ------------------------------------------------------------------------------------------------------


class Conditions(NamedTuple):
    """State of the machine at one moment."""

    busy: float
    """Cores that other processes use."""
    rate: float
    """FLOP/s of a float32 matmul in JAX, on all cores or on the first device."""

    def __str__(self):
        return f"other processes use {self.busy:.2f} cores, matmul {self.rate / 1e9:.0f} GFLOP/s"


def machine() -> str:
    """The device, for a CPU with its vector instructions and cores, and the version of JAX."""
    device = jax.devices()[0].device_kind
    if jax.default_backend() == "cpu":
        name, instructions = provenance.processor()
        device = f"{name} ({' '.join(instructions)}), {provenance.cores()} cores"
    return f"{device}, jax {jax.__version__}"


def conditions() -> Conditions:
    return Conditions(busy_cores(), matmul_rate())


def busy_cores(seconds: float = 1.0, counters: Path = Path("/proc/stat")) -> float:
    """Return how many cores others use while this process sleeps; without Linux's counters, the load average."""

    def ticks():  # user, nice, system, irq, softirq, steal: all but idle and waiting
        fields = [int(field) for field in counters.read_text().split("\n", 1)[0].split()[1:]]
        return sum(fields[:3]) + sum(fields[5:8])

    try:
        start_ticks, begin = ticks(), time.perf_counter()
        time.sleep(seconds)
        return (ticks() - start_ticks) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - begin)
    except (OSError, ValueError):
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def matmul_rate(size: int = 2048, calls: int = 20) -> float:
    """Return the FLOP/s of a size x size float32 matmul in JAX, the best of `calls`."""
    a = jax.random.normal(jax.random.key(0), (size, size))
    matmul, seconds = jax.jit(lambda a: a @ a), []
    for _ in range(calls + 1):
        begin = time.perf_counter()
        matmul(a).block_until_ready()
        seconds.append(time.perf_counter() - begin)
    return 2 * size**3 / min(seconds[1:])


def matmul_flops(jaxpr, while_flops: float = math.nan) -> float:
    """Return the FLOPs of the matmuls and convolutions in a jaxpr.

    The body of a scan counts once per iteration, and of the branches of a `cond` the most expensive counts. A `while`
    loop does not say how often it runs: one that has any counts as `while_flops`.

    >>> step = lambda x, _: (x @ x, None)
    >>> traced = jax.jit(lambda x: jax.lax.scan(step, x, length=5)).trace(np.ones((10, 10), np.float32))
    >>> matmul_flops(traced.jaxpr.jaxpr)
    10000.0
    >>> loop = jax.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda i, y: y @ y, x) @ x).trace(np.ones((10, 10)), 5)
    >>> matmul_flops(loop.jaxpr.jaxpr), matmul_flops(loop.jaxpr.jaxpr, while_flops=5 * 2000)
    (nan, 12000.0)
    """
    is_jaxpr, total = lambda value: hasattr(value, "eqns"), 0.0
    for eqn in jaxpr.eqns:
        size = math.prod(eqn.outvars[0].aval.shape) if eqn.outvars else 0
        if eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            total += 2.0 * size * math.prod(eqn.invars[0].aval.shape[axis] for axis in contracted)
        if eqn.primitive.name == "conv_general_dilated":
            kernel, channels = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
            total += 2.0 * size * math.prod(kernel) / kernel[channels]
        leaves = jax.tree.leaves(list(eqn.params.values()), is_leaf=is_jaxpr)
        inner = [
            matmul_flops(getattr(leaf, "jaxpr", leaf), while_flops)
            for leaf in leaves
            if is_jaxpr(getattr(leaf, "jaxpr", leaf))
        ]
        if eqn.primitive.name == "while":
            total += while_flops if any(inner) else 0.0
        elif eqn.primitive.name == "cond":
            total += max(inner, default=0.0)
        else:
            total += eqn.params.get("length", 1) * sum(inner) if eqn.primitive.name == "scan" else sum(inner)
    return total


# --- timing -----------------------------------------------------------------------------------------------------------


def alternate(programs: dict[str, Callable], rounds: int = 12, calls: int = 5) -> dict[str, list[float]]:
    """Seconds per call of each program, one number a round: every round runs all programs one
    after another, `calls` times each.

    A program is a function without arguments that returns when its work is done; it is called
    twice before anything is measured.
    """
    for program in programs.values():
        program(), program()
    seconds = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            begin = time.perf_counter()
            for _ in range(calls):
                program()
            seconds[name].append((time.perf_counter() - begin) / calls)
    return seconds


def training(
    loss,
    optimizer,
    init,
    data: dict,
    rows,
    steps: int,
    matmul_precision: str = "default",
    while_flops: float = math.nan,
):
    """A function that makes `steps` training steps, one compiled call of the training loop, and waits for them; its
    `flops` are those of one call's matmuls. `rows` [B] or [steps, B] are the examples of each batch; `while_flops` are
    those of each `while` loop, as in `matmul_flops`."""
    program = Program(loss, optimizer, matmul_precision=matmul_precision)
    state = program.put_state(init_state(init, optimizer, 0))
    rows = np.broadcast_to(np.asarray(rows, np.int32), (steps, np.shape(rows)[-1]))
    weight = np.ones(rows.shape, np.float32)

    def run():
        nonlocal state
        state, _ = program.train_steps(state, data, rows, weight)

    traced = program.compiled.trace(state, data, program.put_batches(rows), program.put_batches(weight))
    run.flops = matmul_flops(traced.jaxpr.jaxpr, while_flops)
    return run


# --- comparison -------------------------------------------------------------------------------------------------------


def unreliable(seconds: dict[str, list[float]], start: Conditions, end: Conditions) -> str:
    """Return why the ratios of these rounds mean nothing, or "" if they do.

    >>> quiet = Conditions(0.0, 200e9)
    >>> unreliable({"ours": [1.0, 1.01, 1.02]}, quiet, quiet)
    ''
    >>> unreliable({"ours": [1.0, 1.01, 1.02]}, quiet, Conditions(1.3, 200e9))
    'other processes use 1.30 cores'
    >>> unreliable({"ours": [1.0, 1.5, 2.0, 1.2]}, quiet, quiet)
    'the rounds of ours spread by 35 %'
    """
    if (busy := max(start.busy, end.busy)) > MOST_BUSY:
        return f"other processes use {busy:.2f} cores"
    if (drift := abs(end.rate / start.rate - 1)) > MOST_DRIFT:
        return f"the matmul rate changed by {100 * drift:.0f} %"
    for name, times in seconds.items():
        low, median, high = np.quantile(times, [0.25, 0.5, 0.75])
        if (high - low) / median > MOST_SPREAD:
            return f"the rounds of {name} spread by {100 * (high - low) / median:.0f} %"
    return ""


def table(seconds: dict[str, list[float]], examples: int, unit: str, ratios: bool = True) -> str:
    """One line for each program: median seconds, `unit` per second, and the speed relative to the first one.

    >>> print(table({"torch": [0.2, 0.2], "jax": [0.1, 0.1]}, 10, "examples"))
    torch             200.0 ms (200.0 - 200.0)        50 examples/s    1.00x
    jax               100.0 ms (100.0 - 100.0)       100 examples/s    2.00x
    """
    first = statistics.median(next(iter(seconds.values())))
    line = "{:<16} {:>6.1f} ms ({:.1f} - {:.1f}) {:>9.0f} {}/s {:>8}"
    rows = [(name, statistics.median(times), min(times), max(times)) for name, times in seconds.items()]
    return "\n".join(
        line.format(
            name, 1e3 * m, 1e3 * low, 1e3 * high, examples / m, unit, f"{first / m:.2f}x" if ratios else ""
        ).rstrip()
        for name, m, low, high in rows
    )


def compare(
    title: str, programs: dict[str, Callable], examples: int, unit: str, *, steps: int = 1, rounds: int, anyway: bool
) -> dict[str, list[float]]:
    """Run `programs` in alternating rounds, print what was measured and on what machine, and return the seconds per
    step of every round.

    Args:
        title: What one step is.
        programs: Functions without arguments that make `steps` steps; the ratios are relative to the first.
        examples: Units of work in a step.
        unit: Name of the unit.
        steps: Steps in one call.
        rounds: Number of rounds.
        anyway: Print ratios even where they mean nothing.
    """
    print(f"{title}, median of {rounds} alternating rounds (fastest - slowest)\nmachine: {machine()}", flush=True)
    start = conditions()
    seconds = {k: [t / steps for t in times] for k, times in alternate(programs, rounds, calls=1).items()}
    end = conditions()
    print(f"before: {start}\nafter: {end}")
    problem = unreliable(seconds, start, end)
    print(table(seconds, examples, unit, ratios=anyway or not problem))
    for name, program in programs.items():
        if flops := getattr(program, "flops", 0) / steps:
            share = flops / statistics.median(seconds[name]) / start.rate
            print(f"{name}: {flops / 1e9:.2f} GFLOP of matmuls a step, {100 * share:.0f} % of the float32 matmul rate")
    if problem:
        note = "the ratios above mean little" if anyway else "no ratios are shown; --anyway shows them"
        print(f"{problem}: {note}")
    return seconds
