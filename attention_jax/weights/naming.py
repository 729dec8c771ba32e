"""`Naming`: the conversion between another library's weights and this package's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attention_jax.config import ModelOptions
from attention_jax.weights.facts import Facts
from attention_jax.weights.layouts import Row

Arrays = Mapping[str, np.ndarray]


class Naming(NamedTuple):
    """Names, layouts and defaults of another library's model; `state_dict` and `params` are {name: array}."""

    kind: type[ModelOptions]
    """Options class of our model."""
    table: tuple[Row, ...]
    mark: str
    """Name of a tensor that identifies the format."""
    options: Callable[[Arrays, Facts], ModelOptions]
    """(state_dict, facts of config.json) -> the options of our model; notes in the facts what it has to assume."""
    layout_sizes: Callable[[ModelOptions], dict[str, int]]
    """options -> sizes of layout letters; the others follow from the shapes."""
    module: Callable[[ModelOptions, Arrays], Any]
    """(options, params) -> the Flax module."""
    missing_options: Callable[[ModelOptions], str]
    """options -> description of the options that the other library does not support; "" if it supports all."""
    complete_options: Callable[[ModelOptions, Path], ModelOptions] = lambda options, directory: options
    """(options, the directory of the weights) -> the options, with what its other files say."""
    config: Callable[[ModelOptions, Arrays, Any], dict] = lambda options, params, data: {}
    """(options, params, data of the run or None) -> the config.json to write with the weights; {} for none."""
    extra_files: Callable[[ModelOptions, Arrays, Any], dict[str, dict | list]] = lambda options, params, data: {}
    """(options, params, data of the run or None) -> further JSON files to write with the weights, by name."""
    read_only: bool = False
    """Whether nothing is written under these names."""
    note: Callable[[ModelOptions], str] = lambda options: ""
    """options -> note in the summary of an export."""
    model_types: tuple[str, ...] = ()
    """The `model_type`s in config.json that this is; () if the library has none."""
    normalize_name: Callable[[str], str] = lambda name: name
    """Normalizes a tensor name to the spelling in the table."""
    ignored: Mapping[str, Callable[[Arrays, np.ndarray], np.ndarray | None]] = MappingProxyType({})
    """Regular expressions of tensors to leave out, each with (state_dict, tensor) -> what it equals: the original of a
    tied copy, or a buffer that our model computes; None for parts that our model does not use."""
    optional: tuple[str, ...] = ()
    """Prefixes of our names that may be missing in a file, all of one prefix together: heads."""
    prepare: Callable[[Arrays, Facts], Arrays] = lambda state_dict, facts: state_dict
    """(state_dict, facts of config.json) -> state_dict without what config.json says is a copy."""
    finish: Callable[[ModelOptions, Facts, Arrays], Arrays] = lambda options, facts, params: params
    """(options, facts of config.json, params) -> params, with what is computed from several tensors or from none."""
    undo: Callable[[ModelOptions, Arrays], Arrays] = lambda options, params: params
    """(options, params) -> params before `finish`."""


LAYERS = {
    "score": "scaled_dot",
    "normalizer": "softmax",
    "head_pool": "mean",
    "mask": "none",
    "norm_layer": "layer",
    "mlp_layer": "dense",
    "num_kv_heads": 0,
    "output_gate": False,
    "rope_scaling": "none",
    "normalize_qk": False,
}
"""Options of Transformer layers (config.TransformerLayers) with the one value that the other libraries have."""


def differing_flags(options: ModelOptions, expected: Mapping[str, Any] = LAYERS) -> list[str]:
    """The flags of `options` that have another value than the expected one.

    >>> from attention_jax.config import TransformerConfig
    >>> differing_flags(TransformerConfig(normalizer="sparsemax", num_kv_heads=2))
    ['--model.normalizer sparsemax', '--model.num-kv-heads 2']
    """
    values = {name: getattr(options, name) for name in expected}
    return [f"--model.{k.replace('_', '-')} {value}" for k, value in values.items() if value != expected[k]]
