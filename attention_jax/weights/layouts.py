"""Tables that map another library's tensor names and layouts to this package's.

A layout names axes as einops does: "(p q c) d" is a matrix whose rows run over p, then q, then c. Two layouts with the
same letters define how to convert an array in both directions, so a format is fully described by a table of rows:

    Row("patch_embed.proj.weight", "d c p q", "patch_embedding/kernel", "(p q c) d")

is PyTorch's convolution on the left and our matmul with flattened patches on the right. "1" is an axis of length one.
A `*` in both names is the index of a layer. `query|key|value` in a name of ours denotes three arrays, which are stacked
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

    theirs: str
    their_layout: str
    ours: str
    our_layout: str


def axes(layout: str) -> list[list[str]]:
    """Parse layouts into the letters of each axis.

    >>> axes("(p q c) d"), axes("1 1 d")
    ([['p', 'q', 'c'], ['d']], [[], [], ['d']])
    """
    groups = re.findall(r"\(([^)]*)\)|(\S+)", layout)
    return [[letter for letter in (several or one).split() if letter != "1"] for several, one in groups]


def shape(layout: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Compute the shape of an array from its layout and the sizes of the letters.

    >>> shape("(h e) 1 d", {"h": 2, "e": 3, "d": 5})
    (6, 1, 5)
    """
    return tuple(math.prod(sizes[letter] for letter in group) for group in axes(layout))


def rearrange(x: np.ndarray, before: str, after: str, sizes: Mapping[str, int]) -> np.ndarray:
    """Convert an array from the layout `before` to the layout `after`.

    >>> halves_to_pairs = rearrange(np.arange(6), "(half pair)", "(pair half)", {"half": 2, "pair": 3})
    >>> halves_to_pairs.tolist()
    [0, 3, 1, 4, 2, 5]
    """
    old, new = ([letter for group in axes(layout) for letter in group] for layout in (before, after))
    x = np.asarray(x).reshape([sizes[letter] for letter in old]).transpose([old.index(letter) for letter in new])
    return np.ascontiguousarray(x.reshape(shape(after, sizes)))


def solved(layouts: Iterable[tuple[str, tuple[int, ...]]], known: Mapping[str, int]) -> dict[str, int]:
    """Infer the sizes of all letters from the known ones and from pairs of a layout and a shape.

    Sizes that do not divide evenly are left for `check`, which compares the shapes.

    >>> solved([("(p q c) d", (12, 7))], {"p": 2, "q": 2})
    {'p': 2, 'q': 2, 'c': 3, 'd': 7}
    """
    sizes = dict(known)
    for layout, lengths in layouts:
        for group, length in zip(axes(layout), lengths):
            unknown = [letter for letter in group if letter not in sizes]
            if len(unknown) == 1:
                sizes[unknown[0]] = length // max(math.prod(sizes[letter] for letter in group if letter in sizes), 1)
    return sizes


def expanded(table: Iterable[Row], names: Iterable[str]) -> list[Row]:
    """Expand the rows with a `*` to one row for each layer that occurs in `names`, theirs or ours.

    >>> [row.theirs for row in expanded([Row("b.*.w", "d", "layer_*/w", "d")], ["b.0.w", "b.1.v", "c"])]
    ['b.0.w', 'b.1.w']
    """
    names, rows = list(names), []
    stacks = {name.partition("*")[0] for row in table for name in (row.theirs, row.ours) if "*" in name}
    layers = {stack: depth(stack, names) for stack in stacks}
    for row in table:
        if "*" in row.theirs:
            count = max(layers[name.partition("*")[0]] for name in (row.theirs, row.ours))
            rows += [Row(*(text.replace("*", str(layer)) for text in row)) for layer in range(count)]
        else:
            rows.append(row)
    return rows


def depth(stack: str, names: Iterable[str]) -> int:
    """Return the number of layers of a stack, from the layer indices in the names.

    >>> depth("blocks.", ["blocks.0.norm.weight", "blocks.11.norm.bias", "norm.weight"])
    12
    """
    layer = re.compile(re.escape(stack) + r"(\d{1,3})\W")
    return max((int(found[1]) + 1 for name in names if (found := layer.match(name))), default=0)


def parts(ours: str) -> list[str]:
    """Expand `a|b|c` in a name of ours to the names of its arrays.

    >>> parts("attention/query|key/bias"), parts("class_token")
    (['attention/query/bias', 'attention/key/bias'], ['class_token'])
    """
    alternatives = re.search(r"[^/]*\|[^/]*", ours)
    if not alternatives:
        return [ours]
    return [ours.replace(alternatives[0], one) for one in alternatives[0].split("|")]


def to_ours(rows: Iterable[Row], theirs: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Convert another library's arrays to ours, {our name: array in our layout}; a tensor in a file stays one that is
    read when it is used."""
    found = {}
    for row in rows:
        names, array = parts(row.ours), theirs[row.theirs]
        change = lambda x, row=row: rearrange(x, row.their_layout, row.our_layout, sizes)
        if hasattr(array, "then") and len(names) == 1:
            found[names[0]] = array.then(change, shape(row.our_layout, sizes))
            continue
        array = change(array)
        found |= {names[0]: array} if len(names) == 1 else dict(zip(names, array, strict=True))
    return found


def to_theirs(rows: Iterable[Row], ours: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Convert our arrays to another library's, {their name: array in their layout}: the inverse of `to_ours`."""
    found = {}
    for row in rows:
        names = parts(row.ours)
        array = np.asarray(ours[names[0]]) if len(names) == 1 else np.stack([ours[name] for name in names])
        found[row.theirs] = rearrange(array, row.our_layout, row.their_layout, sizes)
    return found


def listed(what: str, names: list[str]) -> list[str]:
    """Format a count and the first three names; [] if there are none."""
    return [f"{len(names)} {what} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"] if names else []


def check(where: str, wanted: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]]):
    """Raise InputError unless `found` has the names and shapes of `wanted`; the message lists the first differences."""
    missing, unexpected = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    differ = [
        f"{name} is {list(found[name])} instead of {list(wanted[name])}"
        for name in sorted(wanted.keys() & found.keys())
        if wanted[name] != found[name]
    ]
    said = [*listed("missing", missing), *listed("unexpected", unexpected), *listed("of another shape", differ)]
    if said:
        raise InputError(f"{where}: of {len(wanted)} tensors {'; '.join(said)}; is it another architecture?")
