"""One training step as pure functions: the state, the sums over a batch, the update, and the scan over K steps.

`placement` compiles `train_chunk` and calls it. A batch is a pair `rows` of indices [B] into a bucket, which is a dict
of arrays [N, ...], and weights [B]; a row of weight 0 is padding.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class TrainState(NamedTuple):
    """The state of training. Its leaves are ordinary arrays, so a checkpoint fits any number of devices."""

    params: Any  # the model's parameters
    opt_state: Any  # the optimizer's moments and count
    step: jax.Array  # optimizer steps done, int32 []
    rng: jax.Array  # the run's seed as raw key data, uint32 [2]; step t uses fold_in(rng, t)


def init_state(init, optimizer: optax.GradientTransformation, seed: int, begin=lambda params: params) -> TrainState:
    """Return the state before the first step: parameters and dropout use two independent streams of `seed`.

    `begin(params) -> params` may replace initial parameters, for instance by pretrained ones.
    """
    # one stream for initial parameters, one for dropout and augmentation of every step
    model_rng, rng = jax.random.split(jax.random.PRNGKey(seed))
    params = begin(jax.jit(init)(model_rng))
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), rng)


def train_chunk(gradients, optimizer, matmul_precision: str, state: TrainState, bucket: dict, indices, weight):
    """Scan `train_step` over K batches, `indices` and `weight` [K, B]; return the state and the metrics, each a pair
    (sums [K], counts [K]).

    `matmul_precision` is JAX's setting of that name within these steps.
    """
    with jax.default_matmul_precision(matmul_precision):
        # the carry is the state; of each step only its metrics are kept, scalars [K]
        return jax.lax.scan(partial(train_step, gradients, optimizer, bucket), state, (indices, weight))


def train_step(gradients, optimizer: optax.GradientTransformation, bucket: dict, state: TrainState, rows):
    """Update the state with the gradient of (sum of losses) / (count); return it and {"loss": (sum, count), ...}.

    `gradients(params, bucket, rows, rng)` is `gradient_sums` of a loss on one device, or its sum over all devices. Sums
    and not means are added over devices, so batches whose weights differ between devices give exactly the gradient of
    one device that has them all. A batch whose count is zero (padding of the last chunk of an epoch) changes nothing.
    """
    # the key of a step depends on the seed and its number alone, so a resumed run draws what it would have drawn
    rng = jax.random.fold_in(state.rng, state.step)
    gradient, metrics = gradients(state.params, bucket, rows, rng)
    count = metrics["loss"][1]
    # with G = d(sum of losses) / dtheta and count n the update sees G / n; for n = 0 there is none, not even of moments
    update = partial(apply_gradient, optimizer, gradient, count)
    return jax.lax.cond(count > 0, update, lambda state: state, state), metrics


def apply_gradient(optimizer: optax.GradientTransformation, gradient, count, state: TrainState) -> TrainState:
    """Return the state after an update with the mean of `gradient`, a sum over `count` predictions."""
    mean = jax.tree.map(lambda g: g / count.astype(g.dtype), gradient)
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
        updates, opt_state = optimizer.update(mean, state.opt_state, state.params)
    return state._replace(params=optax.apply_updates(state.params, updates), opt_state=opt_state, step=state.step + 1)


def gradient_sums(loss, accumulation_steps: int, params, bucket: dict, rows, rng):
    """Return the gradient of the sum of losses, and {"loss": (sum, count), ...}, of a batch.

    With `accumulation_steps` N > 1 the batch is divided into N micro-batches, which are computed one after another and
    added: memory for B/N examples, the sums of B. Each has its own random key. Examples i, i + N, ... are micro-batch
    i; a batch whose size N does not divide is padded with examples of weight zero.
    """
    # (gradient, metrics) of the sum of losses over some rows; sums of micro-batches add up to those of the batch
    sums = jax.grad(partial(loss_sum, loss), has_aux=True)
    if accumulation_steps == 1:
        return sums(params, bucket, rows, rng)
    numbers = jnp.arange(accumulation_steps)
    # indices and weights [B] -> [N, B/N]
    micro_batches = jax.tree.map(partial(split_batch, accumulation_steps), rows)  # [N, B/N]
    first = jax.tree.map(lambda x: x[0], micro_batches)
    # the sums before the first micro-batch, in the shapes and types of one
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sums, params, bucket, first, rng))
    add = partial(add_micro_batch, partial(sums, params, bucket), rng)
    return jax.lax.scan(add, zeros, (numbers, micro_batches))[0]


def loss_sum(loss, params, bucket: dict, rows, rng):
    """Return the sum of losses of a batch, which is differentiated, and its metrics with "loss" among them."""
    indices, weight = rows
    # gather the rows of the batch, [N, ...] -> [B, ...]
    batch = {name: array[indices] for name, array in bucket.items()} | {"weight": weight}
    total, count, metrics = loss(params, batch, rng)
    return total, {"loss": (total, count), **metrics}


def split_batch(num_splits: int, x):
    """Divide [B, ...] into interleaved micro-batches [N, B/N, ...], padded with zeros."""
    # [B, ...] -> [B/N, N, ...] -> [N, B/N, ...]: neighbors in different micro-batches, so that each is like the whole
    x = jnp.pad(x, [(0, -len(x) % num_splits)] + [(0, 0)] * (x.ndim - 1))
    return x.reshape(-1, num_splits, *x.shape[1:]).swapaxes(0, 1)


def add_micro_batch(sums, rng, total, numbered_rows):
    """Add the sums of one micro-batch (its number, its rows) to `total`: the body of a scan."""
    number, rows = numbered_rows
    return jax.tree.map(jnp.add, total, sums(rows, jax.random.fold_in(rng, number))), None
