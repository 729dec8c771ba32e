"""The optimizer of `addition_seq2seq` against the book's, written out in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.train.optimizer import optimizer
from experiments import addition_seq2seq


def test_book_adam_adds_epsilon_before_bias_correction():
    """Deep Learning from Scratch 2, common/optimizer.py; gradients near epsilon, where the two ways differ."""
    gradients = np.array([[3e-7, -0.5], [1e-7, 0.25], [-2e-7, 0.125]])
    adam = optimizer(addition_seq2seq.variants()[addition_seq2seq.BOOKS].optim, 3)
    state, m, v = adam.init(jnp.zeros(2)), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(gradients, start=1):
        m += (1 - 0.9) * (gradient - m)
        v += (1 - 0.999) * (gradient**2 - v)
        rate = 1e-3 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        with jax.numpy_dtype_promotion("standard"):  # as train_step does around optax
            update, state = adam.update(jnp.asarray(gradient, jnp.float32), state, jnp.zeros(2))
        np.testing.assert_allclose(update, -rate * m / (np.sqrt(v) + 1e-7), rtol=1e-4)
