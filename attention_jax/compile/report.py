"""XLA's memory and cost analysis of one compiled program."""

import re
from dataclasses import dataclass

import jax

from attention_jax.compile.targets import Target, devices, lowering_for
from attention_jax.errors import InputError

EXHAUSTED = (
    r"Used ([\d.]+)([KMGT]?) of ([\d.]+)([KMGT]?) hbm",
    r"temporaries \(([\d.]+)([KMGT]?)\) exceeds available HBM \(([\d.]+)([KMGT]?)\)",
)
"""The TPU compiler's out-of-memory messages; groups: needed, its unit, available, its unit."""


class DoesNotFit(Exception):
    """Compilation failed because the program needs `needs` bytes of device memory and the device has `of`."""

    def __init__(self, needs: float, of: float, message: str):
        super().__init__(f"does not fit: needs {needs / 2**30:.2f} GiB of {of / 2**30:.2f} GiB")
        self.needs, self.of, self.message = needs, of, message


@dataclass(frozen=True)
class Report:
    """Memory of one call of a program on ONE device of a target, in bytes, and XLA's count of its work."""

    arguments: int
    temporaries: int
    output: int
    aliased: int
    """Bytes of output that reuse the memory of donated arguments."""
    code: int
    flops: float | None
    """From XLA's `cost_analysis`, which counts a loop body ONCE (jax issue 18672); None on GPUs, which lack it."""
    bytes_accessed: float | None
    """Bytes read and written, over all memories of the device, counted like `flops`."""

    @property
    def total(self) -> int:
        """Bytes of device memory that the program needs."""
        return self.arguments + self.output - self.aliased + self.temporaries + self.code


def compile_for(target: Target, fn, *shapes, donate=()) -> jax.stages.Compiled:
    """Compile `fn` for one device of a target from shapes alone (`jax.ShapeDtypeStruct`s or pytrees of them).

    `donate` are the positions of donated arguments, whose memory the output may reuse. Raises InputError if the
    compiler is not installed, DoesNotFit if the program exceeds the device's memory.
    """
    sharding = jax.sharding.SingleDeviceSharding(devices(target)[0])
    jitted = jax.jit(fn, in_shardings=sharding, out_shardings=sharding, donate_argnums=donate)
    with lowering_for(target):
        lowered = jitted.lower(*shapes)
    return finish(lowered, target)


def finish(lowered: jax.stages.Lowered, target: Target) -> jax.stages.Compiled:
    """Compile a program that was lowered for the devices of a target.

    Raises DoesNotFit if it exceeds their memory, InputError if the compiler fails for another reason.
    """
    try:
        return lowered.compile(compiler_options=target.options)
    except jax.errors.JaxRuntimeError as error:
        exhausted = next(filter(None, (re.search(pattern, str(error)) for pattern in EXHAUSTED)), None)
        if not exhausted:
            raise InputError(f"the compiler of {target.name} fails: {' '.join(str(error).split())[:300]}") from error
        used, used_unit, of, of_unit = exhausted.groups()
        raise DoesNotFit(_size(used, used_unit), _size(of, of_unit), str(error)) from error


def _size(number: str, unit: str) -> float:
    """Convert a number with a binary prefix to bytes.
    >>> _size("1.5", "K")
    1536.0
    """
    return float(number) * 1024 ** " KMGT".index(unit or " ")


def report(compiled: jax.stages.Compiled) -> Report:
    """Return the memory and cost analysis of a compiled program on one device."""
    memory, cost = compiled.memory_analysis(), compiled.cost_analysis() or {}
    return Report(
        arguments=memory.argument_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        output=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        code=memory.generated_code_size_in_bytes,
        flops=cost.get("flops"),
        bytes_accessed=cost.get("bytes accessed"),
    )
