"""`python launch.py bench registers`: registers, spilled bytes, shared memory and machine instructions of the kernels
that are generated for GPUs (`attention_jax/ops/kernels/generated`), without a GPU.

Each call of `attend` is lowered with its gradients: three kernels, which Triton compiles to PTX, NVIDIA's assembler
ptxas to machine code, and nvdisasm to text. Triton and ptxas are in the CUDA packages of jax 0.10.2
(`pip install "jax[cuda12]==0.10.2" nvidia-cuda-nvdisasm`, in an environment of its own); later versions of jaxlib do
not offer Triton's compiler. Nothing is run: the numbers say what to try on a card, not what is fastest.
"""

import collections
import functools
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import provenance
from attention_jax.errors import InputError
from attention_jax.ops.attention import attend
from attention_jax.ops.biases import ALiBi
from attention_jax.ops.dispatch import choose_kernel_blocks
from attention_jax.ops.masks import causal, segments, window
from attention_jax.ops.normalizers import Entmax, Sigmoid, Sparsemax
from attention_jax.ops.scores import Additive, Cosine, Gaussian, SoftCap
from attention_jax.report.tables import Table, markdown
from benchmarks._attention_cases import CAP, SIGMA, WINDOW, l1
from benchmarks._pages import is_selected
from benchmarks._process import run_in_process
from benchmarks._targets import CHIPS, COMMON, Chip

Card = Literal["h100", "a100"]
ARCHITECTURES = {"h100": "9.0a", "a100": "8.0"}
"""Compute capabilities, as Triton takes them: an H200 is an H100 here."""

KERNELS = {"attend": "forward", "query_gradient": "gradient of queries", "key_gradient": "gradient of keys"}
"""The kernels of a call by their names, as `walk.py` launches them."""

HEADS, LIMIT = 8, 600
"""Heads of each call, and seconds in which its kernels have to be compiled."""


class Case(NamedTuple):
    """A call of `attend`: the arguments beside query, key and value, of which the gradient of some is taken, too."""

    rules: dict[str, Any]
    learned: dict[str, Any] = {}  # noqa: RUF012
    length: int = 2048
    width: int = 64
    dtype: type = jnp.bfloat16


def cases() -> dict[str, Case]:
    """All calls by their names."""
    masks = {"full": None, "causal": causal(), "window": causal() & window(WINDOW)}
    dots = {
        f"dot/{name}/2048x{width}": Case({"mask": mask}, width=width)
        for width in (64, 128)
        for name, mask in masks.items()
    }
    documents, number = np.arange(2048) // 512, jnp.float32
    with_mask = lambda **rules: Case({"mask": causal(), **rules})
    every = dots | {
        "dot/causal/float32": Case({"mask": causal()}, dtype=jnp.float32),
        "soft_cap": with_mask(score=SoftCap(CAP)),
        "alibi": with_mask(bias=ALiBi(0.5)),
        "alibi/learned": Case({"mask": causal()}, {"bias": ALiBi(number(0.5))}),
        "gaussian": Case({}, {"score": Gaussian(number(SIGMA))}),
        "cosine": Case({}, {"score": Cosine(number(8.0))}),
        "l1": Case({"score": l1}),
        "additive": Case({}, {"score": Additive(None, None, jnp.ones(64))}),
        "sigmoid": with_mask(normalizer=Sigmoid(-7.0)),
        "sparsemax": with_mask(normalizer=Sparsemax()),
        "entmax": with_mask(normalizer=Entmax(1.5)),
        "dropout": with_mask(dropout=0.1, rng=jax.random.key(0)),
        "segments": Case({"mask": causal() & segments(documents, documents)}),
    }
    odd = ("dot/causal/2048x64", "dot/window/2048x64", "alibi", "soft_cap", "gaussian", "l1", "sparsemax")
    return every | {f"{name.removesuffix('/2048x64')}/1023x64": every[name]._replace(length=1023) for name in odd}


# --- the kernels of a call --------------------------------------------------------------------------------------------


class Kernel(NamedTuple):
    """A kernel in Triton's intermediate representation, as MLIR's bytecode."""

    name: str
    code: bytes
    warps: int
    stages: int


class Usage(NamedTuple):
    """What a kernel needs on a card."""

    registers: int  # of each thread
    spilled: int  # bytes that a thread writes to memory, for want of registers
    shared: int  # bytes of shared memory of a block of threads
    wgmma: int  # instructions in the PTX for tensor cores, of Hopper, which four warps share
    mma: int  # and of earlier cards
    warps: int  # of 32 threads, in a block
    loop: int = 0  # machine instructions of the shortest loop without another one in it
    mufu: int = 0  # of the whole kernel for exponentials, reciprocals and the like, 16 lanes a clock
    f2f: int = 0  # of the whole kernel for conversions between floating types, 16 lanes a clock


def lower(case: Case):
    """A call and its gradients, lowered for CUDA."""
    x = jax.ShapeDtypeStruct((HEADS, case.length, case.width), case.dtype)

    def attend_head(query, key, value, learned):
        return attend(query, key, value, implementation="kernel", **case.rules, **learned)

    def output_and_gradients(query, key, value, bar, learned):
        heads = jax.vmap(attend_head, (0, 0, 0, None))
        out, pull = jax.vjp(heads, query, key, value, learned)
        return out, pull(bar)

    return jax.jit(output_and_gradients).trace(x, x, x, x, case.learned).lower(lowering_platforms=("cuda",))


def kernels_of(lowered) -> list[Kernel]:
    """The kernels of a lowered program, in the order of the code."""
    return list(_kernels_in(lowered.compiler_ir().operation))


def _kernels_in(operation) -> Iterator[Kernel]:
    for region in operation.regions:
        for block in region:
            for inner in block:
                attributes = inner.operation.attributes
                if inner.operation.name == "stablehlo.custom_call" and "triton" in str(attributes["call_target_name"]):
                    config = attributes["mhlo.backend_config"]
                    yield Kernel(
                        config["name"].value,
                        config["ir"].value_bytes,
                        config["num_warps"].value,
                        config["num_stages"].value,
                    )
                yield from _kernels_in(inner.operation)


def find_program(name: str) -> str | None:
    """The path of NVIDIA's assembler ptxas, or of nvdisasm: of the CUDA packages, or of a toolkit; None without one."""
    try:
        import nvidia
    except ImportError:
        return shutil.which(name)
    paths = [path for root in nvidia.__path__ for path in glob.glob(f"{root}/**/bin/{name}", recursive=True)]
    return paths[0] if paths else shutil.which(name)


def absent_compiler() -> str | None:
    """Why kernels cannot be compiled here; None if they can."""
    from jax._src.lib import triton

    reasons = {
        f"jax {jax.__version__} does not offer Triton's": not hasattr(triton, "compile"),
        "jax_cuda12_plugin is not installed": importlib.util.find_spec("jax_cuda12_plugin") is None,
        "ptxas is not installed": find_program("ptxas") is None,
        "nvdisasm is not installed": find_program("nvdisasm") is None,
    }
    return next((reason for reason, is_absent in reasons.items() if is_absent), None)


def ptxas_version() -> str:
    """The version of NVIDIA's assembler."""
    text = subprocess.run([find_program("ptxas"), "--version"], capture_output=True, text=True, check=True).stdout
    return re.findall(r"V([0-9.]+)", text)[0]


def compile_kernel(kernel: Kernel, chip: Chip) -> Usage:
    """Compile a kernel for a card."""
    from jax._src.lib import triton

    compiled = triton.compile(
        "cuda",
        kernel.code,
        ARCHITECTURES[chip.name],
        num_warps=kernel.warps,
        num_ctas=1,
        num_stages=kernel.stages,
    )
    text = compiled.asm if isinstance(compiled.asm, str) else compiled.asm.decode()
    with tempfile.TemporaryDirectory() as directory:
        source, binary = Path(directory) / "kernel.ptx", Path(directory) / "kernel.cubin"
        source.write_text(text)
        architecture = "-arch=sm_" + ARCHITECTURES[chip.name].replace(".", "")
        log = _output_of("ptxas", "-v", architecture, source, "-o", binary).stderr
        loop, opcodes = read_machine_code(_output_of("nvdisasm", "-c", binary).stdout)
    products = text.count("wgmma.mma_async"), text.count("mma.sync")
    counts = loop, opcodes["MUFU"], opcodes["F2F"]
    return Usage(*registers_and_spilled_bytes(log), compiled.smem_bytes, *products, kernel.warps, *counts)


def _output_of(program: str, *arguments):
    return subprocess.run([find_program(program), *map(str, arguments)], capture_output=True, text=True, check=True)


def read_machine_code(text: str) -> tuple[int, collections.Counter]:
    """The length of the shortest loop without another one in it, of more than 20 instructions, or 0; and the number of
    each instruction in the whole kernel, from the text of nvdisasm.

    >>> body = "/*0010*/ @P0 MUFU.EX2 R0, R1 ;\\n" * 30
    >>> loop, opcodes = read_machine_code(f".L_x_0:\\n{body}/*0020*/ @!P1 BRA `(.L_x_0) ;\\n/*0030*/ EXIT ;")
    >>> loop, opcodes["MUFU"], opcodes["EXIT"]
    (31, 30, 1)
    """
    code, labels = [], {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_\w+):", line):
            labels[label[1]] = len(code)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?\w+\s+)?(.*?)\s*;", line):
            code.append(instruction[1])
    targets = [re.match(r"BRA.*`\((\.L_\w+)\)", instruction) for instruction in code]
    loops = [(labels[jump[1]], end) for end, jump in enumerate(targets) if jump and labels.get(jump[1], end) < end]
    loops = [(first, end) for first, end in loops if end - first > 20]
    inner = [x for x in loops if not any(x[0] <= y[0] and y[1] <= x[1] and x != y for y in loops)]
    shortest = min((end - first + 1 for first, end in inner), default=0)
    return shortest, collections.Counter(re.split(r"[. ]", instruction)[0] for instruction in code)


def registers_and_spilled_bytes(log: str) -> tuple[int, int]:
    """Read what `ptxas -v` says of a kernel.

    >>> registers_and_spilled_bytes("8 bytes spill stores, 4 bytes spill loads; Used 255 registers")
    (255, 8)
    """
    [registers], [spilled] = re.findall(r"Used (\d+) registers", log), re.findall(r"(\d+) bytes spill stores", log)
    return int(registers), int(spilled)


def resident_blocks(usage: Usage, chip: Chip) -> int:
    """Blocks of threads that one multiprocessor holds at once (CUDA C++ programming guide, compute capabilities).

    Registers are allocated to warps by 256, and 1 KiB of the shared memory of a block is the system's.

    >>> resident_blocks(Usage(registers=152, spilled=0, shared=41984, wgmma=16, mma=0, warps=4), CHIPS["h100"])
    3
    """
    limits = COMMON | chip.card
    registers = -(-32 * usage.registers // 256) * 256 * usage.warps
    return min(
        32,
        limits["registers_per_core_limit"] // registers,
        limits["shared_memory_per_core"] // (usage.shared + 1024),
        limits["threads_per_core_limit"] // (32 * usage.warps),
    )


def usages(name: str, cards: tuple[Card, ...]) -> dict[str, dict[str, Usage]]:
    """What the kernels of a case need on each card: {card: {kernel: usage}}."""
    kernels = kernels_of(lower(cases()[name]))
    return {card: {kernel.name: compile_kernel(kernel, CHIPS[card]) for kernel in kernels} for card in cards}


# --- the command ------------------------------------------------------------------------------------------------------


def main(only: tuple[str, ...] = (), card: tuple[Card, ...] = ("h100", "a100")) -> dict:
    """Compile the generated kernels for GPUs that are not installed, and print what they need.

    Args:
        only: Calls whose names begin with these parts: dot, dot/causal, soft_cap, gaussian, sparsemax.
        card: Cards to compile for.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"  # of the processes that compile: nothing runs on a card
    jax.config.update("jax_platforms", "cpu")
    every = cases()
    for prefix in only:
        if not any(is_selected(name, (prefix,)) for name in every):
            raise InputError(f"--only {prefix} selects nothing: {', '.join(every)}")
    if reason := absent_compiler():
        raise InputError(
            f'bench registers needs the compilers of CUDA kernels, {reason}: pip install "jax[cuda12]==0.10.2" '
            "nvidia-cuda-nvdisasm in an environment of its own"
        )
    rows = {}
    for name in every:
        if is_selected(name, only):
            rows[name] = run_in_process(functools.partial(usages, name, card), LIMIT)
            print(f"{name}: {rows[name]['problem'] or line(rows[name], card)}", flush=True)
    print(f"\n{render(rows, card)}")
    return rows


def line(row: dict, card: tuple[Card, ...]) -> str:
    """The numbers of a call as text."""
    of_card = lambda name: ", ".join(f"{KERNELS[kernel]} {cell(row[name], kernel, name)}" for kernel in KERNELS)
    return "; ".join(f"{name}: {of_card(name)}" for name in card)


def cell(usage_by_kernel: dict[str, Usage], kernel: str, card: Card) -> str:
    """The numbers of a kernel, in the order that `render` explains."""
    usage = usage_by_kernel[kernel]
    blocks = resident_blocks(usage, CHIPS[card])
    products = " + ".join(f"{getattr(usage, name)} {name}" for name in ("wgmma", "mma") if getattr(usage, name))
    return (
        f"{usage.registers} / {usage.spilled} / {usage.shared / 1024:.0f} / {blocks} / {products or 0} / "
        f"{usage.loop} / {usage.mufu} / {usage.f2f}"
    )


def render(rows: dict[str, dict], card: tuple[Card, ...]) -> str:
    """Return the numbers as one Markdown table for each card."""
    about = (
        f"Registers of a thread / spilled bytes / shared memory of a block, KiB / blocks that a multiprocessor holds / "
        f"tensor-core instructions of the PTX / machine instructions: of the shortest inner loop, MUFU and F2F of the "
        f"whole kernel. {time.strftime('%Y-%m-%d')}, commit {(provenance.commit() or 'unknown')[:8]}, "
        f"jax {jax.__version__}, ptxas {ptxas_version()}."
    )
    blocks = [textwrap.fill(about, 120, break_on_hyphens=False)]
    for name in card:
        lines = [(case, *cells(case, row, name)) for case, row in rows.items()]
        columns = (f"{name}, sm_{ARCHITECTURES[name].replace('.', '')}", "queries x keys, warps", *KERNELS.values())
        blocks.append(markdown(Table("", columns, lines, columns[2:])))
    return "\n\n".join(blocks)


def cells(name: str, row: dict, card: Card) -> list[str]:
    """The cells of a call: its blocks, the warps and the numbers of each kernel, or the reason why there are none."""
    case = cases()[name]
    x = jax.ShapeDtypeStruct((case.length, case.width), case.dtype)
    blocks = choose_kernel_blocks(x, x)["cuda"]
    size = f"{blocks.query} x {blocks.key}"
    if row["problem"]:
        return [size, row["problem"], "", ""]
    warps = "/".join(str(row[card][kernel].warps) for kernel in KERNELS)
    return [f"{size}, {warps}", *(cell(row[card], kernel, card) for kernel in KERNELS)]
