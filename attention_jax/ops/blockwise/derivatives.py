"""Derivatives of blockwise attention: which program computes each of them, on each platform.

| derivative | computed by |
|---|---|
| reverse mode | `backward` of `ops/blockwise/softmax.py`, `ops/blockwise/local.py` or `ops/blockwise/ordered.py` |
| forward mode | `ops/blockwise/forward_mode.py`; for an `Ordered` normalizer `jax.jvp` of
`ops/blockwise/higher_order.py` |
| any of a higher order | JAX, of `ops/blockwise/higher_order.py` |

All of them need memory linear in Q + K and use the residuals of the forward pass.
"""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from attention_jax.ops.blockwise import local, ordered, softmax
from attention_jax.ops.blockwise.forward_mode import tangents
from attention_jax.ops.blockwise.higher_order import attend_by_tiles
from attention_jax.ops.blockwise.linear_call import Pair, is_symbolic_zero, linear
from attention_jax.ops.blockwise.score_blocks import Blocks, Inputs, finite_where_unattended, partition
from attention_jax.ops.meshes import vary_like
from attention_jax.ops.normalizer_kinds import Exponential, Ordered
from attention_jax.ops.platforms import by_platform

Outputs = tuple[jax.Array, jax.Array | None]
"""Pooled values [Q, V], and for the softmax the log-normalizer [Q] (+inf where a query may attend to nothing)."""

Whole = Callable[[Inputs], Outputs]
"""The same outputs with the whole matrix of scores in memory."""


def in_blocks(inputs: Inputs, blocks: Mapping[str, Blocks | None], whole: Whole) -> Outputs:
    """Compute exact attention block by block, in memory linear in Q + K.

    `blocks` are the block sizes of each platform (`platforms.by_platform`). On a platform where they are None, `whole`
    computes all weights at once, and again for the gradient: every platform saves the same arrays, none of size Q * K.
    """
    floats, others, combine = partition(inputs)
    return _attend(tuple(blocks.items()), whole, combine, floats, others)[0]


def _program(inputs):
    """Return the module with `forward` and `backward` for the normalizer of these inputs."""
    normalizer = inputs.rules[2]
    if isinstance(normalizer, Exponential):
        return softmax
    return ordered if isinstance(normalizer, Ordered) else local


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _attend(blocks, whole, combine, floats, others):
    """(outputs, what is saved for the derivatives and has none itself, `floats`, finite in fully masked rows)."""
    inputs = finite_where_unattended(combine(floats, others))
    program = _program(inputs)
    some = [b for _, b in blocks if b is not None] or [Blocks(1, 1)]
    sizes = inputs.query.shape[0], inputs.key.shape[0]
    grid = tuple(-(-size // min(b[axis] for b in some)) for axis, size in enumerate(sizes))  # of the smallest blocks

    def run(blocks):
        if blocks is None:
            _, saved = jax.eval_shape(lambda: program.forward(inputs, some[0], grid))
            return whole(inputs), vary_like(jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), saved), inputs)
        return program.forward(inputs, blocks, grid)

    return *by_platform(run, dict(blocks)), partition(inputs)[0]


@partial(_attend.defjvp, symbolic_zeros=True)
def _attend_jvp(blocks, whole, combine, primals, dots):
    floats, others = primals
    outputs, saved, clean = _attend(blocks, whole, combine, floats, others)
    moving = tuple(n for n, dot in enumerate(dots[0]) if not is_symbolic_zero(dot))
    found, structure = jax.tree.flatten(outputs)
    kept, kept_structure = jax.tree.flatten(lax.stop_gradient((outputs, saved)))
    sizes = len(floats), len(others)

    def unpacked(constants):
        floats, constants = constants[: sizes[0]], constants[sizes[0] :]
        others, kept = constants[: sizes[1]], constants[sizes[1] :]
        return floats, others, *jax.tree.unflatten(kept_structure, kept)

    def differentiable(constants):
        """Return (the outputs as a function of the arguments that have tangents, those arguments)."""
        floats, others, outputs, saved = unpacked(constants)

        def run(blocks, *some):
            inner = _replaced(floats, moving, some)
            if blocks is None:
                return jax.tree.leaves(whole(combine(inner, others)))
            top = getattr(saved, "top", None)
            return jax.tree.leaves(attend_by_tiles(combine, blocks, inner, others, _shift(outputs, saved), top))

        return run, tuple(floats[n] for n in moving)

    def pushed(constants, dots):
        run, some = differentiable(constants)
        return lambda blocks: jax.jvp(partial(run, blocks), some, tuple(dots))[1]

    def forward(constants, dots):
        call = combine, *unpacked(constants), moving, dots
        return by_platform(partial(_forward, pushed(constants, dots), call), dict(blocks))

    def again(constants, dots):
        return by_platform(pushed(constants, dots), dict(blocks))

    def transpose_again(constants, bars):
        run, some = differentiable(constants)
        return by_platform(lambda blocks: list(jax.vjp(partial(run, blocks), *some)[1](list(bars))), dict(blocks))

    def transpose(constants, bars):
        call = whole, combine, *unpacked(constants), moving, jax.tree.unflatten(structure, bars)
        return by_platform(partial(_backward, call), dict(blocks))

    constants = [*clean, *others, *kept]
    found_dots = jax.tree.map(jnp.zeros_like, found)
    if moving:
        pair, differentiable_pair = Pair(forward, transpose), Pair(again, transpose_again)
        found_dots = linear(pair, differentiable_pair, found, constants, [dots[0][n] for n in moving])
    zeros = jax.tree.map(_zero_tangent, saved)
    clean_dots = [dot if n in moving else jnp.zeros_like(x) for n, (x, dot) in enumerate(zip(floats, dots[0]))]
    return (outputs, saved, clean), (jax.tree.unflatten(structure, found_dots), zeros, clean_dots)


def _forward(otherwise, call, blocks):
    """Compute the tangents in forward mode by `tangents(*call)`, or by `otherwise(blocks)` if that is unsupported."""
    combine, floats, others, *_ = call
    if blocks is None or isinstance(combine(floats, others).rules[2], Ordered):
        return otherwise(blocks)
    return jax.tree.leaves(tangents(blocks, *call))


def _backward(call, blocks):
    """Compute the cotangents of the differentiated arguments."""
    whole, combine, floats, others, outputs, saved, moving, bars = call
    inputs = combine(floats, others)
    if blocks is None:
        found = jax.vjp(lambda floats: whole(combine(floats, others)), floats)[1](bars)[0]
    else:
        found = jax.tree.leaves(_program(inputs).backward(inputs, blocks, outputs, saved, bars))
        found += [jnp.zeros_like(x) for x in floats[len(found) :]]  # mask, dropout rate and cut
    return [found[n].astype(floats[n].dtype) for n in moving]


def _replaced(arrays, places, new):
    arrays = list(arrays)
    for place, x in zip(places, new, strict=True):
        arrays[place] = x
    return arrays


def _shift(outputs, saved):
    """The result of the forward pass that `tiles` needs: the log-normalizer, or the shift."""
    return outputs[1] if outputs[1] is not None else getattr(saved, "shift", None)


def _zero_tangent(x):
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.zeros_like(x)
    return jax.custom_derivatives.SymbolicZero(jax.typeof(x).to_tangent_aval())
