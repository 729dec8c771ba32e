"""CCT and ResNet: exact parameter counts, and what they refuse."""

import jax
import jax.numpy as jnp
import pytest

from attention_jax.config import import_object
from attention_jax.errors import InputError
from experiments.papers.options import CCTConfig, ResNetConfig


def count_parameters(options, classes, size, channels):
    model = import_object(options.module)(options, classes, size)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, size, size, channels)))["params"]
    return sum(x.size for x in jax.tree.leaves(shapes))


def test_parameter_count_of_cct_2_3x2():
    """0.284 M in Hassani et al. 2021, table 2; their code has 283,723. Ours has biases for query, key and value in both
    layers, and lacks the bias of the pool's score, which softmax cancels."""
    assert count_parameters(CCTConfig(), 10, 32, 3) == 283_723 + 2 * 3 * 128 - 1


def test_parameter_count_of_resnet():
    stage = lambda old, new: (
        9 * old * new + 9 * new * new + 4 * new + (old * new if old != new else 0) + 2 * 9 * new * new + 4 * new
    )
    widths = (64, 128, 256, 512)
    expected = 9 * 1 * 64 + 128 + sum(stage(a, b) for a, b in zip((64, *widths), widths)) + 512 * 10 + 10
    assert count_parameters(ResNetConfig(), 10, 28, 1) == expected


def test_widths_that_make_no_groups_are_named():
    with pytest.raises(InputError, match="multiples of --model.num-groups 16, got .20, 40."):
        count_parameters(ResNetConfig(widths=(20, 40)), 10, 28, 1)
