"""Alignments as latent variables, summed over exactly: hard attention, hidden Markov and monotonic alignments.

An alignment a assigns to each of T target positions one of S source positions. All functions are for one pair of
sequences (use `jax.vmap` for a batch), take and return logarithms of probabilities except `expected_monotonic`, and
leave out source positions from `source_length` on and target positions from `target_length` on.

The derivative of a log-likelihood with respect to `emission` is the posterior probability of each alignment given the
target, [T, S]:

>>> import jax
>>> align, emission = jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.9, 0.1]]))
>>> jnp.exp(hard_attention(align, emission)).round(4).tolist()
0.5
>>> print(jax.grad(hard_attention, argnums=1)(align, emission).round(4)[0, 0])
0.9
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attention_jax.ops.meshes import scan, vary_like
from attention_jax.ops.normalizers import log_sum_exp

__all__ = ["expected_monotonic", "hard_attention", "hidden_markov", "monotonic_transitions"]

Length = Int[Array, ""] | int | None


def hard_attention(
    align: Float[Array, "T S"],
    emission: Float[Array, "T S"],
    source_length: Length = None,
    target_length: Length = None,
) -> Float[Array, ""]:
    """Compute the log-likelihood of hard attention with independent alignments, log p(y) = sum_t log sum_s p(a_t = s)
    p(y_t | a_t = s), in nats (Deng et al. 2018; Wu et al. 2018, eq. 5).

    `align` holds log p(a_t = s), a log-softmax of attention scores, and `emission` log p(y_t | a_t = s).

    >>> align, emission = jnp.log(jnp.array([[0.5, 0.5]])), jnp.log(jnp.array([[0.8, 0.4]]))
    >>> print(jnp.exp(hard_attention(align, emission)).round(3))  # 0.5 * 0.8 + 0.5 * 0.4
    0.6
    """
    joint = _mask_padding(align, source_length) + _mask_padding(emission, source_length)
    return _zero_padding(target_length, _log_sum(joint)).sum()


def hidden_markov(
    initial: Float[Array, " S"],
    transition: Float[Array, "*steps S S"],
    emission: Float[Array, "T S"],
    source_length: Length = None,
    target_length: Length = None,
) -> Float[Array, ""]:
    """log p(y) = log sum_a p(a_1) prod_t p(a_t | a_{t-1}) prod_t p(y_t | a_t), by the forward algorithm (Vogel et al.
    1996; Wu & Cotterell 2019).

    `initial` [S] holds log p(a_1), `transition` log p(a_t = column | a_{t-1} = row), [S, S] for all steps or [T - 1, S,
    S] for each, and `emission` log p(y_t | a_t = s). With `monotonic_transitions` no alignment goes back.

    >>> third = jnp.full((3, 3), -jnp.log(3.0))
    >>> jnp.exp(hidden_markov(third[0], third, jnp.log(jnp.full((2, 3), 0.5)))).round(4).tolist()
    0.25
    """
    emission = _mask_padding(emission, source_length)
    transition = jnp.broadcast_to(transition, (len(emission) - 1, *transition.shape[-2:]))  # [T - 1, S, S]

    def step(forward, inputs):
        t, transition, emission = inputs
        new = _log_sum((forward[:, None] + transition).T) + emission  # [S]
        return (new if target_length is None else jnp.where(t < target_length, new, forward)), None

    steps = jnp.arange(1, len(emission)), transition, emission[1:]
    start = vary_like(initial + emission[0], target_length)
    forward = scan(step, start, steps)[0]
    return _log_sum(forward[None])[0]


def monotonic_transitions(scores: Float[Array, "... S S"], source_length: Length = None) -> Float[Array, "... S S"]:
    """Log-softmax of each row r over the source positions s >= r: transitions that do not go back (Wu & Cotterell
    2019), -inf elsewhere.

    >>> jnp.exp(monotonic_transitions(jnp.zeros((2, 2)))).tolist()
    [[0.5, 0.5], [0.0, 1.0]]
    """
    size = scores.shape[-1]
    ahead = jnp.triu(jnp.ones((size, size), bool)) & _is_real(size, source_length)[None, :]
    scores = _mask_padding(scores, source_length)
    scores = jnp.where(jnp.broadcast_to(ahead, scores.shape), scores, -jnp.inf)  # [..., S, S]
    total = _log_sum(scores.reshape(-1, size)).reshape(scores.shape[:-1])  # [..., S]
    has_position = jnp.isfinite(total)  # rows from source_length on have no allowed position
    return scores - jnp.where(has_position, total, 0.0)[..., None]


def expected_monotonic(
    stop: Float[Array, "T S"], source_length: Length = None, start: Float[Array, " S"] | None = None
) -> Float[Array, "T S"]:
    """The probabilities of hard monotonic alignments, p(a_t = s), [T, S] (Raffel et al. 2017, eq. 13 and 14).

    Target position t begins where the last one stopped and stops at each source position s with probability `stop` p_ts
    (in [0, 1], not a logarithm). So alpha_ts = p_ts q_ts with q_ts = (1 - p_t,s-1) q_t,s-1 + alpha_t-1,s. What passes
    the last source position is lost: rows may sum to less than 1. `start` are the probabilities of the position before
    the first target, the first source position unless given.

    >>> expected_monotonic(jnp.full((2, 2), 0.5)).tolist()
    [[0.5, 0.25], [0.25, 0.25]]
    """
    size = stop.shape[1]
    real = _is_real(size, source_length)
    stop = jnp.where(real[None, :], stop, 0.0)
    start = jnp.zeros((size,), stop.dtype).at[0].set(1.0) if start is None else start

    def row(previous, stop):
        passed = jnp.concatenate([jnp.zeros_like(stop[:1]), 1 - stop[:-1]])
        reach = lax.associative_scan(_compose, (passed, previous))[1]
        return stop * reach, stop * reach

    return scan(row, start, stop)[1]


def _compose(first, second):
    """Compose affine maps, pairs of slope and intercept: x -> b x + c after x -> a x + d."""
    return second[0] * first[0], second[0] * first[1] + second[1]


def _log_sum(x):
    """log sum_s exp(x) of each row; -inf with zero gradient where all are -inf."""
    is_finite = x != -jnp.inf
    return log_sum_exp(jnp.where(is_finite, x, 0.0), is_finite)


def _is_real(size, length):
    return jnp.arange(size) < (size if length is None else length)


def _mask_padding(x, length):
    """`x` with -inf in the columns from `length` on."""
    return x if length is None else jnp.where(jnp.broadcast_to(_is_real(x.shape[-1], length), x.shape), x, -jnp.inf)


def _zero_padding(length, x):
    return x if length is None else jnp.where(_is_real(len(x), length), x, 0.0)
