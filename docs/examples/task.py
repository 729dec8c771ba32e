"""What the four examples share: reverse a sequence, the initial weights, a score, and the training loop.

Each of linen.py, nnx_modules.py, equinox_modules.py and functions.py is the same Transformer of one layer:
    python docs/examples/linen.py
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax

TOKENS, LENGTH, WIDTH, HEADS = 12, 8, 32, 4


def laplace(query, key):
    """A score of one's own, [Q, D], [K, D] -> [Q, K]: the negative L1 distance."""
    return -jnp.abs(query[:, None] - key[None]).sum(-1) / query.shape[-1] ** 0.5


def batch(step: int) -> np.ndarray:
    """Tokens [64, LENGTH]; the targets are the same in reverse order."""
    return np.random.default_rng(step).integers(TOKENS, size=(64, LENGTH))


def weights() -> dict[str, np.ndarray]:
    """The initial weights, by name."""
    draw, heads = np.random.default_rng(0), (WIDTH, HEADS, WIDTH // HEADS)
    shapes = {"embedding": (TOKENS, WIDTH), "position": (LENGTH, WIDTH), "query": heads, "key": heads, "value": heads}
    shapes |= {"out": (*heads[1:], WIDTH), "up": (WIDTH, 64), "down": (64, WIDTH), "readout": (WIDTH, TOKENS)}
    scale = {"embedding": 1.0, "position": 1.0, "down": 0.125}
    draws = {name: draw.standard_normal(shape) for name, shape in shapes.items()}
    return {name: np.float32(x * scale.get(name, WIDTH**-0.5)) for name, x in draws.items()}


def loss(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The mean cross-entropy of logits [B, T, TOKENS] and the reversed tokens."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, ::-1]).mean()


def train(params, loss_of: Callable, steps: int = 60) -> list[float]:
    """The losses of SGD on a pytree of parameters, with `loss_of(params, tokens)`."""

    @jax.jit
    def step(params, tokens):
        value, gradient = jax.value_and_grad(loss_of)(params, tokens)
        return jax.tree.map(lambda p, g: p - 0.2 * g, params, gradient), value

    losses = []
    for number in range(steps):
        params, value = step(params, batch(number))
        losses.append(float(value))
    return losses
