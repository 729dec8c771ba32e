"""Proposals: repeatable, different from each other, and better where they should be."""

import math

import numpy as np
import pytest

from attention_jax.config import Config, Dates, LuongSeq2seq
from attention_jax.sweep.search import brackets, rounds, suggest, survivors
from attention_jax.sweep.space import parse

SPACE = parse(
    Config("x", Dates(), LuongSeq2seq()), {"optim.learning-rate": "1e-4..1:log", "optim.weight-decay": "0..1"}
)
OVER = {"optim.learning-rate": "1e-4..1:log", "model.score": "dot,general", "model.hidden-size": "8..64"}
MIXED = parse(Config("x", Dates(), LuongSeq2seq()), OVER)


def bowl(point) -> float:
    return (math.log10(point["optim.learning_rate"]) + 2.5) ** 2 + (point["optim.weight_decay"] - 0.3) ** 2


def searched(method: str, trials: int, seed: int, space=SPACE, value=bowl):
    history = []
    for count in rounds(method, trials):
        history += [(point, value(point)) for point in suggest(space, method, seed, history, count)]
    return history


@pytest.mark.parametrize("method", ["random", "qmc", "tpe", "halving"])
def test_a_question_has_one_answer_and_points_differ(method):
    value = lambda point: point["optim.learning_rate"]
    first, again = searched(method, 14, 0, MIXED, value), searched(method, 14, 0, MIXED, value)
    assert first == again and len(first) == 14
    assert len({tuple(point.items()) for point, _ in first}) == 14
    assert searched(method, 14, 1, MIXED, value) != first
    for point, _ in first:
        assert 1e-4 <= point["optim.learning_rate"] <= 1 and 8 <= point["model.hidden_size"] <= 64
        assert point["model.score"] in ("dot", "general")


def test_quasi_random_points_fill_every_sixteenth():
    points = [point for point, _ in searched("qmc", 16, 0)]
    places = np.sort([(math.log10(p["optim.learning_rate"]) + 4) / 4 * 16 for p in points]).astype(int)
    assert places.tolist() == list(range(16))


def test_tpe_beats_random_search_on_a_bowl():
    best = lambda method: np.mean([min(value for _, value in searched(method, 30, seed)) for seed in range(5)])
    assert best("tpe") < 0.5 * best("random")


@pytest.mark.parametrize("method", ["tpe", "random", "qmc"])
def test_what_failed_is_not_proposed_again(method):
    first = suggest(SPACE, method, 0, [], 10)
    failed = [(point, None if place in (2, 5, 7) else bowl(point)) for place, point in enumerate(first)]
    assert not [point for point in suggest(SPACE, "tpe", 0, failed, 4) if point in first]


def test_a_finite_space_is_exhausted_and_not_repeated():
    space = parse(
        Config("x", Dates(), LuongSeq2seq()), {"model.score": "dot,general,cosine", "model.hidden-size": "8,16"}
    )
    for method in ("grid", "random", "tpe"):
        history = [({"model.score": "dot", "model.hidden_size": 8}, 1.0)]
        assert len(suggest(space, method, 0, history, 20)) == 5
    assert len(suggest(space, "random", 0, [], 4)) == 4


def test_survivors_are_the_best_third_and_never_nan():
    assert survivors([float("nan"), 3.0, 1.0, 2.0, 5.0, 4.0], 3) == [2, 3]
    assert survivors([float("nan")]) == [0]


def test_hyperband_has_one_bracket_for_every_first_comparison():
    assert brackets("hyperband", 27) == [[1, 3, 9, 27], [3, 9, 27], [9, 27], [27]]
    assert brackets("halving", 10) == [[1, 3, 10]]
