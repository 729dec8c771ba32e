"""Learned gates: the hard concrete distribution (Louizos, Welling, Kingma 2018, arXiv 1712.01312).

A gate is a factor from 0 to 1. The probability that it is exactly 0 is differentiable, so the expected number of open
gates can be a term of the loss (an "L0 penalty").
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

TEMPERATURE = 2 / 3
LOWEST, HIGHEST = -0.1, 1.1


def stretch_and_clip(share: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Stretch (0, 1) to (LOWEST, HIGHEST) and clip to [0, 1], which puts probability on both ends (equation 11)."""
    return jnp.clip(LOWEST + (HIGHEST - LOWEST) * share, 0.0, 1.0)


def draw_gates(rng, log_alpha: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Sample gates for one training step (equations 10 and 11); differentiable in `log_alpha`."""
    noise = jax.random.logistic(rng, log_alpha.shape)  # log u - log(1 - u)
    return stretch_and_clip(jax.nn.sigmoid((noise + log_alpha) / TEMPERATURE))


def evaluation_gates(log_alpha: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Return the gates for evaluation, without noise (equation 13).

    >>> evaluation_gates(jnp.array([-3.0, 0.0, 3.0])).tolist()
    [0.0, 0.5, 1.0]
    """
    return stretch_and_clip(jax.nn.sigmoid(log_alpha))


def open_probability(log_alpha: Float[Array, "*N"]) -> Float[Array, "*N"]:
    """Return the probability that a sampled gate is not 0 (equation 12).

    >>> print(f"{open_probability(jnp.array(0.0)):.3f}")
    0.832
    """
    return jax.nn.sigmoid(log_alpha - TEMPERATURE * jnp.log(-LOWEST / HIGHEST))
