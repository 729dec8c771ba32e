"""heads_of_a_real_model on small random models: ablation, gradients, sinks, shares of attention, and the intervals."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw

import attention_jax
from attention_jax import catalog, config as configs
from attention_jax.claims import record
from attention_jax.claims.verdicts import JudgedClaim, is_met
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.models.language_model import LanguageModel
from experiments import heads_of_a_real_model as real

HEADS = 4


def small_model():
    options = configs.LanguageModelConfig(
        num_layers=2, hidden_size=16, mlp_dim=16, num_heads=2, num_kv_heads=1, scan_layers=True, use_bias=False
    )
    model = LanguageModel(options, vocab=300)
    return model, draw(model.init, jnp.ones((1, 4), jnp.int32))["params"]


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(0).integers(0, 300, (3, 16))


def with_factor(params, layer: int, head: int, factor: float):
    """The parameters with the columns of a head in the output matrix times a factor; heads have 8 of 16."""
    layers = params["decoder"]["layers_0"]
    kernel = np.array(layers["attention"]["out"]["kernel"])
    kernel[layer, :, 8 * head : 8 * head + 8] *= factor
    layers = layers | {"attention": layers["attention"] | {"out": {"kernel": kernel}}}
    return params | {"decoder": params["decoder"] | {"layers_0": layers}}


@pytest.mark.slow
def test_head_ablation_and_importance_match_output_columns(tokens):
    model, params = small_model()
    measure = real.mean_loss(tokens)
    losses = jax.jit(lambda params: measure(model.apply({"params": params}, tokens)[0]))
    loss = lambda params: np.asarray(losses(params), np.float64)
    without = real.ablation(model, params, tokens, measure)
    cut = with_factor(with_factor(params, 1, 1, 0.0), 0, 0, 0.0)
    np.testing.assert_allclose(without(np.isin(np.arange(HEADS), [0, 3])), loss(cut), rtol=1e-5)
    np.testing.assert_allclose(without(np.zeros(HEADS, bool)), loss(params), rtol=1e-5)
    slope = lambda layer, head: (
        (loss(with_factor(params, layer, head, 1.05)) - loss(with_factor(params, layer, head, 0.95))) / 0.1
    )
    expected = [np.abs(slope(*divmod(head, 2))).mean() for head in range(HEADS)]
    np.testing.assert_allclose(real.importance(model, params, tokens), expected, rtol=2e-2)
    logits = np.random.default_rng(0).normal(size=(3, 16, 300)).astype(np.float32)
    exp = np.exp(logits[:, 7])
    single_loss = jax.jit(real.mean_loss(tokens, 7, 8))(logits)
    np.testing.assert_allclose(single_loss, -np.log((exp[np.arange(3), tokens[:, 8]]) / exp.sum(1)), rtol=1e-5)


def small_encoder(layers: int = 2):
    """An encoder whose queries are zero: each key has the same weight."""
    options = configs.MaskedLanguageModelConfig(
        num_layers=layers, hidden_size=8, mlp_dim=8, num_heads=2, max_length=40, word_head=False
    )
    model = MaskedLanguageModel(options, vocab=300)
    params = draw(model.init, jnp.ones((1, 4), jnp.int32), jnp.array([4]))["params"]
    zero = lambda path, x: 0 * x if "query" in jax.tree_util.keystr(path) else x
    encode = lambda text, special=True: [1, *text.encode(), 2] if special else list(text.encode())
    params = jax.tree_util.tree_map_with_path(zero, params)
    return types.SimpleNamespace(model=model, params=params, tokenizer=types.SimpleNamespace(encode=encode))


def test_shares_of_equal_weights_count_the_keys():
    """18 tokens with [CLS] and [SEP], three of them periods or commas."""
    windows = np.array([list(b"So, it is. I, too!")])[:, :16]
    shares = real.encoder_shares(small_encoder(), windows)
    marks = sum(token in b".," for token in windows[0])
    expected = {"cls": 1 / 18, "sep": 1 / 18, "previous": 17 / 18**2, "next": 17 / 18**2, "mark": marks / 18}
    assert shares.keys() == expected.keys() == real.TARGETS.keys() and marks == 3
    for name, share in expected.items():
        np.testing.assert_allclose(shares[name], np.full((1, 2), share), rtol=1e-5)


def test_metrics_by_hand(monkeypatch):
    """Without the best heads half of what repetition gains is lost; two of four heads are sinks, and one is costly."""
    monkeypatch.setattr(real, "SHALLOW", 1)
    rng = np.random.default_rng(0)
    first, second = np.array([14.0, 16.0, 15.0]), np.array([4.0, 4.0, 4.0])
    losses = {"first": first, "second": second, "best": (first + second) / 2, "random": np.tile(second, (2, 1))}
    metrics = real.of_induction(losses | {"best_score": np.full(3, 0.9)}, rng)
    assert metrics["induction.lost_best"] == pytest.approx(0.5) == pytest.approx(metrics["induction.lost_best_high"])
    assert metrics["induction.lost_random"] == pytest.approx(0) and 4 < metrics["induction.loss_without_best"] < 10
    texts = np.array([[0.1, 0.2, 0.4, 0.8], [0.1, 0.3, 0.4, 0.8]])
    metrics = real.of_sinks({"texts": texts, "identical": texts[:, :2]}, 2, rng)
    assert metrics["first_token.sinks"] == 0.5 and metrics["first_token.sinks_identical"] == 0.0
    assert metrics["first_token.layer_0"] == pytest.approx(0.175)
    assert metrics["first_token.deep_less_shallow"] == pytest.approx(0.425)
    shares = np.array([0.001, 0.002, 0.009, 0.011, 0.005, 0.2, 0.3, 0.4])[:, None]
    plain = np.array([3.0, 4.0])
    effects = np.array([[0.01, 0.01], [-0.01, 0.0], [0.5, 0.5], [0.02, 0.02]])
    curve = plain + shares * plain.mean()
    values = {"plain": plain, "effects": effects, "importance": np.array([2.0, 1.0, 9.0, 3.0])}
    metrics = real.of_removals(values | {"ranked": curve, "random": curve + 0.1}, rng)
    assert metrics["spare.together"] == 0.15, (
        "20 percent cost 1.1 % of the loss, and what is cheap again does not count"
    )
    assert metrics["spare.alone"] == 0.75 and metrics["spare.rank_correlation"] == pytest.approx(1.0)
    assert metrics["spare.random_less_ranked"] == pytest.approx(0.1) and metrics["spare.ranked_15"] == pytest.approx(
        0.0315
    )
    values["importance"] = -values["importance"]
    metrics = real.of_removals(values | {"ranked": curve, "random": curve}, rng)
    assert metrics["spare.rank_correlation"] == pytest.approx(-1.0)


def test_orders_of_layers():
    """A share that falls with the layer, one that rises, and one that has its peak in the middle."""
    falls, peak = np.tile([6.0, 5, 4, 3, 2, 1], (2, 1)) / 10, np.tile([0.0, 0, 1, 1, 0, 0], (2, 1))
    shares = {"cls": falls, "sep": peak, "mark": 1 - falls, "previous": falls, "next": falls}
    metrics = real.of_encoder(shares, np.random.default_rng(0))
    assert metrics["minilm.cls_early_less_late"] == pytest.approx(0.4) == metrics["minilm.marks_late_less_early"]
    assert metrics["minilm.sep_middle_less_early"] == 1
    assert metrics["minilm.neighbors_first_half_less_second"] == pytest.approx(0.6)


def test_the_page_has_the_recorded_numbers_and_verdicts():
    experiment = catalog.load_experiment("heads_of_a_real_model")
    [run] = record.load_recorded_runs(experiment.name)
    page = catalog.ROOT.parent / "docs" / "real_model.md"
    text = page.read_text(encoding="utf-8").partition("## What the heads do")[2]
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if "| " in line]
    number = lambda name: "{:.3f} ({:.3f} to {:.3f})".format(
        *(run["metrics"][name + end] for end in ("", "_low", "_high"))
    )
    expected = [
        [number(claim.metric), JudgedClaim(experiment.name, claim, [run]).verdict] for claim in experiment.claims
    ]
    states = {True: "met", False: "not met"}
    expected += [[number(bound.metric), states[is_met(bound, [run])]] for bound in experiment.thresholds]
    assert sorted(row[3:] for row in rows if len(row) == 5 and "(" in row[3]) == sorted(expected)


@pytest.mark.slow
def test_study_has_all_claimed_metrics_and_resumes(tmp_path, monkeypatch):
    """Two small models: about a dozen programs."""
    model, params = small_model()
    (tmp_path / "timemachine.txt").write_text("The time, it went by. " * 300)
    (tmp_path / "input.txt").write_text("To be, or not to be. " * 300)
    encoder = small_encoder(layers=6)
    decoder = types.SimpleNamespace(model=model, params=params, tokenizer=encoder.tokenizer)
    monkeypatch.setattr(attention_jax, "load_pretrained", lambda path: encoder if path == "minilm" else decoder)
    monkeypatch.setattr(real, "smollm2", lambda: "x.gguf")
    monkeypatch.setattr(real, "minilm", lambda: "minilm")
    for name in ("BEST", "SHALLOW"):
        monkeypatch.setattr(real, name, 1)
    data = {f"data.{name}": str(tmp_path) for name in ("time_machine", "shakespeare")}
    experiment = catalog.load_experiment("heads_of_a_real_model")
    config = configs.replace(experiment.smoke(), **data)
    first = real.study(config, tmp_path)
    quantities = (*experiment.claims, *experiment.thresholds)
    assert {quantity.metric for quantity in quantities} <= first.keys() and np.isfinite(list(first.values())).all()
    for stage in ("scores", "ablation", "importance", "encoder_shares"):
        monkeypatch.setattr(real, stage, None)
    assert real.study(config, tmp_path) == first
    run = {"": [{"metrics": first}]}
    assert real.figure(run, tmp_path / "figure.png").stat().st_size > 10_000
