"""Randomized truncation is unbiased: the mean of 100,000 of its gradients is the full gradient, truncation's is not.

Chapter: training theory
Source: Tallec & Ollivier 2017 (arXiv 1705.08209), section 4; d2l 9.7
Data: none; a tanh network of 4 units on a random sequence of 30 steps
Command: python launch.py reproduce bptt_unbiasedness
Cost: 0.1 minutes

Gradients of the sum of losses with respect to the 16 recurrent weights, cut with probability 1/8 a step, in
float64. The figure: the norm of the last loss's gradient against how far back it is taken, for recurrent matrices
of three spectral radii (d2l 9.7.2).
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

STEPS, UNITS, PROBABILITY, BATCH = 30, 4, 1 / 8, 1_000
RADII = (0.5, 1.0, 1.5)


def config() -> Config:
    return Config("bptt_unbiasedness", Samples(100_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 2_000})


def step(params, state, x):
    """s' = tanh(params s + x), the loss its distance from 1."""
    import jax.numpy as jnp

    state = jnp.tanh(params @ state + x)
    return state, 0.5 * jnp.sum((state - 1) ** 2)


def z_scores(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """(mean - full) / standard error of every weight's gradient, for randomized and for truncated
    gradients of the same mean length."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.recurrent import bptt

    rng = np.random.default_rng(0)
    matrix, start, xs = rng.normal(size=(UNITS, UNITS)) * 0.6, np.zeros(UNITS), rng.normal(size=(STEPS, UNITS)) * 0.5
    matrix, start, xs = map(jnp.asarray, (matrix, start, xs))
    gradient = lambda run, *args: jax.grad(lambda params: run(step, params, start, xs, *args)[0])(matrix)

    def batch(carry, rng):
        total, squares = carry
        errors = jax.vmap(lambda key: gradient(bptt.truncate_randomly, PROBABILITY, key) - exact)(
            jax.random.split(rng, BATCH)
        )  # [BATCH, H, H]
        return (total + errors.sum(0), squares + (errors**2).sum(0)), None

    exact = gradient(bptt.full)
    zero = jnp.zeros_like(exact)
    sums = jax.jit(lambda rngs: jax.lax.scan(batch, (zero, zero), rngs)[0])(
        jax.random.split(jax.random.key(0), samples // BATCH)
    )
    mean, squares = (np.asarray(x) / samples for x in sums)
    error = np.sqrt((squares - mean**2) / samples)
    return mean / error, np.asarray(gradient(bptt.truncate_regularly, round(1 / PROBABILITY)) - exact) / error


def decay(radius: float, steps: int = 60) -> np.ndarray:
    """The norm of the last loss's gradient with respect to the state 1, 2, ... steps back, in a linear
    network of this spectral radius."""
    import jax.numpy as jnp

    from attention_jax.ops.recurrent import bptt

    rng = np.random.default_rng(1)
    matrix = rng.normal(size=(16, 16))
    matrix *= radius / np.abs(np.linalg.eigvals(matrix)).max()

    def linear(params, state, x):
        state = params @ state + x
        return state, state.sum()

    xs = jnp.asarray(rng.normal(size=(steps, 16)))
    return np.asarray(bptt.gradient_norms(linear, jnp.asarray(matrix), jnp.zeros(16, xs.dtype), xs))[::-1]


def study(config: Config, directory: Path) -> dict:
    import jax

    from attention_jax.report.curves import lines

    with jax.enable_x64(True):
        randomized, truncated = z_scores(config.data.samples)
        norms = {f"spectral radius {radius}": (np.arange(1, 61), decay(radius)) for radius in RADII}
    lines(
        norms, directory / "figures" / "gradient_norms.png", xlabel="steps back", ylabel="norm of the gradient", log="y"
    )
    rates = {name: float((values[-1] / values[19]) ** (1 / 40)) for name, (_, values) in norms.items()}
    metrics = {f"factor_per_step.radius_{radius}": rate for radius, rate in zip(RADII, rates.values())}
    within = float(np.mean(np.abs(randomized) < 3))
    return metrics | {
        "randomised.largest_z": float(np.abs(randomized).max()),
        "randomised.share_within_3_standard_errors": within,
        "randomised.mean_square_z": float(np.mean(randomized**2)),
        "truncated.largest_z": float(np.abs(truncated).max()),
    }
