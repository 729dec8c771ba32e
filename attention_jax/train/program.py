"""`Program`: what one compiled call advances. One loop trains a run on all devices, or many runs side by side."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from attention_jax.train.checkpoint import host
from attention_jax.train.optimizer import optimizer
from attention_jax.train.parallel import chunk_runner, placement
from attention_jax.train.step import init_state


class Program(NamedTuple):
    """The state of M runs and how K steps of each are made: `one_run` (M = 1) or `sweep.population.many_runs`.

    A state is on the devices, laid out as `call` likes it; a saved state is what a checkpoint holds: NumPy arrays that
    do not depend on the number of devices.
    """

    start: Callable[[], Any]  # () -> the saved state of runs that have not begun
    place: Callable[[Any], Any]  # saved state -> state
    rows: Callable[[Any], Any]  # a task's buckets -> the same on the devices
    streamed_rows: Callable[[Any], Any] | None  # the rows of one streamed call -> the same on the devices
    call: Callable[..., tuple]  # (state, bucket, indices [M, K, B], weight [M, K, B]) -> state, metrics of [M, K]
    fetch: Callable[[Any], Any]  # state -> saved state
    params: Callable[[Any, int], Any]  # (saved state, m) -> the parameters of run m


def streamed(task) -> bool:
    """Whether a task's data are read while it trains: it has a `stream` then."""
    return getattr(task, "stream", None) is not None


def one_run(task, optim, train, total_steps: int, begin=lambda params: params) -> Program:
    """A single run, its batches divided over all devices (`parallel.chunk_runner`); `begin` as in `init_state`."""
    update = optimizer(optim, total_steps)
    ways = {"accumulate": train.accumulate, "shard": train.shard_parameters, "streamed": streamed(task)}
    run, at = chunk_runner(task.loss, update, train.matmul_precision, **ways), placement(train.shard_parameters)

    def call(state, bucket, indices, weight):
        state, metrics = run(state, bucket, indices[0], weight[0])
        return state, jax.tree.map(lambda x: x[None], jax.device_get(metrics))

    return Program(
        start=lambda: host(init_state(task.init, update, train.seed, begin)),
        place=at.state,
        rows=at.rows,
        streamed_rows=at.call,
        call=call,
        fetch=at.fetch,
        params=lambda saved, member: saved.params,
    )
