"""Initializers that several models share, beside those of `flax.linen.initializers`."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

XAVIER = nn.initializers.xavier_uniform()
FAN_IN = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
"""Uniform within 1 / sqrt(fan_in), as kernels and biases of PyTorch's linear maps."""


def within(bound: float) -> Callable:
    """The initializer that draws uniformly from between -bound and bound."""
    return lambda rng, shape, dtype=jnp.float32: jax.random.uniform(rng, shape, dtype, -bound, bound)
