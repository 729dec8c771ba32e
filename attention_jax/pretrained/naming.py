"""How another library names and lays out the weights of a model: tables of rows, and `Naming`, one class per family.

A layout names axes as einops does: "(p q c) d" is a matrix whose rows run over p, then q, then c. Two layouts with the
same letters define how to convert an array in both directions, so a format is fully described by a table of rows:

    Row("patch_embed.proj.weight", "d c p q", "patch_embedding/kernel", "(p q c) d")

is PyTorch's convolution on the left and our matmul with flattened patches on the right. "1" is an axis of length one.
A `*` in both names is the index of a layer. `query|key|value` in a parameter's name stands for three arrays, stacked
along the first axis of our layout. Letters of all tables: v tokens, n positions, t token types, d width, m hidden units
of the feed-forward, h heads of queries and g of keys and values, of width e, s query, key and value, k classes.
"""

import math
import re
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from attention_jax.config import ModelOptions, option_name
from attention_jax.errors import InputError
from attention_jax.pretrained.config_json import Facts

Arrays = Mapping[str, np.ndarray]


class Row(NamedTuple):
    """A table row: name and layout of a tensor in another library, and of the corresponding array or arrays here."""

    tensor: str
    tensor_layout: str
    param: str
    param_layout: str


AXES = {
    "attention/query": ("d", "(h e)"),
    "attention/key": ("d", "(g e)"),
    "attention/value": ("d", "(g e)"),
    "attention/out": ("(h e)", "d"),
    "attention/query_norm": ("e",),
    "attention/key_norm": ("e",),
    "ffn/gate": ("d", "m"),
    "ffn/hidden": ("d", "m"),
    "ffn/out": ("m", "d"),
}
"""{module of a layer of ours: the axes of a linear map, from which to which, or of a norm}; other norms are of "d"."""


def norm_rows(tensor: str, param: str, axis: str = "d", bias: bool = True) -> list[Row]:
    """Rows of a normalization with a scale and, by default, a bias."""
    scale = Row(f"{tensor}.weight", axis, f"{param}/scale", axis)
    return [scale] + [Row(f"{tensor}.bias", axis, f"{param}/bias", axis)] * bias


def linear_rows(tensor: str, param: str, inputs: str, outputs: str, bias: bool = True) -> list[Row]:
    """Rows of a linear map, whose weight is [outputs, inputs] there, as PyTorch has it, and by default of its bias."""
    kernel = Row(f"{tensor}.weight", f"{outputs} {inputs}", f"{param}/kernel", f"{inputs} {outputs}")
    return [kernel] + [Row(f"{tensor}.bias", outputs, f"{param}/bias", outputs)] * bias


def layer_rows(tensor: str, param: str, modules: Mapping[str, str], biased: Container[str] | None = None) -> list[Row]:
    """Rows of a layer `param` here and `tensor` there, with their names of its `modules`, {ours: theirs}, of which
    those in `biased` have a bias, by default all.

    >>> [row.tensor for row in layer_rows("layer.*", "encoder/layer_*", {"ffn_norm": "norm2", "ffn/out": "fc2"})]
    ['layer.*.norm2.weight', 'layer.*.norm2.bias', 'layer.*.fc2.weight', 'layer.*.fc2.bias']
    """
    rows = []
    for module, name in modules.items():
        axes = AXES.get(module.removeprefix("cross_"), ("d",))
        make_rows = linear_rows if len(axes) == 2 else norm_rows
        rows += make_rows(f"{tensor}.{name}", f"{param}/{module}", *axes, bias=biased is None or module in biased)
    return rows


def attention_names(template: str, *names: str, param: str = "attention") -> dict[str, str]:
    """{ours: theirs} of the maps of query, key, value and output, from a template and what it has for them.

    >>> attention_names("attn.{}_proj", "q", "k", "v", "out")["attention/out"]
    'attn.out_proj'
    """
    return {f"{param}/{role}": template.format(name) for role, name in zip(("query", "key", "value", "out"), names)}


def split_layout(layout: str) -> list[list[str]]:
    """Parse a layout into the letters of each axis.

    >>> split_layout("(p q c) d"), split_layout("1 1 d")
    ([['p', 'q', 'c'], ['d']], [[], [], ['d']])
    """
    groups = re.findall(r"\(([^)]*)\)|(\S+)", layout)
    return [[letter for letter in (several or single).split() if letter != "1"] for several, single in groups]


def shape_of(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Compute the shape of an array from its layout and the sizes of the letters.

    >>> shape_of("(h e) 1 d", {"h": 2, "e": 3, "d": 5})
    (6, 1, 5)
    """
    return tuple(math.prod(sizes[letter] for letter in group) for group in split_layout(layout))


def rearrange(x: np.ndarray, source: str, target: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Convert an array from the layout `source` to the layout `target`.

    >>> halves_to_pairs = rearrange(np.arange(6), "(half pair)", "(pair half)", {"half": 2, "pair": 3})
    >>> halves_to_pairs.tolist()
    [0, 3, 1, 4, 2, 5]
    """
    old, new = ([letter for group in split_layout(layout) for letter in group] for layout in (source, target))
    x = np.asarray(x).reshape([sizes[letter] for letter in old]).transpose([old.index(letter) for letter in new])
    return np.ascontiguousarray(x.reshape(shape_of(target, sizes)))


def solve_sizes(layouts: Iterable[tuple[str, tuple[int, ...]]], fixed_sizes: Mapping[str, int]) -> dict[str, int]:
    """Infer the sizes of all letters from the known ones and from pairs of a layout and a shape.

    Sizes that do not divide evenly are left for `check_shapes`, which compares the shapes.

    >>> solve_sizes([("(p q c) d", (12, 7))], {"p": 2, "q": 2})
    {'p': 2, 'q': 2, 'c': 3, 'd': 7}
    """
    sizes = dict(fixed_sizes)
    for layout, lengths in layouts:
        for group, length in zip(split_layout(layout), lengths):
            unknown = [letter for letter in group if letter not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = length // max(math.prod(sizes[letter] for letter in group if letter in sizes), 1)
    return sizes


def count_layers(stack: str, names: Iterable[str]) -> int:
    """Return the number of layers of a stack, from the layer indices in the names.

    >>> count_layers("blocks.", ["blocks.0.norm.weight", "blocks.11.norm.bias", "norm.weight"])
    12
    """
    layer = re.compile(re.escape(stack) + r"(\d{1,3})\W")
    return max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)


def expand_layers(table: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """Expand the rows with a `*` to one row for each layer that occurs in `names`, of tensors or of parameters.

    >>> [row.tensor for row in expand_layers([Row("b.*.w", "d", "layer_*/w", "d")], ["b.0.w", "b.1.v", "c"])]
    ['b.0.w', 'b.1.w']
    """
    names, rows = list(names), []
    stacks = {name.partition("*")[0] for row in table for name in (row.tensor, row.param) if "*" in name}
    layers = {stack: count_layers(stack, names) for stack in stacks}
    for row in table:
        if "*" in row.tensor:
            count = max(layers[name.partition("*")[0]] for name in (row.tensor, row.param))
            rows += [Row(*(text.replace("*", str(layer)) for text in row)) for layer in range(count)]
        else:
            rows.append(row)
    return rows


def param_paths(param: str) -> list[str]:
    """Expand `a|b|c` in the name of a parameter to the names of its arrays.

    >>> param_paths("attention/query|key/bias"), param_paths("class_token")
    (['attention/query/bias', 'attention/key/bias'], ['class_token'])
    """
    alternatives = re.search(r"[^/]*\|[^/]*", param)
    if not alternatives:
        return [param]
    return [param.replace(alternatives[0], name) for name in alternatives[0].split("|")]


def to_params(rows: Iterable[Row], state_dict: Arrays, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Convert another library's tensors to parameters {path: array in our layout}; a tensor in a file stays one that is
    read when it is used."""
    params = {}
    for row in rows:
        names, array = param_paths(row.param), state_dict[row.tensor]
        change = lambda x, row=row: rearrange(x, row.tensor_layout, row.param_layout, sizes)
        if len(names) > 1:
            params |= dict(zip(names, change(array), strict=True))
        elif hasattr(array, "then"):
            params[names[0]] = array.then(change, shape_of(row.param_layout, sizes))
        else:
            params[names[0]] = change(array)
    return params


def to_state_dict(rows: Iterable[Row], params: Arrays, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Convert parameters to another library's tensors, {name: array in its layout}: the inverse of `to_params`."""
    state_dict = {}
    for row in rows:
        names = param_paths(row.param)
        array = np.asarray(params[names[0]]) if len(names) == 1 else np.stack([params[name] for name in names])
        state_dict[row.tensor] = rearrange(array, row.param_layout, row.tensor_layout, sizes)
    return state_dict


def summarize_names(label: str, names: list[str]) -> list[str]:
    """Format a count and the first three names; [] if there are none."""
    return [f"{len(names)} {label} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"] if names else []


def check_shapes(where: str, expected: Mapping[str, tuple[int, ...]], actual: Mapping[str, tuple[int, ...]]):
    """Raise InputError unless `actual` has the names and shapes of `expected`; it lists the first differences."""
    differ = [
        f"{name} is {list(actual[name])} instead of {list(expected[name])}"
        for name in sorted(expected.keys() & actual.keys())
        if expected[name] != actual[name]
    ]
    problems = [
        *summarize_names("missing", sorted(expected.keys() - actual.keys())),
        *summarize_names("unexpected", sorted(actual.keys() - expected.keys())),
        *summarize_names("of another shape", differ),
    ]
    if problems:
        raise InputError(f"{where}: of {len(expected)} tensors {'; '.join(problems)}; is it another architecture?")


LAYERS = {
    "attention": "multi_head",
    "score": "scaled_dot",
    "normalizer": "softmax",
    "head_pool": "mean",
    "bias": "none",
    "mask": "none",
    "norm_layer": "layer",
    "mlp_layer": "dense",
    "num_kv_heads": 0,
    "output_gate": False,
    "differential": False,
    "differential_v2": False,
    "exclusive": False,
    "rope_scaling": "none",
    "rope_fraction": 1.0,
    "normalize_qk": False,
}
"""Options of Transformer layers (config.models.TransformerLayers) with the one value that the other libraries have."""


class Naming:
    """How another library names and lays out the weights of a model; each family of models is a subclass.

    `state_dict` holds the tensors of a file and `params` the arrays of our model, both {name: array}. Reading calls
    the methods from `normalize_name` to `complete`, in this order; the others are for writing.
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
    copies: Mapping[str, Callable[[Arrays, np.ndarray], np.ndarray | None]] = MappingProxyType({})
    """Regular expressions of tensors to leave out, each with a function (state_dict, tensor) that returns what the
    tensor must equal: the original of a tied copy, or a buffer that our model computes. It returns None where there is
    nothing to compare."""
    read_only = False
    """Whether nothing is written under these names without the original config.json (`hugging_face`)."""
    fixed_options: Mapping[str, Any] = LAYERS
    """{option of our model: the only value that the library has, or a tuple of several}."""
    classifier_options: Mapping[str, tuple] = MappingProxyType({})
    """{option that a classifier of another task may change: the values that the library has}."""

    def normalize_name(self, name: str) -> str:
        """Return the name of a tensor as the table spells it."""
        return name

    def prepare(self, state_dict: Arrays, facts: Facts) -> Arrays:
        """Return the tensors to read: by default all; a subclass leaves out copies that config.json declares."""
        return state_dict

    def infer_options(self, state_dict: Arrays, facts: Facts) -> ModelOptions:
        """Infer the options of our model from shapes and config.json, and record assumptions in `facts`."""
        raise NotImplementedError

    def finish(self, options: ModelOptions, facts: Facts, params: Arrays) -> Arrays:
        """Add the parameters that are computed from several tensors or from none."""
        return params

    def complete(self, options: ModelOptions, params: Arrays, directory: Path) -> tuple[ModelOptions, Arrays]:
        """Return (options, params) with those that are in other files of the directory."""
        return options, params

    def layout_sizes(self, options: ModelOptions) -> dict[str, int]:
        """Return the sizes of layout letters that follow from the options; the others follow from the shapes."""
        heads = options.num_heads
        sizes = {"h": heads, "g": options.num_kv_heads or heads, "s": 3}
        width = getattr(options, "key_dim", 0) or options.hidden_size // heads
        return sizes | {"e": width, "d": options.hidden_size, "m": options.mlp_dim}

    def build_module(self, options: ModelOptions, params: Arrays) -> Any:
        """Return the Flax module of these weights."""
        raise NotImplementedError

    def reader_options(self, options: ModelOptions) -> Mapping[str, Any]:
        """Return `fixed_options` with those that depend on the other `options`."""
        return self.fixed_options

    def undo(self, options: ModelOptions, facts: Facts, params: Arrays) -> Arrays:
        """Return the parameters before `finish` and `complete`."""
        return params

    def config_json(self, options: ModelOptions, params: Arrays, data=None) -> dict:
        """Build the config.json to write with the weights; `data` is that of the run, if any."""
        return {}

    def extra_files(self, options: ModelOptions, params: Arrays, data=None) -> dict[str, dict | list | bytes]:
        """Build further files to write with the weights, {name: JSON values, or bytes}."""
        return {}

    def note(self, options: ModelOptions) -> str:
        """Return a note for the summary of an export."""
        return ""


def differing_flags(options: ModelOptions, expected: Mapping[str, Any]) -> list[str]:
    """The flags of `options` that have another value than the expected one, or than those of an expected tuple.

    >>> from attention_jax.config import TransformerConfig
    >>> differing_flags(TransformerConfig(norm="pre", use_bias=False), {"norm": ("post", "none"), "use_bias": True})
    ['--model.norm pre', '--model.no-use-bias']
    """
    flags = []
    for name, values in expected.items():
        value = getattr(options, name)
        if value not in (values if isinstance(values, tuple) else (values,)):
            switch = option_name(name if value is not False else f"no_{name}", "model")
            flags.append(switch if isinstance(value, bool) else f"{switch} {value}")
    return flags
