"""`python launch.py bench card`: what one GPU or TPU does here, beside what other libraries do on it, in nine minutes.

The most important measurements come first: the rates of the card, whether generated kernels are right, the tests that
need a GPU in short, attention, training steps of GPT-2 124M and ViT-S/16, decoding of a Llama of 135M, the default job,
and attention at a greater length. All models have random weights. Each measurement runs in a process of its own with a
time limit; a failure is a row with its reason. The JSON is written after every measurement, and the same command
continues where it was stopped: what is in the file is not measured again, failures only with --retry. On a CPU all
sizes are tiny, which shows that the command works and nothing else.

Times are medians of rounds after a warm-up (`_attention_cell.seconds`). Everything is in bfloat16 and accumulates in
float32; parameters in training are float32. Memory is XLA's plan of temporary buffers, for PyTorch the growth of the
peak.
"""

import functools
import importlib.metadata
import itertools
import os
import shutil
import statistics
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, get_args

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one card, before JAX looks for them

from benchmarks._attention_cell import Cell, measure  # before JAX: it sets how XLA takes memory

import jax  # isort: skip
import jax.numpy as jnp  # isort: skip

from attention_jax import provenance
from attention_jax.errors import InputError
from attention_jax.files import read_object, write_json
from attention_jax.ops import dispatch
from attention_jax.report.tables import Table, markdown, number
from benchmarks import _card_programs as programs
from benchmarks._attention_cases import CASES, is_available, jax_function
from benchmarks._attention_check import KERNELS
from benchmarks._card_programs import DTYPE, FULL, TINY, Sizes
from benchmarks._pages import check_page, is_selected, write_page
from benchmarks._process import run_in_process

START, END = "<!-- bench card -->\n", "<!-- end of bench card -->"
"""The tables of a page are between these."""
PACKAGES = ("jaxlib", "torch", "transformers", "tokamax")


class Measurement(NamedTuple):
    """`function()` returns the row of this name within `limit` seconds, in a process of its own; it is left out unless
    `applies()`."""

    name: str
    function: Callable[[], dict]
    limit: float
    applies: Callable[[], bool] = lambda: True


def measurements(platform: str) -> Iterator[Measurement]:
    """All measurements for the platform of JAX, cpu, gpu or tpu, the most important first."""
    sizes = TINY if platform == "cpu" else FULL
    of = lambda function, *arguments: functools.partial(function, sizes, *arguments)
    yield Measurement("rates", of(programs.rates), 60)
    for tokens, name in itertools.product((17, 1023), KERNELS) if platform == "gpu" else ():
        yield Measurement(f"kernel/{name}/{tokens}", functools.partial(programs.kernel, name, tokens), 30)
    yield Measurement("tests", of(programs.gpu_tests), sizes.tests_seconds + 60)
    first, *remaining = sizes.calls
    yield from attention(sizes, platform, *first)
    has_transformers = platform != "tpu" and all(map(version, ("torch", "transformers")))
    for model in ("gpt2", "vit"):
        yield Measurement(f"train/{model}/attention_jax", of(programs.train, model), 120)
        if has_transformers:
            yield Measurement(f"train/{model}/transformers", of(programs.train_transformers, model), 150)
    for batch in (1, 16):
        yield Measurement(f"decode/{batch}/attention_jax", of(programs.decode, batch), 90)
        for cache in ("dynamic", "static") if has_transformers else ():
            yield Measurement(
                f"decode/{batch}/transformers {cache}", of(programs.decode_transformers, batch, cache), 90
            )
    yield Measurement("launch", of(programs.launch), 240)
    for call in remaining:
        yield from attention(sizes, platform, *call)


def attention(sizes: Sizes, platform: str, batch: int, length: int) -> Iterator[Measurement]:
    """All cases at one length: the default first, then implementations by name and peers; cuDNN at more head sizes."""
    names = implementations(platform)
    routes = [(case, "default", sizes.width) for case in sizes.cases]
    routes += [
        ("causal", "cudnn", width)
        for width in sizes.more_widths
        if "cudnn" in names and (batch, length) == sizes.calls[0]
    ]
    for case in sizes.cases:
        peers = [peer for peer in CASES[case].competitors if peer not in get_args(dispatch.Implementation)]
        routes += [(case, route, sizes.width) for route in (*names, *peers) if is_available(route, platform)]
    for case, route, width in routes:
        cell = Cell(case, route, (batch, sizes.heads, length, width), DTYPE)
        name, function = f"attention/{case}/{length}x{width}/{route}", functools.partial(measure, cell)
        yield Measurement(name, function, 60, lambda cell=cell: cell.implementation not in names or is_taken(cell))


def implementations(platform: str) -> list[str]:
    """The names that `attend` takes for this platform, without "plain", the definition. Kernels are generated for GPUs;
    elsewhere "kernel" is "fused", or an interpreter for tests."""
    device = {"gpu": "cuda"}.get(platform, platform)
    excluded = {"plain"} | {row.name for row in dispatch.ROWS if device not in row.platforms}
    return [name for name in get_args(dispatch.Implementation) if name not in excluded]


def is_taken(cell: Cell) -> bool:
    """Whether `attend` accepts the call; one that fails in another way than an InputError is measured, and fails."""
    x = jax.ShapeDtypeStruct(cell.shape, cell.dtype)
    try:
        jax.eval_shape(jax_function(CASES[cell.case], cell.implementation, jnp.dtype(cell.dtype)), x, x, x)
    except InputError:
        return False
    except Exception:
        return True
    return True


# --- the command ------------------------------------------------------------------------------------------------------


def version(package: str) -> str | None:
    """The installed version of a package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def facts() -> dict:
    """The card, its driver and the versions of what runs on it; None for what is not installed."""
    libraries = [(name, version(name)) for name in ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime")]
    libraries += [(name, version(name)) for name in ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "libtpu")]
    query = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader", "--id=0"]
    driver = None
    if jax.default_backend() == "gpu" and shutil.which("nvidia-smi"):
        driver = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip() or None
    return {
        "device": jax.devices()[0].device_kind,
        "driver": driver,
        "jax": jax.__version__,
        **{name: version(name) for name in PACKAGES},
        **{name: installed for name, installed in libraries if installed},
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
    }


def main(
    only: tuple[str, ...] = (),
    total_seconds: float = 540.0,
    retry: bool = False,
    out: str = "runs/bench_card.json",
    page: str = "",
) -> dict:
    """Measure one GPU or TPU: attention, training and decoding here and in other libraries.

    Args:
        only: Measurements whose names begin with these parts: rates, kernel, tests, attention, attention/causal,
            train/gpt2, decode, launch.
        total_seconds: When to stop; the same command continues.
        retry: Also measure again what has failed.
        out: File of the results.
        page: Also write the tables into this page, between <!-- bench card --> and <!-- end of bench card -->.
    """
    if not total_seconds > 0:
        raise InputError(f"--total-seconds must be above 0, got {total_seconds:g}")
    if jax.device_count() > 1:
        raise InputError(f"bench card measures one device, JAX sees {jax.device_count()}: set CUDA_VISIBLE_DEVICES=0")
    check_page(page, START, END)
    every = list(measurements(jax.default_backend()))
    if unknown := [
        prefix for prefix in only if not any(is_selected(measurement.name, (prefix,)) for measurement in every)
    ]:
        raise InputError(
            f"--only {unknown[0]} selects nothing here: rates, kernel, tests, attention, train, decode or launch"
        )
    document = load(Path(out))
    rows, end = document["rows"], time.monotonic() + total_seconds
    is_done = lambda name: name in rows and not (retry and rows[name]["problem"])
    pending = [
        measurement
        for measurement in every
        if is_selected(measurement.name, only) and not is_done(measurement.name) and measurement.applies()
    ]
    left = len(pending)
    for measurement in pending:
        limit = min(measurement.limit, end - time.monotonic())
        row = run_in_process(measurement.function, limit) if limit > 0 else {"problem": "no time"}
        if row["problem"] and limit < measurement.limit and time.monotonic() >= end:
            break  # its time was cut short: it is not a failure
        rows[measurement.name] = row | {"commit": provenance.commit(), "date": time.strftime("%Y-%m-%d")}
        write_json(Path(out), document)
        print(f"{measurement.name}: {line(measurement.name, row)}", flush=True)
        left -= 1
    text = render(document)
    print(
        f"\n{text}\n\nwritten: {out}" + (f"; {left} measurements are left, the same command continues" if left else "")
    )
    write_page(page, START, END, text)
    return document


def load(path: Path) -> dict:
    """The results so far; InputError if they are of another card or other versions."""
    now = facts()
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return {"facts": now, "rows": {}}
    document = read_object(path)
    then, rows = document.get("facts"), document.get("rows")
    is_row = lambda row: isinstance(row, dict) and {"problem", "date", "commit"} <= {*row}
    if not isinstance(then, dict) or not isinstance(rows, dict) or not all(map(is_row, rows.values())):
        raise InputError(f"{path} was not written by `bench card`: give another --out")
    for name, value in then.items():
        if value is not None and now.get(name) != value:
            raise InputError(f"{path} has results for {name} {value}, this is {now.get(name)}: give another --out")
    return document | {"facts": now}


# --- the tables -------------------------------------------------------------------------------------------------------


def milliseconds(times: list[float]) -> str:
    return number(1e3 * statistics.median(times))


def mebibytes(row: dict) -> str:
    return number(row["temporary_bytes"] / 2**20) if "temporary_bytes" in row else ""


WORK = {
    "ms": lambda row: milliseconds(row["step_seconds"]),
    "per second": lambda row: number(row["examples"] / statistics.median(row["step_seconds"])),
    "compilation, s": lambda row: number(row["compile_seconds"]),
    "memory, MiB": mebibytes,
}
COLUMNS = {
    "kernel": {"largest error": lambda row: number(row["error"])},
    "attention": {
        "forward, ms": lambda row: milliseconds(row["forward_seconds"]),
        "forward + gradient, ms": lambda row: milliseconds(row["gradient_seconds"]),
        "memory, MiB": mebibytes,
        "calls": lambda row: ", ".join(row["kernels"]),
    },
    "train": WORK,
    "decode": WORK,
}
"""The columns of each kind of table."""
TITLES = {
    "kernel": "generated kernels against plain, float32",
    "attention": "attention, T x head size",
    "train": "training step",
    "decode": "decoding, batch",
}
SINGLE = {
    "rates": (
        "matrix products and copies",
        lambda row: (
            f"{number(row['bfloat16_flops'] / 1e12)} TFLOP/s in bfloat16, "
            f"{number(row['float32_flops'] / 1e12)} in float32; {number(row['copy_bytes'] / 1e9)} GB/s"
        ),
    ),
    "tests": (
        "`pytest -m gpu`",
        lambda row: (
            ", ".join(f"{count} {word}" for word, count in row["counts"].items())
            + ("" if row["finished"] else ", then stopped by the time limit")
        ),
    ),
    "launch": ("`python launch.py`", lambda row: f"{number(row['step_seconds'][0])} s"),
}
"""Measurements with one line each."""


def cells(name: str, row: dict) -> list[str]:
    """The cells of a row, or the reason why it has none."""
    if row["problem"]:
        return [row["problem"]]
    kind = name.partition("/")[0]
    return [SINGLE[kind][1](row)] if kind in SINGLE else [column(row) for column in COLUMNS[kind].values()]


def line(name: str, row: dict) -> str:
    """The result of a measurement as text.

    >>> row = {"problem": "", "step_seconds": [0.5], "examples": 64, "compile_seconds": 2.0}
    >>> line("decode/1/transformers static", row)
    'ms 500, per second 128, compilation, s 2'
    """
    values, columns = cells(name, row), COLUMNS.get(name.partition("/")[0], ())
    if row["problem"] or not columns:
        return values[0]
    return ", ".join(f"{column} {cell}" for column, cell in zip(columns, values, strict=True) if cell)


def render(document: dict) -> str:
    """Return the results as paragraphs and tables of Markdown."""
    rows, environment = document["rows"], document["facts"]
    versions = ", ".join(f"{name} {value}" for name, value in environment.items() if value is not None)
    absent = ", ".join(name for name in PACKAGES if environment.get(name) is None)
    code = {f"{row['date']}, commit {(row['commit'] or 'unknown')[:8]}" for row in rows.values()}
    about = f"{versions}; {'; '.join(sorted(code))}." + (f" Not installed: {absent}." if absent else "")
    if environment["device"] == "cpu":
        about += " Tiny sizes on a CPU: the numbers say nothing about the speed."
    single = [(SINGLE[name][0], *cells(name, rows[name])) for name in SINGLE if name in rows]
    blocks = [textwrap.fill(about, 120, break_on_hyphens=False), markdown(Table("", ("measured", "result"), single))]
    for kind, columns in COLUMNS.items():
        lines = []
        for name, row in rows.items():
            if name.startswith(f"{kind}/"):
                *labels, by = name.split("/")[1:]
                values = cells(name, row)
                lines.append((" ".join(labels), by, *values, *[""] * (len(columns) - len(values))))
        if lines:
            order = list(dict.fromkeys(line[0] for line in lines))
            lines.sort(key=lambda line: order.index(line[0]))  # what is compared comes together
            blocks.append(markdown(Table("", (TITLES[kind], "by", *columns), lines, tuple(columns))))
    return "\n\n".join(blocks)
