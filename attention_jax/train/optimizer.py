"""Learning-rate schedules and optimizers, from the numbers of `config.Optim`.

Every number may also be a traced scalar: sweeps train a whole population with one compiled program. A number that is a
Python zero leaves its transformation out; a traced one always has it in, with the same meaning for zero.
"""

import jax
import jax.numpy as jnp
import optax

from attention_jax.ops.dropout import is_zero


def schedule(optim, total_steps: int):
    """The learning rate as a function of the step, counted from 0.

    All three warm up linearly over `warmup_steps` and peak at `learning_rate`:
    constant; warmup_cosine, falling to 0 at `total_steps` (Loshchilov & Hutter 2017, eq. 5);
    inverse_sqrt, lr sqrt(warmup / step) (Vaswani et al. 2017, eq. 3, with the peak given instead of the width).

    >>> from attention_jax.config import Optim
    >>> rate = schedule(Optim(learning_rate=1.0, schedule="inverse_sqrt", warmup_steps=4), 100)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 3, 15)]
    [0.25, 0.5, 1.0, 0.5]
    """

    def rate(step):
        step = jnp.asarray(step, jnp.float32) + 1.0
        warmup = jnp.maximum(jnp.asarray(optim.warmup_steps, jnp.float32), 1.0)
        rising = jnp.minimum(step / warmup, 1.0)
        if optim.schedule == "warmup_cosine":
            done = jnp.clip((step - warmup) / jnp.maximum(total_steps - warmup, 1.0), 0.0, 1.0)
            rising = jnp.where(step < warmup, rising, 0.5 * (1.0 + jnp.cos(jnp.pi * done)))
        elif optim.schedule == "inverse_sqrt":
            rising = jnp.minimum(rising, jnp.sqrt(warmup / step))
        return jnp.asarray(optim.learning_rate, jnp.float32) * rising

    return rate


def optimizer(optim, total_steps: int) -> optax.GradientTransformation:
    """Clip by global norm, precondition, decay weights, scale by the scheduled rate."""
    clip = optim.clip_norm
    parts = []
    if not is_zero(clip):
        parts.append(
            optax.clip_by_global_norm(clip if isinstance(clip, int | float) else jnp.where(clip > 0, clip, jnp.inf))
        )
    coupled = optim.name in ("sgd", "adam")  # L2 regularisation: part of the gradient
    if coupled and not is_zero(optim.weight_decay):
        parts.append(decay(optim))
    if optim.name in ("adam", "adamw"):
        kept_in = None if optim.moment_dtype == "float32" else optim.moment_dtype
        parts.append(optax.scale_by_adam(b1=optim.b1, b2=optim.b2, eps=optim.eps, mu_dtype=kept_in))
    elif optim.name == "rmsprop":
        parts.append(optax.scale_by_stddev(decay=optim.b2, eps=optim.eps))  # centred (Graves 2013, eq. 38-41)
    if optim.name in ("sgd", "rmsprop") and not is_zero(optim.momentum):
        parts.append(optax.trace(decay=optim.momentum))
    if not coupled and not is_zero(optim.weight_decay):
        parts.append(decay(optim))  # decoupled (Loshchilov & Hutter 2019)
    return optax.chain(*parts, optax.scale_by_learning_rate(schedule(optim, total_steps)))


def decay(optim) -> optax.GradientTransformation:
    """Adds `weight_decay` times the parameters, or with `decayed` "kernels" times those of `kernels`."""
    return optax.add_decayed_weights(optim.weight_decay, None if optim.decayed == "all" else kernels)


NTM_KERNELS = ("controller", "heads")
"""The weight matrices of `models.ntm`, which are named after what they feed."""


def kernels(params):
    """Which parameters are weights of linear maps and convolutions: a tree of booleans.

    They are called kernel, input_kernel, readout_kernel, ...; biases, norms, embeddings, tables of positions and the
    parameters of scores are not among them.

    >>> kernels({"layer": {"recurrent_kernel": 0.0, "bias": 0.0}, "table": 0.0, "score": {"query_kernel": 0.0}})
    {'layer': {'bias': False, 'recurrent_kernel': True}, 'score': {'query_kernel': False}, 'table': False}
    """

    def is_kernel(path, _) -> bool:
        names = [str(getattr(part, "key", "")) for part in path]
        of_a_score = any(name.startswith("score") for name in names)
        return (names[-1].endswith("kernel") or names[-1] in NTM_KERNELS) and not of_a_score

    return jax.tree_util.tree_map_with_path(is_kernel, params)
