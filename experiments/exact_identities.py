"""Theorems about attention hold in this code: convolution, positions, variances, gradients, distances, fixed points.

Chapter: theory of attention
Source: the claims name a paper and an equation each
Data: none; random arrays
Command: python launch.py reproduce exact_identities
Cost: 0.26 minutes

Each function below computes a number twice: with this package, and from the closed form of a paper. Errors are relative
to the largest value and in float32, unless the claim says otherwise. The bounds were committed before the first run of
this file. Three of its numbers cannot fail and are tests (tests/experiments/test_theorems.py).
"""

from pathlib import Path

import numpy as np

from attention_jax.config import Config, replace
from experiments.papers.options import Samples

SEEDS = 3
KERNEL, GRID, CHANNELS = 3, 12, 5
"""The convolution: K x K over a square grid."""


def config() -> Config:
    return Config("exact_identities", Samples(400_000), None)


def smoke() -> Config:
    return replace(config(), **{"data.samples": 4_000})


def relative_error(actual, expected) -> float:
    """The largest difference, relative to the largest expected value."""
    return float(np.max(np.abs(np.asarray(actual, np.float64) - expected)) / np.max(np.abs(expected)))


def as_convolution(rng, sharpness: float) -> float:
    """Attention with K * K heads, each a fixed offset, against a convolution (Cordonnier et al. 2020, theorem 1).

    Head h scores a pair of pixels by -sharpness |p_k - p_q - offset_h|^2 (their equation 9); its value projection is
    the slice of the kernel at this offset. Pixels at the border have no such neighbor and are left out.
    """
    import jax
    import jax.numpy as jnp

    from attention_jax import attend

    image_rng, kernel_rng = jax.random.split(rng)
    image = jax.random.normal(image_rng, (GRID, GRID, CHANNELS))
    kernel = jax.random.normal(kernel_rng, (KERNEL, KERNEL, CHANNELS, CHANNELS))
    at = jnp.stack(jnp.meshgrid(jnp.arange(GRID), jnp.arange(GRID), indexing="ij"), -1).reshape(-1, 2).astype("float32")

    def score(offset, query, key):
        return -sharpness * jnp.sum((key[None] - query[:, None] - offset) ** 2, -1)

    def head(offset, projection):
        value = image.reshape(-1, CHANNELS) @ projection
        return attend(at, at, value, score=jax.tree_util.Partial(score, offset))

    offsets = jnp.stack(jnp.meshgrid(jnp.arange(KERNEL), jnp.arange(KERNEL), indexing="ij"), -1).reshape(-1, 2) - 1.0
    heads = jax.vmap(head)(offsets, kernel.reshape(-1, CHANNELS, CHANNELS))
    output = heads.sum(0).reshape(GRID, GRID, CHANNELS)[1:-1, 1:-1]
    dimensions = ("NHWC", "HWIO", "NHWC")
    exact = jax.lax.conv_general_dilated(
        image[None], kernel, (1, 1), "VALID", dimension_numbers=dimensions, precision="highest"
    )
    return relative_error(output, np.asarray(exact[0], np.float64))


def leak(sharpness: float) -> float:
    """The weight of a head of `as_convolution` on its pixel over its closed form, 1 / (sum_n exp(-sharpness n^2))^2."""
    import jax
    import jax.numpy as jnp

    from attention_jax import attention_weights

    side = 41
    at = jnp.stack(jnp.meshgrid(jnp.arange(side), jnp.arange(side), indexing="ij"), -1).reshape(-1, 2).astype("float32")
    score = jax.tree_util.Partial(lambda s, query, key: -s * jnp.sum((key[None] - query[:, None]) ** 2, -1), sharpness)
    middle = side * side // 2
    weight = float(attention_weights(at[middle : middle + 1], at, score=score)[0, middle])
    return weight * np.exp(-sharpness * np.arange(-20, 21) ** 2.0).sum() ** 2


def rotation_of_positions(width: int, offset: int) -> float:
    """Sinusoids at p + offset against those at p, rotated by an angle that does not depend on p."""
    import jax.numpy as jnp

    from attention_jax.ops.positions import sinusoidal

    positions = jnp.arange(512)
    current, shifted = (np.asarray(sinusoidal(p, width), np.float64) for p in (positions, positions + offset))
    angle = offset / 10_000 ** (np.arange(0, width, 2) / width)
    sine, cosine = current[:, 0::2], current[:, 1::2]
    rotated = np.empty_like(current)
    rotated[:, 0::2] = sine * np.cos(angle) + cosine * np.sin(angle)
    rotated[:, 1::2] = cosine * np.cos(angle) - sine * np.sin(angle)
    return relative_error(shifted, rotated)


def distance_of_positions(width: int) -> float:
    """Dot products of sinusoids against sum_i cos(omega_i (p - q)), a function of the distance alone."""
    import jax.numpy as jnp

    from attention_jax.ops.positions import sinusoidal

    table = np.asarray(sinusoidal(jnp.arange(256), width), np.float64)
    rates = 1 / 10_000 ** (np.arange(0, width, 2) / width)
    apart = np.arange(256)[:, None] - np.arange(256)[None]
    return relative_error(table @ table.T, np.cos(apart[..., None] * rates).sum(-1))


def rotary_distance(rng, width: int) -> float:
    """Rotary dot products at (p + t, q + t) against those at (p, q) (Su et al. 2021, equation 16)."""
    import jax
    import jax.numpy as jnp

    from attention_jax.ops.positions import rotary

    query, key = jax.random.normal(rng, (2, 64, width))
    at = jnp.arange(64)
    scores = [np.asarray(rotary(query, at + t) @ rotary(key, at + t).T, np.float64) for t in (0, 300)]
    return relative_error(scores[1], scores[0])


def variance(rng, width: int, draws: int, score) -> float:
    """The variance of the scores of standard normal queries and keys of `width` components."""
    import jax

    query, key = jax.random.normal(rng, (2, draws, 1, width))
    return float(np.var(np.asarray(jax.vmap(score)(query, key), np.float64)))


def participation(rng, width: int, score, keys: int = 8_192, queries: int = 256) -> float:
    """The mean over queries of n sum_k p_k^2: 1 for equal weights, n for a single one."""
    import jax

    from attention_jax import attention_weights

    query_rng, key_rng = jax.random.split(rng)
    query, key = jax.random.normal(query_rng, (queries, width)), jax.random.normal(key_rng, (keys, width))
    weights = np.asarray(attention_weights(query, key, score=score), np.float64)
    return float(keys * (weights**2).sum(-1).mean())


def covariance_gradient(rng) -> float:
    """d attend / d query for dot products against the covariance of values and keys under the weights."""
    import jax

    from attention_jax import attend, attention_weights, scores

    query_rng, key_rng, value_rng = jax.random.split(rng, 3)
    query, key = jax.random.normal(query_rng, (1, 16)), jax.random.normal(key_rng, (64, 16))
    value = jax.random.normal(value_rng, (64, 8))
    gradient = jax.jacobian(lambda q: attend(q[None], key, value, score=scores.Dot())[0])(query[0])
    weights = np.asarray(attention_weights(query, key, score=scores.Dot())[0], np.float64)
    values, keys = np.asarray(value, np.float64), np.asarray(key, np.float64)
    return relative_error(gradient, (weights[:, None] * (values - weights @ values)).T @ (keys - weights @ keys))


def lipschitz(rng, draws: int) -> tuple[float, float]:
    """The largest spectral norm of the softmax's Jacobian over random logits, and that at two equal logits."""
    import jax
    import jax.numpy as jnp

    from attention_jax import masked_softmax

    jacobian = jax.jacobian(lambda logits: masked_softmax(logits[None], jnp.ones((1, len(logits)), bool))[0])
    norms = lambda logits: np.linalg.norm(np.asarray(jax.vmap(jacobian)(logits), np.float64), 2, axis=(1, 2))
    spread = jnp.exp(jnp.linspace(-2, 3, draws))[:, None]
    equal = jnp.array([[0.0, 0.0, -200.0, -200.0]])
    return float(norms(spread * jax.random.normal(rng, (draws, 6))).max()), float(norms(equal)[0])


def energy(rng, beta: float) -> tuple[float, float]:
    """The modern Hopfield energy E = q^2 / 2 - log(sum exp(beta k.q)) / beta (Ramsauer et al. 2021, equations 2 and 3):

    the error of grad E = q - attend(q), and the largest change of E by a step q -> attend(q), which theorem 1 says is
    not positive, over 256 random queries.
    """
    import jax
    import jax.numpy as jnp

    from attention_jax import attend, scores

    query_rng, key_rng = jax.random.split(rng)
    query, key = jax.random.normal(query_rng, (256, 16)), jax.random.normal(key_rng, (32, 16))

    def of(q):
        return 0.5 * q @ q - jax.nn.logsumexp(beta * (key @ q)) / beta

    step = attend(beta * query, key, key, score=scores.Dot())
    gradient = np.asarray(jax.vmap(jax.grad(of))(query), np.float64)
    change = jax.vmap(of)(step) - jax.vmap(of)(query)
    return relative_error(query - step, gradient), float(jnp.max(change))


def kernel_of_unit_keys(rng) -> float:
    """Dot-product attention against a Gaussian kernel where all keys are of one length (d2l 11.3.1)."""
    import jax
    import jax.numpy as jnp

    from attention_jax import attend, scores

    query_rng, key_rng, value_rng = jax.random.split(rng, 3)
    query, key = jax.random.normal(query_rng, (64, 8)), jax.random.normal(key_rng, (128, 8))
    key = 3.0 * key / jnp.linalg.norm(key, axis=-1, keepdims=True)
    value = jax.random.normal(value_rng, (128, 4))
    return relative_error(
        attend(query, key, value, score=scores.Dot()),
        np.asarray(attend(query, key, value, score=scores.Gaussian()), np.float64),
    )


def shift_by_fourier(rng) -> float:
    """The circular shift of the Neural Turing Machine (Graves et al. 2014, equation 8) against a product of spectra."""
    import jax

    from attention_jax.ops.addressing import shift

    weights_rng, shift_rng = jax.random.split(rng)
    weights, shifts = (
        jax.nn.softmax(jax.random.normal(weights_rng, (128,))),
        jax.nn.softmax(jax.random.normal(shift_rng, (3,))),
    )
    spread = np.zeros(128)
    spread[[-1, 0, 1]] = np.asarray(shifts, np.float64)
    exact = np.fft.ifft(np.fft.fft(np.asarray(weights, np.float64)) * np.fft.fft(spread)).real
    return relative_error(shift(weights, shifts), exact)


def study(config: Config, directory: Path) -> dict:
    import jax

    from attention_jax import scores

    rngs = iter(jax.random.split(jax.random.key(config.train.seed), 16))
    draws = config.data.samples
    jacobian_random, jacobian_equal = lipschitz(next(rngs), 2_000)
    gradient_of_energy, change_of_energy = energy(next(rngs), 1.0)
    return {
        "convolution.error": as_convolution(next(rngs), 30.0),
        "convolution.weight_over_formula": leak(1.0),
        "positions.rotation_error": max(rotation_of_positions(128, offset) for offset in (1, 7, 100)),
        "positions.distance_error": distance_of_positions(128),
        "rotary.distance_error": rotary_distance(next(rngs), 64),
        "variance.dot_64_over_d": variance(next(rngs), 64, draws, scores.Dot()) / 64,
        "variance.dot_256_over_d": variance(next(rngs), 256, draws // 4, scores.Dot()) / 256,
        "variance.scaled_64": variance(next(rngs), 64, draws, scores.ScaledDot()),
        "participation.scaled_64": participation(next(rngs), 64, scores.ScaledDot()),
        "participation.dot_64_over_scaled": participation(next(rngs), 64, scores.Dot()) / np.exp(1.0),
        "gradient.covariance_error": covariance_gradient(next(rngs)),
        "softmax.jacobian_norm": jacobian_random,
        "softmax.jacobian_norm_two_equal": jacobian_equal,
        "hopfield.gradient_error": gradient_of_energy,
        "hopfield.energy_change": change_of_energy,
        "kernel.unit_keys_error": kernel_of_unit_keys(next(rngs)),
        "shift.fourier_error": shift_by_fourier(next(rngs)),
    }
