"""Options of single layers of a Transformer, as one string: "0-4,6:mask=window(512);5:rope_theta=1000000"."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from typing import Any

from attention_jax.errors import InputError

ALLOWED = (
    "attention", "score", "normalizer", "head_pool", "mask", "bias", "rope_theta", "rope_scaling", "position_embedding",
)  # fmt: skip
"""The options that a layer may have of its own: those that leave the shapes of its projections as they are."""
EXAMPLE = "0-4,6:mask=window(512);5:rope_theta=1000000"


def per_layer_options(text: str) -> Iterator[tuple[range, dict[str, str]]]:
    """Iterate over the groups of `text`: for each of its ranges of layers, the options as strings.

    Raises InputError for malformed text and for options that cannot be set per layer.

    >>> list(per_layer_options("0-4,6:mask=window(512);5:rope_theta=1000000,score=dot"))[1:]
    [(range(6, 7), {'mask': 'window(512)'}), (range(5, 6), {'rope_theta': '1000000', 'score': 'dot'})]
    """
    for group in _split(text, ";"):
        layers, colon, assignments = (x.strip() for x in group.partition(":"))
        values = {}
        for assignment in _split(assignments, ","):
            name, equals, value = (x.strip() for x in assignment.partition("="))
            if not equals or not value or name in values:
                raise InputError(f"--model.per-layer must be like {EXAMPLE}, got {assignment!r} in {text!r}")
            if name not in ALLOWED:
                raise InputError(f"--model.per-layer takes {', '.join(ALLOWED)}, got {name!r}")
            values[name] = value
        for layer_range in layers.split(","):
            match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", layer_range.strip(), re.ASCII)
            if not (colon and values and match) or int(match[2] or match[1]) < int(match[1]):
                raise InputError(f"--model.per-layer must be like {EXAMPLE}, got {group!r}")
            yield range(int(match[1]), int(match[2] or match[1]) + 1), values


def options_by_layer(text: str, count: int) -> list[dict[str, str]]:
    """The options of each of `count` layers; InputError for a layer that does not exist, or that gets one twice.

    >>> options_by_layer("1:mask=window(8)", 2)
    [{}, {'mask': 'window(8)'}]
    """
    layers = [{} for _ in range(count)]
    for places, values in per_layer_options(text) if text.strip() else ():
        if places[-1] >= count:
            raise InputError(f"--model.per-layer must name layers 0 to {count - 1}, got {places[-1]} in {text!r}")
        for i in places:
            if twice := layers[i].keys() & values.keys():
                raise InputError(f"--model.per-layer gives layer {i} its {min(twice)} twice, in {text!r}")
            layers[i] |= values
    return layers


def overlay_per_layer(base: Any, overrides: Any) -> Any:
    """Return `overrides` with their `per_layer` merged over the `per_layer` of the options `base`."""
    below, above = (getattr(options, "per_layer", "") for options in (base, overrides))
    return (
        overrides
        if above == below
        else dataclasses.replace(overrides, per_layer=merge_per_layer(below, above, overrides.num_layers))
    )


def merge_per_layer(below: str, above: str, count: int) -> str:
    """Merge two `per_layer` options for the first `count` layers: `above` takes precedence, and a layer keeps the
    options of `below` that `above` does not set.

    >>> merge_per_layer("0-3:mask=window(4),score=dot", "1:mask=none", 3)
    '0,2:mask=window(4),score=dot;1:mask=none,score=dot'
    """
    if not below.strip():
        return above
    places = [places for text in (below, above) if text.strip() for places, _ in per_layer_options(text)]
    base, overrides = (options_by_layer(text, 1 + max(place[-1] for place in places)) for text in (below, above))
    groups: dict[str, list[int]] = {}
    for layer, values in enumerate(base):
        both = (values if layer < count else {}) | overrides[layer]
        joined = ",".join(f"{name}={value}" for name, value in both.items())
        groups.setdefault(joined, []).append(layer)
    return ";".join(f"{layer_list(layers)}:{joined}" for joined, layers in groups.items() if joined)


def layer_list(layers: Iterable[int]) -> str:
    """Layers as in an option `per_layer`.

    >>> layer_list([0, 1, 2, 4, 6, 7])
    '0-2,4,6-7'
    """
    runs: list[list[int]] = []
    for layer in layers:
        runs[-1].append(layer) if runs and runs[-1][-1] == layer - 1 else runs.append([layer])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _split(text: str, separator: str) -> list[str]:
    """Split at `separator` outside of parentheses.

    >>> _split("a(1, 2),b", ",")
    ['a(1, 2)', 'b']
    """
    pieces, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == separator and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces
