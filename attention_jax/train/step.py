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


def init_state(init, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """A fresh state: parameters and dropout come from two independent streams of `seed`."""
    model_rng, rng = jax.random.split(jax.random.PRNGKey(seed))
    params = jax.jit(init)(model_rng)
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32), rng)


def train_step(loss, optimizer: optax.GradientTransformation, state: TrainState, batch, axis: str | None = None):
    """One update with the gradient of (sum of losses) / (count), both summed over all devices along `axis`.

    Sums, not means, cross the devices: batches whose weights differ from device to device give exactly the gradient of
    one device holding them all. A batch whose count is zero changes nothing (it is padding of the epoch's last call).
    Returns the new state and {"loss": (sum, count), ...} of this step over all devices.
    """
    rng = jax.random.fold_in(state.rng, state.step)
    if axis is not None:
        rng = jax.random.fold_in(rng, jax.lax.axis_index(axis))

    def objective(params):
        total, count, metrics = loss(params, batch, rng)
        return total, {"loss": (total, count), **metrics}

    gradients, metrics = jax.grad(objective, has_aux=True)(state.params)
    if axis is not None:
        gradients, metrics = jax.lax.psum((gradients, metrics), axis)
    count = metrics["loss"][1]

    def update(state):
        mean = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer count
            updates, opt_state = optimizer.update(mean, state.opt_state, state.params)
        return state._replace(
            params=optax.apply_updates(state.params, updates), opt_state=opt_state, step=state.step + 1
        )

    return jax.lax.cond(count > 0, update, lambda state: state, state), metrics
