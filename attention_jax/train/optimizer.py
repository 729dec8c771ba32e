"""Learning-rate schedules and optimizers, from the options of `config.Optim`.

Every number may also be a traced scalar, so that a sweep trains a population with one compiled program. For a Python
zero the transformation is left out; for a traced scalar it is always present, and zero has the same effect.
"""

import inspect
import re

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

from attention_jax.config import import_object
from attention_jax.config.fields import parse_pattern
from attention_jax.errors import InputError
from attention_jax.ops.dropout import is_zero


def schedule(optim, total_steps: int):
    """Return the learning rate as a function of the step, counted from 0.

    All three warm up linearly over `warmup_steps` and peak at `learning_rate`:
    constant; warmup_cosine, falling to 0 at `total_steps` (Loshchilov & Hutter 2017, eq. 5);
    inverse_sqrt, the inverse square root ("Noam") schedule, lr sqrt(warmup / step) (Vaswani et al. 2017, eq. 3, with
    the peak given instead of the width).
    "package.file:name" is called with the same arguments.

    >>> from attention_jax.config import Optim
    >>> rate = schedule(Optim(learning_rate=1.0, schedule="inverse_sqrt", warmup_steps=4), 100)
    >>> [round(float(rate(step)), 3) for step in (0, 1, 3, 15)]
    [0.25, 0.5, 1.0, 0.5]
    """
    if ":" in optim.schedule:
        return import_object(optim.schedule)(optim, total_steps)

    def rate(step):
        step = jnp.asarray(step, jnp.float32) + 1.0
        warmup = jnp.maximum(jnp.asarray(optim.warmup_steps, jnp.float32), 1.0)
        rising = jnp.minimum(step / warmup, 1.0)
        if optim.schedule == "warmup_cosine":
            progress = jnp.clip((step - warmup) / jnp.maximum(total_steps - warmup, 1.0), 0.0, 1.0)
            rising = jnp.where(step < warmup, rising, 0.5 * (1.0 + jnp.cos(jnp.pi * progress)))
        elif optim.schedule == "inverse_sqrt":
            rising = jnp.minimum(rising, jnp.sqrt(warmup / step))
        return jnp.asarray(optim.learning_rate, jnp.float32) * rising

    return rate


def optimizer(optim, total_steps: int) -> optax.GradientTransformation:
    """Clip entries, clip by global norm, precondition (`precondition`), decay weights, scale by the scheduled rate.

    A parameter that `rates` freezes is no part of this: of no norm, and without decay and moments.
    """
    clip = optim.clip_norm
    transforms = [optax.clip(optim.clip_value)] if optim.clip_value else []
    if not is_zero(clip):
        transforms.append(
            optax.clip_by_global_norm(clip if isinstance(clip, int | float) else jnp.where(clip > 0, clip, jnp.inf))
        )
    coupled = optim.name in ("sgd", "adam")  # L2 regularization: part of the gradient
    if coupled and not is_zero(optim.weight_decay):
        transforms.append(decay(optim))
    transforms += precondition(optim)
    if not coupled and not is_zero(optim.weight_decay):
        transforms.append(decay(optim))  # decoupled (Loshchilov & Hutter 2019)
    if any(parse_pattern("--optim.rates", text)[1] == 0 for text in optim.rates):
        trains = lambda tree: jax.tree.map(bool, factors_by_path("--optim.rates", optim.rates, tree))
        transforms = [optax.masked(optax.chain(optax.identity(), *transforms), trains)]
    if optim.rates:
        transforms.append(scale_by_path(optim.rates))
    return optax.chain(*transforms, optax.scale_by_learning_rate(schedule(optim, total_steps)))


def precondition(optim) -> list[optax.GradientTransformation]:
    """Return the transformations that turn a gradient into an update direction, without learning rate and weight decay.

    lion is Chen et al. 2023. muon (Jordan et al. 2024) orthogonalizes the momentum of matrices of linear maps, scaled
    to the size of Adam's updates (Liu et al. 2025, section 2.2), so that both take the same rates; other parameters get
    Adam with Nesterov momentum. adafactor is Shazeer & Stern 2018, algorithm 4, without momentum, and with the learning
    rate in place of their schedule.
    """
    first = {"mu_dtype": None if optim.moment_dtype == "float32" else optim.moment_dtype}
    momentum = [] if is_zero(optim.momentum) else [optax.trace(decay=optim.momentum)]
    match optim.name:
        case "adam" | "adamw":
            return [optax.scale_by_adam(b1=optim.b1, b2=optim.b2, eps=optim.eps, **first)]
        case "sgd":
            return momentum
        case "rmsprop":  # centered (Graves 2013, eq. 38-41)
            return [optax.scale_by_stddev(decay=optim.b2, eps=optim.eps), *momentum]
        case "lion":
            return [optax.scale_by_lion(b1=optim.b1, b2=optim.b2, **first)]
        case "muon":
            beta = 0.95 if is_zero(optim.momentum) else optim.momentum
            adam = {"adam_b1": optim.b1, "adam_b2": optim.b2, "eps": optim.eps}
            rms = {"consistent_rms": 0.2, "muon_weight_dimension_numbers": muon_dimensions}
            return [muon(-1.0, beta=beta, **adam, **rms, **first)]
        case "adafactor":
            blocks = optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()
            return [optax.scale_by_factored_rms(), *map(for_each_layer, blocks)]
        case _:
            return [custom_optimizer(optim)]


def for_each_layer(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply a stateless transformation of single parameters to each layer of a scanned stack by itself."""

    def update_layer(update, param):
        return transform.update(update, optax.EmptyState(), param)[0]

    def update(updates, state, params=None):
        apply = lambda path, u, p: (jax.vmap(update_layer) if is_stacked(path) else update_layer)(u, p)
        return jax.tree_util.tree_map_with_path(apply, updates, params), state

    return optax.GradientTransformation(transform.init, update)


def custom_optimizer(optim) -> optax.GradientTransformation:
    """Return the transformation made by the function with import path `optim.name`, called with those of b1, b2, eps
    and momentum that it takes; InputError if it does not return one."""
    result = make = import_object(optim.name)
    try:
        signature = inspect.signature(make)
        numbers = {
            name: getattr(optim, name) for name in ("b1", "b2", "eps", "momentum") if name in signature.parameters
        }
        signature.bind(**numbers)
    except (TypeError, ValueError) as error:  # not a function, or one that needs more
        result = error
    else:
        result = make(**numbers)
    if not isinstance(result, optax.GradientTransformation):
        raise InputError(
            f"--optim.name {optim.name} must be a function of nothing but b1, b2, eps and momentum that returns an "
            f"optax.GradientTransformation without learning rate, such as optax:scale_by_yogi; got {result!r}"
        )
    return result


def decay(optim) -> optax.GradientTransformation:
    """Add `weight_decay` times the parameters, or with `decayed` "kernels" times those of `kernels`; `decays` are
    factors of it by path."""
    if not optim.decays:
        return optax.add_decayed_weights(optim.weight_decay, None if optim.decayed == "all" else kernels)

    def init(params):
        factors_by_path("--optim.decays", optim.decays, params)
        return optax.EmptyState()

    def update(updates, state, params):
        defaults = None if optim.decayed == "all" else kernels(params)
        factors = factors_by_path("--optim.decays", optim.decays, params, defaults)
        return jax.tree.map(lambda u, p, f: u + f * optim.weight_decay * p, updates, params, factors), state

    return optax.GradientTransformation(init, update)


def scale_by_path(rates: tuple[str, ...]) -> optax.GradientTransformation:
    """Multiply updates by the factors of `rates` (`config.Optim`); a factor of 0 gives 0, also for NaN."""

    def init(params):
        factors_by_path("--optim.rates", rates, params)
        return optax.EmptyState()

    def update(updates, state, params=None):
        factors = factors_by_path("--optim.rates", rates, updates)
        return jax.tree.map(lambda u, f: u * f if f else jnp.zeros_like(u), updates, factors), state

    return optax.GradientTransformation(init, update)


def factors_by_path(option: str, patterns: tuple[str, ...], params, defaults=None):
    """Return the factor of each parameter by the first of `patterns` ("REGEX=FACTOR") that matches its whole path, such
    as encoder/layer_0/kernel, and by the tree `defaults` (1 if it is None) where none does.

    Raises:
      InputError: a pattern matches no parameter, or none that an earlier one leaves.

    >>> factors_by_path("--optim.rates", ("a/.*=0.1", ".*/w=2"), {"a": {"w": 1.0}, "b": {"w": 1.0, "v": 1.0}})
    {'a': {'w': 0.1}, 'b': {'v': 1.0, 'w': 2.0}}
    """
    rules = [parse_pattern(option, text) for text in patterns]
    used, paths = set(), []

    def factor(path, _, default=1.0) -> float:
        paths.append(jax.tree_util.keystr(path, simple=True, separator="/"))
        for number, (pattern, value) in enumerate(rules):
            if pattern.fullmatch(paths[-1]):
                used.add(number)
                return value
        return float(default)

    factors = jax.tree_util.tree_map_with_path(factor, *((params,) if defaults is None else (params, defaults)))
    if unused := [text for number, text in enumerate(patterns) if number not in used]:
        listed_paths = ", ".join(paths[:8]) + (", ..." if len(paths) > 8 else "")
        trained = "" if option == "--optim.rates" else " and --optim.rates does not freeze"
        raise InputError(
            f"every pattern of {option} must match the whole path of a parameter that no earlier one matches{trained}, "
            f"got {unused[0]!r}; the {len(paths)} parameters are {listed_paths}"
        )
    return factors


STACKED = re.compile(r"layers_\d+")
"""The name of weights that `models.layer_stack` stacks."""


def is_stacked(path) -> bool:
    """Whether the parameter with this path in the tree has all layers of a run as its first axis (`scan_layers`).

    >>> params = {"layer_0": {"scale": 1.0}, "layers_1": {"scale": 1.0}}
    >>> [is_stacked(path) for path, _ in jax.tree.leaves_with_path(params)]
    [False, True]
    """
    return any(STACKED.fullmatch(str(getattr(key, "key", ""))) for key in path)


NTM_KERNELS = ("controller", "heads")
"""The weight matrices of `models.ntm`, which are not named kernels."""


def kernels(params):
    """Return a tree of booleans: which parameters are weights of linear maps and convolutions.

    They are named kernel, input_kernel, readout_kernel, ...; not among them are biases, norms, token and position
    embeddings and the parameters of scores.

    >>> kernels({"layer": {"recurrent_kernel": 0.0, "bias": 0.0}, "table": 0.0, "score": {"query_kernel": 0.0}})
    {'layer': {'bias': False, 'recurrent_kernel': True}, 'score': {'query_kernel': False}, 'table': False}
    """

    def is_kernel(path, _) -> bool:
        names = [str(getattr(key, "key", "")) for key in path]
        of_a_score = any(name.startswith("score") for name in names)
        return (names[-1].endswith("kernel") or names[-1] in NTM_KERNELS) and not of_a_score

    return jax.tree_util.tree_map_with_path(is_kernel, params)


def muon_dimensions(params):
    """Return the dimensions of the matrices that muon orthogonalizes: `kernels` [in, out], and those of scanned layers
    [layers, out, in]; None for other parameters."""

    def dimensions(path, x, kernel: bool) -> MuonDimensionNumbers | None:
        if is_stacked(path):
            return MuonDimensionNumbers(2, 1) if kernel and x.ndim == 3 else None
        return MuonDimensionNumbers(0, 1) if kernel and x.ndim == 2 else None

    return jax.tree_util.tree_map_with_path(dimensions, params, kernels(params))
