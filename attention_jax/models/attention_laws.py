"""Laws that say something about any attention function (query [Q, D], key [K, D], value [K, V]) -> [Q, V].

A law measures one number of the function as a black box, with logits of the usual size of q . k / sqrt(D). That a law
does not hold is a property of the function and no fault: sparsemax does not disperse. docs/laws.md has their sources.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(query [Q, D], key [K, D], value [K, V]) -> [Q, V]"""
SIZES = (4_096, 65_536)
"""Numbers of keys of `dispersion`."""


def permutation(attention: Attention, seed: int = 0) -> float:
    """The largest value of |f(P q, P k, P v) - P f(q, k, v)| for a permutation P, over that of |f|: 0 for attention
    without a mask and positions (Lee et al. 2019, property 1)."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 64, 8))
    order = jax.random.permutation(jax.random.key(seed + 1), 64)
    run = jax.jit(attention)
    output, moved = run(query, key, value), run(query[order], key[order], value[order])
    return float(jnp.max(jnp.abs(moved - output[order])) / jnp.max(jnp.abs(output)))


def growth(attention: Attention, seed: int = 0) -> float:
    """The power of n with which the sum of the weights grows from 256 to 16,384 keys: 1 for sigmoid attention, 0 with
    the bias -log n (Ramapuram et al. 2024, arXiv 2409.04431) and for weights that sum to 1."""
    query = jax.random.normal(jax.random.key(seed), (32, 16))
    key = jax.random.normal(jax.random.key(seed + 1), (16_384, 16))
    few, many = (float(jax.jit(attention)(query, key[:n], jnp.ones((n, 1))).mean()) for n in (256, 16_384))
    return float(np.log(max(many, 1e-30) / max(few, 1e-30)) / np.log(64))


def dispersion(attention: Attention, seed: int = 0) -> float:
    """The power of n with which the weight of a winner falls from 4,096 to 65,536 keys: -1 for the softmax, whatever
    its temperature, e^4 / (e^4 + n - 1) (Velickovic et al. 2024, arXiv 2410.01104, lemma 2.1)."""
    few, many = (winner_weight(attention, keys) for keys in SIZES)
    return float(np.log(max(many, 1e-30) / max(few, 1e-30)) / np.log(SIZES[1] / SIZES[0]))


def winner_weight(attention: Attention, keys: int) -> float:
    """The weight of one key with a logit of 4 among keys with logits of 0 (for q . k / sqrt(D), D = 16)."""
    rows = 4.0 * jnp.eye(16)
    other_keys = rows[1 + jnp.arange(keys - 1) % 15]
    value = (jnp.arange(keys) == 0).astype(jnp.float32)[:, None]
    return float(jax.jit(attention)(rows[:1], jnp.concatenate([rows[:1], other_keys]), value)[0, 0])


LAWS: dict[str, tuple[Callable[[Attention], float], float, float]] = {
    "permutation: outputs move with their positions": (permutation, 0.0, 1e-5),
    "growth: the sum of the weights does not grow with n": (growth, 0.0, 0.03),
    "dispersion: the weight of a winner falls as 1 / n": (dispersion, -0.995, 0.015),
}
"""{statement: (what measures it, the number that it sets, the tolerance)}: the bounds of experiments/laws.toml. The
softmax has the exponent -0.9956 at these numbers of keys."""
