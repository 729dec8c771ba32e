"""Lenses, which read a layer as if it were the last one, and attributions, which divide an output among its causes.

A `measure` is a function of the output of a model, such as the difference of two logits, to one number. Forward-mode
derivatives are transposed reverse ones, since the layers define these by hand.
"""

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.errors import InputError
from attention_jax.interpret.edits import Part, as_count
from attention_jax.interpret.intervene import apply_measure, run, run_intercepted, trace
from attention_jax.interpret.sites import as_arrays, find_sites
from attention_jax.models.norms import LayerNorm, RMSNorm
from attention_jax.models.text_classifier import AttentionPool
from attention_jax.ops.precision import accumulator

Measure = Callable[[Array], Float[Array, ""]]


def identity(output):
    """What a lens returns of an output by default."""
    return output


def measure_number(measure: Measure, output) -> Float[Array, ""]:
    """`measure` of the output. Raises InputError if it is not one number."""
    value = apply_measure(measure, output)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise InputError(f"measure is a function of the output to one number, got {value.dtype} {list(value.shape)}")
    return value


def logit_lens(model: nn.Module, params, *inputs, measure: Callable[[Array], Array] = identity) -> dict[str, Array]:
    """The logit lens (nostalgebraist 2020): the output of a model whose layers end after each one, {site: output}.

    Sites are the embeddings and residual_out of every layer of the last stack; after the last layer it is the output of
    the model. With a `measure` of the output, such as the argmax, the outputs of all layers are not in memory together.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> words = jax.eval_shape(lambda params: logit_lens(model, params, tokens, measure=lambda x: x.argmax(-1)), params)
    >>> {site: x.shape for site, x in words.items()}
    {'decoder.0.residual_out': (1, 3), 'decoder.embedding': (1, 3)}
    """
    return _lens(model, params, inputs, False, measure)


def jacobian_lens(model: nn.Module, params, *inputs, measure: Callable[[Array], Array] = identity) -> dict[str, Array]:
    """The Jacobian lens: the output for J x in place of the last residual stream, {site: output}.

    x is the residual stream after a layer, and J the derivative of the last one by it for these inputs, all positions
    together. Sites and `measure` are those of `logit_lens`.

    This is the lens of Gurnee et al. 2026 ("Verbalizable Representations Form a Global Workspace in Language Models")
    with the Jacobian of the input itself in place of its mean over a corpus.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> outputs = jax.eval_shape(lambda params: jacobian_lens(model, params, tokens), params)
    >>> {site: x.shape for site, x in outputs.items()}
    {'decoder.0.residual_out': (1, 3, 11), 'decoder.embedding': (1, 3, 11)}
    """
    return _lens(model, params, inputs, True, measure)


def _lens(model, params, inputs, transported: bool, measure) -> dict[str, Array]:
    names, stack = _residual_sites(model, params, inputs)
    return dict(zip(names, _read_lens(model, tuple(names), stack, transported, measure, params, inputs), strict=True))


def _residual_sites(model, params, inputs) -> tuple[list[str], str]:
    """The sites that lenses read, and the stack that they are of."""
    sites = find_sites(model, params, as_arrays(inputs))
    stack = next((name for name in ("decoder", "encoder") if f"{name}.0.residual_out" in sites), None)
    if stack is None:
        raise InputError(f"a lens needs a residual stream, which {type(model).__name__} does not have")
    layers = [name for name in sites if name.startswith(f"{stack}.") and name.endswith(".residual_out")]
    return [f"{stack}.embedding", *(name for name in layers if name != f"{stack}.residual_out")], stack


@partial(jax.jit, static_argnums=(0, 1, 2, 3, 4))
def _read_lens(model, names, stack, transported: bool, measure, params, inputs):
    """`measure` of the outputs of a lens for all sites, [sites, ...]."""
    end = f"{stack}.residual_out"
    read = lambda x: apply_measure(measure, run(model, params, *inputs, set={end: x})[0])
    activations = trace(model, params, *inputs, sites=(*names, end))
    num_positions = activations[end].shape[1]  # the last layer may compute fewer

    def read_site(pair):
        x, flags = pair
        if not transported:
            return read(x[:, :num_positions])

        def last_residual(x):
            fitted = {name: x[:, : activations[name].shape[1]] for name in names}
            edits = {name: Part(fitted[name], where=flag) for name, flag in zip(names, flags, strict=True)}
            return run(model, params, *inputs, set=edits, sites=end)[1][end]

        return read(directional_derivative(last_residual, x, x))

    longest = max(activations[name].shape[1] for name in names)
    pad = lambda x: jnp.pad(x, ((0, 0), (0, longest - x.shape[1]), (0, 0)))
    return jax.lax.map(
        read_site, (jnp.stack([pad(activations[name]) for name in names]), jnp.eye(len(names), dtype=bool))
    )


def directional_derivative(function: Callable, x: Array, direction: Array) -> Array:
    """The derivative of `function` at x in a direction, from its reverse-mode one.

    >>> directional_derivative(lambda x: x**2 * x[::-1], jnp.array([3.0, 1.0]), jnp.array([2.0, 0.0])).tolist()
    [12.0, 2.0]
    """
    out, back = jax.vjp(function, x)
    return jax.linear_transpose(lambda bar: back(bar)[0], out)(direction)[0]


def gradient_times_activation(
    model: nn.Module, params, *inputs, measure: Measure, sites: str | Iterable[str] = "*weights"
) -> dict[str, Array]:
    """Each activation of `sites` times the gradient of `measure` by it, {site: array of its shape}.

    To first order it is what setting the activation to zero takes away; of the attention weights, it is their
    gradient-based relevance.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> measure = lambda logits: logits[0, -1, 5]  # of token 5 after the last one
    >>> parts = jax.eval_shape(lambda params: gradient_times_activation(model, params, tokens, measure=measure), params)
    >>> {site: x.shape for site, x in parts.items()}
    {'decoder.0.weights': (1, 2, 3, 3)}
    """
    activations = trace(model, params, *inputs, sites=sites)
    gradients = _gradients(model, measure, params, inputs, jax.tree.map(jnp.zeros_like, activations))
    return {
        name: jnp.where(gradients[name] == 0, 0, activations[name] * gradients[name]) for name in activations
    }  # not -inf * 0


@partial(jax.jit, static_argnums=(0, 1))
def _gradients(model, measure, params, inputs, zeros):
    additions = lambda offsets: {name: Part(x, adds=True) for name, x in offsets.items()}
    return jax.grad(lambda offsets: measure_number(measure, run(model, params, *inputs, set=additions(offsets))[0]))(
        zeros
    )


NODES = 8
"""Of the Gauss-Legendre rule of an interval of the line from a baseline."""
REFINEMENT = 16
"""How many times as many gradients as `steps` integrated gradients take at most."""


def integrated_gradients(
    model: nn.Module,
    params,
    *inputs,
    measure: Measure,
    baseline: Mapping[str, Array] | None = None,
    steps: int = 128,
    return_residual: bool = False,
) -> dict[str, Float[Array, "B T"]] | tuple[dict[str, Float[Array, "B T"]], Float[Array, ""]]:
    """Integrated gradients of the token embeddings (Sundararajan et al. 2017, eq. 1): {site: [B, T]}.

    The part of each token in measure(output) - measure(output for the `baseline`), whose embeddings are zeros by
    default; the parts sum to this difference.

    Near zeros a norm turns the whole output within a thousandth of the line, and a stack of them sooner, so the steps
    are dense near the baseline: Gauss-Legendre rules of `NODES` points on intervals that grow from it by a constant
    factor. Intervals whose parts do not sum to the change of the measure are halved, up to `REFINEMENT` times as many
    gradients as `steps`. Under `jax.jit` none is halved.

    With `return_residual` the result is (parts, their sum minus the difference), and no residual is an error.

    Raises InputError if the parts do not sum to the difference, up to 1e-4 of their sizes and the rounding of the
    model's type, which is known outside of `jax.jit`.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> measure = lambda logits: logits[0, -1, 5]  # of token 5 after the last one
    >>> parts = jax.eval_shape(lambda params: integrated_gradients(model, params, tokens, measure=measure), params)
    >>> {site: x.shape for site, x in parts.items()}
    {'decoder.embedding': (1, 3)}
    """
    steps = as_count(steps, 1, "integrated gradients need at least one step, an integer")
    ends = trace(model, params, *inputs, sites="*.embedding")
    starts = {name: jnp.zeros_like(x) for name, x in ends.items()} | as_arrays(dict(baseline or {}))
    if {name: x.shape for name, x in starts.items()} != {name: x.shape for name, x in ends.items()}:
        raise InputError(f"the baseline needs the sites and shapes {[(n, x.shape) for n, x in ends.items()]}")
    spans = _initial_spans(-(-steps // NODES))
    evaluate = partial(_integrals, model, measure, params, inputs, starts, ends)
    span_shares, values = evaluate(spans)
    if not isinstance(values, jax.core.Tracer):
        span_shares, values = _refine_spans(
            evaluate, spans, span_shares, values, _epsilon(ends), _relative_tolerance(ends)
        )
    shares = {name: x.sum(0) for name, x in span_shares.items()}
    change = values[-1, 1] - values[0, 0]  # intervals are in the order of the line
    residual = sum(x.sum() for x in shares.values()) - change
    if return_residual:
        return shares, residual
    tolerance = (
        _relative_tolerance(ends) * sum(jnp.abs(x).sum() for x in shares.values())
        + _epsilon(ends) * jnp.abs(values).max()
    )
    if not isinstance(residual, jax.core.Tracer) and not abs(residual) <= tolerance:
        raise InputError(
            f"the parts sum to {residual + change:.4g}, the measure changes by {change:.4g}: a residual of "
            f"{residual:.2g} with {NODES * len(values)} gradients. Take more steps, the `trace` of another input as "
            "the baseline, or a measure that has a gradient"
        )
    return shares


def _initial_spans(count: int) -> np.ndarray:
    """Intervals of the line from 0 to 1, [count, 2], the first of which is at most 1e-6 long if they are 11 or more."""
    edges = np.concatenate([[0.0], np.geomspace(max(4.0 ** (1 - count), 1e-6), 1, count)])
    return np.stack([edges[:-1], edges[1:]], axis=1)


def _epsilon(activations) -> float:
    return max(float(jnp.finfo(x.dtype).eps) for x in activations.values())


def _relative_tolerance(activations) -> float:
    """How far apart a sum of integrals and what it explains may be, as a share of the sizes of the integrals."""
    return max(1e-4, _epsilon(activations) ** 0.6)


@partial(jax.jit, static_argnums=(0, 1))
def _integrals(model, measure, params, inputs, starts, ends, spans):
    """{site: the parts of tokens on each interval [S, B, T]}, and the measure at its ends [S, 2]."""
    value = lambda x: measure_number(measure, run(model, params, *inputs, set=x)[0])
    wide = lambda x: x.astype(accumulator(x.dtype))
    point = lambda share: jax.tree.map(
        lambda a, b: (wide(a) + share.astype(wide(a).dtype) * (wide(b) - wide(a))).astype(b.dtype), starts, ends
    )
    nodes, weights = (jnp.asarray(x / 2) for x in np.polynomial.legendre.leggauss(NODES))

    def integral(span):
        places = span[0] + (span[1] - span[0]) * (0.5 + nodes)
        slopes = jax.lax.map(lambda share: jax.tree.map(wide, jax.grad(value)(point(share))), places)
        mean = jax.tree.map(lambda x: jnp.tensordot(weights.astype(x.dtype), x, 1), slopes)
        difference = lambda name: wide(ends[name]) - wide(starts[name])
        return {name: (difference(name) * x).sum(-1) * (span[1] - span[0]).astype(x.dtype) for name, x in mean.items()}

    span_shares, values = jax.lax.map(
        lambda span: (integral(span), jax.lax.map(lambda at: value(point(at)), span)), spans
    )
    return span_shares, wide(values)


def _refine_spans(evaluate, spans, span_shares, values, epsilon: float, share: float):
    """Halve the intervals whose shares do not sum to the change of the value, until there are `REFINEMENT` times as
    many: (shares [S, ...], values [S, 2]). Each call evaluates as many intervals as there were at first."""
    batch_size, max_spans = max(len(spans), 2), REFINEMENT * len(spans)
    span_shares, values = jax.tree.map(np.asarray, (span_shares, values))
    while len(spans) + batch_size <= max_spans:
        gaps = np.abs(sum(x.sum((1, 2)) for x in span_shares.values()) - (values[:, 1] - values[:, 0]))
        size = sum(np.abs(x.sum(0)).sum() for x in span_shares.values())
        if not np.isfinite(gaps).all() or gaps.sum() <= share / 2 * size + epsilon * np.abs(values).sum():
            break
        worst, remaining = np.split(np.argsort(-gaps, kind="stable"), [batch_size // 2])
        middle = spans[worst].mean(axis=1)
        halves = np.stack([spans[worst, 0], middle, middle, spans[worst, 1]], axis=1).reshape(-1, 2)
        new = evaluate(np.concatenate([halves, np.zeros((batch_size - len(halves), 2))]))
        old = jax.tree.map(operator.itemgetter(remaining), (spans, span_shares, values))
        new = jax.tree.map(operator.itemgetter(slice(len(halves))), (halves, *new))
        spans, span_shares, values = jax.tree.map(lambda *rows: np.concatenate(rows), old, new)
    return jax.tree.map(operator.itemgetter(np.argsort(spans[:, 0])), (span_shares, values))


def direct_attribution(
    model: nn.Module, params, *inputs, measure: Measure, return_residual: bool = False
) -> dict[str, Array] | tuple[dict[str, Array], Float[Array, ""]]:
    """Direct logit attribution: what each component of the last stack writes directly to a linear function of logits.

    {site: []} of the embeddings and the MLPs and {site: [H]} of the heads, which with "biases" sum to `measure`. Direct
    is what a component writes to the residual stream that the output layer reads, with the normalizations and the gates
    behind it held constant.

    With `return_residual` the result is (parts, their sum minus `measure`), and no residual is an error.

    Raises InputError if they do not sum to it, which is known outside of `jax.jit`.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = model.init(jax.random.key(0), tokens)["params"]
    >>> measure = lambda logits: logits[0, -1, 5]  # of token 5 after the last one
    >>> parts = direct_attribution(model, params, tokens, measure=measure)
    >>> bool(abs(sum(x.sum() for x in parts.values()) - measure(model.apply({"params": params}, tokens)[0])) < 1e-5)
    True
    """
    names, stack = _residual_sites(model, params, inputs)
    sites = find_sites(model, params, as_arrays(inputs))
    components = [
        name for name in sites if name.startswith(f"{stack}.") and name.endswith(("head_output", "mlp_output"))
    ]
    shares, residual = _attribute_measure(model, params, inputs, measure, [], [names[0], *components], return_residual)
    shares = {name: x if name == "biases" else x.sum((0, 1)) for name, x in shares.items()}
    return (shares, residual) if return_residual else shares


def detached_attribution(
    model: nn.Module, params, *inputs, measure: Measure, return_residual: bool = False
) -> dict[str, Array] | tuple[dict[str, Array], Float[Array, ""]]:
    """The part of each token's embedding in a linear function of logits, with weights, norms and gates held constant.

    {site: [B, T]}, which with "biases" sum to `measure`: the logits are then a linear function of embeddings and
    biases, whose matrix is the detached Jacobian (Golden 2025, arXiv 2505.24293).

    With `return_residual` the result is (parts, their sum minus `measure`), and no residual is an error.

    Raises InputError if they do not sum to it, which is known outside of `jax.jit`.

    >>> from attention_jax import config, models
    >>> options = config.LanguageModelConfig(num_layers=1, hidden_size=8, mlp_dim=16, num_heads=2)
    >>> model, tokens = models.LanguageModel(options, vocab=11), jnp.array([[1, 2, 3]])
    >>> params = jax.eval_shape(model.init, jax.random.key(0), tokens)["params"]
    >>> measure = lambda logits: logits[0, -1, 5]  # of token 5 after the last one
    >>> parts = jax.eval_shape(lambda params: detached_attribution(model, params, tokens, measure=measure), params)
    >>> {site: x.shape for site, x in parts.items()}
    {'biases': (), 'decoder.embedding': (1, 3)}
    """
    weight_sites = [name for name in find_sites(model, params, as_arrays(inputs)) if name.endswith("weights")]
    shares, residual = _attribute_measure(model, params, inputs, measure, weight_sites, "*.embedding", return_residual)
    return (shares, residual) if return_residual else shares


def _attribute_measure(
    model, params, inputs, measure, constant_sites, sites, may_remain: bool
) -> tuple[dict[str, Array], Array]:
    """{site: the parts in `measure`, summed over the features of a token or a head}, and "biases"; and their sum minus
    the measure, an error if it is known unless it `may_remain`."""
    values = trace(model, params, *inputs, sites=sites)
    shares, total, value, rounding = _linear_shares(model, measure, tuple(constant_sites), params, inputs, values)
    if not may_remain and not isinstance(total, jax.core.Tracer) and not abs(total - value) <= rounding:
        raise InputError(
            f"the parts sum to {total:.4g}, the measure is {value:.4g}: use a measure that is linear in the logits, "
            f"and a {type(model).__name__} without a cap, a tanh or a custom norm before them, or integrated_gradients"
        )
    return {name: shares[name] for name in (*values, "biases")}, total - value


@partial(jax.jit, static_argnums=(0, 1, 2))
def _linear_shares(model, measure, constant_sites, params, inputs, values):
    """The activations `values` times the gradient of `measure` by them, summed over the last axis, and the same of all
    "biases", with normalizations, gates and `constant_sites` held constant; their total; the measure; and how far these
    two may differ by rounding."""
    flat, structure = jax.tree_util.tree_flatten_with_path(params)
    is_bias = [path[-1].key == "bias" for path, _ in flat]
    biases = [x for (_, x), bias in zip(flat, is_bias, strict=True) if bias]

    def linear(values, biases):
        bias_iterator = iter(biases)
        leaves = [next(bias_iterator) if bias else x for (_, x), bias in zip(flat, is_bias, strict=True)]
        edits = dict.fromkeys(constant_sites, jax.lax.stop_gradient) | values
        return measure_number(
            measure, run_intercepted(_hold_scales, model, jax.tree.unflatten(structure, leaves), inputs, edits)[0]
        )

    value, slopes = jax.value_and_grad(linear, (0, 1))(values, biases)
    multiply = lambda x, slope: x.astype(value.dtype) * slope.astype(value.dtype)
    products, biases = jax.tree.map(multiply, (values, biases), slopes)
    shares = {name: x.sum(-1) for name, x in products.items()}
    shares["biases"] = sum((x.sum() for x in biases), jnp.zeros((), value.dtype))
    total, size = (sum(function(x).sum() for x in shares.values()) for function in (jnp.asarray, jnp.abs))
    epsilon = max(float(jnp.finfo(x.dtype).eps) for x in values.values())
    return shares, total, value, epsilon**0.7 * size  # 30 layers in float32 need a tenth of that


def _hold_scales(method, args, kwargs, context):
    """An interceptor of Linen's calls that holds the scales of normalizations and the gates of layers constant."""
    module, x = context.module, args[0] if args else None
    if context.method_name == "activate":  # x f(x) / x
        return x * jax.lax.stop_gradient(jnp.where(x == 0, 0, method(x) / jnp.where(x == 0, 1, x)))
    if context.method_name != "__call__":
        return method(*args, **kwargs)
    if isinstance(module, LayerNorm | RMSNorm):
        return _hold_norm(module, x)
    if isinstance(module, AttentionPool):
        weights = jax.lax.stop_gradient(method(*args[:2], return_weights=True)[1])
        return jnp.einsum("bt,btd->bd", weights.astype(x.dtype), x), weights
    output = method(*args, **kwargs)
    return jax.lax.stop_gradient(output) if module.name == "gate" else output


def _hold_norm(module: LayerNorm | RMSNorm, x):
    exact = x.astype(accumulator(x.dtype))
    if isinstance(module, LayerNorm):
        exact = exact - exact.mean(axis=-1, keepdims=True)
    scale = jax.lax.rsqrt(jnp.square(exact).mean(axis=-1, keepdims=True) + module.epsilon)
    parameter = lambda name: module.get_variable("params", name).reshape((1,) * (x.ndim - 1) + (-1,))
    y = exact * jax.lax.stop_gradient(scale) * parameter("scale")
    return (y + parameter("bias") if isinstance(module, LayerNorm) else y).astype(x.dtype)
