"""FlashAttention's rule for what rounding may cost, in place of a tolerance: the error of an implementation against
float64 is at most twice that of the definition computed in the same type (Dao et al., github.com/Dao-AILab/
flash-attention, tests/test_flash_attn.py). A wrong key or sign is further away."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.normalizers import Normalizer, Softmax

UNITS = 8
"""Of float32, in which exponentials and sums are computed whatever the type: those of a GPU are off by a few."""


def error_bound(definition, exact, dtype) -> float:
    """Twice the largest error of the definition, plus the rounding of the result itself, if the definition has none."""
    largest = np.abs(exact).max(initial=0.0)
    rounding = jnp.finfo(dtype).eps / 2 + UNITS * jnp.finfo(jnp.float32).eps
    return 2 * np.abs(np.float64(definition) - exact).max(initial=0.0) + float(rounding) * largest


def assert_error_of_rounding(results, definition, exact, dtype) -> None:
    """Raise AssertionError unless each array is as close to float64 as the rule demands."""
    for at, (result, rounded, right) in enumerate(zip(results, definition, exact, strict=True)):
        assert result.dtype == dtype and right.dtype == np.float64
        error, allowed = np.abs(np.float64(result) - right).max(initial=0.0), error_bound(rounded, right, dtype)
        assert error <= allowed, f"array {at} is off by {error:.3g}, and rounding to {dtype} explains {allowed:.3g}"


# --- definitions, which compute in the type of their arguments --------------------------------------------------------


def _unit(x):
    return x / jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True))


def _square(q, k):
    return jnp.sum((q[:, None] - k[None]) ** 2, axis=-1)


def _dot(q, k):
    return q @ k.T


def _scale_dot(q, k):
    return _dot(q, k) / q.shape[-1] ** 0.5


def _concat_score(s, q, k):
    pairs = jnp.broadcast_to(q[:, None], (len(q), *k.shape)), jnp.broadcast_to(k[None], (len(q), *k.shape))
    return jnp.tanh(jnp.concatenate(pairs, axis=-1) @ s.kernel) @ s.vector


def _leaky_sum(s, q, k):
    total = (q @ s.query_vector + s.query_bias)[:, None] + (k @ s.key_vector + s.key_bias)[None]
    return jnp.where(total > 0, total, 0.2 * total)


SCORES = {
    "Dot": lambda s, q, k: _dot(q, k),
    "ScaledDot": lambda s, q, k: _scale_dot(q, k),
    "Bilinear": lambda s, q, k: _dot(q @ s.kernel, k),
    "Additive": lambda s, q, k: jnp.tanh((q @ s.query_kernel)[:, None] + (k @ s.key_kernel)[None]) @ s.vector,
    "Concat": _concat_score,
    "LeakySum": _leaky_sum,
    "Cosine": lambda s, q, k: _dot(_unit(q), _unit(k)) * s.sharpness,
    "QKNorm": lambda s, q, k: _dot(_unit(q) * s.query_scale[None], _unit(k) * s.key_scale[None]) * q.shape[-1] ** 0.5,
    "SoftCap": lambda s, q, k: s.cap * jnp.tanh(_scale_dot(q, k) / s.cap),
    "NegativeSquaredDistance": lambda s, q, k: -_square(q, k),
    "Gaussian": lambda s, q, k: -_square(q, k) / (2 * s.sigma**2),
    "Boxcar": lambda s, q, k: jnp.where(_square(q, k) < s.width**2, 0.0, -jnp.inf).astype(q.dtype),
    "Triangular": lambda s, q, k: jnp.log(jnp.maximum(1 - jnp.sqrt(_square(q, k)) / s.width, 0)),
    "Constant": lambda s, q, k: jnp.zeros((len(q), len(k)), q.dtype),
}
"""The formulas of the papers, (score, query [Q, D], key [K, D]) -> [Q, K], without the code of `ops/scores.py`."""


def in_type(rule, dtype):
    """The rule with its arrays in a type; Python's numbers stay."""
    is_float = lambda x: hasattr(x, "dtype") and jnp.issubdtype(x.dtype, jnp.floating)
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if is_float(x) else x, rule)


def reference_attention(score, mask, bias=None, normalizer: Normalizer | None = None) -> Callable:
    """(query [Q, D], key [K, D], value [K, V]) -> [Q, V] by its definition, each array rounded to the type of query."""
    normalizer = normalizer or Softmax()

    def attention(query, key, value):
        positions = jnp.arange(len(query)), jnp.arange(len(key))
        scores = SCORES[type(score).__name__](in_type(score, query.dtype), query, key)
        if bias is not None:
            scores = scores + in_type(bias, query.dtype)(query, *positions).astype(query.dtype)
        allowed = jnp.ones(scores.shape, bool) if mask is None else mask(*positions)
        wide = jnp.float64 if query.dtype == jnp.float64 else jnp.float32
        weights = in_type(normalizer, wide).weights(scores.astype(wide), allowed & (scores != -jnp.inf))
        return weights.astype(query.dtype) @ value

    return attention


def evaluate_definitions(functions: list[Callable], arrays, dtype) -> list[np.ndarray]:
    """`with_gradients` of definitions, by a CPU and in a type to which it rounds after each operation."""
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.default_device(jax.devices("cpu")[0]):
        run = jax.jit(with_gradients(functions), compiler_options={"xla_allow_excess_precision": False})
        return [np.asarray(x) for x in run(*(np.asarray(x).astype(dtype) for x in arrays))]


def with_gradients(functions: list[Callable]) -> Callable:
    """(query, key, value, cotangent) -> the result of each function and the gradients of its three arguments, in one
    list: one program for all."""

    def run(*arrays):
        results = []
        for function in functions:
            out, pull = jax.vjp(function, *arrays[:-1])
            results += [out, *pull(arrays[-1])]
        return results

    return run
