"""Taps: the activations of a model that `attention_jax.interpret` records and replaces.

Both are variables of a call of a Flax module. Where the collection "trace" is mutable, a tap stores what passes it;
where the collection "set" has edits for it, it applies them first. Without these collections a tap is no operation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.errors import InputError
from attention_jax.ops.attention import attend
from attention_jax.ops.heads import head_weights, over_heads
from attention_jax.ops.normalizer_kinds import Normalizer
from attention_jax.ops.trees import pytree

TRACE, SET = "trace", "set"
MARK = "@"
"""Begins the name of a tap's variable, which no submodule can have."""


@pytree
@dataclass(frozen=True)
class Edit:
    """Replaces an activation by `function` of it, by `value`, or with `adds` by its sum with `value`, `where` that is
    true; everywhere if it is None.

    >>> Edit(jnp.zeros(()), jnp.array([True, False]))(jnp.ones(2)).tolist()
    [0.0, 1.0]
    >>> Edit(jnp.array([1.0, 2.0]), adds=True)(jnp.array([4.0, 8.0])).tolist()
    [5.0, 10.0]
    """

    value: Float[Array, "..."] | None = None
    where: Bool[Array, "..."] | None = None
    function: Callable | None = field(default=None, metadata={"static": True})
    adds: bool = field(default=False, metadata={"static": True})

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        new = self.value if self.function is None else self.function(x)
        new = x + self.value.astype(x.dtype) if self.adds else new
        new = jnp.broadcast_to(new, x.shape).astype(x.dtype)
        return new if self.where is None else jnp.where(self.where, new, x)


def is_set(module: nn.Module, *names: str) -> bool:
    """Whether there are edits for one of these taps of `module`."""
    return any(module.has_variable(SET, MARK + name) for name in names)


def is_traced(module: nn.Module) -> bool:
    """Whether the taps of `module` store what passes them."""
    return module.is_mutable_collection(TRACE) and not module.is_initializing()


def tap(module: nn.Module, name: str, x: Float[Array, "..."], heads: int = 0) -> Float[Array, "..."]:
    """The activation x, after the edits for the tap `name` of `module`, if any; stored if the call is traced. With
    `heads`, an x of [B, T, H V] is read and written as [B, T, H, V].

    Raises InputError if a call passes the tap twice, as layers with shared weights do.
    """
    if not (is_set(module, name) or is_traced(module)):
        return x
    value = jax.lax.optimization_barrier(x)  # what is computed before and after is not fused with what is done here
    value = value.reshape(*value.shape[:2], heads, -1) if heads else value
    edits = module.get_variable(SET, MARK + name, ())
    for edit in edits:
        value = edit(value)
    if is_traced(module):
        if module.has_variable(TRACE, MARK + name):
            raise InputError(
                f"the activation {'/'.join(module.path)}/{name} is computed more than once, as of layers that "
                "share their weights, so it has no name: use a model without --model.shared-layers"
            )
        module.put_variable(TRACE, MARK + name, value)
    return jax.lax.optimization_barrier(value.reshape(x.shape)) if edits else x


def step_edits(module: nn.Module, name: str, shape: tuple[int, ...]) -> tuple[Edit, ...]:
    """The edits for the tap `name` of a recurrence, whose activation of all steps has the shape [B, T, ...], with their
    arrays as [T, B, ...], for a scan: a step passes its own to `apply_edits`.

    Raises InputError for a function, which would see one step alone.
    """
    edits = module.get_variable(SET, MARK + name, ())
    if any(edit.function is not None for edit in edits):
        raise InputError(f"{name} is computed step by step: set an array or a Part with a value, not a function")
    over_time = lambda x: None if x is None else jnp.broadcast_to(x, shape).swapaxes(0, 1)
    return tuple(Edit(over_time(edit.value), over_time(edit.where), adds=edit.adds) for edit in edits)


def apply_edits(edits: tuple[Edit, ...], x: Float[Array, "..."]) -> Float[Array, "..."]:
    """The activation x of one step of a recurrence after these edits."""
    if not edits:
        return x
    x = jax.lax.optimization_barrier(x)
    for edit in edits:
        x = edit(x)
    return jax.lax.optimization_barrier(x)


def record_activation(module: nn.Module, name: str, x: Float[Array, "..."], settable: bool = True):
    """Store an activation of all steps of a recurrence, after its scan.

    Raises InputError for edits that the steps do not apply (`apply_edits`), where `settable` is False.
    """
    if is_set(module, name) and not settable:
        raise InputError(f"{name} is computed step by step, inside of a recurrence: it can be traced, not replaced")
    if is_traced(module):
        module.put_variable(TRACE, MARK + name, jax.lax.optimization_barrier(x))


def tap_heads(module: nn.Module, name: str, x: Float[Array, "B H T E"]) -> Float[Array, "B H T E"]:
    """`tap` of an activation that is read and written as [B, T, H, E]."""
    active = is_set(module, name) or is_traced(module)
    return tap(module, name, x.swapaxes(1, 2)).swapaxes(1, 2) if active else x


@pytree
@dataclass(frozen=True)
class Unnormalized(Normalizer):
    """The scores themselves, -inf where a query may not attend to a key."""

    def weights(self, scores, allowed):
        return jnp.where(allowed, scores, -jnp.inf)


def tap_weights(module: nn.Module, query, key, rules: dict, query_offset=0) -> Float[Array, "B H Q K"]:
    """The attention weights of all heads, by the taps "scores", -inf where masked, and "weights" of `module`."""
    scores = tap(module, "scores", head_scores(query, key, rules, query_offset))
    return tap(module, "weights", normalize_scores(scores, key, rules))


def head_scores(query, key, rules: dict, query_offset=0) -> Float[Array, "B H Q K"]:
    """The scores of all heads with their biases, -inf where a query may not attend to a key."""
    return head_weights(query, key, rules | {"normalizer": Unnormalized()}, query_offset)


def normalize_scores(scores: Float[Array, "B H Q K"], key, rules: dict) -> Float[Array, "B H Q K"]:
    """The weights of scores that are -inf where a query may not attend to a key, by the normalizer of each head."""
    return over_heads(_normalize_scores, scores, key, key, rules)


def trace_weights(module: nn.Module, query, key, rules: dict, query_offset=0):
    """Store scores and weights beside an attention that does not need them; its bits do not depend on it."""
    query, key = jax.lax.optimization_barrier((query, key))
    tap_weights(module, query, key, rules, query_offset)


def pool_with_weights(
    weights: Float[Array, "B H Q K"], query, key, value, rules: dict, rng, dropout
) -> Float[Array, "B H Q V"]:
    """What the heads pool with given weights."""
    joined = jnp.concatenate([query.astype(weights.dtype), weights], axis=-1)  # what is lifted over heads is one array
    return over_heads(partial(_pool_head, query.dtype, dropout), joined, key, value, rules, rng)


def _normalize_scores(scores, key, value, rules, rng, query_offset):
    return rules["normalizer"].weights(scores, scores != -jnp.inf)


def _pool_head(dtype, dropout, joined, key, value, rules, rng, query_offset):
    width = joined.shape[1] - key.shape[0]
    fixed_score = jax.tree_util.Partial(lambda weights, query, key: weights, joined[:, width:])
    kwargs = {
        "score": fixed_score,
        "normalizer": lambda weight: weight,
        "pool": rules["pool"],
        "implementation": "plain",
    }
    return attend(joined[:, :width].astype(dtype), key, value, **kwargs, dropout=dropout, rng=rng)
