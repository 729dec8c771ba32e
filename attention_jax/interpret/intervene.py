"""Interventions: read any activation of a model, and continue with another in its place.

`run` is the one function that calls a model; `patch` and `ablate` make what it sets, which are values: they can be
joined by `|`, kept, and passed through `jax.jit`, `jax.vmap` and `jax.grad`.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Key

from attention_jax.errors import InputError
from attention_jax.interpret.edits import Indices, Part, edit_variables, expand_names, select_head
from attention_jax.interpret.patterns import check_rng
from attention_jax.interpret.prefix import model_prefix
from attention_jax.interpret.sites import (
    Site,
    as_arrays,
    as_name_list,
    find_sites,
    positions_axis,
    select_sites,
    split_head,
    split_lengths,
    sub_layer,
)
from attention_jax.models.taps import SET, TRACE


def run(
    model: nn.Module,
    params,
    *inputs,
    set: Mapping[str, Any] | None = None,
    sites: str | Iterable[str] = (),
) -> tuple[Any, dict[str, Array]]:
    """Call a model with other activations in the places that `set` names: (its output, {site: activation}).

    Args:
      model, params, inputs: a Flax module, its parameters, and what it is called with, tokens also as a `Batch`.
      set: {site: an array of its shape, a function of it, or a `Part`}. A name may have `*`, or be that of a head,
        "decoder.3.head.5", whose activation is [B, T, V].
      sites: the sites whose activations are returned, as they are after what is set; with `*` and heads, too.

    XLA does not fuse across a site that is set, so that a call that sets nothing may round differently. To compare to
    the bit, set the same sites in both calls, as `Part(value, where=False)` in one.

    Raises:
      InputError: for a site that this call does not pass, and for heads, positions and shapes that do not fit it.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> params = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    >>> _, seen = run(model, params, tokens, set={"decoder.0.head.1": jnp.zeros_like}, sites="decoder.0.head_output")
    >>> jnp.abs(seen["decoder.0.head_output"]).max(axis=(0, 1, 3)).round(1).tolist()[1]
    0.0
    """
    return run_intercepted(None, model, params, inputs, set or {}, sites)


def run_intercepted(
    interceptor: Callable | None, model: nn.Module, params, inputs: tuple, replacements: Mapping, sites=()
):
    """`run` with the methods of the model's modules as a Linen `interceptor` changes them."""
    inputs, lengths = split_lengths(as_arrays(inputs), model)
    all_sites = find_sites(model, params, inputs)
    names = expand_names(all_sites, sites)
    traced_sites = tuple(all_sites[split_head(name)[0]] for name in names)
    edits = edit_variables(all_sites, replacements, lengths)
    output, activations = _apply_with_edits(model, interceptor, traced_sites, params, edits, inputs)
    return output, {name: select_head(name, x) for name, x in zip(names, activations, strict=True)}


@partial(jax.jit, static_argnums=(0, 1, 2))
def _apply_with_edits(model, interceptor, sites: tuple[Site, ...], params, edits, inputs):
    """The output of a call with these edits, and the activations of `sites`."""
    variables = {"params": params} | ({SET: edits} if edits else {})
    with nullcontext() if interceptor is None else nn.intercept_methods(interceptor):
        output, state = model.apply(variables, *inputs, mutable=[TRACE] if sites else [])
    return output[0] if isinstance(output, tuple) else output, [_site_value(state[TRACE], site) for site in sites]


@partial(jax.jit, static_argnums=(0, 1))
def _activations(model, sites: tuple[Site, ...], params, inputs):
    """The activations of `sites` alone, so that the compiler removes what only the output needs."""
    return _apply_with_edits(model, None, sites, params, {}, inputs)[1]


def _site_value(tree, site: Site):
    for key in site.path:
        tree = tree[key]
    return tree if site.layer is None else tree[site.layer]


def trace(model: nn.Module, params, *inputs, sites: str | Iterable[str] = "*") -> dict[str, Array]:
    """The activations {site: array} of a call of a model.

    Nothing behind the last of the sites is computed: no later layers, and no logits unless they are a site.

    Args:
      model, params, inputs, sites: as in `run`; all sites by default.

    Raises:
      InputError: for a site that this call does not pass.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.ones((1, 5), jnp.int32)
    >>> shapes = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> read = lambda params: trace(model, params, tokens, sites="*.weights")
    >>> jax.eval_shape(read, shapes)["decoder.0.weights"].shape
    (1, 2, 5, 5)
    """
    inputs, _ = split_lengths(as_arrays(inputs))
    all_sites = find_sites(model, params, inputs)
    names = expand_names(all_sites, sites)
    site_names = [split_head(name)[0] for name in names]
    prefix, prefix_params = model_prefix(model, params, all_sites, site_names)
    activations = _activations(prefix, tuple(all_sites[name] for name in site_names), prefix_params, inputs)
    return {name: select_head(name, x) for name, x in zip(names, activations, strict=True)}


def patch(
    source: Mapping[str, Array],
    sites: str | Iterable[str] = "*",
    *,
    heads: Indices = None,
    positions: Indices = None,
    rows: Indices = None,
) -> dict[str, Part]:
    """What `run` sets to patch in activations of another input: {site: `Part`}.

    Args:
      source: {site: array}, of `trace`, in the shapes of the call that it is patched into: texts of one length. Whether
        it comes from the same model is not checked.
      sites: those to patch, by default all of the source; with `*` and heads.
      heads, positions, rows: patch only these; negative ones are counted from the end.

    >>> list(patch({"decoder.0.mlp_output": jnp.ones((1, 3, 8))}, positions=-1))
    ['decoder.0.mlp_output']
    """
    template = Part(heads=heads, positions=positions, rows=rows)
    _check_source(source)
    value = lambda name: source[name] if name in source else select_head(name, source[split_head(name)[0]])
    return {name: replace(template, value=value(name)) for name in expand_names(source, sites)}


def ablate(
    sites: str | Iterable[str],
    how: Literal["zero", "mean", "resample"] = "zero",
    *,
    source: Mapping[str, Array] | None = None,
    mask: Bool[Array, "B T"] | None = None,
    rng: Key[Array, ""] | None = None,
    heads: Indices = None,
    positions: Indices = None,
    rows: Indices = None,
) -> dict[str, Part]:
    """What `run` sets to ablate sites: to zeros, to a mean, or to the activations of other rows.

    Args:
      sites: those to ablate; with `*` and heads.
      how: "zero"; "mean", of `source` over rows and positions; "resample", the rows of `source` permuted by `rng`.
      source: {site: array}, of `trace`.
      mask: the positions that a mean is of, such as `Batch.mask`, the tokens of a padded batch.
      rng: permutes the rows.
      heads, positions, rows: ablate only these.

    Raises:
      InputError: for arguments that this kind of ablation does not take.

    >>> ablate("decoder.3.head.5")["decoder.3.head.5"].value.tolist()
    0.0
    >>> ablate("a.mlp_output", "mean", source={"a.mlp_output": jnp.arange(4.0).reshape(1, 4, 1)})["a.mlp_output"].value
    Array([[[1.5]]], dtype=float32)
    """
    needs = {"zero": [], "mean": ["source"], "resample": ["source", "rng"]}
    if how not in needs:
        raise InputError(f"ablate takes one of {', '.join(needs)}, got {how!r}")
    if [name for name, x in {"source": source, "rng": rng}.items() if x is not None] != needs[how]:
        raise InputError(f"ablate {how!r} takes {' and '.join(needs[how]) or 'neither source nor rng'}")
    if mask is not None and how != "mean":
        raise InputError(f"a mask says which activations a mean is of: ablate {how!r} takes none")
    if how == "zero":
        return dict.fromkeys(as_name_list(sites), Part(jnp.zeros(()), heads=heads, positions=positions, rows=rows))
    _check_source(source)
    names = select_sites(source, [split_head(name)[0] for name in as_name_list(sites)])
    if how == "mean":
        values = {name: _mean(name, source[name], mask) for name in names}
    else:
        check_rng(rng)
        if alone := [name for name in names if source[name].shape[0] < 2]:
            raise InputError(f"ablate 'resample' takes other rows, and the source has only one of {alone[0]}")
        values = {name: jax.random.permutation(rng, source[name]) for name in names}
    return patch(values, sites, heads=heads, positions=positions, rows=rows)


def _mean(name: str, x, mask):
    axis = positions_axis(name, x.ndim)
    if mask is None or axis is None:
        return x.mean(axis=0 if axis is None else (0, axis), keepdims=True)
    if mask.shape != (x.shape[0], x.shape[axis]):
        raise InputError(f"the mask of {name} is [B, T] = {[x.shape[0], x.shape[axis]]}, got {list(mask.shape)}")
    where = mask.reshape([size if i in (0, axis) else 1 for i, size in enumerate(x.shape)])
    return x.mean(axis=(0, axis), keepdims=True, where=where)


def _check_source(source):
    if not isinstance(source, Mapping):
        raise InputError(f"activations are {{site: array}}, as trace returns them, got a {type(source).__name__}")


def path_patch(
    model: nn.Module,
    params,
    inputs: tuple,
    source: tuple,
    sender: str | Iterable[str],
    receivers: str | Iterable[str] = "logits",
    *,
    freeze: str | Iterable[str] = ("*head_output", "*mlp_output"),
) -> Any:
    """Path patching: the output for `inputs` if the direct paths from `sender` to `receivers` carry those of `source`.

    Two calls (Wang et al. 2022, section 3.1). In the first the sender has its activation for `source` and everything in
    `freeze` its activation for `inputs`, so that only direct paths change the receivers. In the second the receivers
    have these values, and nothing is frozen.

    Args:
      model, params: as `run` takes them.
      inputs, source: what the model is called with, tuples of arrays of the same shapes, such as `(tokens,)`.
      sender: the site, or sites, whose activations come from `source`; with `*` and heads, as in `run`.
      receivers: the sites that the paths lead to.
      freeze: the sites that carry nothing on, by default all heads and MLPs. The sub-layers that the sender and each
        receiver are inside of are not frozen: "decoder.0.key" acts through the head_output of its layer.

    Raises:
      InputError: outside of `jax.jit`, if no value of the sender would change a receiver: no path leads to it, or it is
        computed before the sender.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.jit(model.init)(jax.random.key(0), tokens)["params"]
    >>> path_patch(model, params, (tokens,), (tokens[:, ::-1],), "decoder.0.head.1").shape
    (1, 3, 11)
    """
    all_sites = find_sites(model, params, as_arrays(inputs))
    senders, receivers, freeze = (expand_names(all_sites, names) for names in (sender, receivers, freeze))
    activations = trace(model, params, *inputs, sites=[*freeze, *senders])
    source_activations = trace(model, params, *source, sites=senders)
    frozen = patch({name: activations[name] for name in freeze}) if freeze else {}
    receive = partial(_receiver_activations, model, params, inputs, frozen, receivers)
    received = receive(source_activations)
    if not any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((received, activations))):
        unchanged = receive({name: activations[name] for name in senders})
        noisy = {name: _noisy(activations[name]) for name in senders}
        if not _differs(received, unchanged) and not _differs(receive(noisy), unchanged):
            raise InputError(
                f"no path leads from {', '.join(senders[:3])} to {', '.join(receivers[:3])} with "
                f"{', '.join(freeze[:3]) or 'nothing'}{', ...' * (len(freeze) > 3)} frozen: the receivers do not "
                "depend on the sender; choose receivers behind the sender, or freeze less"
            )
    return run(model, params, *inputs, set=patch(received))[0]


def _receiver_activations(model, params, inputs, frozen: Mapping[str, Part], receivers, sent: Mapping[str, Array]):
    """{receiver: its activation where the senders have the values `sent`}, all other sub-layers being `frozen`."""
    is_behind = lambda name, site: sub_layer(name)[0] == sub_layer(site)[0] and sub_layer(name)[1] > sub_layer(site)[1]
    through = {}  # {a frozen site that senders act through: the sub-layer}
    for name in frozen:
        if name not in sent and any(is_behind(name, site) for site in sent):
            through[name] = sub_layer(name)[0]
    edits = dict(frozen)
    for sub_layer_name in dict.fromkeys(through.values()):
        inside = {name: x for name, x in sent.items() if sub_layer(name)[0] == sub_layer_name}
        names = [name for name in through if through[name] == sub_layer_name]
        other_edits = {name: edit for name, edit in frozen.items() if name not in names}
        edits |= patch(run(model, params, *inputs, set=other_edits | patch(inside), sites=names)[1])

    groups: dict[tuple, list[str]] = {}  # {frozen sites that a receiver is or is behind of: the receivers}
    for receiver in receivers:
        thawed = [name for name in frozen if sub_layer(name) == sub_layer(receiver) or is_behind(receiver, name)]
        groups.setdefault(tuple(thawed), []).append(receiver)
    received = {}
    for thawed, names in groups.items():
        frozen_edits = {name: edit for name, edit in edits.items() if name not in thawed}
        received |= run(model, params, *inputs, set=frozen_edits | patch(sent), sites=names)[1]
    return {name: received[name] for name in receivers}


def _differs(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return any(bool(jnp.any(a[name] != b[name])) for name in a)


def _noisy(x):
    """Other numbers of the size of x, with which whatever depends on it changes."""
    size = 1 + jnp.max(jnp.abs(jnp.where(jnp.isfinite(x), x, 0)))
    return x + (size * jax.random.normal(jax.random.key(0), x.shape)).astype(x.dtype)


def apply_measure(measure: Callable, output) -> Array:
    """`measure` of an output. Raises InputError unless it is an array."""
    if not callable(measure):
        raise InputError(f"measure is a function of the output, got a {type(measure).__name__}")
    try:
        value = measure(output)
    except jax.errors.JAXTypeError as error:
        raise InputError("measure is a part of a compiled program: use jax.numpy in it, no float or numpy") from error
    except Exception as error:
        error.add_note(f"raised by the measure, a function of an output of {jax.tree.map(jnp.shape, output)}")
        raise
    if not isinstance(value, jax.Array):
        raise InputError(f"measure is a function of the output to an array, got one to a {type(value).__name__}")
    return value
