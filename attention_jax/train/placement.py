"""Device placement: the compiled training and evaluation programs, and how their arrays are laid out on the devices.

One device uses `jax.jit`. Several use `jax.pmap`: each has a copy of the state and its part of every batch, and sums
are added by `psum` (data parallelism); `--train.parallel jit` is the same by `jax.jit` over a mesh. A sharded state
(FSDP, ZeRO stage 3) uses `jax.jit` over arrays that are divided over the devices. No other module places arrays.
"""

import sys
import time
import weakref
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_jax import printing
from attention_jax.errors import InputError
from attention_jax.train.checkpoint import to_host
from attention_jax.train.step import gradient_sums, train_chunk

AXIS = "data"
"""The name of the axis of devices."""
SHARDED_FROM = 4 * 2**20
"""The smallest array of a state that is sharded, in bytes of float32: a 1,024 x 1,024 matrix. A moment in half
precision is sharded like its parameter."""


class Program:
    """The training of one run: K steps as one compiled call, and the layout of its arguments on the devices.

    `loss(params, batch, rng)` returns (sum, count, {name: (sum, count)}). With `shard`, large parameters and their
    moments are divided over the devices. With `streamed`, a bucket holds the examples of one call, and each device has
    its own.

    `parallel` says how a replicated state is trained on several devices, by "pmap" or by "jit" over a mesh, with the
    same bits. `mesh` is your own mesh, with an axis "data", over which batches are divided; along its other axes
    everything is replicated.
    """

    def __init__(
        self,
        loss,
        optimizer,
        accumulation_steps=1,
        matmul_precision="default",
        *,
        shard=False,
        streamed=False,
        parallel="pmap",
        mesh=None,
    ):
        self.shard = shard
        self.several = mesh is not None or jax.device_count() > 1
        on_mesh = self.several and (shard or parallel == "jit" or mesh is not None)
        self.mesh = (mesh_of() if mesh is None else prepare_mesh(mesh)) if on_mesh else None
        chunk = lambda gradients: partial(train_chunk, gradients, optimizer, matmul_precision)
        if not self.several:
            self.compiled = jax.jit(chunk(partial(gradient_sums, loss, accumulation_steps)), donate_argnums=0)
        elif not shard:
            gradients = partial(data_parallel_gradients, loss, accumulation_steps)
            if self.mesh:
                self.compiled = jax.jit(on_every_device(chunk(gradients), self.mesh, streamed), donate_argnums=0)
                return
            in_axes = (None, 0 if streamed else None, 1, 1)  # of state, bucket, indices and weight
            self.compiled = jax.pmap(chunk(gradients), AXIS, in_axes=in_axes, out_axes=None, donate_argnums=0)
        else:
            gradients = partial(fsdp_gradients, loss, accumulation_steps, self.mesh, streamed)
            self.compiled = jax.jit(partial(fsdp_chunk, chunk(gradients), self.mesh), donate_argnums=0)

    def train_steps(self, state, bucket: dict, indices: np.ndarray, weight: np.ndarray):
        """Make K steps with batches [K, B] of `bucket`: the new state (the old one is donated) and the metrics, each
        a pair (sums [K], counts [K]) of NumPy arrays."""
        state, metrics = self.compiled(state, bucket, self.put_batches(indices), self.put_batches(weight))
        return state, jax.device_get(metrics)

    def put_state(self, saved):
        """Copy a state of NumPy arrays to the devices."""
        return jax.tree.map(put_sharded, saved, self.shardings(saved)) if self.mesh else replicate(saved)

    def shardings(self, state):
        """Return the sharding on the mesh of every array of a state."""
        if self.shard:
            return shardings(state, self.mesh)
        return jax.tree.map(lambda x: NamedSharding(self.mesh, PartitionSpec()), state)

    def put_data(self, buckets):
        """Copy a task's buckets to each device."""
        if not self.mesh:
            return replicate(buckets)
        return jax.tree.map(partial(put_sharded, sharding=NamedSharding(self.mesh, PartitionSpec())), buckets)

    def put_streamed(self, rows: dict):
        """Copy the examples of one streamed call, arrays [n, R, ...], to the n local devices."""
        if not self.several:
            return {name: jax.device_put(x[0]) for name, x in rows.items()}
        if not self.mesh:
            return jax.device_put(rows, NamedSharding(mesh_of(jax.local_devices()), PartitionSpec(AXIS)))
        by_device = NamedSharding(self.mesh, PartitionSpec(AXIS))
        assemble = lambda x: jax.make_array_from_process_local_data(by_device, x.reshape(-1, *x.shape[2:]))
        return {name: assemble(x) for name, x in rows.items()}

    def put_batches(self, rows: np.ndarray):
        """Divide indices or weights [K, B] over the devices, padded with zeros."""
        if not self.several:
            return rows
        if not self.mesh:
            return split_over_devices(rows, axis=1)
        return put_sharded(
            pad_axis(rows, axis=1, multiple=self.mesh.shape[AXIS]), NamedSharding(self.mesh, PartitionSpec(None, AXIS))
        )

    def fetch(self, state):
        """Copy a state to whole NumPy arrays, which do not depend on the number of devices: what a checkpoint holds."""
        is_available = lambda x: x.is_fully_addressable or x.is_fully_replicated
        return to_host(
            jax.tree.map(lambda x: x if is_available(x) else multihost_utils.process_allgather(x, tiled=True), state)
        )


def data_parallel_gradients(loss, accumulation_steps: int, params, bucket, rows, rng):
    """`gradient_sums` over all devices, inside a `jax.pmap`; each device has its own random key."""
    rng = jax.random.fold_in(rng, jax.lax.axis_index(AXIS))
    return jax.lax.psum(gradient_sums(loss, accumulation_steps, params, bucket, rows, rng), AXIS)


def on_every_device(chunk, across: Mesh, streamed: bool):
    """`chunk` as `jax.pmap` calls it, by `jax.shard_map` over a mesh: replicated states, divided batches."""
    batches = PartitionSpec(None, AXIS)
    in_specs = (PartitionSpec(), PartitionSpec(AXIS) if streamed else PartitionSpec(), batches, batches)
    return jax.shard_map(chunk, mesh=across, in_specs=in_specs, out_specs=PartitionSpec(), check_vma=False)


def fsdp_gradients(loss, accumulation_steps: int, across: Mesh, streamed: bool, params, bucket, rows, rng):
    """`gradient_sums` over all devices of a mesh, with sharded parameters and gradients.

    Fully sharded data parallelism (Rajbhandari et al. 2020, "ZeRO", stage 3), by the rule of big_vision
    (github.com/google-research/big_vision, sharding.py). Random keys, sums and counts are those of
    `data_parallel_gradients`.
    """
    specs = jax.tree.map(lambda x: partition_spec(x, across.shape[AXIS]), params)
    bucket_spec = PartitionSpec(AXIS) if streamed else PartitionSpec()
    in_specs = (specs, bucket_spec, PartitionSpec(AXIS), PartitionSpec())
    local = partial(local_gradients, loss, accumulation_steps, specs)
    of_devices = jax.shard_map(
        local, mesh=across, in_specs=in_specs, out_specs=(specs, PartitionSpec()), check_vma=False
    )
    return of_devices(params, bucket, rows, rng)


def local_gradients(loss, accumulation_steps: int, specs, params, bucket, rows, rng):
    """The part of `fsdp_gradients` on one device: it gathers whole parameters for its rows of the batch.

    The compiler may gather them once more for the gradient. The transpose of `all_gather` adds the devices' gradients
    and leaves each its shard (reduce-scatter).
    """
    rng = jax.random.fold_in(rng, jax.lax.axis_index(AXIS))
    of_shards = lambda params, batch, rng: loss(jax.tree.map(all_gather, params, specs), batch, rng)
    gradients, metrics = gradient_sums(of_shards, accumulation_steps, params, bucket, rows, rng)
    add = lambda gradient, spec: gradient if AXIS in spec else jax.lax.psum(gradient, AXIS)
    return jax.tree.map(add, gradients, specs), jax.lax.psum(metrics, AXIS)


def fsdp_chunk(chunk, across: Mesh, state, *batches):
    """Call `train_chunk` and shard the new state as the old one. Updates are made outside of the `shard_map`, on the
    shards, so a global norm is global."""
    state, metrics = chunk(state, *batches)
    return jax.lax.with_sharding_constraint(state, shardings(state, across)), metrics


def prepare_mesh(mesh: Mesh) -> Mesh:
    """Return a mesh of the user's with axes that `jax.shard_map` and `jax.jit` lay out; InputError without an axis
    "data"."""
    if AXIS not in mesh.axis_names:
        raise InputError(
            f"a mesh for training needs an axis {AXIS!r} over which batches are divided, got {mesh.axis_names}"
        )
    return Mesh(mesh.devices, mesh.axis_names)


def mesh_of(devices=None) -> Mesh:
    """Return `devices` as a mesh of one axis; None means all devices of all hosts."""
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def partition_spec(x, devices: int) -> PartitionSpec:
    """Return how to shard an array of a state: along its largest axis that `devices` divides, or not if it is small.

    Of several largest axes it is the last. Moments have the shapes of their parameters and are sharded alike.

    >>> tuple(partition_spec(np.zeros((1000, 2048), np.float32), 8))
    (None, 'data')
    >>> tuple(partition_spec(np.zeros((1001, 2051), np.float32), 8))
    ()
    """
    axes = [axis for axis, size in enumerate(x.shape) if size % devices == 0]
    if 4 * x.size < SHARDED_FROM or not axes:
        return PartitionSpec()
    largest = max(axes, key=lambda axis: (x.shape[axis], axis))
    return PartitionSpec(*[AXIS if axis == largest else None for axis in range(largest + 1)])


def shardings(tree, across: Mesh):
    """Return the sharding of every array of a state on a mesh (`partition_spec`)."""
    return jax.tree.map(lambda x: NamedSharding(across, partition_spec(x, across.shape[AXIS])), tree)


def all_gather(x, spec: PartitionSpec):
    """Gather the whole array on every device, inside a `shard_map`."""
    return jax.lax.all_gather(x, AXIS, axis=spec.index(AXIS), tiled=True) if AXIS in spec else x


def put_sharded(x, sharding: NamedSharding):
    """Copy a NumPy array that every host has to the devices."""
    x = np.asarray(x)
    return jax.make_array_from_callback(x.shape, sharding, lambda i: np.array(x[i]))


def replicate(tree):
    """Copy a tree of arrays to every local device (a copy: the training step donates its state)."""
    if jax.local_device_count() == 1:
        return jax.tree.map(lambda x: jnp.array(x, copy=True), tree)
    everywhere = NamedSharding(mesh_of(jax.local_devices()), PartitionSpec())
    return jax.tree.map(lambda x: jax.device_put(np.array(x), everywhere), tree)


def pad_axis(rows: np.ndarray, axis: int, multiple: int) -> np.ndarray:
    """Append zeros along `axis` until its length is a multiple of `multiple`."""
    padding = [(0, 0)] * rows.ndim
    padding[axis] = (0, -rows.shape[axis] % multiple)
    return np.pad(rows, padding)


def split_over_devices(rows: np.ndarray, axis: int) -> np.ndarray:
    """Split `axis` over the devices, [..., B, ...] -> [..., n, B/n, ...], zero padded; this process's part of it.

    >>> rows = split_over_devices(np.array([[1, 2, 3]]), axis=1)
    >>> rows.shape == (1, jax.local_device_count(), -(-3 // jax.device_count()))
    True
    """
    devices = jax.device_count()
    rows = pad_axis(rows, axis, devices)
    rows = rows.reshape(*rows.shape[:axis], devices, -1, *rows.shape[axis + 1 :])
    first = jax.process_index() * jax.local_device_count()
    return rows.take(range(first, first + jax.local_device_count()), axis=axis)


PROGRAMS = weakref.WeakKeyDictionary()
"""{task or function: {name: compiled program}}"""


def row_program(fn):
    """Compile what `map_batches` calls for the local devices.

    It takes parameters and a batch divided at axis 0. It is cached for the function, or for the task of which `fn` is a
    method, through a weak reference: it does not keep the task and its data alive.
    """
    programs = PROGRAMS.setdefault(getattr(fn, "__self__", fn), {})
    if fn.__name__ not in programs:
        reference = weakref.WeakMethod(fn) if hasattr(fn, "__self__") else weakref.ref(fn)
        call = lambda params, batch: reference()(params, batch)
        call.__name__ = fn.__name__  # the name of the program
        several = jax.local_device_count() > 1
        programs[fn.__name__] = jax.pmap(call, in_axes=(None, 0)) if several else jax.jit(call)
    return programs[fn.__name__]


def batch_bucket(count: int, most: int) -> int:
    """Return the number of rows to which a batch of `count` new inputs is padded: a power of four, or `most`.

    >>> [batch_bucket(count, most=32) for count in (1, 2, 4, 5, 17, 40)]
    [1, 4, 4, 16, 32, 32]
    """
    return min(1 << 2 * -(-max(count - 1, 0).bit_length() // 2), most)


def map_batches(fn, params, arrays: dict[str, np.ndarray], batch_size: int, *, pad: bool = False, progress: str = ""):
    """Return `fn(params, batch)` for all examples of `arrays`, in batches on the local devices, in order.

    `fn` maps a dict of arrays [B, ...] to a pytree of arrays [B, ...] and should be a stable function object: it is
    compiled once. The last batch is padded with copies of its last example, whose results are dropped, so every
    example counts exactly once whatever the batch size and the number of devices. With `pad` fewer examples than
    `batch_size` are padded to one of a few sizes (`batch_bucket`), so that new inputs seldom compile a new program.
    `progress` begins a line on standard error after every `printing.LINE_SECONDS`: "decoding test: 64 of 1,600".
    """
    devices, total = jax.local_device_count(), len(next(iter(arrays.values())))
    if total == 0:
        raise ValueError("map_batches needs at least one example, got none")
    size = batch_bucket(total, batch_size) if pad else min(batch_size, total)
    size = -(-size // devices) * devices
    params = replicate(params)
    results, printed = [], time.monotonic()
    for first in range(0, total, size):
        if progress and time.monotonic() - printed >= printing.LINE_SECONDS:
            printed = time.monotonic()
            print(f"{progress}: {first:,} of {total:,}", file=sys.stderr, flush=True)
        rows = np.minimum(np.arange(first, first + size), total - 1)
        batch = {name: array[rows] for name, array in arrays.items()}
        if devices > 1:
            batch = {name: array.reshape(devices, -1, *array.shape[1:]) for name, array in batch.items()}
        out = jax.device_get(row_program(fn)(params, batch))
        results.append(out if devices == 1 else jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), out))
    return jax.tree.map(lambda *chunks: np.concatenate(chunks)[:total], *results)
