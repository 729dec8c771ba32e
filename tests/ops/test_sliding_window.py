"""`sliding_window(n)`: n keys, the query's own position the last."""

import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import InputError, causal, sliding_window, window
from attention_jax.ops.masks import split_mask


@pytest.mark.parametrize("size", [1, 2, 5, 9])
def test_query_attends_to_last_n_positions(size):
    query, key = np.mgrid[:7, :7]
    actual = sliding_window(size)(jnp.arange(7), jnp.arange(7))
    np.testing.assert_array_equal(actual, (key <= query) & (key > query - size))


def test_it_is_the_mask_that_kernels_know():
    assert list(map(type, split_mask(sliding_window(4)))) == list(map(type, split_mask(causal() & window(3))))


@pytest.mark.parametrize("size", [0, -1, 1.5, "3"])
def test_fewer_than_one_key_is_refused(size):
    with pytest.raises(InputError, match=f"sliding_window needs .*{size}"):
        sliding_window(size)
