"""Trials of scores, biases and masks: `attend` computes them in blocks, which is right if each entry depends on its own
query and key alone. A rule of your own is tried once on two queries and 300 keys."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import InputError
from attention_jax.ops.masks import Mask, Rule, is_broadcastable
from attention_jax.ops.trees import Closure, Constant, example_of, is_of_package, name_of, outline, trial

SHAPE = (2, 300)
TILES = [(slice(i, i + 1), keys) for i in range(2) for keys in (slice(0, 128), slice(128, 300))]


def check_tiles(score, bias, mask, query_width: int, key_width: int) -> None:
    """Raise InputError for a score, bias or mask whose blocks are not those of the whole, of other packages than this
    one. One that fails on the numbers of a trial, or needs traced values, cannot be tried and passes.
    """
    for name, rule in (("score", score), ("bias", bias), ("mask", mask)):
        if not consists_of_package(rule):
            _check_tiles(name, *outline(rule), query_width, key_width)


def consists_of_package(rule) -> bool:
    """Whether a rule and all rules in it are None, arrays, or classes and functions of this package.

    >>> consists_of_package(jax.tree_util.Partial(jnp.multiply)), consists_of_package(jnp.ones(2))
    (False, True)
    """
    if isinstance(rule, tuple | list):
        return all(map(consists_of_package, rule))
    if isinstance(rule, Constant):
        return consists_of_package(rule.value)
    if not callable(rule):
        return True
    if isinstance(rule, jax.tree_util.Partial):
        return is_of_package(rule.func) and consists_of_package([*rule.args, *rule.keywords.values()])
    if not is_of_package(rule.func if isinstance(rule, Closure) else type(rule)):
        return False
    fields = dataclasses.fields(rule) if dataclasses.is_dataclass(rule) else ()
    return all(consists_of_package(getattr(rule, field.name)) for field in fields)


@lru_cache(maxsize=16)  # of rules, which may hold arrays
def _check_tiles(name: str, structure, leaves, query_width: int, key_width: int) -> None:
    with trial():
        waves = lambda count, width: jnp.sin(jnp.arange(count * width, dtype=jnp.float32)).reshape(count, width)
        slope = jnp.linspace(0, 2, 300, dtype=jnp.float32)[:, None]  # no mean of some keys is that of all
        query, key = waves(2, query_width) + 0.5, waves(300, key_width) + slope
        query_positions, key_positions = jnp.array([149, 150], jnp.int32), jnp.arange(300, dtype=jnp.int32)
        arguments = {
            "score": lambda i, j: (query[i], key[j]),
            "bias": lambda i, j: (query[i], query_positions[i], key_positions[j]),
            "mask": lambda i, j: (query_positions[i], key_positions[j]),
        }[name]
        try:
            rule = example_of(structure, leaves)
            whole, *tiles = (rule(*arguments(*tile)) for tile in [(slice(2), slice(300)), *TILES])
        except Exception:  # on the numbers of a trial, or in any call
            return
    if not all(hasattr(x, "shape") for x in (whole, *tiles)):
        return
    if name != "mask" and (not is_broadcastable(whole.shape, SHAPE) or (name == "score" and whole.shape != SHAPE)):
        return  # an error of its own in every call
    if isinstance(rule, Mask) and (whole.dtype != jnp.bool_ or whole.shape != SHAPE):
        raise InputError(
            f"{type(rule).__name__} must return booleans [Q, K], True = may attend, got {whole.dtype} "
            f"{list(whole.shape)} for {list(SHAPE)}: compare query_positions[:, None] and key_positions[None, :]"
        )
    if not _are_tiles(whole, tiles):
        name_of_rule = name_of(rule.allowed if isinstance(rule, Rule) else rule)
        raise InputError(
            f"a {name} must depend on one query and one key in each entry [Q, K], but that of {name_of_rule} depends "
            "on others or has another shape: attend computes it in blocks; "
            'implementation="plain" computes the whole'
        )


def _are_tiles(whole, tiles) -> bool:
    expected = np.broadcast_to(np.asarray(whole, np.float64), SHAPE)
    tolerance = 1e-3 * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    for tile, (i, j) in zip(tiles, TILES):
        block = expected[i, j]
        if not is_broadcastable(tile.shape, block.shape):
            return False
        if not np.allclose(np.asarray(tile, np.float64), block, rtol=1e-2, atol=tolerance, equal_nan=True):
            return False
    return True
