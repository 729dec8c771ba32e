"""Initial values that replace those of a model, whatever it is: by the options `init_range` and `init_linear`."""

import math
from collections.abc import Callable

import jax

from attention_jax.config import Train
from attention_jax.train.optimizer import is_stacked, kernels

UNIFORM = {"biases": ("bias",), "all": ("kernel", "bias")}
"""The parameters of linear maps whose initial values `init_linear` replaces by those of PyTorch, by name."""


def with_ranges(init: Callable, train: Train) -> Callable:
    """The function `init(rng) -> params` with the initial values that `train` sets; `init` itself by default.

    >>> zeros = jax.numpy.zeros
    >>> uniform = with_ranges(lambda rng: {"kernel": zeros((9, 9)), "bias": zeros(9)}, Train(init_range=0.1))
    >>> params = uniform(jax.random.key(0))
    >>> bool(0.09 < abs(params["kernel"]).max() <= 0.1), float(abs(params["bias"]).max())
    (True, 0.0)
    """
    if not train.init_range and train.init_linear == "model":
        return init

    def sample(rng):
        rng, sample_rng = jax.random.split(rng)
        params = init(rng)
        flat, tree = jax.tree_util.tree_flatten_with_path(params)
        inputs = {path[:-1]: _inputs(path, leaf) for path, leaf in flat if _name(path) == "kernel"}
        keys, weights = jax.random.split(sample_rng, len(flat)), jax.tree.leaves(kernels(params))
        sampled = [
            _sample_leaf(key, path, leaf, weight, inputs.get(path[:-1]), train)
            for key, (path, leaf), weight in zip(keys, flat, weights, strict=True)
        ]
        return jax.tree.unflatten(tree, sampled)

    return sample


def _sample_leaf(key, path, leaf: jax.Array, weight: bool, inputs: int | None, train: Train) -> jax.Array:
    """The initial value of one parameter: sampled as `train` says, or `leaf`, the value of the model.

    `weight` says whether it is one of `kernels`; `inputs` is the number of inputs of the linear map that has this
    kernel or bias, None for other parameters.
    """
    name, linear = _name(path), train.init_linear
    uniform = lambda bound: jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
    if linear == "normal" and weight:
        deviation = _inputs(path, leaf) ** -0.5
        return deviation * jax.random.normal(key, leaf.shape, leaf.dtype)
    if linear == "all" and _of_a_score(path):
        return uniform(_inputs(path, leaf) ** -0.5)
    if inputs and name in UNIFORM.get(linear, ()):
        return uniform(inputs**-0.5)
    if train.init_range and len(_shape(path, leaf)) > 1:
        return uniform(train.init_range)
    return leaf


def _shape(path, leaf) -> tuple[int, ...]:
    """The shape of a parameter in one layer: kernels [..., in, out], which a scanned stack has as [layers, out, in]."""
    if not is_stacked(path):
        return leaf.shape
    return leaf.shape[:0:-1] if _name(path) == "kernel" else leaf.shape[1:]


def _inputs(path, leaf) -> int:
    """The number of inputs of a linear map or a convolution [K, K, in, out]."""
    shape = _shape(path, leaf)
    return math.prod(shape[:-1]) if len(shape) == 4 else shape[0]


def _name(path) -> str:
    return str(getattr(path[-1], "key", "")) if path else ""


def _of_a_score(path) -> bool:
    """Is it a linear map of a score? Scales and widths, as of a cosine, are none."""
    return _name(path[:-1]) == "score" and (_name(path).endswith("kernel") or _name(path) == "vector")
