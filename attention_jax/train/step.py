"""The training state and one pure training step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax


class TrainState(NamedTuple):
    """What a training step changes. All leaves are ordinary arrays, so a checkpoint fits any number of devices."""

    params: Any  # the model's parameters
    opt_state: Any  # the optimizer's moments and count
    step: jax.Array  # optimizer steps done, int32 []
    rng: jax.Array  # the run's seed as raw key data, uint32 [2]; step t uses fold_in(rng, t)


def init_state(init, optimizer: optax.GradientTransformation, seed: int, begin=lambda params: params) -> TrainState:
    """A fresh state: parameters and dropout come from two independent streams of `seed`.

    `begin(params) -> params` may put others in the place of those that were drawn.
    """
    model_rng, rng = jax.random.split(jax.random.PRNGKey(seed))
    params = begin(jax.jit(init)(model_rng))
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), rng)


def of_rows(loss, bucket):
    """`loss` as a function of (params, (indices [B], weight [B]), rng): the rows of `bucket` at these indices."""

    def loss_of_rows(params, rows, rng):
        indices, weight = rows
        return loss(params, {name: array[indices] for name, array in bucket.items()} | {"weight": weight}, rng)

    return loss_of_rows


def train_step(loss, optimizer: optax.GradientTransformation, state: TrainState, batch, axis=None, accumulate: int = 1):
    """One update with the gradient of (sum of losses) / (count), both summed over all devices along `axis`.

    Sums, not means, cross the devices: batches whose weights differ from device to device give exactly the gradient of
    one device holding them all. A batch whose count is zero changes nothing (it is padding of the epoch's last call).
    `accumulate` is that of `gradient_sums`. Returns the new state and {"loss": (sum, count), ...} of this step over all
    devices.
    """
    rng = jax.random.fold_in(state.rng, state.step)
    if axis is not None:
        rng = jax.random.fold_in(rng, jax.lax.axis_index(axis))
    sums = gradient_sums(loss, state.params, batch, rng, accumulate)
    return updated(optimizer, state, *(sums if axis is None else jax.lax.psum(sums, axis)))


def gradient_sums(loss, params, batch, rng, accumulate: int = 1):
    """The gradient of the sum of losses, and {"loss": (sum, count), ...}, of a batch of arrays [B, ...].

    With `accumulate` N > 1 the batch is divided into N micro-batches, which are computed one after another and added:
    memory for B/N rows, the sums of B. Each has a random key of its own. Rows i, i + N, ... are micro-batch i; a batch
    that N does not divide is filled with zeros, which `loss` has to take for rows of weight zero.
    """

    def sums(batch, rng):
        def objective(params):
            total, count, metrics = loss(params, batch, rng)
            return total, {"loss": (total, count), **metrics}

        return jax.grad(objective, has_aux=True)(params)

    if accumulate == 1:
        return sums(batch, rng)

    def divided(x):  # [B, ...] -> [N, B/N, ...]
        x = jnp.pad(x, [(0, -len(x) % accumulate)] + [(0, 0)] * (x.ndim - 1))
        return x.reshape(-1, accumulate, *x.shape[1:]).swapaxes(0, 1)

    def add(so_far, part):
        number, rows = part
        return jax.tree.map(jnp.add, so_far, sums(rows, jax.random.fold_in(rng, number))), None

    parts = jnp.arange(accumulate), jax.tree.map(divided, batch)
    first = jax.tree.map(lambda x: x[0], parts[1])
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(sums, first, rng))
    return jax.lax.scan(add, nothing, parts)[0]


def updated(optimizer: optax.GradientTransformation, state: TrainState, gradients, metrics):
    """(the state after a step with these sums of gradients, metrics); the state itself if nothing was counted."""
    count = metrics["loss"][1]

    def update(state):
        mean = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
            updates, opt_state = optimizer.update(mean, state.opt_state, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, updates), opt_state=opt_state, step=state.step + 1
        )

    return jax.lax.cond(count > 0, update, lambda state: state, state), metrics
