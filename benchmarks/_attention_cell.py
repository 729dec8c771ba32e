"""One measurement of `bench attention`, in a process of its own: time and memory of one implementation.

A process that has run another implementation before measures something else: 2.5 GB of scores that `plain` has freed
leave the allocator in another state, in which the same program takes up to 1.5 times as long.
"""

import functools
import os
import re
import time
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share one GPU

import jax
import jax.numpy as jnp

from benchmarks._attention_cases import CASES, jax_function, layout, torch_function
from benchmarks._process import run_in_process


class Cell(NamedTuple):
    """What is measured: `shape` is (batch, heads, length, width), `blocks` are block_q and block_k of `fused`."""

    case: str
    implementation: str
    shape: tuple[int, int, int, int]
    dtype: str
    blocks: tuple[int | None, int | None] = (None, None)


def measure_in_process(cell: Cell) -> dict:
    """Measure a cell in a fresh process.

    Returns:
        `measure`, and `problem`, which is empty if all went well; a failure, an exhausted memory included, is a result
        and not the end of a benchmark.
    """
    return run_in_process(functools.partial(measure, cell))


def measure(cell: Cell) -> dict:
    """Measure a cell in this process: `forward_seconds`, `gradient_seconds`, `temporary_bytes`, and `kernels`, what the
    compiled gradient calls beside XLA's own code."""
    is_torch = cell.implementation.startswith("torch")
    forward, gradient, temporary, kernels = (_torch if is_torch else _jax)(cell)
    times = {"forward_seconds": forward, "gradient_seconds": gradient}
    return times | {"temporary_bytes": temporary, "kernels": kernels}


def _jax(cell: Cell):
    """Seconds of the forward calls, of the gradients to query, key and value, XLA's plan of temporary buffers, and what
    the gradient calls."""
    dtype, (batch, heads, length, width) = jnp.dtype(cell.dtype), cell.shape
    shape = cell.shape if layout(cell.implementation) == "BHTD" else (batch, length, heads, width)
    draw = lambda: [x.astype(dtype) for x in jax.random.normal(jax.random.key(0), (3, *shape))]
    inputs = jax.jit(draw)()
    forward = jax_function(CASES[cell.case], cell.implementation, dtype, cell.blocks)
    gradient = jax.grad(lambda *qkv: (forward(*qkv).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))
    compiled = jax.jit(gradient).lower(*inputs).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    if temporary > 0.9 * free_bytes():
        raise MemoryError
    gradient_seconds = seconds(lambda: compiled(*inputs), jax.block_until_ready)
    once = jax.jit(forward)
    return seconds(lambda: once(*inputs), jax.block_until_ready), gradient_seconds, temporary, custom_calls(compiled)


def custom_calls(compiled) -> list[str]:
    """Return the names of the functions that a compiled program calls beside XLA's own code, such as a kernel of
    cuDNN."""
    return sorted(set(re.findall(r'custom_call_target="([^"]+)"', compiled.as_text())))


def _torch(cell: Cell):
    """The same of PyTorch; its memory is the growth of the peak of the process, on a GPU of the device."""
    import torch

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    wait = lambda _: torch.cuda.synchronize() if device == "cuda" else None
    generator = torch.Generator(device).manual_seed(0)
    draw = lambda: torch.randn(cell.shape, generator=generator, device=device).to(getattr(torch, cell.dtype))
    inputs = [draw().requires_grad_() for _ in range(3)]
    function = torch_function(cell.case, cell.implementation, inputs[0])

    @torch.no_grad()
    def forward():
        return function(*inputs)

    def gradient():
        return torch.autograd.grad(function(*inputs).float().square().sum(), inputs)

    peak = Peak(torch if device == "cuda" else None)
    wait(gradient())
    temporary = peak.growth()
    return seconds(forward, wait), seconds(gradient, wait), temporary, []


class Peak:
    """Increase of peak memory in this context: of the device with `torch`, else of this process."""

    def __init__(self, torch=None):
        self.torch = torch
        if torch is not None:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the peak so far
            self.before = self._status("VmRSS")

    def growth(self) -> int:
        """Return the increase in bytes."""
        peak = self._status("VmHWM") if self.torch is None else self.torch.cuda.max_memory_allocated()
        return peak - self.before

    @staticmethod
    def _status(name):
        return next(
            int(line.split()[1]) * 1024
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(name)
        )


def free_bytes() -> float:
    """Memory that an implementation may still take."""
    stats = jax.devices()[0].memory_stats()
    if stats:
        return stats["bytes_limit"] - stats["bytes_in_use"]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def seconds(call, wait) -> list[float]:
    """Seconds per call in each of 3 to 20 rounds after a warm-up, within about a second.

    A round is as many calls as take 10 ms, and one `wait(result)` for the last, so that launches overlap as they do
    within a program; a longer call is a round.
    """

    def one_round(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            result = call()
        wait(result)
        return (time.perf_counter() - begin) / calls

    one_round(1)
    calls = max(1, round(0.01 / one_round(1)))
    start, times = time.perf_counter(), []
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - start < 1.0):
        times.append(one_round(calls))
        if times[-1] > 5:
            break
    return times
