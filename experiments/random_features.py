"""Random features estimate the softmax kernel: their error is what the formulas say, falls as 1/m.

Chapter: theory of attention
Source: Choromanski et al. 2021 (arXiv 2009.14794), lemma 2 and theorem 2; Yu et al. 2016
Data: none; two points of 8 dimensions
Command: python launch.py reproduce random_features
Cost: 0.1 minutes

SM(x, y) = exp(x . y). One positive feature exp(w . (x + y) - (|x|^2 + |y|^2) / 2) has the mean squared error
exp(|x + y|^2) SM^2 (1 - exp(-|x + y|^2)); one trigonometric feature, exp((|x|^2 + |y|^2) / 2) cos(w . (x - y)), has
exp(|x + y|^2) SM^-2 (1 - exp(-|x - y|^2))^2 / 2. The first is small where the kernel is small, the second where points
are near. The mean of the positive features of w and -w ("hyperbolic") has (1 - exp(-|x + y|^2)) / 2 of the first error.
The error of m independent features is 1/m of it, that of features which are orthogonal to each other is smaller.
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

DIMENSIONS = 8
FEATURES = (1, 2, 4, 8, 16, 32, 64)


def config() -> Config:
    return Config("random_features", Samples(1_024_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 4_000})


def points() -> tuple[np.ndarray, np.ndarray]:
    """x and y with |x + y| = 0.58 and |x - y| = 0.69."""
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, DIMENSIONS))
    return 0.5 * x / np.linalg.norm(x), 0.4 * y / np.linalg.norm(y)


def formula(kind: str, x: np.ndarray, y: np.ndarray) -> float:
    """The mean squared error of one estimate, exactly."""
    plus, minus, kernel = np.sum((x + y) ** 2), np.sum((x - y) ** 2), np.exp(x @ y)
    if kind == "positive":
        return np.exp(plus) * kernel**2 * (1 - np.exp(-plus))
    if kind == "hyperbolic":
        return (1 - np.exp(-plus)) / 2 * formula("positive", x, y)
    return 0.5 * np.exp(plus) * kernel**-2 * (1 - np.exp(-minus)) ** 2


def directions(rng, draws: int, orthogonal: bool):
    """[draws, 8, 8] normal vectors; with `orthogonal` the directions of each eight are orthogonal to each other."""
    import jax
    import jax.numpy as jnp

    normal, lengths = jax.random.normal(rng, (2, draws, DIMENSIONS, DIMENSIONS))
    if not orthogonal:
        return normal
    rotation, triangle = jnp.linalg.qr(normal)
    rotation = (
        rotation * jnp.sign(jnp.diagonal(triangle, axis1=1, axis2=2))[:, None]
    )  # else not uniform (Mezzadri 2007)
    return rotation * jnp.linalg.norm(lengths, axis=-1, keepdims=True)


def estimates(kind: str, w, x, y):
    """The estimate of SM(x, y) by each feature w."""
    import jax.numpy as jnp

    if kind == "positive":
        return jnp.exp(w @ (x + y) - (x @ x + y @ y) / 2)
    return jnp.exp((x @ x + y @ y) / 2) * jnp.cos(w @ (x - y))


def errors(kind: str, orthogonal: bool, samples: int, seed: int) -> np.ndarray:
    """The mean squared error of a mean over m features, for each m of FEATURES, over samples / m draws."""
    import jax

    x, y = points()
    w = directions(jax.random.key(seed), samples // DIMENSIONS, orthogonal)
    values = np.asarray(estimates(kind, w, *np.float32((x, y))), np.float64)
    return np.array([np.mean((values.reshape(-1, m).mean(1) - np.exp(x @ y)) ** 2) for m in FEATURES])


def hyperbolic_error(samples: int, seed: int) -> float:
    """The mean squared error of phi(x) . phi(y), phi the `PositiveFeatures` of one w and -w, over `samples` of w."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.linear import PositiveFeatures

    x, y = np.float32(points())
    features = lambda w: PositiveFeatures(jnp.stack([w, -w])).features(jnp.stack([x, y]))  # [2, 2]
    estimate = lambda w: jnp.prod(features(w), axis=0).sum()
    values = jax.jit(jax.vmap(estimate))(jax.random.normal(jax.random.key(seed), (samples, DIMENSIONS)))
    return float(np.mean((np.asarray(values, np.float64) - np.exp(np.dot(*points()))) ** 2))


def study(config: Config, directory: Path) -> dict:
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.attention import attend
    from attention_jax.ops.linear import PositiveFeatures
    from attention_jax.ops.scores import Dot
    from attention_jax.report.curves import lines

    samples, seed = config.data.samples // 512 * 512, config.train.seed
    metrics, series = {}, {}
    for kind in ("positive", "trigonometric"):
        independent, orthogonal = (errors(kind, way, samples, seed) for way in (False, True))
        series |= {kind: (FEATURES, independent), f"{kind}, orthogonal": (FEATURES, orthogonal)}
        metrics |= {
            f"{kind}.error_over_formula": float(independent[0] / formula(kind, *points())),
            f"{kind}.exponent": float(np.polyfit(np.log(FEATURES), np.log(independent), 1)[0]),
            f"{kind}.orthogonal_over_independent": float(orthogonal[3] / independent[3]),
        }
    hyperbolic = hyperbolic_error(samples, seed + 2)
    metrics["hyperbolic.error_over_formula"] = hyperbolic / formula("hyperbolic", *points())
    lines(series, directory / "figures" / "error.png", xlabel="features m", ylabel="mean squared error", log="xy")

    query, key, value = jax.random.normal(jax.random.key(seed), (3, 64, DIMENSIONS)) / 4
    exact = attend(query, key, value, score=Dot())

    def away(rng, m):
        w = directions(rng, m // DIMENSIONS, True).reshape(m, DIMENSIONS)
        return jnp.mean((attend(query, key, value, score=PositiveFeatures(w)) - exact) ** 2)

    away = jax.jit(away, static_argnums=1)
    rngs = jax.random.split(jax.random.key(seed + 1), 16)
    few, many = (float(np.mean([away(rng, m) for rng in rngs])) ** 0.5 for m in (64, 4096))
    return metrics | {"attention.error_64": few, "attention.error_4096": many, "attention.ratio": few / many}
