"""Sums modulo a number: all of them, each in one part, and never beside its mirror image in another."""

import numpy as np
import pytest

from attention_jax.config import ModularAddition
from attention_jax.data import modular_addition
from attention_jax.errors import InputError


@pytest.fixture(scope="module")
def data():
    return modular_addition.load(ModularAddition(modulus=11, train_fraction=0.4), batch_size=8)


def decode_rows(data, split):
    """(a, b, c) of each row, as numbers."""
    words = [data.vocabulary.decode(row) for row in split.tokens]
    assert all(plus == "+" for _, plus, _ in words) and (split.length == 3).all()
    return [(int(a), int(b), int(data.names[c])) for (a, _, b), c in zip(words, split.label)]


def test_every_sum_is_there_once_and_right(data):
    rows = [row for split in (*data.train, *data.held_out.values()) for row in decode_rows(data, split)]
    assert sorted((a, b) for a, b, _ in rows) == [(a, b) for a in range(11) for b in range(11)]
    assert all((a + b) % 11 == c for a, b, c in rows)
    assert [len(split.label) for split in (*data.train, *data.held_out.values())] == [48, 36, 37]


def test_texts_are_those_of_the_rows(data):
    for name, split in data.held_out.items():
        assert data.texts[name] == [f"{a} + {b}" for a, b, _ in decode_rows(data, split)]
        assert data.tokenizer.split(data.texts[name][:1]) == [data.vocabulary.decode(split.tokens[0])]


def test_mirror_images_are_in_one_part(data):
    splits = [{(a, b) for a, b, _ in decode_rows(data, split)} for split in (*data.train, *data.held_out.values())]
    apart = [pair for split in splits for pair in split if pair[::-1] not in split]
    assert len(apart) <= 2 * 2  # a border may fall between two images


@pytest.mark.parametrize(
    "options",
    [{"modulus": 2}, *({"train_fraction": fraction} for fraction in (0.0, 1.0, 1e-9, np.nan))],
)
def test_what_cannot_be_divided_is_one_line(options):
    with pytest.raises(InputError, match=f"--data.{next(iter(options)).replace('_', '-')} must"):
        modular_addition.load(ModularAddition(**options), batch_size=8)


def test_the_draw_depends_on_nothing_else():
    once, again = (modular_addition.load(ModularAddition(7), batch_size=size) for size in (1, 2))
    assert np.array_equal(once.train[0].tokens, again.train[0].tokens)
