"""`Naming`: the conversion between another library's weights and this package's."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attention_jax.config import ModelOptions
from attention_jax.weights.facts import Facts
from attention_jax.weights.layouts import Row

Arrays = Mapping[str, np.ndarray]


class Naming(NamedTuple):
    """Names, layouts and defaults of another library's model; `theirs` and `ours` are {name: array}."""

    kind: type[ModelOptions]
    """Options class of our model."""
    table: tuple[Row, ...]
    mark: str
    """Name of a tensor that identifies the format."""
    options: Callable[[Arrays, Facts], ModelOptions]
    """(theirs, their config.json) -> the options of our model; notes in the facts what it has to assume."""
    known: Callable[[ModelOptions], dict[str, int]]
    """options -> sizes of layout letters; the others follow from the shapes."""
    module: Callable[[ModelOptions, Arrays], Any]
    """(options, ours) -> the Flax module."""
    lacking: Callable[[ModelOptions], str]
    """options -> description of the options that the other library does not support; "" if it supports all."""
    config: Callable[[ModelOptions, Arrays, Any], dict] = lambda options, ours, data: {}
    """(options, ours, data of the run or None) -> the config.json to write with the weights; {} for none."""
    beside: Callable[[ModelOptions, Arrays, Any], dict[str, dict]] = lambda options, ours, data: {}
    """(options, ours, data of the run or None) -> further JSON files to write with the weights, by name."""
    note: Callable[[ModelOptions], str] = lambda options: ""
    """options -> note in the summary of an export."""
    model_types: tuple[str, ...] = ()
    """The `model_type`s in config.json that this is; () if the library has none."""
    spelled: Callable[[str], str] = lambda name: name
    """Normalizes a tensor name to the spelling in the table."""
    ignored: Mapping[str, Callable[[Arrays, np.ndarray], np.ndarray | None]] = MappingProxyType({})
    """Regular expressions of tensors to leave out, each with (theirs, tensor) -> what it must equal: the original of a
    tied copy, or a buffer that our model computes; None for parts that our model does not use."""
    optional: str = "-"
    """Prefix of our names that may be missing in a file: the head."""


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


def differing(options: ModelOptions, expected: Mapping[str, Any] = LAYERS) -> list[str]:
    """The flags of `options` that have another value than the expected one.

    >>> from attention_jax.config import TransformerConfig
    >>> differing(TransformerConfig(normalizer="sparsemax", num_kv_heads=2))
    ['--model.normalizer sparsemax', '--model.num-kv-heads 2']
    """
    values = {name: getattr(options, name) for name in expected}
    return [f"--model.{k.replace('_', '-')} {value}" for k, value in values.items() if value != expected[k]]
