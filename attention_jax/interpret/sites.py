"""Sites: the public names of a model's activations.

`decoder.3.query` is an activation of layer 3 of a stack of Transformer layers, `decoder.3.cross_query` one of its
attention over the encoder, `decoder.residual_out` one of the whole stack. docs/interpretability.md has the list.
"""

import difflib
import fnmatch
import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.errors import FlaxError
from jaxtyping import Array, Bool, Int, Shaped

from attention_jax.errors import InputError
from attention_jax.models.layer_stack import LAYER, LAYERS
from attention_jax.models.taps import MARK, TRACE
from attention_jax.ops.trees import pytree

VERSION = 1
"""Of the names of sites. It grows when one of them changes its meaning or disappears."""
STACKS = {"trunk": "encoder"}
"""{module: the name of its stack}, where these differ."""
BY_HEAD = {"query": 2, "key": 2, "value": 2, "scores": 1, "weights": 1, "head_output": 2}
"""{the last part of a site: its axis of heads}; the batch is axis 0, and positions the other of axes 1 and 2."""
HEAD = re.compile(r"(.*\.(?:cross_)?)head\.(-?\d+)")


PLACES = {"query": 0, "key": 0, "value": 0, "scores": 1, "weights": 2, "head_output": 3, "attention_output": 4}
PLACES |= {f"cross_{name}": place for name, place in PLACES.items()} | {"mlp_hidden": 0, "mlp_output": 1}
"""{the last part of a site inside of a sub-layer: its place, in the order of computation}."""


class Site(NamedTuple):
    """An activation of a call of a model."""

    path: tuple[str, ...]
    """Of the variable of its tap."""
    layer: int | None
    """Its row in that variable, which scanned layers share."""
    shape: tuple[int, ...]
    dtype: Any


def heads_axis(name: str) -> int | None:
    """The axis of heads of the activation of a site, or None, as of `attention.weights` of recurrent models."""
    if name.startswith("attention."):
        return None
    return BY_HEAD.get(name.rpartition(".")[2].removeprefix("cross_"))


def positions_axis(name: str, axes: int) -> int | None:
    """The axis of positions of an activation with `axes` axes (of queries, in scores and weights), or None.

    >>> positions_axis("decoder.3.weights", 4), positions_axis("decoder.3.head_output", 4)
    (2, 1)
    >>> positions_axis("attention.weights", 3)
    1
    """
    return None if axes < 3 else 2 if heads_axis(name) == 1 else 1


def sub_layer(name: str) -> tuple[str, int]:
    """The sub-layer that contains a site or a head, and its place in it; for other sites the site itself.

    >>> sub_layer("decoder.3.cross_head.5"), sub_layer("decoder.3.mlp_hidden"), sub_layer("decoder.3.residual_out")
    (('decoder.3.cross_attention', 3), ('decoder.3.mlp', 0), ('decoder.3.residual_out', 0))
    """
    layer, _, last = split_head(name)[0].rpartition(".")
    if last not in PLACES or not layer.rpartition(".")[2].isdigit():
        return split_head(name)[0], 0
    kind = "mlp" if last.startswith("mlp") else "cross_attention" if last.startswith("cross") else "attention"
    return f"{layer}.{kind}", PLACES[last]


def model_sites(model: nn.Module, *inputs) -> dict[str, jax.ShapeDtypeStruct]:
    """The sites of a model that is called with `inputs`, arrays or their shapes, with the shapes of their activations.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> sites = model_sites(models.LanguageModel(options, vocab=11), jnp.ones((2, 5), jnp.int32))
    >>> sites["decoder.0.head_output"].shape, sites["logits"].shape
    ((2, 5, 2, 4), (2, 5, 11))
    """
    check_model(model)
    inputs, _ = split_lengths(as_arrays(inputs))
    check_filled(model, inputs)
    params = _call_shapes(model, lambda *inputs: model.init(jax.random.key(0), *inputs), *inputs)["params"]
    return {
        name: jax.ShapeDtypeStruct(site.shape, site.dtype) for name, site in find_sites(model, params, inputs).items()
    }


def check_model(model):
    """Raise InputError unless `model` is a Flax module."""
    if not isinstance(model, nn.Module):
        hint = ": give its .model and .params" if hasattr(model, "params") else ""
        raise InputError(f"a Flax module is needed, got {type(model).__name__}{hint}")


def check_filled(model: nn.Module, inputs: tuple):
    """Raise InputError for inputs without rows or positions."""
    if any(0 in jnp.shape(x) for x in jax.tree.leaves(inputs)):
        shapes = ", ".join(str([*jnp.shape(x)]) for x in jax.tree.leaves(inputs))
        raise InputError(
            f"{type(model).__name__} cannot be called with inputs of the shapes {shapes}: give at least one row, "
            "and one position in each"
        )


VOCABULARIES = {"tokens": "vocab", "source": "source_vocab", "target_in": "target_vocab"}
"""{an input of a model: the field that says how many tokens there are}."""


def check_tokens(model: nn.Module, inputs: tuple):
    """Raise InputError for ids, where they are known, of tokens that the model does not have: JAX would clamp them."""
    for name, x in zip(inspect.signature(model.__call__).parameters, inputs):
        count = getattr(model, VOCABULARIES.get(name, ""), None)
        if count and isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.size:
            least, most = np.asarray(x).min(), np.asarray(x).max()
            if not 0 <= least <= most < count:
                raise InputError(f"{name} are ids 0 to {count - 1} of a vocabulary of {count}, got {least} to {most}")


@pytree
@dataclass(frozen=True)
class Batch:
    """Texts of different lengths as one input of a causal model, which does not see what follows a token.

    >>> batch = Batch(jnp.array([[5, 6, 7], [8, 0, 0]]), jnp.array([3, 1]))
    >>> batch.mask.tolist(), batch.last(batch.tokens).tolist()
    ([[True, True, True], [True, False, False]], [7, 8])
    """

    tokens: Int[Array, "B T"]
    """Padded at the end of each text."""
    lengths: Int[Array, "B"]

    @property
    def mask(self) -> Bool[Array, "B T"]:
        """True at the tokens of the texts."""
        return jnp.arange(self.tokens.shape[1])[None] < self.lengths[:, None]

    def last(self, x: Shaped[Array, "B T ..."]) -> Shaped[Array, "B ..."]:
        """What x, such as logits, has at the last token of each text."""
        return x[jnp.arange(len(self.lengths)), self.lengths - 1]


def split_lengths(inputs: tuple, model: nn.Module | None = None) -> tuple[tuple, Int[Array, "B"] | None]:
    """The inputs of a call with the tokens of a `Batch` in its place, and its lengths or the argument `length` of
    `model`, None without one."""
    lengths = [x.lengths for x in inputs if isinstance(x, Batch)]
    if not lengths and model is not None:
        names = inspect.signature(type(model).__call__).parameters
        lengths = [x for name, x in zip([*names][1:], inputs) if name == "length"]
    return tuple(x.tokens if isinstance(x, Batch) else x for x in inputs), lengths[0] if lengths else None


def as_arrays(inputs):
    """The inputs of a call as arrays; shapes stay as they are. Raises InputError for anything else."""
    try:
        return jax.tree.map(lambda x: x if isinstance(x, jax.ShapeDtypeStruct) else jnp.asarray(x), inputs)
    except (TypeError, ValueError) as error:
        is_text = any(isinstance(x, str) for x in jax.tree.leaves(inputs))
        hint = "; a pretrained model's batch([text]) has the tokens of texts" if is_text else ""
        raise InputError(f"a call takes arrays: {' '.join(str(error).split())[:160]}{hint}") from error


def find_sites(model: nn.Module, params, inputs: tuple) -> dict[str, Site]:
    """The sites of a call. Raises InputError for inputs that the model does not take, and for one without sites."""
    inputs, _ = split_lengths(inputs)
    check_model(model)
    check_filled(model, inputs)
    check_tokens(model, inputs)
    leaves, structure = jax.tree.flatten((params, inputs))
    return _find_sites(model, structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves))


@lru_cache(maxsize=64)
def _find_sites(model, structure, leaves) -> dict[str, Site]:
    params, inputs = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    call = lambda params, inputs: model.apply({"params": params}, *inputs, mutable=[TRACE])[1]
    traced = _call_shapes(model, call, params, inputs)
    sites = {}
    for keys, leaf in jax.tree_util.tree_flatten_with_path(traced.get(TRACE, {}))[0]:
        sites |= _variable_sites(tuple(key.key for key in keys), leaf)
    if not sites:
        raise InputError(
            f"{type(model).__name__} has no sites: its activations have no names that could be read or set"
        )
    return dict(sorted(sites.items(), key=_site_order))


def _call_shapes(model, call, *args):
    """What a `call` of the model returns, as shapes; InputError for inputs, the last given, that it does not take."""
    try:
        return jax.eval_shape(call, *args)
    except (TypeError, ValueError, IndexError, AttributeError, ZeroDivisionError, FlaxError) as error:
        if isinstance(error, InputError):
            raise
        shapes = ", ".join(str(list(x.shape)) for x in jax.tree.leaves(args[-1:])) or "none"
        message = " ".join(str(error).split())[:160]
        raise InputError(
            f"{type(model).__name__} cannot be called with inputs of the shapes {shapes}: {message}"
        ) from error


def _variable_sites(path: tuple[str, ...], leaf) -> dict[str, Site]:
    """The sites of one variable, of which scanned layers share one."""
    *modules, name = path
    name, stack = name.removeprefix(MARK), STACKS.get(modules[0], modules[0]) if modules else ""
    if name == "logits" or not modules:
        return {name: Site(path, None, leaf.shape, leaf.dtype)}
    name = f"cross_{name}" if "cross_attention" in modules else name
    if len(modules) > 1 and (stack_match := LAYERS.fullmatch(modules[1])):
        first = int(stack_match[1])
        count, shape = leaf.shape[0], leaf.shape[1:]
        return {f"{stack}.{first + i}.{name}": Site(path, i, shape, leaf.dtype) for i in range(count)}
    if len(modules) > 1 and (match := LAYER.fullmatch(modules[1])):
        return {f"{stack}.{match[1]}.{name}": Site(path, None, leaf.shape, leaf.dtype)}
    return {f"{stack}.{name}": Site(path, None, leaf.shape, leaf.dtype)}


ORDER = (
    *("embedding", "residual_in", "query", "key", "value", "scores", "weights", "head_output", "attention_output"),
    *(f"cross_{name}" for name in (*BY_HEAD, "attention_output")),
    *("mlp_hidden", "mlp_output", "residual_out", "final_norm", "logits"),
)


def _site_order(item) -> tuple:
    """Sites are listed as a call passes them: by stack, layer, and place in the layer."""
    stack, *suffixes = item[0].split(".")
    place = ORDER.index(item[0].rpartition(".")[2]) if item[0].rpartition(".")[2] in ORDER else len(ORDER)
    layer = int(suffixes[0]) if suffixes and suffixes[0].isdigit() else -1 if place == 0 else 10**6
    return stack == "logits", stack != "encoder", layer, place, item[0]


def as_name_list(names: str | Iterable[str]) -> list[str]:
    """Names of sites as a list. Raises InputError for a name that is not a string."""
    names = [names] if isinstance(names, str) or not isinstance(names, Iterable) else list(names)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"the name of a site is a text, got a {type(name).__name__}")
    return names


def select_sites(sites: Mapping[str, Any], names: str | Iterable[str]) -> list[str]:
    """The sites that names and patterns with `*` name, in the order of `sites`, each once.

    Raises InputError for a name that no site has and a pattern that fits none.
    """
    selected = set()
    for name in as_name_list(names):
        matches = fnmatch.filter(sites, name) if "*" in name else [name] if name in sites else []
        if not matches:
            raise InputError(_describe_unknown(sites, name))
        selected.update(matches)
    return [name for name in sites if name in selected]


def _describe_unknown(sites: Mapping[str, Any], name: str) -> str:
    """What is wrong with a name: its layer, or all of it."""
    stack, _, suffix = name.partition(".")
    layers = sorted({int(match[1]) for site in sites if (match := re.match(rf"{re.escape(stack)}\.(\d+)\.", site))})
    number = suffix.partition(".")[0]
    if layers and re.fullmatch(r"-?\d+", number) and int(number) not in layers:
        return f"there is no site {name!r}: the layers of the {stack} are 0 to {layers[-1]}"
    near = difflib.get_close_matches(name, sites, n=3, cutoff=0.3)
    return f"there is no site {name!r} in this call of the model; the closest are {', '.join(near or list(sites)[:3])}"


def split_head(name: str) -> tuple[str, int | None]:
    """The site and the head of a name in the short form, else the name and None.

    >>> split_head("decoder.3.head.5"), split_head("decoder.3.query")
    (('decoder.3.head_output', 5), ('decoder.3.query', None))
    """
    match = HEAD.fullmatch(name) if isinstance(name, str) else None
    return (f"{match[1]}head_output", int(match[2])) if match else (name, None)
