"""Fine-tuning a pretrained encoder on labeled texts, with its tokenizer and a new classifier."""

import importlib.util
import json
import shutil

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from test_launch import error_line, launch_here

from attention_jax import export_run, load_pretrained, load_run
from attention_jax.config import MaskedLanguageModelConfig, replace
from attention_jax.models.bert import MaskedLanguageModel
from attention_jax.pretrained import exchange
from attention_jax.runs import lifecycle, saved
from attention_jax.train.checkpoint import read_params
from experiments import classify_text
from tests.interruptions import interrupt_after

tokenizers = pytest.importorskip("tokenizers", reason="a pretrained tokenizer needs tokenizers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "a", "b", "c", "##d"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A random BERT with its tokenizer, whose embeddings have two more rows, and texts that one word decides."""
    place = tmp_path_factory.mktemp("encoder")
    options = MaskedLanguageModelConfig(hidden_size=8, num_heads=2, mlp_dim=8, num_layers=1, max_length=16, dropout=0.1)
    batch = np.ones((1, 2), np.int32), np.array([2], np.int32)
    params = jax.jit(MaskedLanguageModel(options, len(WORDS) + 2).init)(jax.random.key(0), *batch)["params"]
    exchange.write(exchange.Weights(options, exchange.flat(params), ""), place / "bert", "safetensors", "bert")
    tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(4)  # of the file, which --data.max-length takes the place of
    tokenizer.save(str(place / "bert" / "tokenizer.json"))
    rng = np.random.default_rng(0)
    lines = []
    for i in range(60):
        words = rng.choice(["a", "b", "cd", "x"], rng.integers(3, 30)).tolist()
        lines.append(f"{('good', 'bad')[i % 2]}\t{' '.join([('good', 'bad')[i % 2], *words])}\n")
    (place / "texts.tsv").write_text("".join(lines))
    return place


def settings(place, **changes):
    base = replace(classify_text.config(), **{"data.tsv_file": str(place / "texts.tsv"), "data.max_buckets": 1})
    return replace(lifecycle.with_weights(str(place / "bert"), base), **{"train.total_epochs": 2} | changes)


@pytest.mark.slow
def test_finetuning_starts_from_encoder_and_resumes_exactly(place, tmp_path):
    config = settings(place)
    assert config.data.pretrained == str(place / "bert") and config.data.max_length == 16
    with interrupt_after(1):
        lifecycle.start(config, tmp_path / "pieces", quiet=True)
    lifecycle.start(config, tmp_path / "pieces", quiet=True, resume=True)
    result = lifecycle.start(config, tmp_path / "whole", quiet=True)
    whole, pieces = (exchange.flat(read_params(tmp_path / name / "final")) for name in ("whole", "pieces"))
    pretrained = exchange.read(place / "bert").arrays
    assert whole.keys() - pretrained.keys() == {"head/kernel", "head/bias"}
    assert all("word_head" in name for name in pretrained.keys() - whole.keys())
    for name in whole:
        np.testing.assert_array_equal(whole[name], pieces[name])
    assert len(whole["embedding/token/embedding"]) == 13 and result["facts"]["vocabulary"] == 13
    unused = whole["embedding/token/embedding"][11:] / pretrained["embedding/token/embedding"][11:]
    assert (np.abs(unused - 1) < 0.01).all()  # only weight decay has changed them

    # The run needs the directory of the model no more, and cuts texts before their last token.
    (place / "bert").rename(tmp_path / "away")
    run = load_run(tmp_path / "whole")
    assert set(run.predict(["good a b", "bad"])[0].split()) & {"good", "bad"}
    [record] = run.attention(["good cd " + "a " * 30])
    tokens = record.predictions[0].attentions[0].keys.tokens
    assert tokens[:5] == ("[CLS]", "good", "c", "##d", "a") and tokens[-1] == "[SEP]" and len(tokens) == 16
    (tmp_path / "away").rename(place / "bert")


@pytest.mark.slow
def test_the_command(place, tmp_path):
    options = ("--data.tsv-file", place / "texts.tsv", "--train.max-steps", 2, "--out", tmp_path / "run")
    result = launch_here("train", "classify_text", "--from", place / "bert", *options)
    assert result.returncode == 0, result.stderr
    assert "the head re-initialized for 2 classes" in result.stdout and "left out (word_head/" in result.stdout
    message = error_line(
        "train", "classify_text", "--from", place / "bert", "--data.max-length", 17, *options[:-1], tmp_path / "long"
    )
    assert "--data.max-length must be at most 16" in message


def test_what_is_missing_is_one_line(place, tmp_path):
    (tmp_path / "bert").mkdir()
    for name in ("model.safetensors", "config.json"):
        (tmp_path / "bert" / name).write_bytes((place / "bert" / name).read_bytes())
    options = ("--data.tsv-file", place / "texts.tsv", "--out", tmp_path / "run")
    message = error_line("train", "classify_text", "--from", tmp_path / "bert", *options)
    assert "there is no" in message and "tokenizer.json" in message
    (tmp_path / "bert" / "tokenizer.json").write_text(json.dumps({"model": 1}))
    assert "is damaged" in error_line("train", "classify_text", "--from", tmp_path / "bert", *options)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_back_to_hugging_face(place, tmp_path):
    """From the command line; the run finds its model through the run before it, and says so where it is gone."""
    lifecycle.create_run(settings(place), tmp_path / "first")
    result = launch_here("export", tmp_path / "first", "--to", "huggingface", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "whose encode returns the logits" in result.stdout  # the file has no pooler
    model, run = load_pretrained(tmp_path / "out"), load_run(tmp_path / "first")
    for name, array in exchange.flat(run.params).items():
        np.testing.assert_array_equal(exchange.flat(model.params)[name], array)
    classes = [line.partition(",")[0] for line in run.predict(["good a b", "bad " * 30])]
    assert model.predict(["good a b", "bad " * 30]) == classes
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (place / "bert" / "tokenizer.json").read_bytes()

    # a run of that run, whose configuration names no pretrained model
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    config["data"]["pretrained"], config["train"]["init_weights"] = "", str(tmp_path / "first")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    (tmp_path / "second" / "config.json").write_text(json.dumps(config))
    assert saved.source_of(tmp_path / "second") == place / "bert"
    config["train"]["init_weights"] = ""
    (tmp_path / "second" / "config.json").write_text(json.dumps(config))
    message = error_line("export", tmp_path / "second", "--to", "huggingface")
    assert "did not begin with a model of Hugging Face" in message
    (place / "bert").rename(tmp_path / "away")
    message = error_line("export", tmp_path / "first", "--to", "huggingface")
    (tmp_path / "away").rename(place / "bert")
    assert f"began with the model in {place / 'bert'}, which is not there: put it back" in message
    message = error_line("export", tmp_path / "none", "--to", "huggingface")
    assert str(tmp_path / "none") in message and "began with" not in message
    config["train"]["init_weights"] = str(place / "bert" / "model.safetensors")
    (tmp_path / "second" / "config.json").write_text(json.dumps(config))
    export_run(tmp_path / "second", to="huggingface", out=tmp_path / "again")
    assert (tmp_path / "again" / "config.json").read_bytes() == (tmp_path / "out" / "config.json").read_bytes()
    message = error_line("export", tmp_path / "first", "--to", "huggingface", "--naming", "bert")
    assert "--naming bert names arrays of safetensors and npz" in message
    assert not (tmp_path / "first" / "export").exists()


@pytest.mark.slow
def test_with_a_pooler_it_is_a_classifier_of_transformers(place, tmp_path):
    """The directory has what AutoModelForSequenceClassification looks for: the class, labels and names of arrays."""
    lifecycle.create_run(replace(settings(place), **{"model.pooler": "tanh"}), tmp_path / "run")
    export_run(tmp_path / "run", to="huggingface", out=tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["BertForSequenceClassification"] and written["model_type"] == "bert"
    assert written["id2label"] == {"0": "bad", "1": "good"} and written["label2id"] == {"bad": 0, "good": 1}
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    assert {"bert.pooler.dense.weight", "classifier.weight", "classifier.bias"} <= arrays.keys()
    assert not (tmp_path / "out" / "modules.json").exists()


def test_a_program_has_the_tokenizer_beside_it(place, tmp_path):
    """Its inputs are token ids and lengths, as `prepare` makes them of texts."""
    lifecycle.create_run(settings(place), tmp_path / "run")
    export_run(tmp_path / "run", to="stablehlo", platforms=("cpu",), out=tmp_path / "out")
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (place / "bert" / "tokenizer.json").read_bytes()
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert [entry["name"] for entry in manifest["inputs"]] == ["tokens", "length"]
    assert "tokens of tokenizer.json, special ones included" in manifest["inputs"][0]["meaning"]
    spec = importlib.util.spec_from_file_location("prepare_text", tmp_path / "out" / "prepare_text.py")
    prepare_text = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(prepare_text)
    texts = ["good a b", "", "bad " * 30, "cd [SEP] zzz"]
    tokens, length = prepare_text.prepare(texts)
    assert tokens.shape == (4, 16) and length.tolist() == [5, 2, 16, 8]  # [ SEP ] are three
    program = jax.export.deserialize((tmp_path / "out" / "cpu.stablehlo").read_bytes())
    logits = program.call(dict(np.load(tmp_path / "out" / "weights.npz")), tokens, length)
    run = load_run(tmp_path / "run")
    _, probabilities, _ = run.excerpt_task.read(run.params, texts)
    np.testing.assert_allclose(jax.nn.softmax(logits), probabilities, atol=1e-6)
