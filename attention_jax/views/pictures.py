"""Figures of attention: alignments of sentences, layers by heads of a Transformer, and maps over images."""

import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.data.pairs import PairData
from attention_jax.ops.meshes import scan
from attention_jax.report.heatmaps import show_heatmaps

SHOWN = 4
"""The number of sentences in a figure of alignments."""


def alignment(
    weights: dict, data: PairData, batch: dict, tokens: np.ndarray, reversed_source: bool, path: Path
) -> Path:
    """Plot the last layer's cross-attention, averaged over heads, with one panel for each of the first sentences.

    `weights` are the model's intermediates for `batch` and its outputs `tokens` [N, T]. A source that the model has
    read in reverse is shown in its original order.
    """
    cross = weights["cross_attention"][:SHOWN, -1]  # [rows, heads, T, S]
    panels, outputs, sources = [], [], []
    for of_heads, source, length, row in zip(cross, batch["source"], batch["source_length"], tokens):
        mean = of_heads.mean(axis=0)
        words, written = data.source_vocabulary.decode(source[:length]), data.target_vocabulary.sentence(row)
        if reversed_source:
            mean, words = mean[:, len(words) - 1 :: -1], words[::-1]
        visible = [i for i, word in enumerate(words, 1) if word.strip()]
        words = words[: visible[-1] if visible else None]  # without the blanks that fill up a date
        panels.append(mean[: max(len(written), 1), : len(words)])
        outputs.append(written or [""])  # an empty output: the step of eos
        sources.append(words)
    heads = cross.shape[1]
    output = "output" if heads == 1 else f"output (last layer, mean of {heads} heads)"
    return show_heatmaps([panels], [outputs], [sources], path, xlabel="source", ylabel=output)


def clearest(data: PairData, batch: dict, tokens: np.ndarray) -> int:
    """Return the first of the rows with the fewest unknown tokens in source and output: the example of a report."""
    sides = ((batch["source"], data.source_vocabulary), (tokens, data.target_vocabulary))
    rows = len(tokens)
    unknown = [
        np.sum(side[:rows] == vocabulary.unk_id, axis=1) for side, vocabulary in sides if vocabulary.unk_id is not None
    ]
    return int(np.argmin(sum(unknown, np.zeros(rows))))


def layers(weights: dict, data: PairData, batch: dict, tokens: np.ndarray, directory: Path) -> list[Path]:
    """Plot layers by heads of every attention of a Transformer for the first example (d2l 11.7.5)."""
    source = data.source_vocabulary.decode(batch["source"][0, : batch["source_length"][0]])
    target = data.target_vocabulary.sentence(tokens[0])
    sides = {
        "encoder_attention": (source, source),
        "decoder_attention": (target, target),
        "cross_attention": (target, source),
    }
    figures = []
    for name, (queries, keys) in sides.items():
        maps = weights[name][0, :, :, : max(len(queries), 1), : max(len(keys), 1)]
        tokens = queries or None, keys or None
        figures.append(show_heatmaps(maps, *tokens, directory / f"{name}.png", **layer_names(maps)))
    return figures


def layer_names(weights: np.ndarray) -> dict:
    """Return the titles of the panels of weights [layers, heads, Q, K].

    >>> layer_names(np.zeros((1, 2, 3, 3)))
    {'titles': ['head 1', 'head 2'], 'ylabel': ['layer 1']}
    """
    count = lambda name, number: [f"{name} {i + 1}" for i in range(number)]
    return {"titles": count("head", weights.shape[1]), "ylabel": count("layer", weights.shape[0])}


def prefix_of(tokens: int) -> int:
    """Return the number of an image's tokens before its G x G patches: 0, or a class token and registers.

    >>> prefix_of(16), prefix_of(17), prefix_of(19)
    (0, 1, 3)
    """
    return tokens - math.isqrt(tokens) ** 2


def image_maps(weights: dict) -> dict[str, Float[Array, "..."]]:
    """Return attention maps [B, G, G] over the patches of an image, from a model's intermediates.

    "heads" [B, H, G, G] are the last layer's weights from the class token, or pooled over all tokens without one;
    "last" is their mean over heads; "rollout" is the attention rollout (Abnar & Zuidema 2020), pooled alike.
    """
    attention = weights["encoder_attention"]  # [B, layers, H, T, T]
    size = math.isqrt(attention.shape[-1])
    grid = lambda x: x.reshape(*x.shape[:-1], size, size)
    flow = jax.vmap(rollout)(attention)  # [B, T, T]
    if prefix := prefix_of(attention.shape[-1]):
        heads, through = attention[:, -1, :, 0, prefix:], flow[:, 0, prefix:]
    elif "pool_attention" in weights:
        pool = weights["pool_attention"]  # [B, T]
        heads, through = jnp.einsum("bt,bhts->bhs", pool, attention[:, -1]), jnp.einsum("bt,bts->bs", pool, flow)
    else:
        heads, through = attention[:, -1].mean(axis=2), flow.mean(axis=1)
    return {"heads": grid(heads), "last": grid(heads.mean(axis=1)), "rollout": grid(through)}


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
