"""Linear functions with a custom transpose, which give a `jax.custom_jvp` a custom reverse mode.

`jax.custom_vjp` has no forward mode, and `jax.custom_jvp` leaves the reverse mode to JAX, which cannot transpose loops
whose length depends on data and would save what each step computes. A tangent made by `call_linear` has both: JAX runs
`apply` in forward mode and `apply_transpose` in reverse mode. For derivatives of a higher order it differentiates
`differentiable`, the same two functions written so that it can.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jax.sharding import PartitionSpec

from attention_jax.ops.meshes import varying

Arrays = list[jax.Array]


class LinearMap(NamedTuple):
    """A function of (constants, tangents) that is linear in the tangents, and its transpose, of (constants, bars)."""

    apply: Callable[[Arrays, Arrays], Arrays]
    apply_transpose: Callable[[Arrays, Arrays], Arrays]

    def transpose(self) -> "LinearMap":
        return LinearMap(self.apply_transpose, self.apply)


def call_linear(
    linear_map: LinearMap, differentiable: LinearMap, outputs: Sequence[Any], constants: Arrays, tangents: Arrays
) -> Arrays:
    """`linear_map.apply(constants, tangents)`, which JAX transposes by `linear_map.apply_transpose`. `differentiable`
    is the same map, written so that JAX can differentiate it in every mode; `outputs` have the shapes and types of the
    result."""
    shapes = tuple((tuple(x.shape), jnp.dtype(x.dtype)) for x in outputs)
    return _linear.bind(
        *constants,
        *tangents,
        count=len(constants),
        shapes=shapes,
        linear_map=linear_map,
        differentiable=differentiable,
    )


_linear = Primitive("linear")
_linear.multiple_results = True


def _impl(*arrays, linear_map, count, **_):
    return linear_map.apply(list(arrays[:count]), list(arrays[count:]))


def abstract_outputs(*arrays, shapes, **_):
    """The abstract values of outputs with these (shape, dtype), on the mesh of `arrays`."""
    like = max(arrays, key=lambda x: len(varying(x)))  # arrays of the same mesh
    spec = lambda shape: like.sharding.update(spec=PartitionSpec(*[None] * len(shape)))
    return [like.update(shape=shape, dtype=dtype, weak_type=False, sharding=spec(shape)) for shape, dtype in shapes]


def _jvp_rule(primals, tangents, *, differentiable, count, **params):
    out = _linear.bind(*primals, differentiable=differentiable, count=count, **params)
    fixed, moving = tangents[:count], tangents[count:]
    if all(type(x) is ad.Zero for x in fixed):  # the constants do not move: the tangent of a linear map is the map
        moving = [ad.instantiate_zeros(x) for x in moving]
        return out, _linear.bind(*primals[:count], *moving, differentiable=differentiable, count=count, **params)
    run = lambda *arrays: differentiable.apply(list(arrays[:count]), list(arrays[count:]))
    return out, push_forward(run, primals, tangents)


def push_forward(run: Callable, primals, tangents) -> Arrays:
    """The tangents of `run(*primals)`, in the rule of a primitive."""
    dots = [None if _is_zero(x) else x for x in tangents]  # integers have no tangent

    def run_moving(*moving_values):
        moving_values = iter(moving_values)
        return run(*(x if dot is None else next(moving_values) for x, dot in zip(primals, dots, strict=True)))

    moved = [(x, dot) for x, dot in zip(primals, dots, strict=True) if dot is not None]
    return jax.jvp(run_moving, *(tuple(column) for column in zip(*moved, strict=True)))[1]


def _is_zero(tangent) -> bool:
    return type(tangent) is ad.Zero or tangent.dtype == jax.dtypes.float0


def _transpose_rule(bars, *arrays, linear_map, differentiable, count, shapes):
    bars = [ad.instantiate_zeros(bar) for bar in bars]
    # dots -> out is linear, so that the transpose bars -> cotangents is a linear map of the same constants, and this
    # primitive again, which has a tangent, a transpose and a batch; constants are no linear arguments
    needs_cotangent = [ad.is_undefined_primal(x) for x in arrays[count:]]
    outputs = [x.aval if needed else x for needed, x in zip(needs_cotangent, arrays[count:], strict=True)]
    cotangents = call_linear(linear_map.transpose(), differentiable.transpose(), outputs, arrays[:count], bars)
    return [None] * count + [bar if needed else None for bar, needed in zip(cotangents, needs_cotangent, strict=True)]


def _batching_rule(arrays, axes, *, count, shapes, linear_map, differentiable):
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)

    # one function of all tangents is mapped: each has the axis then, also those that are the same for all examples
    def batch_first(x, axis, is_tangent):
        if axis is not None:
            return jnp.moveaxis(x, axis, 0)  # [batch, ...]
        return jnp.broadcast_to(x[None], (size, *x.shape)) if is_tangent else x

    moved = [batch_first(x, axis, n >= count) for n, (x, axis) in enumerate(zip(arrays, axes, strict=True))]
    constants = [None if axis is None else 0 for axis in axes[:count]]
    over_batch = lambda function: jax.vmap(function, in_axes=(constants, 0))
    linear_map, differentiable = (LinearMap(*map(over_batch, each)) for each in (linear_map, differentiable))
    shapes = tuple(((size, *shape), dtype) for shape, dtype in shapes)
    out = _linear.bind(*moved, count=count, shapes=shapes, linear_map=linear_map, differentiable=differentiable)
    return out, [0] * len(shapes)


_linear.def_impl(_impl)
_linear.def_abstract_eval(abstract_outputs)
ad.primitive_jvps[_linear] = _jvp_rule
ad.primitive_transposes[_linear] = _transpose_rule
batching.primitive_batchers[_linear] = _batching_rule
mlir.register_lowering(_linear, mlir.lower_fun(_impl, multiple_results=True))


def is_symbolic_zero(tangent: Any) -> bool:
    """Whether a tangent that a rule of `jax.custom_jvp(symbolic_zeros=True)` was given is known to be zero."""
    return isinstance(tangent, jax.custom_derivatives.SymbolicZero) or tangent.dtype == jax.dtypes.float0
