"""What a layer reads from earlier layers: the values of the first one, or the outputs of all of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.attention import attend
from attention_jax.ops.norm import rms_norm
from attention_jax.ops.scores import Dot


def mix_values(
    value: Float[Array, "... V"], first_value: Float[Array, "... V"], weights: Float[Array, "2"]
) -> Float[Array, "... V"]:
    """Value residual, l_1 v + l_2 v_1 with the values v_1 of the first layer at the same positions (Zhou et al. 2025,
    arXiv 2410.17897, learnable ResFormer).

    >>> mix_values(jnp.array([1.0, 2.0]), jnp.array([8.0, 4.0]), jnp.array([1.0, 0.5])).tolist()
    [5.0, 4.0]
    """
    weights = weights.astype(value.dtype)
    return weights[0] * value + weights[1] * first_value


def attend_over_depth(
    query: Float[Array, "D"], outputs: Float[Array, "B T S D"], epsilon: float = 1e-5
) -> Float[Array, "B T D"]:
    """Attention residuals, sum_i softmax_i(w . RMSNorm(v_i)) v_i over the embedding and the outputs v_i of the S - 1
    sub-layers so far, at each position alone, with a learned query w (Kimi Team 2026, arXiv 2603.15031, eq. 2 to 4).

    >>> outputs = jnp.array([[[[2.0, 0.0], [0.0, 4.0]]]])
    >>> attend_over_depth(jnp.zeros(2), outputs).tolist()  # their mean
    [[[1.0, 2.0]]]
    """
    keys = rms_norm(outputs, jnp.ones(query.shape), epsilon)
    attend_at = lambda key, value: attend(query[None].astype(key.dtype), key, value, score=Dot())[0]
    return jax.vmap(jax.vmap(attend_at))(keys, outputs)
