"""`Naming`: what there is to say about another library's weights."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from attention_jax.config import ModelOptions
from attention_jax.weights.layouts import Row

Arrays = Mapping[str, np.ndarray]


class Naming(NamedTuple):
    """The names, layouts and defaults of another library's model; `theirs` and `ours` are arrays by their names."""

    kind: type[ModelOptions]
    """The options of our model."""
    table: tuple[Row, ...]
    mark: str
    """A tensor by which a file is recognised."""
    options: Callable[[Arrays, dict], ModelOptions]
    """(theirs, their config.json or {}) -> the options of our model."""
    known: Callable[[ModelOptions], dict[str, int]]
    """The sizes of letters that the options say; the rest follows from shapes."""
    module: Callable[[ModelOptions, Arrays], Any]
    """(options, ours) -> the Flax module."""
    lacking: Callable[[ModelOptions], str]
    """What of our model theirs does not have, as a text; "" where it has all."""
    config: Callable[[ModelOptions, Arrays], dict] = lambda options, ours: {}
    """The config.json to write beside the weights; {} for none."""
    note: Callable[[ModelOptions], str] = lambda options: ""
    """What to say when they are written."""
    assumed: Callable[[dict], str] = lambda facts: ""
    """What neither the tensors nor their config.json {} say and is taken to be so, to report when they are read."""
    spelt: Callable[[str], str] = lambda name: name
    """A name in the one spelling of the table."""
    ignored: str = "$^"
    """A pattern of names that say nothing new: copies, and what our model does not compute."""
    optional: str = "-"
    """Names of ours that may be missing in a file: those of a head."""
