"""The delta rule: a state that is corrected towards each new value, one position at a time or in chunks.

    S_t = exp(g_t) (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T        o_t = q_t S_t

(Yang et al. 2024a, DeltaNet, with g = 0; Yang et al. 2024b, gated DeltaNet, eq. 10). The state [D, V] predicts the
value of k_t as k_t S; a step moves this prediction by beta_t towards v_t, where linear attention only adds. With keys
of norm 1 the state is stable for beta in [0, 2], and with beta = 1 the last pair is stored exactly.

A chunk is computed at once by solving for the corrections u_t = beta_t (v_t - exp(g_t) k_t S_{t-1}) (the UT transform,
Yang et al. 2024a, section 3.2): they solve a triangular system, and then the chunk is that of `ops/retention.py` with u
as values.

All functions are for one sequence and one head; use `jax.vmap` for more.

>>> key, value = jnp.array([[1.0], [1.0]]), jnp.array([[3.0], [5.0]])
>>> output, state = recurrent_delta(key, key, value, jnp.ones(2), jnp.zeros(2))
>>> output.tolist()  # the second value replaces the first
[[3.0], [5.0]]
"""

from functools import partial

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from attention_jax.ops import retention
from attention_jax.ops.meshes import scan
from attention_jax.ops.retention import CHUNK, Length, decay_matrix, first_state, over_chunks, zero_padding

__all__ = ["chunked_delta", "recurrent_delta"]


def recurrent_delta(
    query: Float[Array, "T D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T V"],
    beta: Float[Array, " T"],
    log_decay: Float[Array, " T"],
    length: Length = None,
    state: Float[Array, "D V"] | None = None,
) -> tuple[Float[Array, "T V"], Float[Array, "D V"]]:
    """Compute the outputs and the last state of the delta rule, one position at a time.

    `beta` is the rate of correction and `log_decay` g, zero for DeltaNet. Positions from `length` on, if it is given,
    are padding: they change nothing, and their output is zero. `state` is that before the first position, zero unless
    given.
    """
    query, key, value, beta, log_decay = map(jnp.asarray, (query, key, value, beta, log_decay))
    rows = zero_padding((query, key, value, beta, log_decay), length)

    def step(state, row):
        query, key, value, beta, decay = row
        state = jnp.exp(decay) * state
        state = state + jnp.outer(key, beta * (value - key @ state))
        return state, query @ state

    state, output = scan(step, first_state(state, *rows[1:3]), rows)
    return output.astype(value.dtype), state


def chunked_delta(
    query: Float[Array, "T D"],
    key: Float[Array, "T D"],
    value: Float[Array, "T V"],
    beta: Float[Array, " T"],
    log_decay: Float[Array, " T"],
    length: Length = None,
    state: Float[Array, "D V"] | None = None,
    chunk: int = CHUNK,
) -> tuple[Float[Array, "T V"], Float[Array, "D V"]]:
    """The delta rule computed in chunks: equal to `recurrent_delta`, `chunk` positions at a time."""
    query, key, value, beta, log_decay = map(jnp.asarray, (query, key, value, beta, log_decay))
    rows = zero_padding((query, key, value, beta, log_decay), length)
    return over_chunks(delta_chunk, first_state(state, *rows[1:3]), rows, chunk, value.dtype)


def delta_chunk(state, query, key, value, beta, log_decay):
    """(state after, outputs) of one chunk."""
    start = jnp.exp(jnp.cumsum(log_decay))
    earlier = jnp.tril(decay_matrix(log_decay) * (key @ key.T), -1)  # [T, T]
    target = value - start[:, None] * (key @ state)  # [T, V]
    solve = partial(solve_triangular, lower=True, unit_diagonal=True)
    correction = solve(jnp.eye(len(key), dtype=key.dtype) + beta[:, None] * earlier, beta[:, None] * target)
    return retention.retention_chunk(state, query, key, correction, log_decay)
