"""Convex hulls: those of a loop over sorted points, from the right corner and in the right direction."""

import numpy as np
import pytest

from attention_jax.errors import InputError
from experiments.papers import pointer
from experiments.papers.options import ConvexHulls


def chain(points):
    """Andrew's monotone chain: the corners, counterclockwise."""

    def half(order):
        corners = []
        for place in order:
            while len(corners) > 1:
                (a, b), (c, d) = points[corners[-1]] - points[corners[-2]], points[place] - points[corners[-2]]
                if a * d - b * c > 0:
                    break
                corners.pop()
            corners.append(place)
        return corners[:-1]

    order = np.lexsort(points.T[::-1])
    return half(order) + half(order[::-1])


@pytest.fixture(scope="module")
def sets():
    return pointer.generate(np.random.default_rng(0), 300, 3, 9)


def test_hulls_are_those_of_the_monotone_chain(sets):
    for inputs, length, target, corners in zip(*sets, strict=True):
        expected = [place + 1 for place in chain(inputs[1:length, :2].astype(float))]
        at = expected.index(min(expected))
        expected = expected[at:] + expected[:at]
        assert target[:corners].tolist() == [*expected, expected[0], 0] and not target[corners:].any()


def test_inputs_are_a_symbol_and_points(sets):
    assert set(sets.length) == set(range(4, 11)) and sets.inputs.shape == (300, 10, 3)
    np.testing.assert_array_equal(sets.inputs[:, 0], np.tile([0.0, 0.0, 1.0], (300, 1)))
    padding = np.arange(10) >= sets.length[:, None]
    assert not sets.inputs[padding].any() and not sets.inputs[:, 1:, 2].any()
    assert (sets.inputs[:, 1:, :2][~padding[:, 1:]] > 0).all()


def test_many_sets_are_the_same_as_few(monkeypatch):
    few = pointer.generate(np.random.default_rng(1), 10, 3, 5)
    monkeypatch.setattr(pointer, "ROWS", 4)
    for actual, expected in zip(pointer.generate(np.random.default_rng(1), 10, 3, 5), few, strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_test_sets_have_fewest_and_most_points():
    train, valid, tests = pointer.load(ConvexHulls(3, 5, examples=20, held_out=7))
    assert len(train.inputs) == 20 and len(valid.inputs) == 7
    assert {name: set(sets.length - 1) for name, sets in tests.items()} == {"3": {3}, "5": {5}}
    assert not (train.inputs[:7] == valid.inputs).all((1, 2)).any()


@pytest.mark.parametrize("wrong", [{"min_points": 2}, {"min_points": 6, "max_points": 5}, {"examples": 0}])
def test_sizes_that_cannot_be_are_one_line(wrong):
    with pytest.raises(InputError, match=f"--data.{next(iter(wrong)).replace('_', '-')} must be"):
        pointer.load(ConvexHulls(**wrong))
