"""Convolutional sequence to sequence learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.config import replace
from attention_jax.errors import InputError
from experiments.papers.convolutional import ConvSeq2seq, glu_convolution
from experiments.papers.options import ConvolutionalConfig

SMALL = ConvolutionalConfig(hidden_size=6, embed_size=4, num_layers=2, max_length=12)


@pytest.mark.slow
def test_contract(contract):
    _, _, intermediates = contract.check(ConvSeq2seq(SMALL, 11, 9))
    assert intermediates["cross_attention"].shape == (3, 2, 1, 4, 6)
    np.testing.assert_allclose(intermediates["cross_attention"].sum(-1), 1, atol=1e-5)


def test_glu_convolution_equals_jax_convolution():
    r = np.random.default_rng(0)
    draw = lambda *shape: jnp.asarray(r.normal(size=shape), jnp.float32)
    x, kernel, bias = draw(2, 7, 3), draw(5, 3, 8), draw(8)
    wide = (
        jax.lax.conv_general_dilated(x, kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
        + bias[None, None]
    )
    expected = wide[..., :4] * jax.nn.sigmoid(wide[..., 4:])
    np.testing.assert_allclose(glu_convolution(x, kernel.reshape(15, 8), bias), expected, atol=1e-5)


def test_size_of_bentrevetts_model():
    model = ConvSeq2seq(ConvolutionalConfig(max_length=100), 7855, 5893)
    tokens = jnp.ones((1, 2), jnp.int32)
    shapes = jax.eval_shape(model.init, jax.random.key(0), tokens, jnp.ones(1, jnp.int32), tokens)
    embed, block = lambda v: (v + 100) * 256, 3 * 512 * 1024 + 1024
    to_hidden, to_embed = 257 * 512, 513 * 256
    expected = (
        embed(7855) + embed(5893) + 20 * block + 2 * (to_hidden + to_embed) + 10 * (to_hidden + to_embed) + 257 * 5893
    )
    assert sum(x.size for x in jax.tree.leaves(shapes)) == expected


def test_limits_are_named(contract):
    with pytest.raises(InputError, match="--model.max-length .* 6.* got 5"):
        contract.variables_of(ConvSeq2seq(replace(SMALL, max_length=5), 11, 9))
    model, memory = (
        ConvSeq2seq(replace(SMALL, max_length=5), 11, 9),
        {"length": jnp.ones(2), "key": jnp.ones((2, 3, 4))},
    )
    with pytest.raises(InputError, match="--model.max-length .* 6.* got 5.*--decode.max-length"):
        jax.eval_shape(lambda: model.init(jax.random.key(0), memory, 6, method="start"))
    with pytest.raises(InputError, match="--model.kernel-size must be odd, .* got 4"):
        ConvSeq2seq(replace(SMALL, kernel_size=4), 11, 9)
