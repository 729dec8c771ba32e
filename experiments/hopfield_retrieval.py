"""A modern Hopfield network is one step of attention: it stores exponentially many patterns, or their mean.

Chapter: theory of attention
Source: Ramsauer et al. 2021 (arXiv 2008.02217), equation 3, theorem 3; Demircigil et al. 2017
Data: none; random patterns of -1 and 1
Command: python launch.py reproduce hopfield_retrieval
Cost: 0.44 minutes

The update of a state is X softmax(beta X^T state): `attend` with the score beta q . k and the patterns as keys and as
values. A query that is one of N stored patterns of d signs gives the others (N - 1) cosh(beta)^d e^(-beta d) times its
own weight in the mean, so the logarithm of the N at which both weigh the same grows by beta - log cosh beta with each
dimension: 1 - log cosh 1 = 0.5662 for beta = 1. At small beta the state becomes the mean of all patterns.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

DIMENSIONS = (8, 10, 12, 14, 16, 18, 20)
BETA = 1.0
EXACT = BETA - np.log(np.cosh(BETA))


def config() -> Config:
    return Config("hopfield_retrieval", Samples(2_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 50})


def capacity(d: int, draws: int, seed: int) -> float:
    """How many patterns weigh as much as the one to be retrieved: measured at about that number, then scaled to it."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.attention import attention_weights
    from attention_jax.ops.scores import Dot

    num_stored = int(np.exp(EXACT * d))

    @jax.jit
    def other_weight(rng):
        patterns = jax.random.rademacher(rng, (num_stored + 1, d), jnp.float32)
        right = attention_weights(BETA * patterns[:1], patterns, score=Dot())[0, 0]
        return (1 - right) / right

    rngs = jax.random.split(jax.random.key(seed), draws)
    return num_stored / float(np.mean(np.asarray(jax.lax.map(other_weight, rngs)), dtype=np.float64))


def retrieve_patterns(d: int, stored: int, beta: float, flipped: int, seed: int) -> tuple[float, float]:
    """The share of patterns found again, in one step, from a copy with `flipped` signs; and the distance of the states
    from the mean of all patterns."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.attention import attend
    from attention_jax.ops.scores import Dot

    patterns = jax.random.rademacher(jax.random.key(seed), (stored, d), jnp.float32)
    query = patterns.at[:, :flipped].multiply(-1)
    state = attend(beta * query, patterns, patterns, score=Dot())
    away = jnp.linalg.norm(state - patterns.mean(0, keepdims=True), axis=1).mean() / d**0.5
    return float(jnp.mean((jnp.sign(state) == patterns).all(1))), float(away)


def study(config: Config, directory: Path) -> dict:
    from attention_jax.report.curves import lines

    seed = config.train.seed
    capacities = np.array([capacity(d, config.data.samples, seed) for d in DIMENSIONS])
    slope = np.polyfit(DIMENSIONS, np.log(capacities), 1)[0]
    theory = {"theory: exp(d (1 - log cosh 1))": (DIMENSIONS, np.exp(EXACT * np.array(DIMENSIONS)))}
    lines(
        theory,
        directory / "figures" / "capacity.png",
        xlabel="dimensions d",
        ylabel="patterns that are retrieved",
        log="y",
        points={"measured": (DIMENSIONS, capacities)},
    )
    share, _ = retrieve_patterns(64, 4096, BETA, 12, seed)
    _, away = retrieve_patterns(64, 4096, 0.002, 12, seed)
    return {
        "capacity.slope": float(slope),
        "capacity.slope_over_exact": float(slope / EXACT),
        "retrieved.share": share,
        "small_beta.from_mean": away,
    }
