"""Every law fails for a broken subject, and the cheap ones are seen to hold; passports of attention functions."""

import functools
import re
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import attend, masks, normalizers
from attention_jax.claims.catalog import load_experiment
from attention_jax.claims.record import load_recorded_runs
from attention_jax.claims.verdicts import bounds_text, median_value
from attention_jax.cli import commands
from attention_jax.errors import InputError
from attention_jax.laws import LAWS, fast_weights, passport, regression, weights
from attention_jax.report import tables

BOUNDS = {bound.metric: bound for bound in load_experiment("laws").thresholds}
causal = functools.partial(attend, mask=masks.causal())


def attend_cooled(query, key, value):
    """Softmax attention with a temperature that falls as the logarithm of the keys."""
    return attend(query * np.log(len(key)) ** 2, key, value)


BROKEN = {
    "kernel.rate_inside": weights.sparse,  # its width depends on n
    "kernel.rate_boundary": attend_cooled,
    "kernel.local_linear_rate_boundary": regression.local_constant,
    "kernel.ridge_error": lambda query, x, y: regression.local_constant(query, x, y, 1.0),
    "kernel.parallax_error": lambda query, key, value, probe: regression.parallax(query, key, value, -probe),
    "weights.dispersion": weights.sparse,
    "weights.concentration": attend,
    "weights.retrieval_error": attend,
    "weights.retrieval_error_below": functools.partial(attend, normalizer=normalizers.TopK(1)),
    "weights.growth_sigmoid": weights.sigmoid_with_bias,
    "weights.growth": weights.sigmoid,
    "weights.sink_softmax": normalizers.ReluPower(1),
    "weights.sink_relu": normalizers.Softmax(),
    "weights.sink_softmax_loss": normalizers.Sigmoid(-20.0),
    "weights.sink_relu_loss": normalizers.Sigmoid(-20.0),
    "weights.own_value": attend,
    "weights.permutation_error": causal,
    "weights.closure_errors": causal,
    "memory.hebbian_crosstalk": fast_weights.delta,
    "memory.delta_last_error": fast_weights.hebbian,
    "memory.least_squares_residual": fast_weights.delta,
    "memory.exact_flow_error": lambda beta, key: beta,
    "memory.duality_error": lambda query, key, value, log_decay: fast_weights.linear(query, key, value),
    "memory.state_rank": attend,
    "memory.parity_positive": jnp.array([2.0]),
    "memory.parity_negative": jnp.array([0.5]),
}
"""{metric: a subject for which the law must fail}"""
TRAINED = [metric for metric in LAWS if "sink" in metric]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Fewer points, keys and steps: what is exact is so at any size, and a broken subject is far off."""
    monkeypatch.setattr(regression, "SIZES", (500, 2_000))
    monkeypatch.setattr(weights, "SIZES", (16, 4_096, 16_384))


def number(metric, subject) -> float:
    with jax.numpy_dtype_promotion("standard" if metric in TRAINED else "strict"):  # optax promotes its step count
        return LAWS[metric].measure(subject, 3)


def test_each_law_has_bounds_and_broken_subject():
    assert list(LAWS) == list(BOUNDS) == list(BROKEN)


@pytest.mark.parametrize("metric", slow_but([law for law in LAWS if law not in TRAINED], LAWS))
def test_law_holds_for_subject_fails_for_broken(metric):
    """One or two compiled programs for each subject; a head is trained for 2,000 steps in the slow tier."""
    actual = number(metric, LAWS[metric].subject)
    assert BOUNDS[metric].is_met(actual), actual
    broken_value = number(metric, BROKEN[metric])
    assert not BOUNDS[metric].is_met(broken_value), broken_value


def test_least_error_of_a_threshold_by_hand():
    """States 0, 0, 1, 2 of odd, even, odd, even: no threshold between equal states, 3 of 4 are right at best."""
    odd = np.array([True, False, True, False])
    assert fast_weights.best_threshold(np.array([0.0, 0.0, 1.0, 2.0]), odd) == 0.75
    assert fast_weights.best_threshold(np.array([1.0, 2.0, 1.0, 2.0]), odd) == 1.0
    assert fast_weights.best_threshold(np.zeros(4), odd) == 0.5


def linear(query, key, value):
    """Normalized linear attention with the features exp(x / 2), without this package."""
    weights = jnp.exp(query / 2) @ jnp.exp(key / 2).T
    return weights / weights.sum(1, keepdims=True) @ value


class Windowed:
    def __call__(self, query, key, value):
        return attend(query, key, value, mask=masks.window(len(key)))


HOLDS = {
    "linear": {"weights.dispersion", "weights.growth", "weights.permutation_error", "memory.state_rank"},
    "Windowed": {
        "kernel.rate_inside",
        "kernel.rate_boundary",
        "weights.dispersion",
        "weights.growth",
        "weights.permutation_error",
    },
}


def passport_of(name) -> dict[str, passport.Line]:
    lines = passport.lines(passport.attention_of(f"mine_laws:{name}"))
    return dict(zip([metric for metric, law in LAWS.items() if law.general], lines, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOLDS)
def test_passport_of_a_function_and_a_class(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "mine_laws", types.SimpleNamespace(**globals()))
    lines = passport_of(name)
    assert {metric for metric, line in lines.items() if line.verdict == "holds"} == HOLDS[name]
    assert {line.verdict for line in lines.values()} == {"holds", "fails"}


def scalar(query, key, value):
    return value.sum()


def square(query, key, value):
    """For as many queries as keys only."""
    if len(query) != len(key):
        raise ValueError("needs as many queries\nas keys")
    return attend(query, key, value)


def raise_error(query, key, value):
    raise ValueError("too short")


three = 3


@pytest.mark.parametrize(
    "name, message",
    [
        ("three", "must be a function .*, got int"),
        ("scalar", r"must return \[Q, V\] = .* value .*; got \[\]"),
        ("absent", "must be package.file:name"),
        ("raise_error", "cannot be measured: each law ended with ValueError: too short"),
    ],
)
def test_what_is_no_attention_function_is_refused(name, message, monkeypatch):
    """Nothing is compiled."""
    monkeypatch.setitem(sys.modules, "mine_laws", types.SimpleNamespace(**globals()))
    with pytest.raises(InputError, match=message):
        passport.passport_table(list(passport.lines(passport.attention_of(f"mine_laws:{name}"))), name)


def test_passport_says_why_a_law_cannot_run():
    bound = BOUNDS["weights.dispersion"]
    line = passport.measure_line(weights.dispersion, square, bound, "dispersion")
    assert (line.verdict, line.value) == ("ValueError: needs as many queries", None)
    row = ("dispersion", "ValueError: needs as many queries", "-", "-1.01 to -0.98")
    assert passport.passport_table([line, line._replace(value=0.5)], "").rows[0] == row


def test_page_has_bound_and_number_of_each_law():
    text = (Path(__file__).resolve().parents[2] / "docs/laws.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in text.splitlines() if "| `" in line]
    page_rows = {row[0].strip("`"): (row[3], row[4]) for row in rows if row[0].strip("`") in LAWS}
    runs = load_recorded_runs("laws")
    numbers = {metric: tables.number(median_value(bound, runs)) for metric, bound in BOUNDS.items()}
    assert page_rows == {metric: (bounds_text(BOUNDS[metric]), numbers[metric]) for metric in LAWS}
    general = [law.general for law in LAWS.values() if law.general]
    first = [line.removeprefix("| ").split(" | ")[0] for line in text.splitlines()]
    assert [cell for cell in first if cell in general] == general


@pytest.mark.slow
def test_the_study_measures_laws_and_plots_four_panels(tmp_path, monkeypatch):
    experiment = load_experiment("laws")
    laws = {metric: LAWS[metric] for metric in ("weights.permutation_error", "memory.parity_positive")}
    monkeypatch.setattr("attention_jax.laws.LAWS", laws)
    metrics = experiment.study(experiment.smoke(), tmp_path)
    assert all(BOUNDS[metric].is_met(metrics[metric]) for metric in laws)
    assert (tmp_path / "figures" / "panels.png").stat().st_size > 10_000


@pytest.mark.parametrize("attention, code", [([], 1), (["attention_jax:attend"], 0)], ids=["package", "own"])
def test_failing_law_is_error_in_this_package_only(attention, code, monkeypatch, capsys):
    line = passport.Line("a law", "fails", 2.0, "<= 1", 0.0)
    monkeypatch.setattr(passport, "lines", lambda attention: [line, line._replace(verdict="holds")])
    with pytest.raises(SystemExit) as stop:
        commands.laws(attention)
    assert stop.value.code == code
    assert re.search(r"a law +fails +2 +<= 1", capsys.readouterr().out)
