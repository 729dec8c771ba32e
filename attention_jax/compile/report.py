"""What one compiled program needs of a chip: memory, operations, traffic, collectives, and the least time they take."""

import re
from dataclasses import dataclass

import jax

from attention_jax import InputError
from attention_jax.compile import hlo
from attention_jax.compile.targets import Target, devices

LARGEST = 8
"""Buffers that a report shows."""

EXHAUSTED = (
    r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
    r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
)
"""How a TPU's compiler says that a program needs more than the chip has."""


class DoesNotFit(Exception):
    """The compiler gave up: the program needs more memory than the chip has."""

    def __init__(self, needs: float, of: float, message: str):
        super().__init__(f"does not fit: needs {needs / 2**30:.2f} GiB of {of / 2**30:.2f} GiB")
        self.needs, self.of, self.message = needs, of, message


@dataclass(frozen=True)
class Report:
    """The figures of one call of a program on ONE device of a target."""

    target: str
    arguments: int
    """Bytes, as are the next four."""
    temporaries: int
    output: int
    aliased: int
    """Output that is written where an argument was."""
    code: int
    memory: float
    """What the chip has."""
    products: dict[str, int]
    """Operations in products, by type; a loop's body counts as often as it turns."""
    bytes_accessed: int
    """Read from and written to the chip's main memory; a loop's body counts as often as it turns."""
    compute_seconds: float
    """What the products take at the chip's peak: a lower bound."""
    memory_seconds: float
    """What the bytes take at its bandwidth: a lower bound."""
    collectives: list[hlo.Collective]
    largest: list[hlo.Buffer]
    unknown: dict[str, int]
    """What could not be counted, and how often it occurs."""
    told: dict[str, float]
    """The compiler's own count of "flops" and "bytes accessed", the body of a loop once and all memories together;
    empty where it has none, as for cards."""

    @property
    def total(self) -> int:
        """Bytes of memory that the program needs."""
        return self.arguments + self.output - self.aliased + self.temporaries + self.code

    @property
    def fits(self) -> bool:
        """Whether the chip has that much."""
        return self.total <= self.memory

    @property
    def flops(self) -> int:
        """Operations in products of all types."""
        return sum(self.products.values())

    @property
    def least_seconds(self) -> float:
        """No call can be faster on this chip, as far as products and bytes are known."""
        return max(self.compute_seconds, self.memory_seconds)


def compile_for(target: Target, fn, *shapes, donate=()) -> jax.stages.Compiled:
    """`fn` compiled for one device of a target from shapes (`jax.ShapeDtypeStruct`s or trees of them) alone.

    `donate` are the positions of arguments whose memory the output may take. Raises InputError if the compiler is not
    installed, DoesNotFit if it says that the program cannot fit.
    """
    there = jax.sharding.SingleDeviceSharding(devices(target)[0])
    return finish(jax.jit(fn, in_shardings=there, out_shardings=there, donate_argnums=donate).lower(*shapes), target)


def finish(lowered: jax.stages.Lowered, target: Target) -> jax.stages.Compiled:
    """A program that was lowered for the devices of a target, compiled. Raises DoesNotFit."""
    try:
        return lowered.compile(compiler_options=target.options)
    except jax.errors.JaxRuntimeError as error:
        exhausted = next(filter(None, (re.search(pattern, str(error)) for pattern in EXHAUSTED)), None)
        if not exhausted:
            raise InputError(f"the compiler of {target.name} refuses: {' '.join(str(error).split())[:300]}") from error
        used, used_unit, of, of_unit = exhausted.groups()
        raise DoesNotFit(_size(used, used_unit), _size(of, of_unit), str(error)) from error


def _size(number: str, unit: str) -> float:
    """Bytes.

    >>> _size("1.5", "K")
    1536.0
    """
    return float(number) * 1024 ** " KMGT".index(unit or " ")


def report(compiled: jax.stages.Compiled, target: Target) -> Report:
    """The figures of a compiled program on one device of the target it was compiled for."""
    memory, program = compiled.memory_analysis(), hlo.Program(compiled.as_text())
    told, chip, cost = compiled.cost_analysis() or {}, target.chip, program.cost
    rate = {"f32": chip.f32, "f64": chip.f32}
    return Report(
        target=target.name,
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        output=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        memory=chip.memory,
        products=dict(cost.products),
        bytes_accessed=cost.bytes,
        compute_seconds=sum(n / rate.get(dtype, chip.bf16) for dtype, n in cost.products.items()),
        memory_seconds=cost.bytes / chip.bandwidth,
        collectives=program.collectives(),
        largest=program.largest(LARGEST),
        unknown=dict(cost.unknown),
        told={name: told[name] for name in ("flops", "bytes accessed") if name in told},
    )
