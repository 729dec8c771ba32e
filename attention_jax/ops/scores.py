"""Score functions: callable pytrees `score(query [Q, D], key [K, E]) -> logits [Q, K]`.

The parameters of a score are its leaves, so `jax.grad`, `jax.vmap` (one score per head), `jax.pmap` and checkpoints
work on it as on any tuple of arrays. Logits are float32 at least, whatever the inputs are. Kernels are given as their
logarithms: weights proportional to kappa(q, k) are the softmax of log kappa, so Nadaraya-Watson regression (1964) is
the same `attend`; -inf is a weight of 0.

A custom score takes ten lines, here a radial basis function with a width per feature, and works in the fused `attend`:

>>> from dataclasses import dataclass
>>> import jax, jax.numpy as jnp
>>> from attention_jax.ops.attention import attend
>>> from attention_jax.ops.trees import pytree
>>> @pytree
... @dataclass(frozen=True)
... class Radial(Score):
...     widths: jax.Array  # [D]
...     def __call__(self, query, key):
...         return NegativeSquaredDistance()(query / self.widths[None, :], key / self.widths[None, :])
>>> query, key, value = jnp.zeros((2, 3)), jnp.ones((5, 3)), jnp.ones((5, 1))
>>> attend(query, key, value, score=Radial(jnp.ones(3)), implementation="fused").tolist()
[[1.0], [1.0]]

Work on one side is done once instead of per pair (or per decoding step): `prepare_key` and `prepare_query` return the
remaining score and the transformed array, with
`score(query, key) == remaining_score(query, prepared)` up to rounding:

>>> score = Additive.init(jax.random.key(0), query_width=4, key_width=6, hidden=8)
>>> remaining_score, keys = score.prepare_key(jnp.ones((5, 6)))  # before the loop over time: W_k k for all keys
>>> remaining_score(jnp.ones((1, 4)), keys).shape  # in each step
(1, 5)
"""

import math
from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.ops.blockwise.linear_call import LinearMap, call_linear
from attention_jax.ops.kernels.terms import Terms, round_to
from attention_jax.ops.precision import accumulator, as_type, matmul_transposed, promote_arrays
from attention_jax.ops.rule_options import check_option, static_option
from attention_jax.ops.trees import describes_call, pytree

__all__ = [
    "Additive",
    "Bilinear",
    "Boxcar",
    "Concat",
    "Constant",
    "Cosine",
    "Dot",
    "Gaussian",
    "LeakySum",
    "NegativeSquaredDistance",
    "QKNorm",
    "ScaledDot",
    "Score",
    "SoftCap",
    "Terms",
    "Triangular",
]


def _product(query: Float[Array, "Q D"], key: Float[Array, "K D"]) -> Float[Array, "Q K"]:
    if query.shape[-1] != key.shape[-1]:
        raise InputError(f"a product needs queries and keys of one width, got {query.shape} and {key.shape}")
    query, key = promote_arrays(query, key)
    return _einsum("qd,kd->qk", query, key) if query.dtype == accumulator(query.dtype) else _half_product(query, key)


def _project(x, kernel):
    if isinstance(kernel, jax.Array | np.ndarray):  # not a `DeferredWeight`, which takes any type
        x, kernel = promote_arrays(x, kernel)
    return x @ kernel


def _einsum(formula, *arrays):
    return jnp.einsum(formula, *arrays, preferred_element_type=accumulator(arrays[0].dtype))


@jax.custom_jvp
def _half_product(query, key):
    """The product of arrays in half precision, whose gradients are products in half
    precision too (all summed in float32)."""
    return _einsum("qd,kd->qk", query, key)


@_half_product.defjvp
def _half_product_jvp(primals, tangents):
    out = _half_product(*primals)
    return out, call_linear(HALF_PRODUCT, HALF_PRODUCT, [out], list(primals), list(tangents))[0]


def _half_product_tangents(primals, tangents):
    return [_half_product(tangents[0], primals[1]) + _half_product(primals[0], tangents[1])]


def _half_product_cotangents(primals, bars):
    (query, key), bar = primals, bars[0].astype(primals[0].dtype)
    return [_einsum("qk,kd->qd", bar, key).astype(query.dtype), matmul_transposed(bar, query).astype(key.dtype)]


HALF_PRODUCT = LinearMap(_half_product_tangents, _half_product_cotangents)


class Score:
    """Base class of score functions: maps queries [Q, D] and keys [K, E] to logits [Q, K].

    A subclass is a dataclass registered by `pytree` that defines `__call__`; its array fields receive gradients.

    >>> Dot()(jnp.ones((2, 3)), jnp.ones((4, 3))).shape
    (2, 4)
    """

    def __call__(self, query: Float[Array, "Q D"], key: Float[Array, "K E"]) -> Float[Array, "Q K"]:
        raise NotImplementedError

    def prepare_key(self, key: Float[Array, "K E"]) -> tuple["Score", Float[Array, "K F"]]:
        """(remaining score, prepared keys) with `remaining_score(query, prepared) == self(query, key)`. A class that
        overrides `__call__` does not inherit it, nor the next two."""
        return self, key

    def prepare_query(self, query: Float[Array, "Q D"]) -> tuple["Score", Float[Array, "Q F"]]:
        """(remaining score, prepared queries) with `remaining_score(prepared, key) == self(query, key)`."""
        return self, query

    def terms(self, query: Float[Array, "Q D"], key: Float[Array, "K E"]) -> Terms | None:
        """The score as a product of features and a term of the key, which kernels of GPUs and TPUs compute; None, the
        default, if it is none."""
        return None


def prepare(score: Score, query: Float[Array, "Q D"], key: Float[Array, "K E"]) -> tuple[Score, Array, Array]:
    """(remaining score, query, key) after `prepare_key` and `prepare_query`; unchanged if it is not a `Score`.

    A query or key with NaN or infinity becomes all NaN and has no part in the gradient of the parameters, so that one
    that is masked later has no effect.
    """
    score, key = _isolate_nonfinite(prepare_key, score, key)
    score, query = _isolate_nonfinite(prepare_query, score, query)
    return score, query, key


def prepare_key(score: Score, key: Float[Array, "K E"]) -> tuple[Score, Float[Array, "K F"]]:
    """`score.prepare_key(key)`, which a class that overrides `__call__` does not inherit."""
    return score.prepare_key(key) if describes_call(score, "prepare_key") else (score, key)


def prepare_query(score: Score, query: Float[Array, "Q D"]) -> tuple[Score, Float[Array, "Q F"]]:
    """`score.prepare_query(query)`, which a class that overrides `__call__` does not inherit."""
    return score.prepare_query(query) if describes_call(score, "prepare_query") else (score, query)


def _isolate_nonfinite(prepare_side, score, x):
    remaining_score, prepared = prepare_side(score, x)
    if prepared is x:
        return remaining_score, x
    finite = jnp.isfinite(x).all(axis=-1, keepdims=True)
    remaining_score, prepared = prepare_side(score, jnp.where(finite, x, jnp.zeros_like(x)))
    nan_rows = jax.lax.stop_gradient(jnp.sum(x - x, axis=-1, keepdims=True))  # NaN in these rows alone, else 0
    return remaining_score, jnp.where(finite, prepared, nan_rows.astype(prepared.dtype))


@pytree
@dataclass(frozen=True)
class Dot(Score):
    """Dot product q . k (Luong et al. 2015, section 3.1, "dot"); queries and keys of equal width.

    >>> Dot()(jnp.array([[1.0, 2.0]]), jnp.array([[3.0, 4.0]])).tolist()
    [[11.0]]
    """

    def __call__(self, query, key):
        return _product(query, key)

    def terms(self, query, key):
        return Terms(query, key)


@pytree
@dataclass(frozen=True)
class ScaledDot(Score):
    """Scaled dot product q . k / sqrt(D) (Vaswani et al. 2017, eq. 1); the default of `attend`.

    >>> ScaledDot()(jnp.ones((1, 4)), jnp.ones((1, 4))).tolist()
    [[2.0]]
    """

    def __call__(self, query, key):
        return _product(query, key) * query.shape[-1] ** -0.5

    def terms(self, query, key):
        return Terms(query, key, scale=query.shape[-1] ** -0.5)


@pytree
@dataclass(frozen=True)
class Bilinear(Score):
    """Bilinear form q^T W k with `kernel` W [D, E] (Luong et al. 2015, section 3.1, "general").

    >>> Bilinear(jnp.array([[2.0], [3.0]]))(jnp.array([[1.0, 1.0]]), jnp.array([[10.0]])).tolist()
    [[50.0]]
    """

    kernel: Float[Array, "D E"]

    def __call__(self, query, key):
        return _product(_project(query, self.kernel), key)

    def prepare_key(self, key):
        return Dot(), _project(key, self.kernel.T)

    def terms(self, query, key):
        return Terms(_project(query, self.kernel), key)

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int, hidden: int = 0) -> "Bilinear":
        """Glorot-uniform W; `hidden` is not used (one signature for all scores that have parameters)."""
        return cls(jax.nn.initializers.glorot_uniform()(rng, (query_width, key_width)))


@pytree
@dataclass(frozen=True)
class Additive(Score):
    """Additive score v . tanh(W_q q + W_k k) (Bahdanau et al. 2015, A.1.2): kernels [D, H] and [E, H], `vector` v [H].

    A kernel of None means that this side is already projected, by `prepare_query` or `prepare_key`.

    >>> score = Additive.init(jax.random.key(0), query_width=4, key_width=6, hidden=8)
    >>> score(jnp.ones((2, 4)), jnp.ones((5, 6))).shape
    (2, 5)
    """

    query_kernel: Float[Array, "D H"] | None
    key_kernel: Float[Array, "E H"] | None
    vector: Float[Array, " H"]

    def __call__(self, query, key):
        (_, query), (_, key) = self.prepare_query(query), self.prepare_key(key)
        query, key, vector = promote_arrays(query, key, self.vector)
        hidden = jnp.tanh(query[:, None, :] + key[None, :, :])  # [Q, K, H]
        return jnp.einsum("qkh,h->qk", hidden, vector, preferred_element_type=accumulator(query.dtype))

    def prepare_key(self, key):
        return replace(self, key_kernel=None), key if self.key_kernel is None else _project(key, self.key_kernel)

    def prepare_query(self, query):
        remaining_score = replace(self, query_kernel=None)
        return remaining_score, query if self.query_kernel is None else _project(query, self.query_kernel)

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int, hidden: int) -> "Additive":
        """Glorot-uniform kernels and vector."""
        for_query, for_key, for_vector = jax.random.split(rng, 3)
        glorot = jax.nn.initializers.glorot_uniform()
        vector = glorot(for_vector, (hidden, 1))[:, 0]
        return cls(glorot(for_query, (query_width, hidden)), glorot(for_key, (key_width, hidden)), vector)


@pytree
@dataclass(frozen=True)
class Concat(Score):
    """Concatenation score v . tanh(W [q; k]) (Luong et al. 2015, section 3.1, "concat").

    The weights are `kernel` W [D + E, H] and `vector` v [H]. W [q; k] is W_q q + W_k k for the two blocks of W, so it
    is computed and prepared as `Additive`.

    >>> score = Concat.init(jax.random.key(0), query_width=4, key_width=6, hidden=8)
    >>> score.kernel.shape, score(jnp.ones((2, 4)), jnp.ones((5, 6))).shape
    ((10, 8), (2, 5))
    """

    kernel: Float[Array, "DE H"]
    vector: Float[Array, " H"]

    def __call__(self, query, key):
        remaining_score, key = self.prepare_key(key)
        return remaining_score(query, key)

    def prepare_key(self, key):
        split = self.kernel.shape[0] - key.shape[-1]
        return Additive(self.kernel[:split], None, self.vector), _project(key, self.kernel[split:])

    def prepare_query(self, query):
        split = query.shape[-1]
        return Additive(None, self.kernel[split:], self.vector), _project(query, self.kernel[:split])

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int, hidden: int) -> "Concat":
        """Glorot-uniform kernel and vector."""
        for_kernel, for_vector = jax.random.split(rng)
        glorot = jax.nn.initializers.glorot_uniform()
        return cls(glorot(for_kernel, (query_width + key_width, hidden)), glorot(for_vector, (hidden, 1))[:, 0])


@pytree
@dataclass(frozen=True)
class LeakySum(Score):
    """The score of graph attention: LeakyReLU((a_q . q + b_q) + (a_k . k + b_k)) (Velickovic et al. 2018, eq. 3).

    The paper's vector a is `query_vector` a_q [D] and `key_vector` a_k [E] one after the other; the biases b_q and b_k
    are those of the authors' code, and the slope below zero is 0.2. A vector of None means that this side is already
    projected to one number.

    >>> LeakySum(jnp.array([1.0]), jnp.array([-1.0]), jnp.array(0.0), jnp.array(0.0))(*jnp.array([[[1.0]], [[2.0]]]))
    Array([[-0.2]], dtype=float32)
    """

    query_vector: Float[Array, " D"] | None
    key_vector: Float[Array, " E"] | None
    query_bias: Float[Array, ""] | None
    key_bias: Float[Array, ""] | None

    def __call__(self, query, key):
        (_, query), (_, key) = self.prepare_query(query), self.prepare_key(key)  # [Q, 1], [K, 1]
        query, key = promote_arrays(query, key)
        return jax.nn.leaky_relu(query + key.T, 0.2).astype(accumulator(query.dtype))

    def prepare_key(self, key):
        remaining_score = replace(self, key_vector=None, key_bias=None)
        return remaining_score, key if self.key_vector is None else _line(key, self.key_vector, self.key_bias)

    def prepare_query(self, query):
        remaining_score = replace(self, query_vector=None, query_bias=None)
        return remaining_score, query if self.query_vector is None else _line(query, self.query_vector, self.query_bias)

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int, hidden: int = 0) -> "LeakySum":
        """Glorot-uniform vectors and biases of zero; `hidden` is not used."""
        for_query, for_key = jax.random.split(rng)
        glorot = jax.nn.initializers.glorot_uniform()
        vectors = glorot(for_query, (query_width, 1))[:, 0], glorot(for_key, (key_width, 1))[:, 0]
        return cls(*vectors, jnp.zeros(()), jnp.zeros(()))


def _line(x, vector, bias):
    x, vector, bias = promote_arrays(x, vector, bias)
    return x @ vector[:, None] + bias


@pytree
@dataclass(frozen=True)
class Cosine(Score):
    """Cosine similarity times a sharpness: content-based addressing (Graves et al. 2014).

    It is sharpness * cos(q, k) (eq. 5-6, where the sharpness is the key strength beta). A query or key of zeros scores
    0.

    >>> Cosine(2.0)(jnp.array([[3.0, 0.0]]), jnp.array([[5.0, 0.0], [0.0, 1.0]])).tolist()
    [[2.0, 0.0]]
    """

    sharpness: Float[Array, ""] | float = 1.0

    def __call__(self, query, key):
        cosine = _product(_normalize_rows(query), _normalize_rows(key))
        return cosine * as_type(self.sharpness, cosine.dtype)

    def terms(self, query, key):
        if jnp.ndim(self.sharpness):
            return None
        sharp = _normalize_rows(query.astype(accumulator(query.dtype))) * jnp.asarray(self.sharpness, jnp.float32)
        return Terms(sharp.astype(query.dtype), _normalize_rows(key))  # rounded once, as without the sharpness

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int = 0, hidden: int = 0) -> "Cosine":
        """A learned sharpness, at first sqrt(D): on vectors of length sqrt(D) the logits are those of `ScaledDot`."""
        return cls(jnp.full((), query_width**0.5))


@pytree
@dataclass(frozen=True)
class QKNorm(Score):
    """QK norm: a dot product of normalized queries and keys, with learned scales (Dehghani et al. 2023).

    It is rms(q) . rms(k) / sqrt(D), where rms(x) = scale * x / sqrt(mean(x^2)) with a learned scale [D] for queries and
    one for keys (QK norm: query-key normalization, Henry et al. 2020; Dehghani et al. 2023, eq. 1, there LayerNorm).

    In a head with rotary positions, queries and keys are rotated first, which does not change their lengths.

    >>> QKNorm.init(jax.random.key(0), 4, 4)(jnp.full((1, 4), 3.0), jnp.full((1, 4), 5.0)).tolist()
    [[2.0]]
    """

    query_scale: Float[Array, " D"] | None
    key_scale: Float[Array, " D"] | None

    def __call__(self, query, key):
        (_, query), (_, key) = self.prepare_query(query), self.prepare_key(key)
        return _product(query, key) * query.shape[-1] ** 0.5  # unit vectors are rms(x) / sqrt(D)

    def prepare_key(self, key):
        return replace(self, key_scale=None), _scale_unit_rows(key, self.key_scale)

    def prepare_query(self, query):
        return replace(self, query_scale=None), _scale_unit_rows(query, self.query_scale)

    def terms(self, query, key):
        return Terms(self.prepare_query(query)[1], self.prepare_key(key)[1], scale=query.shape[-1] ** 0.5)

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int, hidden: int = 0) -> "QKNorm":
        """Scales of 1."""
        return cls(jnp.ones(query_width), jnp.ones(key_width))


def _scale_unit_rows(x: Float[Array, "N D"], scale: Float[Array, " D"] | None) -> Float[Array, "N D"]:
    """Unit rows times `scale`; x itself if `scale` is None."""
    return x if scale is None else _normalize_rows(x) * scale.astype(x.dtype)[None, :]


@pytree
@dataclass(frozen=True)
class SoftCap(Score):
    """Logit soft capping, cap * tanh(score / cap): another score, limited to (-cap, cap) (Gemma Team 2024, section 2).

    >>> SoftCap(1.0, Dot())(jnp.array([[100.0]]), jnp.array([[1.0], [0.0]])).tolist()
    [[1.0, 0.0]]
    """

    cap: float = field(default=50.0, metadata={"static": True})
    score: Score = ScaledDot()

    def __post_init__(self):
        object.__setattr__(self, "cap", static_option("cap of SoftCap", self.cap, above=0))

    def __call__(self, query, key):
        return self.cap * jnp.tanh(self.score(query, key) / self.cap)

    def prepare_key(self, key):
        remaining_score, key = prepare_key(self.score, key)
        return replace(self, score=remaining_score), key

    def prepare_query(self, query):
        remaining_score, query = prepare_query(self.score, query)
        return replace(self, score=remaining_score), query


def _normalize_rows(x: Float[Array, "N D"]) -> Float[Array, "N D"]:
    """Unit rows; a row of zeros stays zero, with zero gradient."""
    x = jnp.asarray(x)
    wide = x.astype(accumulator(x.dtype))  # the inverse of a short vector overflows float16
    wide = wide * _inverse_power_of_two(jnp.max(jnp.abs(wide), axis=-1, keepdims=True, initial=0.0))
    square = jnp.sum(jnp.square(wide), axis=-1, keepdims=True)
    inverse = jnp.where(square > 0, jax.lax.rsqrt(jnp.where(square > 0, square, 1.0)), 0.0)
    return (wide * inverse).astype(x.dtype)


def _inverse_power_of_two(size: Float[Array, "..."]) -> Float[Array, "..."]:
    """2^-n for the n with 2^(n-1) <= size < 2^n, and 1 for 0, without gradient. Scaled by it, numbers keep all their
    bits, and their squares stay within the range of float32."""
    size = jax.lax.stop_gradient(size)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(size), size, 1.0))
    limit = jnp.finfo(size.dtype).maxexp - 2
    return jnp.ldexp(jnp.ones_like(size), -jnp.clip(exponent, -limit, limit))


def _squared_distance(
    query: Float[Array, "Q D"], key: Float[Array, "K D"], inverse: Float[Array, ""] | float = 1.0
) -> Float[Array, "Q K"]:
    """||inverse (q - k)||^2, by differences for few features (exact where points are close), else by one matrix
    product, of the points as seen from one of them where they are far from the origin."""
    if query.shape[-1] != key.shape[-1]:
        raise InputError(f"a distance needs queries and keys of one width, got {query.shape} and {key.shape}")
    query, key = promote_arrays(query.astype(accumulator(query.dtype)), key.astype(accumulator(key.dtype)))
    inverse = inverse if isinstance(inverse, float) else inverse.astype(query.dtype)
    if query.shape[-1] <= 4:
        differences = ((query[:, None, d] - key[None, :, d]) * inverse for d in range(query.shape[-1]))
        return sum(map(jnp.square, differences), jnp.zeros((query.shape[0], key.shape[0]), query.dtype))
    origin = _origin(query, inverse)
    query, key = (query - origin) * inverse, (key - origin) * inverse
    squares = jnp.sum(jnp.square(query), axis=-1)[:, None] + jnp.sum(jnp.square(key), axis=-1)[None, :]
    return jnp.maximum(squares - 2.0 * _product(query, key), 0.0)


def _origin(query: Float[Array, "Q D"], inverse) -> Float[Array, "1 D"]:
    """The first query, if it and most of the others are far from the origin, but not from each other: distances do not
    depend on the origin, and the squares of long vectors lose those of short differences. Else zero, so that ordinary
    points stay as they are, to the bit."""
    query = jax.lax.stop_gradient(query)
    first = query[:1]
    size = jnp.max(jnp.abs(first), initial=0.0)
    near = jnp.max(jnp.abs(query - first), axis=-1) <= size / 4
    far = jnp.isfinite(size) & (size * inverse > 4) & (2 * near.sum() > near.size)
    return jnp.where(far, first, jnp.zeros_like(first))


def _distance_terms(query, key, inverse=1.0, factor=1.0) -> Terms | None:
    """-factor ||inverse (q - k)||^2 = factor (2 q . k - |k|^2 - |q|^2); None for few features, where
    `_squared_distance` is exact. `inverse` is a power of two; a factor that is an array multiplies the query."""
    if query.shape[-1] != key.shape[-1] or query.shape[-1] <= 4:
        return None
    types, (query, key) = (query.dtype, key.dtype), _from_center(query, key)
    query, key = query * inverse, key * inverse  # float32, but with no more digits than the arrays
    squares = (-jnp.sum(jnp.square(x), axis=-1) for x in (key, query))
    terms = Terms(query.astype(types[0]), key.astype(types[1]), *squares, factor)
    return (
        terms._replace(scale=2.0 * factor) if isinstance(factor, float) else terms._replace(query=2.0 * factor * query)
    )


def _from_center(query, key):
    """Queries and keys minus a common point, in float32 at least. In each feature it is the middle of all, if that is
    between the half and the double of every number, so that their type holds the differences (Sterbenz 1974), else 0.

    Distances do not change. In products of points far from the origin the digits of their differences would be lost.
    """
    dtype = min(query.dtype, key.dtype, key=lambda dtype: jnp.finfo(dtype).nmant)
    query, key = promote_arrays(query.astype(accumulator(query.dtype)), key.astype(accumulator(key.dtype)))
    low, high = (extreme(jnp.concatenate([query, key]), axis=0, keepdims=True) for extreme in (jnp.min, jnp.max))
    middle = round_to((low + high) / 2, dtype).astype(low.dtype)
    near, far = jnp.minimum(jnp.abs(low), jnp.abs(high)), jnp.maximum(jnp.abs(low), jnp.abs(high))
    is_exact = (jnp.sign(low) * jnp.sign(high) > 0) & (near >= jnp.abs(middle) / 2) & (far <= jnp.abs(middle) * 2)
    center = jax.lax.stop_gradient(jnp.where(is_exact, middle, 0.0))
    return query - center, key - center


def _unit(width: Float[Array, "..."] | float) -> tuple[Float[Array, ""] | float, Float[Array, "..."] | float]:
    """(inverse, width times it) for the power of two that brings the width to [0.5, 1): the squares of distances in
    units of a very small or large width stay within the range of float32, and all others keep their bits. Of an array
    both are in float32 at least."""
    if isinstance(width, int | float):
        inverse = 2.0 ** -max(-126, min(126, math.frexp(width)[1]))
    else:
        width = as_type(width, accumulator(jnp.result_type(width)))
        inverse = _inverse_power_of_two(jnp.max(width))
    return inverse, width * inverse


@pytree
@dataclass(frozen=True)
class NegativeSquaredDistance(Score):
    """Negative squared Euclidean distance -||q - k||^2; queries and keys of equal width, else InputError.

    >>> NegativeSquaredDistance()(jnp.array([[1.0]]), jnp.array([[1.0], [4.0]])).tolist()
    [[-0.0, -9.0]]
    """

    def __call__(self, query, key):
        return -_squared_distance(query, key)

    def terms(self, query, key):
        return _distance_terms(query, key)


@pytree
@dataclass(frozen=True)
class Gaussian(Score):
    """Logarithm of the Gaussian kernel, -||q - k||^2 / (2 sigma^2) (Nadaraya 1964; Watson 1964).

    `sigma` is in the units of the features. It is one number, or [Q, 1] for a width per query; the latter needs all
    queries at once, implementation="plain", else InputError. A traced sigma counts by its size, and 0 is not defined.

    >>> Gaussian(sigma=0.5)(jnp.array([[0.0]]), jnp.array([[1.0]])).tolist()
    [[-2.0]]
    """

    sigma: Float[Array, ""] | float = 1.0

    def __post_init__(self):
        check_option("sigma of Gaussian", self.sigma, above=0)

    def __call__(self, query, key):
        if jnp.ndim(self.sigma) and self.sigma.shape[0] not in (1, len(query)):
            raise InputError(
                f'a Gaussian with a width per query needs sigma [Q, 1] and implementation="plain"; got sigma '
                f"{list(jnp.shape(self.sigma))} for {len(query)} queries"
            )
        inverse, sigma = _unit(self.sigma)
        square = _squared_distance(query, key, inverse)
        return square * as_type(-0.5 / sigma**2, square.dtype)

    def terms(self, query, key):
        if jnp.ndim(self.sigma):
            return None
        number = isinstance(self.sigma, int | float)
        inverse, sigma = _unit(self.sigma if number else jnp.asarray(self.sigma, jnp.float32))
        return _distance_terms(query, key, inverse, 0.5 / sigma**2)

    @classmethod
    def init(cls, rng: Array, query_width: int, key_width: int = 0, hidden: int = 0) -> "Gaussian":
        """A learned sigma, at first D^(1/4): on vectors of equal length the weights are those of `ScaledDot`."""
        return cls(jnp.full((), query_width**0.25))


@pytree
@dataclass(frozen=True)
class Boxcar(Score):
    """Logarithm of the boxcar kernel 1[||q - k|| < width]: a plain mean over the neighbors. Its gradient is zero.

    A traced width counts by its size; within 0 there is no key.

    >>> Boxcar(2.0)(jnp.array([[0.0]]), jnp.array([[1.0], [3.0]])).tolist()
    [[0.0, -inf]]
    """

    width: Float[Array, ""] | float = 1.0

    def __post_init__(self):
        check_option("width of Boxcar", self.width, above=0)

    def __call__(self, query, key):
        inverse, width = _unit(self.width)
        square = _squared_distance(jax.lax.stop_gradient(query), jax.lax.stop_gradient(key), inverse)
        return jnp.where(square < as_type(width**2, square.dtype), 0.0, -jnp.inf).astype(square.dtype)


@pytree
@dataclass(frozen=True)
class Triangular(Score):
    """Logarithm of the triangular kernel max(0, 1 - ||q - k|| / width), spelled as in "Dive into Deep Learning" 11.2.

    Epanechnikov's own kernel is 1 - ||q - k||^2. A traced width counts by its size, and 0 is not defined.

    >>> jnp.exp(Triangular(2.0)(jnp.array([[0.0]]), jnp.array([[1.0], [3.0]]))).tolist()
    [[0.5, 0.0]]
    """

    width: Float[Array, ""] | float = 1.0

    def __post_init__(self):
        check_option("width of Triangular", self.width, above=0)

    def __call__(self, query, key):
        inverse, width = _unit(self.width)
        square = _squared_distance(query, key, inverse)
        distance = jnp.where(square > 0, jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)  # no infinite slope at 0
        kernel = 1.0 - distance / jnp.abs(as_type(width, distance.dtype))
        return jnp.where(kernel > 0, jnp.log(jnp.where(kernel > 0, kernel, 1.0)), -jnp.inf)


@pytree
@dataclass(frozen=True)
class Constant(Score):
    """A constant score of 0: attention is the mean of the values that the mask allows.

    >>> Constant()(jnp.ones((1, 3)), jnp.ones((2, 3))).tolist()
    [[0.0, 0.0]]
    """

    def __call__(self, query, key):
        return jnp.zeros((query.shape[0], key.shape[0]), accumulator(query.dtype))
