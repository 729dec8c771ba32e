"""XLA's text of a compiled program, read: computations, their instructions, and the arrays that these make."""

import math
import re
from typing import NamedTuple

BITS = {"pred": 8, "token": 0, "opaque": 0, "s4": 4, "u4": 4, "s2": 2, "u2": 2, "c64": 64, "c128": 128}


class Array(NamedTuple):
    """An array in memory."""

    dtype: str
    dims: tuple[int, ...]
    padded: tuple[int, ...]
    """`dims` as large as a TPU's tiles make them."""
    space: int
    """0 is the main memory."""

    @property
    def bytes(self) -> int:
        """In whichever memory it is."""
        return math.prod(self.padded) * bits(self.dtype) // 8


class Instruction(NamedTuple):
    """One line: `name = arrays opcode(inside), rest`."""

    name: str
    arrays: tuple[Array, ...]
    opcode: str
    inside: str
    rest: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """The names of the instructions it reads."""
        return re.findall(r"%([\w.\-]+)", self.inside)

    @property
    def target(self) -> str:
        """What a custom call calls."""
        return attribute(self, r'custom_call_target="([^"]*)"')

    @property
    def op_name(self) -> str:
        """The path of JAX's names that it comes from."""
        return attribute(self, r'op_name="([^"]*)"')


def bits(dtype: str) -> int:
    """Of one number.

    >>> bits("bf16"), bits("pred"), bits("f8e4m3fn")
    (16, 8, 8)
    """
    return BITS[dtype] if dtype in BITS else int(re.match(r"[a-z]+(\d+)", dtype)[1])


def attribute(instruction: Instruction, pattern: str) -> str:
    """The first group of a pattern in what is said of an instruction, or nothing."""
    found = re.search(pattern, instruction.rest)
    return found[1] if found else ""


def arrays_in(shape: str) -> tuple[Array, ...]:
    """The arrays of a shape, which may be a tuple.

    >>> [a.bytes for a in arrays_in("(f32[2,3]{1,0}, bf16[5,196]{1,0:T(8,128)(2,1)S(1)})")]
    [24, 4096]
    """
    found = re.findall(r"([a-z]+\d*[a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?", shape)
    return tuple(_array(dtype, dims.replace("<=", ""), layout) for dtype, dims, layout in found)


def _array(dtype: str, dims: str, layout: str) -> Array:
    sizes = tuple(int(size) for size in dims.split(",") if size)
    order, _, rest = layout.partition(":")
    padded, tile = list(sizes), re.search(r"T\(([\d,]+)\)", rest)
    minor = [int(axis) for axis in order.split(",") if axis]
    if tile:
        for axis, size in zip(minor, reversed([int(size) for size in tile[1].split(",")])):
            padded[axis] = -(-padded[axis] // size) * size
    space = re.search(r"S\((\d+)\)", rest)
    return Array(dtype, sizes, tuple(padded), int(space[1]) if space else 0)


def _balanced(text: str, start: int) -> int:
    """Where the bracket that opens at `start` has closed."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if not depth:
            return place + 1
    raise ValueError(f"a bracket is not closed: {text[:80]}")


def instruction_of(line: str) -> Instruction | None:
    """A line of a program's text.

    >>> instruction_of("  ROOT %dot.1 = f32[2,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}").operands
    ['a', 'b']
    """
    head = re.match(r"\s+(ROOT )?%?([\w.\-]+) = ", line)
    if not head:
        return None
    at = head.end()
    end = _balanced(line, at) if line[at] == "(" else line.index(" ", at)
    opcode = line[end : line.index("(", end)].strip()
    start = line.index("(", end)
    close = _balanced(line, start)
    return Instruction(
        head[2], arrays_in(line[at:end]), opcode, line[start + 1 : close - 1], line[close:], bool(head[1])
    )


def computations(text: str) -> tuple[dict[str, dict[str, Instruction]], str]:
    """{computation: {name: instruction}} of a program's text, and which of them is run."""
    found, entry, current = {}, "", None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) \(.*\{\s*$", line)
        if head:
            current = found[head[2]] = {}
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (instruction := instruction_of(line)):
            current[instruction.name] = instruction
    return found, entry


def place_of(op_name: str) -> str:
    """Where in the model an instruction comes from, without the words of JAX's transformations.

    >>> place_of("jit(run)/shard_map/while/body/closed_call/transpose(jvp(Vit))/block_0/mlp/dot_general")
    'Vit/block_0/mlp/dot_general (gradient)'
    """
    unwrapped, inner = op_name, ""
    while unwrapped != inner:
        inner, unwrapped = unwrapped, re.sub(r"\b(?:jvp|transpose|vmap|remat|rematted_computation)\(([^()]*)\)",
                                             r"\1", unwrapped)  # fmt: skip
    dropped = {
        "",
        "shard_map",
        "while",
        "body",
        "cond",
        "closed_call",
        "checkpoint",
        "pjit",
        "scan",
        "jvp",
        "transpose",
    }
    parts = [part for part in unwrapped.split("/") if part not in dropped and not re.match(r"jit\(|branch_\d", part)]
    return "/".join(parts) + (" (gradient)" if "transpose(" in op_name else "")


def in_memory(arrays) -> int:
    """Bytes of those arrays that lie in main memory."""
    return sum(array.bytes for array in arrays if not array.space)
