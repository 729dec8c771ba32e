"""Runs that differ only in traced numbers and seeds, trained as one population by one compiled program.

Compilation takes most of a short run's time, and learning rates, dropout rates and seeds can be arguments of the
program. The task is built again inside the trace with tracers in place of the configured numbers, so that models and
tasks need no support for populations. Members run one after another on a CPU (`lax.map`: a step uses all cores anyway),
in parallel on an accelerator (`vmap`), and are divided over the devices (`pmap`). `populations` divides runs;
`train_batch` trains one by `train.loop.fit`, with `Population` as its program and `Members` as its run, whose arrays
have a leading axis of members.

On one CPU a member's parameters equal those of the same run alone, bit for bit (tests/sweep/test_batch.py); logged
training losses may differ in their last bit, because a sum is fused with its surroundings.
"""

import contextlib
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs, tasks
from attention_jax.errors import Diverged, InputError, Interrupted
from attention_jax.files import write_json
from attention_jax.runs import directory as run_directory, lifecycle
from attention_jax.signals import Interrupt
from attention_jax.sweep.partition import Member
from attention_jax.sweep.space import field_value
from attention_jax.train.checkpoint import Checkpoints
from attention_jax.train.feed import is_streamed
from attention_jax.train.initial import with_ranges
from attention_jax.train.loop import (
    check_batches,
    count_steps,
    final_params,
    fit,
    warn_of_missing_checkpoints,
)
from attention_jax.train.optimizer import optimizer
from attention_jax.train.placement import replicate
from attention_jax.train.run import Run
from attention_jax.train.step import TrainState, gradient_sums, init_state, train_chunk


def populations(members: Sequence[Member]) -> list[list[Member]]:
    """Divide members of one shape (partition.py) into those that train in one compiled program, always in the same way;
    each alone, with a line that says why, where their model or optimizer cannot be traced."""
    if len(members) == 1:
        return [[*members]]
    configurations = [member.config for member in members]
    try:
        built = [tasks.build(config) for config in configurations]
        check_traceable(configurations[0], list(varying_numbers(configurations)), built[0])
        indices = classes(built, [config.train.seed for config in configurations])
    except Exception as error:  # slower, with the same results; each run reports its error
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(f"a group trains its {len(members)} runs one by one: {reason}", file=sys.stderr)
        return [[member] for member in members]
    return [[members[index] for index in group] for group in indices]


def classes(built: Sequence[tasks.Task], seeds: Sequence[int]) -> list[list[int]]:
    """Return groups of indices of the tasks that can share a compiled call: the same training arrays, and the same
    order of their buckets.

    (Generated data depend on the seed, and so does the order of the chunks of several buckets.)
    """
    shared: list[list[int]] = []
    for index, task in enumerate(built):
        for group in shared:
            first = built[group[0]]
            pairs = zip(jax.tree.leaves(first.buckets), jax.tree.leaves(task.buckets), strict=True)
            same_order = len(task.buckets) == 1 or seeds[group[0]] == seeds[index]
            if same_order and all(a is b or np.array_equal(a, b) for a, b in pairs):
                group.append(index)
                break
        else:
            shared.append([index])
    return shared


def check_traceable(config: configs.Config, names: Sequence[str], task: tasks.Task):
    """Trace a training step with tracers for the numbers `names`; raises if a custom model or optimizer uses the value
    of one in Python, so that it must be compiled in."""
    if is_streamed(task):
        raise InputError("streamed data are supported for one run at a time")
    state = jax.eval_shape(lambda: init_state(task.init, optimizer(config.optim, 1), config.train.seed))
    numbers = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    batches = [jax.ShapeDtypeStruct((1, 2), dtype) for dtype in (jnp.int32, jnp.float32)]
    jax.eval_shape(partial(train_member, config, 1), task.buckets[0], (state, numbers, *batches))


def varying_numbers(members: Sequence[configs.Config]) -> dict[str, np.ndarray]:
    """The numbers in which the members differ: {dotted name: float32 [M]}."""
    fields = {name for a in members for name in configs.differences(members[0], a)} - {"train.seed"}
    assert fields <= {name for name, info, _ in configs.walk(members[0]) if info.traced}, fields
    return {name: np.array([field_value(config, name) for config in members], np.float32) for name in sorted(fields)}


def evaluation_tasks(members: Sequence[configs.Config], built: Sequence[tasks.Task]) -> list[tasks.Task]:
    """The task that initializes and evaluates each member: one for all that differ only in options that training alone
    reads, so that its programs are compiled once."""
    info = {name: info for name, info, _ in configs.walk(members[0])}
    names = [name for name in varying_numbers(members) if name.startswith("model.") and not info[name].training_only]
    first: dict[tuple, tasks.Task] = {}
    return [
        first.setdefault(tuple(field_value(config, name) for name in names), task)
        for config, task in zip(members, built, strict=True)
    ]


class Population:
    """The training program of runs that differ only in seeds and in `traced` options; for `fit` what
    `train.placement.Program` is for one run.

    A fetched state has a leading axis of members. On D devices with m members each, leaves of the state on them are
    [D, m, ...], numbers [D, m], indices and weight [D, m, K, B], metrics [D, m, K].
    """

    def __init__(self, members: Sequence[configs.Config], total_steps: int):
        self.count, self.devices = len(members), jax.local_device_count()
        self.numbers = shard_members(varying_numbers(members), self.devices)
        self.compiled = compile_members(members[0], total_steps)

    def train_steps(self, state, bucket: dict, indices: np.ndarray, weight: np.ndarray):
        """Make K steps of each member with batches [M, K, B]; return the state and {name: (sums, counts)} of [M, K]."""
        batches = shard_members((indices, weight), self.devices)
        state, metrics = self.compiled(state, self.numbers, bucket, *batches)
        return state, self.fetch(metrics)

    def put_state(self, saved):
        """Divide a fetched state over the devices, which the compiled call does."""
        return shard_members(saved, self.devices)

    def put_data(self, buckets):
        """Copy a task's buckets to each device."""
        return replicate(buckets)

    def fetch(self, tree):
        """The inverse of `shard_members`: NumPy arrays [M, ...]."""
        return jax.tree.map(lambda x: np.array(x).reshape(-1, *x.shape[2:])[: self.count], jax.device_get(tree))


class Members:
    """The runs of a population; for `fit` what `train.run.Run` is for one run. Batches are [M, K, B]."""

    def __init__(self, runs: Sequence[Run], own_tasks: Sequence[tasks.Task]):
        self.runs, self.tasks, self.train = runs, own_tasks, runs[0].train

    @property
    def step(self) -> int:
        """The optimizer steps of all runs."""
        return sum(run.step for run in self.runs)

    @property
    def active(self) -> bool:
        """Whether a run is still training. One that has ended stays unchanged meanwhile."""
        return any(run.active for run in self.runs)

    @property
    def failure(self) -> bool:
        """Whether all runs have diverged."""
        return all(run.failure for run in self.runs)

    @property
    def steps_in_chunk(self) -> int:
        """The steps of a chunk inside which the last step of a run was."""
        return max(run.steps_in_chunk for run in self.runs)

    @property
    def history(self) -> list[dict]:
        """The history of the longest run."""
        return max((run.history for run in self.runs), key=len)

    def plan(self, epoch: int) -> list[tuple]:
        """Return the chunks of an epoch, each (bucket, indices [M, K, B], weight [M, K, B])."""
        chunks = []
        for of_members in zip(*(run.plan(epoch) for run in self.runs), strict=True):
            buckets, indices, weight = zip(*of_members)
            assert len(set(buckets)) == 1, "the runs of a population need buckets in the same order"
            chunks.append((buckets[0], np.stack(indices), np.stack(weight)))
        return chunks

    def begin(self, progress: dict | None):
        """Resume from `progress`, or start if it is None."""
        for run, past in zip(self.runs, progress["members"] if progress else [None] * len(self.runs), strict=True):
            run.begin(past)

    def progress(self) -> dict:
        """Return the state that `begin` resumes from, as JSON values."""
        return {"history": self.history, "members": [run.progress() for run in self.runs]}

    def mask_finished_steps(self, weight: np.ndarray) -> np.ndarray:
        """Set the weights [M, K, B] of steps to 0 that are done or beyond the last one of a run."""
        return np.stack([run.mask_finished_steps(rows) for run, rows in zip(self.runs, weight, strict=True)])

    def record(self, epoch: int, weight: np.ndarray, metrics: dict, waited: float):
        """Record the metrics {name: (sums [M, K], counts [M, K])} of a call with `weight` [M, K, B]."""
        for member, run in enumerate(self.runs):
            run.record(epoch, weight[member], {n: (s[member], c[member]) for n, (s, c) in metrics.items()}, waited)

    def log_attention(self, params):
        """A run that logs its attention is in no population (partition.py)."""

    def check_parameters(self, params):
        """Mark the runs whose parameters are not finite as diverged."""
        for member, run in enumerate(self.runs):
            run.check_parameters(take_member(params, member))

    def evaluate(self, task, params, epoch: int, whole: bool):
        """Evaluate the runs that have trained in `epoch`, and log the metrics."""
        for member, run in enumerate(self.runs):
            run.evaluate(self.tasks[member], take_member(params, member), epoch, whole)

    def qualities_after(self, epoch: int) -> list[float]:
        """Return the quality of each run after `epoch`."""
        return [quality for run in self.runs for quality in run.qualities_after(epoch)]

    def close(self, error: BaseException | None):
        """Stop the clocks and close the logs; `error` is what ended the training before its end, if anything did."""
        for run in self.runs:
            run.close(error)


def take_member(tree, member: int):
    """Return the arrays of one member of a tree of arrays [M, ...]."""
    return jax.tree.map(lambda x: x[member], tree)


def compile_members(config: configs.Config, total_steps: int):
    """Compile (states, numbers, bucket, indices, weight) -> (states, metrics) for all local devices."""
    train = partial(train_members, config, total_steps)
    if jax.local_device_count() > 1:
        return jax.pmap(train, in_axes=(0, 0, None, 0, 0), donate_argnums=0)
    return jax.jit(partial(on_one_device, train), donate_argnums=0)


def train_members(config: configs.Config, total_steps: int, states, numbers: dict, bucket: dict, indices, weight):
    """K steps of m members on one device: each leaf of the arguments but `bucket` has a leading axis of m."""
    train_one = partial(train_member, config, total_steps, bucket)
    operands = (states, numbers, indices, weight)
    one_after_another = lambda *operands: jax.lax.map(train_one, operands)
    side_by_side = lambda *operands: jax.vmap(train_one)(operands)
    return jax.lax.platform_dependent(*operands, cpu=one_after_another, default=side_by_side)


def train_member(config: configs.Config, total_steps: int, bucket: dict, operands: tuple):
    """Make K steps of one member, with the tracers `numbers` in place of the numbers of `config`."""
    state, numbers, indices, weight = operands
    config = configs.replace(config, **numbers)
    gradients = partial(gradient_sums, tasks.build(config).loss, config.train.accumulation_steps)
    update = optimizer(config.optim, total_steps)
    return train_chunk(gradients, update, config.train.matmul_precision, state, bucket, indices, weight)


def on_one_device(train, states, numbers: dict, bucket: dict, *batches):
    """Call `train` with the axis of D = 1 devices taken away from its arguments, and add it to its results."""
    states, numbers, batches = jax.tree.map(lambda x: x[0], (states, numbers, batches))
    return jax.tree.map(lambda x: x[None], train(states, numbers, bucket, *batches))


def shard_members(tree, devices: int):
    """Reshape [M, ...] to [D, m, ...], padded with copies of the first member."""

    def reshape_leaf(x):
        x = np.asarray(x)
        indices = np.arange(-(-len(x) // devices) * devices)  # [D m]: equal parts, of which `fetch` drops the copies
        return x[np.where(indices < len(x), indices, 0)].reshape(devices, -1, *x.shape[1:])

    return jax.tree.map(reshape_leaf, tree)


def initial_states(own_tasks: Sequence[tasks.Task], members: Sequence[configs.Config], total_steps: int) -> TrainState:
    """Return the stacked initial states of the members, each equal to that of the run alone."""
    inits = {task: with_ranges(task.init, members[0].train) for task in own_tasks}  # each is compiled once
    numbers, states = varying_numbers(members), []
    for index, (config, task) in enumerate(zip(members, own_tasks, strict=True)):
        config = configs.replace(config, **{name: jnp.float32(values[index]) for name, values in numbers.items()})
        states.append(jax.device_get(init_state(inits[task], optimizer(config.optim, total_steps), config.train.seed)))
    return jax.tree.map(lambda *leaves: np.stack(leaves), *states)


def train_batch(members: Sequence[Member], built: Sequence[tasks.Task], directory: Path):
    """Train members with the tasks `built` to their ends; each becomes an ordinary run directory, without figures.

    Checkpoints of the population are written to `directory`, from which it resumes. A member that diverges gets a
    failure.json.

    Raises:
      InputError: a batch cannot be divided over devices and micro-batches.
      Interrupted: on a signal that ends a process (signals.py), after a checkpoint was written.
    """
    configurations, train, count = [member.config for member in members], members[0].config.train, len(members)
    check_batches(built[0], train)
    total_steps = count_steps(built[0], train)
    for member, task in zip(members, built, strict=True):
        run_directory.create_directory(member.directory)
        run_directory.check_data(member.directory, task)
        lifecycle.describe(member.config, member.directory)
        write_json(member.directory / "facts.json", run_directory.facts_of(task))
    runs = [
        Run(member.config.train, task.plan, total_steps, member.directory, share=count, quiet=True)
        for member, task in zip(members, built, strict=True)
    ]
    own_tasks = evaluation_tasks(configurations, built)
    together, best_of = (
        Members(runs, own_tasks),
        count if train.use_best else 0,
    )  # one best checkpoint holds all members
    with contextlib.closing(Checkpoints(directory / "checkpoints", train, best_of)) as checkpoints:
        start = initial_states(own_tasks, configurations, total_steps)
        saved = fit(Population(configurations, total_steps), start, built[0], together, checkpoints)
        warn_of_missing_checkpoints(together, checkpoints)
        params = [
            None if run.failure else final_params(run, saved, checkpoints, lambda s, m=m: take_member(s.params, m), m)
            for m, run in enumerate(runs)
        ]
    finish_members(members, own_tasks, runs, params)


def finish_members(members: Sequence[Member], own_tasks: Sequence[tasks.Task], runs: Sequence[Run], params: Sequence):
    """Evaluate each member that has not diverged, and write its result; a signal ends this after the member at hand."""
    with Interrupt() as interrupt, contextlib.ExitStack() as stack:
        stack.push(lambda kind, error, trace: close_unfinished(runs, error))
        for member, task, run, final in zip(members, own_tasks, runs, params, strict=True):
            if not (run.failure or run_directory.has_ended(member.directory)):
                with contextlib.suppress(Diverged):  # `run.failure` has it
                    lifecycle.finish(member.config, task, run, final, figures=False, population=len(members))
            if run.failure:
                run_directory.record_failure(member.directory, run.failure)
            if interrupt.requested:
                raise Interrupted(run.step)


def close_unfinished(runs: Sequence[Run], error: BaseException | None):
    """Tell the loggers of runs without a result how they ended; `error` is what ended the final evaluations, if
    anything did. At the end of training, before the evaluations, they were closed as if these would succeed."""
    for run in runs:
        if not run_directory.read_result(run.directory):
            run.log.sinks.close(run.exit_status(error))
