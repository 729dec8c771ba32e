"""The custom derivative of attention in blocks: which program computes it, on each platform, and what is saved."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp

from attention_jax.ops import blockwise, fused, ordered
from attention_jax.ops.normalisers import Softmax
from attention_jax.ops.normalising import Ordered
from attention_jax.ops.platforms import by_platform
from attention_jax.ops.score_blocks import Blocks, Inputs, shielded, split

Outputs = tuple[jax.Array, jax.Array | None]
"""Pooled values [Q, V], and for the softmax the log-normaliser [Q] (+inf where a query may attend to nothing)."""

Whole = Callable[[Inputs], Outputs]
"""The same outputs with the whole matrix of scores in memory."""


def in_blocks(inputs: Inputs, blocks: Mapping[str, Blocks | None], whole: Whole) -> Outputs:
    """Attention block by block, exactly, in memory linear in Q + K.

    `blocks` are those of each platform (`platforms.by_platform`). Where they are None, `whole` computes what no block
    is needed for, a second time for the gradient, so that all platforms save the same and nothing of size Q * K.
    """
    floats, others, join = split(inputs)
    return _attend(tuple(blocks.items()), whole, join, floats, others)


def _program(inputs):
    """The module with `forward` and `backward` for the normaliser of these inputs."""
    normalise = inputs.rules[2]
    if isinstance(normalise, Softmax):
        return fused
    return ordered if isinstance(normalise, Ordered) else blockwise


def _grid(inputs, some):
    """As many blocks of queries and of keys as there are on any platform."""
    sizes = inputs.query.shape[0], inputs.key.shape[0]
    return tuple(-(-size // min(b[axis] for b in some)) for axis, size in enumerate(sizes))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _attend(blocks, whole, join, floats, others):
    return _attend_fwd(blocks, whole, join, floats, others)[0]


def _attend_fwd(blocks, whole, join, floats, others):
    inputs = shielded(join(floats, others))
    program = _program(inputs)
    some = [b for _, b in blocks if b is not None] or [Blocks(1, 1)]
    grid = _grid(inputs, some)

    def run(blocks):
        if blocks is None:
            _, saved = jax.eval_shape(lambda: program.forward(inputs, some[0], grid))
            return whole(inputs), jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), saved)
        return program.forward(inputs, blocks, grid)

    outputs, saved = by_platform(run, dict(blocks))
    return outputs, (*split(inputs)[:2], outputs, saved)


def _attend_bwd(blocks, whole, join, residuals, bars):
    floats, others, outputs, saved = residuals
    program = _program(join(floats, others))

    def run(blocks):
        if blocks is None:
            return jax.vjp(lambda floats: whole(join(floats, others)), floats)[1](bars)[0]
        found = jax.tree.leaves(program.backward(join(floats, others), blocks, outputs, saved, bars))
        found += [jnp.zeros_like(x) for x in floats[len(found) :]]  # mask, dropout rate and cut
        return [bar.astype(x.dtype) for bar, x in zip(found, floats, strict=True)]

    return by_platform(run, dict(blocks)), None


_attend.defvjp(_attend_fwd, _attend_bwd)
