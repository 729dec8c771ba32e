"""Retention: causal linear attention with decay, as a matrix of weights, as a recurrence, and in chunks.

    o_t = sum_{s <= t} exp(g_{s+1} + ... + g_t) (q_t . k_s) v_s

with a log decay g_t <= 0 for every position. A constant g is the retention of RetNet (Sun et al. 2023), with g_t =
log(gamma); a g_t that depends on the input is the state space duality of Mamba-2 (Dao & Gu 2024, sections 5 and 6),
with q = C, k = B, v = Delta x and g = Delta A. Weights may be negative and are not normalized, so this is not a special
case of `attend`. The three forms give the same numbers: `quadratic_retention` is a product of matrices as in attention,
`recurrent_retention` is for decoding, and `chunked_retention` is the fastest on long sequences, in time and
memory linear in T.

All functions are for one sequence and one head; use `jax.vmap` for more.

>>> query, key, value = jnp.ones((3, 1)), jnp.ones((3, 1)), jnp.array([[1.0], [0.0], [0.0]])
>>> quadratic_retention(query, key, value, jnp.full(3, jnp.log(0.5))).tolist()
[[1.0], [0.5], [0.25]]
>>> output, state = recurrent_retention(query, key, value, jnp.full(3, jnp.log(0.5)))
>>> output.tolist(), state.tolist()
([[1.0], [0.5], [0.25]], [[0.25]])
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.meshes import scan
from attention_jax.ops.precision import accumulator

__all__ = ["chunked_retention", "quadratic_retention", "recurrent_retention", "retnet_decays"]

CHUNK = 64
"""Positions that `chunked_retention` computes together by default."""

Length = Int[Array, ""] | int | None


def retnet_decays(heads: int) -> Float[Array, " H"]:
    """Return the log decay of each head, log(1 - 2^(-5 - h)) (Sun et al. 2023, section 2.2).

    >>> print(jnp.exp(retnet_decays(2)))
    [0.96875  0.984375]
    """
    return jnp.log1p(-jnp.exp2(-5.0 - jnp.arange(heads, dtype=jnp.float32)))


def quadratic_retention(
    query: Float[Array, "T D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T V"],
    log_decay: Float[Array, " T"],
    length: Length = None,
) -> Float[Array, "T V"]:
    """(Q K^T * D) V with D_ts = exp(g_{s+1} + ... + g_t) for s <= t and 0 otherwise (Sun et al. 2023, eq. 5).

    Positions from `length` on, if it is given, are padding: they change nothing, and their output is zero.
    """
    query, key, value, log_decay = map(jnp.asarray, (query, key, value, log_decay))
    if not len(value):
        return value
    rows = zero_padding((query, key, value, log_decay), length)
    state = jnp.zeros((key.shape[1], value.shape[1]), rows[0].dtype)
    return retention_chunk(state, *rows)[1].astype(value.dtype)


def recurrent_retention(
    query: Float[Array, "T D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T V"],
    log_decay: Float[Array, " T"],
    length: Length = None,
    state: Float[Array, "D V"] | None = None,
) -> tuple[Float[Array, "T V"], Float[Array, "D V"]]:
    """Return the outputs and last state of S_t = exp(g_t) S_{t-1} + k_t v_t^T, o_t = q_t S_t (Sun et al. 2023, eq. 6).

    `state` is the initial state, zero by default; `length` as in `quadratic_retention`. The returned state is the one
    after the last position before the padding.
    """
    query, key, value, log_decay = map(jnp.asarray, (query, key, value, log_decay))
    rows = zero_padding((query, key, value, log_decay), length)

    def step(state, row):
        query, key, value, decay = row
        state = jnp.exp(decay) * state + jnp.outer(key, value)
        return state, query @ state

    state, output = scan(step, first_state(state, *rows[1:3]), rows)
    return output.astype(value.dtype), state


def chunked_retention(
    query: Float[Array, "T D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T V"],
    log_decay: Float[Array, " T"],
    length: Length = None,
    state: Float[Array, "D V"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "T V"], Float[Array, "D V"]]:
    """Retention in chunks of `chunk` positions, equal to `recurrent_retention`: earlier chunks are summed in the state,
    pairs within a chunk are computed as a matrix (Sun et al. 2023, eq. 7; Dao & Gu 2024, section 6).

    Returns the outputs and the last state; `length` and `state` are as in `recurrent_retention`.

    >>> query, key, value = jnp.ones((3, 1)), jnp.ones((3, 1)), jnp.array([[1.0], [0.0], [0.0]])
    >>> output, state = chunked_retention(query, key, value, jnp.full(3, jnp.log(0.5)), chunk=2)
    >>> output.tolist(), state.tolist()
    ([[1.0], [0.5], [0.25]], [[0.25]])
    """
    query, key, value, log_decay = map(jnp.asarray, (query, key, value, log_decay))
    rows = zero_padding((query, key, value, log_decay), length)
    return over_chunks(retention_chunk, first_state(state, *rows[1:3]), rows, chunk, value.dtype)


def retention_chunk(state, query, key, value, log_decay):
    """(state after, outputs) of one chunk."""
    within = decay_matrix(log_decay)
    start = jnp.exp(jnp.cumsum(log_decay))  # of the state, up to each position
    output = start[:, None] * (query @ state) + (within * (query @ key.T)) @ value  # [T, V]
    return start[-1] * state + (within[-1][:, None] * key).T @ value, output


def decay_matrix(log_decay: Float[Array, " T"]) -> Float[Array, "T T"]:
    """Return the matrix of exp(g_{s+1} + ... + g_t) in row t and column s <= t, and 0 in the columns after t.

    Each sum is taken by itself: a difference of two sums from the first position would have their rounding error, and
    be NaN after a g of -inf, which clears the state.

    >>> print(decay_matrix(jnp.log(jnp.array([0.1, 0.5, 0.2]))).round(3))
    [[1.  0.  0. ]
     [0.5 1.  0. ]
     [0.1 0.2 1. ]]
    """
    past = jnp.tril(jnp.ones((len(log_decay), len(log_decay)), bool))
    within = jnp.where(jnp.tril(past, -1), log_decay[:, None], 0.0)  # g_t in the columns s < t
    return jnp.where(past, jnp.exp(jnp.cumsum(within, axis=0)), 0.0)


def zero_padding(rows: tuple[jax.Array, ...], length: Length) -> tuple[jax.Array, ...]:
    """Cast the arrays to the accumulation type and zero all positions from `length` on."""
    precision = accumulator(jnp.result_type(*rows))
    rows = tuple(x.astype(precision) for x in rows)
    if length is None:
        return rows
    real = jnp.arange(len(rows[0])) < length
    return tuple(jnp.where(real if x.ndim == 1 else real[:, None], x, 0.0) for x in rows)


def first_state(state, key, value) -> Float[Array, "D V"]:
    """Return `state`, or zeros if it is None."""
    return jnp.zeros((key.shape[1], value.shape[1]), key.dtype) if state is None else state.astype(key.dtype)


def over_chunks(compute, state, rows, chunk: int, dtype):
    """(outputs [T, V], last state) of `compute(state, *rows of a chunk) -> (state, outputs)`. The last chunk is filled
    with zeros, which leave the state as it is."""
    size = max(1, min(chunk, len(rows[0])))
    count = -(-len(rows[0]) // size)
    fill = lambda x: jnp.pad(x, ((0, count * size - len(x)), *[(0, 0)] * (x.ndim - 1)))
    blocks = [fill(x).reshape(count, size, *x.shape[1:]) for x in rows]  # [chunks, size, ...]
    state, output = scan(lambda state, block: compute(state, *block), state, blocks)
    return output.reshape(count * size, output.shape[-1])[: len(rows[0])].astype(dtype), state
