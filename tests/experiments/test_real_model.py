"""softmax_in_a_real_model on a small random model: its windows, its options, the tuned numbers and the intervals.

Four programs of two small layers: 8 s.
"""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention_jax
from attention_jax import catalog, config as configs
from attention_jax.claims import record
from attention_jax.models.language_model import LanguageModel
from attention_jax.pretrained import load
from experiments import softmax_in_a_real_model as real


@functools.cache
def small_model():
    options = configs.LanguageModelConfig(
        num_layers=2, hidden_size=16, mlp_dim=16, num_heads=2, num_kv_heads=1, scan_layers=True, use_bias=False
    )
    model = LanguageModel(options, vocab=300)
    return model, jax.jit(model.init)(jax.random.key(0), jnp.ones((1, 4), jnp.int32))["params"]


def test_window_and_first_are_two_masks():
    """By hand: of 6 positions, the query's own, the one before it, and the first."""
    allowed = np.asarray(real.window_and_first(2, 1)(jnp.arange(6), jnp.arange(6))) & np.tri(6, dtype=bool)
    rows = ["100000", "110000", "111000", "101100", "100110", "100011"]
    assert ["".join("01"[x] for x in row) for row in allowed.astype(int)] == rows


def test_every_variant_is_an_option_of_the_model():
    options = small_model()[0].options
    for changes in real.VARIANTS.values():
        LanguageModel(load.with_options(options, changes), vocab=300)


@pytest.mark.slow
def test_numbers_are_alpha_and_temperature_per_head():
    """At logit 0 and temperature 1 the model is entmax(1.5); a head's doubled queries are another kernel."""
    model, params = small_model()
    texts = {"time_machine": np.random.default_rng(0).integers(0, 300, (2, 16))}
    plain = real.losses(model, params, texts, normalizer="entmax(1.5)")
    start = real.with_numbers(model, params, jnp.zeros((2, 2, 2)))
    losses = real.losses(model, start, texts, normalizer="learned_entmax")
    np.testing.assert_allclose(losses["time_machine"], plain["time_machine"], rtol=1e-6)
    numbers = jnp.zeros((2, 2, 2)).at[1, 1, 0].set(jnp.log(2.0))
    kernel = lambda params: np.asarray(params["decoder"]["layers_0"]["attention"]["query"]["kernel"])
    ratio = kernel(real.with_numbers(model, params, numbers)) / kernel(params)
    assert (ratio[1, :8] == 2).all() and (ratio[0] == 1).all() and (ratio[1, 8:] == 1).all()


def test_metrics_are_paired_differences():
    """Windows differ by much more than what a variant adds to each: 0.2, 0.05 of which a token leaves."""
    plain, added = np.array([1.0, 3.0, 8.0]), np.array([0.19, 0.2, 0.21])
    rows = {"softmax": plain} | {name: plain + added for name in [*real.VARIANTS, "entmax_tuned"]}
    rows |= {f"window_{n}_first_1": plain + added / 4 for n in real.WINDOWS}
    metrics = real.metrics_of({name: dict.fromkeys(real.TEXTS, row) for name, row in rows.items()}, 0)
    assert metrics["shakespeare.top_k_8"] == pytest.approx(0.2) and metrics["shakespeare.loss"] == pytest.approx(4.0)
    assert 0.189 < metrics["shakespeare.top_k_8_low"] < 0.2 < metrics["shakespeare.top_k_8_high"] < 0.211
    assert metrics["repeated.first_token_regains_64"] == pytest.approx(0.75)
    assert {bound.metric for bound in catalog.load_experiment("softmax_in_a_real_model").thresholds} <= metrics.keys()


@pytest.mark.slow
def test_study_runs_and_resumes(tmp_path, monkeypatch):
    model, params = small_model()
    (tmp_path / "timemachine.txt").write_text("The time went by, " * 200)
    (tmp_path / "input.txt").write_text("To be, or not to be. " * 300)
    tokenizer = types.SimpleNamespace(encode=lambda text, special: list(text.encode()))
    loaded = types.SimpleNamespace(model=model, params=params, tokenizer=tokenizer)
    monkeypatch.setattr(attention_jax, "load_pretrained", lambda path: loaded)
    monkeypatch.setattr(real, "smollm2", lambda: "x.gguf")
    monkeypatch.setattr(real, "VARIANTS", {name: {"normalizer": "top_k(1)"} for name in real.VARIANTS})
    data = {f"data.{name}": str(tmp_path) for name in ("time_machine", "shakespeare")}
    config = configs.replace(catalog.load_experiment("softmax_in_a_real_model").smoke(), **data)
    with jax.numpy_dtype_promotion("standard"):  # optax raises a float to the power of an integer
        first = real.study(config, tmp_path)
        (tmp_path / "numbers.json").unlink()
        monkeypatch.setattr(real, "losses", None)
        assert real.study(config, tmp_path) == first and np.isfinite(list(first.values())).all()
    run = {"": [{"metrics": first}]}
    assert real.figure(run, tmp_path / "figure.png").stat().st_size > 10_000


def test_the_page_has_the_recorded_numbers():
    page = catalog.ROOT.parent / "docs" / "real_model.md"
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in page.read_text().splitlines()]
    page_rows = {row[0]: row[2:] for row in rows if len(row) == 5 and row[0] in real.LABELS.values()}
    [run] = record.load_recorded_runs("softmax_in_a_real_model")
    number = lambda name: "{:.3f} ({:.3f} to {:.3f})".format(
        *(run["metrics"][name + end] for end in ("", "_low", "_high"))
    )
    names = ["loss", *real.VARIANTS, "entmax_tuned"]
    assert page_rows == {real.LABELS[name]: [number(f"{text}.{name}") for text in real.TEXTS] for name in names}
