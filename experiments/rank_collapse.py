"""Rank collapse: attention alone loses its rank doubly exponentially with depth; skip connections prevent it.

Chapter: theory of attention
Source: Dong, Cordonnier, Loukas 2021 (arXiv 2103.03404), theorem 2.2, corollary 3.1
Data: none; 32 random positions of width 32, random weights, no training
Command: python launch.py reproduce rank_collapse
Cost: 0.1 minutes

The residual of a layer's output is what remains of it when the mean of its rows is subtracted, relative to the whole. A
layer of attention raises it to the third power: attention differs between rows by as much as queries and keys differ,
and what it pools differs once more. So log(-log residual) grows by log 3 a layer. Everything is in float64; medians are
over 50 samples of the weights.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

POSITIONS, WIDTH, DEPTH = 32, 32, 12


def config() -> Config:
    return Config("rank_collapse", Samples(50), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 3})


def residual(x):
    """|x - 1 mean(x)| / |x| for the rows of x [T, D]."""
    import jax.numpy as jnp

    return jnp.linalg.norm(x - x.mean(0, keepdims=True)) / jnp.linalg.norm(x)


def layer(rng, x, skip: bool = False):
    """One head of self-attention with random weights, [T, D] -> [T, D], scaled to entries of mean square 1."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.attention import attend

    to_query, to_key, to_value = jax.random.normal(rng, (3, WIDTH, WIDTH), x.dtype) * WIDTH**-0.5
    y = attend(x @ to_query, x @ to_key, x @ to_value, implementation="plain")
    x = x + y if skip else y
    return x / jnp.sqrt(jnp.mean(x**2))


def residuals(rng, x, skip: bool):
    """Residuals of x and of what DEPTH layers make of it, [DEPTH + 1]."""
    import jax
    import jax.numpy as jnp

    def apply_layer(x, rng):
        x = layer(rng, x, skip)
        return x, residual(x)

    return jnp.concatenate([residual(x)[None], jax.lax.scan(apply_layer, x, jax.random.split(rng, DEPTH))[1]])


def exponent(rng, x):
    """d log residual(layer(x)) / d log residual(x), where rows are nearly equal, by halving their differences."""
    import jax.numpy as jnp

    mean = x.mean(0, keepdims=True)
    residuals_after = [residual(layer(rng, mean + small * (x - mean))) for small in (1e-3, 5e-4)]
    return jnp.log(residuals_after[0] / residuals_after[1]) / jnp.log(2.0)


def study(config: Config, directory: Path) -> dict:
    import jax
    import jax.numpy as jnp

    from attention_jax.report.curves import lines

    with jax.enable_x64(True):
        rngs = jax.random.split(jax.random.key(config.train.seed), config.data.samples)
        start = jax.random.normal(jax.random.key(config.train.seed + 1), (len(rngs), POSITIONS, WIDTH), jnp.float64)
        run = jax.jit(jax.vmap(residuals, (0, 0, None)), static_argnums=2)
        alone, skipped = (np.asarray(run(rngs, start, skip)) for skip in (False, True))
        powers = np.asarray(jax.jit(jax.vmap(exponent))(rngs, start))
    depth = np.arange(DEPTH + 1)
    series = {"attention alone": (depth, alone), "with skip connections": (depth, skipped)}
    lines(series, directory / "figures" / "residual.png", xlabel="layers", ylabel="residual", log="y")
    return {
        "alone.exponent": float(np.median(powers)),
        "alone.residual_12": float(np.median(alone[:, -1])),
        "skip.residual_12": float(np.median(skipped[:, -1])),
    }
