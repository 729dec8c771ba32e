"""Initial values that replace those of a model, whatever it is: by the options `init_range` and `init_linear`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from attention_jax.config import Train


def with_ranges(init: Callable, train: Train) -> Callable:
    """The function `init(rng) -> params` with the initial values that `train` sets; `init` itself by default.

    >>> uniform = with_ranges(lambda rng: {"kernel": jnp.zeros((9, 9)), "bias": jnp.zeros(9)}, Train(init_range=0.1))
    >>> params = uniform(jax.random.key(0))
    >>> bool(0.09 < abs(params["kernel"]).max() <= 0.1), float(abs(params["bias"]).max())
    (True, 0.0)
    """
    if not train.init_range and train.init_linear == "model":
        return init

    def sample(rng):
        rng, own = jax.random.split(rng)
        params = init(rng)
        flat, tree = jax.tree_util.tree_flatten_with_path(params)
        inputs = {path[:-1]: leaf.shape[0] for path, leaf in flat if _name(path) == "kernel"}
        inputs |= {path: leaf.shape[0] for path, leaf in flat if _of_a_score(path)}
        keys = jax.random.split(own, len(flat))
        leaves = []
        for key, (path, leaf) in zip(keys, flat, strict=True):
            bound = _bound(path, leaf, inputs, train)
            leaves.append(leaf if bound is None else jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound))
        return jax.tree.unflatten(tree, leaves)

    return sample


def _name(path) -> str:
    return str(getattr(path[-1], "key", "")) if path else ""


def _of_a_score(path) -> bool:
    """Is it a linear map of a score? Scales and widths, as of a cosine, are none."""
    return _name(path[:-1]) == "score" and (_name(path).endswith("kernel") or _name(path) == "vector")


def _bound(path, leaf: jax.Array, inputs: dict[tuple, int], train: Train) -> float | None:
    """The r of the distribution U(-r, r) of a parameter, or None; `inputs` are those of each linear map, by path."""
    if train.init_linear == "all" and path in inputs:
        return inputs[path] ** -0.5
    linear = path[:-1] in inputs and _name(path) in ("bias", *["kernel"] * (train.init_linear == "all"))
    if linear and train.init_linear != "model":
        return inputs[path[:-1]] ** -0.5
    return train.init_range if train.init_range and jnp.ndim(leaf) > 1 else None
