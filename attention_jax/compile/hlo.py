"""What a compiled program does, read from XLA's text of it: products, bytes, collectives and buffers.

The compilers of TPUs count operations and bytes themselves, but the body of a loop once; those of cards count nothing.
Here the body of a loop counts as often as it turns, where the text tells that, and all platforms are counted alike.

Only what lies in the chip's main memory counts as bytes: a TPU's compiler also places arrays in the memory beside the
units (`S(1)` in its text).
"""

import functools
import re
from collections import Counter
from typing import NamedTuple

from attention_jax.compile.instructions import Array, Instruction, attribute, computations, in_memory, place_of
from attention_jax.compile.products import MARKERS, foreign, products_of

COLLECTIVES = (
    "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "ragged-all-to-all", "collective-permute",
    "collective-broadcast",
)  # fmt: skip
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "while", "call", "conditional", "async-start", "add-dependency", "domain",
}  # fmt: skip
"""They move nothing themselves."""
PARTIAL = {"dynamic-slice", "slice", "gather", "slice-start"}
"""They read as much as they write, however large the array they read from."""
NOT_TOLD = "loops whose turns nobody tells, counted once"
MAY_STOP = "loops that may stop early, counted to their end"


class Collective(NamedTuple):
    """The collectives of a kind in a call of the program."""

    kind: str
    number: int
    bytes: int
    """Of all of them, on one device."""
    largest: int
    """Bytes of the largest one."""


class Buffer(NamedTuple):
    """Arrays of one shape that one place in the model makes."""

    bytes: int
    """Of one of them."""
    shape: str
    number: int
    """How many there are in the text; they do not all live at once."""
    place: str
    """Where it comes from in the model."""


class Cost(NamedTuple):
    """What a computation costs, each time it is run."""

    products: Counter
    """Operations in products, by the type of what is multiplied."""
    bytes: int
    """Read from and written to the main memory."""
    collectives: Counter
    """{(kind, bytes): number}."""
    unknown: Counter
    """What could not be counted surely: such loops, and calls of foreign code, which count nothing."""


class Program:
    """The text of a compiled program, and what can be counted in it."""

    def __init__(self, text: str):
        self.computations, self.entry = computations(text)
        self.cost_of = functools.cache(self._cost_of)

    @property
    def cost(self) -> Cost:
        """Of one call of the program."""
        return self.cost_of(self.entry)

    def collectives(self) -> list[Collective]:
        """By kind."""
        found = self.cost.collectives
        kinds = {kind: [(size, n) for (k, size), n in found.items() if k == kind] for kind, _ in sorted(found)}
        return [
            Collective(kind, sum(n for _, n in of), sum(size * n for size, n in of), max(size for size, _ in of))
            for kind, of in kinds.items()
        ]

    def largest(self, number: int) -> list[Buffer]:
        """The largest arrays that are made in main memory, those of one shape and place together."""
        found = Counter()
        for name in self._scheduled():
            for line in self.computations[name].values():
                kind, _, part = line.opcode.rpartition("-")
                if line.opcode in FREE or part in {"done", "update"} or (part == "start" and kind not in COLLECTIVES):
                    continue
                for array in line.arrays:
                    if not array.space and array.bytes:
                        shape = f"{array.dtype}[{','.join(map(str, array.dims))}]"
                        room = line.target.startswith("__cu") and array is line.arrays[-1]
                        found[array.bytes, shape, "room for NVIDIA's libraries" if room else self._place(line)] += 1
        ordered = sorted(found.items(), key=lambda item: (-item[0][0], item[0][2]))
        return [Buffer(size, shape, count, place) for (size, shape, place), count in ordered[:number]]

    def _place(self, line: Instruction) -> str:
        """Where a line comes from; of a fusion that does not say, where its last line does."""
        names = [line.op_name]
        for called in self._called(line):
            names += [inner.op_name for inner in reversed(self.computations[called].values())]
        return next((place_of(name) for name in names if place_of(name)), line.target or line.opcode)

    def _scheduled(self) -> set[str]:
        """The computations whose instructions make arrays in memory: all that are run, less the insides of fusions."""
        found, queue = set(), [self.entry]
        while queue:
            name = queue.pop()
            if name not in found:
                found.add(name)
                lines = self.computations[name].values()
                queue += [
                    called
                    for line in lines
                    if line.opcode in {"while", "call", "conditional"}
                    for called in self._called(line)
                ]
        return found

    def _called(self, line: Instruction) -> list[str]:
        """The computations that an instruction runs, not those with which it reduces or compares."""
        listed = attribute(line, r"(?:branch_computations|called_computations)=\{([^}]*)\}")
        one = re.findall(r"(?:calls|body|condition|true_computation|false_computation)=%?([\w.\-]+)", line.rest)
        if line.opcode == "call":
            one += re.findall(r"to_apply=%?([\w.\-]+)", line.rest)
        return [name for name in one + re.findall(r"[\w.\-]+", listed) if name in self.computations]

    def _cost_of(self, name: str) -> Cost:
        products, moved, collectives, unknown = Counter(), 0, Counter(), Counter()
        for line in self.computations[name].values():
            products += Counter(products_of(line, self.computations[name]))
            unknown += Counter(foreign(line))
            moved += self._moved(line, name)
            kind = line.opcode.removesuffix("-start")
            if kind in COLLECTIVES:
                collectives[kind, exchanged(line, self.computations[name])] += 1
            for cost, times in self._inner(line, name, unknown):
                scaled = lambda counts, times=times: Counter({key: n * times for key, n in counts.items()})
                products += scaled(cost.products)
                collectives += scaled(cost.collectives)
                unknown += cost.unknown
                moved += 0 if line.opcode == "fusion" else cost.bytes * times
        return Cost(products, moved, collectives, unknown)

    def _inner(self, line: Instruction, name: str, unknown: Counter) -> list[tuple[Cost, int]]:
        """What an instruction runs, and how often: the body of a loop, of several branches the one that moves most."""
        if line.opcode.endswith(("-done", "-update")):
            return []
        costs = [self.cost_of(called) for called in self._called(line)]
        if line.opcode == "conditional":
            costs = [max(costs, key=lambda cost: (cost.bytes, cost.products.total()))]
        turns = 1
        if line.opcode == "while":
            turns, doubt = self.turns(line, name)
            unknown += Counter([doubt] if doubt else [])
        return [(cost, turns) for cost in costs]

    def turns(self, loop: Instruction, name: str) -> tuple[int, str]:
        """How often a loop turns, and what is not sure about that.

        The compiler tells it, or the condition compares a counter with a number; if that is not all of the condition,
        or if only the number of slices is known that the body takes one by one, the loop may stop earlier.
        """
        told = attribute(loop, r'"known_trip_count": ?\{"n": ?"(\d+)"')
        if told:
            return int(told), ""
        compared = self._compared(loop, name)
        condition = self.computations[attribute(loop, r"condition=%?([\w.\-]+)")]
        if compared and len([line for line in condition.values() if line.opcode not in FREE]) == 1:
            return compared[0], ""
        bounds = compared or self._slices(attribute(loop, r"body=%?([\w.\-]+)"))
        return (bounds[0], MAY_STOP) if bounds else (1, NOT_TOLD)

    def _compared(self, loop: Instruction, name: str) -> list[int]:
        """The numbers of turns below which a loop's condition wants its counter."""
        condition, found = self.computations[attribute(loop, r"condition=%?([\w.\-]+)")], []
        for line in condition.values():
            inside, given = {line.name: line}, {}
            if line.opcode == "fusion":
                inside = self.computations[self._called(line)[0]]
                given = {n.name: line.operands[int(n.inside)] for n in inside.values() if n.opcode == "parameter"}
            for compare in inside.values():
                if compare.opcode == "compare" and "direction=LT" in compare.rest:
                    sides = [given.get(side, side) for side in compare.operands]
                    first, last = (self._constant(side, condition | inside, loop, name) for side in sides)
                    found += [] if first is None or last is None else [max(last - first, 0)]
        return found

    def _slices(self, body: str) -> list[int]:
        """How many slices there are of what a loop's body reads or writes one slice a turn, the commonest first."""
        counts, queue = Counter(), [body]
        while queue:
            lines = self.computations[queue.pop()]
            for line in lines.values():
                queue += self._called(line) if line.opcode in {"fusion", "call"} else []
                if line.opcode in {"dynamic-slice", "dynamic-update-slice"} and line.operands[0] in lines:
                    [whole] = lines[line.operands[0]].arrays
                    taken = lines[line.operands[1]].arrays if line.opcode == "dynamic-update-slice" else line.arrays
                    if taken and len(whole.dims) > 1 and whole.dims[0] > 1 == taken[0].dims[0]:
                        counts[whole.dims[0]] += 1
        return [size for size, _ in counts.most_common()]

    def _constant(self, side: str, condition: dict, loop: Instruction, name: str) -> int | None:
        """A side of a loop's condition when the loop begins, if it is a number."""
        line, lines = condition.get(side), condition
        while line is not None:
            if line.opcode == "constant":
                return int(line.inside) if re.fullmatch(r"-?\d+", line.inside) else None
            if line.opcode == "get-tuple-element":
                made, lines = (
                    (loop.operands[0], self.computations[name]) if lines is condition else (line.operands[0], lines)
                )  # of the loop's state: what it begins with
                whole = lines.get(made)
                known = whole is not None and whole.opcode == "tuple"
                line = lines.get(whole.operands[int(attribute(line, r"index=(\d+)"))]) if known else None
            elif line.opcode in {"copy", "bitcast", "convert"} and line.operands:
                line = lines.get(line.operands[0])
            else:
                return None
        return None

    def _moved(self, line: Instruction, name: str) -> int:
        """The bytes that an instruction outside of a fusion reads and writes."""
        opcode, lines = line.opcode, self.computations[name]
        if opcode in FREE or opcode.endswith(("-done", "-update")) or line.target in MARKERS:
            return 0
        read = [lines[operand].arrays for operand in line.operands if operand in lines]
        if opcode == "fusion":
            inside = self._called(line)[0]
            reads = sum(self._read(inside, number, arrays) for number, arrays in enumerate(read))
            return reads + self._written(inside, line.arrays)
        if opcode in PARTIAL:
            return 2 * in_memory(line.arrays[-2:-1] if opcode == "slice-start" else line.arrays)
        if opcode == "dynamic-update-slice":
            return 2 * in_memory(read[1])
        if opcode == "scatter":
            return 3 * in_memory(read[-1]) + in_memory(read[-2])
        if opcode.endswith("-start"):
            return sum(map(in_memory, read)) + max(in_memory(line.arrays) - sum(map(in_memory, read)), 0)
        made = line.arrays[:-1] if line.target.startswith("__cu") else line.arrays  # the last is room to work in
        return sum(map(in_memory, read)) + in_memory(made or line.arrays)

    def _read(self, inside: str, number: int, arrays: tuple[Array, ...]) -> int:
        """What a fusion reads of its operand `number`: of an array it only slices, the slices."""
        whole, lines = in_memory(arrays), self.computations[inside]
        given = [line.name for line in lines.values() if line.opcode == "parameter" and line.inside == str(number)]
        users = [line for line in lines.values() if given and given[0] in line.operands]
        if not whole or not users:
            return 0
        read = 0
        for user in users:
            first = user.operands[0] == given[0] and user.operands.count(given[0]) == 1
            if user.opcode in PARTIAL and first:
                read += sum(array.bytes for array in user.arrays)
            elif user.opcode == "fusion":
                read += self._read(self._called(user)[0], user.operands.index(given[0]), arrays)
            elif not (user.opcode == "dynamic-update-slice" and first):  # that one writes in place
                return whole
        return min(read, whole)

    def _written(self, inside: str, arrays: tuple[Array, ...]) -> int:
        """What a fusion writes: of an array it updates in place, the update."""
        lines = self.computations[inside]
        [root] = [line for line in lines.values() if line.is_root]
        made = [lines[operand] for operand in root.operands] if root.opcode == "tuple" else [root]
        if len(made) != len(arrays):
            return in_memory(arrays)
        return sum(0 if array.space else self._updated(line, inside, array) for line, array in zip(made, arrays))

    def _updated(self, line: Instruction, inside: str, array: Array) -> int:
        lines = self.computations[inside]
        while line.opcode in {"bitcast", "copy", "convert"} and line.operands and line.operands[0] in lines:
            line = lines[line.operands[0]]
        if line.opcode == "dynamic-update-slice":
            return min(sum(a.bytes for a in lines[line.operands[1]].arrays), array.bytes)
        return array.bytes


def exchanged(line: Instruction, lines: dict[str, Instruction]) -> int:
    """The bytes that a collective takes or gives on one device, the larger of both."""
    taken = sum(array.bytes for operand in line.operands if operand in lines for array in lines[operand].arrays)
    given = sum(array.bytes for array in line.arrays)
    return max(taken, given - taken if line.opcode.endswith("-start") and len(line.arrays) > 1 else given)
