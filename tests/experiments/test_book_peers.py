"""Experiments on "Deep Learning from Scratch 2": claims beside the book's own code, and what a variant changes."""

import json
from pathlib import Path
from statistics import fmean, median

import jax
import jax.numpy as jnp
import pytest

from attention_jax import config as configs
from experiments import addition_seq2seq, date_architectures, date_peeky

RESULTS = Path(addition_seq2seq.__file__).parent / "results"


def of_the_book(name: str, which: str = "") -> dict[str, list[list[float]]]:
    """{model: a history of exact match for each seed} of the book's code."""
    return json.loads((RESULTS / f"{name}_peer{which}.json").read_text(encoding="utf-8"))["histories"]


@pytest.mark.parametrize("claim", addition_seq2seq.CLAIMS, ids=lambda claim: claim.variant)
def test_addition_bounds_are_the_book_seed_range(claim):
    model, _, sums = claim.variant.partition(", ")
    histories = of_the_book("addition_seq2seq", "_eight_seeds" if sums else "")[model]
    assert len(histories) == (8 if sums else 3)
    means = [fmean(history[-claim.last :]) for history in histories]
    low, high = round(min(means), 4), round(max(means), 4)
    if claim.published is None:  # it counts the seeds that are no better than the book's best
        assert (claim.at_least, claim.at_most) == (None, high)
    else:
        assert (claim.at_least, claim.at_most) == claim.spread == (low, high)
        assert claim.published == round(median(means), 3)


@pytest.mark.parametrize("claim", date_peeky.CLAIMS, ids=lambda claim: str(claim.epoch))
def test_peeky_date_spread_is_the_book_seed_range(claim):
    values = [history[claim.epoch - 1] for history in of_the_book("date_peeky")["peeky"]]
    assert claim.spread == (min(values), max(values)) and claim.published == round(median(values), 3)


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
