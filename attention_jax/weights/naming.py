"""`Naming`: the conversion between another library's weights and this package's."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_jax.config import ModelOptions
from attention_jax.weights.layouts import Row

Arrays = Mapping[str, np.ndarray]


class Naming(NamedTuple):
    """Names, layouts and defaults of another library's model; `theirs` and `ours` are {name: array}."""

    kind: type[ModelOptions]
    """Options class of our model."""
    table: tuple[Row, ...]
    mark: str
    """Name of a tensor that identifies the format."""
    options: Callable[[Arrays, dict], ModelOptions]
    """(theirs, their config.json or {}) -> the options of our model."""
    known: Callable[[ModelOptions], dict[str, int]]
    """options -> sizes of layout letters; the others follow from the shapes."""
    module: Callable[[ModelOptions, Arrays], Any]
    """(options, ours) -> the Flax module."""
    lacking: Callable[[ModelOptions], str]
    """options -> description of the options that the other library does not support; "" if it supports all."""
    config: Callable[[ModelOptions, Arrays], dict] = lambda options, ours: {}
    """(options, ours) -> the config.json to write with the weights; {} for none."""
    note: Callable[[ModelOptions], str] = lambda options: ""
    """options -> note in the summary of an export."""
    assumed: Callable[[dict], str] = lambda facts: ""
    """config.json or {} -> note on import about defaults that neither the tensors nor config.json specify."""
    spelt: Callable[[str], str] = lambda name: name
    """Normalizes a tensor name to the spelling in the table."""
    ignored: str = "$^"
    """Regular expression of tensors to ignore: tied copies, and buffers that our model computes."""
    optional: str = "-"
    """Prefix of our names that may be missing in a file: the head."""


LAYERS = {
    "score": "scaled_dot",
    "normaliser": "softmax",
    "head_pool": "mean",
    "mask": "none",
    "norm_layer": "layer",
    "mlp_layer": "dense",
    "num_kv_heads": 0,
    "output_gate": False,
}
"""Options of Transformer layers (config.TransformerLayers) with the one value that the other libraries have."""


def differing(options: ModelOptions, expected: Mapping[str, Any] = LAYERS) -> list[str]:
    """The flags of `options` that have another value than the expected one.

    >>> from attention_jax.config import Transformer
    >>> differing(Transformer(normaliser="sparsemax", num_kv_heads=2))
    ['--model.normaliser sparsemax', '--model.num-kv-heads 2']
    """
    values = {name: getattr(options, name) for name in expected}
    return [f"--model.{k.replace('_', '-')} {value}" for k, value in values.items() if value != expected[k]]
