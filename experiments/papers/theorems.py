"""Theorems about attention as numbers: a law measures one number of a subject, and a broken subject misses its bound.

`LAWS` has them by metric; experiments/laws.toml has the bounds and sources, docs/laws.md the equations. Three of the
laws say something about any attention function, and `launch.py check` measures these: `models/attention_laws.py`.
"""

import functools
import math
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.sparse.linalg import cg
from scipy.linalg import expm

from attention_jax.models.attention_laws import dispersion, growth, permutation, winner_weight
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.delta import recurrent_delta
from attention_jax.ops.head_outputs import exclude_own
from attention_jax.ops.masks import causal, sliding_window
from attention_jax.ops.normalizers import ReluPower, Sigmoid, Signed, Softmax, Sparsemax
from attention_jax.ops.pooling import LocalLinear
from attention_jax.ops.scores import Dot, Gaussian
from attention_jax.report.curves import line_panels

POINTS = (1_000, 4_000, 16_000, 64_000)
"""Points of a regression, of which rates are powers."""
KEYS = (16, 4_096, 65_536)
"""Numbers of keys among which one wins."""
WIDTH = 64
"""Dimensions d of the keys of a memory."""


def relative_error(actual, exact) -> float:
    """The largest difference over the largest exact value."""
    actual, exact = (np.asarray(x, np.float64) for x in (actual, exact))
    return float(np.abs(actual - exact).max() / np.abs(exact).max())


# --- kernel regression: an estimator is a function (query [Q, D], x [K, D], y [K, V], width) -> [Q, V]


def local_constant(query, x, y, width):
    """sum_i w_i y_i, w_i ~ exp(-|q - x_i|^2 / 2 h^2) (Nadaraya 1964; Watson 1964)."""
    return attend(query, x, y, score=Gaussian(width))


def local_linear(query, x, y, width):
    """The a of min over (a, b) of sum_i w_i (y_i - a - b (x_i - q))^2 (Stone 1977; Fan 1992)."""
    return attend(query, x, y, score=Gaussian(width), pool=LocalLinear())


def on_circle(attention):
    """Attention as an estimator in one dimension: inputs are points of a circle with a radius of 1 / width, on which a
    dot product is a constant minus half of the squared distance (d2l 11.3.1)."""
    point = lambda x, width: jnp.concatenate([jnp.cos(x), jnp.sin(x)], axis=1) / width
    return lambda query, x, y, width: attention(point(query, width), point(x, width), y)


def mean_squared_error(estimator, points: int, at: float) -> float:
    """Squared bias + variance of the estimate of sin 3x + 2x at one query, for n equally spaced inputs in [0, 1] and
    noise of 0.3. An estimator is linear in y, so that its gradient with respect to y has its weights."""
    x, width = jnp.arange(0.5, points) / points, 0.3 * points**-0.2
    curve = lambda x: jnp.sin(3 * x) + 2 * x
    estimate = lambda y: estimator(jnp.full((1, 1), at), x[:, None], y[:, None], width)[0, 0]
    mean, weights = jax.jit(jax.value_and_grad(estimate))(curve(x))
    return float((mean - curve(at)) ** 2 + 0.3**2 * jnp.sum(weights**2))


def rate(at: float, estimator, seed: int = 0) -> float:
    """The power of n with which the expected squared error falls for h ~ n^(-1/5), which balances h^4 and 1 / (n h); at
    the boundary the bias of the local constant is of order h instead of h^2 (Fan & Gijbels 1996, section 3.2.5)."""
    errors = [mean_squared_error(estimator, n, at) for n in POINTS]
    return float(np.polyfit(np.log(POINTS), np.log(errors), 1)[0])


def ridge(query, x, y, score=Gaussian(), kernel=jnp.exp, penalty: float = 0.1):
    """k(q, x) (K + lambda I)^-1 y, solved by conjugate gradients with `attend` as the product K a, in linear memory."""
    product = partial(attend, score=score, normalizer=kernel)
    dual, _ = cg(lambda a: product(x, x, a) + penalty * a, y, tol=1e-7, maxiter=1_000)
    return product(query, x, dual)


def normal_equations(solver, seed: int = 0) -> float:
    """The error of kernel ridge regression against the normal equations in float64."""
    at, key = (np.asarray(a, np.float64) for a in jax.random.normal(jax.random.key(seed), (2, 300, 2)))
    value = np.sin(2 * key)
    kernel = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 2)
    exact = kernel(at, key) @ np.linalg.solve(kernel(key, key) + 0.1 * np.eye(len(key)), value)
    return relative_error(jax.jit(solver)(*(jnp.asarray(a, jnp.float32) for a in (at, key, value))), exact)


def parallax(query, key, value, probe):
    """mean_w(v) + cov_w(v, k) r with the probe r [Q, D]: the covariance is the derivative of `attend` along r."""
    mean, slope = jax.jvp(lambda query: attend(query, key, value, score=Dot()), (query,), (probe,))
    return mean + slope


def best_probe(query, key):
    """cov_w(k, k)^-1 (q - mean_w(k)) [Q, D]: the probe of the least-squares slope under the weights of `attend`."""
    weights = attention_weights(query, key, score=Dot())
    mean = weights @ key
    away = key[None] - mean[:, None]  # [Q, K, D]
    covariance = jnp.einsum("qk,qkd,qke->qde", weights, away, away) + 0.1 * jnp.eye(key.shape[1])[None]
    return jnp.linalg.solve(covariance, (query - mean)[..., None])[..., 0]


def as_local_linear(estimator, seed: int = 0) -> float:
    """The error of Parallax with the best probe as local linear attention."""
    rows = jax.random.normal(jax.random.key(seed), (3, 200, 3))
    exact = jax.jit(lambda *rows: attend(*rows, score=Dot(), pool=LocalLinear(ridge=0.1)))(*rows)
    return relative_error(jax.jit(lambda *rows: estimator(*rows, best_probe(*rows[:2])))(*rows), exact)


# --- weights of attention functions (query [Q, D], key [K, D], value [K, V]) -> [Q, V]


sparse = partial(attend, normalizer=Sparsemax())
sigmoid = partial(attend, normalizer=Sigmoid())
window_of_three = partial(attend, mask=sliding_window(3))
linear = partial(attend, score=Dot(), normalizer=Signed(), mask=causal())


def sigmoid_with_bias(query, key, value):
    """Sigmoid attention with the bias -log n of Ramapuram et al. 2024."""
    return attend(query, key, value, normalizer=Sigmoid(-jnp.log(jnp.float32(len(key)))))


def exclusive(query, key, value):
    """Exclusive self-attention (arXiv 2603.09078)."""
    return exclude_own(attend(query, key, value), value)


def concentration(attention, seed: int = 0) -> float:
    """The least weight of a winner among 16 to 65,536 keys."""
    return min(winner_weight(attention, keys) for keys in KEYS)


def retrieval(sharpness: float, attention, seed: int = 0) -> float:
    """The largest error of one step from a damaged pattern, of 128 with 64 signs, 8 of them flipped, for q = beta x.
    `sharpness` is beta Delta, where Delta is the lead of the pattern over the second one in x . k."""
    patterns = jax.random.rademacher(jax.random.key(seed), (128, 64), jnp.float32)
    damaged = patterns.at[:, :8].multiply(-1)
    first, second = jax.lax.top_k(damaged @ patterns.T, 2)[0].T
    query = (sharpness * 64**0.5 / (first - second))[:, None] * damaged  # sqrt(D): the scale of the default score
    return float(jnp.max(jnp.abs(jax.jit(attention)(query, patterns, patterns) - patterns)))


def own_value(attention, seed: int = 0) -> float:
    """The largest |cosine| of an output with the value of its own position."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 32, 8))
    output = jax.jit(attention)(query, key, value)
    norms = jnp.linalg.norm(output, axis=1) * jnp.linalg.norm(value, axis=1)
    return float(jnp.max(jnp.abs(jnp.sum(output * value, axis=1)) / jnp.maximum(norms, 1e-30)))


def closure(attention, seed: int = 0) -> float:
    """Pairs of positions in which the nonzero blocks of the Jacobian of 1, 2, 3 and 8 layers differ from the Boolean
    power of the mask of `window_of_three`."""
    mask = np.array([[q - 2 <= k <= q for k in range(16)] for q in range(16)], np.int64)
    layer = lambda x, mix: attention(x, x, x @ mix[:4] / 2)  # of about the same size

    def count_errors(depth):
        x, *mixes = jax.random.normal(jax.random.key(seed), (depth + 1, 16, 4))
        jacobian = jax.jit(jax.jacobian(lambda x: functools.reduce(layer, mixes, x)))(x)
        depends = np.asarray(jnp.abs(jacobian).sum((1, 3)) > 0)
        return int((depends != (np.linalg.matrix_power(mask, depth) > 0)).sum())

    return float(sum(map(count_errors, (1, 2, 3, 8))))


# --- a trained head that must output zero: does it need a sink?


def examples(rng, batch: int):
    """Inputs [B, T, 11]: contents [8], flags of the first position and of the trigger, a constant; and targets
    [B, T, 8]: at the trigger the mean of the contents up to it, elsewhere zero."""
    content_rng, trigger_rng = jax.random.split(rng)
    first = jnp.arange(16) == 0
    content = jnp.where(first[None, :, None], 0.0, jax.random.normal(content_rng, (batch, 16, 8)))
    trigger = jnp.arange(16)[None] == jax.random.randint(trigger_rng, (batch, 1), 4, 16)
    flags = jnp.stack([first[None] | (trigger & False), trigger, trigger | True], axis=-1).astype(jnp.float32)
    mean = jnp.cumsum(content, axis=1) / jnp.arange(1.0, 17.0)[None, :, None]
    return jnp.concatenate([content, flags], axis=-1), jnp.where(trigger[..., None], mean, 0.0)


@functools.cache
def train_head(normalizer, seed: int, steps: int = 2_000) -> tuple[float, float]:
    """Train one head of causal attention on the trigger-conditional task (Ran-Milo 2026, arXiv 2603.11487). Returns its
    mean weight on the first key where the output must be zero, and its loss over that of the output zero."""
    rngs = jax.random.split(jax.random.key(seed), 4)
    params = {name: 0.3 * jax.random.normal(rng, (11, 8)) for rng, name in zip(rngs, ("query", "key", "value"))}
    rules = {"mask": causal(), "normalizer": normalizer}
    optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))
    project = lambda params, x: tuple(x @ params[name] for name in ("query", "key", "value"))

    def loss(params, rng):
        x, target = examples(rng, 64)
        output = jax.vmap(lambda x: attend(*project(params, x), **rules))(x)
        return jnp.mean((output - target) ** 2) / jnp.mean(target**2)

    def step(state, rng):
        params, memory = state
        update, memory = optimizer.update(jax.grad(loss)(params, rng), memory)
        return (optax.apply_updates(params, update), memory), None

    run = jax.jit(lambda params, rngs: jax.lax.scan(step, (params, optimizer.init(params)), rngs)[0][0])
    params = run(params, jax.random.split(rngs[3], steps))
    x, _ = examples(jax.random.key(seed + 1_000), 512)
    first_weight = lambda x: attention_weights(*project(params, x)[:2], **rules)[:, 0]
    zero = (x[..., 9] == 0) & (jnp.arange(16) > 0)[None]  # positions with another key to attend to
    share = float(jnp.sum(jax.jit(jax.vmap(first_weight))(x) * zero) / jnp.sum(zero))
    return share, float(jax.jit(loss)(params, jax.random.key(seed + 2_000)))


# --- fast weights: a memory is a function (key [N, D], value [N, V]) -> what it returns for its own keys [N, V]


def hebbian(key, value):
    """q sum_i k_i v_i^T: attention with the dot product itself as the weight (linear attention)."""
    return attend(key, key, value, score=Dot(), normalizer=Signed())


def delta(key, value):
    """q S_N with S_i = S_(i-1) + k_i (v_i - k_i S_(i-1))^T: each pair is corrected once (Schlag et al. 2021)."""
    return key @ recurrent_delta(key, key, value, jnp.ones(len(key)), jnp.zeros(len(key)))[1]


def least_squares(key, value):
    """q S with the S of least squared error: `ridge` with the linear kernel and hardly a penalty."""
    return ridge(key, key, value, Dot(), Signed(), penalty=1e-4)


def forgetting_error(memory, seed: int, count: int, draws: int = 16, last: bool = False) -> float:
    """The squared error of what is read over the square of what was written, of `count` unit keys and normal values;
    only of the last pair with `last`."""
    pairs = [jax.random.normal(jax.random.key(draws * seed + n), (2, count, WIDTH)) for n in range(draws)]
    keys = jnp.stack([key / jnp.linalg.norm(key, axis=1, keepdims=True) for key, _ in pairs])

    def sums(key, value):
        error, written = (memory(key, value) - value) ** 2, value**2
        return (error[-1].sum(), written[-1].sum()) if last else (error.sum(), written.sum())

    error, written = jax.jit(jax.vmap(sums))(keys, jnp.stack([value for _, value in pairs]))
    return float(error.sum() / written.sum())


def crosstalk(memory, seed: int) -> float:
    """The error over (N - 1) / d: each of the other keys adds its squared cosine, 1 / d on average."""
    return forgetting_error(memory, seed, 128) / (127 / WIDTH)


def last_pair(memory, seed: int) -> float:
    """The relative error of the last of 256 pairs, however many came before."""
    return forgetting_error(memory, seed, 256, draws=4, last=True) ** 0.5


def residual_share(memory, seed: int) -> float:
    """The error over 1 - d / N, which no linear memory of d dimensions falls below."""
    return forgetting_error(memory, seed, 256) / (1 - WIDTH / 256)


# --- recurrences


def exact_rate(beta, key):
    """(1 - exp(-beta |k|^2)) / |k|^2, the rate with which a step of the delta rule is its exact flow."""
    square = jnp.sum(key**2, axis=1)
    return -jnp.expm1(-beta * square) / square


def exact_flow(rate, seed: int = 0) -> float:
    """The delta rule with `rate(beta, key)` against its flow dS/dt = k (v - k S)^T for times beta: the exponential of
    the matrix [[-k k^T, k v^T], [0, 0]] in float64. Keys are not normalized."""
    key, value = jax.random.normal(jax.random.key(seed), (2, 64, 8))
    beta, state = jax.random.uniform(jax.random.key(seed + 1), (64,)), np.zeros((8, 8))
    for k, v, time in zip(*(np.asarray(a, np.float64) for a in (key, value, beta))):
        flow = expm(time * np.block([[-np.outer(k, k), np.outer(k, v)], [np.zeros((8, 16))]]))[:8]
        state = flow[:, :8] @ state + flow[:, 8:]
    return relative_error(jax.jit(recurrent_delta)(key, key, value, rate(beta, key), jnp.zeros(64))[1], state)


def dual_form(query, key, value, log_decay):
    """sum_(s <= t) exp(g_(s+1) + ... + g_t) (q_t . k_s) v_s as causal attention: the decay is part of q and k."""
    total = jnp.cumsum(log_decay)[:, None]
    return linear(query * jnp.exp(total), key * jnp.exp(-total), value)


def duality(form, seed: int = 0) -> float:
    """Causal attention against the state-space model h_t = a_t h_(t-1) + k_t v_t^T, y_t = q_t h_t in float64."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 128, 8))
    log_decay, state, exact = -0.1 * jax.random.uniform(jax.random.key(seed + 1), (128,)), np.zeros((8, 8)), []
    for q, k, v, a in zip(*(np.asarray(a, np.float64) for a in (query, key, value, jnp.exp(log_decay)))):
        state = a * state + np.outer(k, v)
        exact.append(q @ state)
    return relative_error(jax.jit(form)(query, key, value, log_decay), exact)


def state_rank(attention, seed: int = 0) -> float:
    """The rank of the weights of 32 late queries on 32 early keys of D = 8 dimensions, with a tolerance of 1e-5."""
    query, key = jax.random.normal(jax.random.key(seed), (2, 64, 8))
    late = jax.jit(attention)(query, key, jnp.eye(64))[32:, :32]
    values = np.linalg.svd(np.asarray(late, np.float64), compute_uv=False)
    return float((values > 1e-5 * values[0]).sum())


def parity(rates, seed: int = 0, words: int = 2_000) -> float:
    """The best accuracy of a threshold on the state S_t = (1 - beta b_t) S_(t-1) for the parity of 256 random bits,
    over all thresholds and `rates` beta."""
    bits = jax.random.bernoulli(jax.random.key(seed), 0.5, (words, 256)).astype(jnp.float32)

    def last(beta, bits):
        zeros = jnp.zeros_like(bits)
        step = partial(recurrent_delta, state=jnp.ones((1, 1)))
        return step(zeros[:, None], bits[:, None], zeros[:, None], beta + zeros, zeros)[1]

    states = jax.jit(jax.vmap(jax.vmap(last, (None, 0)), (0, None)))(rates, bits)[..., 0, 0]  # [N, words]
    return max(best_threshold(row, np.asarray(bits.sum(1)) % 2 == 1) for row in np.asarray(states))


def best_threshold(states, odd) -> float:
    """The accuracy of the best rule "odd if the state is at least, or below, a threshold"."""
    thresholds = np.append(np.unique(states), np.inf)
    shares = ((states >= thresholds[:, None]) == odd).mean(1)
    return float(max(shares.max(), 1 - shares.min()))


LAWS = {
    "kernel.rate_inside": (partial(rate, 0.5), on_circle(attend)),
    "kernel.rate_boundary": (partial(rate, 0.0), on_circle(attend)),
    "kernel.local_linear_rate_boundary": (partial(rate, 0.0), local_linear),
    "kernel.ridge_error": (normal_equations, ridge),
    "kernel.parallax_error": (as_local_linear, parallax),
    "weights.dispersion": (dispersion, attend),
    "weights.concentration": (concentration, sparse),
    "weights.retrieval_error": (partial(retrieval, 1.01), sparse),
    "weights.retrieval_error_below": (partial(retrieval, 0.9), sparse),
    "weights.growth_sigmoid": (growth, sigmoid),
    "weights.growth": (growth, sigmoid_with_bias),
    "weights.sink_softmax": (lambda normalizer, seed: train_head(normalizer, seed)[0], Softmax()),
    "weights.sink_relu": (lambda normalizer, seed: train_head(normalizer, seed)[0], ReluPower(1)),
    "weights.sink_softmax_loss": (lambda normalizer, seed: train_head(normalizer, seed)[1], Softmax()),
    "weights.sink_relu_loss": (lambda normalizer, seed: train_head(normalizer, seed)[1], ReluPower(1)),
    "weights.own_value": (own_value, exclusive),
    "weights.permutation_error": (permutation, attend),
    "weights.closure_errors": (closure, window_of_three),
    "memory.hebbian_crosstalk": (crosstalk, hebbian),
    "memory.delta_last_error": (last_pair, delta),
    "memory.least_squares_residual": (residual_share, least_squares),
    "memory.exact_flow_error": (exact_flow, exact_rate),
    "memory.duality_error": (duality, dual_form),
    "memory.state_rank": (state_rank, linear),
    "memory.parity_positive": (parity, jnp.linspace(0.0, 1.0, 21)),
    "memory.parity_negative": (parity, jnp.array([2.0])),
}
"""{metric: (measure(subject, seed), subject)}"""


def plot_panels(path: Path, seed: int) -> Path:
    """Rates at the boundary, dispersion, the capacity of fast weights, and parity, in one figure."""
    counts, rates = (8, 16, 32, 64, 96, 128, 192, 256, 384, 512), [n / 4 for n in range(9)]
    ratios = np.array(counts) / WIDTH
    risk = lambda estimator: (POINTS, [math.sqrt(mean_squared_error(estimator, n, 0.0)) for n in POINTS])
    winner = lambda attention: (KEYS, [winner_weight(attention, n) for n in KEYS])
    read = lambda memory: (ratios, [forgetting_error(memory, seed, n, draws=2) for n in counts])
    edge = {"local constant": risk(local_constant), "local linear": risk(local_linear)}
    weight = {"softmax": winner(attend), "sparsemax": winner(sparse)}
    errors = {"Hebbian": read(hebbian), "delta rule": read(delta), "least squares": read(least_squares)}
    errors |= {"N / d": (ratios, ratios), "1 - d / N": (ratios[4:], 1 - 1 / ratios[4:])}
    accuracy = {"delta rule": (rates, [parity(jnp.array([beta]), seed, words=500) for beta in rates])}
    panels = {
        "Regression at the boundary of the data": (edge, "points n", "root mean squared error", "xy"),
        "Weight of a winner among n keys": (weight, "keys n", "weight of the largest score", "xy"),
        "Reading N pairs from a memory of size d": (errors, "pairs N / dimensions d", "relative squared error", ""),
        "Parity of 256 bits, by a recurrence": (accuracy, "rate beta (eigenvalue 1 - beta)", "best accuracy", ""),
    }
    return line_panels(panels, path)
