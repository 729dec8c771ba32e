"""Data parallelism: the compiled inner loop over all local devices, and evaluation that counts every row exactly once.

One device uses `jit`; more use `pmap` over the axis "data", with the state and the dataset replicated and the batch
divided. On request the state is divided, too (`sharded`). `chunk_runner` and `placement` hide which of these it is.
"""

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from attention_jax.train import sharded
from attention_jax.train.checkpoint import host
from attention_jax.train.sharded import AXIS
from attention_jax.train.step import of_rows, train_step


def replicate(tree):
    """A copy of `tree` on every local device (a copy: the training step donates its state)."""
    if jax.local_device_count() == 1:
        return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), (AXIS,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(np.array(x), everywhere), tree)


def fill(rows: np.ndarray, axis: int) -> np.ndarray:
    """`rows` with zeros behind `axis`, so that all devices together divide it."""
    padding = [(0, 0)] * rows.ndim
    padding[axis] = (0, -rows.shape[axis] % jax.device_count())
    return np.pad(rows, padding)


def divide(rows: np.ndarray, axis: int) -> np.ndarray:
    """Split `axis` over the devices, [..., B, ...] -> [..., n, B/n, ...], zero padded; this process's share of it.

    >>> divide(np.array([[1, 2, 3]]), axis=1).shape == (1, jax.local_device_count(), -(-3 // jax.device_count()))
    True
    """
    devices, rows = jax.device_count(), fill(rows, axis)
    rows = rows.reshape(*rows.shape[:axis], devices, -1, *rows.shape[axis + 1 :])
    first = jax.process_index() * jax.local_device_count()
    return rows.take(range(first, first + jax.local_device_count()), axis=axis)


def count(devices=None) -> int:
    """How many `devices` these are; None is all there are, on all hosts."""
    return jax.device_count() if devices is None else len(devices)


def absent(tree, devices, axis: int | None = None):
    """The shapes in which a program for `devices` takes the arrays (or shapes) of `tree`, replicated.

    With `axis` that axis is divided over several devices as `divide` does: [..., B, ...] -> [..., n, B/n, ...].
    """
    several = len(devices) > 1
    place = None if several else jax.sharding.SingleDeviceSharding(devices[0])

    def one(x):
        shape = tuple(x.shape)
        if several and axis is not None:
            shape = (*shape[:axis], len(devices), -(-shape[axis] // len(devices)), *shape[axis + 1 :])
        return jax.ShapeDtypeStruct(shape, x.dtype, sharding=place)

    return jax.tree.map(one, tree)


def chunk_shapes(state, bucket, indices, weight, devices, shard: bool = False, streamed: bool = False) -> tuple:
    """The shapes in which `chunk_program` for `devices` takes its arguments, from those that `chunk_runner` takes; of
    data that are `streamed` the bucket is the rows of all devices."""
    if not shard or len(devices) == 1:
        rows = [absent(x, devices, 1) for x in (indices, weight)]
        return absent(state, devices), absent(bucket, devices, 0 if streamed else None), *rows
    across = sharded.mesh(devices)
    laid_out = lambda x, place: jax.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=place)
    specs = PartitionSpec(), PartitionSpec(AXIS), PartitionSpec(None, AXIS)
    everywhere, by_rows, divided = (NamedSharding(across, spec) for spec in specs)
    filled = lambda x: jax.ShapeDtypeStruct((len(x), -(-x.shape[1] // across.size) * across.size), x.dtype)
    return (
        jax.tree.map(laid_out, state, sharded.shardings(state, across)),
        jax.tree.map(lambda x: laid_out(x, by_rows if streamed else everywhere), bucket),
        *(laid_out(filled(x), divided) for x in (indices, weight)),
    )


def chunk_program(
    loss,
    optimizer,
    matmul_precision: str = "default",
    devices=None,
    *,
    accumulate: int = 1,
    shard: bool = False,
    streamed: bool = False,
):
    """The compiled inner loop itself; `chunk_runner` calls it.

    It is a `jax.jit` of one device, a `jax.pmap` of several, or with `shard` a `jax.jit` over arrays in pieces. It is
    for all devices there are, or for `devices` that are given instead of found: those of a topology whose chips are
    absent can be lowered and compiled for, `chunk_program(...).lower(*chunk_shapes(...))`, but not called. So what is
    said of them (memory, traffic) is said of the very program that trains.
    """
    axis = AXIS if count(devices) > 1 else None
    across = sharded.mesh(devices) if shard and axis else None

    def run(state, bucket, indices, weight):
        def body(state, rows):
            if across:
                return sharded.step(across, loss, optimizer, state, bucket, rows, accumulate, streamed)
            return train_step(of_rows(loss, bucket), optimizer, state, rows, axis, accumulate)

        with jax.default_matmul_precision(matmul_precision):
            return jax.lax.scan(body, state, (indices, weight))

    if across or not axis:
        return jax.jit(run, donate_argnums=0)
    in_axes = (None, 0 if streamed else None, 1, 1)
    return jax.pmap(run, AXIS, in_axes=in_axes, out_axes=None, donate_argnums=0, devices=devices)


def chunk_runner(loss, optimizer, matmul_precision: str = "default", *, shard: bool = False, **ways):
    """The compiled inner loop: `run(state, bucket, indices [K, B], weight [K, B]) -> state, metrics [K]`.

    K training steps are scanned in one call; step k gathers the rows `indices[k]` of `bucket` on the device. The
    state is donated. Each of the metrics is a pair (sums [K], counts [K]). `matmul_precision` is in force in these
    steps alone. `accumulate` is that of `step.gradient_sums`. With `shard` the state lies in pieces (`placement`). The
    bucket of data that are `streamed` is the rows of this call alone, those of each device on it (`Placement.call`),
    and the indices of each device count through them.
    """
    program = chunk_program(loss, optimizer, matmul_precision, shard=shard, **ways)
    if jax.device_count() == 1:
        return program
    place = NamedSharding(sharded.mesh(), PartitionSpec(None, AXIS))
    spread = lambda rows: sharded.put(fill(rows, 1), place) if shard else divide(rows, 1)
    return lambda state, bucket, indices, weight: program(state, bucket, spread(indices), spread(weight))


class Placement(NamedTuple):
    """How `chunk_runner` likes a state and rows to lie."""

    state: Callable[[Any], Any]  # NumPy arrays -> the state on the devices
    rows: Callable[[Any], Any]  # a task's buckets -> the same on the devices
    call: Callable[[Any], Any]  # the rows of a streamed call, [n, R, ...] of the n devices here -> each on its device
    fetch: Callable[[Any], Any]  # a state on the devices -> NumPy arrays


def placement(shard: bool) -> Placement:
    """Copies on every device, or a state in pieces."""
    if jax.device_count() == 1:
        return Placement(
            replicate, replicate, lambda rows: {name: jax.device_put(x[0]) for name, x in rows.items()}, host
        )
    if not shard:
        here = NamedSharding(sharded.mesh(jax.local_devices()), PartitionSpec(AXIS))
        return Placement(replicate, replicate, lambda rows: jax.device_put(rows, here), host)
    across = sharded.mesh()
    everywhere, divided = (NamedSharding(across, spec) for spec in (PartitionSpec(), PartitionSpec(AXIS)))
    place = lambda state: sharded.put(state, sharded.shardings(state, across))
    joined = lambda x: jax.make_array_from_process_local_data(divided, x.reshape(-1, *x.shape[2:]))
    call = lambda rows: {name: joined(x) for name, x in rows.items()}
    return Placement(place, lambda rows: sharded.put(rows, everywhere), call, sharded.gather)


PROGRAMS = weakref.WeakKeyDictionary()
"""{task or function: {(name, devices): compiled program}}"""


def row_program(fn, devices=None):
    """What `over_rows` calls, for the local devices, or as in `chunk_program` for a tuple of `devices`.

    The shapes of its arguments are those of the parameters, and of a batch divided at axis 0. It is made once for a
    function, or for a task of which `fn` is a method, and does not keep the task and its data alive.
    """
    several = (jax.local_device_count() if devices is None else len(devices)) > 1
    programs = PROGRAMS.setdefault(getattr(fn, "__self__", fn), {})
    if (fn.__name__, devices) not in programs:
        held = weakref.WeakMethod(fn) if hasattr(fn, "__self__") else weakref.ref(fn)
        called = lambda params, batch: held()(params, batch)
        called.__name__ = fn.__name__  # what the program is called
        program = jax.pmap(called, in_axes=(None, 0), devices=devices) if several else jax.jit(called)
        programs[fn.__name__, devices] = program
    return programs[fn.__name__, devices]


def over_rows(fn, params, arrays: dict[str, np.ndarray], batch_size: int):
    """`fn(params, batch)` over all rows of `arrays` in batches on the local devices: results by row, in order.

    `fn` maps a dict of arrays [B, ...] to a pytree of arrays [B, ...] and should be a stable function object: it is
    compiled once. The last batch is filled by repeating its last row, and what comes of the filling is dropped, so
    that every row is counted exactly once whatever the batch size and the number of devices.
    """
    devices, total = jax.local_device_count(), len(next(iter(arrays.values())))
    if total == 0:
        raise ValueError("over_rows needs at least one row, got none")
    size = -(-min(batch_size, total) // devices) * devices
    params = replicate(params)
    results = []
    for first in range(0, total, size):
        rows = np.minimum(np.arange(first, first + size), total - 1)
        batch = {name: array[rows] for name, array in arrays.items()}
        if devices > 1:
            batch = {name: array.reshape(devices, -1, *array.shape[1:]) for name, array in batch.items()}
        out = jax.device_get(row_program(fn)(params, batch))
        results.append(out if devices == 1 else jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:total], *results)
