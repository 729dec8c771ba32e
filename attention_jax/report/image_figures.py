"""Figures of image classifiers: attention of every head over images, mistakes, similarity of position embeddings."""

import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from attention_jax.report.style import OVERLAY, SMALLEST, WIDTH, canvas, drawable, families, figure_style, save, short

SHOWN = 6
"""The number of images in a figure of attention."""
HEADS, MISTAKES, GRID = 8, 24, 8
"""The numbers of heads, of misclassified images, and of position embeddings per axis in a figure."""


def _picture(axis, image, title: str = ""):
    """Plot an image [S, S, 1 or 3] of bytes, without ticks."""
    axis.imshow(
        image if image.shape[-1] == 3 else image[..., 0], cmap="gray", vmin=0, vmax=255, interpolation="nearest"
    )
    axis.set(xticks=[], yticks=[])
    axis.spines[:].set_visible(False)
    axis.set_title(title, fontsize=SMALLEST, fontfamily=families())


def _overlay(axis, image, attention):
    """Overlay a map [G, G] on an image, normalized by its largest value."""
    size = image.shape[0]
    _picture(axis, image)
    relative = attention / max(float(np.max(attention)), 1e-12)
    extent = (-0.5, size - 0.5, size - 0.5, -0.5)
    return axis.imshow(relative, cmap=OVERLAY, alpha=0.65, extent=extent, interpolation="bilinear", vmin=0, vmax=1)


def show_attention(images, maps: dict, titles: Sequence[str], path: str | Path) -> Path:
    """Plot one row per image: the image, attention rollout through all layers, the last layer's mean, and each of its
    first `HEADS` heads. Each map is normalized by its largest weight, as the color bar says.

    `images` [N, S, S, C] uint8; `maps` {"rollout": [N, G, G], "last": [N, G, G], "heads": [N, H, G, G]}.
    """
    each = maps["heads"][:, :HEADS]
    columns = 3 + each.shape[1]
    figure = canvas(WIDTH, 0.8 + len(images) * (WIDTH / columns + 0.02))
    names = ["image", "rollout", "last layer", *(f"head {h + 1}" for h in range(each.shape[1]))]
    with figure_style():
        axes = figure.subplots(len(images), columns, squeeze=False)
        for i, row in enumerate(axes):
            _picture(row[0], images[i])
            title = textwrap.fill(drawable(titles[i]), 11, max_lines=3, placeholder="…")
            row[0].set_ylabel(title, fontsize=SMALLEST, fontfamily=families())
            for axis, attention in zip(row[1:], [maps["rollout"][i], maps["last"][i], *each[i]]):
                overlay = _overlay(axis, images[i], attention)
        for axis, name in zip(axes[0], names):
            axis.set_title(name, fontsize=SMALLEST)
        bar = {"location": "bottom", "shrink": 0.4, "aspect": 40, "label": "weight / largest weight of its map"}
        figure.colorbar(overlay, ax=axes, **bar)
        figure.get_layout_engine().set(h_pad=0.06, w_pad=0.02, hspace=0.01, wspace=0.01)
    return save(figure, path)


def mistakes(images, labels, probabilities, names: Sequence[str], path: str | Path) -> Path | None:
    """Plot the misclassified images with the highest confidence; None without any."""
    predicted = probabilities.argmax(1)
    wrong = np.flatnonzero(predicted != labels)
    if not len(wrong):
        return None
    wrong = wrong[np.argsort(-probabilities[wrong, predicted[wrong]], kind="stable")][:MISTAKES]
    columns = min(6, len(wrong))
    rows = -(-len(wrong) // columns)
    figure = canvas(WIDTH * columns / 6, 1.35 * rows)
    with figure_style():
        axes = figure.subplots(rows, columns, squeeze=False)
        for axis in axes.ravel():
            axis.axis("off")
        for axis, i in zip(axes.ravel(), wrong):
            guess = f"{short(drawable(names[predicted[i]]), 14)} {probabilities[i, predicted[i]]:.2f}"
            _picture(axis, images[i], f"{guess}\nis {short(drawable(names[labels[i]]), 14)}")
    return save(figure, path)


def position_similarity(table, path: str | Path) -> Path:
    """Cosine similarity of each learned position with all others, as an image per position (Dosovitskiy
    et al. 2021, figure 7, center).

    `table` [N, D] of a G x G grid; of a larger grid every k-th row and column is shown.
    """
    size = int(np.sqrt(len(table)))
    unit = table / np.maximum(np.linalg.norm(table, axis=1, keepdims=True), 1e-12)
    similar = (unit @ unit.T).reshape(size, size, size, size)
    at = np.unique(np.linspace(0, size - 1, min(size, GRID)).round().astype(int))
    figure = canvas(4.4, 3.9)
    with figure_style():
        axes = figure.subplots(len(at), len(at), squeeze=False)
        for i, j in np.ndindex(axes.shape):
            picture = axes[i, j].imshow(similar[at[i], at[j]], cmap="viridis", vmin=-1, vmax=1)
            axes[i, j].set(xticks=[], yticks=[])
            axes[i, j].spines[:].set_visible(False)
            if j == 0:
                axes[i, j].set_ylabel(str(at[i] + 1))
            if i == len(at) - 1:
                axes[i, j].set_xlabel(str(at[j] + 1))
        figure.supxlabel("column of the patch", fontsize=7)
        figure.supylabel("row of the patch", fontsize=7)
        figure.colorbar(picture, ax=axes, label="cosine similarity", shrink=0.8, aspect=25)
        figure.get_layout_engine().set(hspace=0.02, wspace=0.02)
    return save(figure, path)
