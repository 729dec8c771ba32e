"""The layers of a stack: one module each, or one module with stacked weights for a run of equal layers, which a scan
goes through, so that the size of a program does not grow with depth.

The weights of layers 4 to 6 of a decoder are decoder/layer_4, decoder/layer_5 and decoder/layer_6, or, scanned,
decoder/layers_4 with a leading axis of 3.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from attention_jax.config import ModelOptions
from attention_jax.errors import InputError
from attention_jax.models.blocks import Block
from attention_jax.models.taps import SET, TRACE
from attention_jax.ops.shared import BeamKVCache


class Segment(NamedTuple):
    """Consecutive layers with one module."""

    layer: nn.Module
    bias: Callable[[], Any]
    """Makes the relative positions' bias of its self-attention, or None."""
    count: int | None
    """Number of scanned layers; None is one layer that is not."""


def runs(block: Block, layers: int) -> list[tuple[int, int]]:
    """(first, number) of each run of consecutive layers with equal blocks.

    >>> runs(Block(8, 2, 8, per_layer="2:mask=window(4)"), 5)
    [(0, 2), (2, 1), (3, 2)]
    """
    blocks = list(block.of_layers(layers))
    groups = [list(group) for _, group in groupby(range(layers), key=lambda i: blocks.index(blocks[i]))]
    return [(group[0], len(group)) for group in groups]


def make_layers(stack: nn.Module, make: Callable[[Block], nn.Module], bidirectional: bool):
    """Give `stack`, in its setup, its layers and the biases of their relative positions."""
    block, blocks = stack.block, list(stack.block.of_layers(stack.layers))
    if stack.scan:
        if stack.shared:
            raise InputError("--model.scan-layers stacks the layers' weights, and --model.shared-layers has one layer")
        if block.position_embedding in ("shaw", "transformer_xl"):
            raise InputError(
                f"--model.scan-layers cannot scan --model.position-embedding {block.position_embedding}, which has "
                "weights of each layer outside of it: leave one of them out"
            )
        for first, _ in runs(block, stack.layers):
            setattr(stack, f"layers_{first}", make(blocks[first]))
    else:
        stack.layer = [make(one) for one in blocks[: 1 if stack.shared else None]]
    stack.bias = block.relative_biases(1 if stack.scan else len(stack.layer), bidirectional)


def layer_segments(stack: nn.Module) -> list[Segment]:
    """The layers of a stack, of which several may share one module."""
    if stack.scan:
        found = [(getattr(stack, f"layers_{first}"), 0, count) for first, count in runs(stack.block, stack.layers)]
    else:
        found = [(stack.layer[i % len(stack.layer)], i, None) for i in range(stack.layers)]
    kind, without = stack.block.position_embedding, lambda: None
    bias = lambda layer, i: stack.bias[i % len(stack.bias)] if layer.block.position_embedding == kind else without
    return [Segment(layer, bias(layer, i), count) for layer, i, count in found]


def run_layers(
    stack: nn.Module, one: Callable, x: Any, given: Sequence | None = None, caches: Sequence | None = None
) -> tuple[Any, list, list]:
    """Apply `one(layer, bias, x, given, cache) -> (x, output, cache)` layer by layer: the last x, and the outputs and
    caches of each segment.

    `given` and `caches` have an entry for each segment. Those and the outputs of scanned layers have a leading axis of
    layers. A scan carries its caches, which are written in place.
    """
    outputs, written = [], []
    for i, (layer, make_bias, count) in enumerate(layer_segments(stack)):
        bias, own, cache = make_bias(), given and given[i], caches and caches[i]
        if count is None:
            x, output, cache = one(layer, bias, x, own, cache)
        else:
            apply = partial(_scanned, stack.is_initializing(), lambda *args, bias=bias: one(args[0], bias, *args[1:]))
            (x, cache), output = apply(layer, (x, cache), (own, jnp.arange(count, dtype=jnp.int32)))
        outputs.append(output)
        written.append(cache)
    return x, outputs, written


def _scanned(initializing: bool, one: Callable, layer: nn.Module, carry: tuple, given: tuple):
    """The scan of `one(layer, x, given, cache)` over the stacked weights of `layer`: ((x, cache), outputs)."""

    def body(layer, carry, given):
        (x, cache), (own, index) = carry, given
        x, output, cache = one(layer, x, own, _at_layer(cache, index))
        return (x, _at_layer(cache, None)), output

    body = nn.map_variables(body, "params", trans_in_fn=flip_kernels, trans_out_fn=flip_kernels, init=initializing)
    axes = dict.fromkeys(("params", "attention_statistics", TRACE, SET), 0)
    scan = nn.scan(body, variable_axes=axes, split_rngs={"params": True, "dropout": True})
    return scan(layer, carry, given)


def _at_layer(cache, index):
    change = lambda part: dataclasses.replace(part, layer=index)
    return jax.tree.map(change, cache, is_leaf=lambda node: isinstance(node, BeamKVCache))


def side_by_side(stack: nn.Module, maps: list[Array]) -> Array:
    """The arrays [B, ...] of all layers, from those of the segments, as [B, layers, ...]."""
    scanned = [segment.count is not None for segment in layer_segments(stack)]
    return jnp.concatenate([x.swapaxes(0, 1) if s else x[:, None] for x, s in zip(maps, scanned, strict=True)], axis=1)


def flip_kernels(params: Mapping) -> Mapping:
    """Transpose the kernels [..., in, out] of one layer or of a stack.

    Those of a stack are stored as [layers, out, in], as PyTorch does: XLA's CPU backend then multiplies one row by a
    layer's slice where it lies, and copies the slice of the other order first, which triples the traffic of decoding.
    """
    flip = lambda path, x: x.swapaxes(-1, -2) if path[-1].key == "kernel" else x
    return jax.tree_util.tree_map_with_path(flip, params)


LAYER, LAYERS = re.compile(r"layer_(\d+)"), re.compile(r"layers_(\d+)")


def unstack_layers(params: Mapping, options: ModelOptions) -> dict:
    """The parameters of the model without `scan_layers`, from those of either; the inverse of `stack_layers`."""
    tree = {}
    for name, value in params.items():
        if found := LAYERS.fullmatch(name):
            for i in range(len(jax.tree.leaves(value)[0])):
                tree[f"layer_{int(found[1]) + i}"] = flip_kernels(jax.tree.map(lambda x, i=i: x[i], value))
        else:
            tree[name] = unstack_layers(value, options) if isinstance(value, Mapping) else value
    return tree


def stack_layers(params: Mapping, options: ModelOptions) -> dict:
    """The parameters of the model with `scan_layers`, from those of either: the layers decoder/layer_I of each run of
    equal blocks become decoder/layers_FIRST."""
    tree = {k: stack_layers(v, options) if isinstance(v, Mapping) else v for k, v in params.items()}
    layers = {int(found[1]): tree.pop(name) for name in params if (found := LAYER.fullmatch(name))}
    for first, count in runs(Block.of(options), len(layers)) if layers else ():
        stacked = [flip_kernels(layers[i]) for i in range(first, first + count)]
        tree[f"layers_{first}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stacked)
    return tree
