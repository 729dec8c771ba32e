"""What a Transformer looks at, gathered for a page (`report/attended.py`): weights, rollout, the worth of heads."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.ops.rollout import rollout
from attention_jax.report.attended import Attention, Side
from attention_jax.train.placement import map_batches
from attention_jax.views.pictures import prefix_of

STACKS = {
    "encoder_attention": (("encoder", "attention"), ("trunk", "attention")),
    "decoder_attention": (("decoder", "attention"),),
    "cross_attention": (("decoder", "cross_attention"),),
}
"""Where the attention of an intermediate is in the parameters: stack, then a layer's module."""

EVALUATED = 64
"""Inputs a batch."""
DEAREST = 2e12
"""Parameters times tokens times heads beyond which nobody asked to wait for the worth of every head."""


def with_rollout(weights: dict) -> dict:
    """A model's weights [B, L, H, Q, K], and the rollout [B, T, T] of tokens that look at each other: what is beyond a
    row's length is looked at by nothing before it, so that the rest of the product is right."""
    own = [name for name in ("encoder_attention", "decoder_attention") if name in weights]
    return {"weights": weights, "rollout": {name: jax.vmap(rollout)(weights[name]) for name in own}}


def without_heads(measure: Callable, params, batch: dict, weights: dict) -> dict[str, np.ndarray]:
    """{intermediate: [B, L, H]}: `measure(params, batch)` [B] while the output of one head is zero, for every head of
    the attentions in `weights` (Michel et al. 2019, section 3.2, one at a time). {} where that takes long (DEAREST).

    A head's output enters by rows of the layer's output matrix: these are what is zero. Of a stack that repeats one
    layer a head is silent in all its turns.
    """
    places = {name: place for name, place in attentions_in(params).items() if name in weights}
    runs = sum(math.prod(weights[name].shape[:4]) for name in places)  # tokens x heads
    if runs * sum(x.size for x in jax.tree.leaves(params)) > DEAREST:
        return {}
    found = {}
    for name, (stack, module) in places.items():
        found[name] = np.zeros(weights[name].shape[:3], np.float32)
        distinct, heads = sum(key.startswith("layer_") for key in params[stack]), found[name].shape[2]
        for layer, head in np.ndindex(distinct, heads):
            path = (stack, f"layer_{layer}", module, "out", "kernel")
            kernel = silenced(params[stack][path[1]][module]["out"]["kernel"], head, heads)
            measured = map_batches(measure, replaced(params, path, kernel), batch, EVALUATED)
            found[name][:, layer::distinct, head] = measured[:, None]
    return found


def attentions_in(params) -> dict[str, tuple[str, str]]:
    """{intermediate: (stack, module)} of the multi-head attentions that these parameters have."""
    return {
        name: (stack, module)
        for name, places in STACKS.items()
        for stack, module in places
        if module in params.get(stack, {}).get("layer_0", {})
    }


def silenced(kernel, head: int, heads: int):
    """An output matrix [H V, D] with the rows of one head zero.

    >>> silenced(np.ones((4, 1), np.float32), 1, 2)[:, 0].tolist()
    [1.0, 1.0, 0.0, 0.0]
    """
    return jnp.asarray(kernel).reshape(heads, -1, kernel.shape[-1]).at[head].set(0).reshape(kernel.shape)


def replaced(tree: dict, path: tuple[str, ...], leaf) -> dict:
    """A nested dictionary with another leaf at `path`; all others are the same objects.

    >>> replaced({"a": {"b": 1, "c": 2}}, ("a", "b"), 3)
    {'a': {'b': 3, 'c': 2}}
    """
    first, *rest = path
    return tree | {first: replaced(tree[first], tuple(rest), leaf) if rest else leaf}


def among_tokens(
    kind: str, row: int, found: dict, queries: tuple, keys: tuple, without: dict, reverse: str = ""
) -> Attention:
    """The attention `kind` of a row of `with_rollout`, cut to its tokens.

    The sides that `reverse` names ("q", "k") were read from their ends and are turned round.
    """
    name = f"{kind}_attention"
    turn = lambda x: x[..., :: -1 if "q" in reverse else 1, :: -1 if "k" in reverse else 1]
    cut = lambda x: turn(np.asarray(x, np.float32)[..., : len(queries), : len(keys)])
    rolled = found["rollout"].get(name)
    return Attention(
        kind,
        cut(found["weights"][name][row]),
        Side(tuple(queries[:: -1 if "q" in reverse else 1])),
        Side(tuple(keys[:: -1 if "k" in reverse else 1])),
        rollout=None if rolled is None or found["weights"][name].shape[1] < 2 else cut(rolled[row]),
        without=without[name][row] if name in without else None,
    )


def image_attentions(row: int, found: dict, image: np.ndarray, without: dict) -> tuple[Attention, ...]:
    """Among the tokens of an image, and where there is one of the pool over them, of a row of `with_rollout`."""
    weights = np.asarray(found["weights"]["encoder_attention"][row], np.float32)  # [L, H, T, T]
    tokens = image_tokens(weights.shape[-1])
    side, rolled = Side(tokens, image=image), np.asarray(found["rollout"]["encoder_attention"][row])
    of_head = without["encoder_attention"][row] if without else None
    attentions = [Attention("encoder", weights, side, side, rollout=rolled, without=of_head)]
    if "pool_attention" in found["weights"]:
        attentions.append(pool_attention(found["weights"]["pool_attention"][row], side))
    return tuple(attentions)


def pool_attention(weights, side: Side) -> Attention:
    """With which weights [T] a classifier pools the tokens of `side`."""
    pool = np.asarray(weights, np.float32)[: len(side.tokens)]
    return Attention("pool", pool[None, None, None], Side(("the classifier",)), side, ("pool",))


def image_tokens(count: int) -> tuple[str, ...]:
    """The names of an image's tokens: a class token if there is one, registers, then the patches row by row.

    >>> image_tokens(5)
    ('class token', 'row 1, column 1', 'row 1, column 2', 'row 2, column 1', 'row 2, column 2')
    """
    prefix = prefix_of(count)
    size = math.isqrt(count - prefix)
    patches = [f"row {i + 1}, column {j + 1}" for i in range(size) for j in range(size)]
    registers = [f"register {i}" for i in range(1, prefix)]
    return (*("class token",)[:prefix], *registers, *patches)
