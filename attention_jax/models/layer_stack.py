"""The layers of a stack: one module each, or one module with stacked weights for a run of equal layers, which a scan
goes through, so that the size of a program does not grow with depth.

The weights of layers 4 to 6 of a decoder are decoder/layer_4, decoder/layer_5 and decoder/layer_6, or, scanned,
decoder/layers_4 with a leading axis of 3.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
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
    bias: nn.Module | None
    """Makes the relative positions' bias of its self-attention."""
    count: int | None
    """Number of scanned layers; None is one layer that is not."""


def layer_runs(block: Block, layers: int) -> list[tuple[int, int]]:
    """(first, number) of each run of consecutive layers with equal blocks.

    >>> layer_runs(Block(8, 2, 8, per_layer="2:mask=window(4)"), 5)
    [(0, 2), (2, 1), (3, 2)]
    """
    blocks = list(block.of_layers(layers))
    groups = [list(group) for _, group in groupby(range(layers), key=lambda i: blocks.index(blocks[i]))]
    return [(group[0], len(group)) for group in groups]


def make_layers(stack: nn.Module, make: Callable[[Block], nn.Module], bidirectional: bool):
    """Give `stack`, in its setup, its layers and the biases of their relative positions."""
    block, blocks = stack.block, list(stack.block.of_layers(stack.layers))
    if stack.scan:
        if block.attention_residuals:
            raise InputError("--model.attention-residuals read more in each layer: leave out --model.scan-layers")
        if stack.shared:
            raise InputError("--model.scan-layers stacks the layers' weights, and --model.shared-layers has one layer")
        if block.position_embedding in ("shaw", "transformer_xl"):
            raise InputError(
                f"--model.scan-layers cannot scan --model.position-embedding {block.position_embedding}, which has "
                "weights of each layer outside of it: leave one of them out"
            )
        for first, _ in layer_runs(block, stack.layers):
            setattr(stack, f"layers_{first}", make(blocks[first]))
    else:
        stack.layer = [make(layer_block) for layer_block in blocks[: 1 if stack.shared else None]]
    stack.bias = block.relative_biases(1 if stack.scan else len(stack.layer), bidirectional)


def layer_segments(stack: nn.Module) -> list[Segment]:
    """The layers of a stack; several may share one module."""
    if stack.scan:
        layers = [
            (getattr(stack, f"layers_{first}"), 0, count) for first, count in layer_runs(stack.block, stack.layers)
        ]
    else:
        layers = [(stack.layer[i % len(stack.layer)], i, None) for i in range(stack.layers)]
    segments = []
    for layer, i, count in layers:
        has_bias = layer.block.position_embedding == stack.block.position_embedding
        segments.append(Segment(layer, stack.bias[i % len(stack.bias)] if has_bias else None, count))
    return segments


def run_layers(
    stack: nn.Module, apply_layer: Callable, x: Any, memories: Sequence | None = None, caches: Sequence | None = None
) -> tuple[Any, list, list]:
    """Apply `apply_layer(layer, x, bias, memory, cache) -> (x, output, cache)` layer by layer: the last x, and the
    outputs and caches of each segment.

    `memories` and `caches` have an entry for each segment. For scanned layers, they and the outputs have a leading axis
    of layers. A scan carries its caches, which are written in place.
    """
    outputs, new_caches = [], []
    for i, (layer, make_bias, count) in enumerate(layer_segments(stack)):
        bias, memory, cache = make_bias and make_bias(), memories and memories[i], caches and caches[i]
        if count is None:
            x, output, cache = apply_layer(layer, x, bias, memory, cache)
        else:

            def body(layer, carry, inputs, bias=bias):
                (x, cache), (memory, index) = carry, inputs
                x, output, cache = apply_layer(layer, x, bias, memory, _with_layer(cache, index))
                return (x, _with_layer(cache, None)), output

            scan = _scan_stacked_weights(body, stack.is_initializing())
            (x, cache), output = scan(layer, (x, cache), (memory, jnp.arange(count, dtype=jnp.int32)))
        outputs.append(output)
        new_caches.append(cache)
    return x, outputs, new_caches


def _scan_stacked_weights(body: Callable, initializing: bool) -> Callable:
    """The scan of `body(layer, carry, inputs) -> (carry, outputs)` over the stacked weights of a layer."""
    body = nn.map_variables(body, "params", trans_in_fn=flip_kernels, trans_out_fn=flip_kernels, mutable=initializing)
    axes = dict.fromkeys(("params", "attention_statistics", TRACE, SET), 0)
    return nn.scan(body, variable_axes=axes, split_rngs={"params": True, "dropout": True})


def _with_layer(cache, index):
    set_layer = lambda kv_cache: dataclasses.replace(kv_cache, layer=index)
    return jax.tree.map(set_layer, cache, is_leaf=lambda node: isinstance(node, BeamKVCache))


def join_layer_outputs(stack: nn.Module, maps: list[Array]) -> Array:
    """The arrays [B, ...] of all layers, from those of the segments, as [B, layers, ...]."""
    scanned = [segment.count is not None for segment in layer_segments(stack)]
    return jnp.concatenate([x.swapaxes(0, 1) if s else x[:, None] for x, s in zip(maps, scanned, strict=True)], axis=1)


def flip_kernels(params: Mapping) -> Mapping:
    """Transpose the kernels [..., in, out] of one layer or of a stack.

    Stacked kernels are stored as [layers, out, in], as in PyTorch: XLA's CPU backend then multiplies a row by a layer's
    slice in place. A slice of [layers, in, out] is copied first, which triples the memory traffic of decoding.
    """
    flip = lambda path, x: x.swapaxes(-1, -2) if path[-1].key == "kernel" else x
    return jax.tree_util.tree_map_with_path(flip, params)


LAYER, LAYERS = re.compile(r"layer_(\d+)"), re.compile(r"layers_(\d+)")


def unstack_layers(params: Mapping) -> dict:
    """The parameters of the model without `scan_layers`, from either layout; the inverse of `stack_layers`."""
    tree = {}
    for name, value in params.items():
        if match := LAYERS.fullmatch(name):
            for i in range(len(jax.tree.leaves(value)[0])):
                tree[f"layer_{int(match[1]) + i}"] = flip_kernels(jax.tree.map(lambda x, i=i: x[i], value))
        else:
            tree[name] = unstack_layers(value) if isinstance(value, Mapping) else value
    return tree


def stack_layers(params: Mapping, options: ModelOptions) -> dict:
    """The parameters of the model with `scan_layers`, from either layout: the layers decoder/layer_I of each run of
    equal blocks become decoder/layers_FIRST."""
    tree = {k: stack_layers(v, options) if isinstance(v, Mapping) else v for k, v in params.items()}
    layers = {int(match[1]): tree.pop(name) for name in params if (match := LAYER.fullmatch(name))}
    for first, count in layer_runs(Block.of(options), len(layers)) if layers else ():
        stacked = [flip_kernels(layers[i]) for i in range(first, first + count)]
        tree[f"layers_{first}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *stacked)
    return tree
