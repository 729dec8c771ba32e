"""Normalizers: how the logits of a query become attention weights, by softmax, sparse attention (sparsemax, entmax,
top-k), sigmoid attention or others. `ops/normalizer_kinds.py` has their four kinds, and how to write one.

>>> import jax.numpy as jnp
>>> from attention_jax.ops.attention import attention_weights
>>> query, key = jnp.ones((1, 1)), jnp.array([[-2.0], [0.0], [0.5]])
>>> attention_weights(query, key, normalizer=Sparsemax()).tolist()
[[0.0, 0.25, 0.75]]
>>> attention_weights(query, key, normalizer=Entmax(1.5)).round(4).tolist()
[[0.0, 0.32600000500679016, 0.6739999651908875]]
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from attention_jax.errors import InputError
from attention_jax.ops.meshes import loopable, vary_like
from attention_jax.ops.normalizer_kinds import (
    Elementwise,
    Exponential,
    Normalizer,
    Ordered,
    Pointwise,
    Ratio,
    Threshold,
    check_elementwise,
)
from attention_jax.ops.precision import accumulator, as_type
from attention_jax.ops.rule_options import option_number, static_option, whole_number
from attention_jax.ops.trees import as_tree, is_leaf, pytree, with_arrays

__all__ = [
    "Entmax",
    "Normalizer",
    "Ordered",
    "Pointwise",
    "Ratio",
    "ReluPower",
    "ScalableSoftmax",
    "Sigmoid",
    "Signed",
    "Softmax",
    "Softpick",
    "Sparsemax",
    "StickBreaking",
    "Threshold",
    "TopK",
]


@pytree
@dataclass(frozen=True)
class Softmax(Exponential):
    """Softmax, exp(s_j) / sum_l exp(s_l), with exp(sink) added to the sum if there is an attention sink.

    `sink` is the score of a key whose value is zero, learned per head in GPT-OSS (OpenAI 2025; compare Xiao et al.
    2023); 0 gives the off-by-one softmax (Miller 2023), and None, the default, no sink. In `attend` the softmax is
    computed by `ops/blockwise/softmax.py` or by a kernel of the platform.

    >>> Softmax(sink=0.0).weights(jnp.zeros((1, 3)), jnp.ones((1, 3), bool)).round(4).tolist()
    [[0.25, 0.25, 0.25]]
    """

    sink: Float[Array, ""] | float | None = None

    def weights(self, scores, allowed):
        weights = super().weights(scores, allowed)
        if self.sink is None:
            return weights
        return weights * self.non_sink_mass(log_sum_exp(jnp.where(allowed, scores, 0.0), allowed))[:, None]

    def non_sink_mass(self, log_sum: Float[Array, " Q"]) -> Float[Array, " Q"]:
        """The fraction of the weight that is not on the sink, given the log-sum-exp of the scores; 0 if it is -inf,
        whatever the sink."""
        has_key = log_sum != -jnp.inf
        sink = as_type(self.sink, log_sum.dtype)
        return jnp.where(has_key, jax.nn.sigmoid(jnp.where(has_key, log_sum, 0.0) - sink), 0.0)


def log_sum_exp(scores: Float[Array, "Q K"], allowed) -> Float[Array, " Q"]:
    """log sum_j exp(s_j) over the allowed keys; -inf, with zero gradient, if there are none."""
    has_key = allowed.any(axis=-1)
    log = jax.nn.logsumexp(scores, axis=-1, where=allowed | ~has_key[:, None])
    return jnp.where(has_key, log, -jnp.inf)


@pytree
@dataclass(frozen=True)
class ScalableSoftmax(Normalizer):
    """Scalable softmax (SSMax), which stays sharp among many keys: the softmax of s log(n) score (Nakanishi 2025).

    The weights are n^(s z_j) / sum_l n^(s z_l), with z the score and bias, s the `scale`, one per head and learned in
    the paper, and n the number of keys that the query may attend to by its mask, with a causal mask those up to its own
    position. A key whose score or bias is -inf counts; with one key all factors are 0.

    `attend` computes it as a softmax with other queries (`ops/scaled_logits.py`), wherever it computes that; its
    log-sum-exp and its largest score are those of the logits s log(n) z.

    >>> weights = ScalableSoftmax(1.0).weights(jnp.array([[0.0, 1.0, 1.0]]), jnp.ones((1, 3), bool))
    >>> [round(float(weight), 4) for weight in weights[0]]  # 1 : 3 : 3
    [0.1429, 0.4286, 0.4286]
    """

    scale: Float[Array, ""] | float

    def factor(self, count: Int[Array, "..."], dtype) -> Float[Array, "..."]:
        """s log(n) of queries that may attend to n = `count` keys; 0 for none."""
        return jnp.log(jnp.maximum(count, 1).astype(dtype)) * as_type(self.scale, dtype)

    def weights(self, scores, allowed):
        factor = self.factor(allowed.sum(axis=-1, keepdims=True), scores.dtype)
        return Softmax().weights(jnp.where(allowed, scores, 0.0) * factor, allowed)


@pytree
@dataclass(frozen=True)
class Sigmoid(Pointwise):
    """Sigmoid attention: each weight is the sigmoid of its score (Ramapuram et al. 2024).

    Weights are sigmoid(s_j + bias) (eq. 3, where the bias is -log of the number of keys). Weights do not sum to 1.

    >>> Sigmoid().weights(jnp.zeros((1, 3)), jnp.ones((1, 3), bool)).tolist()
    [[0.5, 0.5, 0.5]]
    """

    bias: Float[Array, ""] | float = 0.0

    def __call__(self, x):
        return jax.nn.sigmoid(x + as_type(self.bias, x.dtype))


@pytree
@dataclass(frozen=True)
class ReluPower(Pointwise):
    """ReLU attention: powers of the positive scores, divided by the number of keys (Wortsman et al. 2023).

    Weights are max(s_j, 0)^power / n with n the number of keys that the query may attend to (power 2: So et al. 2021).

    >>> ReluPower(2).weights(jnp.array([[2.0, -1.0]]), jnp.ones((1, 2), bool)).tolist()
    [[2.0, 0.0]]
    """

    power: int = field(default=1, metadata={"static": True})
    sparse = True

    def __post_init__(self):
        object.__setattr__(self, "power", static_option("power of ReluPower", self.power, above=0))

    def __call__(self, x):
        return jnp.maximum(x, 0) ** self.power

    def factor(self, count):
        return 1 / count


@pytree
@dataclass(frozen=True)
class Signed(Pointwise):
    """No normalizer: the scores themselves are the weights, as in linear attention and retention.

    A weight is the score s_j, of either sign: with dot products this is linear attention without normalization, and
    with decay retention (`ops/retention.py`).

    >>> Signed().weights(jnp.array([[2.0, -1.0]]), jnp.array([[True, False]])).tolist()
    [[2.0, 0.0]]
    """

    def __call__(self, x):
        return x


@pytree
@dataclass(frozen=True)
class Softpick(Ratio):
    """Softpick, a rectified softmax: scores below 0 have weight 0, and there is no sink (Zuhri et al. 2025).

    Weights are max(exp(s_j) - 1, 0) / (1e-6 + sum_l |exp(s_l) - 1|), with sums from 0 to 1. The keys without weight
    are in the divisor, and get gradients. The authors add epsilon after dividing the sum by exp(max(s)), here it is
    divided, too: where there are weights, they differ by a factor between 1 and 1 + 1e-6.

    >>> scores = jnp.log(jnp.array([[3.0, 2.0, 0.5, 0.5]]))  # exp(s) - 1 is 2, 1, -0.5 and -0.5
    >>> Softpick().weights(scores, jnp.ones((1, 4), bool)).round(4).tolist()
    [[0.5, 0.25, 0.0, 0.0]]
    """

    rescales = True

    def __call__(self, x, shift=0.0):
        return jnp.where(x > 0, self.summand(x, shift), 0.0)

    def summand(self, x, shift=0.0):
        # |e^x - 1| = e^max(x, 0) (1 - e^-|x|): no cancellation near 0, no overflow; the minimum has slope 0 at 0
        return -jnp.exp(jnp.maximum(x, 0) - shift) * jnp.expm1(jnp.minimum(x, -x))

    def extra(self):
        return 1e-6

    def weights(self, scores, allowed):  # in float32: 1e6 exceeds the range of float16
        return super().weights(scores.astype(accumulator(scores.dtype)), allowed).astype(scores.dtype)


@pytree
@dataclass(frozen=True)
class Sparsemax(Threshold):
    """Sparsemax, max(s_j - t, 0): the projection of the scores onto the simplex (Martins & Astudillo 2016, eq. 5).

    >>> Sparsemax().weights(jnp.array([[0.5, 0.0, -3.0]]), jnp.ones((1, 3), bool)).round(4).tolist()
    [[0.75, 0.25, 0.0]]
    """

    def __call__(self, x):
        return jnp.maximum(x, 0)

    def inverse(self, value):
        return value


@pytree
@dataclass(frozen=True)
class Entmax(Threshold):
    """Entmax: sparse weights, between softmax (alpha near 1) and sparsemax (alpha = 2) (Peters et al. 2019).

    Weights are max((alpha - 1) (s_j - t), 0)^(1 / (alpha - 1)) (eq. 10), sparser for larger `alpha`, which is above 1
    and at most 2 and may be learned (Correia et al. 2019). 2 is sparsemax; the limit 1 is softmax, which a traced alpha
    of 1 computes. A traced alpha outside of [1, 2] is computed by the formula, too.

    >>> Entmax(2.0).weights(jnp.array([[0.5, 0.0, -3.0]]), jnp.ones((1, 3), bool)).round(4).tolist()
    [[0.75, 0.25, 0.0]]
    """

    alpha: Float[Array, ""] | float = 1.5

    def __post_init__(self):
        alpha = option_number(self.alpha)
        if alpha is not None and not 1 < alpha <= 2:
            raise InputError(f"alpha of Entmax must be above 1 and at most 2, got {self.alpha}: 1 is Softmax()")

    def __call__(self, x):
        return q_exponential(x, as_type(self.alpha - 1, x.dtype))

    def inverse(self, value):
        return q_logarithm(value, as_type(self.alpha - 1, value.dtype))


def q_exponential(x: Float[Array, "..."], b: Float[Array, ""] | float) -> Float[Array, "..."]:
    """max(1 + b x, 0)^(1 / b) for b >= 0, which is exp(x) at b = 0 (Tsallis 1994, the q-exponential of q = 1 - b).

    Entmax is this function of s_j - t with b = alpha - 1: against eq. 10 of Peters et al. (2019) its t is larger by
    1 / b, which is far above the scores where alpha is near 1, and would leave nothing of them but its rounding.

    >>> q_exponential(jnp.array([-1.0, -0.5, 0.0]), 1.0).tolist()
    [0.0, 0.5, 1.0]
    """
    u = b * x
    has_weight = ~(u <= -1)  # true of NaN, which stays
    u = jnp.where(has_weight, u, 0.0)
    # log(1 + b x) / b = x log(1 + u) / u, where log(1 + u) = 2 artanh(z), z = u / (2 + u): five terms near u = 0, so
    # that no derivative divides by a small u or b
    is_small = jnp.abs(u) < 0.05
    square = jnp.square(u / (2 + u))
    series = 2 / (2 + u) * (1 + square * (1 / 3 + square * (1 / 5 + square * (1 / 7 + square / 9))))
    large = jnp.where(is_small, 1.0, u)
    ratio = jnp.where(is_small, series, jnp.log1p(large) / large)
    return jnp.where(has_weight, jnp.exp(jnp.where(has_weight, x, 0.0) * ratio), 0.0)


def q_logarithm(value: Float[Array, "..."], b: Float[Array, ""] | float) -> Float[Array, "..."]:
    """The inverse of `q_exponential`: (value^b - 1) / b, which is log(value) at b = 0.

    >>> q_logarithm(jnp.array([0.0, 0.5, 1.0]), 1.0).tolist()
    [-1.0, -0.5, 0.0]
    """
    smallest = float(jnp.finfo(value.dtype).tiny) ** 0.5
    b = jnp.where(jnp.abs(b) < smallest, smallest, b)  # below, the quotient is log(value) to the last bit
    return jnp.expm1(b * jnp.log(value)) / b


@pytree
@dataclass(frozen=True)
class TopK(Normalizer):
    """Top-k attention: another normalizer over the k keys with the largest scores (Gupta et al. 2021).

    The normalizer is `of`, the number of keys `k`, ties included. The choice of keys has no gradient.

    >>> TopK(2).weights(jnp.array([[1.0, 0.0, 1.0]]), jnp.ones((1, 3), bool)).tolist()
    [[0.5, 0.0, 0.5]]
    """

    k: int = field(metadata={"static": True})
    of: Normalizer = Softmax()

    def __post_init__(self):
        object.__setattr__(self, "k", whole_number(self.k))
        if not isinstance(self.k, int) or self.k < 1:
            raise InputError(f"TopK needs a whole number of keys >= 1, got {self.k!r}")
        object.__setattr__(self, "of", as_normalizer(self.of))
        if isinstance(self.of, ScalableSoftmax):
            raise InputError(
                "TopK needs a normalizer of the scores alone, got ScalableSoftmax, in which the number of keys counts: "
                "write TopK(k), of the softmax"
            )

    def weights(self, scores, allowed):
        fixed_scores = jax.lax.stop_gradient(jnp.where(allowed, scores, -jnp.inf))
        last = loopable(partial(kth_largest, min(self.k, 2**31 - 1)))(fixed_scores)
        return self.of.weights(scores, allowed & ~(fixed_scores < last[:, None]))


def kth_largest(k: int, x: Float[Array, "Q K"]) -> Float[Array, " Q"]:
    """The k-th largest number of each row, as `jax.lax.top_k` finds it; NaN if a row has fewer.

    Its bits are found one by one, from the first, each by counting (radix selection): a fixed number of sums along the
    row, which XLA divides over devices that have different rows. It gathers the rows for `jax.lax.top_k`.

    >>> kth_largest(2, jnp.array([[3.0, -1.0, 2.0], [-0.5, -0.5, -2.0]])).tolist()
    [2.0, -0.5]
    """
    bits = jnp.finfo(x.dtype).bits
    uint, sign = jnp.dtype(f"uint{bits}"), 1 << (bits - 1)
    number = lambda value: jnp.asarray(value, uint)
    sortable = lax.bitcast_convert_type(x, uint)  # unsigned, in the order of x
    sortable = jnp.where(sortable < number(sign), sortable | number(sign), ~sortable)

    def step(n, prefix):
        larger = prefix | (number(sign) >> n.astype(uint))
        return jnp.where((sortable >= larger[:, None]).sum(axis=1) >= k, larger, prefix)

    prefix = lax.fori_loop(0, bits, step, vary_like(jnp.zeros(x.shape[:1], uint), x))
    return lax.bitcast_convert_type(jnp.where(prefix < number(sign), ~prefix, prefix ^ number(sign)), x.dtype)


@pytree
@dataclass(frozen=True)
class StickBreaking(Ordered):
    """Stick-breaking attention, which favors recent keys (Tan et al. 2024).

    A weight is sigmoid(s_j) times the product of 1 - sigmoid(s_i) over the keys i > j (eq. 3). The weights sum to 1
    minus that product over all keys. With `masks.causal()` a query attends to its own position, too, which the
    authors' code leaves out by default.

    >>> StickBreaking().weights(jnp.zeros((1, 3)), jnp.ones((1, 3), bool)).round(4).tolist()
    [[0.125, 0.25, 0.5]]
    """

    def __call__(self, score):
        return jax.nn.log_sigmoid(score), jax.nn.log_sigmoid(-score)


def without_sink(normalizer: Normalizer) -> Normalizer:
    """`Softmax()` for every softmax; other normalizers as they are."""
    return Softmax() if isinstance(normalizer, Softmax) else normalizer


def as_normalizer(normalizer: Normalizer | Callable) -> Normalizer:
    """`normalizer`, or an elementwise function as a `Pointwise` normalizer; `jax.nn.softmax` is `Softmax()`. Raises
    InputError for a plain function that is not elementwise."""
    if isinstance(normalizer, Normalizer):
        return with_arrays(normalizer)
    if normalizer is jax.nn.softmax:
        return Softmax()
    function = as_tree(normalizer)
    if is_leaf(normalizer):
        check_elementwise(function)
    return Elementwise(function)
