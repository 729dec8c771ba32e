"""Many runs in ONE compiled program: runs that differ only in numbers and seeds train side by side.

Compiling is most of a short run's time, and numbers need not be compiled in: a learning rate, a dropout rate or a
seed is an argument. The task is built again inside the trace with such numbers in place of the configured ones, so
that no model and no task knows of populations. Members go one after another on a CPU (`lax.map`: a step fills its
cores anyway), side by side on an accelerator (`vmap`), and are divided over the devices (`pmap`). What trains them is
`train.loop.fit`.

On one CPU a member's parameters are those of the same run alone, bit for bit (tests/sweep/test_population.py); logged
training losses may differ in their last bit, because a sum is fused with what stands around it.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import InputError, Interrupted, config as configs, runs, tasks
from attention_jax.sweep.space import get
from attention_jax.train.checkpoint import Checkpoints, Earlier
from attention_jax.train.loop import Interrupt, check_batches, fit, planned_steps
from attention_jax.train.optimizer import optimizer
from attention_jax.train.parallel import replicate
from attention_jax.train.program import Program, streamed
from attention_jax.train.run import Run
from attention_jax.train.step import TrainState, init_state, of_rows, train_step


class Member(NamedTuple):
    """One run of a population."""

    config: configs.Config
    directory: Path


def classes(built: Sequence[tasks.Task], seeds: Sequence[int]) -> list[list[int]]:
    """Places of the tasks that can share a compiled call: one set of training arrays, and one order of their buckets.

    (Tasks that are generated draw their data by seed, and the chunks of several buckets are shuffled by seed.)
    """
    shared: list[list[int]] = []
    for place, task in enumerate(built):
        for group in shared:
            first = built[group[0]]
            pairs = zip(jax.tree.leaves(first.buckets), jax.tree.leaves(task.buckets), strict=True)
            same_order = len(task.buckets) == 1 or seeds[group[0]] == seeds[place]
            if same_order and all(a is b or np.array_equal(a, b) for a, b in pairs):
                group.append(place)
                break
        else:
            shared.append([place])
    return shared


def check_traceable(config: configs.Config, names: Sequence[str], task: tasks.Task):
    """Trace the loss with tracers for the numbers `names`; raises if a model looks at one (it must be compiled in)."""
    if streamed(task):
        raise InputError("data that are read while training are trained on by one run at a time")
    rng = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    rows = {name: jax.ShapeDtypeStruct((2, *array.shape[1:]), array.dtype) for name, array in task.buckets[0].items()}
    rows["weight"] = jax.ShapeDtypeStruct((2,), jnp.float32)
    numbers = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    loss = lambda numbers, params, batch, rng: tasks.build(configs.replace(config, **numbers)).loss(params, batch, rng)
    jax.eval_shape(loss, numbers, jax.eval_shape(task.init, rng), rows, rng)


def varied(members: Sequence[configs.Config]) -> dict[str, np.ndarray]:
    """The numbers in which the members differ: {dotted name: float32 [M]}."""
    fields = {name for a in members for name in configs.differences(members[0], a)} - {"train.seed"}
    assert fields <= {name for name, info, _ in configs.walk(members[0]) if info.traced}, fields
    return {name: np.array([get(config, name) for config in members], np.float32) for name in sorted(fields)}


def many_runs(members: Sequence[configs.Config], task: tasks.Task, total_steps: int) -> Program:
    """Runs that differ only in seeds and in options that are `traced`; a saved state has a leading axis of members."""
    count, devices, numbers = len(members), jax.local_device_count(), varied(members)
    run, rates = runner(members[0], total_steps), spread(numbers, devices)

    def call(state, bucket, indices, weight):
        state, metrics = run(state, rates, bucket, spread(indices, devices), spread(weight, devices))
        return state, collect(metrics, count)

    return Program(
        start=lambda: fresh(task, members, numbers, total_steps),
        place=lambda saved: spread(saved, devices),
        rows=replicate,
        streamed_rows=None,
        call=call,
        fetch=lambda state: collect(state, count),
        params=lambda saved, member: jax.tree.map(lambda x: x[member], saved.params),
    )


def runner(config: configs.Config, total_steps: int):
    """The compiled call `run(members, numbers, bucket, indices, weight) -> members, metrics`.

    Leaves of members are [D, m, ...], numbers [D, m], indices and weight [D, m, K, B], metrics [D, m, K]: D devices
    hold m members each. Each member makes K training steps on its own rows of the bucket.
    """

    def member(bucket, parts):
        state, numbers, indices, weight = parts
        mine = configs.replace(config, **numbers)  # numbers are tracers here
        loss, update = tasks.build(mine).loss, optimizer(mine.optim, total_steps)

        def body(state, rows):
            return train_step(of_rows(loss, bucket), update, state, rows, None, config.train.accumulate)

        with jax.default_matmul_precision(config.train.matmul_precision):
            return jax.lax.scan(body, state, (indices, weight))

    def population(members, numbers, bucket, indices, weight):
        one_after_another = lambda *parts: jax.lax.map(lambda one: member(bucket, one), parts)
        side_by_side = lambda *parts: jax.vmap(lambda one: member(bucket, one))(parts)
        parts = (members, numbers, indices, weight)
        return jax.lax.platform_dependent(*parts, cpu=one_after_another, default=side_by_side)

    if jax.local_device_count() > 1:
        return jax.pmap(population, in_axes=(0, 0, None, 0, 0), donate_argnums=0)
    single = lambda *parts: jax.tree.map(
        lambda x: x[None], population(*(_first(x) if i != 2 else x for i, x in enumerate(parts)))
    )
    return jax.jit(single, donate_argnums=0)


def _first(tree):
    return jax.tree.map(lambda x: x[0], tree)


def spread(tree, devices: int):
    """[M, ...] as [D, m, ...]; the places that are left over repeat the first member."""

    def one(x):
        x = np.asarray(x)
        places = np.arange(-(-len(x) // devices) * devices)
        return x[np.where(places < len(x), places, 0)].reshape(devices, -1, *x.shape[1:])

    return jax.tree.map(one, tree)


def collect(tree, count: int):
    """The inverse of `spread`: NumPy arrays [M, ...]."""
    return jax.tree.map(lambda x: np.array(x).reshape(-1, *x.shape[2:])[:count], jax.device_get(tree))


def fresh(task: tasks.Task, members: Sequence[configs.Config], numbers: dict, total_steps: int) -> TrainState:
    """The members' first states, stacked: each what the run alone would begin with."""

    init = task.init  # one object, so that it is compiled once

    def one(place):
        config = configs.replace(
            members[place], **{name: jnp.float32(values[place]) for name, values in numbers.items()}
        )
        return jax.device_get(init_state(init, optimizer(config.optim, total_steps), members[place].train.seed))

    return jax.tree.map(lambda *leaves: np.stack(leaves), *[one(place) for place in range(len(members))])


def train_many(
    members: Sequence[Member],
    built: Sequence[tasks.Task],
    directory: Path,
    *,
    until: int,
    earlier: Earlier | None = None,
):
    """Train all members to their end, or to epoch `until`; each becomes an ordinary run directory, without figures.

    Checkpoints are written to `directory`, and a population that finds one goes on from it; with `earlier` some members
    of another population go on. A member that diverges gets a failure.json.

    Raises:
      InputError: a batch cannot be divided as asked.
      Interrupted: on SIGINT or SIGTERM, after a checkpoint was written.
    """
    task, train, count = built[0], members[0].config.train, len(members)
    check_batches(task, train)
    total_steps = planned_steps(task, train)
    for member in members:
        runs.create(member.directory)
        runs.describe(member.config, member.directory)
    population = [
        Run(member.config.train, mine.plan, total_steps, member.directory, share=count, quiet=True)
        for member, mine in zip(members, built, strict=True)
    ]
    program = many_runs([member.config for member in members], task, total_steps)
    best_of = count if train.use_best else 0  # a best checkpoint holds all members: it is kept where it is asked for
    with contextlib.closing(Checkpoints(directory / "checkpoints", train, best_of, earlier)) as checkpoints:
        parameters = fit(program, task, population, checkpoints, until)
    with Interrupt() as interrupt:
        for member, run, params in zip(members, population, parameters):
            if run.failure:
                runs.fail(member.directory, run.failure)
            elif not run.open and not runs.ended(member.directory):
                runs.finish(member.config, task, run, params, figures=False, population=count)
            if interrupt.requested:
                raise Interrupted(run.step)
