"""Counter-based dropout of attention weights: any block of the mask can be recomputed and none is stored.

Plain and blockwise attention, forward and backward, with any block sizes, all drop the same pairs for the same `rng`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, UInt32


def dropout_bits(rng: Key[Array, ""], queries: int, keys: int) -> tuple[UInt32[Array, " Q"], UInt32[Array, " K"]]:
    """Sample one random word per query and one per key; whether a pair is dropped is a hash of its two words."""
    for_queries, for_keys = jax.random.split(rng)
    return jax.random.bits(for_queries, (queries,), jnp.uint32), jax.random.bits(for_keys, (keys,), jnp.uint32)


def dropout_factor(
    query_words: UInt32[Array, " Q"], key_words: UInt32[Array, " K"], rate: Float[Array, ""] | float
) -> Float[Array, "Q K"]:
    """Return 0 where the weight is dropped (with probability `rate`), 1 / (1 - rate) where it is kept (inverted
    dropout, Srivastava et al. 2014).

    The hash is the "lowbias32" finaliser found by C. Wellons' search (2018): every output
    bit depends on every input bit.
    """
    x = query_words[:, None] ^ key_words[None, :]
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    x = x ^ (x >> 16)
    uniform = (x >> 8).astype(jnp.float32) * 2.0**-24  # [0, 1)
    kept = (
        1.0 - rate if isinstance(rate, int | float) else jnp.where(rate < 1, 1.0 - rate, 1.0)
    )  # a rate of 1 keeps none
    return jnp.where(uniform >= rate, 1.0 / kept, 0.0)
