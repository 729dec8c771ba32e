"""Tables that map another library's tensor names and layouts to this package's.

A layout names axes as einops does: "(p q c) d" is a matrix whose rows run over p, then q, then c. Two layouts with the
same letters define how to convert an array in both directions, so a format is fully described by a table of rows:

    Row("patch_embed.proj.weight", "d c p q", "patch_embedding/kernel", "(p q c) d")

is PyTorch's convolution on the left and our matmul with flattened patches on the right. "1" is an axis of length one.
A `*` in both names is the index of a layer. `query|key|value` in a parameter's name stands for three arrays, stacked
along the first axis of our layout.
"""

import math
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from attention_jax.errors import InputError


class Row(NamedTuple):
    """A table row: name and layout of a tensor in another library, and of the corresponding array or arrays here."""

    tensor: str
    tensor_layout: str
    param: str
    param_layout: str


def axes(layout: str) -> list[list[str]]:
    """Parse layouts into the letters of each axis.

    >>> axes("(p q c) d"), axes("1 1 d")
    ([['p', 'q', 'c'], ['d']], [[], [], ['d']])
    """
    groups = re.findall(r"\(([^)]*)\)|(\S+)", layout)
    return [[letter for letter in (several or single).split() if letter != "1"] for several, single in groups]


def shape(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Compute the shape of an array from its layout and the sizes of the letters.

    >>> shape("(h e) 1 d", {"h": 2, "e": 3, "d": 5})
    (6, 1, 5)
    """
    return tuple(math.prod(sizes[letter] for letter in group) for group in axes(layout))


def rearrange(x: np.ndarray, source: str, target: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Convert an array from the layout `source` to the layout `target`.

    >>> halves_to_pairs = rearrange(np.arange(6), "(half pair)", "(pair half)", {"half": 2, "pair": 3})
    >>> halves_to_pairs.tolist()
    [0, 3, 1, 4, 2, 5]
    """
    old, new = ([letter for group in axes(layout) for letter in group] for layout in (source, target))
    x = np.asarray(x).reshape([sizes[letter] for letter in old]).transpose([old.index(letter) for letter in new])
    return np.ascontiguousarray(x.reshape(shape(target, sizes)))


def solve_sizes(layouts: Iterable[tuple[str, tuple[int, ...]]], fixed_sizes: Mapping[str, int]) -> dict[str, int]:
    """Infer the sizes of all letters from the known ones and from pairs of a layout and a shape.

    Sizes that do not divide evenly are left for `check_shapes`, which compares the shapes.

    >>> solve_sizes([("(p q c) d", (12, 7))], {"p": 2, "q": 2})
    {'p': 2, 'q': 2, 'c': 3, 'd': 7}
    """
    sizes = dict(fixed_sizes)
    for layout, lengths in layouts:
        for group, length in zip(axes(layout), lengths):
            unknown = [letter for letter in group if letter not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = length // max(math.prod(sizes[letter] for letter in group if letter in sizes), 1)
    return sizes


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


def count_layers(stack: str, names: Iterable[str]) -> int:
    """Return the number of layers of a stack, from the layer indices in the names.

    >>> count_layers("blocks.", ["blocks.0.norm.weight", "blocks.11.norm.bias", "norm.weight"])
    12
    """
    layer = re.compile(re.escape(stack) + r"(\d{1,3})\W")
    return max((int(match[1]) + 1 for name in names if (match := layer.match(name))), default=0)


def param_paths(param: str) -> list[str]:
    """Expand `a|b|c` in the name of a parameter to the names of its arrays.

    >>> param_paths("attention/query|key/bias"), param_paths("class_token")
    (['attention/query/bias', 'attention/key/bias'], ['class_token'])
    """
    alternatives = re.search(r"[^/]*\|[^/]*", param)
    if not alternatives:
        return [param]
    return [param.replace(alternatives[0], name) for name in alternatives[0].split("|")]


def to_params(
    rows: Iterable[Row], state_dict: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Convert another library's tensors to parameters {path: array in our layout}; a tensor in a file stays one that is
    read when it is used."""
    params = {}
    for row in rows:
        names, array = param_paths(row.param), state_dict[row.tensor]
        change = lambda x, row=row: rearrange(x, row.tensor_layout, row.param_layout, sizes)
        if hasattr(array, "then") and len(names) == 1:
            params[names[0]] = array.then(change, shape(row.param_layout, sizes))
            continue
        array = change(array)
        params |= {names[0]: array} if len(names) == 1 else dict(zip(names, array, strict=True))
    return params


def to_state_dict(
    rows: Iterable[Row], params: Mapping[str, np.ndarray], sizes: Mapping[str, int]
) -> dict[str, np.ndarray]:
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
    missing, unexpected = sorted(expected.keys() - actual.keys()), sorted(actual.keys() - expected.keys())
    differ = [
        f"{name} is {list(actual[name])} instead of {list(expected[name])}"
        for name in sorted(expected.keys() & actual.keys())
        if expected[name] != actual[name]
    ]
    problems = [
        *summarize_names("missing", missing),
        *summarize_names("unexpected", unexpected),
        *summarize_names("of another shape", differ),
    ]
    if problems:
        raise InputError(f"{where}: of {len(expected)} tensors {'; '.join(problems)}; is it another architecture?")
