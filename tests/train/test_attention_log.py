"""`--train.log-attention`: the statistics of every head, computed beside the training step."""

import json
import types

import jax
import numpy as np
import pytest

from attention_jax import config as configs
from attention_jax.errors import InputError
from attention_jax.models.layer_stack import stack_layers
from attention_jax.models.multihead import MultiHeadAttention
from attention_jax.ops.masks import causal
from attention_jax.tasks import build
from attention_jax.train.loop import train_one


@pytest.mark.parametrize("normalizer", ["softmax", pytest.param("sparsemax", marks=pytest.mark.slow)])
def test_statistics_of_a_layer_against_float64(normalizer):
    """Those of a causal layer, from its own projections, over all queries of the batch that may attend to a key: five,
    two and none of three sequences. Another normalizer has the same largest logit."""
    x = np.random.default_rng(0).standard_normal((3, 6, 8)).astype(np.float32)
    module = MultiHeadAttention(2, 8, normalizer=normalizer)
    query_mask = np.arange(6) >= np.array([[1], [4], [6]])  # [B, Q]
    allowed = (np.tri(6, dtype=bool) & query_mask[..., None])[:, None]  # [B, 1, Q, K]
    mask = (causal(), allowed)
    variables = jax.jit(lambda rng: module.init(rng, x, x, x, mask=mask))(jax.random.key(0))
    assert {*variables} == {"params"}
    call = {"mask": mask, "return_weights": True, "mutable": ["attention_statistics"]}
    (_, weights), state = jax.jit(lambda variables: module.apply(variables, x, x, x, **call))(variables)
    [actual] = state["attention_statistics"]["attention_statistics"]
    params = jax.tree.map(np.float64, variables["params"])
    query, key = ((x @ params[n]["kernel"] + params[n]["bias"]).reshape(3, 6, 2, 4) for n in ("query", "key"))
    scores = np.einsum("bqhe,bkhe->bhqk", query, key) / 2.0
    scores = np.where(allowed, scores, -np.inf)
    w = np.float64(weights).swapaxes(1, 2)[query_mask]  # [7, H, K]
    entropy = -(w * np.log(np.where(w > 0, w, 1))).sum(-1)
    expected = np.stack([scores.max((0, 2, 3)), entropy.mean(0), w[..., 0].mean(0)], axis=1)
    np.testing.assert_allclose(actual, expected, atol=2e-6)


@pytest.fixture(scope="module")
def language(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "timemachine.txt"
    text.write_text("the time machine " * 40)
    data = configs.TimeMachine(str(text), 16, 40, 8)
    train = configs.Train(batch_size=4, total_epochs=1, max_steps=5, steps_per_call=1, log_attention=2)
    return build(configs.Config("x", data, configs.LanguageModelConfig(2, 8, 2, 8, dropout=0.1), train=train))


def unrolled_and_scanned(language) -> list:
    """Tasks whose models have the layers 0, and 1 and 2, as modules of their own and in a scan."""
    options = configs.replace(language.config.model, num_layers=3, per_layer="0:mask=window(4)")
    options = configs.replace(options, dropout=0.0, attention_dropout=0.0)
    models = [configs.replace(options, scan_layers=scan) for scan in (False, True)]
    return [build(configs.replace(language.config, model=model), language.data) for model in models]


def test_scanned_layers_have_the_names_of_layers(language):
    """Traced only."""
    batch, rng = language.first_batch(), jax.random.key(1)
    unrolled, scanned = (
        jax.eval_shape(lambda rng, task=task: task.attention_statistics(task.init(rng), batch, rng), rng)
        for task in unrolled_and_scanned(language)
    )
    assert unrolled == scanned and [*scanned] == [f"decoder.layer_{i}.attention" for i in range(3)]


@pytest.mark.slow
def test_scanned_layers_have_the_statistics_of_each_layer(language):
    """Three compiled programs."""
    unrolled, scanned = unrolled_and_scanned(language)
    params, batch, rng = unrolled.init(jax.random.key(0)), language.first_batch(), jax.random.key(1)
    stacked = stack_layers(params, unrolled.config.model)
    actual = jax.jit(scanned.attention_statistics)(stacked, batch, rng)
    expected = jax.jit(unrolled.attention_statistics)(params, batch, rng)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), actual, expected)


@pytest.mark.slow
@pytest.mark.parametrize("scan_layers", [False, True])
def test_logging_attention_changes_no_parameter(language, tmp_path, scan_layers):
    """The parameters of a run with and without it, bit for bit; lines for steps 2 and 4, of 2 layers of 2 heads."""
    model = configs.replace(language.config.model, scan_layers=scan_layers)
    language, ends = build(configs.replace(language.config, model=model), language.data), {}
    for every in (0, 2):
        (tmp_path / str(every)).mkdir()
        train = configs.replace(language.config.train, log_attention=every)
        ends[every] = train_one(language, configs.Optim(), train, tmp_path / str(every), quiet=True)[1]
    jax.tree.map(np.testing.assert_array_equal, *ends.values())
    rows = [json.loads(line) for line in (tmp_path / "2" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if any(name.startswith("attention.") for name in row)]
    assert [row["step"] for row in rows] == [2, 4] and len(rows[0]) == 1 + 2 * 2 * 3
    entropies = [value for name, value in rows[0].items() if name.endswith("entropy")]
    assert len(entropies) == 4 and all(0 < value < np.log(40) for value in entropies)


@pytest.mark.slow
def test_a_model_without_heads_is_refused_before_training(language, tmp_path):
    none = types.SimpleNamespace(
        **{name: getattr(language, name) for name in ("init", "loss", "plan", "buckets", "first_batch")}
    )
    none.attention_statistics, none.describe = (lambda params, batch, rng: {}), dict
    with pytest.raises(InputError, match="needs a model with multi-head attention"):
        train_one(none, configs.Optim(), language.config.train, tmp_path, quiet=True)
    assert not (tmp_path / "metrics.jsonl").exists()
