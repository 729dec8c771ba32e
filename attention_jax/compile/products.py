"""The operations of the products in a program's text: of matrices, convolutions, and those of NVIDIA's libraries."""

import functools
import itertools
import math
import re

from attention_jax.compile.instructions import Instruction, attribute

MARKERS = {
    "ConcatBitcast", "AllocateBuffer", "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape",
    "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked",
}  # fmt: skip
"""Custom calls that do nothing."""
WITHOUT_PRODUCTS = {"TopK", "__gpu$TopK", "PartialReduce", "ResizeDynamic"}
"""Custom calls that move bytes and multiply nothing."""


def foreign(line: Instruction) -> dict[str, int]:
    """A call of code that is not in the text and whose operations are not known."""
    known = (
        line.target.startswith(("__cublas", "__cudnn$fmha", "__cudnn$conv"))
        or line.target in MARKERS | WITHOUT_PRODUCTS
    )
    return {} if line.opcode != "custom-call" or known else {f"operations of {line.target}": 1}


def products_of(line: Instruction, lines: dict[str, Instruction]) -> dict[str, int]:
    """{type of what is multiplied: operations} of an instruction that is a product."""
    if line.opcode == "dot":
        contracted = attribute(line, r"lhs_contracting_dims=\{([\d,]*)\}")
    elif line.target.startswith("__cublas"):
        contracted = attribute(line, r'"lhs_contracting_dimensions": ?\[([^\]]*)\]').replace('"', "")
    elif line.opcode == "convolution" or line.target.startswith("__cudnn$conv"):
        return convolved(line, lines)
    elif line.target.startswith("__cudnn$fmha"):
        return attended(line, lines)
    else:
        return {}
    left = lines[line.operands[0]].arrays[0]
    over = math.prod(left.dims[int(axis)] for axis in contracted.split(",") if axis)
    return {left.dtype: 2 * math.prod(line.arrays[0].dims) * over}


def attended(line: Instruction, lines: dict[str, Instruction]) -> dict[str, int]:
    """cuDNN's attention: two products, five in its gradient, over all features.

    Its mask is not known here, so a causal one counts as if it were none.
    """
    scores = attribute(line, r'"intermediate_tensor_shape": ?\{[^}]*?"dimensions": ?\[([^\]]*)\]').replace('"', "")
    query = lines[line.operands[0]].arrays[0]
    products = 5 if "Backward" in line.target else 2
    return {query.dtype: 2 * products * math.prod(map(int, scores.split(","))) * query.dims[-1]} if scores else {}


def convolved(line: Instruction, lines: dict[str, Instruction]) -> dict[str, int]:
    """A convolution; a TPU's products of matrices are written as convolutions, their batches as windows full of holes.

    Only the positions of the window that meet a number count, not padding or holes.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", line.rest)
    if not labels:
        return {}
    left, kernel = (lines[operand].arrays[0] for operand in line.operands[:2])
    of_left, of_kernel, of_out = labels.groups()
    out = line.arrays[0].dims
    spatial = sorted(label for label in of_kernel if label.isdigit())
    window = dict(re.findall(r"(\w+)=([\w\-]+)", attribute(line, r"window=\{([^}]*)\}")))
    pairs = 1
    for number, label in enumerate(spatial):
        sizes = (left.dims[of_left.index(label)], kernel.dims[of_kernel.index(label)], out[of_out.index(label)])
        pairs *= met(*sizes, {name: values.split("x")[number] for name, values in window.items()})
    groups = int(attribute(line, r"batch_group_count=(\d+)") or 1)
    rows, features = left.dims[of_left.index("b")] // groups, out[of_out.index("f")]
    return {left.dtype: 2 * rows * features * kernel.dims[of_kernel.index("i")] * pairs}


@functools.cache
def _met(size: int, kernel: int, out: int, stride: int, before: int, holes: int, spread: int) -> int:
    found = 0
    for at, offset in itertools.product(range(out), range(kernel)):
        place = at * stride + offset * spread - before
        found += 0 <= place <= (size - 1) * holes and place % holes == 0
    return found


def met(size: int, kernel: int, out: int, window: dict[str, str]) -> int:
    """Along one axis, the pairs of a place in the result and one in the window that meet a number.

    >>> met(4, 3, 4, {"pad": "1_1"}), met(2, 2, 2, {"pad": "0_0", "stride": "1", "lhs_dilate": "2"})
    (10, 2)
    """
    before = int(window.get("pad", "0_0").split("_")[0])
    return _met(size, kernel, out, *(int(n) for n in (window.get("stride", 1), before, window.get("lhs_dilate", 1),
                                                      window.get("rhs_dilate", 1))))  # fmt: skip
