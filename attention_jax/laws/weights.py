"""Laws of attention weights: where the weight goes as keys are added, what is retrieved, and what depends on what.

Most of them measure any attention function (query [Q, D], key [K, D], value [K, V]) -> [Q, V], as a black box.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from attention_jax.laws.law import Attention
from attention_jax.ops.attention import attend, attention_weights
from attention_jax.ops.head_outputs import exclude_own
from attention_jax.ops.masks import causal, sliding_window
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.normalizers import Sigmoid, Sparsemax

SIZES = (16, 4_096, 65_536)
"""Numbers of keys for `winner_weight`."""


def sparse(query, key, value):
    """Attention with sparsemax weights."""
    return attend(query, key, value, normalizer=Sparsemax())


def sigmoid(query, key, value):
    """Sigmoid attention without a bias."""
    return attend(query, key, value, normalizer=Sigmoid())


def sigmoid_with_bias(query, key, value):
    """Sigmoid attention with the bias -log n of Ramapuram et al. 2024."""
    return attend(query, key, value, normalizer=Sigmoid(-jnp.log(jnp.float32(len(key)))))


def winner_weight(attention: Attention, keys: int) -> float:
    """The weight of one key with a logit of 4 among keys with logits of 0 (for q . k / sqrt(D), D = 16)."""
    rows = 4.0 * jnp.eye(16)
    other_keys = rows[1 + jnp.arange(keys - 1) % 15]
    value = (jnp.arange(keys) == 0).astype(jnp.float32)[:, None]
    return float(jax.jit(attention)(rows[:1], jnp.concatenate([rows[:1], other_keys]), value)[0, 0])


def dispersion(attention: Attention, seed: int = 0) -> float:
    """The power of n with which the weight of a winner falls from 4,096 to 65,536 keys: -1 for the softmax, whatever
    its temperature, e^4 / (e^4 + n - 1) (Velickovic et al. 2024, arXiv 2410.01104, lemma 2.1)."""
    first_weight, last_weight = (winner_weight(attention, keys) for keys in SIZES[-2:])
    return float(np.log(max(last_weight, 1e-30) / max(first_weight, 1e-30)) / np.log(SIZES[-1] / SIZES[-2]))


def concentration(attention: Attention, seed: int = 0) -> float:
    """The least weight of a winner among 16 to 65,536 keys: 1 for sparsemax where it leads by at least 1 (Martins &
    Astudillo 2016, proposition 1)."""
    return min(winner_weight(attention, keys) for keys in SIZES)


def retrieval(sharpness: float, attention: Attention, seed: int = 0) -> float:
    """The largest error of one step from a damaged pattern, of 128 with 64 signs, 8 of them flipped.

    With q = beta x, sparsemax returns the pattern exactly, at a finite beta, if its score leads by 1: beta >= 1/Delta,
    where Delta is its lead over the second pattern in x . k (Hu et al. 2023; Santos et al. 2024, arXiv 2402.13725).
    `sharpness` is beta Delta.
    """
    patterns = jax.random.rademacher(jax.random.key(seed), (128, 64), jnp.float32)
    damaged = patterns.at[:, :8].multiply(-1)
    first, second = jax.lax.top_k(damaged @ patterns.T, 2)[0].T
    query = (sharpness * 64**0.5 / (first - second))[:, None] * damaged  # sqrt(D): the scale of the default score
    retrieved = jax.jit(attention)(query, patterns, patterns)
    return float(jnp.max(jnp.abs(retrieved - patterns)))


def growth(attention: Attention, seed: int = 0) -> float:
    """The power of n with which the sum of the weights grows from 256 to 16,384 keys: 1 for sigmoid attention, 0 with
    the bias -log n (Ramapuram et al. 2024, arXiv 2409.04431) and for weights that sum to 1."""
    query = jax.random.normal(jax.random.key(seed), (32, 16))
    key = jax.random.normal(jax.random.key(seed + 1), (16_384, 16))
    few, many = (float(jax.jit(attention)(query, key[:n], jnp.ones((n, 1))).mean()) for n in (256, 16_384))
    return float(np.log(max(many, 1e-30) / max(few, 1e-30)) / np.log(64))


def exclusive(query, key, value):
    """Exclusive self-attention (arXiv 2603.09078)."""
    return exclude_own(attend(query, key, value), value)


def own_value(attention: Attention, seed: int = 0) -> float:
    """The largest |cosine| of an output with the value of its own position: 0 for exclusive self-attention."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 32, 8))
    output = jax.jit(attention)(query, key, value)
    norms = jnp.linalg.norm(output, axis=1) * jnp.linalg.norm(value, axis=1)
    return float(jnp.max(jnp.abs(jnp.sum(output * value, axis=1)) / jnp.maximum(norms, 1e-30)))


def permutation(attention: Attention, seed: int = 0) -> float:
    """The largest value of |f(P q, P k, P v) - P f(q, k, v)| for a permutation P, over that of |f|: 0 for attention
    without a mask and positions (Lee et al. 2019, property 1)."""
    query, key, value = jax.random.normal(jax.random.key(seed), (3, 64, 8))
    order = jax.random.permutation(jax.random.key(seed + 1), 64)
    run = jax.jit(attention)
    output, moved = run(query, key, value), run(query[order], key[order], value[order])
    return float(jnp.max(jnp.abs(moved - output[order])) / jnp.max(jnp.abs(output)))


def dependence(attention: Attention, depth: int, seed: int) -> np.ndarray:
    """Which outputs of `depth` stacked layers depend on which inputs, [T, T]: the nonzero blocks of the Jacobian."""
    x, *mixes = jax.random.normal(jax.random.key(seed), (depth + 1, 16, 4))

    def stack(x):
        for mix in mixes:
            x = attention(x, x, x @ mix[:4] / 2)  # of about the same size
        return x

    return np.asarray(jnp.abs(jax.jit(jax.jacobian(stack))(x)).sum((1, 3)) > 0)


def window_attention(query, key, value):
    """Attention of each query to itself and the two positions before it."""
    return attend(query, key, value, mask=sliding_window(3))


def closure(mask: Float[Array, "T T"], attention: Attention, seed: int = 0) -> float:
    """Pairs of positions in which the dependence of 1, 2, 3 and 8 layers differs from the Boolean power of the mask,
    whose limit is its transitive closure (arXiv 2606.09951)."""
    wrong = 0
    for depth in (1, 2, 3, 8):
        reach = np.linalg.matrix_power(np.asarray(mask, np.int64), depth) > 0
        wrong += int((dependence(attention, depth, seed) != reach).sum())
    return float(wrong)


def window_of_three() -> np.ndarray:
    """The mask of `window_attention`, by hand."""
    return np.array([[q - 2 <= k <= q for k in range(16)] for q in range(16)])


def examples(rng: jax.Array, batch: int):
    """Inputs [B, T, 11]: contents [8], flags of the first position and of the trigger, a constant; and targets
    [B, T, 8]: at the trigger the mean of the contents up to it, elsewhere zero."""
    content_rng, trigger_rng = jax.random.split(rng)
    first = jnp.arange(16) == 0
    content = jnp.where(first[None, :, None], 0.0, jax.random.normal(content_rng, (batch, 16, 8)))
    trigger = jnp.arange(16)[None] == jax.random.randint(trigger_rng, (batch, 1), 4, 16)
    flags = jnp.stack([first[None] | (trigger & False), trigger, trigger | True], axis=-1).astype(jnp.float32)
    mean = jnp.cumsum(content, axis=1) / jnp.arange(1.0, 17.0)[None, :, None]
    return jnp.concatenate([content, flags], axis=-1), jnp.where(trigger[..., None], mean, 0.0)


def project_qkv(params, x: Float[Array, "T 11"]):
    """Query, key and value [T, 8] of one head."""
    return tuple(x @ params[name] for name in ("query", "key", "value"))


@functools.cache
def train_sink_head(normalizer: Normalizer, seed: int, steps: int = 2_000) -> dict[str, float]:
    """Train one head of causal attention on the trigger-conditional task, and measure it on new examples: `sink`, its
    mean weight on the first key where the output must be zero, and `loss`, over that of the output zero."""
    rngs = jax.random.split(jax.random.key(seed), 4)
    params = {name: 0.3 * jax.random.normal(rng, (11, 8)) for rng, name in zip(rngs, ("query", "key", "value"))}
    rules = {"mask": causal(), "normalizer": normalizer}
    optimizer = optax.adam(optax.cosine_decay_schedule(0.01, steps))

    def loss(params, rng):
        x, target = examples(rng, 64)
        output = jax.vmap(lambda x: attend(*project_qkv(params, x), **rules))(x)
        return jnp.mean((output - target) ** 2) / jnp.mean(target**2)

    def step(state, rng):
        params, memory = state
        update, memory = optimizer.update(jax.grad(loss)(params, rng), memory)
        return (optax.apply_updates(params, update), memory), None

    def first_weight(params, x):
        return attention_weights(*project_qkv(params, x)[:2], **rules)[:, 0]

    run = jax.jit(lambda params, rngs: jax.lax.scan(step, (params, optimizer.init(params)), rngs)[0][0])
    params = run(params, jax.random.split(rngs[3], steps))
    x, _ = examples(jax.random.key(seed + 1_000), 512)
    weights = jax.jit(jax.vmap(first_weight, (None, 0)))(params, x)
    zero = (x[..., 9] == 0) & (jnp.arange(16) > 0)[None]  # positions with another key to attend to
    share = float(jnp.sum(weights * zero) / jnp.sum(zero))
    return {"sink": share, "loss": float(jax.jit(loss)(params, jax.random.key(seed + 2_000)))}


def sink(normalizer: Normalizer, seed: int = 0) -> float:
    """The mean weight of the first key where a trained head must output zero. A softmax has to put its weight
    somewhere: the less the loss, the nearer the sink is to 1; a ReLU without normalization needs none (Ran-Milo 2026,
    arXiv 2603.11487; here the mean is that over all keys, and one head is trained)."""
    return train_sink_head(normalizer, seed)["sink"]


def sink_loss(normalizer: Normalizer, seed: int = 0) -> float:
    """The loss of that head over the loss of output zero: 0 if it solves the task."""
    return train_sink_head(normalizer, seed)["loss"]


def winners_figure() -> dict[str, tuple]:
    """{normalizer: (n, weight of the winner)}."""
    return {
        name: (SIZES, [winner_weight(attention, n) for n in SIZES])
        for name, attention in {"softmax": attend, "sparsemax": sparse}.items()
    }
