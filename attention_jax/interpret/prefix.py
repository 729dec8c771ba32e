"""The first layers of a model: what some of its activations need, and nothing behind them."""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import flax.linen as nn
import jax

from attention_jax.config.per_layer import merge_per_layer
from attention_jax.interpret.sites import Site
from attention_jax.models.layer_stack import LAYERS

DEPTHS = {"num_layers": "*", "num_encoder_layers": "encoder", "num_decoder_layers": "decoder"}
"""{an option: the stack whose number of layers it is}; a model with "num_layers" has one stack, of any name."""


def model_prefix(model: nn.Module, params: Mapping, sites: Mapping[str, Site], names: Iterable[str]):
    """(model, parameters) with the layers that the activations `names` depend on, and with the same bits in these.

    Only scanned stacks are cut, whose loop is a whole: of other layers XLA removes what nothing reads.
    """
    options = getattr(model, "options", None)
    if not getattr(options, "scan_layers", False):
        return model, params
    depths = {}
    for option, stack in DEPTHS.items():
        if hasattr(options, option):
            stack = next(name.partition(".")[0] for name in sites) if stack == "*" else stack
            depths[stack] = option, _depth(stack, getattr(options, option), names)
    if all(getattr(options, option) == depth for option, depth in depths.values()):
        return model, params
    new_options = dict(depths.values())
    if getattr(options, "per_layer", "").strip():
        new_options["per_layer"] = merge_per_layer(options.per_layer, "", new_options["num_layers"])
    cut = {stack: _first_layers(params[stack], depth) for stack, (_, depth) in depths.items()}
    prefix_options = copy.copy(options)
    for option, value in new_options.items():  # not checked as a user's: models in float64 are for tests only
        object.__setattr__(prefix_options, option, value)
    return model.clone(options=prefix_options), {**params, **cut}


def _depth(stack: str, layers: int, names: Iterable[str]) -> int:
    """The number of layers of a stack that the sites `names` depend on; at least one, which a model needs."""
    depth = 1
    for name in names:
        site_stack, _, suffix = name.partition(".")
        number = suffix.partition(".")[0]
        if site_stack == stack and number.isdigit():
            depth = max(depth, int(number) + 1)
        elif name == "logits" or (suffix != "embedding" and site_stack in (stack, "decoder")):
            return layers  # of a site of the whole stack, or behind it
    return depth


def _first_layers(stack: Mapping[str, Any], depth: int) -> dict:
    """The parameters of the first `depth` layers of a stack, whose runs of equal layers are stacked."""
    first_layers = {}
    for name, value in stack.items():
        if match := LAYERS.fullmatch(name):
            remaining = depth - int(match[1])
            if remaining > 0:
                first_layers[name] = jax.tree.map(lambda x, count=remaining: x[:count], value)
        else:
            first_layers[name] = value
    return first_layers
