"""Laws of fast weights: what linear attention, the delta rule and least squares store, and what a recurrence can count.

Keys are unit vectors [N, D], values are normal [N, V], and a memory is a function (key, value) -> what it returns for
its own keys [N, V].
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.linalg import expm

from attention_jax.laws.law import Attention
from attention_jax.laws.regression import ridge
from attention_jax.ops.attention import attend
from attention_jax.ops.delta import recurrent_delta
from attention_jax.ops.masks import causal
from attention_jax.ops.normalizers import Signed
from attention_jax.ops.scores import Dot

Memory = Callable[[jax.Array, jax.Array], jax.Array]
WIDTH = 64
"""Dimensions d of the keys."""


def hebbian(key, value):
    """q sum_i k_i v_i^T: attention with the dot product itself as the weight (linear attention)."""
    return attend(key, key, value, score=Dot(), normalizer=Signed())


def delta(key, value):
    """q S_N with S_i = S_(i-1) + k_i (v_i - k_i S_(i-1))^T: each pair is corrected once (Schlag et al. 2021)."""
    rate, decay = jnp.ones(len(key)), jnp.zeros(len(key))
    return key @ recurrent_delta(key, key, value, rate, decay)[1]


def least_squares(key, value):
    """q S with the S of least squared error: `ridge` with the linear kernel and hardly a penalty (recursive least
    squares, as in arXiv 2605.11196)."""
    return ridge(key, key, value, Dot(), Signed(), penalty=1e-4)


def pairs(seed: int, count: int) -> tuple[Float[Array, "N D"], Float[Array, "N V"]]:
    """`count` unit keys and normal values."""
    key, value = jax.random.normal(jax.random.key(seed), (2, count, WIDTH))
    return key / jnp.linalg.norm(key, axis=1, keepdims=True), value


def forgetting_error(memory: Memory, seed: int, count: int, draws: int = 16, last: bool = False) -> float:
    """The squared error of what is read over the square of what was written; only of the last pair with `last`."""

    def pair_errors(key, value):
        error, written = (memory(key, value) - value) ** 2, value**2
        return (error[-1].sum(), written[-1].sum()) if last else (error.sum(), written.sum())

    keys, values = zip(*(pairs(draws * seed + n, count) for n in range(draws)))
    error, written = jax.jit(jax.vmap(pair_errors))(jnp.stack(keys), jnp.stack(values))
    return float(error.sum() / written.sum())


def crosstalk(memory: Memory, seed: int = 0, count: int = 128) -> float:
    """The error over (N - 1) / d: each of the other keys adds its squared cosine, 1 / d on average, of a Hebbian memory
    (Schlag et al. 2021, section 4.1: no more than d pairs without interference)."""
    return forgetting_error(memory, seed, count) / ((count - 1) / WIDTH)


def last_pair(memory: Memory, seed: int = 0, count: int = 256) -> float:
    """The relative error of the last of N > d pairs: zero for the delta rule, (I - k k^T) S k + k v^T for |k| = 1
    (Yang et al. 2024, arXiv 2406.06484), however many pairs came before."""
    return forgetting_error(memory, seed, count, draws=4, last=True) ** 0.5


def residual_share(memory: Memory, seed: int = 0, count: int = 256) -> float:
    """The error over 1 - d / N: least squares explains d of N dimensions of random values, and no linear memory of d
    dimensions has a smaller error; without error only up to d pairs (as a memory: arXiv 2605.11196)."""
    return forgetting_error(memory, seed, count) / (1 - WIDTH / count)


def exact_rate(beta: Float[Array, " T"], key: Float[Array, "T D"]) -> Float[Array, " T"]:
    """(1 - exp(-beta |k|^2)) / |k|^2, the rate with which a step of the delta rule is its exact flow."""
    square = jnp.sum(key**2, axis=1)
    return -jnp.expm1(-beta * square) / square


def exact_flow(rate, seed: int = 0) -> float:
    """The delta rule with `rate(beta, key)` against its flow dS/dt = k (v - k S)^T for times beta, by the exponential
    of the matrix [[-k k^T, k v^T], [0, 0]] in float64 (EFLA, arXiv 2512.12602). Keys are not normalized."""
    steps, width = 64, 8
    key, value = jax.random.normal(jax.random.key(seed), (2, steps, width))
    beta = jax.random.uniform(jax.random.key(seed + 1), (steps,))
    state = np.zeros((width, width))
    for k, v, time in zip(*(np.asarray(a, np.float64) for a in (key, value, beta))):
        generator = np.block([[-np.outer(k, k), np.outer(k, v)], [np.zeros((width, 2 * width))]])
        flow = expm(time * generator)[:width]
        state = flow[:, :width] @ state + flow[:, width:]
    actual = jax.jit(recurrent_delta)(key, key, value, rate(beta, key), jnp.zeros(steps))[1]
    return float(np.abs(np.asarray(actual, np.float64) - state).max() / np.abs(state).max())


def dual_form(query, key, value, log_decay):
    """sum_(s <= t) exp(g_(s+1) + ... + g_t) (q_t . k_s) v_s as causal attention: the decay is part of q and k."""
    total = jnp.cumsum(log_decay)[:, None]
    return attend(query * jnp.exp(total), key * jnp.exp(-total), value, score=Dot(), normalizer=Signed(), mask=causal())


def duality(form, seed: int = 0) -> float:
    """Causal attention against the state-space model h_t = a_t h_(t-1) + k_t v_t^T, y_t = q_t h_t in float64 (state
    space duality, Dao & Gu 2024, section 5)."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 128, 8))
    log_decay = -0.1 * jax.random.uniform(jax.random.key(seed + 1), (128,))
    rows = [np.asarray(a, np.float64) for a in (query, key, value, jnp.exp(log_decay))]
    state, exact = np.zeros((8, 8)), []
    for q, k, v, a in zip(*rows):
        state = a * state + np.outer(k, v)
        exact.append(q @ state)
    actual = np.asarray(jax.jit(form)(query, key, value, log_decay), np.float64)
    return float(np.abs(actual - np.array(exact)).max() / np.abs(exact).max())


def state_rank(attention: Attention, seed: int = 0) -> float:
    """The rank of the weights of late queries on early keys, at most the number of state dimensions of an equal
    recurrence (semiseparable matrices, Dao & Gu 2024, definition 3.1): D = 8 here, with a tolerance of 1e-5."""
    query, key = jax.random.normal(jax.random.key(seed), (2, 64, 8))
    late = jax.jit(attention)(query, key, jnp.eye(64))[32:, :32]
    values = np.linalg.svd(np.asarray(late, np.float64), compute_uv=False)
    return float((values > 1e-5 * values[0]).sum())


def linear(query, key, value):
    """Causal attention with weights q . k."""
    return attend(query, key, value, score=Dot(), normalizer=Signed(), mask=causal())


def parity(rates: Float[Array, " N"], seed: int = 0, words: int = 2_000) -> float:
    """The best accuracy of a threshold on the state S_t = (1 - beta b_t) S_(t-1) for the parity of 256 random bits,
    over all thresholds and `rates` beta: with an eigenvalue 1 - beta in [0, 1] the state is a monotone function of the
    number of ones, and with -1 it changes its sign with each (Grazzi et al. 2024, arXiv 2411.12537, theorem 1)."""
    bits = jax.random.bernoulli(jax.random.key(seed), 0.5, (words, 256)).astype(jnp.float32)

    def last(beta, bits):
        zeros, initial_state = jnp.zeros_like(bits), jnp.ones((1, 1))
        return recurrent_delta(zeros[:, None], bits[:, None], zeros[:, None], beta + zeros, zeros, state=initial_state)[
            1
        ]

    states = jax.jit(jax.vmap(jax.vmap(last, (None, 0)), (0, None)))(rates, bits)[..., 0, 0]  # [N, words]
    return max(best_threshold(row, np.asarray(bits.sum(1)) % 2 == 1) for row in np.asarray(states))


def best_threshold(states, odd) -> float:
    """The accuracy of the best rule "odd if the state is above, or below, a threshold"."""
    order = np.argsort(states, kind="stable")
    ends = np.append(np.diff(states[order]) != 0, True)  # equal states are on one side
    right = np.cumsum(np.where(odd[order], -1, 1))[ends] + odd.sum()  # even up to here, odd after
    share = np.append(right, odd.sum()) / len(odd)
    return float(max(share.max(), 1 - share.min()))


def errors_figure(seed: int = 0) -> dict[str, tuple]:
    """{memory: (N / d, relative squared error)} for 8 to 512 pairs."""
    counts = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
    memories = {"Hebbian": hebbian, "delta rule": delta, "least squares": least_squares}
    find = partial(forgetting_error, seed=seed, draws=2)
    return {
        name: ([n / WIDTH for n in counts], [find(memory, count=n) for n in counts])
        for name, memory in memories.items()
    }
