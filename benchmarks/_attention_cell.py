"""One measurement of `bench attention`, in a process of its own: time and memory of one implementation.

A process that has run another implementation before measures something else: 2.5 GB of scores that `plain` has freed
leave the allocator in another state, in which the same program takes up to 1.5 times as long.
"""

import concurrent.futures
import multiprocessing
import os
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the processes share one GPU

import jax
import jax.numpy as jnp

from benchmarks._attention_cases import CASES, jax_function, torch_function


class Cell(NamedTuple):
    """What is measured: `shape` is (batch, heads, length, width), `blocks` are block_q and block_k of `fused`."""

    case: str
    implementation: str
    shape: tuple[int, int, int, int]
    dtype: str
    blocks: tuple[int | None, int | None] = (None, None)


def measured(cell: Cell) -> dict:
    """Measure a cell in a fresh process.

    Returns:
        `forward_seconds` and `gradient_seconds` (a list of seconds per call), `temporary_bytes` and `problem`, which is
        empty if all went well; a failure, an exhausted memory included, is a result and not the end of a benchmark.
    """
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as process:
        try:
            return process.submit(_measure, cell).result()
        except BrokenProcessPool:
            return _row(problem="out of memory: the process was killed")


def _row(forward_seconds=(), gradient_seconds=(), temporary_bytes=None, problem="") -> dict:
    seconds = {"forward_seconds": list(forward_seconds), "gradient_seconds": list(gradient_seconds)}
    return seconds | {"temporary_bytes": temporary_bytes, "problem": problem}


def _measure(cell: Cell) -> dict:
    try:
        return _row(*(_torch if cell.implementation.startswith("torch") else _jax)(cell))
    except Exception as error:
        text = (str(error).strip().splitlines() or [""])[0]
        words = ("out of memory", "resource_exhausted", "can't allocate")
        if any(word in str(error).lower() for word in words):
            return _row(problem="out of memory")
        return _row(problem=f"{type(error).__name__}: {text}"[:160])


def _jax(cell: Cell):
    """Seconds of the forward calls, of the gradients to query, key and value, and XLA's plan of temporary buffers."""
    dtype = jnp.dtype(cell.dtype)
    draw = lambda: [x.astype(dtype) for x in jax.random.normal(jax.random.key(0), (3, *cell.shape))]
    inputs = jax.jit(draw)()
    forward = jax_function(CASES[cell.case], cell.implementation, dtype, cell.blocks)
    gradient = jax.grad(lambda *qkv: (forward(*qkv).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))
    compiled = jax.jit(gradient).lower(*inputs).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    if temporary > 0.9 * free_bytes():
        raise MemoryError(f"out of memory: {temporary / 2**30:.1f} GiB needed")
    gradient_seconds = seconds(lambda: jax.block_until_ready(compiled(*inputs)))
    once = jax.jit(forward)
    return seconds(lambda: jax.block_until_ready(once(*inputs))), gradient_seconds, temporary


def _torch(cell: Cell):
    """The same of PyTorch; its memory is the growth of the peak of the process, on a GPU of the device."""
    import torch

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    generator = torch.Generator(device).manual_seed(0)
    draw = lambda: torch.randn(cell.shape, generator=generator, device=device).to(getattr(torch, cell.dtype))
    inputs = [draw().requires_grad_() for _ in range(3)]
    function = torch_function(cell.case, cell.implementation, inputs[0])

    def forward():
        with torch.no_grad():
            function(*inputs)
        wait()

    def gradient():
        torch.autograd.grad(function(*inputs).float().square().sum(), inputs)
        wait()

    peak = Peak(torch if device == "cuda" else None)
    gradient()
    temporary = peak.growth()
    return seconds(forward), seconds(gradient), temporary


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


def seconds(call) -> list[float]:
    """Seconds of each of 3 to 20 calls after a warm-up, within about a second."""
    call()
    start, times = time.perf_counter(), []
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - start < 1.0):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        if times[-1] > 5:
            break
    return times
