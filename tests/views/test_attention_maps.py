"""What tasks say of where their models look is what the models compute."""

import functools
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from site_models import family
from tiny import builder

from attention_jax import config as configs, interpret
from attention_jax.claims import catalog
from attention_jax.errors import InputError
from attention_jax.report.attention_page import page
from attention_jax.train import placement
from attention_jax.views import pretrained_language, run_figures, view_of
from attention_jax.views.pictures import rollout
from experiments import head_pruning, nadaraya_watson


@pytest.fixture(scope="module")
def task_of(tmp_path_factory):
    return builder(tmp_path_factory.mktemp("tiny"))


def begun(task):
    return jax.jit(task.init)(jax.random.PRNGKey(0))


@functools.partial(jax.jit, static_argnums=0)
def looked_at(model, params, *inputs):
    return model.apply({"params": params}, *inputs, return_weights=True)


def applied(task, params, *inputs):
    """(output, intermediates) of the model itself."""
    return looked_at(task.model, params, *map(np.asarray, inputs))


@pytest.fixture(scope="module")
def transformer(task_of):
    """A Transformer with a beam of two, and where it looks at two texts of one length."""
    model = configs.TransformerConfig(2, 1, hidden_size=8, num_heads=2, mlp_dim=8)
    task = task_of(model, **{"decode.beam_size": 2, "decode.length_penalty": "none"})
    params = begun(task)
    return task, params, view_of(task).attention_maps(params, ["b c a 3", "c a b c"])


@pytest.mark.slow
def test_a_head_of_a_layer_that_is_repeated_is_off_in_all_its_turns(task_of):
    task = task_of(configs.TransformerConfig(2, 1, hidden_size=8, num_heads=2, mlp_dim=8, shared_layers=True))
    params = begun(task)
    [encoder, *_] = view_of(task).attention_maps(params, ["b c a 3"])[0].predictions[0].attentions
    assert encoder.head_ablation.shape == (2, 2) and np.array_equal(*encoder.head_ablation)
    assert encoder.head_ablation[0, 0] != encoder.head_ablation[0, 1]


@pytest.mark.slow
def test_each_hypothesis_is_shown_with_the_weights_that_wrote_it(transformer):
    task, params, looked = transformer
    source, target = task.data.source_vocabulary, task.data.target_vocabulary
    assert [one.title for one in looked] == ["b c a 3", "c a b c"] and [len(one.predictions) for one in looked] == [
        2,
        2,
    ]
    for answer in (answer for one in looked for answer in one.predictions):
        encoder, decoder, cross = answer.attentions
        assert (encoder.kind, decoder.kind, cross.kind) == ("encoder", "decoder", "cross")
        read, words = cross.keys.tokens, cross.queries.tokens
        assert read[-1] == "<eos>" and decoder.keys.tokens == ("<bos>", *words[:-1])
        before = np.full((1, 6), target.pad_id)
        before[0, : len(words)] = target.encode(decoder.keys.tokens)
        logits, weights = applied(task, params, [source.encode(read)], [len(read)], before)
        for attention in answer.attentions:
            shown = weights[f"{attention.kind}_attention"][0, :, :, : attention.weights.shape[2]]
            np.testing.assert_allclose(attention.weights, shown[..., : attention.weights.shape[3]], atol=1e-5)
        np.testing.assert_allclose(encoder.rollout, jax.jit(rollout)(weights["encoder_attention"][0]), atol=1e-5)
        each = np.asarray(jax.nn.log_softmax(logits[0]))[np.arange(len(words)), target.encode(words)]
        assert answer.value == pytest.approx(each.sum(), rel=1e-4)
        assert answer.score == pytest.approx(answer.value, rel=1e-4)  # of a beam without a penalty
    assert all(one.predictions[0].score >= one.predictions[1].score for one in looked)
    assert len({one.predictions[0].attentions[0].keys.tokens for one in looked}) == 2


PLACES = {
    "encoder": ("encoder", "layer_1", "attention"),
    "decoder": ("decoder", "layer_0", "attention"),
    "cross": ("decoder", "layer_0", "cross_attention"),
}


def test_a_head_is_off_as_if_its_part_of_the_output_matrix_were_zero(transformer):
    """Against `experiments/head_pruning.py`, which multiplies every head by a mask."""
    task, params, looked = transformer
    batch = view_of(task).read([one.title for one in looked])
    rows = view_of(task).teacher_forced(batch, placement.map_batches(view_of(task).hypotheses, params, batch, 32)[0])
    for attention in looked[0].predictions[0].attentions:
        place = PLACES[attention.kind]
        pruned = head_pruning.masked(params, {place: np.array([1.0, 0.0], np.float32)})
        expected = placement.map_batches(view_of(task).log_p, pruned, rows, 32)[0]
        assert attention.head_ablation[int(place[1][-1]), 1] == pytest.approx(float(expected), rel=1e-4)
        assert (
            attention.head_ablation.shape == attention.weights.shape[:2]
            and abs(attention.head_ablation - looked[0].predictions[0].value).max() > 1e-4
        )


def test_a_source_that_is_read_from_its_end_is_shown_in_reading_order(task_of):
    task = task_of(
        configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4), data=configs.Dates(reverse_source=True, examples=200)
    )
    params = jax.tree.map(lambda x: 8 * x, begun(task))  # weights that differ from query to query and key to key
    [one] = view_of(task).attention_maps(params, ["May 1, 1999"])
    [cross] = one.predictions[0].attentions
    assert "".join(cross.keys.tokens).strip().lower() == "may 1, 1999"
    assert one.predictions[0].text == view_of(task).predict(params, ["May 1, 1999"], None)[0]
    batch = view_of(task).read(["May 1, 1999"])
    rows = view_of(task).teacher_forced(batch, placement.map_batches(view_of(task).hypotheses, params, batch, 32)[0])
    weights = applied(task, params, rows["source"], rows["source_length"], rows["target"][:, :-1])[1]
    np.testing.assert_allclose(cross.weights, weights["cross_attention"][0, ..., ::-1], atol=1e-5)
    assert np.abs(cross.weights - cross.weights[..., ::-1, ::-1]).max() > 1e-2
    assert cross.head_ablation is None and cross.rollout is None


@pytest.mark.slow
def test_language_models_look_at_the_text_and_what_they_add(task_of):
    task = task_of(configs.LanguageModelConfig(2, 8, 2, 8))
    params = begun(task)
    [one] = view_of(task).attention_maps(params, ["The time"])
    [own] = one.predictions[0].attentions
    text = view_of(task).predict(params, ["The time"], None)[0]
    assert one.title == "The time" and one.predictions[0].text == text and own.queries.tokens == tuple(text)
    weights = applied(task, params, view_of(task).encode(text))[1]["decoder_attention"][0]
    np.testing.assert_allclose(own.weights, weights, atol=1e-5)
    assert np.triu(own.weights[0, 0], 1).max() == 0 and own.head_ablation.shape == (2, 2)
    logits = applied(task, params, view_of(task).encode(text))[0][0]
    assert own.lens[-1] == tuple(task.data.vocabulary.decode(logits.argmax(-1))) and len(own.lens) == 2
    assert {x.shape for x in own.head_scores.values()} == {(2, 2)} and len(own.head_scores) == 4


def test_scores_and_the_lens_on_the_page_are_those_of_interpret():
    """From a pretrained model, whose texts are padded, to the page's JSON."""
    model, params, _, _ = family("scanned")
    names = list("abcdefghijk")
    tokenizer = types.SimpleNamespace(encode=lambda text: [*map(names.index, text)])
    tokenizer.tokens = lambda ids: [names[i] for i in ids]
    tokenizer.decode = lambda ids: "".join(tokenizer.tokens(ids))
    [record] = pretrained_language.attention_maps(model, params, tokenizer, ["abcab"])
    data = json.loads(re.search(r'id="data">(.*?)</script>', page([record], "x").html)[1])
    [answer] = data["inputs"][0]["answers"]
    [told] = answer["attentions"]
    tokens = jnp.array([[0, 1, 2, 0, 1]])
    logits, seen = interpret.run(model, params, tokens, sites="*.weights")
    scores = interpret.head_scores(jnp.stack(list(seen.values()), axis=1), tokens)
    assert list(told["scores"]) == list(scores) and scores["induction"].min() > 0
    for kind, found in scores.items():
        np.testing.assert_allclose(told["scores"][kind], found, atol=6e-5)
    lens = interpret.logit_lens(model, params, tokens)
    expected = [tokenizer.tokens(lens[f"decoder.{i}.residual_out"][0].argmax(-1)) for i in range(2)]
    assert told["lens"] == expected and len({*map(tuple, expected)}) == 2
    assert answer["text"] == f"then {names[logits[0, -1].argmax()]!r}"


@pytest.mark.slow
def test_images_are_shown_as_the_model_reads_them(task_of):
    task = task_of(configs.CCTConfig(hidden_size=16, mlp_dim=16, num_layers=2))
    params = begun(task)
    looked = view_of(task).attention_maps(params, [])
    test = task.data.held_out["test"]
    first = np.argmax(test.label == np.unique(test.label)[0])
    logits, weights = applied(task, params, task.preparation.for_evaluation(test.image[first : first + 1]))
    [answer], images = looked[0].predictions, [one.predictions[0].attentions[0].keys.image for one in looked]
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
    params = begun(task)
    [one] = view_of(task).attention_maps(params, ["10110010 01101100"])
    [memory] = one.predictions[0].attentions
    inputs = memory.queries.channels["inputs"]
    weights = applied(task, params, inputs[None])[1]
    assert memory.heads == ("write head 1", "read head 1") and inputs.shape == (5, 9)
    np.testing.assert_allclose(memory.weights[0, 0], weights["write"][0, :, 0], atol=1e-5)
    np.testing.assert_allclose(memory.weights[0, 1], weights["read"][0, :, 0], atol=1e-5)
    assert one.predictions[0].text == view_of(task).predict(params, ["10110010 01101100"])[0]
    with pytest.raises(InputError, match="words of 8 bits"):
        view_of(task).attention_maps(params, ["12"])


def test_kernel_regression_shows_what_it_weighs():
    from attention_jax import attend
    from attention_jax.ops.scores import Gaussian

    config = nadaraya_watson.config()
    [one] = nadaraya_watson.attention_maps(config, ["1.5", "2.5"])
    kernels = one.predictions[0].attentions[0]
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
    assert run_figures.attention_page(task, begun(task)) is None
