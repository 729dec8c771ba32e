"""Sweeps: a number of the output, with one place of a model after the other ablated or patched from another input."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from itertools import product
from pathlib import Path
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attention_jax.errors import InputError
from attention_jax.interpret.edits import Indices, Part, as_index_tuple, normalize_index
from attention_jax.interpret.intervene import ablate, apply_measure, patch, run, trace
from attention_jax.interpret.sites import (
    Site,
    as_arrays,
    find_sites,
    heads_axis,
    positions_axis,
    select_sites,
    split_lengths,
)
from attention_jax.report.heatmaps import Heatmap, show_heatmaps

BUDGET = 2**30
"""Bytes that the runs of one batch may need, estimated by `run_bytes`."""
FORMATS = (".png", ".pdf", ".svg")
EDGES = ("heads", "positions", "keys")


class Sweep(dict):
    """{site: measures [places, ...]} of `patch_sweep` or `attribution_patch`, with the axes that they went over."""

    def __init__(self, measures, over: tuple[str, ...]):
        super().__init__(measures)
        self.over = over


jax.tree_util.register_pytree_with_keys(
    Sweep,
    lambda swept: ([(jax.tree_util.DictKey(site), x) for site, x in swept.items()], (tuple(swept), swept.over)),
    lambda names_and_over, values: Sweep(zip(names_and_over[0], values, strict=True), names_and_over[1]),
)


def patch_sweep(
    model: nn.Module,
    params,
    *inputs,
    measure: Callable[[Array], Array],
    source: Mapping[str, Array] | None = None,
    sites: str | Iterable[str] = "*head_output",
    over: str | Sequence[str] = "heads",
    positions: Indices = None,
    together: int | None = None,
) -> dict[str, Array]:
    """`measure` of the output with one place at a time ablated, or patched from `source`: {site: [places, ...]}.

    With the trace of another input as `source` this is activation patching (Vig et al. 2020; Meng et al. 2022, section
    2.1). All places are one compiled program, which runs them in batches.

    Args:
      model, params, inputs: as `run` takes them.
      measure: a function of the output to an array [...], in jax.numpy.
      source: {site: array}, what `trace` returns for another input of the same shapes; None sets zeros.
      sites: the sites that have these places; with `*`.
      over: "heads", [H, ...]; "positions", [T, ...]; both, ("heads", "positions"), [H, T, ...]; or "edges" of scores
        and weights, [H, Q, K, ...]. Without a source an edge of scores is masked and one of weights zero. Edges that
        are masked in every row anyway have the measure without a patch, and outside of `jax.jit` are not run.
      positions: a sweep over heads patches them at these positions only, one over positions or edges has only these,
        in their order (of edges, the queries).
      together: how many runs are a batch; by default as many as need `BUDGET` bytes.

    Raises:
      InputError: for a site without such places, another `over`, a position that is not there, a source of other
        shapes, and a measure that returns no array.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> options = {"measure": lambda logits: logits[0, -1], "over": ("heads", "positions")}
    >>> swept = jax.eval_shape(lambda params: patch_sweep(model, params, tokens, **options), shapes)
    >>> swept["decoder.0.head_output"].shape
    (2, 5, 11)
    """
    inputs = as_arrays(inputs)
    all_sites = find_sites(model, params, inputs)
    names, axis_names = select_sites(all_sites, sites), axis_tuple(over)
    axis_names = EDGES if axis_names == ("edges",) else axis_names
    if axis_names != EDGES and not are_places(axis_names):
        raise InputError(f"a sweep is over heads, positions, both or edges, got {over!r}")
    if together is not None and (not isinstance(together, int) or together < 1):
        raise InputError(f"together is a number of runs, at least 1, got {together!r}")
    lengths = split_lengths(inputs, model)[1]
    indices = {name: _place_indices(name, all_sites[name], axis_names, positions, lengths) for name in names}
    allowed = _edge_masks(model, params, inputs, names) if axis_names == EDGES else {}
    places = np.array(
        [
            (i, *place)
            for i, name in enumerate(names)
            for place in product(*indices[name])
            if name not in allowed or allowed[name][place]
        ],
        np.int32,
    ).reshape(-1, 1 + len(axis_names))
    count = len(places) + (axis_names == EDGES)  # and a run without a patch
    size = together or max(1, BUDGET // run_bytes(all_sites))
    batches = -(-count // size)
    size = -(-count // batches)  # of all batches, so that there is no second program for a remainder
    padding = np.full((batches * size - len(places), places.shape[1]), -1, np.int32)
    values = _place_values(names, source, axis_names, positions)
    axes = tuple(
        tuple(place_axis(name, axis_name, all_sites[name].shape) for axis_name in axis_names) for name in names
    )
    shapes = tuple(all_sites[name].shape for name in names)
    results = _run_places(
        model, measure, tuple(names), axes, shapes, size, params, values, inputs, np.concatenate([places, padding])
    )
    arrange = lambda i, name: _arrange(results, places, i, indices[name], axis_names == EDGES)
    return Sweep({name: arrange(i, name) for i, name in enumerate(names)}, axis_names)


def axis_tuple(over) -> tuple[str, ...]:
    """The names of axes that an argument `over` has, which `are_places` checks."""
    return tuple(over) if isinstance(over, Iterable) and not isinstance(over, str) else (over,)


def are_places(axis_names: tuple[str, ...]) -> bool:
    """Whether these are heads, positions or both.

    >>> are_places(("heads", "positions")), are_places(("heads", "heads")), are_places((None,))
    (True, False, False)
    """
    return bool(axis_names) and {*axis_names} <= {"heads", "positions"} and len({*axis_names}) == len(axis_names)


def place_axis(name: str, axis_name: str, shape: Sequence[int], is_edge: bool = False) -> int:
    """The axis of heads, positions or keys of the activation of a site; InputError for a site without it."""
    axis = 3 if heads_axis(name) == 1 else None
    if axis_name != "keys":
        axis = heads_axis(name) if axis_name == "heads" else positions_axis(name, len(shape))
    if axis is None:
        examples = {"heads": "head_output", "positions": "residual_in", "keys": "scores and weights"}
        raise InputError(
            f"a sweep over {'edges' if is_edge else axis_name} needs sites with {axis_name}, as "
            f"{examples[axis_name]}; {name} is {list(shape)}"
        )
    return axis


def _place_indices(name: str, site: Site, axis_names: tuple[str, ...], positions: Indices, lengths) -> list[list[int]]:
    """The indices of each axis that a sweep goes through; negative ones are from the end of each text."""
    indices = []
    for axis_name in axis_names:
        axis = place_axis(name, axis_name, site.shape, is_edge=axis_names == EDGES)
        chosen = as_index_tuple(positions) if axis_name == "positions" else None
        size = site.shape[axis]
        shortest = size if lengths is None or isinstance(lengths, jax.core.Tracer) else int(np.min(lengths))
        for i in chosen or ():
            normalize_index(name, "position", i, shortest)
        indices.append([*range(size)] if chosen is None else [*chosen])
    return indices


def _place_values(names, source, axis_names, positions: Indices) -> dict[str, Part]:
    """What is set at a place, by site."""
    positions = None if "positions" in axis_names else positions
    if source is not None:
        return patch(source, names, positions=positions)
    if axis_names == EDGES:
        return {name: Part(jnp.asarray(-jnp.inf if name.endswith("scores") else 0.0)) for name in names}
    return ablate(names, positions=positions)


def _edge_masks(model, params, inputs, names) -> dict[str, np.ndarray]:
    """{site: where a query of any row may attend to a key, [H, 2 Q, K]: all queries, and again with those of each text
    at the end, for negative indices}; empty under `jax.jit`, where it is not known."""
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((params, inputs))):
        return {}
    score_sites = {name: f"{name.removesuffix('weights').removesuffix('scores')}scores" for name in names}
    scores = trace(model, params, *inputs, sites=score_sites.values())
    is_open = {name: np.asarray(scores[site] != -jnp.inf) for name, site in score_sites.items()}  # [B, H, Q, K]
    lengths = split_lengths(inputs, model)[1]
    at_end = lambda x: x if lengths is None else [np.roll(row, -n, axis=1) for row, n in zip(x, np.asarray(lengths))]
    return {name: np.concatenate([x.any(0), np.any(at_end(x), 0)], axis=1) for name, x in is_open.items()}


def run_bytes(sites: Mapping[str, Site]) -> int:
    """Bytes that one run needs, about: three times its output and the activations of its largest layer.

    >>> run_bytes({"decoder.0.query": Site((), 0, (1, 5, 2, 4), jnp.dtype("float32"))})
    480
    """
    layers: dict[str, int] = {}
    for name, site in sites.items():
        layer = name.rpartition(".")[0]
        layers[layer] = layers.get(layer, 0) + math.prod(site.shape) * jnp.dtype(site.dtype).itemsize
    output = layers.pop("", 0)
    return 3 * (output + max(layers.values(), default=0))


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _run_places(model, measure, names, axes, shapes, size: int, params, values, inputs, places):
    """`measure` for each of the places [P, 1 + axes], (site, index along each axis), site -1 being nowhere: [P, ...].

    Negative indices are from the end of each text.
    """
    lengths = split_lengths(inputs, model)[1]

    def run_place(place):
        edits = {}
        for i, (name, site_axes, shape) in enumerate(zip(names, axes, shapes, strict=True)):
            masks = []
            for j, axis in enumerate(site_axes):
                end = jnp.array([shape[axis]]) if lengths is None else lengths
                index = jnp.where(place[1 + j] < 0, end, 0) + place[1 + j]  # [B], or [1] for all texts
                mask = jnp.arange(shape[axis])[None] == index[:, None]
                masks.append(mask.reshape([len(index), *(-1 if k == axis else 1 for k in range(1, len(shape)))]))
            edits[name] = replace(values[name], where=reduce(jnp.logical_and, masks) & (place[0] == i))
        return apply_measure(measure, run(model, params, *inputs, set=edits)[0])

    return jax.lax.map(run_place, places, batch_size=size)


def _arrange(results, places, number: int, indices: list[list[int]], has_gaps: bool) -> Array:
    """The results of one site, [axes..., ...]; those of places that were not run are the last result, of no place."""
    shape = (*map(len, indices), *results.shape[1:])
    [rows] = np.nonzero(places[:, 0] == number)
    if not has_gaps:
        return results[rows[0] : rows[-1] + 1].reshape(shape)  # [axes..., ...]
    slots = tuple(np.array([where.index(i) for i in places[rows, 1 + j]], int) for j, where in enumerate(indices))
    return jnp.broadcast_to(results[-1], shape).at[slots].set(results[rows])


def draw_sweep(
    swept: Mapping[str, Array],
    path: str | Path,
    *,
    over: Literal["positions", "heads"] | None = None,
    tokens: Sequence[str] | None = None,
    title: str | None = None,
    label: str = "measure",
) -> Path:
    """Draw a `patch_sweep` or `attribution_patch` as a heat map, layers by positions or heads, and return the path.

    Args:
      swept: {site: [T] or [H]}, numbers. Each kind of site, such as residual_in, is a panel.
      path: a file that ends in .png, .pdf or .svg; its directory is created.
      over: what the sweep went over, the label of the horizontal axis; theirs is known.
      tokens: T texts that label the positions.
      title: of the figure, if it has one panel; else of each, before the kind.
      label: of the color bar. Colors are symmetric about zero if there are numbers on both sides of it.

    Raises InputError for another shape or ending, and for a wrong number of tokens.

    >>> import tempfile
    >>> swept = {f"decoder.{i}.residual_in": jnp.arange(3.0) - i for i in range(4)}
    >>> draw_sweep(swept, tempfile.mkdtemp() + "/sweep.png", over="positions", tokens=["a", "b", "c"]).name
    'sweep.png'
    """
    if Path(path).suffix not in FORMATS:
        raise InputError(f"a figure ends in {', '.join(FORMATS)}, got {path}")
    axes = getattr(swept, "over", (over,))
    if over is not None and axes != (over,):
        raise InputError(f"this sweep went over {' and '.join(axes)}, got over={over!r}: leave it out")
    if axes not in (("positions",), ("heads",)):
        axes_or_hint = repr(over or axes) if axes != (None,) else "a dict: pass over='heads' or over='positions'"
        raise InputError(f"a sweep over positions or heads can be drawn, got {axes_or_hint}")
    [over] = axes
    panels: dict[str, dict[str, np.ndarray]] = {}
    for name, values in swept.items():
        if np.ndim(values) != 1:
            raise InputError(f"a sweep is drawn from one number for each of its {over}, got {name} {jnp.shape(values)}")
        *layer, kind = name.split(".")
        panels.setdefault(f"{layer[0]} {kind}" if layer else kind, {})[layer[-1]] = np.asarray(values, float)
    matrices = [np.stack([*rows.values()]) for rows in panels.values()]
    low, high = (function([function(x) for x in matrices]) for function in (np.nanmin, np.nanmax))
    limits = (-max(-low, high), max(-low, high)) if low < 0 < high else (low, high)
    titles = [*panels] if len(panels) > 1 or title is None else [title]
    titles = [f"{title}: {kind}" for kind in titles] if title and len(panels) > 1 else titles
    heatmaps = [
        Heatmap(matrix, [*rows], tokens, panel_title)
        for matrix, rows, panel_title in zip(matrices, panels.values(), titles, strict=True)
    ]
    axis_labels = {"xlabel": "position" if over == "positions" else "head", "ylabel": "layer", "color_label": label}
    return show_heatmaps([heatmaps], path, limits=tuple(map(float, limits)), **axis_labels)
