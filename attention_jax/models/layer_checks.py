"""Properties of a layer of self-attention (`--model.attention`): does it keep its mask, and do steps with a cache
compute what one pass computes?

`check` (part_checks.py) measures them. The layer is in a decoder layer without positions, whose other parts see one
position at a time; its weights are drawn.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from attention_jax.errors import InputError
from attention_jax.models.blocks import Block, DecoderLayer
from attention_jax.ops.masks import causal, lengths

LENGTH, PAST, WIDTH = 12, 7, 16
"""Positions of two sequences, those before what is masked or later, and the width of the residual stream."""
Pairs = list[tuple[dict, dict]]
"""Pairs of {name: array} that must be equal."""
compiled = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
"""The arrays are small: compiling costs more than running."""


@dataclass(frozen=True)
class LayerSubject:
    """The layer that is checked, with its weights."""

    layer: DecoderLayer
    params: Any

    def inputs(self) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(2, LENGTH, WIDTH))

    def run(self, x, mask=None) -> np.ndarray:
        return compiled(lambda params, x: self.layer.apply(params, x, mask)[0])(self.params, jnp.asarray(x))


def draw_layer(name: str) -> LayerSubject:
    """A layer with the attention that `name` names."""
    block = Block(WIDTH, 4, WIDTH, attention=name, dtype=jnp.dtype("float64"))
    layer, draw = DecoderLayer(block, cross=False), np.random.default_rng(1).normal
    with jax.enable_x64(True):
        shapes = jax.eval_shape(lambda rng: layer.init(rng, jnp.zeros((2, LENGTH, WIDTH)), causal()), jax.random.key(0))
    return LayerSubject(layer, jax.tree.map(lambda x: draw(scale=0.5, size=x.shape), shapes))


def change_later_positions(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:, :PAST], 50 - x[:, PAST:]], axis=1)


def masked_positions_are_deleted(subject: LayerSubject) -> Pairs:
    """Positions behind `lengths`, whatever they hold, and no such positions."""
    x, mask = subject.inputs(), lengths(jnp.full(2, PAST))
    alone = {"output": subject.run(x[:, :PAST])}
    return [({"output": subject.run(y, mask)[:, :PAST]}, alone) for y in (x, change_later_positions(x))]


def later_positions_are_unseen(subject: LayerSubject) -> Pairs:
    """Under `causal`, positions from `PAST` on are others, and earlier outputs the same."""
    x, (actual, expected) = subject.inputs(), ({}, {})
    for arrays, y in ((actual, change_later_positions(x)), (expected, x)):
        arrays["output"] = subject.run(y, causal())[:, :PAST]
    return [(actual, expected)]


def outputs_move_with_positions(subject: LayerSubject) -> Pairs:
    """All positions in another order."""
    x, order = subject.inputs(), np.random.default_rng(2).permutation(LENGTH)
    return [({"output": subject.run(x[:, order])}, {"output": subject.run(x)[:, order]})]


def steps_equal_one_pass(subject: LayerSubject) -> Pairs | str:
    """Two hypotheses of one sentence, position by position with a cache, and as two sequences at once."""
    x = subject.inputs()
    try:
        cache = subject.layer.block.empty_cache(1, LENGTH * 2)
    except InputError as error:
        return str(error)
    place = np.arange(2 * LENGTH)  # of the cache: position j // 2 of hypothesis j % 2
    step = compiled(lambda params, *inputs: subject.layer.apply(params, *inputs, method="step")[:2])
    outputs = []
    for position in range(LENGTH):
        entries = (place % 2 == np.arange(2)[:, None]) & (place // 2 <= position)  # [k, T k]
        output, cache = step(subject.params, x[:, position, None], cache, jnp.int32(position), entries[None])
        outputs.append(output[:, 0])
    return [({"output": np.stack(outputs, axis=1)}, {"output": subject.run(x, causal())})]


LAYER_PROPERTIES: dict[str, tuple[Callable[[LayerSubject], Pairs | str], float]] = {
    "masked keys = no keys": (masked_positions_are_deleted, 1e-5),
    "causal mask": (later_positions_are_unseen, 1e-5),
    "positions in another order": (outputs_move_with_positions, 1e-5),
    "cached decoding = the whole": (steps_equal_one_pass, 1e-5),
}
"""{name: (what must be equal, or why it does not apply; the tolerance)}, in float64."""
