"""Blocks that shrink under `jax.vmap`, so that the memory of a block does not grow with the batch and its heads.

`attend` sees one head: how many are vmapped is known only to the batching rule of a primitive. `with_blocks` is one
that counts them and chooses the blocks when the program is lowered. All examples remain side by side in every
operation, because a loop over parts of a batch would make devices that share the batch exchange it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from attention_jax.ops.blockwise.linear_call import abstract_outputs, push_forward
from attention_jax.ops.blockwise.score_blocks import Blocks


def with_blocks(function: Callable, blocks: Blocks, *operands) -> Any:
    """`function(*operands, blocks=blocks)`, under `jax.vmap` with `blocks.shrink_for_batch(number of examples)`.

    `operands` are pytrees of arrays, and the shapes of the results must not depend on the blocks. Derivatives are
    JAX's.
    """
    if blocks.pairs is None:
        return function(*operands, blocks=blocks)
    arrays, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, operands))
    # traced once with the blocks of a single example: results have the same shapes with any blocks
    alone = partial(function, blocks=blocks.shrink_for_batch(1))
    jaxpr, outputs = jax.make_jaxpr(alone, return_shape=True)(*operands)
    if any(isinstance(const, jax.core.Tracer) for const in jaxpr.consts):  # a rule that closes over traced arrays
        return alone(*operands)
    like, tree = jax.tree.flatten(outputs)
    shapes = tuple((tuple(x.shape), jnp.dtype(x.dtype)) for x in like)

    def flat(*arrays, blocks):
        return jax.tree.leaves(function(*jax.tree.unflatten(structure, arrays), blocks=blocks))

    return jax.tree.unflatten(tree, _with_blocks.bind(*arrays, function=flat, blocks=blocks, levels=(), shapes=shapes))


_with_blocks = Primitive("with_blocks")
_with_blocks.multiple_results = True


def _run(*arrays, function, blocks, levels, **_):
    """`levels` are the size and the batched axes of each `jax.vmap`, the innermost first."""
    examples = 1
    for size, _ in levels:
        examples *= size
    run = partial(function, blocks=blocks.shrink_for_batch(examples))
    # each level was moved to the front of the arrays, so that the last one is the leading axis and the outermost `vmap`
    for _, axes in levels:
        run = jax.vmap(run, in_axes=axes)
    return run(*arrays)


def _jvp(primals, tangents, **params):
    return _with_blocks.bind(*primals, **params), push_forward(partial(_run, **params), primals, tangents)


def _batch(arrays, axes, *, levels, shapes, **params):
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    arrays = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    levels = *levels, (size, tuple(None if axis is None else 0 for axis in axes))
    shapes = tuple(((size, *shape), dtype) for shape, dtype in shapes)
    return _with_blocks.bind(*arrays, levels=levels, shapes=shapes, **params), [0] * len(shapes)


_with_blocks.def_impl(_run)
_with_blocks.def_abstract_eval(abstract_outputs)
ad.primitive_jvps[_with_blocks] = _jvp
batching.primitive_batchers[_with_blocks] = _batch
mlir.register_lowering(_with_blocks, mlir.lower_fun(_run, multiple_results=True))
