"""The sequence-to-sequence task on a corpus of ten sentences, for every family of models."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tiers import slow_but

from attention_jax import catalog, config as configs, tasks
from attention_jax.claims import record
from attention_jax.errors import InputError
from attention_jax.tasks import scoring, seq2seq
from attention_jax.train import placement
from experiments import bahdanau_length, input_feeding, multi30k_scores
from experiments.papers.options import ConvolutionalConfig, SutskeverConfig

MODELS = {
    "luong": configs.LuongSeq2seqConfig(hidden_size=8, embed_size=4),
    "translator": configs.BahdanauConfig(hidden_size=8, embed_size=4, readout_size=8),
    "convolutional": ConvolutionalConfig(8, 4, num_layers=2),
    "transformer": configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "pairs.tsv"
    words = ["a b c", "b c d a", "c", "d a", "a a b", "b", "c d", "d d d d", "a c", "b d"] * 3
    path.write_text("".join(f"{line} {i}\t{' '.join(reversed(line.split()))} .\n" for i, line in enumerate(words)))
    return configs.Corpus(tsv_file=str(path), held_out_fraction=0.2, max_length=12)


def build(corpus, model, **changes):
    config = configs.Config(
        "tiny", corpus, model, configs.Optim(), configs.Train(batch_size=4), configs.Decode(max_length=6, batch_size=4)
    )
    return tasks.build(configs.replace(config, **changes))


def begin(task):
    return jax.jit(task.init)(jax.random.PRNGKey(0))


RECURRENT = [
    name
    for name in catalog.experiment_names()
    if isinstance(catalog.load_experiment(name).config().model, configs.TranslatorConfig)
]


@pytest.mark.parametrize("name", [RECURRENT[0], *(pytest.param(n, marks=pytest.mark.slow) for n in RECURRENT[1:])])
def test_every_variant_of_the_experiments_is_traced(corpus, name):
    for variant, config in catalog.load_experiment(name).variants().items():
        task = build(corpus, config.model)
        params = jax.eval_shape(task.init, jax.random.PRNGKey(0))
        rows = {k: v[:4] for k, v in task.buckets[0].items()} | {"weight": np.ones(4, np.float32)}
        total = jax.eval_shape(task.loss, params, rows, jax.random.PRNGKey(0))[0]
        assert total.shape == (), variant


def test_different_vocabularies_do_not_share_embeddings(tmp_path):
    """Token 5 is another word on the other side."""
    path = tmp_path / "pairs.tsv"
    path.write_text("a b\tb a\nb c\tc b\nc\tc\na\ta\nc b\tb c\n" * 4)
    model, shared_data = (
        configs.TransformerConfig(1, 1, hidden_size=8, num_heads=2, mlp_dim=8, tied_embeddings="all"),
        configs.Corpus(tsv_file=str(path)),
    )
    assert build(shared_data, model).model.source_vocab == 7  # the same words, although not joint
    path = tmp_path / "other.tsv"
    path.write_text("a b\ty x\nb c\tz y\nc\tz\na\tx\nc b\ty z\n" * 4)
    data = configs.Corpus(tsv_file=str(path))
    with pytest.raises(
        InputError, match="--model.tied-embeddings all .* 7 .* --data.joint-vocabulary.*--model.tied-embeddings output"
    ):
        build(data, model)
    assert build(configs.replace(data, joint_vocabulary=True), model).model.source_vocab == 10


@pytest.mark.slow
@pytest.mark.parametrize("name", slow_but(["luong"], MODELS))
def test_loss_counts_real_tokens_of_rows_with_weight(corpus, name):
    task = build(corpus, MODELS[name])
    params = begin(task)
    rows = {k: v[:4] for k, v in task.buckets[0].items()}
    batch = lambda weight: rows | {"weight": np.array(weight, np.float32)}
    rng = jax.random.PRNGKey(1)
    loss = jax.jit(task.loss)
    total, count, _ = loss(params, batch([1, 1, 0, 0]), rng)
    assert float(count) == rows["target_length"][:2].sum()
    shuffled = rows | {"target": np.concatenate([rows["target"][:2], rows["target"][2:][::-1]])}
    again, _, _ = loss(params, shuffled | {"weight": np.array([1, 1, 0, 0], np.float32)}, rng)
    np.testing.assert_allclose(total, again, rtol=1e-5)  # rows of weight 0 add nothing
    assert float(loss(params, batch([0, 0, 0, 0]), rng)[0]) == 0.0


@pytest.mark.slow
def test_evaluation_counts_every_held_out_row_once(corpus):
    task = build(corpus, MODELS["luong"])
    params = begin(task)
    metrics, rebatched = (
        task.evaluate(params, False).metrics,
        build(corpus, MODELS["luong"], **{"decode.batch_size": 3}).evaluate(params, False).metrics,
    )
    assert metrics["valid.loss"] == pytest.approx(rebatched["valid.loss"], rel=1e-5)
    assert metrics["valid.perplexity"] == pytest.approx(np.exp(metrics["valid.loss"]), rel=1e-6)


@pytest.mark.slow
def test_loss_is_mean_over_tokens(corpus):
    task = build(corpus, MODELS["luong"])
    params = jax.tree.map(lambda x: 8 * x, begin(task))  # tokens of very different probabilities
    pairs = task.data.held_out["valid"]
    lengths = pairs.target_length[:4]
    assert len(set(lengths.tolist())) > 1

    def loss(rows) -> float:
        subset = task.data._replace(held_out={"valid": jax.tree.map(lambda x: x[rows], pairs)})
        return dataclasses.replace(task, data=subset).evaluate(params, False).metrics["valid.loss"]

    each = [loss(slice(i, i + 1)) for i in range(4)]
    assert np.std(each) > 0.1
    assert loss(slice(4)) == pytest.approx(np.average(each, weights=lengths), rel=1e-5)


def test_output_limit_ignores_test_references(corpus):
    task = build(corpus, MODELS["luong"], **{"decode.max_length": 0})
    longest = max(int(pairs.target_length.max()) for pairs in (*task.data.train, task.data.held_out["valid"]))
    assert task.decoding_limits["max_length"] == longest + longest // 2
    test = task.data.held_out["test"]
    longer = task.data.held_out | {"test": test._replace(target_length=test.target_length + 50)}
    assert dataclasses.replace(task, data=task.data._replace(held_out=longer)).decoding_limits == task.decoding_limits


def test_output_limit_of_packed_pairs_is_per_pair(corpus):
    packed = dataclasses.replace(corpus, packing=40)
    limits = build(packed, MODELS["transformer"], **{"decode.max_length": 0}).decoding_limits
    assert limits["max_length"] <= 18  # 1.5 x 12


@pytest.mark.slow
def test_a_second_evaluation_compiles_nothing(corpus):
    task = build(corpus, MODELS["luong"])
    params = begin(task)
    task.evaluate(params, True)
    compiled, cached_programs = placement.row_program(task.score_rows), dict(placement.PROGRAMS[task])
    programs = compiled._cache_size()
    task.evaluate(params, True)
    assert (compiled._cache_size(), placement.PROGRAMS[task]) == (programs, cached_programs)
    assert placement.row_program(task.score_rows) is compiled and programs > 0


def test_full_evaluation_scores_translations_and_report_draws_them(corpus, tmp_path):
    task = build(corpus, MODELS["translator"])
    params = begin(task)
    evaluation = task.evaluate(params, True)
    assert {"test.bleu", "test.chrf", "test.exact_match", "valid.loss"} <= evaluation.metrics.keys()
    assert 0 <= evaluation.metrics["test.bleu"] <= 100
    assert evaluation.metrics["test.bleu_low"] <= evaluation.metrics["test.bleu_high"]
    assert not any("bleu" in name for name in task.evaluate(params, False).metrics), "BLEU is for the end of a run"
    assert {split: len(tokens) for split, tokens in evaluation.written.items()} == {
        split: len(pairs.source) for split, pairs in task.data.held_out.items()
    }
    (tmp_path / "figures").mkdir()
    figures = task.report(params, evaluation, tmp_path / "figures")
    assert {p.name for p in figures} == {"alignment.png"} and figures[0].stat().st_size > 2000  # all of one length
    assert "signature" in (tmp_path / "test.bleu.json").read_text()
    run = record.bleu_by_length(tmp_path)  # what the record keeps of what the run left
    [length_bin] = run["bleu_by_length"]["test"]
    three = {
        "bleu_by_length": {"test": [length_bin | {"low": low, "high": low + 9, "sentences": 9} for low in (1, 11, 21)]}
    }
    curves = bahdanau_length.figure({"attention": [three], "no-attention": [three]}, tmp_path / "curves.png")
    assert curves.stat().st_size > 2000
    assert all(bahdanau_length.figure({"attention": [r]}, tmp_path / "none.png") is None for r in (run, {}))


def test_figure_shows_finished_scores_only(tmp_path):
    scores = {"none": 14.0, "dot": 36.5, "dot-feeding": 37.0}
    recorded = {variant: [{"metrics": {"test.bleu": bleu}}] for variant, bleu in scores.items()}
    assert multi30k_scores.figure(recorded, tmp_path / "scores.png").stat().st_size > 2000


def test_input_feeding_curves_include_peer(tmp_path):
    history = [{"epoch": 1, "valid.loss": 4.8}, {"epoch": 2, "valid.loss": 3.9}]
    recorded = {variant: [{"history": history}] for variant in ("general", "scaled-feeding")}
    assert input_feeding.figure(recorded, tmp_path / "curves.png").stat().st_size > 2000


def test_input_feeding_claims_match_peer_file():
    file = Path(input_feeding.__file__).parent / "results" / "input_feeding_peer.json"
    last = {name: rows[-1]["valid.loss"] for name, rows in json.loads(file.read_text())["histories"].items()}
    [claim] = [claim for claim in catalog.load_experiment("input_feeding").claims if claim.published is not None]
    assert claim.published == round(last[claim.variant] - last[claim.minus], 3)


def test_predict_notes_texts_with_unknown_words(corpus, capsys):
    task = build(corpus, MODELS["luong"])
    task.predict(begin(task), ["a b", "a zebra c zoo", "c"], None)
    assert capsys.readouterr().err == "note: of 'a zebra c zoo' 2 tokens are not in the vocabulary\n"


def test_predict_notes_texts_longer_than_training(corpus, capsys):
    task = build(corpus, MODELS["luong"])
    longest = max(pairs.source.shape[1] for pairs in task.data.train)
    texts = [" ".join("a" * (longest - 1 + extra)) for extra in (0, 3)]  # and the end of the sequence
    task.predict(begin(task), texts, None)
    (note,) = capsys.readouterr().err.splitlines()
    assert f"has {longest + 3} tokens, the longest source in training has {longest}" in note


def test_a_model_without_attention_refuses_to_draw_it(corpus, tmp_path):
    task = build(corpus, SutskeverConfig(hidden_size=8, embed_size=4, readout_size=8))
    params = begin(task)
    with pytest.raises(InputError, match="no attention"):
        task.predict(params, ["a b"], tmp_path / "a.png")
    assert len(task.predict(params, ["a b", "c"], None)) == 2


@pytest.mark.slow
def test_beam_search_evaluates_the_loss_that_greedy_does():
    config = configs.Config("d", configs.Dates(examples=200), MODELS["luong"], decode=configs.Decode())
    task = tasks.build(config)
    params = begin(task)
    beam = tasks.build(configs.replace(config, **{"decode.beam_size": 2, "decode.length_penalty": "none"}))
    greedy_found, beam_found = task.evaluate(params, True).metrics, beam.evaluate(params, True).metrics
    assert greedy_found["test.loss"] == pytest.approx(beam_found["test.loss"])
    assert set(greedy_found) >= {"test.exact_match", "test.exact_match_unseen"}


def test_lengths_are_mixed_step_by_step(corpus):
    several = configs.replace(corpus, held_out_fraction=0.1)
    task = build(several, MODELS["luong"])
    assert len(task.buckets) > 1
    assert {indices.shape[0] for _, indices, _ in task.plan(0, 32)} == {1}
    single_bucket = build(configs.replace(several, max_buckets=1), MODELS["luong"])
    assert max(indices.shape[0] for _, indices, _ in single_bucket.plan(0, 32)) > 1


def test_empty_output_has_attention_maps(corpus, tmp_path):
    task = build(corpus, MODELS["luong"])
    source = {"source": task.buckets[0]["source"][:1], "source_length": task.buckets[0]["source_length"][:1]}
    nothing = np.full((1, 3), task.data.target_vocabulary.eos_id, np.int32)
    weights = {"cross_attention": np.ones((1, 1, 1, 3, source["source"].shape[1])) / 4}
    path = seq2seq.draw_alignment(weights, task.data, source, nothing, False, tmp_path / "look.png")
    assert path.stat().st_size > 1000


def test_report_example_has_fewest_unknown_tokens(corpus):
    data = build(corpus, MODELS["luong"]).data
    source = np.full((3, 4), data.source_vocabulary.eos_id)
    output = np.full((3, 5), data.target_vocabulary.eos_id)
    source[0, 0], output[1, :2] = data.source_vocabulary.unk_id, data.target_vocabulary.unk_id
    assert seq2seq.clearest_row(data, {"source": source}, output) == 2
    assert seq2seq.clearest_row(data, {"source": source[:2]}, output[:2]) == 0


def test_truncated_output_does_not_match_longer_target(corpus):
    data = build(corpus, MODELS["translator"]).data
    target, length = data.held_out["test"].target[:, 1:], data.held_out["test"].target_length
    assert scoring.score_outputs(data, "test", target)["exact_match"] == 1.0
    assert scoring.score_outputs(data, "test", target[:, : length.max() - 1])["exact_match"] == np.mean(
        length < length.max()
    )


def test_packing_is_refused_without_masks_or_positions(corpus):
    packed = {"data.packing": 64, "data.max_length": 40}
    learned = configs.TransformerConfig(1, 1, 8, 2, 8, position_embedding="learned", max_length=39)
    with pytest.raises(InputError, match="--model.max-length 39: raise it to 40"):
        build(corpus, learned, **packed)
    with pytest.raises(InputError, match="which Bahdanau does not"):
        build(corpus, MODELS["translator"], **packed)


@pytest.mark.parametrize("name", ["learned", "convolutional"])
def test_decoding_beyond_learned_positions_is_refused(corpus, name):
    learned = configs.TransformerConfig(1, 1, 8, 2, 8, position_embedding="learned", max_length=16)
    model = learned if name == "learned" else dataclasses.replace(MODELS["convolutional"], max_length=16)
    trace_init = lambda length: jax.eval_shape(
        build(corpus, model, **{"decode.max_length": length}).init, jax.random.key(0)
    )
    trace_init(16)
    with pytest.raises(InputError, match="17.* --model.max-length 16.*--decode.max-length"):
        trace_init(17)


@pytest.mark.slow
def test_target_padding_is_ignored(corpus):
    """Two programs. The last token of every target is declared padding, and then is another token."""
    task = build(corpus, MODELS["luong"])
    params, rng = begin(task), jax.random.PRNGKey(1)
    rows = {k: v[:4] for k, v in task.buckets[0].items()} | {"weight": np.ones(4, np.float32)}
    rows |= {"target_length": rows["target_length"] - 1}
    target, ends = rows["target"].copy(), rows["target_length"] + 1
    target[np.arange(4), ends] = (target[np.arange(4), ends] + 1) % 4
    loss, scores = jax.jit(task.loss), jax.jit(task.score_rows)
    total, count, _ = loss(params, rows, rng)
    np.testing.assert_allclose(loss(params, rows | {"target": target}, rng)[0], total, rtol=1e-6)
    original, again = scores(params, rows), scores(params, rows | {"target": target})
    np.testing.assert_allclose(again["loss"], original["loss"], rtol=1e-6)
    np.testing.assert_array_equal(original["tokens"], rows["target_length"])
    assert float(count) == rows["target_length"].sum() and original["correct"].tolist() == again["correct"].tolist()
    batch = {"target": np.array([[1, 5, 6, 2], [1, 5, 2, 0]]), "target_length": np.array([3, 2])}
    assert seq2seq.target_mask(batch).astype(int).tolist() == [[1, 1, 1], [1, 1, 0]]


def test_decoder_input_is_shifted_target():
    target, mixed = np.array([[1, 5, 6, 2]]), np.array([[0, 0, 1]])
    assert seq2seq.target_in({"target": target}).tolist() == [[1, 5, 6]]
    assert seq2seq.target_in({"target": target, "target_segment": mixed}).tolist() == [[1, 5, 1]]
