"""Accuracies by hand."""

import jax.numpy as jnp

from attention_jax.ops.losses import token_accuracy

predicted = jnp.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
targets = jnp.array([[1, 2, 3], [4, 0, 6], [7, 8, 0]])
mask = jnp.array([[True, True, True], [True, True, True], [True, True, False]])


def test_token_accuracy():
    assert token_accuracy(predicted, targets, mask) == (7.0, 8.0)
