"""Checks of scores, biases and masks: `attend` computes them in blocks, which is right if each entry depends on its own
query and key alone. A rule of your own is tried once on two queries and 300 keys."""

import dataclasses
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import InputError
from attention_jax.ops.blockwise.score_blocks import add_bias, widen_scores
from attention_jax.ops.masks import Mask, Rule, is_broadcastable
from attention_jax.ops.trees import (
    Closure,
    Constant,
    example_of,
    is_of_package,
    name_of,
    on_examples,
    outline,
    shape_error,
)

SHAPE = (2, 300)
TILES = [(slice(i, i + 1), keys) for i in range(2) for keys in (slice(0, 128), slice(128, 300))]


def check_tiles(score, bias, mask, query_width: int, key_width: int) -> None:
    """Raise InputError for a score, bias or mask whose blocks are not those of the whole, of other packages than this
    one. One that fails on the numbers of the examples, or needs the axes of a transformation, cannot be tried and
    passes; one that fails for their shapes would be right for one size of blocks alone.
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
    with on_examples():
        waves = lambda count, width: jnp.sin(jnp.arange(count * width, dtype=jnp.float32)).reshape(count, width)
        slope = jnp.linspace(0, 2, 300, dtype=jnp.float32)[:, None]  # no mean of some keys is that of all
        query, key = waves(2, query_width) + 0.5, waves(300, key_width) + slope
        query_positions, key_positions = jnp.array([149, 150], jnp.int32), jnp.arange(300, dtype=jnp.int32)
        arguments = {
            "score": lambda i, j: (query[i], key[j]),
            "bias": lambda i, j: (query[i], query_positions[i], key_positions[j]),
            "mask": lambda i, j: (query_positions[i], key_positions[j]),
        }[name]
        cells = [arguments(*tile) for tile in [(slice(2), slice(300)), *TILES]]
        try:
            rule = example_of(structure, leaves)
        except ValueError:  # a constructor that refuses the numbers of the examples
            return
        try:
            whole, *tiles = (rule(*cell) for cell in cells)
        except Exception as error:
            reasons = [reason for cell in cells if (reason := shape_error(rule, *cell))]
            if not reasons:
                return  # of the numbers of the examples
            raise InputError(
                f"a {name} must take any number of queries and keys, as attend computes it in blocks, but that of "
                f"{_rule_name(rule)} raises for 2 queries and 300 keys, {reasons[0]} An array with a row for each head "
                'belongs in a jax.tree_util.Partial; implementation="plain" computes the whole'
            ) from error
        if name == "score":
            widen_scores(rule, whole, query, key)  # an error of shapes, which not every size of blocks would show
        elif name == "bias":
            add_bias(jnp.zeros(SHAPE), rule, whole)
    if not all(hasattr(x, "shape") for x in (whole, *tiles)):
        return
    if isinstance(rule, Mask) and (whole.dtype != jnp.bool_ or whole.shape != SHAPE):
        raise InputError(
            f"{type(rule).__name__} must return booleans [Q, K], True = may attend, got {whole.dtype} "
            f"{list(whole.shape)} for {list(SHAPE)}: compare query_positions[:, None] and key_positions[None, :]"
        )
    if not _are_tiles(whole, tiles):
        raise InputError(
            f"a {name} must depend on one query and one key in each entry [Q, K], but that of {_rule_name(rule)} "
            'depends on others or has another shape: attend computes it in blocks; implementation="plain" computes the '
            "whole"
        )


def _rule_name(rule) -> str:
    return name_of(rule.allowed if isinstance(rule, Rule) else rule)


def _are_tiles(whole, tiles) -> bool:
    if not is_broadcastable(whole.shape, SHAPE):
        return False
    expected = np.broadcast_to(np.asarray(whole, np.float64), SHAPE)
    tolerance = 1e-3 * np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    for tile, (i, j) in zip(tiles, TILES):
        block = expected[i, j]
        if not is_broadcastable(tile.shape, block.shape):
            return False
        if not np.allclose(np.asarray(tile, np.float64), block, rtol=1e-2, atol=tolerance, equal_nan=True):
            return False
    return True
