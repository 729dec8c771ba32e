"""`Naming`: the conversion between another library's weights and this package's."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from attention_jax.config import ModelOptions
from attention_jax.pretrained.facts import Facts
from attention_jax.pretrained.layouts import Row

Arrays = Mapping[str, np.ndarray]


class Naming:
    """How another library names and lays out the weights of a model; each family of models is a subclass.

    `state_dict` holds the tensors of a file and `params` the arrays of our model, both {name: array}. Reading calls
    the methods from `normalize_name` to `finish`, in this order; the others are for writing.
    """

    options_type: type[ModelOptions]
    """Options class of our model."""
    table: tuple[Row, ...]
    mark: str
    """Name of a tensor that identifies the format."""
    model_types: tuple[str, ...] = ()
    """The `model_type`s in config.json that belong to the family; () if the library has none."""
    optional: tuple[str, ...] = ()
    """Prefixes of parameters, such as those of a task's head, of which a file has either all or none."""
    ignored: Mapping[str, Callable[[Arrays, np.ndarray], np.ndarray | None]] = MappingProxyType({})
    """Regular expressions of tensors to leave out, each with a function (state_dict, tensor) that returns what the
    tensor must equal: the original of a tied copy, or a buffer that our model computes. It returns None where there is
    nothing to compare."""
    read_only = False
    """Whether nothing is written under these names."""

    def normalize_name(self, name: str) -> str:
        """Return the name of a tensor as the table spells it."""
        return name

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        """Return the tensors to read: by default all; a subclass leaves out copies that config.json declares."""
        return state_dict

    def infer_options(self, state_dict: Arrays, facts: Facts) -> ModelOptions:
        """Infer the options of our model from shapes and config.json, and record assumptions in `facts`."""
        raise NotImplementedError

    def complete_options(self, options: ModelOptions, directory: Path) -> ModelOptions:
        """Fill in options that are in other files of the directory."""
        return options

    def layout_sizes(self, options: ModelOptions) -> dict[str, int]:
        """Return the sizes of layout letters that follow from the options; the others follow from the shapes."""
        raise NotImplementedError

    def finish(self, options: ModelOptions, facts: Facts, params: Arrays) -> Arrays:
        """Add the parameters that are computed from several tensors or from none."""
        return params

    def build_module(self, options: ModelOptions, params: Arrays) -> Any:
        """Return the Flax module of these weights."""
        raise NotImplementedError

    def missing_options(self, options: ModelOptions) -> str:
        """Describe the options that the other library does not support; "" if it supports all."""
        return ""

    def undo(self, options: ModelOptions, params: Arrays) -> Arrays:
        """Return the parameters before `finish`."""
        return params

    def config_json(self, options: ModelOptions, params: Arrays, data=None) -> dict:
        """Build the config.json to write with the weights; `data` is that of the run, if any."""
        return {}

    def extra_files(self, options: ModelOptions, params: Arrays, data=None) -> dict[str, dict | list]:
        """Build further JSON files to write with the weights, {name: content}."""
        return {}

    def note(self, options: ModelOptions) -> str:
        """Return a note for the summary of an export."""
        return ""


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
