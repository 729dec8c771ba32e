"""Initialization from pretrained weights of a model with other classes, another patch grid or other color channels."""

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax import config as configs, tasks
from attention_jax.data.text_files import to_nfc
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.models.vit import interpolate
from attention_jax.pretrained import gguf, tensors
from attention_jax.pretrained.exchange import Weights, flat, nested, take_array
from attention_jax.pretrained.foreign_files import json_object
from attention_jax.pretrained.naming import summarize_names
from attention_jax.pretrained.task_models import translator_vocabulary
from attention_jax.pretrained.tokenizer import dataset_tokenizer
from attention_jax.pretrained.vit_names import prefix_of

DATA_NAMES = {
    "names": "classes",
    "vocabulary": "tokens",
    "source_vocabulary": "source tokens",
    "target_vocabulary": "target tokens",
}
"""{the field of a dataset that names the entries of an axis: what they are}"""
Axis = tuple[int, np.ndarray]
"""An axis of a parameter whose entries have names, as the rows of an embedding, and the index [N] of each entry in the
weights; -1 for those that these do not have."""


class AdoptedParams(NamedTuple):
    """The parameters of a model that are initialized from pretrained weights."""

    arrays: dict[str, np.ndarray]
    summary: str
    """One-line summary: what was copied, resampled, ignored and re-initialized."""
    axes: Mapping[str, Axis]
    """Of which entries without an index in the weights keep their initial values."""

    def into(self, fresh):
        """Return the parameters `fresh` with the pretrained ones in place."""
        params = {path: jnp.asarray(self.arrays.get(path, array)) for path, array in flat(fresh).items()}
        for path, (axis, sources) in self.axes.items():
            of_weights = np.expand_dims(sources >= 0, [i for i in range(params[path].ndim) if i != axis])
            params[path] = jnp.where(of_weights, params[path], flat(fresh)[path])
        return nested(params)


def options_from(weights: Weights, experiment_options: configs.ModelOptions) -> configs.ModelOptions:
    """Return the options of the pretrained model with the training options of `experiment_options`, e.g. dropout rates.

    A model of another family replaces `experiment_options` if both have the same task, as an encoder of masked words
    does that of a text classifier; its own options are kept, but for a projection of sentence embeddings. Raises
    InputError for other families.
    """
    if type(weights.options) is not type(experiment_options) and weights.options.task == experiment_options.task:
        no_projection = {"projection_dim": 0} if hasattr(weights.options, "projection_dim") else {}
        return dataclasses.replace(weights.options, **no_projection)
    if type(weights.options) is not type(experiment_options):
        raise InputError(
            f"weights of the kind {configs.model_name(experiment_options)} are needed here; "
            f"those of {weights.source} are of the kind "
            f"{configs.model_name(weights.options)}: choose another experiment"
        )
    training_options = {name: value for name, info, value in configs.walk(experiment_options) if info.training_only}
    return dataclasses.replace(weights.options, **training_options)


def match_names(weights: Weights, task, like) -> tuple[dict[str, Axis], list[str]]:
    """Match the classes and the tokens of the weights with those of the data of a task, by their names: the parameters
    with an axis of those that differ or have another order, and notes.

    Special tokens are matched by their roles. What the weights do not name, or as LABEL_0, LABEL_1, ... only, is left
    to its place, with a note.
    """
    matched, notes, arrays, shapes = {}, [], usable_arrays(weights), flat(like)
    joint, names_of_weights = task.config.model.needs_joint_vocabulary, read_names(weights, task)
    for field, kind in DATA_NAMES.items():
        names, old_names = getattr(task.data, field, None), names_of_weights.get(field) or ()
        if names is None or (joint and field == "source_vocabulary"):
            continue
        sources = find_entries(names, old_names) if old_names else np.arange(len(names))
        if old_names and np.array_equal(sources, np.arange(len(old_names))):
            continue
        fields = ("source_vocabulary", field) if joint and field == "target_vocabulary" else (field,)
        axes = {path: (axis, sources) for path, axis in axes_of(task, fields, like).items() if path in arrays}
        are_named = all(arrays[path].shape[axis] == len(old_names) for path, (axis, _) in axes.items())
        if are_named and axes and not is_generic(old_names, names):
            matched |= axes
            notes += describe_match(kind, names, old_names, sources)
        elif any(arrays[path].shape == shapes[path].shape for path in axes):
            reason = f"are generic ({old_names[0]}, ...)" if are_named else "are not in the file"
            notes.append(f"{kind} taken by place: their names {reason}")
    return matched, notes


def usable_arrays(weights: Weights) -> dict[str, np.ndarray]:
    """The arrays of the weights without a head that is not of a softmax."""
    of_other_kind = lambda path: weights.function != "softmax" and "/head/" in f"/{path}"
    return {path: array for path, array in weights.arrays.items() if not of_other_kind(path)}


def read_names(weights: Weights, task) -> dict:
    """{field of `DATA_NAMES`: the names in the weights}; of weights that are not of a run, the classes in config.json
    and the tokens in the files of the tokenizer, as far as they are there."""
    if weights.data is not None:
        return {field: getattr(weights.data, field, None) for field in DATA_NAMES}
    path = Path(task.config.train.init_weights)
    directory = path if path.is_dir() else path.parent
    about, vocabulary = json_object(directory / "config.json", needed=False), None
    if str(path) == getattr(task.config.data, "pretrained", None):
        vocabulary = task.data.vocabulary  # which is that of the weights
    elif isinstance(weights.options, configs.TransformerConfig):
        vocabulary = translator_vocabulary(directory, weights)
    elif path.suffix == gguf.SUFFIX or (directory / "tokenizer.json").is_file():
        vocabulary = dataset_tokenizer(str(path if path.suffix == gguf.SUFFIX else directory), None)[1]
    names = tensors.class_names(about, len(about.get("id2label") or ()))
    return dict.fromkeys(DATA_NAMES, vocabulary) | {"names": [*names]}


def describe_match(kind: str, names, old_names, sources: np.ndarray) -> list[str]:
    """The notes on names that were matched: how many, and those of the data and of the weights that were not."""
    text = lambda names, i: repr(names.tokens[i]) if isinstance(names, Vocabulary) else names[i]
    missing, left_out = np.flatnonzero(sources < 0), np.setdiff1d(np.arange(len(old_names)), sources)
    return [
        f"{len(names) - len(missing)} of {len(names)} {kind} taken by name",
        *summarize_names(f"of the {kind} re-initialized", [text(names, i) for i in missing]),
        *summarize_names(f"of the {kind} left out", [text(old_names, i) for i in left_out]),
    ]


def is_generic(old_names, names) -> bool:
    """Whether the names of classes are those that transformers gives to classes without names, and `names` are not."""
    generic = [f"LABEL_{i}" for i in range(len(old_names))]
    return not isinstance(names, Vocabulary) and [*old_names] == generic and not {*generic} & {*names}


def find_entries(names, old_names) -> np.ndarray:
    """The index [N] in `old_names` of each class or token of `names`; -1 for those that are not there, or twice."""
    if isinstance(names, Vocabulary):
        return names.indices_in(old_names)
    names, old_names = ([to_nfc(str(name).strip()) for name in classes] for classes in (names, old_names))
    if old_names == names:
        return np.arange(len(names))
    return np.array([old_names.index(name) if old_names.count(name) == 1 else -1 for name in names])


def axes_of(task, fields: tuple[str, ...], like) -> dict[str, int]:
    """{parameter: its axis that has an entry for each name in these fields of the data}: the axes that are longer in a
    model for data with one more name."""
    names = getattr(task.data, fields[0])
    longer_names = copy.copy(names) if isinstance(names, Vocabulary) else (*names, "")
    if isinstance(names, Vocabulary):
        longer_names.tokens = [*names.tokens, ""]
    replace = dataclasses.replace if dataclasses.is_dataclass(task.data) else type(task.data)._replace
    larger = tasks.build(task.config, replace(task.data, **dict.fromkeys(fields, longer_names)))
    shapes, larger_shapes = (flat(tree) for tree in (like, jax.eval_shape(larger.init, jax.random.PRNGKey(0))))
    differs = {path: np.not_equal(leaf.shape, larger_shapes[path].shape) for path, leaf in shapes.items()}
    return {path: int(is_longer.argmax()) for path, is_longer in differs.items() if is_longer.any()}


def adopt_params(
    weights: Weights, like, axes: Mapping[str, Axis] = {}, match_notes: Sequence[str] = ()
) -> AdoptedParams:
    """Match pretrained arrays with the parameters of a model, a pytree `like` of arrays or shapes.

    Arrays of the same path and shape are copied, those with an axis in `axes` entry by entry. `match_notes`
    are those of `match_names`. Position embeddings of another patch grid are resampled, and patch
    embeddings for another number of channels are summed or divided. All other parameters, such as a head for other
    classes or one that is not of a softmax, keep their initial values. Raises InputError if no array matches.
    """
    target_shapes = {path: leaf.shape for path, leaf in flat(like).items()}
    arrays = usable_arrays(weights)
    targets = {path: take_array(arrays, path, shape) for path, shape in target_shapes.items()}
    file_arrays = {path: array for path, array in (targets | arrays).items() if array is not None}
    for path, (axis, sources) in axes.items():
        array = np.take(file_arrays[path], sources, axis)
        file_arrays[path] = array if (sources >= 0).any() else array[:0]
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
    axes = {path: axes[path] for path in axes.keys() & adopted.keys()}
    return AdoptedParams(adopted, f"from {weights.source}: " + "; ".join([*notes, *match_notes]), axes)


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
    note = f"patches of {old_channels} channel{'s' * (old_channels > 1)} read as {new_channels}"
    return {path: (kernel.reshape(new), note)}
