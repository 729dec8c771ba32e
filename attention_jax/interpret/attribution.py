"""Attribution patching: what `patch_sweep` would find, estimated for all places at once from gradients.

Patching an activation a from another input, where it is a', changes a measure m by (a' - a) dm/da, to first order.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attention_jax.errors import InputError
from attention_jax.interpret.circuits import head_weights
from attention_jax.interpret.edits import Part, as_count
from attention_jax.interpret.intervene import patch, run, trace
from attention_jax.interpret.lenses import measure_number
from attention_jax.interpret.sites import as_arrays, find_sites, select_sites
from attention_jax.interpret.sweeps import Sweep, are_places, axis_tuple, place_axis

OUTPUTS = ("attention_output", "mlp_output")
"""What the two sub-layers of a layer add to the residual stream."""
ENDS = ("residual_in", "residual_out")


def attribution_patch(
    model: nn.Module,
    params,
    *inputs,
    measure: Callable[[Array], Array],
    source: Mapping[str, Array],
    sites: str | Iterable[str] = "*head_output",
    over: str | Sequence[str] = "heads",
    steps: int = 0,
    edges: bool = False,
    fix_qk: bool = False,
    drop_layers: bool = False,
) -> dict[str, Array]:
    """The change of `measure` by patching each place from `source`, to first order: {site: [places]}.

    Attribution patching (Nanda 2023): two traces and one gradient for all places, where `patch_sweep` runs the model
    for each; its result minus the measure of `inputs` is what this estimates.

    Args:
      model, params, inputs, sites: as `patch_sweep` takes them.
      measure: a function of the output to one number, in jax.numpy.
      source: {site: array}, what `trace` returns for another input of the same shapes.
      over: "heads", [H]; "positions", [T]; or both, in the order of the result's axes.
      steps: 0 takes the gradient for `inputs`; others the mean of this many, whose embeddings are on the line to those
        of `source` (EAP-IG, Hanna et al. 2024, here at the middles of equal steps).
      edges: the effect of each edge (EAP, Syed et al. 2023): a last axis of the 2 L + 1 readers of what a site
        writes, attention and MLP of each of L layers and the output, 0 for those before it. Edges sum to the place.
        For the embedding, head_output, attention_output and mlp_output of pre-norm layers without cross-attention.
      fix_qk: of queries and keys, over heads, the change of the softmax is exact (AtP*, Kramár et al. 2024).
      drop_layers: the mean absolute value over L gradients, each without the paths through one layer's sub-layers, so
        that effects do not cancel (AtP*, GradDrop: the sum over layers divided by L - 1).

    Raises:
      InputError: for a site without such places, a source of other shapes or without what is needed, and a measure that
        returns no number.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=2, hidden_size=8, mlp_dim=16, num_heads=4)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> measure = lambda logits: logits[0, -1, 5]  # of token 5 after the last one
    >>> def estimate(params):
    ...     source = trace(model, params, tokens[:, ::-1], sites="*head_output")
    ...     return attribution_patch(model, params, tokens, measure=measure, source=source, edges=True)
    >>> {site: x.shape for site, x in jax.eval_shape(estimate, params).items()}
    {'decoder.0.head_output': (4, 5), 'decoder.1.head_output': (4, 5)}
    """
    inputs, axis_names = as_arrays(inputs), axis_tuple(over)
    steps = as_count(steps, 0, "steps is a number of gradients, or 0 for that of the inputs")
    all_sites = find_sites(model, params, inputs)
    names, kinds = select_sites(all_sites, sites), [name for name in all_sites if name.endswith(OUTPUTS)]
    paths = [name for name in all_sites if name.endswith(".embedding")] if steps else []
    _check(all_sites, names, axis_names, source, paths)
    if fix_qk:
        names, source, group = _exact_softmax(model, params, inputs, names, source, axis_names)
    readers = _readers(model, all_sites, names, drop_layers) if edges else {}
    last = [readers["output"][0].replace("mlp_output", "residual_out")] if edges else []
    targets = [*dict.fromkeys(site for pair in readers.values() for site in pair if site)] if edges else names
    dropped = kinds if drop_layers else []
    if {*dropped} & {*targets}:
        raise InputError(f"drop_layers holds {' and '.join(OUTPUTS)} constant: sweep other sites")
    activations = trace(model, params, *inputs, sites=[*names, *targets, *paths, *dropped, *last])
    ends = {name: jnp.asarray(source[name]) for name in paths}
    layers = [*dict.fromkeys(name.rpartition(".")[0] for name in dropped)]
    masks = np.array([[name.rpartition(".")[0] == layer for name in dropped] for layer in layers]).reshape(
        max(len(layers), 1), len(dropped)
    )
    shares = (np.arange(steps) + 0.5) / steps if steps else np.zeros(1)
    constants = activations, ends, {name: activations[name] for name in dropped}
    slopes = _slopes(model, measure, tuple(targets), params, inputs, constants, masks, shares)  # {site: [L or 1, ...]}
    difference = lambda a, b: jnp.where(a == b, 0, a - b)  # not -inf + inf
    changes = {name: difference(source[name], activations[name]) for name in names}
    if edges:
        effects = _edge_effects(model, params, changes, activations, slopes, readers, axis_names)
        return Sweep(effects, axis_names)
    effects = {}
    for name in names:
        products = jnp.where(slopes[name] == 0, 0, changes[name][None] * slopes[name])  # not -inf * 0
        axes = [place_axis(name, axis_name, activations[name].shape) + 1 for axis_name in axis_names]
        moved = jnp.moveaxis(products, axes, range(1, 1 + len(axes)))  # [L or 1, places, ...]
        effect = moved.sum(tuple(range(1 + len(axes), moved.ndim)))
        effects[name] = jnp.abs(effect).sum(0) / max(len(layers) - 1, 1) if drop_layers else effect[0]
    if fix_qk:
        by_head = lambda name, count: effects[f"{name.rpartition('.')[0]}.weights"].reshape(count, -1).sum(1)
        effects = {name: by_head(name, count) for name, count in group.items()}
    return Sweep(effects, axis_names)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _slopes(model, measure, targets, params, inputs, constants, masks, shares):
    """{target: the mean over `shares` of the gradients of the measure, for each row of `masks`, [L or 1, ...]}."""
    activations, ends, dropped = constants

    def value(offsets, mask, share):
        edits = {name: Part(x, where=mask[i]) for i, (name, x) in enumerate(dropped.items())}
        edits |= {name: Part(x, adds=True) for name, x in offsets.items()}
        for name, end in ends.items():
            edits[name] = activations[name] + share.astype(end.dtype) * (end - activations[name]) + offsets.get(name, 0)
        return measure_number(measure, run(model, params, *inputs, set=edits)[0])

    zeros = {name: jnp.zeros_like(activations[name]) for name in targets}
    gradient = lambda mask: jax.tree.map(
        lambda x: x.mean(0), jax.lax.map(lambda share: jax.grad(value)(zeros, mask, share), jnp.asarray(shares))
    )
    return jax.lax.map(gradient, masks)


def _check(sites, names, axis_names, source, paths):
    if not are_places(axis_names):
        raise InputError(f"attribution patching is over heads, positions or both, got {axis_names}")
    for name, axis_name in product(names, axis_names):
        place_axis(name, axis_name, sites[name].shape)
    patch(source, [*names, *paths])  # InputError for a source without them
    for name in (*names, *paths):
        if jnp.shape(source[name]) != sites[name].shape:
            shapes = f"{list(sites[name].shape)}, got {list(jnp.shape(source[name]))}"
            raise InputError(f"the source needs {name} of the shape {shapes}: trace an input of the same length")


def _exact_softmax(model, params, inputs, names, source, axis_names):
    """(sites of weights, {site: the weights with the queries, or keys, of the source}, {name: its heads}).

    One run has them all: queries and keys of these layers are set, so that nothing else changes their weights.
    """
    if not all(name.endswith((".query", ".key")) for name in names) or axis_names != ("heads",):
        raise InputError("fix_qk is for the sites query or key, over heads: leave it out for others")
    if len({name.rpartition(".")[2] for name in names}) > 1:
        raise InputError("fix_qk takes queries or keys, one kind in a call: patching both is another intervention")
    layers = [name.rpartition(".")[0] for name in names]
    sides = [f"{layer}.{side}" for layer in layers for side in ("query", "key")]
    activations = trace(model, params, *inputs, sites=sides)
    weights = [f"{layer}.weights" for layer in layers]
    changed = run(model, params, *inputs, set=activations | {name: source[name] for name in names}, sites=weights)[1]
    return weights, changed, {name: activations[name].shape[2] for name in names}


def _readers(model, sites, names, drop_layers: bool) -> dict[str, tuple[str, str | None]]:
    """{reader: (a, b)} in the order of a call: the gradient by what it reads is that by site a minus that by site b."""
    stack = names[0].partition(".")[0]
    depth = sum(name.startswith(f"{stack}.") and name.endswith(".residual_in") for name in sites)
    kinds = ("embedding", "head_output", *OUTPUTS)
    has_others = any(not x.startswith(f"{stack}.") or x.rpartition(".")[2] not in kinds for x in names)
    if drop_layers or has_others or f"{stack}.{depth - 1}.mlp_output" not in sites:
        raise InputError(f"edges are of {', '.join(kinds)} of one stack of Transformer layers, without drop_layers")
    placement = getattr(getattr(model, "options", None), "norm", "pre")
    problems = {
        "cross-attention": any(name.startswith(f"{stack}.") and ".cross_" in name for name in sites),
        f"norm={placement!r}": placement != "pre",
        "a last layer that drops positions": len({sites[f"{stack}.{depth - 1}.{x}"].shape for x in ENDS}) > 1,
    }
    if problem := next((name for name, is_there in problems.items() if is_there), ""):
        raise InputError(
            f"edges need pre-norm layers, whose sub-layers add to the residual stream; {stack} has {problem}"
        )
    readers = {}
    for i in range(depth):
        inside = [f"{stack}.{i}.{kind}" for kind in ("residual_in", *OUTPUTS)]
        readers |= {f"{stack}.{i}.attention": tuple(inside[:2]), f"{stack}.{i}.mlp": tuple(inside[1:])}
    return readers | {"output": (f"{stack}.{depth - 1}.mlp_output", None)}


def _edge_effects(model, params, changes, activations, slopes, readers, axis_names) -> dict[str, Array]:
    """{site: the effects of its edges [places, readers]}."""
    by_reader = jnp.stack([slopes[a][0] - (slopes[b][0] if b else 0) for a, b in readers.values()])  # [R, B, T, D]
    stack, effects = next(iter(changes)).partition(".")[0], {}
    for layer in range(depth := len(readers) // 2):
        terms = [activations[f"{stack}.{layer}.{kind}"] for kind in ("residual_in", *OUTPUTS)]
        end = f"{layer}.residual_out" if layer == depth - 1 else f"{layer + 1}.residual_in"
        if _differs(sum(terms), activations[f"{stack}.{end}"]):
            raise InputError(f"edges need layers whose sub-layers add to the residual stream; {stack}.{layer} does not")
    for name, change in changes.items():
        layer, _, kind = name.partition(".")[2].rpartition(".")
        first = 0 if kind == "embedding" else 2 * int(layer) + (2 if kind == "mlp_output" else 1)
        if kind == "head_output":
            change = _residual_change(model, params, f"{stack}.{layer}", change, activations)  # [B, T, H, D]
        letters = "bthd" if change.ndim == 4 else "btd"
        places = "".join({"heads": "h", "positions": "t"}[axis_name] for axis_name in axis_names)
        later = by_reader.at[:first].set(0)
        effects[name] = jnp.einsum(f"{letters},rbtd->{places}r", change, later)
    return effects


def _differs(a, b) -> bool:
    """Whether arrays differ by more than rounding, where they are known: outside of `jax.jit`."""
    gap = jnp.abs(a - b).max() - 1e-3 * jnp.abs(b).max()
    return not isinstance(gap, jax.core.Tracer) and bool(gap > 0)


def _residual_change(model, params, layer: str, change, activations):
    """What a change of the heads' outputs [B, T, H, V] adds to the residual stream, [B, T, H, D]."""
    output = head_weights(model, params, layer).output  # [H, V, D]
    whole, heads = (activations[f"{layer}.{kind}"] for kind in (OUTPUTS[0], "head_output"))
    written = jnp.einsum("bthv,hvd->btd", heads, output)  # [B, T, D]
    biases = (whole - written)[:1, :1]  # the same at all positions
    if _differs(written + biases, whole):
        raise InputError(f"edges of heads need an output matrix alone behind them; {layer} has more: use {OUTPUTS[0]}")
    return jnp.einsum("bthv,hvd->bthd", change, output)
