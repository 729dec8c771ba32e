"""`return_statistics`: scores at the ends of their range, platforms that choose differently, and memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend, causal, normalizers
from attention_jax.errors import InputError
from attention_jax.ops.scores import Dot

KINDS = (normalizers.Softmax(), normalizers.Sparsemax(), normalizers.StickBreaking())
"""One of each module of `ops/blockwise`."""


@pytest.mark.parametrize("implementation", ["plain", "fused"])
def test_scores_at_the_ends_of_their_range(implementation):
    """Blocks that come first and then weigh nothing, by masks of -3e38, leave no trace and no NaN."""
    low, high = np.float32(-3e38), np.float32(3e38)
    rows = np.full((5, 24), low)
    rows[0, 8:] = 0
    rows[1, 9] = high
    rows[2, 4:20], rows[2, :4] = 50, -1e30
    rows[3] = -np.inf
    query, key = jnp.ones((5, 2)), jnp.zeros((24, 2))
    call = {"bias": jnp.asarray(rows), "implementation": implementation, "block_q": 4, "block_k": 8}
    actual = jax.jit(lambda: attend(query, key, key, **call, return_statistics=True)[1].entropy)()
    np.testing.assert_allclose(actual, np.log([16, 1, 16, 1, 24]), rtol=1e-6)


@pytest.mark.parametrize("implementation", slow_but(["plain", "fused"], ["plain", "fused", "kernel"]))
def test_entropy_is_of_weights_divided_by_their_sum(implementation):
    """Weights of softpick are 2 / 4, 1 / 4, 0 and 0: the entropy is that of 2 / 3 and 1 / 3."""
    scores, key = jnp.log(jnp.array([[3.0, 2.0, 0.5, 0.5]])), jnp.eye(4)
    call = {"score": Dot(), "normalizer": normalizers.Softpick(), "implementation": implementation}
    actual = jax.jit(lambda: attend(scores, key, key, **call, return_statistics=True)[1].entropy)()
    np.testing.assert_allclose(actual, np.log(3) - np.log(2) * 2 / 3, rtol=1e-5)


def test_platforms_that_choose_differently():
    """Blocks on a CPU and all weights at once on a GPU are branches of one program; lowered only."""
    x = jax.ShapeDtypeStruct((300, 8), jnp.float32)
    for normalizer in KINDS:
        run = jax.jit(lambda x: attend(x, x, x, normalizer=normalizer, return_statistics=True)[1])
        text = run.trace(x).lower(lowering_platforms=("cpu", "cuda")).as_text()
        assert "stablehlo.case" in text and "tensor<300x256xf32>" in text and "tensor<300x300xf32>" in text


@pytest.mark.slow
@pytest.mark.parametrize("normalizer", KINDS, ids=lambda kind: type(kind).__name__)
def test_memory_is_linear_in_the_length(normalizer):
    """Four times the length takes less than six times XLA's plan of temporaries, where all weights take 16 times it."""

    def plan_bytes(length):
        x = jax.ShapeDtypeStruct((length, 8), jnp.float32)
        call = {"normalizer": normalizer, "implementation": "fused", "block_q": 64, "block_k": 64}
        run = jax.jit(lambda x: attend(x, x, x, mask=causal(), **call, return_statistics=True))
        return run.lower(x).compile().memory_analysis().temp_size_in_bytes

    assert plan_bytes(4096) < 6 * plan_bytes(1024)


def test_kernels_have_no_statistics():
    x = jnp.ones((16, 8), jnp.bfloat16)
    for implementation in ("cudnn", "flash", "linear"):
        with pytest.raises(InputError, match="computes the softmax alone, without its log-sum-exp and its statistics"):
            attend(x, x, x, return_statistics=True, implementation=implementation)
