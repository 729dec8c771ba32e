"""Mixed precision: the types of the operands of a matmul and of its accumulation.

JAX's setting decides: under `jax.default_matmul_precision("bfloat16")` matmuls with weights have bfloat16 operands and
accumulate in float32. A TPU does so by default; XLA ignores the setting on a CPU, so the operands are rounded
explicitly here, in the gradients too. Everything else stays in float32, which on a CPU is faster than a model in
bfloat16.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.meshes import vary_together
from attention_jax.ops.platforms import by_platform

FLATTEN_BATCH = {"cpu": True, "default": False}
"""Where all leading axes are one axis of rows while they are multiplied.

XLA's CPU backend then computes the gradient of a weight twice as fast, as one plain product. A TPU would copy: its
arrays lie in tiles of 8 or 16 rows, and 128 x 196 patches are no 25,088 rows where no image ends with a tile.
"""


def accumulator(dtype) -> jnp.dtype:
    """float64 for float64, float32 for everything else, half precision included; complex numbers keep their type.

    >>> accumulator(jnp.bfloat16)
    dtype('float32')
    """
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.dtype(dtype)
    return jax.dtypes.canonicalize_dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def widest(*arrays: jax.Array) -> jnp.dtype:
    """The type that JAX promotes arrays to, also where it is set to promote none.

    >>> widest(jnp.ones(1, jnp.bfloat16), jnp.ones(1))
    dtype('float32')
    """
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*(x.dtype for x in arrays))


def promote_arrays(*arrays: jax.Array) -> list[jax.Array]:
    """Return arrays in the `widest` of their types.

    >>> [x.dtype.name for x in promote_arrays(jnp.ones(1, jnp.bfloat16), jnp.ones(1))]
    ['float32', 'float32']
    """
    arrays = [jnp.asarray(x) for x in arrays]
    dtype = widest(*arrays)
    return [x.astype(dtype) for x in arrays]


def as_type(number: Float[Array, "..."] | float, dtype) -> Float[Array, "..."] | float:
    """Cast a parameter of a score or normalizer to the type of the scores, which are in float32 at least whatever the
    type of the parameter is; Python's numbers stay as they are, and combine with any type.

    >>> as_type(jnp.ones((), jnp.bfloat16), jnp.float32).dtype.name, as_type(2.0, jnp.float32)
    ('float32', 2.0)
    """
    return number if getattr(number, "dtype", dtype) == dtype else jnp.asarray(number, dtype)


def is_half(dtype) -> bool:
    """Whether a type is a half-precision one, whose sums are accumulated in a wider type. Memory traffic then costs
    more than operations: gradients save only arrays of this type and recompute the others.

    >>> is_half(jnp.bfloat16), is_half(jnp.float32)
    (True, False)
    """
    return accumulator(dtype) != dtype


def cast_for_matmul(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Cast `x` to the operand type of a matmul: float32 becomes bfloat16 if the matmul precision is set to that.

    >>> with jax.default_matmul_precision("bfloat16"):
    ...     cast_for_matmul(jnp.float32(1.001)).dtype, cast_for_matmul(jnp.float16(1)).dtype
    (dtype(bfloat16), dtype('float16'))
    """
    return (
        x.astype(jnp.bfloat16)
        if jax.config.jax_default_matmul_precision == "bfloat16" and x.dtype == jnp.float32
        else x
    )


def product(x: Float[Array, "... K"], weight: Float[Array, "K N"]) -> Float[Array, "... N"]:
    """`x @ weight` for a weight that is a `factor` already (made once, outside a
    scan); the result has the type of x."""
    return (
        x @ weight
        if x.dtype == weight.dtype
        else jnp.matmul(x.astype(weight.dtype), weight, preferred_element_type=x.dtype)
    )


def weight_gradient(x: Float[Array, "... K"], d: Float[Array, "... N"], flatten: bool = True) -> Float[Array, "K N"]:
    """Compute the gradient of the weight in `x @ weight` with cotangent d: x^T d over all rows of
    all leading axes, as ONE matmul; these are flattened to one axis first, by default (`FLATTEN_BATCH`)."""
    rounded = cast_for_matmul(d)
    if not flatten:
        over = (tuple(range(x.ndim - 1)),) * 2
        return jax.lax.dot_general(x.astype(rounded.dtype), rounded, (over, ((), ())), preferred_element_type=d.dtype)
    x, rounded = x.reshape(-1, x.shape[-1]), rounded.reshape(-1, d.shape[-1])  # [R, K], [R, N]
    return x.T @ rounded if rounded.dtype == d.dtype else matmul_transposed(x.astype(rounded.dtype), rounded)


def matmul_transposed(x: Float[Array, "R K"], d: Float[Array, "R N"]) -> Float[Array, "K N"]:
    """x^T d, summed in float32 at least.

    For half precision the rows are contracted together with an axis of one. Without it XLA's CPU backend multiplies
    in float32, or, where vmap puts heads between rows and features, accepts a product of bfloat16 factors that none
    of its kernels computes ("UNIMPLEMENTED: Unsupported element type for DotThunk::Execute").
    """
    if x.dtype == accumulator(x.dtype):
        return x.T @ d  # [K, N]
    return jnp.einsum("zrk,zrn->kn", x[None], d[None], preferred_element_type=accumulator(x.dtype))


def input_gradient(d: Float[Array, "... N"], weight: Float[Array, "K N"]) -> Float[Array, "... K"]:
    """Compute the gradient of the input in `product(x, weight)` with cotangent d: d times the transposed weight."""
    if d.dtype == weight.dtype:
        return d @ weight.T
    return jax.lax.dot_general(
        d.astype(weight.dtype), weight, (((d.ndim - 1,), (1,)), ((), ())), preferred_element_type=d.dtype
    )


def matmul(x: Float[Array, "... K"], weight: Float[Array, "K N"]) -> Float[Array, "... N"]:
    """Compute `x @ weight` in the matmul precision that is set, forward and backward. Pass rows as leading axes: under
    vmap each would have a separate gradient.

    >>> x, weight = jnp.float32([[1.001]]), jnp.float32([[3]])
    >>> with jax.default_matmul_precision("bfloat16"):
    ...     round(float(matmul(x, weight)[0, 0]), 3), round(float((x @ weight)[0, 0]), 3)
    (3.0, 3.003)
    """
    return (
        x @ weight if cast_for_matmul(weight).dtype == weight.dtype else _matmul_rounding(*vary_together((x, weight)))
    )


@jax.custom_vjp
def _matmul_rounding(x, weight):
    return product(x, cast_for_matmul(weight))


def _matmul_rounding_backward(saved, d):
    x, weight = saved
    return input_gradient(d, weight), by_platform(functools.partial(weight_gradient, x, d), _axes(x))


_matmul_rounding.defvjp(
    lambda x, weight: (_matmul_rounding(x, weight), (cast_for_matmul(x), cast_for_matmul(weight))),
    _matmul_rounding_backward,
)


@jax.custom_vjp
def affine(x: Float[Array, "... K"], weight: Float[Array, "K N"], bias: Float[Array, "N"] | None):
    """x W + b in the type of x, [..., N], by `matmul`; the gradient keeps x and W on every platform.

    >>> affine(jnp.ones((2, 3, 4)), jnp.ones((4, 5)), jnp.ones(5)).shape
    (2, 3, 5)
    """
    return by_platform(lambda flatten: _affine(x, weight, bias, flatten), _axes(x))


def _axes(x):
    return FLATTEN_BATCH if x.ndim > 2 else {"default": True}


def _affine(x, weight, bias, flatten):
    rows = x.reshape(-1, x.shape[-1]) if flatten else x  # [R, K] or [..., K]
    y = matmul(rows, weight.astype(x.dtype))
    if bias is not None:
        y = y + bias.astype(x.dtype).reshape((1,) * (y.ndim - 1) + bias.shape)
    return y.reshape(*x.shape[:-1], weight.shape[1])  # [..., N]


def _affine_backward(saved, y_bar):
    run = lambda flatten: jax.vjp(lambda *saved: _affine(*saved, flatten), *saved)[1](y_bar)
    return by_platform(run, _axes(saved[0]))


affine.defvjp(lambda *saved: (affine(*saved), saved), _affine_backward)
