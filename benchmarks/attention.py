"""`python launch.py bench attention`: attention over score x length x implementation, time and memory,
as a table, JSON and a figure.

Each implementation is measured in a process of its own, in alternating rounds of all of them. Times are the fastest
and the median of all calls, of forward and of forward with gradient (to query, key and value). The ratio is the median
gradient of torch's SDPA (without it, of `plain`) divided by that of the row: above 1, the row is faster. Memory of JAX
is XLA's own plan of temporary buffers for the gradient; of torch it is the growth of the process's (on a GPU, of the
device's) peak. A failure, a timeout or a lack of memory is a row with the reason. The JSON is written after every
length.
"""

import json
import math
import statistics
import time
from pathlib import Path
from typing import Literal

from benchmarks._attention_cell import Cell, measure_in_process  # first: it sets how XLA takes memory

import jax  # isort: skip

from attention_jax.errors import InputError
from benchmarks._attention_cases import CASES, is_available
from benchmarks._attention_check import differences
from benchmarks._attention_figure import draw
from benchmarks._rounds import conditions, machine

TUNED = {
    "cpu": ((256, 256), (512, 256), (512, 512)),
    "gpu": tuple((q, k) for q in (1024, 4096, 16384) for k in (256, 1024, 4096)),
}
REFERENCES = ("torch_sdpa", "torch_flex", "plain")
"""The first of these that was measured is what the ratios of a length relate to."""
LINE = "{:11} {:>7} {:24} {:>5} {:>9} {:>9} {:>9} {:>9} {:>6} {:>9}  {}"


def main(
    platform: Literal["auto", "cpu", "gpu"] = "auto",
    cases: tuple[str, ...] = ("scaled_dot", "causal", "window", "gaussian", "additive"),
    min_length: int = 512,
    max_length: int = 4096,
    growth: int = 2,
    heads: int = 8,
    width: int = 64,
    rounds: int = 3,
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
        cases: The cases: scaled_dot, causal, window, gaussian, alibi, soft_cap, sparsemax, entmax, sigmoid, l1,
          additive.
        min_length: First sequence length.
        max_length: Last sequence length.
        growth: Factor from one length to the next.
        heads: Attention heads; on a GPU the batch is chosen to have 16,384 tokens at least.
        width: Width of a head.
        rounds: Processes of each implementation at a length; those of all implementations alternate.
        seconds_per_call: A competitor that takes longer than this for one gradient is not measured at greater lengths.
        total_seconds: Measurements that would start later than this are skipped, with a message.
        check: First compare cudnn and fused with plain, under every mask.
        tune: First measure blocks of the fused implementation.
        torch: Measure PyTorch too, if it is installed.
        output: Directory of attention.json and attention.png.
    """
    backend = jax.default_backend()
    if platform not in ("auto", backend):
        raise InputError(
            f"--platform {platform} needs JAX on a {platform}, but JAX runs on {backend}: install the matching jax"
        )
    unknown = [name for name in cases if name not in CASES]
    if unknown:
        raise InputError(f"--cases knows {', '.join(CASES)}, got {', '.join(unknown)}")
    bench = Bench(backend, heads, width, rounds, total_seconds, Path(output))
    lengths = [min_length * growth**i for i in range(1 + int(math.log(max_length / min_length, growth) + 1e-9))]
    if check:
        for line in differences(bench.dtype, width):
            print(line, flush=True)
    if tune:
        bench.tune([name for name in cases if name in ("scaled_dot", "gaussian")], lengths)
    start = conditions()
    for name in cases:
        bench.compare(name, lengths, seconds_per_call, torch)
    print(f"before: {start}\nafter: {conditions()}")
    draw(bench.rows, Path(output) / "attention.png", backend)
    print(f"written: {output}/attention.json, {output}/attention.png")
    return bench.rows


class Bench:
    """The rows so far, and how to measure one more."""

    def __init__(self, platform, heads, width, rounds, total_seconds, output):
        self.platform, self.heads, self.width, self.rounds, self.output = platform, heads, width, rounds, output
        self.rows, self.dtype = [], "bfloat16" if platform == "gpu" else "float32"
        self.end = time.monotonic() + total_seconds
        output.mkdir(parents=True, exist_ok=True)
        print(f"{machine()}; {heads} heads of {width}, {self.dtype}; milliseconds (fastest, median) and MiB")
        columns = ("forward", "median", "gradient", "median", "ratio", "memory", "")
        print(LINE.format("case", "length", "implementation", "batch", *columns).rstrip())

    def tune(self, names, lengths):
        """The fused implementation with the blocks of `TUNED`, at 4,096 and 16,384 (or at the greatest length)."""
        for name in names:
            for length in [n for n in lengths if n in (4096, 16384)] or lengths[-1:]:
                blocks = [b for b in TUNED[self.platform] if b[0] <= length]
                self.add(self.alternate(name, length, [("fused", b) for b in blocks]))

    def compare(self, name, lengths, seconds_per_call, torch: bool):
        """Measure one case for all its competitors, each up to the length at which it fails or takes too long."""
        competitors = [c for c in CASES[name].competitors if is_available(c, self.platform)]
        competitors = [c for c in competitors if torch or not c.startswith("torch")]
        for length in lengths:
            rows = self.alternate(name, length, [(competitor, (None, None)) for competitor in competitors])
            self.add(rows)
            slow = lambda row: row["problem"] or row["gradient_seconds"] > seconds_per_call
            competitors = [row["implementation"] for row in rows if not slow(row)]

    def alternate(self, name, length, competitors) -> list[dict]:
        """One row for each (implementation, blocks), from `rounds` processes each."""
        batch = max(1, 16384 // length) if self.platform == "gpu" else 1
        shape = (batch, self.heads, length, self.width)
        cells = [Cell(name, implementation, shape, self.dtype, blocks) for implementation, blocks in competitors]
        results_by_cell = {cell: [] for cell in cells}
        for _ in range(self.rounds):
            for cell in cells:
                if not any(result["problem"] for result in results_by_cell[cell]):
                    results_by_cell[cell].append(self.once(cell))
        return [self.row(cell, results) for cell, results in results_by_cell.items()]

    def once(self, cell: Cell) -> dict:
        if time.monotonic() > self.end:
            return {"problem": "skipped: --total-seconds are over"}
        return measure_in_process(cell)

    def row(self, cell: Cell, results: list[dict]) -> dict:
        """The fastest and the median call of all rounds; a problem of one round is that of the row."""
        batch, heads, length, width = cell.shape
        row = {"case": cell.case, "length": length, "implementation": cell.implementation, "batch": batch}
        row |= {"heads": heads, "width": width, "dtype": cell.dtype, "device": jax.devices()[0].device_kind}
        row |= {"blocks": list(cell.blocks), "problem": results[-1]["problem"]}
        for kind in ("forward", "gradient"):
            seconds = [] if row["problem"] else [second for result in results for second in result[f"{kind}_seconds"]]
            row[f"{kind}_fastest_seconds"] = min(seconds, default=None)
            row[f"{kind}_seconds"] = statistics.median(seconds) if seconds else None
        row["temporary_bytes"] = None if row["problem"] else results[0]["temporary_bytes"]
        return row

    def add(self, rows: list[dict]):
        """Print and save the rows of one length, with the ratio of each to the first of `REFERENCES` among them."""
        times = {row["implementation"]: row["gradient_seconds"] for row in rows if not row["problem"]}
        reference = next((times[name] for name in REFERENCES if name in times), None)
        number = lambda x, factor, form: "-" if x is None else format(x * factor, form)
        for row in rows:
            fast = reference is not None and not row["problem"]
            row["ratio"] = reference / row["gradient_seconds"] if fast else None
            label = row["implementation"] + (" {}x{}".format(*row["blocks"]) if row["blocks"][0] else "")
            kinds = ("forward_fastest_seconds", "forward_seconds", "gradient_fastest_seconds", "gradient_seconds")
            numbers = [number(row[kind], 1e3, ".2f") for kind in kinds]
            numbers += [number(row["ratio"], 1, ".2f"), number(row["temporary_bytes"], 2**-20, ".1f")]
            print(
                LINE.format(row["case"], row["length"], label, row["batch"], *numbers, row["problem"]).rstrip(),
                flush=True,
            )
        self.save(rows)

    def save(self, rows: list[dict]):
        self.rows += rows
        (self.output / "attention.json").write_text(json.dumps(self.rows, indent=1) + "\n")
