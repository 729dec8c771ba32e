"""Initialization from pretrained weights of a model with other classes, another patch grid or other color channels."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.models.vit import interpolate
from attention_jax.pretrained.exchange import Weights, flat, nested, take_array
from attention_jax.pretrained.naming import summarize_names
from attention_jax.pretrained.vit_names import prefix_of


class AdoptedParams(NamedTuple):
    """The parameters of a model that are initialized from pretrained weights."""

    arrays: dict[str, np.ndarray]
    summary: str
    """One-line summary: the arrays that were copied, resampled, ignored and re-initialized."""

    def into(self, fresh):
        """Return the parameters `fresh` with the pretrained ones in place."""
        arrays = flat(fresh)
        return nested({path: jnp.asarray(self.arrays.get(path, array)) for path, array in arrays.items()})


def options_from(weights: Weights, experiment_options: configs.ModelOptions) -> configs.ModelOptions:
    """Return the options of the pretrained model with the training options of `experiment_options`, e.g. dropout rates.

    A model of another family replaces `experiment_options` if both have the same task, as an encoder of masked words
    does that of a text classifier; its own options are kept. Raises InputError for other families.
    """
    if type(weights.options) is not type(experiment_options) and weights.options.task == experiment_options.task:
        return weights.options
    if type(weights.options) is not type(experiment_options):
        raise InputError(
            f"weights of the kind {configs.model_name(experiment_options)} are needed here; "
            f"those of {weights.source} are of the kind "
            f"{configs.model_name(weights.options)}: choose another experiment"
        )
    training_options = {name: value for name, info, value in configs.walk(experiment_options) if info.training_only}
    return dataclasses.replace(weights.options, **training_options)


def adopt_params(weights: Weights, like) -> AdoptedParams:
    """Match pretrained arrays with the parameters of a model, a pytree `like` of arrays or shapes.

    Arrays of the same path and shape are copied. Position embeddings of another patch grid are resampled, and patch
    embeddings for another number of channels are summed or divided. All other parameters, such as a head for other
    classes or one that is not of a softmax, keep their initial values. Raises InputError if no array matches.
    """
    target_shapes = {path: leaf.shape for path, leaf in flat(like).items()}
    of_other_kind = lambda path: weights.function != "softmax" and "/head/" in f"/{path}"
    arrays = {path: array for path, array in weights.arrays.items() if not of_other_kind(path)}
    targets = {path: take_array(arrays, path, shape) for path, shape in target_shapes.items()}
    file_arrays = {path: array for path, array in (targets | arrays).items() if array is not None}
    adopted = {path: array for path, array in file_arrays.items() if target_shapes.get(path) == array.shape}
    notes = [f"{len(adopted)} of {len(target_shapes)} arrays taken"]
    for resample in (_resample_positions, _convert_colors) if isinstance(weights.options, configs.ViTConfig) else ():
        for path, (array, note) in resample(weights.options, file_arrays, target_shapes).items():
            adopted[path] = np.asarray(array)
            notes.append(note)
    if not adopted:
        raise InputError(f"--from needs weights of a model like this one; nothing of {weights.source} fits")
    head, missing = [], []
    for path in sorted(target_shapes.keys() - adopted.keys()):
        (head if "/head/" in f"/{path}" else missing).append(path)
    if head:
        notes.append(f"the head re-initialized for {target_shapes[head[0]][-1]} classes")
    notes += summarize_names("re-initialized", missing) + summarize_names(
        "left out", sorted(file_arrays.keys() - adopted.keys() - set(head))
    )
    return AdoptedParams(adopted, f"from {weights.source}: " + "; ".join(notes))


def _resample_positions(options: configs.ViTConfig, arrays, target_shapes) -> dict:
    """Resample position embeddings to another patch grid (Dosovitskiy et al. 2021, section 3.2)."""
    old, new = arrays.get("positions"), target_shapes.get("positions")
    if old is None or new is None or old.shape == new or old.shape[1] != new[1]:
        return {}
    prefix = prefix_of(options)
    old_side, new_side = (round((rows - prefix) ** 0.5) for rows in (len(old), new[0]))
    if (old_side**2, new_side**2) != (len(old) - prefix, new[0] - prefix):
        return {}
    table = np.concatenate([old[:prefix], interpolate(jnp.asarray(old[prefix:]), new_side)])
    return {"positions": (table, f"positions resampled from {old_side} x {old_side} to {new_side} x {new_side}")}


def _convert_colors(options: configs.ViTConfig, arrays, target_shapes) -> dict:
    """Convert patch embeddings to another number of channels: the sum for grayscale, scaled copies for color."""
    path, area = "patch_embedding/kernel", options.patch_size**2
    old, new = arrays.get(path), target_shapes.get(path)
    if old is None or new is None or old.shape[1] != new[1] or len(old) % area or new[0] % area:
        return {}
    kernel = old.reshape(area, -1, old.shape[1])
    old_channels, new_channels = kernel.shape[1], new[0] // area
    if new_channels == 1 < old_channels:
        kernel = kernel.sum(axis=1, keepdims=True)
    elif old_channels == 1 < new_channels:
        kernel = np.repeat(kernel, new_channels, axis=1) / new_channels
    else:
        return {}
    return {
        path: (
            kernel.reshape(new),
            f"patches of {old_channels} channel{'s' * (old_channels > 1)} read as {new_channels}",
        )
    }
