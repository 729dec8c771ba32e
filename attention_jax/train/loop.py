"""The training loop: every model family trains through `fit`.

A `Task` has the loss, the data and the evaluation; a `Program` makes the steps; `Run` records and logs; `Checkpoints`
saves.
"""

import contextlib
import math
import sys
from pathlib import Path

import jax

from attention_jax.errors import InputError, Interrupted
from attention_jax.signals import Interrupt
from attention_jax.train import hosts
from attention_jax.train.attention_log import AttentionLog
from attention_jax.train.checkpoint import Checkpoints, average, to_host
from attention_jax.train.feed import Resident, Streamed, is_streamed
from attention_jax.train.initial import with_ranges
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import Program
from attention_jax.train.run import Run
from attention_jax.train.step import init_state


def fit(program, start, task, run: Run, checkpoints: Checkpoints):
    """Train `run` to its end; return its last state, in NumPy arrays.

    `program` is a `placement.Program`, and `start` the state before the first step, in NumPy arrays. A run that has a
    checkpoint resumes from it and gives, on the same number of devices, the same numbers bit for bit as an
    uninterrupted run. `sweep/batch.py` has a program and a run that are several, side by side.

    Raises:
      Interrupted: on a signal that ends a process (signals.py), after a checkpoint was written.
    """
    saved, at = checkpoints.resume(start)
    state, epoch, position = program.put_state(saved), at["epoch"], at["chunk"]
    with Interrupt() as interrupt, contextlib.ExitStack() as stack:
        run.begin(*at["runs"])
        stack.push(lambda kind, error, trace: run.close(error))
        feed = stack.enter_context(contextlib.closing(feed_of(program, task, run, epoch, position)))
        while run.active:
            calls = feed.calls(epoch, position)
            while position is not None and run.active:
                previous_position = position
                try:
                    position, bucket, indices, weight = next(calls)  # indices and weight [K, B]
                except InputError:  # unreadable data: training ends with a checkpoint
                    if has_unsaved_steps(run, checkpoints):
                        save_between(program, state, checkpoints, run, epoch, position)
                    raise
                weight = run.mask_finished_steps(weight)
                state, metrics = program.train_steps(state, bucket, indices, weight)
                run.record(epoch, weight, metrics, feed.waited)
                run.log_attention(lambda: program.fetch(state).params)  # noqa: B023
                between = position is not None and run.active
                if between and any(requests := hosts.any_host(interrupt.requested, checkpoints.due())):
                    save_between(program, state, checkpoints, run, epoch, position)
                    if requests[0] and run.active:
                        raise interrupt_error(run, checkpoints)
            if run.steps_in_chunk:  # the last step was inside of this chunk: a longer run resumes with it
                position = previous_position
            ended, whole, saved = epoch + 1, position is None, program.fetch(state)
            run.check_parameters(saved.params)
            run.evaluate(task, saved.params, ended, whole)
            if run.failure:
                break
            if whole:  # else the last step was inside the epoch: with more steps the run resumes there
                epoch, position = ended, 0
            save(checkpoints, saved, run, epoch, position, run.qualities_after(ended))
            if any(hosts.any_host(interrupt.requested)):
                raise interrupt_error(run, checkpoints)
    return saved


def save(checkpoints: Checkpoints, saved, run: Run, epoch: int, position: int, qualities=None):
    """Write a checkpoint of a fetched state; at the end of an epoch with `qualities`."""
    progress = {"epoch": epoch, "chunk": position, "runs": [run.progress()]}
    checkpoints.save(run.step, saved, progress, qualities)


def save_between(program, state, checkpoints: Checkpoints, run: Run, epoch: int, position: int):
    """Write a checkpoint between two calls of an epoch, unless the run has diverged."""
    saved = program.fetch(state)
    run.check_parameters(saved.params)
    if not run.failure:
        save(checkpoints, saved, run, epoch, position)


def has_unsaved_steps(run: Run, checkpoints: Checkpoints) -> bool:
    """Whether steps are in no checkpoint, and there is a single host, which can save without a barrier."""
    return jax.process_count() == 1 and run.step not in [0, *checkpoints.numbers()]


def interrupt_error(run: Run, checkpoints: Checkpoints) -> Interrupted:
    """Return the exception after an interrupt, with whether its checkpoint is on the disk."""
    return Interrupted(run.step, run.step in checkpoints.numbers())


def feed_of(program, task, run: Run, epoch: int, position: int):
    """Return the input of the loop from a position on: the task's arrays on the devices, or its stream."""
    if not is_streamed(task):
        return Resident(program.put_data(task.buckets), run.plan)
    first, local_devices = jax.process_index() * jax.local_device_count(), jax.local_device_count()
    share = (first, local_devices, jax.device_count())
    read = lambda: task.stream.read(share, epoch, position, run.train.total_epochs)
    return Streamed(read, program.put_streamed, task.stream.calls)


def final_params(run: Run, saved, checkpoints: Checkpoints, params_of=lambda state: state.params, member: int = 0):
    """Return the parameters a run ends with: the last ones, those of the best epoch, or a mean of the last epochs.

    `params_of` are the parameters of a state, and `member` is the place of the run's quality in a checkpoint.
    """
    train, read = run.train, lambda number: params_of(checkpoints.restore(number, saved)[0])
    if train.average_last and (numbers := checkpoints.last_epochs(train.average_last)):
        return average([read(number) for number in numbers])
    if train.use_best and not train.average_last and (number := checkpoints.best(member)) is not None:
        return read(number)
    return params_of(saved)


def warn_of_missing_checkpoints(run: Run, checkpoints: Checkpoints):
    """Print which checkpoints `final_params` lacks, if any."""
    train = run.train
    if (train.average_last or train.use_best) and (lost := checkpoints.missing_numbers()):
        print(f"warning: chosen without the checkpoints that could not be written, {lost}", file=sys.stderr)
    elif train.average_last:
        count = len(checkpoints.last_epochs(train.average_last))
        if count < min(train.average_last, len(run.history)):
            print(
                f"warning: --train.average-last {train.average_last} averages {count} epochs, whose checkpoints "
                "are there: earlier ones were not kept",
                file=sys.stderr,
            )


def count_steps(task, train) -> int:
    """Return the number of optimizer steps of a run, on which schedules depend."""
    if is_streamed(task):
        in_epoch = task.stream.epoch_steps
    else:
        in_epoch = sum(int((weight.sum(1) > 0).sum()) for _, _, weight in task.plan(0, train.steps_per_call))
    return min(train.max_steps or math.inf, train.total_epochs * in_epoch)


def check_batches(task, train):
    """Raise InputError unless batches of `train` (a `config.Train`) divide into micro-batches and over devices.

    Only an explicit batch size has to fit. Batches counted in tokens are padded with examples of weight zero, and so
    are those of replicated training without gradient accumulation.
    """
    devices = jax.device_count() if train.shard_parameters or train.accumulation_steps > 1 else 1
    divisor, size = devices * train.accumulation_steps, train.batch_size
    sizes = {chunk.indices.shape[1] for chunk in task.plan(0, train.steps_per_call)} if size % divisor else ()
    if size in sizes:
        raise InputError(
            f"--train.batch-size must be a multiple of {divisor}, which is {devices} device{'s' * (devices > 1)} times "
            f"--train.accumulation-steps {train.accumulation_steps}; got {size}: give {-(-size // divisor) * divisor}"
        )


def check_metric(task, option: str, name: str, full: bool = False):
    """Raise InputError unless `name`, the value of `option`, is a metric or several with commas between them.

    Valid names are the metrics of every epoch and, with `full`, of the final evaluation, except on test splits. Names
    of training means (train.loss, ...) are not checked, and no name is for a task without `metric_names`.
    """
    if not hasattr(task, "metric_names"):
        return
    measured = [*task.metric_names(False), *(task.metric_names(True) if full else ())]
    valid_names = [metric for metric in dict.fromkeys(measured) if not metric.startswith("test")]
    if any(metric not in valid_names for metric in name.split(",") if not metric.startswith("train.")):
        raise InputError(f"{option} must be one of {', '.join([*valid_names, 'train.loss'])}; got {name}")


def train_one(task, optim, train, directory: Path, *, begin=lambda params: params, quiet=False):
    """Train `task` in `directory` to its end; return (run, its parameters).

    `optim` and `train` are `config.Optim` and `config.Train`; `begin` is that of `step.init_state`.

    Raises:
      Interrupted: on a signal that ends a process (signals.py), after a checkpoint was written.
      Diverged: the loss or the parameters are not finite, with the step.
    """
    total_steps = count_steps(task, train)
    if total_steps <= optim.warmup_steps and not quiet:
        print(f"the learning rate warms up over {optim.warmup_steps} steps and training has {total_steps}")
    update = optimizer(optim, total_steps)
    options = {"shard": train.shard_parameters, "streamed": is_streamed(task), "parallel": train.parallel}
    program = Program(task.loss, update, train.accumulation_steps, train.matmul_precision, **options)
    start = to_host(init_state(with_ranges(task.init, train), update, train.seed, begin))
    attention = AttentionLog(task, train.seed) if train.log_attention else None
    if attention:
        attention.check(start.params)
    run = Run(train, task.plan, total_steps, directory, quiet=quiet, attention=attention)
    with contextlib.closing(Checkpoints(directory / "checkpoints", train, best_of=1)) as checkpoints:
        saved = fit(program, start, task, run, checkpoints)
        if run.failure:
            raise run.failure
        warn_of_missing_checkpoints(run, checkpoints)
        params = final_params(run, saved, checkpoints)
    if (why := run.why_stopped()) and not quiet and hosts.is_primary():
        print(why)
    return run, params
