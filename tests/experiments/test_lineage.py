"""Experiments that carry the lineage on: what can be checked of them without training them whole."""

import jax
import numpy as np
import pytest
from contract import draw

from attention_jax import tasks
from attention_jax.catalog import load_experiment
from attention_jax.config import replace
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import count_parameters
from attention_jax.ops import scores
from attention_jax.runs import lifecycle
from attention_jax.tasks import language
from experiments import drope, grokking, induction_heads, length_extrapolation, shakespeare


def test_shakespeare_model_has_the_size_of_nanogpt():
    """0.80 million parameters without positions, as its training script prints; ours has biases and a token more."""
    model = LanguageModel(shakespeare.config().model, 66)
    shapes = jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, 4), np.int32))["params"]
    biases = [x for path, x in jax.tree_util.tree_leaves_with_path(shapes) if "bias" in jax.tree_util.keystr(path)]
    expected = 65 * 128 + 4 * (2 * 128 + 4 * 128 * 128 + 2 * 128 * 512) + 128
    assert count_parameters(shapes) - count_parameters(biases) == expected + 64 * 128 + 128
    assert round(expected / 1e6, 2) == 0.80


def test_gaussian_starts_as_scaled_dot_on_normalized_keys():
    draw = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    query, key = 4 * draw / np.linalg.norm(draw, axis=-1, keepdims=True)
    gaussian = scores.Gaussian.init(jax.random.key(0), 16)
    weights = [jax.nn.softmax(score(query, key), axis=-1) for score in (gaussian, scores.ScaledDot())]
    np.testing.assert_allclose(*weights, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["induction_heads", "pointer_networks"])
def test_an_evaluation_has_what_the_claims_are_about(name):
    experiment = load_experiment(name)
    task = tasks.build(experiment.smoke())
    metrics = task.evaluate(draw(task.init), True).metrics
    assert {claim.metric for claim in experiment.claims} <= set(metrics)


def test_losses_are_held_against_what_is_known(monkeypatch):
    task = tasks.build(induction_heads.smoke())
    per_token = np.log(3.0, dtype=np.float32)
    even = lambda score_rows, params, arrays, size: np.full(32, 16 * per_token)
    monkeypatch.setattr(language, "map_batches", even)
    metrics, entropies = task.evaluate(None, True).metrics, task.data.known["valid"]
    for name in ("bigram", "unigram"):
        assert metrics[f"valid.loss_less_{name}"] == pytest.approx(np.log(3.0) - entropies[name], abs=1e-6)
    assert entropies["bigram"] < entropies["unigram"]


def test_a_wave_is_one_frequency():
    """Numbers on two circles, three and one times round; a vector that all of them have counts nothing."""
    angle = 2 * np.pi * np.arange(11) / 11
    table = np.stack([2 * np.cos(3 * angle), 2 * np.sin(3 * angle), np.cos(angle), np.sin(angle)], axis=1) + 5
    np.testing.assert_allclose(grokking.spectrum(table), [0.2, 0, 0.8, 0, 0], atol=1e-12)


@pytest.mark.slow
def test_a_study_that_trains_has_a_history(tmp_path):
    """What the claims about grokking read: epochs of both accuracies, and the frequencies at the end."""
    result = lifecycle.start(grokking.smoke(), tmp_path / "run", study=grokking.study, quiet=True)
    assert [row["epoch"] for row in result["history"]] == [1, 2]
    assert {"train.accuracy", "valid.accuracy"} <= set(result["history"][0])
    assert {bound.metric for bound in load_experiment("grokking").thresholds if not bound.epoch} <= set(
        result["metrics"]
    )
    assert 0 < result["metrics"]["fourier.key_share"] <= 1


@pytest.mark.slow
def test_longer_windows_share_text_and_have_claimed_metrics(tmp_path):
    """With windows of 8 in training: by hand, the mean loss of the characters of 13 windows of 64."""
    (tmp_path / "input.txt").write_text("To be, or not to be. " * 400)
    config = replace(length_extrapolation.smoke(), **{"data.path": str(tmp_path)})
    task = tasks.build(config)
    params = draw(task.init)
    valid = task.data.held_out["valid"]  # 104 windows of 8 and the character behind them
    text = np.append(valid[:, :-1], valid[-1, -1])
    rows = text[np.arange(13)[:, None] * 64 + np.arange(65)]
    log_p = jax.nn.log_softmax(task.model.apply({"params": params}, rows[:, :-1])[0])
    by_hand = -np.take_along_axis(np.asarray(log_p), rows[:, 1:, None], axis=2).mean()
    assert length_extrapolation.loss_on_windows(task, params, 64) == pytest.approx(by_hand, rel=1e-5)
    valid = task.evaluate(params, True).metrics["valid.loss"]
    assert length_extrapolation.loss_on_windows(task, params, 8) == pytest.approx(valid, rel=1e-5)
    result = lifecycle.start(config, tmp_path / "run", study=length_extrapolation.study, quiet=True)
    assert {claim.metric for claim in load_experiment("length_extrapolation").claims} <= set(result["metrics"])


@pytest.mark.slow
def test_dropped_positions_continue_the_rotary_model(tmp_path):
    """One step without positions lowers the loss of the model after 7 steps with rotary positions, which one step from
    the initial values does not reach."""
    (tmp_path / "input.txt").write_text("To be, or not to be. " * 400)
    config = replace(drope.smoke(), **{"data.path": str(tmp_path)})
    metrics = lifecycle.start(config, tmp_path / "run", study=drope.study, quiet=True)["metrics"]
    assert metrics["dropped.loss_1x"] < metrics["just_dropped.loss_1x"]
    difference = metrics["dropped.loss_4x"] - metrics["yarn.loss_4x"]
    assert metrics["dropped_less_yarn.loss_4x"] == difference
    assert {claim.metric for claim in load_experiment("drope").claims} <= set(metrics)
