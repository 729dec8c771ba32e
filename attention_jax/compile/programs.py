"""The training, evaluation and decoding programs of an experiment, compiled for a target."""

import datetime
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.compile.report import DoesNotFit, Report, finish, report
from attention_jax.compile.targets import Target, devices, lowering_for
from attention_jax.tasks import standin
from attention_jax.train.loop import call_shapes, count_steps
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program, absent, row_program
from attention_jax.train.step import init_state


@dataclass(frozen=True)
class LoweredProgram:
    """A lowered program, ready to be compiled."""

    name: str
    """training, evaluation or decoding."""
    steps: int
    """Optimizer steps in one call of the program."""
    rows: int
    """Examples in a step, over all devices."""
    beside: int
    """Bytes of resident data on each device that are not arguments: the buckets that this program does not read."""
    lowered: jax.stages.Lowered


@dataclass(frozen=True)
class Outcome:
    """The result of compiling a program: its memory report, or the memory it would need if it does not fit."""

    name: str
    steps: int
    rows: int
    beside: int
    seconds: float
    """Compilation time."""
    report: Report | None
    """None if compilation failed for lack of memory."""
    needs: float
    """Bytes required on each device."""
    of: float
    """Memory of a device in bytes; infinite if unknown."""

    @property
    def fits(self) -> bool:
        """Whether the program fits into the memory of a device."""
        return self.needs <= self.of


def programs(task, config: configs.Config, target: Target) -> Iterator[LoweredProgram]:
    """Lower the programs of a run for the devices of a target: training on the bucket with the largest batches, and the
    programs of `task.eval_functions()`."""
    target_devices = devices(target)
    yield training(task, config, target)
    params = jax.eval_shape(task.init, jax.random.PRNGKey(0))
    for name, (fn, arrays, batch_size) in task.eval_functions().items():
        total = len(next(iter(arrays.values())))
        size = -(-min(batch_size, total) // len(target_devices)) * len(target_devices)
        batch = {key: jax.ShapeDtypeStruct((size, *array.shape[1:]), array.dtype) for key, array in arrays.items()}
        shapes = absent(params, target_devices), absent(batch, target_devices, 0)
        with lowering_for(target):
            lowered = row_program(fn, tuple(target_devices)).lower(*shapes)
        yield LoweredProgram(name, 1, size, 0, lowered)


def training(task, config: configs.Config, target: Target) -> LoweredProgram:
    """Lower the training program for the largest call: of the bucket with the largest batches, or of streamed data. The
    devices hold one call of streamed data at a time."""
    shape, arrays, unused_arrays = largest_call(task, config)
    streamed = bool(task.stream)
    if read := not streamed and standin.read_call(config, arrays, shape):
        streamed, shape, unused_arrays = True, read, []
        arrays = {name: standin.zeros(math.prod(shape), *a.shape[1:], dtype=a.dtype) for name, a in arrays.items()}
    update = optimizer(config.optim, count_steps(task, config.train))
    state = jax.eval_shape(lambda: init_state(task.init, update, config.train.seed))
    rows = [jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.int32, jnp.float32)]
    of_type = {name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays.items()}
    train, ways = config.train, {"shard": config.train.shard_parameters, "streamed": streamed}
    ways |= {"devices": devices(target), "parallel": train.parallel}
    program = Program(task.loss, update, train.accumulation_steps, train.matmul_precision, **ways)
    with lowering_for(target):
        lowered = program.lower(state, of_type, *rows)
    return LoweredProgram("training", *shape, sum(array.nbytes for array in unused_arrays), lowered)


def largest_call(task, config: configs.Config) -> tuple[tuple[int, int], dict[str, np.ndarray], list[np.ndarray]]:
    """Return the (steps, examples per step) of the largest call, the arrays that it has on the devices, and the arrays
    of other buckets that are there."""
    if task.stream:
        call = task.stream.largest()
        return call.weight.shape, {name: x[0] for name, x in call.bucket.items()}, []
    size = lambda bucket, shape: shape[1] * sum(math.prod(a.shape[1:]) for a in task.buckets[bucket].values())
    bucket, shape = max(call_shapes(task, config.train), key=lambda call: size(*call))
    unused_arrays = [a for number, arrays in enumerate(task.buckets) if number != bucket for a in arrays.values()]
    return shape, task.buckets[bucket], unused_arrays


def compile_program(program: LoweredProgram, target: Target) -> Outcome:
    """Compile a program and return its memory and cost, or the memory it would need if it does not fit."""
    fields, started = (program.name, program.steps, program.rows, program.beside), time.perf_counter()
    try:
        analysis = report(finish(program.lowered, target))
    except DoesNotFit as error:
        return Outcome(*fields, time.perf_counter() - started, None, error.needs + program.beside, error.of)
    needs = analysis.total + program.beside
    return Outcome(*fields, time.perf_counter() - started, analysis, needs, target.chip.memory)


def to_json(name: str, target: Target, outcomes: list[Outcome]) -> dict:
    """Return the outcomes as JSON values; unknown values are None."""
    date = datetime.date.today().isoformat()
    rows = [asdict(outcome) | {"fits": outcome.fits} for outcome in outcomes]
    for values in rows:
        values["of"] = values["of"] if math.isfinite(values["of"]) else None
    return {"experiment": name, "target": target.name, "jax": jax.__version__, "date": date, "programs": rows}


def table(outcome: Outcome) -> str:
    """Format the memory and cost of a program on one device as text."""
    rows = f"{outcome.rows} examples a batch"
    if outcome.name == "training":
        rows = f"{outcome.steps} steps of {outcome.rows} examples in a call"
    of = f" of {size(outcome.of)}" if math.isfinite(outcome.of) else ""
    verdict = f"{size(outcome.needs)}{of}: {'fits' if outcome.fits else 'does not fit'}"
    lines = [
        f"{outcome.name}: {rows}; on each device ({outcome.seconds:.0f} s to compile)",
        f"  memory       {verdict}",
    ]
    analysis = outcome.report
    if analysis is None:
        return "\n".join([*lines, "  the compiler gave up here"])
    aliased = f", {size(analysis.aliased)} of it in the place of arguments" if analysis.aliased else ""
    lines += [
        f"  arguments    {size(analysis.arguments)}",
        f"  temporaries  {size(analysis.temporaries)}",
        f"  output       {size(analysis.output)}{aliased}",
        f"  program      {size(analysis.code)}",
    ]
    if outcome.beside:
        lines.append(f"  data         {size(outcome.beside)} of other buckets")
    if analysis.flops is not None:
        work = f"{amount(analysis.flops)}FLOP, {amount(analysis.bytes_accessed)}B accessed"
        lines.append(f"  work         {work}, as XLA counts them: the body of a loop once")
    return "\n".join(lines)


def size(count: float) -> str:
    """Format a number of bytes with a binary unit prefix.
    >>> size(1536), size(2**31)
    ('1.5 KiB', '2.0 GiB')
    """
    unit = next((unit for unit in range(4) if count < 1024 ** (unit + 1)), 3)
    return f"{count / 1024**unit:.{1 if unit else 0}f} {('B', 'KiB', 'MiB', 'GiB')[unit]}"


def amount(count: float) -> str:
    """Format a number with a decimal unit prefix, to be followed by the unit.
    >>> amount(3.6e12), amount(512)
    ('3.6 T', '512 ')
    """
    unit = next((unit for unit in range(5) if count < 1000 ** (unit + 1)), 4)
    return f"{count / 1000**unit:.3g} {('', 'k', 'M', 'G', 'T')[unit]}"
