"""Attention weights, attention rollout and head ablation of Transformers, as `report/attention_data.py` has them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax.config import ModelOptions, build_from_name
from attention_jax.config.models import NORMALIZERS
from attention_jax.interpret import head_scores, logit_lens
from attention_jax.ops.meshes import scan
from attention_jax.ops.normalizer_kinds import Pointwise, Ratio
from attention_jax.ops.normalizers import as_normalizer
from attention_jax.report.attention_data import Attention, Axis
from attention_jax.train.placement import map_batches

STACKS = {
    "encoder_attention": (("encoder", "attention"), ("trunk", "attention")),
    "decoder_attention": (("decoder", "attention"),),
    "cross_attention": (("decoder", "cross_attention"),),
}
"""{intermediate: (stack, module of a layer) of its parameters}"""

EVALUATED = 64
"""Inputs per batch."""

MAX_ABLATION_COST = 2e12
"""The largest number of parameters times tokens times heads for which every head is ablated."""


def with_rollout(weights: dict) -> dict:
    """Return a model's attention weights [B, L, H, Q, K], and the rollout [B, T, T] of self-attention.

    Padding does not change the rollout of the tokens before it, which do not attend to padding.
    """
    self_attentions = [name for name in ("encoder_attention", "decoder_attention") if name in weights]
    return {"weights": weights, "rollout": {name: jax.vmap(rollout)(weights[name]) for name in self_attentions}}


def rollout(weights: Float[Array, "L H T T"], residual: float = 0.5) -> Float[Array, "T T"]:
    """The product over layers of `residual * I + (1 - residual) * mean over heads of the layer's weights`,
    row-normalized.

    Row q holds the contribution of every input position to output position q; rows sum to one. `residual` in [0, 1]
    is the weight of the residual connection (one half in the paper, section 3).

    >>> uniform = jnp.full((1, 2, 2, 2), 0.5)
    >>> rollout(uniform).tolist()
    [[0.75, 0.25], [0.25, 0.75]]
    """
    weights = jnp.asarray(weights)
    size = weights.shape[-1]
    mixed = residual * jnp.eye(size, dtype=weights.dtype)[None] + (1.0 - residual) * weights.mean(axis=1)  # [L, T, T]
    mixed = mixed / mixed.sum(axis=-1, keepdims=True)
    start = jnp.eye(size, dtype=weights.dtype)
    return scan(lambda below, layer: (layer @ below, None), start, mixed)[0]


def ablate_heads(measure: Callable, params, batch: dict, weights: dict) -> dict[str, np.ndarray]:
    """Compute `measure(params, batch)` [B] with one head's output set to zero, for every head of the attentions in
    `weights` (Michel et al. 2019, section 3.2): {intermediate: [B, L, H]}; {} above `MAX_ABLATION_COST`.

    Zero are the rows of the layer's output matrix that belong to the head. With cross-layer weight sharing a head is
    ablated in all layers at once.
    """
    modules = {name: path for name, path in attentions_in(params).items() if name in weights}
    runs = sum(math.prod(weights[name].shape[:4]) for name in modules)  # tokens x heads
    if runs * sum(x.size for x in jax.tree.leaves(params)) > MAX_ABLATION_COST:
        return {}
    ablations = {}
    for name, (stack, module) in modules.items():
        ablations[name] = np.zeros(weights[name].shape[:3], np.float32)
        distinct, heads = sum(key.startswith("layer_") for key in params[stack]), ablations[name].shape[2]
        for layer, head in np.ndindex(distinct, heads):
            path = (stack, f"layer_{layer}", module, "out", "kernel")
            kernel = zero_head(params[stack][path[1]][module]["out"]["kernel"], head, heads)
            measured = map_batches(measure, replace_leaf(params, path, kernel), batch, EVALUATED, pad=True)
            ablations[name][:, layer::distinct, head] = measured[:, None]
    return ablations


def attentions_in(params) -> dict[str, tuple[str, str]]:
    """Return {intermediate: (stack, module)} of the multi-head attentions in these parameters."""
    return {
        name: (stack, module)
        for name, paths in STACKS.items()
        for stack, module in paths
        if module in params.get(stack, {}).get("layer_0", {})
    }


def zero_head(kernel, head: int, heads: int):
    """Set the rows of one head in an output matrix [H V, D] to zero.

    >>> zero_head(np.ones((4, 1), np.float32), 1, 2)[:, 0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return jnp.asarray(kernel).reshape(heads, -1, kernel.shape[-1]).at[head].set(0).reshape(kernel.shape)


def replace_leaf(tree: dict, path: tuple[str, ...], leaf) -> dict:
    """Return a nested dictionary with another leaf at `path`; the others are the same objects.

    >>> replace_leaf({"a": {"b": 1, "c": 2}}, ("a", "b"), 3)
    {'a': {'b': 3, 'c': 2}}
    """
    first, *subpath = path
    return tree | {first: replace_leaf(tree[first], tuple(subpath), leaf) if subpath else leaf}


def without_key(options: ModelOptions) -> str:
    """Return `Attention.without_key` of the attention of a model.

    >>> from attention_jax.config import BahdanauConfig
    >>> names = "learned_sink", "sigmoid(-4)", "sparsemax", "softpick"
    >>> [without_key(BahdanauConfig(normalizer=name)) for name in names]
    ['divided', 'unchanged', 'unknown', 'unknown']
    """
    if getattr(options, "window", "all") == "predictive":
        return "unknown"  # a Gaussian multiplies the weights
    normalizer = build_from_name(getattr(options, "normalizer", "softmax"), NORMALIZERS)
    normalizer = getattr(normalizer, "kind", normalizer)  # of those with a learned number
    kind = normalizer if isinstance(normalizer, type) else type(as_normalizer(normalizer))
    if issubclass(kind, Ratio) and kind.summand is Ratio.summand:  # its divisor is the sum of the weights' numerators
        return "divided"
    return "unchanged" if issubclass(kind, Pointwise) and kind.factor is Pointwise.factor else "unknown"


def token_attention(
    options: ModelOptions,
    kind: str,
    row: int,
    outputs: dict,
    queries: tuple,
    keys: tuple,
    without: dict,
    reverse: str = "",
) -> Attention:
    """Return the attention `kind` of one example of `with_rollout`, without padding, of a model with these options.

    `reverse` names the axes ("q", "k") whose tokens the model has read in reverse order.
    """
    name = f"{kind}_attention"
    turn = lambda x: x[..., :: -1 if "q" in reverse else 1, :: -1 if "k" in reverse else 1]
    cut = lambda x: turn(np.asarray(x, np.float32)[..., : len(queries), : len(keys)])
    rolled = outputs["rollout"].get(name)
    return Attention(
        kind,
        cut(outputs["weights"][name][row]),
        Axis(tuple(queries[:: -1 if "q" in reverse else 1])),
        Axis(tuple(keys[:: -1 if "k" in reverse else 1])),
        rollout=None if rolled is None or outputs["weights"][name].shape[1] < 2 else cut(rolled[row]),
        head_ablation=without[name][row] if name in without else None,
        without_key=without_key(options),
    )


def pool_attention(weights, side: Axis) -> Attention:
    """Return attention pooling with weights [T] over the tokens of `side`."""
    pool = np.asarray(weights, np.float32)[: len(side.tokens)]
    return Attention("pool", pool[None, None, None], Axis(("the classifier",)), side, ("pool",))


def top_by_layer(model: nn.Module, params, tokens: Int[Array, "B T"]) -> Int[Array, "B L T"]:
    """Return the most probable next tokens by the logit lens after each layer of a language model."""
    read = logit_lens(model, params, tokens, measure=most_probable)
    return jnp.stack(list(read.values())[1:], axis=1)  # the first is that of the embeddings


def most_probable(logits: Float[Array, "B T V"]) -> Int[Array, "B T"]:
    return logits.argmax(-1)


def with_readings(
    attention: Attention, ids: Sequence[int], read: Int[Array, "L T"] | None, name: Callable[[Sequence[int]], list[str]]
) -> Attention:
    """Return the self-attention over `ids` with scores of its heads, and the names of what a lens may have `read`."""
    scores = head_scores(attention.weights[None], jnp.asarray([ids]))
    lens = () if read is None else tuple(tuple(name(row)) for row in np.asarray(read)[:, : len(ids)].tolist())
    return replace(attention, head_scores={kind: np.asarray(x) for kind, x in scores.items()}, lens=lens)
