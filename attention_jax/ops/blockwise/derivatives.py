"""Derivatives of blockwise attention: which program computes each of them, on each platform.

| derivative | computed by |
|---|---|
| reverse mode | `backward` of `ops/blockwise/softmax.py`, `ops/blockwise/local.py` or `ops/blockwise/ordered.py`; in a
generated kernel that of `ops/kernels/generated`, where it can |
| forward mode | `ops/blockwise/forward_mode.py`; for an `Ordered` normalizer `jax.jvp` of
`ops/blockwise/higher_order.py` |
| any of a higher order | JAX, of `ops/blockwise/higher_order.py` |

All of them need memory linear in Q + K and use the residuals of the forward pass.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise import local, ordered, softmax
from attention_jax.ops.blockwise.batched import with_blocks
from attention_jax.ops.blockwise.forward_mode import output_tangents
from attention_jax.ops.blockwise.higher_order import attend_by_tiles
from attention_jax.ops.blockwise.linear_call import LinearMap, call_linear, is_symbolic_zero
from attention_jax.ops.blockwise.score_blocks import Blocks, Combine, Inputs, finite_where_unattended, partition
from attention_jax.ops.kernels import generated
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import Exponential, Ordered
from attention_jax.ops.platforms import by_platform

Outputs = tuple[jax.Array, jax.Array | None]
"""Pooled values [Q, V], and for the softmax the log-normalizer [Q] (+inf where a query may attend to nothing)."""

Whole = Callable[[Inputs], tuple]
"""The same outputs, and `Statistics`, with the whole matrix of scores in memory."""


def _select_module(inputs):
    """Return the module with `forward` and `backward` for the normalizer of these inputs."""
    normalizer = inputs.rules[2]
    if isinstance(normalizer, Exponential):
        return softmax
    return ordered if isinstance(normalizer, Ordered) else local


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def attend_in_blocks(blocks: tuple, whole: Whole, combine: Combine, floats: list, non_floats: list):
    """Compute exact attention block by block, in memory linear in Q + K: (outputs, what is saved for the derivatives,
    `Statistics`, neither of which has a derivative, `floats`, finite in fully masked rows). `floats`, `non_floats` and
    `combine` are `partition` of the `Inputs`.

    `blocks` are pairs of a platform and its block sizes (`platforms.by_platform`). On a platform where they are None,
    `whole` computes all weights at once, and again for the gradient: every platform saves the same arrays, none of
    size Q * K.
    """
    inputs = finite_where_unattended(combine(floats, non_floats))
    program = _select_module(inputs)
    block_sizes = [b for _, b in blocks if b is not None] or [Blocks(1, 1)]

    def compute(blocks, inputs):
        if blocks is None:
            # the branches of all platforms return arrays of one structure: zeros in the place of `saved`, never read,
            # since the derivatives of this branch differentiate `whole`
            out, log, statistics = whole(inputs)
            _, saved, _ = jax.eval_shape(lambda: program.forward(inputs, block_sizes[0]))
            saved = vary_like(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), saved), inputs)
            return (out, log), saved, statistics
        return with_blocks((generated if blocks.kernel else program).forward, blocks, inputs)

    in_xla = all(b is not None and b.kernel is None for _, b in blocks)
    run = partial(with_blocks, program.forward) if in_xla else compute
    return *by_platform(run, dict(blocks), inputs), partition(inputs)[0]


class Call(NamedTuple):
    """What is static in the derivatives of a call."""

    blocks: tuple
    whole: Whole
    combine: Combine
    moving: tuple[int, ...]  # places of the floats that have tangents
    point: jax.tree_util.PyTreeDef  # of `Point`
    outputs: jax.tree_util.PyTreeDef


class Point(NamedTuple):
    """Where a call is differentiated: its arguments, and what its forward pass has computed."""

    floats: list
    non_floats: list
    outputs: Outputs
    saved: tuple


@partial(attend_in_blocks.defjvp, symbolic_zeros=True)
def _attend_in_blocks_jvp(blocks, whole, combine, primals, dots):
    floats, non_floats = primals
    outputs, saved, statistics, clean = attend_in_blocks(blocks, whole, combine, floats, non_floats)
    moving = tuple(n for n, dot in enumerate(dots[0]) if not is_symbolic_zero(dot))
    flat_outputs, structure = jax.tree.flatten(outputs)
    # outputs and residuals are constants of the linear map; for a second derivative `_by_tiles` computes them again
    constants, point = jax.tree.flatten(Point(list(clean), list(non_floats), *lax.stop_gradient((outputs, saved))))
    # dots [n] of the floats that move -> dots of (O [Q, V], L [Q]): linear, with everything else constant
    output_dots = jax.tree.map(jnp.zeros_like, flat_outputs)
    if moving:
        call = Call(blocks, whole, combine, moving, point, structure)
        # JAX transposes the linear map: call_linear, its _transpose_rule, _on_platforms, _cotangents, then `backward`
        run = lambda derivative: partial(_on_platforms, derivative, call)
        linear_map = LinearMap(run(_tangents), run(_cotangents))
        differentiable = LinearMap(run(_tangents_by_tiles), run(_cotangents_by_tiles))
        output_dots = call_linear(linear_map, differentiable, flat_outputs, constants, [dots[0][n] for n in moving])
    zeros = jax.tree.map(_zero_tangent, (saved, statistics))
    clean_dots = [dot if n in moving else jnp.zeros_like(x) for n, (x, dot) in enumerate(zip(floats, dots[0]))]
    return (outputs, saved, statistics, clean), (jax.tree.unflatten(structure, output_dots), *zeros, clean_dots)


# --- tangents and cotangents: by a rule of this package, and by operations that JAX can differentiate -----------------


def _on_platforms(derivative, call, constants, operands):
    """Compute `derivative(call, point, operands, blocks)` with the blocks of the platform, fewer pairs under
    `jax.vmap`."""
    point = jax.tree.unflatten(call.point, constants)
    run = partial(derivative, call)
    compute = lambda blocks: run(point, operands, None) if blocks is None else with_blocks(run, blocks, point, operands)
    return by_platform(compute, dict(call.blocks))


def _tangents(call, point, dots, blocks):
    """Compute the tangents of the outputs in one pass over the keys, where the normalizer has such a rule."""
    if blocks is None or isinstance(call.combine(point.floats, point.non_floats).rules[2], Ordered):
        return _tangents_by_tiles(call, point, dots, blocks)
    return jax.tree.leaves(output_tangents(blocks, call.combine, *point, call.moving, dots))


def _cotangents(call, point, bars, blocks):
    """Compute the cotangents of the moving floats by the backward pass."""
    floats, non_floats, outputs, saved = point
    bars = jax.tree.unflatten(call.outputs, bars)
    inputs = call.combine(floats, non_floats)
    if blocks is None:  # all weights [Q, K] again
        float_bars = jax.vjp(lambda floats: call.whole(call.combine(floats, non_floats))[:2], floats)[1](bars)[0]
    else:
        # dQ of a row is complete after its blocks of keys and is stored in its type; dK and dV are sums over all rows
        blocks = blocks._replace(round_rows=True)
        float_bars = jax.tree.leaves(_backward(inputs, blocks, outputs, saved, bars, call.moving))
        float_bars += [jnp.zeros_like(x) for x in floats[len(float_bars) :]]  # mask, dropout rate and cut
    return [float_bars[n].astype(floats[n].dtype) for n in call.moving]


def _backward(inputs, blocks, outputs, saved, bars, moving):
    if blocks.kernel is not None:
        with contextlib.suppress(generated.Unsupported):
            return generated.backward(inputs, blocks, outputs, saved, bars, moving)
    return _select_module(inputs).backward(inputs, blocks, outputs, saved, bars)


def _tangents_by_tiles(call, point, dots, blocks):
    return jax.jvp(partial(_by_tiles, call, point, blocks), _moving_floats(call, point), tuple(dots))[1]


def _cotangents_by_tiles(call, point, bars, blocks):
    return list(jax.vjp(partial(_by_tiles, call, point, blocks), *_moving_floats(call, point))[1](list(bars)))


def _by_tiles(call, point, blocks, *moving):
    """Compute the outputs as a function of the moving floats, by operations that JAX can differentiate."""
    floats = _replace_at(point.floats, call.moving, moving)
    if blocks is None:
        return jax.tree.leaves(call.whole(call.combine(floats, point.non_floats))[:2])
    # t is known from the forward pass; `attend_by_tiles` gives it the derivative of the equation that it solves
    shift, top = _shift_of(point.outputs, point.saved), getattr(point.saved, "top", None)
    return jax.tree.leaves(attend_by_tiles(call.combine, blocks, floats, point.non_floats, shift, top))


def _moving_floats(call, point):
    return tuple(point.floats[n] for n in call.moving)


def _replace_at(arrays, places, new):
    arrays = list(arrays)
    for place, x in zip(places, new, strict=True):
        arrays[place] = x
    return arrays


def _shift_of(outputs, saved):
    """Return t from the forward pass: for the softmax the log-normalizer L, else the shift, None if it is 0."""
    return outputs[1] if outputs[1] is not None else getattr(saved, "shift", None)


def _zero_tangent(x):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return jax.custom_derivatives.SymbolicZero(jax.typeof(x).to_tangent_aval())
