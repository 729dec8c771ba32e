"""Proposals: repeatable, different from each other, and better where they should be."""

import math

import numpy as np
import pytest

from attention_jax.config import Config, Dates, LuongSeq2seqConfig, replace
from attention_jax.sweep.plan import Settings
from attention_jax.sweep.search import ask, load_study, new_study, points, rounds
from attention_jax.sweep.space import parse

DATE = Config("x", Dates(), LuongSeq2seqConfig())
SPACE = parse(DATE, {"optim.learning-rate": "1e-4..1:log", "optim.weight-decay": "0..1"})
OVER = {"optim.learning-rate": "1e-4..1:log", "model.score": "dot,general", "model.hidden-size": "8..64"}
MIXED = parse(DATE, OVER)
LISTS = parse(DATE, {"model.score": "dot,general,cosine", "model.hidden-size": "8,16"})


def bowl(point) -> float:
    return (math.log10(point["optim.learning_rate"]) + 2.5) ** 2 + (point["optim.weight_decay"] - 0.3) ** 2


def settings(method: str, trials: int, seed: int, space) -> Settings:
    return Settings(replace(DATE, **{"train.seed": seed}), space, method, trials, 1, "valid.loss")


def run_search(method: str, trials: int, seed: int, space=SPACE, value=bowl, journal=None):
    study, history = new_study(settings(method, trials, seed, space), journal), []
    for count in rounds(method, trials):
        trials_by_number = ask(study, space, count)
        for number, trial in trials_by_number.items():
            history.append((trial.params, value(trial.params)))
            study.tell(number, history[-1][1])
    return history


@pytest.mark.parametrize("method", ["random", "tpe"])
def test_a_question_has_one_answer_and_points_differ(method, tmp_path):
    value = lambda point: point["optim.learning_rate"]
    first = run_search(method, 14, 0, MIXED, value)
    again = run_search(method, 14, 0, MIXED, value, tmp_path / "journal.log")
    assert first == again and len(first) == 14
    assert list(points(load_study(tmp_path / "journal.log")).values()) == [point for point, _ in first]
    assert len({tuple(point.items()) for point, _ in first}) == 14
    assert run_search(method, 14, 1, MIXED, value) != first
    for point, _ in first:
        assert 1e-4 <= point["optim.learning_rate"] <= 1 and 8 <= point["model.hidden_size"] <= 64
        assert point["model.score"] in ("dot", "general")


def test_tpe_beats_random_search_on_a_bowl():
    best = lambda method: np.mean([min(value for _, value in run_search(method, 30, seed)) for seed in range(5)])
    assert best("tpe") < 0.5 * best("random")


@pytest.mark.parametrize("method", ["tpe", "random"])
def test_finite_space_has_no_repeated_points(method):
    whole = [tuple(point.values()) for point, _ in run_search("grid", 6, 0, LISTS, lambda point: 1.0)]
    assert whole == [(score, size) for score in ("dot", "general", "cosine") for size in (8, 16)]
    points = [tuple(point.values()) for point, _ in run_search(method, 5, 0, LISTS, lambda point: 1.0)]
    assert len(set(points)) == 5 and set(points) < set(whole)
    numbers = parse(DATE, {"model.hidden-size": "8..10"})
    assert sorted(p["model.hidden_size"] for p, _ in run_search(method, 20, 0, numbers, lambda point: 1.0)) == [
        8,
        9,
        10,
    ]
