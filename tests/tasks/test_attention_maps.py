"""What tasks say of where their models look is what the models compute."""

import functools
import json
import re
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from contract import draw
from site_models import family
from tiny import builder

from attention_jax import catalog, config as configs, interpret
from attention_jax.errors import InputError
from attention_jax.pretrained.decoder_model import PretrainedLanguageModel
from attention_jax.report.attention_page import page
from attention_jax.tasks import run_figures
from attention_jax.tasks.attention_maps import rollout
from attention_jax.train import placement
from experiments import head_pruning, nadaraya_watson
from experiments.papers.options import CCTConfig


@pytest.fixture(scope="module")
def task_of(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("tiny"))


def init_params(task):
    return draw(task.init)


@functools.partial(jax.jit, static_argnums=0)
def apply_with_weights(model, params, *inputs):
    return model.apply({"params": params}, *inputs, return_weights=True)


def run_model(task, params, *inputs):
    """(output, intermediates) of the model itself."""
    return apply_with_weights(task.model, params, *map(np.asarray, inputs))


@pytest.fixture(scope="module")
def transformer(task_of):
    """A Transformer with a beam of two, and where it looks at two texts of one length."""
    model = configs.TransformerConfig(2, 1, hidden_size=8, num_heads=2, mlp_dim=8)
    task = task_of(model, **{"decode.beam_size": 2, "decode.length_penalty": "none"})
    params = init_params(task)
    return task, params, task.attention_maps(params, ["b c a 3", "c a b c"])


@pytest.mark.slow
def test_ablated_head_of_shared_layer_is_off_everywhere(task_of):
    task = task_of(configs.TransformerConfig(2, 1, hidden_size=8, num_heads=2, mlp_dim=8, shared_layers=True))
    params = init_params(task)
    [encoder, *_] = task.attention_maps(params, ["b c a 3"])[0].predictions[0].attentions
    assert encoder.head_ablation.shape == (2, 2) and np.array_equal(*encoder.head_ablation)
    assert encoder.head_ablation[0, 0] != encoder.head_ablation[0, 1]


@pytest.mark.slow
def test_each_hypothesis_has_its_own_weights(transformer):
    task, params, looked = transformer
    source, target = task.data.source_vocabulary, task.data.target_vocabulary
    assert [record.title for record in looked] == ["b c a 3", "c a b c"] and [
        len(record.predictions) for record in looked
    ] == [
        2,
        2,
    ]
    for answer in (answer for record in looked for answer in record.predictions):
        encoder, decoder, cross = answer.attentions
        assert (encoder.kind, decoder.kind, cross.kind) == ("encoder", "decoder", "cross")
        read, words = cross.keys.tokens, cross.queries.tokens
        assert read[-1] == "<eos>" and decoder.keys.tokens == ("<bos>", *words[:-1])
        target_in = np.full((1, 6), target.pad_id)
        target_in[0, : len(words)] = target.encode(decoder.keys.tokens)
        logits, weights = run_model(task, params, [source.encode(read)], [len(read)], target_in)
        for attention in answer.attentions:
            expected = weights[f"{attention.kind}_attention"][0, :, :, : attention.weights.shape[2]]
            np.testing.assert_allclose(attention.weights, expected[..., : attention.weights.shape[3]], atol=1e-5)
        np.testing.assert_allclose(encoder.rollout, jax.jit(rollout)(weights["encoder_attention"][0]), atol=1e-5)
        each = np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(words)), target.encode(words)]
        assert answer.value == pytest.approx(each.sum(), rel=1e-4)
        assert answer.score == pytest.approx(answer.value, rel=1e-4)  # of a beam without a penalty
    assert all(record.predictions[0].score >= record.predictions[1].score for record in looked)
    assert len({record.predictions[0].attentions[0].keys.tokens for record in looked}) == 2


PLACES = {
    "encoder": ("encoder", "layer_1", "attention"),
    "decoder": ("decoder", "layer_0", "attention"),
    "cross": ("decoder", "layer_0", "cross_attention"),
}


@pytest.mark.slow
def test_ablation_equals_zeroing_output_rows(transformer):
    """Against `experiments/head_pruning.py`, which multiplies every head by a mask."""
    task, params, looked = transformer
    batch = task.read([record.title for record in looked])
    rows = task.teacher_forced(batch, placement.map_batches(task.hypotheses, params, batch, 32)[0])
    for attention in looked[0].predictions[0].attentions:
        place = PLACES[attention.kind]
        pruned = head_pruning.mask_heads(params, {place: np.array([1.0, 0.0], np.float32)})
        expected = placement.map_batches(task.log_p, pruned, rows, 32)[0]
        assert attention.head_ablation[int(place[1][-1]), 1] == pytest.approx(float(expected), rel=1e-4)
        assert (
            attention.head_ablation.shape == attention.weights.shape[:2]
            and abs(attention.head_ablation - looked[0].predictions[0].value).max() > 1e-4
        )


def test_reversed_source_is_shown_in_reading_order(task_of):
    task = task_of(
        configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4), data=configs.Dates(reverse_source=True, examples=200)
    )
    params = jax.tree.map(lambda x: 8 * x, init_params(task))  # weights that differ from query to query and key to key
    [record] = task.attention_maps(params, ["May 1, 1999"])
    [cross] = record.predictions[0].attentions
    assert "".join(cross.keys.tokens).strip().lower() == "may 1, 1999"
    assert record.predictions[0].text == task.predict(params, ["May 1, 1999"], None)[0]
    batch = task.read(["May 1, 1999"])
    rows = task.teacher_forced(batch, placement.map_batches(task.hypotheses, params, batch, 32)[0])
    weights = run_model(task, params, rows["source"], rows["source_length"], rows["target"][:, :-1])[1]
    np.testing.assert_allclose(cross.weights, weights["cross_attention"][0, ..., ::-1], atol=1e-5)
    assert np.abs(cross.weights - cross.weights[..., ::-1, ::-1]).max() > 1e-2
    assert cross.head_ablation is None and cross.rollout is None


@pytest.mark.slow
def test_language_model_attends_to_text_and_continuation(task_of):
    task = task_of(configs.LanguageModelConfig(2, 8, 2, 8))
    params = init_params(task)
    [record] = task.attention_maps(params, ["The time"])
    [attention] = record.predictions[0].attentions
    text = task.predict(params, ["The time"], None)[0]
    assert record.title == "The time" and record.predictions[0].text == text and attention.queries.tokens == tuple(text)
    weights = run_model(task, params, task.encode(text))[1]["decoder_attention"][0]
    np.testing.assert_allclose(attention.weights, weights, atol=1e-5)
    assert np.triu(attention.weights[0, 0], 1).max() == 0 and attention.head_ablation.shape == (2, 2)
    logits = run_model(task, params, task.encode(text))[0][0]
    assert attention.lens[-1] == tuple(task.data.vocabulary.decode(logits.argmax(-1))) and len(attention.lens) == 2
    assert {x.shape for x in attention.head_scores.values()} == {(2, 2)} and len(attention.head_scores) == 4


@pytest.mark.slow
def test_page_scores_and_lens_match_interpret():
    """From a pretrained model, whose texts are padded, to the page's JSON."""
    model, params, _, _ = family("scanned")
    names = list("abcdefghijk")
    tokenizer = types.SimpleNamespace(encode=lambda text, special=True: [*map(names.index, text)])
    tokenizer.tokens = lambda ids: [names[i] for i in ids]
    tokenizer.decode = lambda ids: "".join(tokenizer.tokens(ids))
    [record] = PretrainedLanguageModel(Path("x"), model.options, model, params, tokenizer).attention(["abcab"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', page([record], "x").html)[1])
    [answer] = data["inputs"][0]["answers"]
    [page_attention] = answer["attentions"]
    tokens = jnp.array([[0, 1, 2, 0, 1]])
    logits, weights = interpret.run(model, params, tokens, sites="*.weights")
    scores = interpret.head_scores(jnp.stack(list(weights.values()), axis=1), tokens)
    assert list(page_attention["scores"]) == list(scores) and scores["induction"].min() > 0
    for kind, score in scores.items():
        np.testing.assert_allclose(page_attention["scores"][kind], score, atol=6e-5)
    lens = interpret.logit_lens(model, params, tokens)
    expected = [tokenizer.tokens(lens[f"decoder.{i}.residual_out"][0].argmax(-1)) for i in range(2)]
    assert page_attention["lens"] == expected and len({*map(tuple, expected)}) == 2
    assert answer["text"] == f"then {names[logits[0, -1].argmax()]!r}"


@pytest.mark.slow
def test_images_are_shown_as_the_model_reads_them(task_of):
    task = task_of(CCTConfig(hidden_size=16, mlp_dim=16, num_layers=2))
    params = init_params(task)
    looked = task.attention_maps(params, [])
    test = task.data.held_out["test"]
    first = np.argmax(test.label == np.unique(test.label)[0])
    logits, weights = run_model(task, params, task.preparation.for_evaluation(test.image[first : first + 1]))
    [answer], images = looked[0].predictions, [record.predictions[0].attentions[0].keys.image for record in looked]
    assert answer.value == pytest.approx(float(jax.nn.softmax(logits[0]).max()), rel=1e-4)
    np.testing.assert_allclose(answer.attentions[0].weights, weights["encoder_attention"][0], atol=1e-5)
    assert all(image.shape == images[0].shape and image.dtype == np.uint8 for image in images)
    np.testing.assert_array_equal(images[0], test.image[first])
    encoder, pool = answer.attentions
    np.testing.assert_allclose(pool.weights[0, 0, 0], weights["pool_attention"][0], atol=1e-5)
    assert encoder.head_ablation.shape == encoder.weights.shape[:2] and (encoder.kind, pool.kind) == ("encoder", "pool")


@pytest.mark.slow
def test_a_machine_shows_its_heads_over_time(task_of):
    task = task_of(configs.NTMConfig(hidden_size=8, num_locations=8, word_size=4))
    params = init_params(task)
    [record] = task.attention_maps(params, ["10110010 01101100"])
    [memory] = record.predictions[0].attentions
    inputs = memory.queries.channels["inputs"]
    weights = run_model(task, params, inputs[None])[1]
    assert memory.heads == ("write head 1", "read head 1") and inputs.shape == (5, 9)
    np.testing.assert_allclose(memory.weights[0, 0], weights["write"][0, :, 0], atol=1e-5)
    np.testing.assert_allclose(memory.weights[0, 1], weights["read"][0, :, 0], atol=1e-5)
    assert record.predictions[0].text == task.predict(params, ["10110010 01101100"])[0]
    with pytest.raises(InputError, match="words of 8 bits"):
        task.attention_maps(params, ["12"])


@pytest.mark.slow
def test_kernel_regression_shows_what_it_weighs():
    from attention_jax import attend
    from attention_jax.ops.scores import Gaussian

    config = nadaraya_watson.config()
    [record] = nadaraya_watson.attention_maps(config, ["1.5", "2.5"])
    kernels = record.predictions[0].attentions[0]
    estimate = kernels.weights[0, 0] @ kernels.values
    x = jnp.asarray(kernels.keys.points)
    again = attend(jnp.array([[1.5], [2.5]]), x, jnp.asarray(kernels.values)[:, None], score=Gaussian())
    np.testing.assert_allclose(estimate, again[:, 0], rtol=1e-5)
    assert kernels.heads == ("Gaussian", "Boxcar", "Constant", "Triangular")
    assert len(nadaraya_watson.attention_maps(config, [])[0].predictions[0].attentions[0].queries.tokens) == 50
    with pytest.raises(InputError, match="is a number, such as 2.5"):
        nadaraya_watson.attention_maps(config, ["two"])
    assert catalog.load_experiment("nadaraya_watson").attention_maps is nadaraya_watson.attention_maps


def test_a_model_without_attention_has_no_page(task_of):
    task = task_of(configs.StackedLSTMConfig(num_layers=1, hidden_size=8))
    assert run_figures.attention_page(task, init_params(task)) is None
