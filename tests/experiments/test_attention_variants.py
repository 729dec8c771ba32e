"""Variants of attention compared: equal sizes, measurements that are known by hand, and the variant of the page."""

import dataclasses
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw

from attention_jax import interpret, models, tasks
from attention_jax.catalog import load_experiment
from attention_jax.config import replace
from attention_jax.models.transformer import count_parameters
from attention_jax.runs import lifecycle
from experiments import attention_variants

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = attention_variants.variants()


def count(options, vocabulary: int) -> int:
    model = models.LanguageModel(options, vocab=vocabulary)
    return count_parameters(jax.eval_shape(model.init, jax.random.key(0), jnp.ones((1, 8), jnp.int32)))


@pytest.mark.slow
@pytest.mark.parametrize("name", VARIANTS)
def test_variants_have_equal_parameters_and_training(name):
    config, baseline = VARIANTS[name], VARIANTS["softmax"]
    assert dataclasses.replace(config, model=baseline.model) == baseline
    assert count(config.model, 66) == pytest.approx(count(baseline.model, 66), rel=0.01)


@pytest.fixture
def text(tmp_path):
    (tmp_path / "input.txt").write_text("To be, or not to be. " * 400)
    return str(tmp_path)


def initial_model(text: str, **options):
    """A task of windows of 8 characters and initial parameters, with other options of the model."""
    changes = {f"model.{name}": value for name, value in options.items()}
    task = tasks.build(replace(attention_variants.smoke(), **{"data.path": text}, **changes))
    return task, draw(task.init)


def test_equal_weights_have_the_numbers_of_harmonic_sums(text):
    """Query i of 8 gives 1 / i to each key; with the largest alone, 28 of 36 weights are 0."""
    numbers = attention_variants.attention_numbers(*initial_model(text, score="mean"))
    assert numbers["attention.first_token"] == pytest.approx(sum(1 / i for i in range(1, 9)) / 8, rel=1e-5)
    assert numbers["attention.entropy"] == pytest.approx(sum(math.log(i) for i in range(1, 9)) / 8, rel=1e-5)
    assert numbers["attention.sink_rate"] == 1.0 and numbers["attention.zeros"] == 0.0  # 0.34 is above 0.3
    single = attention_variants.attention_numbers(*initial_model(text, normalizer="top_k(1)"))
    assert single["attention.zeros"] == pytest.approx(28 / 36) and single["attention.entropy"] == 0.0


@pytest.mark.slow
def test_stream_numbers_are_those_of_the_last_layer(text):
    """Of one layer, over the same windows."""
    task, params = initial_model(text)
    rows = task.data.held_out["valid"]
    rows = rows[:: max(len(rows) // 64, 1)][:64, :-1]
    stream = np.asarray(interpret.trace(task.model, params, rows)["decoder.residual_out"])
    numbers = attention_variants.attention_numbers(task, params)
    assert numbers["stream.largest"] == pytest.approx(np.abs(stream).max())
    z = (stream - stream.mean()) / stream.std()
    assert numbers["stream.kurtosis"] == pytest.approx((z**4).mean(), rel=1e-4)
    assert attention_variants.kurtosis(jnp.array([-1.0, 1.0])) == 1.0


@pytest.mark.slow
def test_a_run_has_the_metrics_of_claims_and_tables(text, tmp_path):
    config = replace(attention_variants.smoke(), **{"data.path": text})
    metrics = lifecycle.start(config, tmp_path / "run", study=attention_variants.study, quiet=True)["metrics"]
    experiment = load_experiment("attention_variants")
    columns = {metric for grid in experiment.grids for metric in grid.columns.values()}
    assert {claim.metric for claim in experiment.claims} | columns <= set(metrics)
    assert {claim.variant for claim in experiment.claims} <= set(VARIANTS)
    assert metrics["cost.parameters"] == count(config.model, 11) and metrics["cost.temporary_mib"] > 0


@pytest.mark.slow
def test_the_variant_of_the_page_trains(text, tmp_path, monkeypatch):
    page = (ROOT / "docs/attention_variants.md").read_text(encoding="utf-8")
    [code] = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "mine.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"data.path": text, "model.normalizer": "mine:Softplus"}
    config = replace(attention_variants.smoke(), **changes)
    result = lifecycle.start(config, tmp_path / "run", study=attention_variants.study, quiet=True)
    assert 0 < result["metrics"]["valid.loss_8x"] < 10
