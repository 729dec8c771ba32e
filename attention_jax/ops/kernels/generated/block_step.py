"""The arithmetic of one block as a list of equations, traced once by JAX, outside of any kernel.

A block step is ordinary JAX: scores, bias, mask and normalizer of one block of queries and keys, or `jax.vjp` of them.
`Step` traces it at the block's true shapes, puts the bodies of calls (`jax.jit`, `jax.custom_jvp`, ...) in their place
and drops what no output needs. What a kernel cannot compute is known from the equations, before anything is lowered.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
from jax.extend.core import Literal


class Unsupported(Exception):
    """What a kernel cannot compute; the text completes "kernel ..."."""


class Variable:
    """A result of an equation, or an argument of the step."""

    def __init__(self, aval):
        self.aval = aval


class Constant(Variable):
    """An array that the step closes over; kernels read it as one more operand."""

    def __init__(self, array):
        super().__init__(jax.typeof(array))
        self.array = array


class Equation(NamedTuple):
    """outputs = primitive(*inputs, **params)."""

    primitive: Any
    params: dict
    inputs: list  # of `Variable` and `Literal`
    outputs: list  # of `Variable`

    @property
    def name(self) -> str:
        return self.primitive.name


class Step:
    """The equations of `function(*args)`, pytrees of arrays or of `jax.ShapeDtypeStruct`s.

    >>> import jax.numpy as jnp
    >>> step = Step(jax.jit(lambda x: (x + 1) * 2), jnp.ones(4))
    >>> [equation.name for equation in step.equations]
    ['add', 'mul']
    """

    def __init__(self, function: Callable, *args):
        closed, outputs = jax.make_jaxpr(function, return_shape=True)(*args)
        self.arguments = [Variable(v.aval) for v in closed.jaxpr.invars]
        equations = []
        self.results = _inline(closed.jaxpr, closed.consts, self.arguments, equations)
        self.equations = _drop_unused(_drop_axes(equations), self.results)
        used = [v for equation in self.equations for v in equation.inputs] + self.results
        self.constants = list(dict.fromkeys(v for v in used if isinstance(v, Constant)))
        self.structure = jax.tree.structure(outputs)


class Traced(NamedTuple):
    """A step as traced for blocks in which all pairs are allowed, and for others, which hide some."""

    open: Step
    partial: Step


CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr", "call")
"""Parameters of an equation that hold the body of a call."""

IDENTITIES = {"optimization_barrier", "name", "copy", "pvary", "reshard", "sharding_constraint", "stop_gradient"}
"""Primitives that return their operands. A barrier is not needed to keep a rounding: Triton removes none."""

LOOPS = {"while", "scan", "cond", "platform_index"}


def _inline(jaxpr, constants, arguments, equations) -> list:
    """Append the equations of a jaxpr to `equations`, and return its results."""
    values = dict(zip(jaxpr.invars, arguments)) | dict(zip(jaxpr.constvars, map(Constant, constants)))

    def value_of(v):
        if isinstance(v, Literal):
            return v if jax.numpy.ndim(v.val) == 0 else Constant(jax.numpy.asarray(v.val))
        return values[v]

    for eqn in jaxpr.eqns:
        inputs = [value_of(v) for v in eqn.invars]
        if eqn.primitive.name in IDENTITIES:
            results = inputs
        elif (called := _body(eqn)) is not None:
            results = _inline(called.jaxpr, called.consts, inputs, equations)
        else:
            results = [Variable(v.aval) for v in eqn.outvars]
            equations.append(Equation(eqn.primitive, eqn.params, inputs, results))
        values.update(zip(eqn.outvars, results, strict=True))
    return [value_of(v) for v in jaxpr.outvars]


def _body(eqn):
    """The body of a call as a closed jaxpr; None for other equations."""
    if eqn.primitive.name in LOOPS:
        return None
    run = None
    if eqn.primitive.name == "linear":  # ops/blockwise/linear_call.py: what it computes
        run = partial(eqn.primitive.impl, **eqn.params)
    elif eqn.primitive.name == "call_hi_primitive":  # jax.experimental.hijax: what it is composed of
        composed = eqn.params["_prim"]
        run = lambda *arrays: jax.tree.leaves(composed.expand(*composed.in_tree.unflatten(arrays)))
    if run is not None:
        return jax.make_jaxpr(run)(*(jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in eqn.invars))
    bodies = [eqn.params[name] for name in CALLS if name in eqn.params]
    as_closed = lambda x: jax.extend.core.ClosedJaxpr(x, ()) if hasattr(x, "eqns") and not hasattr(x, "consts") else x
    bodies = list(map(as_closed, bodies))
    return bodies[0] if bodies and hasattr(bodies[0], "jaxpr") else None


def _drop_axes(equations) -> list[Equation]:
    """Products without the axes of one that their factors were given for them, as in `matmul_transposed`: a kernel
    would send the factors through shared memory."""
    sources, results = {id(v): equation for equation in equations for v in equation.outputs}, list(equations)
    for n, equation in enumerate(equations):
        sides = list(zip(*equation.params["dimension_numbers"])) if equation.name == "dot_general" else []
        inputs = list(equation.inputs)
        for side, (v, axes) in enumerate(zip(inputs, sides)):
            source = sources.get(id(v))
            if source and source.name == "broadcast_in_dim" and source.inputs[0].aval.size == v.aval.size:
                inputs[side], places = source.inputs[0], source.params["broadcast_dimensions"]
                sides[side] = [[places.index(axis) for axis in group if axis in places] for group in axes]
                numbers = {"dimension_numbers": tuple(zip(*sides))}
                results[n] = equation._replace(inputs=inputs, params=equation.params | numbers)
    return results


def _drop_unused(equations, results) -> list[Equation]:
    """The equations that the results depend on."""
    needed, used_equations = {id(v) for v in results}, []
    for equation in reversed(equations):
        if any(id(v) in needed for v in equation.outputs):
            needed |= {id(v) for v in equation.inputs}
            used_equations.append(equation)
    return used_equations[::-1]
