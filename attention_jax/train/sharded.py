"""A training state divided over the devices: large arrays lie there in pieces, and each is put together for use.

Fully sharded data parallelism (Rajbhandari et al. 2020, "ZeRO", stage 3), with the rule of big_vision
(github.com/google-research/big_vision, sharding.py). Random keys, sums and counts are those of `parallel`'s `pmap`.
"""

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from attention_jax.train.checkpoint import host
from attention_jax.train.step import gradient_sums, of_rows, updated

AXIS = "data"
SHARDED_FROM = 4 * 2**20
"""Bytes in float32 from which on an array is divided: those of a 1,024 x 1,024 matrix, of which large Transformers are
made. A moment in half precision lies with its parameter."""


def mesh(devices=None) -> Mesh:
    """`devices` in a row; None is all there are, on all hosts."""
    return Mesh(np.array(jax.devices() if devices is None else devices), (AXIS,))


def pieces(x, devices: int) -> PartitionSpec:
    """How an array of a state is divided: along its largest axis that `devices` divides, or not at all if it is small.

    Of axes of one size it is the last. Moments have the shapes of their parameters, and so lie with them.

    >>> tuple(pieces(np.zeros((1000, 2048), np.float32), 8)), tuple(pieces(np.zeros((1001, 2051), np.float32), 8))
    ((None, 'data'), ())
    """
    axes = [axis for axis, size in enumerate(x.shape) if size % devices == 0]
    if 4 * x.size < SHARDED_FROM or not axes:
        return PartitionSpec()
    largest = max(axes, key=lambda axis: (x.shape[axis], axis))
    return PartitionSpec(*[AXIS if axis == largest else None for axis in range(largest + 1)])


def shardings(tree, across: Mesh):
    """`pieces` of every array of a state, on a mesh."""
    return jax.tree.map(lambda x: NamedSharding(across, pieces(x, across.size)), tree)


def put(tree, places):
    """A copy of NumPy arrays that every host has, laid out as `places`, one sharding for each or for all."""
    one = lambda x, place: jax.make_array_from_callback(x.shape, place, lambda i: np.array(x[i]))
    if isinstance(places, NamedSharding):
        return jax.tree.map(lambda x: one(np.asarray(x), places), tree)
    return jax.tree.map(lambda x, place: one(np.asarray(x), place), tree, places)


def gather(tree):
    """A NumPy copy of every whole array, on each host."""
    whole = lambda x: x if x.is_fully_addressable else multihost_utils.process_allgather(x, tiled=True)
    return host(jax.tree.map(whole, tree))


def step(across: Mesh, loss, optimizer, state, bucket, rows, accumulate: int, streamed: bool = False):
    """`train_step` on rows (indices [B], weight [B]) of a bucket and a state that lies in pieces.

    Each device has its part of the batch and puts the arrays together for `loss`; the compiler may do so once more for
    the gradient. The transpose of putting one together (all_gather) adds the devices' gradients and leaves each its
    piece (reduce-scatter). The update is made on the pieces. A `streamed` bucket lies on each device with its own rows.
    """
    specs = jax.tree.map(lambda x: pieces(x, across.size), state.params)

    def whole(x, spec):
        if AXIS not in spec:
            return x
        return jax.lax.all_gather(x, AXIS, axis=spec.index(AXIS), tiled=True)

    def local(params, bucket, rows, rng):
        def of_pieces(params, rows, rng):
            return of_rows(loss, bucket)(jax.tree.map(whole, params, specs), rows, rng)

        rng = jax.random.fold_in(rng, jax.lax.axis_index(AXIS))
        gradients, metrics = gradient_sums(of_pieces, params, rows, rng, accumulate)
        add = lambda gradient, spec: gradient if AXIS in spec else jax.lax.psum(gradient, AXIS)
        return jax.tree.map(add, gradients, specs), jax.lax.psum(metrics, AXIS)

    places = {
        "in_specs": (specs, PartitionSpec(AXIS) if streamed else PartitionSpec(), PartitionSpec(AXIS), PartitionSpec()),
        "out_specs": (specs, PartitionSpec()),
    }
    sums = jax.shard_map(local, mesh=across, **places, check_vma=False)
    rng = jax.random.fold_in(state.rng, state.step)
    state, metrics = updated(optimizer, state, *sums(state.params, bucket, rows, rng))
    return jax.lax.with_sharding_constraint(state, shardings(state, across)), metrics
