"""What a head makes of the values that it has pooled: one map less another, or what is not its own value.

Both are one line after `attend`. `MultiHeadAttention` has them as its options `differential` and `exclusive`.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.precision import accumulator


def subtract_maps(pooled: Float[Array, "H2 ..."], factor: Float[Array, "..."] | float) -> Float[Array, "H ..."]:
    """Differential attention, A_1 V - factor A_2 V, from what the maps 2 h and 2 h + 1 of each head h have pooled (Ye
    et al. 2024, arXiv 2410.05258, eq. 1).

    Both maps pool the same values, with a half of the head's queries and keys each; in the second version (Ye et al.
    2026, https://huggingface.co/blog/microsoft/diff-attn-v2) with queries of full width and the same keys, and a factor
    of each head and query, [H, Q, 1].

    >>> import jax
    >>> from attention_jax.ops.attention import attend
    >>> query, key, value = jnp.ones((2, 1, 4)), jnp.ones((2, 3, 4)), jnp.ones((3, 8))  # two maps of one head
    >>> subtract_maps(jax.vmap(attend, in_axes=(0, 0, None))(query, key, value), 0.75).shape
    (1, 1, 8)
    """
    wide = pooled.astype(accumulator(pooled.dtype))
    return (wide[0::2] - factor * wide[1::2]).astype(pooled.dtype)


def exclude_own(output: Float[Array, "... V"], value: Float[Array, "... V"]) -> Float[Array, "... V"]:
    """Exclusive self-attention, o - (o . v) / (v . v) v with the value v of the query's own position (Zhai 2026, arXiv
    2603.09078). Where v is 0 it is o.

    >>> exclude_own(jnp.array([[1.0, 2.0]]), jnp.array([[0.0, 3.0]])).tolist()
    [[1.0, 0.0]]
    """
    wide = accumulator(output.dtype)
    output, value, dtype = output.astype(wide), value.astype(wide), output.dtype
    square = jnp.sum(value**2, axis=-1, keepdims=True)
    share = jnp.sum(output * value, axis=-1, keepdims=True) / jnp.where(square > 0, square, 1.0)
    return (output - share * value).astype(dtype)
