"""Initialization from pretrained weights of a model with other classes, another patch grid or other color channels."""

import dataclasses
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.models.vit import interpolate
from attention_jax.weights.exchange import Weights, flat, nested, paths_of_layers
from attention_jax.weights.layouts import listed
from attention_jax.weights.vit_names import prefix_of


class Adopted(NamedTuple):
    """The parameters of a model that are initialized from pretrained weights."""

    arrays: dict[str, np.ndarray]
    said: str
    """One-line summary: the arrays that were copied, resampled, ignored and re-initialized."""

    def into(self, fresh):
        """Return the parameters `fresh` with the pretrained ones in place."""
        arrays = flat(fresh)
        return nested({path: jnp.asarray(self.arrays.get(path, array)) for path, array in arrays.items()})


def options_from(weights: Weights, own: configs.ModelOptions) -> configs.ModelOptions:
    """Return the options of the pretrained model with the training-only options of `own`, such as dropout rates.

    A model of another family takes the place of `own` if both train on the same task, as an encoder of masked words
    does that of a text classifier; its own options are kept. Raises InputError for other families.
    """
    if type(weights.options) is not type(own) and weights.options.task == own.task:
        return weights.options
    if type(weights.options) is not type(own):
        raise InputError(
            f"weights of the kind {configs.model_name(own)} are needed here; those of {weights.source} are of the kind "
            f"{configs.model_name(weights.options)}: choose another experiment"
        )
    kept = {name: value for name, info, value in configs.walk(own) if info.training_only}
    return dataclasses.replace(weights.options, **kept)


def adopted(weights: Weights, like) -> Adopted:
    """Match pretrained arrays with the parameters of a model, a pytree `like` of arrays or shapes.

    Arrays of the same path and shape are copied. Position embeddings of another patch grid are resampled, and patch
    embeddings for another number of channels are summed or divided. All other parameters, such as a head for other
    classes or one that is not of a softmax, keep their initial values. Raises InputError if no array matches.
    """
    wanted = {path: leaf.shape for path, leaf in flat(like).items()}
    of_other_kind = lambda path: weights.function != "softmax" and "/head/" in f"/{path}"
    arrays = {path: np.asarray(array) for path, array in weights.arrays.items() if not of_other_kind(path)}
    given = stacked(arrays, wanted)
    taken = {path: array for path, array in given.items() if wanted.get(path) == array.shape}
    said = [f"{len(taken)} of {len(wanted)} arrays taken"]
    for resample in (_positions, _colors) if isinstance(weights.options, configs.ViTConfig) else ():
        for path, (array, how) in resample(weights.options, given, wanted).items():
            taken[path] = np.asarray(array)
            said.append(how)
    if not taken:
        raise InputError(f"--from needs weights of a model like this one; nothing of {weights.source} fits")
    head, rest = [], []
    for path in sorted(wanted.keys() - taken.keys()):
        (head if "/head/" in f"/{path}" else rest).append(path)
    if head:
        said.append(f"the head re-initialized for {wanted[head[0]][-1]} classes")
    said += listed("re-initialized", rest) + listed("left out", sorted(given.keys() - taken.keys() - set(head)))
    return Adopted(taken, f"from {weights.source}: " + "; ".join(said))


def stacked(given: dict[str, np.ndarray], wanted: dict[str, tuple]) -> dict[str, np.ndarray]:
    """Stack the arrays of single layers that are one array for a scan in the `wanted` parameters.

    >>> list(stacked({"layer_0/w": np.ones(2), "layer_1/w": np.ones(2), "b": 0}, {"layers_0/w": (2, 2)}))
    ['b', 'layers_0/w']
    """
    given = dict(given)
    for path, shape in wanted.items():
        names = [] if path in given else paths_of_layers(path, shape)
        if names and {*names} <= given.keys():
            flip = np.transpose if path.endswith("/kernel") else np.asarray  # models/layer_stack.py: flip_kernels
            given[path] = np.stack([flip(given.pop(name)) for name in names])
    return given


def _positions(options: configs.ViTConfig, given, wanted) -> dict:
    """Resample position embeddings to another patch grid (Dosovitskiy et al. 2021, section 3.2)."""
    old, new = given.get("positions"), wanted.get("positions")
    if old is None or new is None or old.shape == new or old.shape[1] != new[1]:
        return {}
    prefix = prefix_of(options)
    before, after = (round((rows - prefix) ** 0.5) for rows in (len(old), new[0]))
    if (before**2, after**2) != (len(old) - prefix, new[0] - prefix):
        return {}
    table = np.concatenate([old[:prefix], interpolate(jnp.asarray(old[prefix:]), after)])
    return {"positions": (table, f"positions resampled from {before} x {before} to {after} x {after}")}


def _colors(options: configs.ViTConfig, given, wanted) -> dict:
    """Convert patch embeddings to another number of channels: the sum for grayscale, scaled copies for color."""
    path, area = "patch_embedding/kernel", options.patch_size**2
    old, new = given.get(path), wanted.get(path)
    if old is None or new is None or old.shape[1] != new[1] or len(old) % area or new[0] % area:
        return {}
    kernel = old.reshape(area, -1, old.shape[1])
    before, after = kernel.shape[1], new[0] // area
    if after == 1 < before:
        kernel = kernel.sum(axis=1, keepdims=True)
    elif before == 1 < after:
        kernel = np.repeat(kernel, after, axis=1) / after
    else:
        return {}
    return {path: (kernel.reshape(new), f"patches of {before} channel{'s' * (before > 1)} read as {after}")}
