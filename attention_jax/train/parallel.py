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


def chunk_runner(loss, optimizer, matmul_precision: str = "default"):
    """The compiled inner loop: `run(state, bucket, indices [K, B], weight [K, B]) -> state, metrics [K]`.

    K training steps are scanned in one call; step k gathers the rows `indices[k]` of `bucket` on the device. The
    state is donated. Each of the metrics is a pair (sums [K], counts [K]). `matmul_precision` is in force in these
    steps alone.
    """
    devices = jax.device_count()

    def run(state, bucket, indices, weight):
        def body(state, rows):
            batch = {name: array[rows[0]] for name, array in bucket.items()} | {"weight": rows[1]}
            return train_step(loss, optimizer, state, batch, AXIS if devices > 1 else None)

        with jax.default_matmul_precision(matmul_precision):
            return jax.lax.scan(body, state, (indices, weight))

    if devices == 1:
        return jax.jit(run, donate_argnums=0)
    mapped = jax.pmap(run, AXIS, in_axes=(None, None, 1, 1), out_axes=None, donate_argnums=0)
    return lambda state, bucket, indices, weight: mapped(state, bucket, divide(indices, 1), divide(weight, 1))


@functools.lru_cache(maxsize=64)
def _compiled(fn):
    return jax.jit(fn) if jax.local_device_count() == 1 else jax.pmap(fn, in_axes=(None, 0))


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
        out = jax.device_get(_compiled(fn)(params, batch))
        results.append(out if devices == 1 else jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out))
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:total], *results)
