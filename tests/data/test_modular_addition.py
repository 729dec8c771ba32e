"""Sums modulo a number: all of them, each in one part, and never beside its mirror image in another."""

import numpy as np
import pytest

from attention_jax.config import ModularAddition
from attention_jax.data import modular_addition
from attention_jax.errors import InputError


@pytest.fixture(scope="module")
def data():
    return modular_addition.load(ModularAddition(modulus=11, train_fraction=0.4), batch_size=8)


def read(data, part):
    """(a, b, c) of each row, as numbers."""
    words = [data.vocabulary.decode(row) for row in part.tokens]
    assert all(plus == "+" for _, plus, _ in words) and (part.length == 3).all()
    return [(int(a), int(b), int(data.names[c])) for (a, _, b), c in zip(words, part.label)]


def test_every_sum_is_there_once_and_right(data):
    rows = [row for part in (*data.train, *data.held_out.values()) for row in read(data, part)]
    assert sorted((a, b) for a, b, _ in rows) == [(a, b) for a in range(11) for b in range(11)]
    assert all((a + b) % 11 == c for a, b, c in rows)
    assert [len(part.label) for part in (*data.train, *data.held_out.values())] == [48, 36, 37]


def test_texts_are_those_of_the_rows(data):
    for name, part in data.held_out.items():
        assert data.texts[name] == [f"{a} + {b}" for a, b, _ in read(data, part)]
        assert data.tokenizer.split(data.texts[name][:1]) == [data.vocabulary.decode(part.tokens[0])]


def test_mirror_images_are_in_one_part(data):
    parts = [{(a, b) for a, b, _ in read(data, part)} for part in (*data.train, *data.held_out.values())]
    apart = [pair for part in parts for pair in part if pair[::-1] not in part]
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
