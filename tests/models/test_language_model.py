"""Encoder-only and decoder-only Transformers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import config
from attention_jax.config import replace
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import count_parameters

TOKENS = jnp.array([[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]], jnp.int32)
SMALL = config.LanguageModelConfig(num_layers=2, hidden_size=8, num_heads=2, mlp_dim=12, max_length=6)


@pytest.mark.slow
@pytest.mark.parametrize(("tied", "positions"), slow_but([(True, "rotary")], [(True, "rotary"), (False, "learned")]))
def test_steps_are_teacher_forcing(tied, positions):
    model = LanguageModel(replace(SMALL, position_embedding=positions, tied_embeddings=tied), 7)
    params = jax.jit(model.init)(jax.random.key(0), TOKENS)
    run = jax.jit(lambda p, x: model.apply(p, x, return_weights=True))
    expected, intermediates = run(params, TOKENS)
    assert intermediates["decoder_attention"].shape == (2, 2, 2, 5, 5)
    cache, step = (
        model.apply(params, 2, 6, method="start"),
        jax.jit(lambda p, c, t: model.apply(p, c, t, method="step")[:2]),
    )
    for t in range(5):
        actual, cache = step(params, cache, TOKENS[:, t])
        np.testing.assert_allclose(actual, expected[:, t], atol=1e-5)
    changed_logits, _ = run(params, TOKENS.at[:, 3:].set(6))
    np.testing.assert_array_equal(expected[:, :3], changed_logits[:, :3])


def test_parameters_by_hand():
    # a table of 7 x 8, an output bias, a layer of four 8 x 8 kernels, 8 x 12 and back,
    # all with biases and two norms, a last norm
    layer = 4 * (64 + 8) + 96 + 12 + 96 + 8 + 2 * 16
    shapes = jax.eval_shape(LanguageModel(replace(SMALL, num_layers=3), 7).init, jax.random.key(0), TOKENS)
    assert count_parameters(shapes) == 56 + 7 + 3 * layer + 16
