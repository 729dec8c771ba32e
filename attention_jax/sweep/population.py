"""Many runs in ONE compiled program: runs that differ only in numbers and seeds train side by side.

Compiling is most of a short run's time, and numbers need not be compiled in: a learning rate, a dropout rate or a seed is an
argument. The task is built again inside the trace with such numbers in place of the configured ones, so that no model
and no task knows of populations. Members go one after another on a CPU (`lax.map`: a step fills its cores anyway), side by side
on an accelerator (`vmap`), and are divided over the devices (`pmap`).

On one CPU a member's parameters are those of the same run alone, bit for bit (tests/sweep/test_population.py); logged training
losses may differ in their last bit, because a sum is fused with what stands around it.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import Diverged, Interrupted, config as configs, runs, tasks
from attention_jax.sweep.grouping import NUMBERS
from attention_jax.sweep.space import get
from attention_jax.train.checkpoint import Checkpoints, save_params
from attention_jax.train.log import MetricsLog, environment, scalars, write_json
from attention_jax.train.loop import Interrupt, planned_steps
from attention_jax.train.optimizer import optimizer
from attention_jax.train.parallel import replicate
from attention_jax.train.step import TrainState, init_state, train_step


class Member(NamedTuple):
    """One run of a population."""

    config: configs.Config
    directory: Path


class Earlier(NamedTuple):
    """Members of a population that was trained up to a comparison."""

    directory: Path
    count: int
    """How many members it had."""
    places: list[int]
    """Which of them go on."""


class Population(NamedTuple):
    """What a checkpoint of a population holds."""

    members: TrainState  # every leaf with a leading axis [M]
    step: np.ndarray  # compiled calls done, int32 []: the checkpoint's number


def classes(built: Sequence[tasks.Task], seeds: Sequence[int]) -> list[list[int]]:
    """Places of the tasks that can share a compiled call: one set of training arrays, and one order of their buckets.

    (Tasks that are generated draw their data by seed, and the chunks of several buckets are shuffled by seed.)
    """
    found: list[list[int]] = []
    for place, task in enumerate(built):
        for group in found:
            first = built[group[0]]
            pairs = zip(jax.tree.leaves(first.buckets), jax.tree.leaves(task.buckets), strict=True)
            if (len(task.buckets) == 1 or seeds[group[0]] == seeds[place]) and all(
                a is b or np.array_equal(a, b) for a, b in pairs
            ):
                group.append(place)
                break
        else:
            found.append([place])
    return found


def check_traceable(config: configs.Config, names: Sequence[str], task: tasks.Task):
    """Trace the loss with tracers for the numbers `names`; raises if a model looks at one of them (it must be compiled in)."""
    rng = jax.eval_shape(lambda: jax.random.PRNGKey(0))
    rows = {name: jax.ShapeDtypeStruct((2, *array.shape[1:]), array.dtype) for name, array in task.buckets[0].items()}
    rows["weight"] = jax.ShapeDtypeStruct((2,), jnp.float32)
    numbers = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    loss = lambda numbers, params, batch, rng: tasks.build(configs.replace(config, **numbers)).loss(params, batch, rng)
    jax.eval_shape(loss, numbers, jax.eval_shape(task.init, rng), rows, rng)


def varied(members: Sequence[configs.Config]) -> dict[str, np.ndarray]:
    """The numbers in which the members differ: {dotted name: float32 [M]}."""
    fields = {name for a in members for name in configs.differences(members[0], a)} - {"train.seed"}
    assert fields <= set(NUMBERS), fields
    return {name: np.array([get(config, name) for config in members], np.float32) for name in sorted(fields)}


def runner(config: configs.Config, total_steps: int):
    """The compiled call: `run(members [D, m, ...], numbers [D, m], bucket, indices [D, m, K, B], weight) -> members, metrics [D, m, K]`.

    D devices hold m members each. Each member makes K training steps on its own rows of the bucket.
    """

    def member(bucket, given):
        state, numbers, indices, weight = given
        mine = configs.replace(config, **numbers)  # numbers are tracers here
        loss, update = tasks.build(mine).loss, optimizer(mine.optim, total_steps)

        def body(state, rows):
            batch = {name: array[rows[0]] for name, array in bucket.items()} | {"weight": rows[1]}
            return train_step(loss, update, state, batch)

        with jax.default_matmul_precision(config.train.matmul_precision):
            return jax.lax.scan(body, state, (indices, weight))

    def population(members, numbers, bucket, indices, weight):
        given = (members, numbers, indices, weight)
        each = lambda one: member(bucket, one)
        return jax.lax.map(each, given) if jax.default_backend() == "cpu" else jax.vmap(each)(given)

    if jax.local_device_count() > 1:
        return jax.pmap(population, in_axes=(0, 0, None, 0, 0), donate_argnums=0)
    single = lambda *given: jax.tree.map(
        lambda x: x[None], population(*(_first(x) if i != 2 else x for i, x in enumerate(given)))
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

    def one(place):
        config = configs.replace(
            members[place], **{name: jnp.float32(values[place]) for name, values in numbers.items()}
        )
        return jax.device_get(init_state(task.init, optimizer(config.optim, total_steps), members[place].train.seed))

    return jax.tree.map(lambda *leaves: np.stack(leaves), *[one(place) for place in range(len(members))])


def fit(
    members: Sequence[Member],
    built: Sequence[tasks.Task],
    directory: Path,
    *,
    until: int = 0,
    earlier: Earlier | None = None,
):
    """Train all members to their end, or to epoch `until` only; each becomes an ordinary run directory, without figures.

    Checkpoints are written to `directory` after each epoch, and a population that finds one goes on from it. With
    `earlier` some members of another population go on. A member that diverges gets a failure.json.

    Raises:
      Interrupted: on SIGINT or SIGTERM, after a checkpoint was written.
    """
    all_configs = [member.config for member in members]
    config, task, count = all_configs[0], built[0], len(members)
    train, devices = config.train, jax.local_device_count()
    numbers, total_steps = varied(all_configs), planned_steps(task, train)
    checkpoints = Checkpoints(directory / "checkpoints")
    population = Population(fresh(task, all_configs, numbers, total_steps), np.zeros((), np.int32))
    kept = {"histories": [[] for _ in members], "failures": [""] * count, "epoch": 0, "chunk": 0, "seconds": 0.0}
    if checkpoints.steps():
        population, kept = checkpoints.restore(checkpoints.steps()[-1], population)
    elif earlier:
        population, kept = _select(earlier, population, kept)
    step, epoch, chunk = population.members.step.copy(), kept["epoch"], kept["chunk"]
    histories, failures, calls = kept["histories"], kept["failures"], int(population.step)
    versions = environment()
    for member in members:
        runs.create(member.directory)
        write_json(member.directory / "config.json", configs.to_json(member.config))
        write_json(member.directory / "environment.json", versions)
    logs = [MetricsLog(member.directory, keep_until=int(at)) for member, at in zip(members, step)]
    run, buckets = runner(config, total_steps), replicate(task.buckets)
    state, numbers = spread(population.members, devices), spread(numbers, devices)
    started = time.perf_counter()

    def seconds() -> float:
        """Of each member: its share of the population's."""
        return kept["seconds"] + (time.perf_counter() - started) / count

    def save():
        progress = {"histories": histories, "failures": failures, "epoch": epoch, "chunk": chunk, "seconds": seconds()}
        checkpoints.save(Population(collect(state, count), np.int32(calls)), progress)

    with Interrupt() as interrupt:
        try:
            while epoch < (until or train.total_epochs) and (step < total_steps).any():
                plans, sums = [task.plan(epoch, train.steps_per_call) for task in built], [[] for _ in members]
                for chunk in range(chunk, len(plans[0])):
                    assert len({plan[chunk][0] for plan in plans}) == 1, "members need buckets in the same order"
                    indices = np.stack([plan[chunk][1] for plan in plans])
                    weight = np.stack([plan[chunk][2] for plan in plans])  # [M, K, B]
                    within = step[:, None] + np.cumsum(weight.sum(2) > 0, axis=1) <= total_steps
                    live = np.array([not reason for reason in failures])
                    weight = weight * (within & live[:, None])[:, :, None].astype(weight.dtype)
                    state, metrics = run(
                        state, numbers, buckets[plans[0][chunk][0]], spread(indices, devices), spread(weight, devices)
                    )
                    metrics, calls = collect(metrics, count), calls + 1
                    for place in np.flatnonzero(live):
                        mine = jax.tree.map(lambda x: x[place], metrics)
                        failures[place] = _divergence(mine["loss"], int(step[place]))
                        step[place] += int((weight[place].sum(1) > 0).sum())
                        if not failures[place]:
                            sums[place].append(mine)
                            logs[place].write(int(step[place]), epoch=epoch, **scalars(mine))
                    if interrupt.wanted and chunk + 1 < len(plans[0]):
                        chunk += 1
                        save()
                        raise Interrupted(int(step.max()))
                epoch, chunk = epoch + 1, 0
                final = collect(state.params, count)
                for place, seen in enumerate(sums):
                    if not failures[place] and seen:
                        total = {
                            name: tuple(np.concatenate([m[name][i] for m in seen]) for i in (0, 1)) for name in seen[0]
                        }
                        values = {**scalars(total), **task.evaluate(_member(final, place), False)}
                        histories[place].append(
                            {"epoch": epoch, "step": int(step[place]), "seconds": round(seconds(), 2), **values}
                        )
                        logs[place].write(
                            int(step[place]), **{k: v for k, v in histories[place][-1].items() if k != "step"}
                        )
                save()
                if interrupt.wanted:
                    raise Interrupted(int(step.max()))
            for place, member in enumerate(members):
                if failures[place]:
                    write_json(member.directory / "failure.json", {"reason": failures[place]})
            if not until or until >= train.total_epochs or not (step < total_steps).any():
                params = collect(state.params, count)
                shared = {"population": count, "facts": task.describe()}
                for place, member in enumerate(members):
                    if not failures[place] and not (member.directory / "result.json").exists():
                        common = {
                            "history": histories[place],
                            "steps": int(step[place]),
                            "seconds": seconds(),
                            **shared,
                        }
                        _finish(member, task, _member(params, place), common)
        finally:
            for log in logs:
                log.close()
            checkpoints.close()


def _select(earlier: Earlier, fresh: Population, kept: dict) -> tuple[Population, dict]:
    """State and progress of the members that go on; the fresh ones if a kill came before the first checkpoint."""
    checkpoints = Checkpoints(earlier.directory / "checkpoints")
    wide = fresh._replace(
        members=jax.tree.map(lambda x: np.zeros((earlier.count, *x.shape[1:]), x.dtype), fresh.members)
    )
    steps = checkpoints.steps()
    population, progress = checkpoints.restore(steps[-1], wide) if steps else (None, None)
    checkpoints.close()
    if population is None:
        return fresh, kept
    progress |= {key: [progress[key][place] for place in earlier.places] for key in ("histories", "failures")}
    return population._replace(
        members=jax.tree.map(lambda x: x[np.array(earlier.places)], population.members)
    ), progress


def _member(tree, place: int):
    return jax.tree.map(lambda x: x[place], tree)


def _divergence(loss, step: int) -> str:
    """The reason for which a member has failed in a call that began at `step`, or nothing."""
    total, count = loss
    bad = ~np.isfinite(total) & (count > 0)
    return (
        str(Diverged(step + int(np.cumsum(count > 0)[bad.argmax()]), float(total[bad.argmax()]))) if bad.any() else ""
    )


def _finish(member: Member, task: tasks.Task, params, common: dict):
    """What `runs.start` leaves of a run that has ended; `launch.py plot` draws its figures."""
    result = {
        "experiment": member.config.name,
        "seed": member.config.train.seed,
        "metrics": task.evaluate(params, True),
        **common,
    }
    result["parameters"] = sum(x.size for x in jax.tree.leaves(params))
    save_params(member.directory / "final", params)
    write_json(member.directory / "result.json", result)
