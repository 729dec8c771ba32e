"""Data parallelism: the compiled inner loop over all local devices, and evaluation that counts every row exactly once.

One device uses `jit`; more use `pmap` over the axis "data", with the state and the dataset replicated and the batch
divided.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.train.step import train_step

AXIS = "data"


def replicate(tree):
    """A copy of `tree` on every local device (a copy: the training step donates its state)."""
    if jax.local_device_count() == 1:
        return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)
    mesh = jax.sharding.Mesh(np.array(jax.local_devices()), (AXIS,))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(np.array(x), everywhere), tree)


def divide(rows: np.ndarray, axis: int) -> np.ndarray:
    """Split `axis` over the devices, [..., B, ...] -> [..., n, B/n, ...], zero padded; this process's share of it.

    >>> divide(np.array([[1, 2, 3]]), axis=1).shape == (1, jax.local_device_count(), -(-3 // jax.device_count()))
    True
    """
    devices = jax.device_count()
    padding = [(0, 0)] * rows.ndim
    padding[axis] = (0, -rows.shape[axis] % devices)
    rows = np.pad(rows, padding)
    rows = rows.reshape(*rows.shape[:axis], devices, -1, *rows.shape[axis + 1 :])
    first = jax.process_index() * jax.local_device_count()
    return rows.take(range(first, first + jax.local_device_count()), axis=axis)


def count(devices=None) -> int:
    """How many `devices` these are; None is all there are, on all hosts."""
    return jax.device_count() if devices is None else len(devices)


def absent(tree, devices, axis: int | None = None):
    """The shapes in which a program for `devices` takes the arrays (or shapes) of `tree`.

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


def chunk_program(loss, optimizer, matmul_precision: str = "default", devices=None):
    """The compiled inner loop itself, a `jax.jit` of one device or a `jax.pmap` of several; `chunk_runner` calls it.

    It is for all devices there are, or for `devices` that are given instead of found: those of a topology whose chips
    are absent can be lowered and compiled for, `chunk_program(..., devices).lower(*shapes)`, but not called. So what is
    said of them (memory, traffic) is said of the very program that trains. `shapes` are those of its arguments, each by
    `absent`: the state, the bucket, and indices and weight divided at axis 1.
    """
    several = count(devices) > 1

    def run(state, bucket, indices, weight):
        def body(state, rows):
            batch = {name: array[rows[0]] for name, array in bucket.items()} | {"weight": rows[1]}
            return train_step(loss, optimizer, state, batch, AXIS if several else None)

        with jax.default_matmul_precision(matmul_precision):
            return jax.lax.scan(body, state, (indices, weight))

    if not several:
        return jax.jit(run, donate_argnums=0)
    return jax.pmap(run, AXIS, in_axes=(None, None, 1, 1), out_axes=None, donate_argnums=0, devices=devices)


def chunk_runner(loss, optimizer, matmul_precision: str = "default"):
    """The compiled inner loop: `run(state, bucket, indices [K, B], weight [K, B]) -> state, metrics [K]`.

    K training steps are scanned in one call; step k gathers the rows `indices[k]` of `bucket` on the device. The
    state is donated. Each of the metrics is a pair (sums [K], counts [K]). `matmul_precision` is in force in these
    steps alone.
    """
    program = chunk_program(loss, optimizer, matmul_precision)
    if jax.device_count() == 1:
        return program
    return lambda state, bucket, indices, weight: program(state, bucket, divide(indices, 1), divide(weight, 1))


@functools.lru_cache(maxsize=64)
def row_program(fn, devices=None):
    """What `over_rows` calls, for the local devices, or as in `chunk_program` for a tuple of `devices`.

    The shapes of its arguments are those of the parameters, and of a batch divided at axis 0.
    """
    several = (jax.local_device_count() if devices is None else len(devices)) > 1
    return jax.pmap(fn, in_axes=(None, 0), devices=devices) if several else jax.jit(fn)


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
