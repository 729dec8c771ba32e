"""`python launch.py bench attention`: attention over score x length x implementation, time and memory,
as a table, JSON and a figure.

Times are medians of forward and of forward with gradient (to query, key and value), side by side in one
process. Memory of JAX is XLA's own plan of temporary buffers for the gradient; of torch it is the growth of the
process's (on a GPU, of the device's) peak. A failure, a timeout or a lack of memory is a row with the reason.
The JSON is written after every row.
"""

import functools
import json
import math
import os
import statistics
import time
from pathlib import Path
from typing import Literal

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # torch wants memory on the same GPU

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError
from benchmarks._attention_cases import CASES, jax_function, torch_function
from benchmarks._attention_figure import draw
from benchmarks._rounds import conditions, machine

TUNED = {
    "cpu": ((256, 256), (512, 256), (512, 512)),
    "gpu": tuple((q, k) for q in (1024, 4096, 16384) for k in (256, 1024, 4096)),
}


def main(
    platform: Literal["auto", "cpu", "gpu"] = "auto",
    cases: tuple[str, ...] = tuple(CASES),
    min_length: int = 512,
    max_length: int = 4096,
    growth: int = 2,
    heads: int = 8,
    width: int = 64,
    seconds_per_call: float = 2.0,
    total_seconds: float = 600.0,
    check: bool = False,
    tune: bool = False,
    torch: bool = True,
    output: str = "runs/bench_attention",
) -> list[dict]:
    """Measure attention implementations side by side.

    Args:
        platform: Fail unless JAX runs on it; auto accepts any.
        cases: The cases: scaled_dot, causal, window, gaussian, additive.
        min_length: First sequence length.
        max_length: Last sequence length.
        growth: Factor from one length to the next.
        heads: Attention heads; on a GPU the batch is chosen to have 16,384 tokens at least.
        width: Width of a head.
        seconds_per_call: A competitor that takes longer than this for one gradient is not measured at greater lengths.
        total_seconds: Measurements that would start later than this are skipped, with a message.
        check: First compare cudnn and fused with plain, under every mask.
        tune: First measure blocks of the fused implementation.
        torch: Measure PyTorch too, if it is installed.
        output: Directory of attention.json and attention.png.
    """
    here = jax.default_backend()
    if platform not in ("auto", here):
        raise InputError(
            f"--platform {platform} needs JAX on a {platform}, but JAX runs on {here}: install the matching jax"
        )
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        raise InputError(f"--cases knows {', '.join(CASES)}, got {', '.join(unknown)}")
    bench = Bench(here, heads, width, total_seconds, Path(output))
    lengths = [min_length * growth**i for i in range(1 + int(math.log(max_length / min_length, growth) + 1e-9))]
    if check:
        bench.check()
    if tune:
        bench.tune([name for name in cases if name in ("scaled_dot", "gaussian")], lengths)
    before = conditions()
    for name in cases:
        bench.compare(name, lengths, seconds_per_call, torch)
    print(f"before: {before}\nafter: {conditions()}")
    draw(bench.rows, Path(output) / "attention.png", here)
    print(f"written: {output}/attention.json, {output}/attention.png")
    return bench.rows


class Bench:
    """The rows so far, and how to measure one more."""

    def __init__(self, platform, heads, width, total_seconds, output):
        self.platform, self.heads, self.width, self.output, self.rows = platform, heads, width, output, []
        self.dtype = jnp.bfloat16 if platform == "gpu" else jnp.float32
        self.end = time.monotonic() + total_seconds
        output.mkdir(parents=True, exist_ok=True)
        print(f"{machine()}; {heads} heads of {width}, {jnp.dtype(self.dtype).name}; seconds and MiB")
        print(
            f"{'case':11} {'length':>7} {'implementation':24} {'batch':>5} "
            f"{'forward':>10} {'gradient':>10} {'memory':>9}"
        )

    def tune(self, names, lengths):
        """The fused implementation with the blocks of `TUNED`, at 4,096 and 16,384 (or at the greatest length)."""
        for name in names:
            for length in [n for n in lengths if n in (4096, 16384)] or lengths[-1:]:
                for blocks in TUNED[self.platform]:
                    if blocks[0] <= length:
                        self.row(name, length, "fused", blocks)

    def compare(self, name, lengths, seconds_per_call, torch: bool):
        """Measure one case for all its competitors, each up to the length at which it fails or takes too long."""
        competitors = [c for c in CASES[name].competitors if torch or not c.startswith("torch")]
        if self.platform == "cpu":
            competitors = [c for c in competitors if c not in ("cudnn", "torch_flex")]
        for length in lengths:
            for competitor in list(competitors):
                row = self.row(name, length, competitor)
                if row["problem"] or row["gradient_seconds"] > seconds_per_call:
                    competitors.remove(competitor)

    def row(self, name, length, competitor, blocks=(None, None)):
        """Measure one cell; an exception becomes its error."""
        batch = max(1, 16384 // length) if self.platform == "gpu" else 1
        row = {
            "case": name,
            "length": length,
            "implementation": competitor,
            "batch": batch,
            "heads": self.heads,
            "width": self.width,
        }
        row |= {"dtype": jnp.dtype(self.dtype).name, "device": jax.devices()[0].device_kind, "blocks": list(blocks)}
        row |= {"forward_seconds": None, "gradient_seconds": None, "temporary_bytes": None, "problem": ""}
        try:
            if time.monotonic() > self.end:
                raise TimeoutError("skipped: --total-seconds are over")
            measure = self.torch if competitor.startswith("torch") else functools.partial(self.jax, blocks=blocks)
            measure(row, name, (batch, self.heads, length, self.width), competitor)
        except Exception as error:  # one competitor's failure is a result, not the end
            text = (str(error).strip().splitlines() or [""])[0]
            out_of_memory = any(
                words in str(error).lower() for words in ("out of memory", "resource_exhausted", "can't allocate")
            )
            row["problem"] = "out of memory" if out_of_memory else f"{type(error).__name__}: {text}"[:160]
        self.add(row)
        return row

    def add(self, row):
        """Print and save."""
        self.rows.append(row)
        (self.output / "attention.json").write_text(json.dumps(self.rows, indent=1) + "\n")
        number = lambda x, form: "-" if x is None else format(x, form)
        label = row["implementation"] + (" {}x{}".format(*row["blocks"]) if row["blocks"][0] else "")
        memory = None if row["temporary_bytes"] is None else row["temporary_bytes"] / 2**20
        forward = number(row["forward_seconds"], "10.5f")
        gradient = number(row["gradient_seconds"], "10.5f")
        numbers = f"{forward:>10} {gradient:>10} {number(memory, '9.1f'):>9}"
        print(
            f"{row['case']:11} {row['length']:7} {label:24} {row['batch']:5} {numbers}  {row['problem']}".rstrip(),
            flush=True,
        )

    def jax(self, row, name, shape, competitor, blocks):
        """Measure JAX: XLA's memory and the time, written into the row."""
        inputs = jax.jit(lambda: [x.astype(self.dtype) for x in jax.random.normal(jax.random.key(0), (3, *shape))])()
        forward = jax_function(CASES[name], competitor, self.dtype, blocks)
        gradient = jax.grad(lambda *qkv: (forward(*qkv).astype(jnp.float32) ** 2).sum(), argnums=(0, 1, 2))
        compiled = jax.jit(gradient).lower(*inputs).compile()
        row["temporary_bytes"] = compiled.memory_analysis().temp_size_in_bytes
        if row["temporary_bytes"] > 0.9 * free_bytes():
            raise MemoryError(f"out of memory: {row['temporary_bytes'] / 2**30:.1f} GiB needed")
        row["gradient_seconds"] = median_seconds(lambda: jax.block_until_ready(compiled(*inputs)))
        once = jax.jit(forward)
        row["forward_seconds"] = median_seconds(lambda: jax.block_until_ready(once(*inputs)))

    def torch(self, row, name, shape, competitor):
        """Measure PyTorch: memory and time, written into the row."""
        import torch

        device = "cuda" if self.platform == "gpu" else "cpu"
        wait = torch.cuda.synchronize if device == "cuda" else lambda: None
        dtype = torch.bfloat16 if self.dtype == jnp.bfloat16 else torch.float32
        generator = torch.Generator(device).manual_seed(0)
        inputs = [torch.randn(shape, generator=generator, device=device).to(dtype).requires_grad_() for _ in range(3)]
        function = torch_function(name, competitor, inputs[0])

        def forward():
            with torch.no_grad():
                function(*inputs)
            wait()

        def gradient():
            torch.autograd.grad(function(*inputs).float().square().sum(), inputs)
            wait()

        peak = Peak(torch if device == "cuda" else None)
        gradient()
        row["temporary_bytes"] = peak.growth()
        row["gradient_seconds"] = median_seconds(gradient)
        row["forward_seconds"] = median_seconds(forward)

    def check(self):
        """The largest difference from plain in float32, relative to its largest value, of
        output and gradients: cudnn, fused."""
        from attention_jax.ops.attention import attend
        from attention_jax.ops.masks import causal, lengths, window

        masks = {
            "none": lambda n: None,
            "causal": lambda n: causal(),
            "lengths": lengths,
            "causal&lengths": lambda n: causal() & lengths(n),
            "causal&window": lambda n: causal() & window(100),
        }
        qkv = [
            jax.random.normal(key, (3, 512, 4, self.width)) for key in jax.random.split(jax.random.key(0), 3)
        ]  # [B, T, H, D]
        qkv = [x.astype(self.dtype).astype(jnp.float32) for x in qkv]  # what half precision can hold
        n = jnp.array([512, 0, 301], jnp.int32)
        for name, mask in masks.items():

            def run(implementation, dtype, mask=mask):
                def loss(q, k, v):
                    one = lambda q, k, v, n: attend(q, k, v, mask=mask(n), implementation=implementation)
                    heads = jax.vmap(one, (1, 1, 1, None), 1)
                    out = jax.vmap(heads, (0, 0, 0, 0))(q, k, v, n).astype(jnp.float32)
                    return jnp.sin(3 * out).sum(), out

                (_, out), bars = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
                    *(x.astype(dtype) for x in qkv)
                )
                return [np.asarray(x, np.float32) for x in (out, *bars)]

            with jax.default_matmul_precision("highest"):
                exact = run("plain", jnp.float32)
            for implementation in ("cudnn", "fused"):
                row = {
                    "case": "check",
                    "length": 512,
                    "implementation": f"{implementation} {name}",
                    "batch": 3,
                    "blocks": [None, None],
                }
                row |= {
                    "forward_seconds": None,
                    "gradient_seconds": None,
                    "temporary_bytes": None,
                    "problem": "",
                    "difference": None,
                }
                try:
                    ours = run(implementation, self.dtype)
                    row["difference"] = [
                        float(abs(a - b).max() / abs(b).max()) for a, b in zip(ours, exact, strict=True)
                    ]
                    row["problem"] = "differs by " + ", ".join(f"{d:.1e}" for d in row["difference"])
                except Exception as error:
                    row["problem"] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"[:160]
                self.add(row)


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


def median_seconds(call) -> float:
    """Return the median seconds of 3 to 20 calls after a warm-up, within about a second."""
    call()
    start, times = time.perf_counter(), []
    while len(times) < 3 or (len(times) < 20 and time.perf_counter() - start < 1.0):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        if times[-1] > 5:
            break
    return statistics.median(times)
