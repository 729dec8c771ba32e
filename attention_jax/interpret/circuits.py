"""Weights of attention heads and their circuits: what a head reads, where it looks and what it writes.

Vectors are rows, as in the models: a head reads a residual stream x [T, D], its queries are x W_Q, and it adds
A x W_V W_O. Elhage et al. 2021 ("A mathematical framework for Transformer circuits") has columns, so that each matrix
here is the transpose of the one there.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.interpret.sites import STACKS, check_model
from attention_jax.models.layer_stack import LAYER, LAYERS, flip_kernels

KINDS = ("Q", "K", "V")


class HeadWeights(NamedTuple):
    """The weights of the H heads of an attention; grouped heads of keys and values are repeated, one for each query.

    >>> weights = HeadWeights(*jnp.ones((4, 2, 8, 3)))._replace(output=jnp.ones((2, 3, 8)))
    >>> (weights.value @ weights.output).shape  # what a head writes to the residual stream, [H, D, D]
    (2, 8, 8)
    """

    query: Float[Array, "H D E"]
    key: Float[Array, "H D E"]
    value: Float[Array, "H D V"]
    output: Float[Array, "H V D"]


def head_weights(model: nn.Module, params: Mapping, layer: str) -> HeadWeights:
    """The weights of each head of a layer: query, key [H, D, E], value [H, D, V] and output [H, V, D].

    `layer` is the beginning of the names of its sites, as "decoder.14" or "encoder.0"; "decoder.14.cross" is attention
    over the encoder, whose keys and values read the encoder's D. They are the weights of the projections alone, without
    biases, the normalization before them, and what follows them (rotation, QK norm, an output gate).

    Raises InputError for a layer that the model does not have.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=2, hidden_size=8, mlp_dim=16, num_heads=4, num_kv_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> [x.shape for x in jax.eval_shape(lambda params: head_weights(model, params, "decoder.1"), shapes)]
    [(4, 8, 2), (4, 8, 2), (4, 8, 2), (4, 2, 8)]
    """
    weights = {
        name: tree["kernel"] for name, tree in _attention_params(model, params, layer).items() if "kernel" in tree
    }
    for option in ("differential", "differential_v2"):
        if getattr(model.options, option, False):
            flag = option.replace("_", "-")
            raise InputError(f"{layer} has two maps for each head (--model.{flag}): read params")
    heads = model.options.num_heads
    kv_heads = getattr(model.options, "num_kv_heads", 0) or heads
    query, key, value = (
        _columns_by_head(weights[name], heads, count)
        for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
    )
    return HeadWeights(query, key, value, weights["out"].reshape(heads, -1, weights["out"].shape[1]))  # [H, V, D]


def _columns_by_head(kernel, heads: int, stored_heads: int) -> Float[Array, "H D E"]:
    by_head = kernel.reshape(kernel.shape[0], stored_heads, -1).swapaxes(0, 1)  # [H or Hkv, D, E]
    return jnp.repeat(by_head, heads // stored_heads, axis=0)  # [H, D, E]


def _attention_params(model, params: Mapping, layer: str) -> Mapping[str, Any]:
    """The parameters of the attention of a layer, with kernels [in, out]."""
    check_model(model)
    stacks = _attention_stacks(params)
    stack, _, suffix = layer.partition(".") if isinstance(layer, str) else ("", "", "")
    number, _, kind = suffix.partition(".")
    count = _num_layers(stacks.get(stack, {}))
    if not number.isdigit() or int(number) >= count or kind not in ("", "cross"):
        layers = [f"{name}.0 to {name}.{_num_layers(tree) - 1}" for name, tree in stacks.items()]
        raise InputError(
            f"{type(model).__name__} has layers with heads {' and '.join(layers) or 'nowhere'}, of a decoder over an "
            f"encoder with .cross, got {layer!r}"
        )
    module = _layer_module(stacks[stack], int(number), "cross_attention" if kind else "attention")
    if module is None:
        raise InputError(f"{layer} has no attention over an encoder: leave out .cross")
    return module


def _attention_stacks(params: Mapping) -> dict[str, Mapping]:
    """{stack: its parameters} of the stacks of Transformer layers."""
    is_stack = lambda tree: isinstance(tree, Mapping) and any(LAYER.fullmatch(k) or LAYERS.fullmatch(k) for k in tree)
    stacks = {STACKS.get(name, name): tree for name, tree in params.items() if is_stack(tree)}
    return {name: tree for name, tree in stacks.items() if _layer_module(tree, 0, "attention") is not None}


def _num_layers(stack: Mapping) -> int:
    count = sum(LAYER.fullmatch(name) is not None for name in stack)
    return count + sum(len(jax.tree.leaves(stack[name])[0]) for name in stack if LAYERS.fullmatch(name))


def _layer_module(stack: Mapping, layer: int, name: str) -> Mapping | None:
    """The parameters of a module of one layer, as they are without a scan, or None."""
    if f"layer_{layer}" in stack:
        return stack[f"layer_{layer}"].get(name)
    first = max(int(match[1]) for match in map(LAYERS.fullmatch, stack) if match and int(match[1]) <= layer)
    module = stack[f"layers_{first}"].get(name)
    return None if module is None else flip_kernels(jax.tree.map(lambda x: x[layer - first], module))


def qk_circuit(model: nn.Module, params: Mapping, layer: str) -> Float[Array, "H D D"]:
    """W_Q W_K^T of each head of a layer, [H, D, D]: x_i W_Q W_K^T x_j^T is the score of j for i, before its scale.

    `layer` is that of `head_weights`. Rotary positions turn queries and keys, so that this is the score at distance 0.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> jax.eval_shape(lambda params: qk_circuit(model, params, "decoder.0"), shapes).shape
    (2, 8, 8)
    """
    weights = head_weights(model, params, layer)
    return weights.query @ weights.key.swapaxes(1, 2)


def ov_circuit(model: nn.Module, params: Mapping, layer: str) -> Float[Array, "H D D"]:
    """W_V W_O of each head of a layer, [H, D, D]: x W_V W_O is what a head writes where it attends to x alone.

    `layer` is that of `head_weights`.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> jax.eval_shape(lambda params: ov_circuit(model, params, "decoder.0"), shapes).shape
    (2, 8, 8)
    """
    weights = head_weights(model, params, layer)
    return weights.value @ weights.output


def composition_scores(
    model: nn.Module, params: Mapping, kind: Literal["Q", "K", "V"], stack: str | None = None
) -> Float[Array, "L H L H"]:
    """How much each head reads of what each earlier head writes (Elhage et al. 2021, "composition"): [L, H, L, H].

    Entry [l, h, m, g] is ||OV_lh R_mg|| / (||OV_lh|| ||R_mg||) in Frobenius norms, where OV = W_V W_O is what head h of
    layer l writes, and R is how head g of layer m reads: by its queries, W_Q W_K^T ("Q"), its keys, W_K W_Q^T ("K"), or
    its values, W_V W_O ("V"). It is zero unless m > l. The scale of the normalization before layer m is a factor of R
    (not in post-norm). Random matrices have about 1 / sqrt(D). No D x D matrix is made: with the QR decompositions of
    the outer factors, W_V = Q S and so on, the norm is that of a [V, E] matrix.

    Args:
      model, params: a Transformer and its parameters.
      kind: "Q", "K" or "V".
      stack: "encoder" or "decoder"; needed if the model has both.

    Raises:
      InputError: for another kind or stack, and for a model without heads.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=2, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> jax.eval_shape(lambda params: composition_scores(model, params, "K"), shapes).shape
    (2, 2, 2, 2)
    """
    check_model(model)
    stacks = _attention_stacks(params)
    if kind not in KINDS:
        raise InputError(f"composition is by Q, K or V, got {kind!r}")
    if stack is None and len(stacks) == 1:
        [stack] = stacks
    if stack not in stacks:
        raise InputError(f"{type(model).__name__} has heads in {', '.join(stacks) or 'no stack'}: got stack={stack!r}")
    layers = range(_num_layers(stacks[stack]))
    weights = [head_weights(model, params, f"{stack}.{i}") for i in layers]
    scales = [_layer_module(stacks[stack], i, "attention_norm")["scale"] for i in layers]
    is_post_norm = "norm" not in stacks[stack]  # a stack of post-norm layers has no norm at its end
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *weights)  # [L, H, ...]
    return _composition(kind, stacked, None if is_post_norm else jnp.stack(scales))


@partial(jax.jit, static_argnums=0)
def _composition(kind: str, weights: HeadWeights, scales) -> Float[Array, "L H L H"]:
    query, key, value, output = weights
    if scales is not None:
        query, key, value = (x * scales[:, None, :, None] for x in (query, key, value))
    triangle = lambda x: jnp.linalg.qr(x, mode="r")
    written = triangle(weights.value) @ output  # [L, H, V, D], of the norm of W_V W_O
    inner, outer = {"Q": (query, key), "K": (key, query), "V": (value, output.swapaxes(2, 3))}[kind]
    read = inner @ triangle(outer).swapaxes(2, 3)  # [L, H, D, E], of the norm of the matrix that reads
    norm = lambda x: jnp.linalg.norm(x, axis=(-2, -1))
    rows = written.reshape(-1, written.shape[-1])  # [L H V, D], of one product for all heads

    def read_layer(layer):
        columns = read[layer].swapaxes(0, 1).reshape(rows.shape[1], -1)  # [D, H E]
        products = (rows @ columns).reshape(*written.shape[:3], *read.shape[1::2])  # [L, H, V, H, E]
        norms = jnp.sqrt(jnp.square(products).sum((2, 4)))  # [L, H, H]
        ratio = norms / (norm(written)[:, :, None] * norm(read[layer])[None, None])  # [L, H, H]
        return jnp.where(jnp.arange(len(written))[:, None, None] < layer, ratio, 0)

    return jnp.moveaxis(jax.lax.map(read_layer, jnp.arange(len(written))), 0, 2)  # [L, H, L, H]
