"""Experiments on "Deep Learning from Scratch 2": what a variant changes."""

import jax
import jax.numpy as jnp

from attention_jax import config as configs
from experiments import date_architectures


def shapes(variant: str) -> dict[tuple, tuple[int, ...]]:
    """The shape of each parameter of a variant with the published file's vocabulary of 59."""
    options = date_architectures.variants()[variant].model
    model = configs.import_object(options.module)(options, 59, 59)
    tokens, length = jnp.ones((1, 3), jnp.int32), jnp.full(1, 3, jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), tokens, length, tokens)["params"]
    return {tuple(str(key.key) for key in path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(params)}


def test_a_date_variant_changes_one_thing():
    variants = date_architectures.variants()
    change = lambda old, new: configs.differences(variants[old], variants[new])
    assert change("book", "bidirectional") == {"model.bidirectional": (False, True)}
    assert change("deep", "skip") == {"model.residual": (False, True)} and shapes("deep") == shapes("skip")
    assert change("book", "before") == {"model": ("AttentionSeq2seqConfig", "BahdanauConfig")}
    book, context_to_cell = shapes("book"), shapes("before")
    rows = {("layer", "input_kernel"): (16, 1024), ("kernel",): (512, 59)}
    moved = {("stack_0", "input_kernel"): (16 + 256, 1024), ("kernel",): (256, 59)}
    assert {path: book[path] for path in rows} == rows and {path: context_to_cell[path] for path in moved} == moved
    same = lambda shapes, but: sorted(shape for path, shape in shapes.items() if path not in but)
    assert same(book, rows) == same(context_to_cell, moved), "the context moves from the output layer to the LSTM"
