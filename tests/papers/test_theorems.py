"""Every law of experiments/laws.py fails for a broken subject, and the cheap ones are seen to hold."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend, masks, normalizers
from attention_jax.catalog import load_experiment
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.verdicts import bounds_text, median_value
from attention_jax.models import attention_laws
from attention_jax.report import tables
from experiments.papers import theorems
from experiments.papers.theorems import LAWS

BOUNDS = {bound.metric: bound for bound in load_experiment("laws").thresholds}
causal = partial(attend, mask=masks.causal())


def attend_cooled(query, key, value):
    """Softmax attention with a temperature that falls as the logarithm of the keys."""
    return attend(query * np.log(len(key)) ** 2, key, value)


BROKEN = {
    "kernel.rate_inside": theorems.on_circle(theorems.sparse),  # its width depends on n
    "kernel.rate_boundary": theorems.on_circle(attend_cooled),
    "kernel.local_linear_rate_boundary": theorems.local_constant,
    "kernel.ridge_error": lambda query, x, y: theorems.local_constant(query, x, y, 1.0),
    "kernel.parallax_error": lambda query, key, value, probe: theorems.parallax(query, key, value, -probe),
    "weights.dispersion": theorems.sparse,
    "weights.concentration": attend,
    "weights.retrieval_error": attend,
    "weights.retrieval_error_below": partial(attend, normalizer=normalizers.TopK(1)),
    "weights.growth_sigmoid": theorems.sigmoid_with_bias,
    "weights.growth": theorems.sigmoid,
    "weights.sink_softmax": normalizers.ReluPower(1),
    "weights.sink_relu": normalizers.Softmax(),
    "weights.sink_softmax_loss": normalizers.Sigmoid(-20.0),
    "weights.sink_relu_loss": normalizers.Sigmoid(-20.0),
    "weights.own_value": attend,
    "weights.permutation_error": causal,
    "weights.closure_errors": causal,
    "memory.hebbian_crosstalk": theorems.delta,
    "memory.delta_last_error": theorems.hebbian,
    "memory.least_squares_residual": theorems.delta,
    "memory.exact_flow_error": lambda beta, key: beta,
    "memory.duality_error": lambda query, key, value, log_decay: theorems.linear(query, key, value),
    "memory.state_rank": attend,
    "memory.parity_positive": jnp.array([2.0]),
    "memory.parity_negative": jnp.array([0.5]),
}
"""{metric: a subject for which the law must fail}"""
TRAINED = [metric for metric in LAWS if "sink" in metric]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer points, keys and steps: what is exact is so at any size, and a broken subject is far off."""
    monkeypatch.setattr(theorems, "POINTS", (500, 2_000))
    monkeypatch.setattr(theorems, "KEYS", (16, 4_096, 16_384))
    monkeypatch.setattr(attention_laws, "SIZES", (4_096, 16_384))


def number(metric, subject) -> float:
    with jax.numpy_dtype_promotion("standard" if metric in TRAINED else "strict"):  # optax promotes its step count
        return LAWS[metric][0](subject, 3)


def test_each_law_has_bounds_and_broken_subject():
    assert list(LAWS) == list(BOUNDS) == list(BROKEN)


def test_bounds_of_general_laws_are_those_of_the_experiment():
    metrics = ("weights.permutation_error", "weights.growth", "weights.dispersion")
    for metric, (_, expected, tolerance) in zip(metrics, attention_laws.LAWS.values(), strict=True):
        bound = BOUNDS[metric]
        assert expected + tolerance == pytest.approx(bound.at_most)
        assert bound.at_least is None or expected - tolerance == pytest.approx(bound.at_least)


@pytest.mark.slow
@pytest.mark.parametrize("metric", slow_but([law for law in LAWS if law not in TRAINED], LAWS))
def test_law_holds_for_subject_fails_for_broken(metric):
    """One or two compiled programs for each subject; a head is trained for 2,000 steps in the slow tier."""
    actual = number(metric, LAWS[metric][1])
    assert BOUNDS[metric].is_met(actual), actual
    broken_value = number(metric, BROKEN[metric])
    assert not BOUNDS[metric].is_met(broken_value), broken_value


def test_least_error_of_a_threshold_by_hand():
    """States 0, 0, 1, 2 of odd, even, odd, even: no threshold between equal states, 3 of 4 are right at best."""
    odd = np.array([True, False, True, False])
    assert theorems.best_threshold(np.array([0.0, 0.0, 1.0, 2.0]), odd) == 0.75
    assert theorems.best_threshold(np.array([1.0, 2.0, 1.0, 2.0]), odd) == 1.0
    assert theorems.best_threshold(np.zeros(4), odd) == 0.5


def test_page_has_bound_and_number_of_each_law():
    text = (Path(__file__).resolve().parents[2] / "docs/laws.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in text.splitlines() if "| `" in line]
    page_rows = {row[0].strip("`"): (row[3], row[4]) for row in rows if row[0].strip("`") in LAWS}
    runs = load_recorded_runs("laws")
    numbers = {metric: tables.number(median_value(bound, runs)) for metric, bound in BOUNDS.items()}
    assert page_rows == {metric: (bounds_text(BOUNDS[metric]), numbers[metric]) for metric in LAWS}


@pytest.mark.slow
def test_the_study_measures_laws_and_plots_four_panels(tmp_path, monkeypatch):
    experiment = load_experiment("laws")
    laws = {metric: LAWS[metric] for metric in ("weights.permutation_error", "memory.parity_positive")}
    monkeypatch.setattr(theorems, "LAWS", laws)
    metrics = experiment.study(experiment.smoke(), tmp_path)
    assert all(BOUNDS[metric].is_met(metrics[metric]) for metric in laws)
    assert (tmp_path / "figures" / "panels.png").stat().st_size > 10_000
