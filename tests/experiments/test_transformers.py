"""The Transformer experiments: what can be checked of them without training."""

import flax.linen as nn
import jax
import numpy as np
import pytest

from attention_jax import config as configs, tasks
from attention_jax.catalog import load_experiment
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import Transformer, count_parameters
from attention_jax.train import placement
from attention_jax.train.optimizer import schedule
from experiments import (
    head_pruning,
    language_model,
    multi30k_deen_transformer,
    multi30k_ende_tiny,
    norm_placement,
    table3_parameters,
    transformer_wmt14,
)


@pytest.mark.slow
def test_published_sizes():
    tiny = Transformer(multi30k_ende_tiny.config().model, 9716, 9716)
    tokens = jax.numpy.ones((1, 3), int)
    count = lambda model: count_parameters(jax.eval_shape(model.init, jax.random.key(0), tokens, tokens[0, :1], tokens))
    assert count(tiny) == 2_568_704
    assert count(Transformer(multi30k_deen_transformer.config().model, 7853, 5893)) == 9_038_341


@pytest.mark.slow
def test_preset_has_the_size_of_gpt2():
    """124,439,808 without the table of 1,024 learned positions, and with the biases of the output layer."""
    model = LanguageModel(language_model.presets()["gpt2"].model, vocab=50_257)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jax.numpy.ones((1, 8), int))
    assert count_parameters(shapes) == 124_439_808 - 1_024 * 768 + 50_257


def test_table3_rows_are_counted_as_by_hand():
    d, ffn, attention = 512, 2 * 512 * 2048 + 2048 + 512, 4 * (512 * 512 + 512)
    base = 6 * (3 * attention + 2 * ffn + 5 * 2 * d) + 40_745 * d
    model = table3_parameters.config().model
    assert table3_parameters.count(model) == base == 64_999_936
    # d_k 16: 18 attentions have queries and keys (and their biases) of 128 instead of 512 numbers
    narrow = configs.replace(model, **table3_parameters.ROWS["B: d_k 16"][0])
    assert table3_parameters.count(narrow) - base == -18 * 2 * 384 * 513


@pytest.mark.slow
def test_table3_rows_off_are_those_of_the_docstring():
    metrics = table3_parameters.study(table3_parameters.config(), None)
    wide = configs.replace(table3_parameters.config().model, **table3_parameters.ROWS["big"][0])
    for name, model in (("base", table3_parameters.config().model), ("big", wide)):
        counted = table3_parameters.count(model, vocabulary=37_000) / 1e6
        assert metrics[f"millions_of_37000.{name}"] == pytest.approx(counted)
    assert metrics["difference.B: d_k 16"] == pytest.approx(-18 * 2 * 384 * 513 / 1e6)
    off = {
        c.metric
        for c in load_experiment("table3_parameters").claims
        if c.metric.startswith("difference") and abs(metrics[c.metric] - c.published) > 1
    }
    assert off == {"difference.big"}


@pytest.mark.parametrize(("variant", "peak"), [("base", 6.99e-4), ("big", 4.94e-4)])
def test_wmt14_schedule_is_the_paper_s(variant, peak):
    config = transformer_wmt14.variants()[variant]
    rate = schedule(config.optim, 100_000)
    for step in (1, 1_000, 4_000, 40_000):  # equation 3
        expected = config.model.hidden_size**-0.5 * min(step**-0.5, step * 4_000**-1.5)
        assert float(rate(step - 1)) == pytest.approx(expected, rel=1e-5)
    assert float(rate(3_999)) == pytest.approx(peak, rel=1e-3)


@pytest.mark.slow
def test_norm_placement_runs_in_small(tmp_path, monkeypatch):
    monkeypatch.setattr(norm_placement, "DEPTHS", (2, 4))
    monkeypatch.setattr(norm_placement, "DRAWS", 1)
    metrics = norm_placement.study(norm_placement.smoke(), tmp_path)
    assert set(metrics) == {f"{p}.{m}" for p in ("pre", "post") for m in ("slope", "norm_at_2", "norm_at_4")}
    assert all(abs(value) < 10 and value != 0 for value in metrics.values())
    assert (tmp_path / "figures" / "norms.png").stat().st_size > 5_000


@pytest.mark.slow
def test_masking_a_head_is_removing_its_output():
    """Zeroed rows of W_o and a head whose values are zero give the same logits; a mask of ones changes nothing."""
    config = head_pruning.smoke()
    model = Transformer(config.model, 20, 20)
    source, length, target = jax.numpy.array([[4, 5, 6]]), jax.numpy.array([3]), jax.numpy.array([[1, 7, 8]])
    params = jax.jit(model.init)(jax.random.key(0), source, length, target)["params"]
    run = jax.jit(lambda p: model.apply({"params": p}, source, length, target)[0])
    paths = head_pruning.heads(params)
    assert paths == [
        ("encoder", "layer_0", "attention"),
        ("decoder", "layer_0", "attention"),
        ("decoder", "layer_0", "cross_attention"),
    ]
    keep = {path: jax.numpy.ones(2) for path in paths}
    assert (run(head_pruning.mask_heads(params, keep)) == run(params)).all()
    pruned = head_pruning.mask_heads(params, keep | {paths[2]: jax.numpy.array([1.0, 0.0])})
    silent = jax.tree.map(lambda x: x, params)
    value = silent["decoder"]["layer_0"]["cross_attention"]["value"]
    width = value["bias"].shape[0] // 2
    value["kernel"], value["bias"] = value["kernel"].at[:, width:].set(0.0), value["bias"].at[width:].set(0.0)
    assert abs(run(pruned) - run(silent)).max() < 1e-6
    assert abs(run(pruned) - run(params)).max() > 1e-4


@pytest.fixture
def corpus(tmp_path):
    """Sentences of two to four words and their reversals, in one file."""
    words = ["red", "blue", "big", "small", "dog", "cat", "runs", "sleeps", "here", "there"]
    rows = [[a, b, c][: 2 + len(a) % 2] for a in words for b in words for c in words[:2] if a < b]
    (tmp_path / "pairs.tsv").write_text("".join(f"{' '.join(row)}\t{' '.join(row[::-1])}\n" for row in rows))
    return configs.Corpus(tsv_file=str(tmp_path / "pairs.tsv"), held_out_fraction=0.1)


@pytest.fixture
def tiny_task(corpus):
    return tasks.build(configs.replace(head_pruning.smoke(), data=corpus))


def initial_params(task):
    return jax.jit(task.init)(jax.random.key(0))


@pytest.mark.slow
def test_importance_is_a_slow_loop_over_positions(tiny_task):
    """The authors' sum: |output . gradient of the output| at each position of each training sentence, one at a time."""
    params = initial_params(tiny_task)
    paths, count = head_pruning.heads(params), tiny_task.config.model.num_heads

    def outputs_and_slopes(row):
        """{path: the heads' output [1, T, H V]} of one sentence without padding, and the gradients of its loss."""
        source, target = row["source"][: row["source_length"]], row["target"][: row["target_length"] + 1]

        def loss(offsets, outputs):
            def add(call, args, kwargs, context):
                path = context.module.path[:-1]
                if context.module.path[-1:] != ("out",) or path not in paths:
                    return call(*args, **kwargs)
                outputs[path] = args[0]
                return call(args[0] + offsets.get(path, 0.0))

            with nn.intercept_methods(add):
                inputs = source[None], row["source_length"][None], target[None, :-1]
                logits, _ = tiny_task.model.apply({"params": params}, *inputs)
            return -jax.nn.log_softmax(logits[0])[np.arange(len(target) - 1), target[1:]].sum()

        outputs = {}
        loss({}, outputs)
        zeros = jax.tree.map(lambda x: np.zeros(x.shape, np.float32), outputs)
        return outputs, jax.grad(lambda offsets: loss(offsets, {}))(zeros)

    rows = {name: array[:2] for name, array in tiny_task.buckets[0].items()}
    padded = rows | {name: np.pad(rows[name], ((0, 0), (0, 3))) for name in ("source", "target")}
    fast = jax.jit(lambda batch: head_pruning.sensitivities(tiny_task, params, batch))(padded)
    for i in range(2):
        row = {name: array[i] for name, array in rows.items()}
        outputs, slopes = jax.jit(lambda row=row: outputs_and_slopes(row))()
        for path in paths:
            output, slope = (np.asarray(x[path])[0].reshape(-1, count, 8) for x in (outputs, slopes))  # [T, H, V]
            slow = [sum(abs(o @ s) for o, s in zip(output[:, h], slope[:, h])) for h in range(count)]
            np.testing.assert_allclose(fast[path][i], slow, rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_importance_sums_the_training_set(tiny_task):
    params = initial_params(tiny_task)
    measure = lambda p, batch: head_pruning.sensitivities(tiny_task, p, batch)
    batch_sums = [placement.map_batches(measure, params, bucket, 16) for bucket in tiny_task.buckets]
    for path, actual in head_pruning.importance(tiny_task, params).items():
        total = sum(rows[path].sum(axis=0) for rows in batch_sums)
        np.testing.assert_allclose(actual, total / np.sqrt((total**2).sum()), rtol=1e-4)


def test_rescaled_remaining_heads_keep_their_sum():
    paths = [("encoder", "layer_0", "attention"), ("decoder", "layer_0", "attention")]
    removed = [(paths[0], 1), *((paths[1], head) for head in range(4))]
    plain, rescaled = (head_pruning.remaining(paths, 4, removed, rescale) for rescale in (False, True))
    assert plain[paths[0]].tolist() == [1, 0, 1, 1] and plain[paths[1]].tolist() == [0, 0, 0, 0]
    np.testing.assert_allclose(rescaled[paths[0]], [4 / 3, 0, 4 / 3, 4 / 3], rtol=1e-6)
    assert rescaled[paths[1]].tolist() == [0, 0, 0, 0]  # a layer without heads is no division by zero


@pytest.mark.slow
def test_head_pruning_runs_in_small(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(head_pruning, "TENTHS", (0, 5))
    monkeypatch.setattr(head_pruning, "RESCALED_TENTHS", (1,))
    monkeypatch.setattr(head_pruning, "RANDOM_TENTHS", (5,))
    metrics = head_pruning.study(configs.replace(head_pruning.smoke(), data=corpus), tmp_path / "run")
    assert set(metrics) == {
        *(f"valid.bleu{kind}.0%" for kind in ("", "_rescaled", "_random")),
        "valid.bleu.50%",
        "valid.bleu_rescaled.10%",
        "valid.bleu_random.50%",
        "harmless_share",
        "harmless_share_rescaled",
        "half.over_random",
        "gates.share",
        "gates.change",
    }
    assert metrics["half.over_random"] == metrics["valid.bleu.50%"] - metrics["valid.bleu_random.50%"]
    figure = head_pruning.figure({"": [{"metrics": metrics}, {"metrics": {"bleu.0%": 30.0}}]}, tmp_path / "figure.png")
    assert figure.stat().st_size > 5_000
