"""Accuracies by hand."""

import jax.numpy as jnp

from attention_jax.ops.metrics import sequence_accuracy, token_accuracy

predicted = jnp.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
targets = jnp.array([[1, 2, 3], [4, 0, 6], [7, 8, 0]])
mask = jnp.array([[True, True, True], [True, True, True], [True, True, False]])


def test_token_accuracy():
    assert token_accuracy(predicted, targets, mask) == (7.0, 8.0)


def test_sequence_accuracy_ignores_what_is_masked_out():
    assert sequence_accuracy(predicted, targets, mask) == (2.0, 3.0)


def test_rows_without_any_token_do_not_count():
    assert sequence_accuracy(predicted, targets, mask.at[0].set(False)) == (1.0, 2.0)
