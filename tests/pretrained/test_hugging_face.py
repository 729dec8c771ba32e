"""A model that was trained goes back to Hugging Face: the names and shapes of the published tensors, the original
config.json and tokenizer, and the same computation when it is read again; with torch also in transformers itself."""

import dataclasses
import json
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import their_decoders
import their_encoders
import their_weights

from attention_jax import export_run, load_pretrained
from attention_jax.data import tokenizers as tokenizers_of_data
from attention_jax.data.pairs import PairData
from attention_jax.data.vocabulary import Vocabulary
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, hugging_face
from attention_jax.pretrained.tokenizer import dataset_tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers, of the extra `pretrained`")
pytest.importorskip("safetensors")
from safetensors.numpy import load_file

TEXT, SENTENCE, LABELS = "The quick dog", "good a bad", ("good", "bad", "so-so")
GPT2 = their_weights.GPT2 | {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 300}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "a", "b", "c", "##d"]
TYPES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma2": "Gemma2"}
TYPES |= {"gemma3_text": "Gemma3", "bert": "Bert", "roberta": "Roberta", "distilbert": "DistilBert"}
TYPES |= {"xlm-roberta": "XLMRoberta", "camembert": "Camembert", "vit": "ViT", "deit": "DeiT"}
"""{model_type: what the classes of transformers begin with}"""


def train(weights, **data):
    """The weights of a run that began with these: all are others."""
    arrays = {name: array * np.float32(0.75) for name, array in weights.arrays.items()}
    return weights._replace(arrays=arrays, source="runs/x", data=SimpleNamespace(**data))


def text_data(place, max_length=None, **data):
    tokenizer, vocabulary = dataset_tokenizer(str(place), max_length)
    return data | {"tokenizer": tokenizer, "vocabulary": vocabulary}


def export(weights, source, out):
    """The tensors and the config.json that are written; of files of the tokenizer every byte."""
    summary = hugging_face.write(weights, source, out, is_run=True)
    config = json.loads((out / "config.json").read_text())
    for path in source.glob("*"):
        if path.name not in ("config.json", "model.safetensors"):
            assert (out / path.name).read_bytes() == path.read_bytes()
    assert "transformers" in summary
    return load_file(out / "model.safetensors"), config


def shapes(state):
    return {name: array.shape for name, array in state.items()}


def assert_equal_model(out, weights, atol=0.0):
    again = exchange.read(out)
    assert again.options == weights.options and "not read" not in again.note
    assert again.arrays.keys() == weights.arrays.keys()
    for name, array in weights.arrays.items():
        np.testing.assert_allclose(again.arrays[name], array, rtol=0, atol=atol, err_msg=name)


def decoder(place, family):
    """The directory of a small language model, and what a run makes of its weights."""
    if family == "gpt2":
        place.mkdir(parents=True)
        their_weights.write_weights(place / "model.safetensors", their_weights.gpt2(300), GPT2)
        their_decoders.tokenizer().save(str(place / "tokenizer.json"))
    else:
        changes = {"vocab_size": 300, "torch_dtype": "bfloat16"}
        their_decoders.directory(place, **their_decoders.FAMILIES[family] | changes)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return train(exchange.read(place), **text_data(place))


@pytest.mark.parametrize("family", ["gpt2", *their_decoders.FAMILIES])
def test_language_model_returns_to_its_directory(tmp_path, family):
    weights = decoder(tmp_path / "there", family)
    state, config = export(weights, tmp_path / "there", tmp_path / "out")
    original = json.loads((tmp_path / "there" / "config.json").read_text())
    assert shapes(state) == shapes(load_file(tmp_path / "there" / "model.safetensors"))
    name = f"{TYPES[original['model_type']]}ForCausalLM" if family != "gpt2" else "GPT2LMHeadModel"
    expected = {key: value for key, value in original.items() if key != "torch_dtype"}
    assert config == expected | {"architectures": [name], "vocab_size": 300}
    # Gemma stores scales minus 1, which rounds
    assert_equal_model(tmp_path / "out", weights, 1e-7 if family.startswith("gemma") else 0.0)


def test_trained_qwen2_is_a_llama(tmp_path):
    """Its output layers of attention have a bias then; the NumPy forward pass of the written tensors is our model's."""
    weights = decoder(tmp_path / "there", "qwen2")
    name = "decoder/layer_1/attention/out/bias"
    weights = weights._replace(arrays=weights.arrays | {name: np.linspace(-1, 1, 16, dtype=np.float32)})
    state, config = export(weights, tmp_path / "there", tmp_path / "out")
    assert (config["model_type"], config["architectures"]) == ("llama", ["LlamaForCausalLM"])
    assert config["attention_bias"] and config["bos_token_id"] == 0
    assert_equal_model(tmp_path / "out", weights)
    model = load_pretrained(tmp_path / "out")
    sizes = config | {"rope_theta": config["rope_parameters"]["rope_theta"]}
    expected, _ = their_decoders.outputs(state, model.tokenizer.encode(TEXT), sizes)
    np.testing.assert_allclose(model.logits([TEXT])[0], expected, atol=1e-5 * abs(expected).max())
    windows = dataclasses.replace(weights.options, per_layer="1:mask=window(3)")
    with pytest.raises(InputError, match="qwen2 has no bias of the output of attention"):
        hugging_face.llama_config(config, weights._replace(options=windows))


BERT_SIZES = "hidden_size", "num_hidden_layers", "intermediate_size", "type_vocab_size"


def encoder(place, model_type="bert", **files):
    """The directory of a small encoder with a head for masked words and, as `files`, what else there is."""
    family = "roberta" if model_type in ("xlm-roberta", "camembert") else model_type
    state = {name: array for name, array in their_encoders.encoder(family).items() if "classifier" not in name}
    state = {name: array for name, array in state.items() if "pooler" not in name}
    config = their_encoders.CONFIGS[family] | {"model_type": model_type, "architectures": ["XForMaskedLM"]}
    config |= {"vocab_size": 11, "max_position_embeddings": 9}
    sizes = ("dim", "n_layers", "hidden_dim") if family == "distilbert" else BERT_SIZES
    config |= dict(zip(sizes, (12, 2, 20, 2)))
    their_weights.write_weights(place / "model.safetensors", state, config)
    ids = {word: number for number, word in enumerate(WORDS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(WORDS[:5])
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    tokenizer.save(str(place / "tokenizer.json"))
    (place / "vocab.txt").write_text("\n".join(WORDS))
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))


def classifier(place, pooler, **options):
    """What a run makes of the encoder: a classifier of three classes, without the head for masked words."""
    weights, rng = exchange.read(place), np.random.default_rng(5)
    params = {name: array for name, array in weights.arrays.items() if not name.startswith("word_head")}
    new = {"head/kernel": (12, 3), "head/bias": (3,)}
    new |= {"pooler/kernel": (12, 12), "pooler/bias": (12,)} if pooler != "none" else {}
    params |= {name: rng.standard_normal(shape).astype(np.float32) for name, shape in new.items()}
    options = dataclasses.replace(weights.options, pooler=pooler, **options)
    return train(weights._replace(arrays=params, options=options), **text_data(place, 7, names=LABELS))


ENCODERS = ["bert", "roberta", "xlm-roberta", "camembert", "distilbert"]


@pytest.mark.parametrize("model_type", ENCODERS)
def test_classifier_returns_to_the_encoder(tmp_path, model_type):
    """The tensors of a ...ForSequenceClassification, as the hand-written table has them."""
    encoder(tmp_path / "there", model_type, tokenizer_config={"pad_token": "[PAD]"})
    family = "roberta" if model_type in ("xlm-roberta", "camembert") else model_type
    weights = classifier(tmp_path / "there", "relu" if family == "distilbert" else "tanh")
    state, config = export(weights, tmp_path / "there", tmp_path / "out")
    table = their_encoders.encoder(family)
    words = ("cls.", "lm_head", "vocab_")
    expected = {name: shape for name, shape in shapes(table).items() if not name.startswith(words)}
    last = their_encoders.HEADS[family].split()[-1]
    assert shapes(state) == expected | {f"{last}.weight": (3, 12), f"{last}.bias": (3,)}
    assert config["architectures"] == [f"{TYPES[model_type]}ForSequenceClassification"]
    assert config["id2label"] == {"0": "good", "1": "bad", "2": "so-so"} and config["model_type"] == model_type
    assert config["label2id"] == {"good": 0, "bad": 1, "so-so": 2}
    assert config["problem_type"] == "single_label_classification" and "num_labels" not in config
    assert not (tmp_path / "out" / "modules.json").exists()
    weights = weights._replace(options=dataclasses.replace(weights.options, word_head=False))
    assert_equal_model(tmp_path / "out", weights)


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["mean", "first", "max"])
def test_classifier_of_sentence_embedding_is_a_dense_module(tmp_path, pool):
    """Against the formula of sentence-transformers in NumPy: pooled states, then a linear map, of at most 7 tokens."""
    encoder(tmp_path / "there")
    weights = classifier(tmp_path / "there", "none", pool=pool, unit_norm=True)
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    state, read = load_file(tmp_path / "out" / "model.safetensors"), lambda name: (tmp_path / "out" / name).read_text()
    assert not [name for name in state if "classifier" in name or "pooler" in name]
    config = json.loads(read("config.json"))
    assert config["architectures"] == ["BertModel"] and config["id2label"]["2"] == "so-so"
    assert [entry["path"] for entry in json.loads(read("modules.json"))] == ["", "1_Pooling", "2_Dense"]
    assert json.loads(read("sentence_bert_config.json"))["max_seq_length"] == 7
    dense = load_file(tmp_path / "out" / "2_Dense" / "model.safetensors")
    assert shapes(dense) == {"linear.weight": (3, 12), "linear.bias": (3,)}
    assert json.loads(read("2_Dense/config.json"))["activation_function"] == "torch.nn.modules.linear.Identity"

    model = load_pretrained(tmp_path / "out")
    rows = [[2, 5, 7, 6, 3], [2, 7, 7, 7, 7, 7, 3]]
    pooled = {"mean": lambda x: x.mean(0), "first": lambda x: x[0], "max": lambda x: x.max(0)}[pool]
    expected = []
    for row in rows:
        states, _ = their_encoders.bert(state, row, 3, 2, "bert")
        logits = pooled(states) @ dense["linear.weight"].T + dense["linear.bias"]
        expected.append(np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum())
    np.testing.assert_allclose(model.classify([SENTENCE, "a " * 20]), expected, atol=1e-5)
    weights = weights._replace(options=dataclasses.replace(weights.options, unit_norm=False, word_head=False))
    assert_equal_model(tmp_path / "out", weights)
    again = exchange.read(tmp_path / "out")
    assert hugging_face.write(again, tmp_path / "out", tmp_path / "again", is_run=False).endswith("the logits")
    assert (tmp_path / "again" / "config.json").read_text() == read("config.json")


def test_a_dense_that_is_no_classifier_is_refused(tmp_path):
    encoder(tmp_path / "there")
    hugging_face.write(classifier(tmp_path / "there", "none"), tmp_path / "there", tmp_path / "out", is_run=True)
    path = tmp_path / "out" / "2_Dense" / "config.json"
    original = json.loads(path.read_text())
    changes = {"activation_function": "torch.nn.modules.activation.Tanh"}, {"out_features": 4}, {"use_residual": True}
    for change in (*changes, {"bias": False}):
        path.write_text(json.dumps(original | change))
        with pytest.raises(InputError, match="or a Dense with a bias and no activation"):
            exchange.read(tmp_path / "out")


def vision(place, model_type):
    """What a run on smaller images of three classes makes of a vision model of five, its tensors and config.json."""
    state = their_weights.huggingface(their_weights.timm())
    if model_type == "deit":
        state = {name.replace("vit.", "deit."): array for name, array in state.items()}
        state["deit.embeddings.distillation_token"] = np.ones((1, 1, 16), np.float32)
        position = "deit.embeddings.position_embeddings"
        state[position] = np.concatenate([state[position], np.ones((1, 1, 16), np.float32)], 1)
    config = their_weights.VIT | {"model_type": model_type, "id2label": {str(i): f"kind {i}" for i in range(5)}}
    config |= {"hidden_size": 16, "num_hidden_layers": 2, "intermediate_size": 24, "patch_size": 2, "image_size": 6}
    config |= {"architectures": ["AnyForImageClassification"]}
    their_weights.write_weights(place / "model.safetensors", state, config)
    (place / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.1, 0.1, 0.1]}))
    weights, rng = exchange.read(place), np.random.default_rng(6)
    new = {"trunk/head/kernel": rng.standard_normal((16, 3)), "trunk/head/bias": rng.standard_normal(3)}
    new = {name: array.astype(np.float32) for name, array in new.items()}
    new["positions"] = weights.arrays["positions"][:-5]
    moments = np.float32([0.4, 0.5, 0.6]), np.float32([0.2, 0.3, 0.4])
    weights = train(weights._replace(arrays=weights.arrays | new), names=LABELS, normalization=moments)
    return weights, state, config


@pytest.mark.parametrize("model_type", ["vit", "deit"])
def test_image_classifier_returns_with_its_own_images(tmp_path, model_type):
    """Positions, classes and normalization are those of the run."""
    weights, state, config = vision(tmp_path / "there", model_type)
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    written = load_file(tmp_path / "out" / "model.safetensors")
    changed = ("position_embeddings", "classifier")
    same = lambda state: {name: shape for name, shape in shapes(state).items() if not any(x in name for x in changed)}
    assert same(written) == same(state) and written.keys() == state.keys()
    about = json.loads((tmp_path / "out" / "config.json").read_text())
    assert about["architectures"] == [f"{TYPES[model_type]}ForImageClassification"] and about["image_size"] == 4
    assert about["id2label"] == dict(zip("012", LABELS)) and about["layer_norm_eps"] == config["layer_norm_eps"]
    recipe = json.loads((tmp_path / "out" / "preprocessor_config.json").read_text())
    np.testing.assert_allclose(recipe["image_mean"], [0.4, 0.5, 0.6], atol=1e-6)
    assert recipe["size"] == {"height": 4, "width": 4} and recipe["do_normalize"]
    assert_equal_model(tmp_path / "out", weights)


def translator(place):
    """What a run makes of a Marian: another vocabulary, of one sentencepiece model for both sides."""
    their_weights.write_weights(
        place / "model.safetensors", their_weights.marian(), their_weights.MARIAN | {"model_type": "marian"}
    )
    (place / "vocab.json").write_text(json.dumps({"of": 0, "Marian": 1}))
    model = tokenizers_of_data.train_sentencepiece(PAIRS * 5, 24)
    tokenizer, pieces = tokenizers_of_data.sentencepiece_model(model)
    vocabulary = Vocabulary(pieces, pad="<pad>", bos="<bos>", eos="<eos>", unk="<unk>")
    weights, rng = exchange.read(place), np.random.default_rng(7)
    new = {"target_embedding/token/embedding": rng.standard_normal((len(vocabulary), 12)).astype(np.float32)}
    new["bias"] = rng.standard_normal(len(vocabulary)).astype(np.float32)
    data = dict.fromkeys(PairData._fields) | {"source_vocabulary": vocabulary, "target_vocabulary": vocabulary}
    data |= {"source_tokenizer": tokenizer, "target_tokenizer": tokenizer, "source_bos": False}
    return weights._replace(arrays=weights.arrays | new, source="runs/x", data=PairData(**data))


PAIRS = ["a dog runs", "the dog sleeps", "a cat sleeps", "the cat runs and runs"]


def test_translator_has_the_vocabulary_of_its_run(tmp_path):
    weights = translator(tmp_path / "there")
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    words, model = weights.data.target_vocabulary, load_pretrained(tmp_path / "out")
    ids = json.loads((tmp_path / "out" / "vocab.json").read_text())
    assert [ids[name] for name in ("<pad>", "<bos>", "</s>", "<unk>")] == [0, 1, 2, 3]
    assert list(ids)[4:] == words.tokens[4:] and list(ids.values()) == [*range(len(words))]
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["decoder_start_token_id"], config["eos_token_id"], config["vocab_size"]) == (1, 2, len(words))
    batch = model.task.read(["the dog runs"])
    assert batch["source"][0, : batch["source_length"][0]].tolist() == [
        *words.encode(weights.data.source_tokenizer.tokens("the dog runs")),
        2,
    ]
    assert model.task.decoding_limits["bos"] == 1 and model.task.decoding_limits["pad"] == 0
    assert_equal_model(tmp_path / "out", weights)
    for change in ({"source_bos": True}, {"target_tokenizer": tokenizers_of_data.character()}):
        other = weights._replace(data=weights.data._replace(**change))
        with pytest.raises(InputError, match="runs/x has a vocabulary of its own, which .* sentencepiece"):
            hugging_face.write(other, tmp_path / "there", tmp_path / "other", is_run=True)


def test_gguf_file_becomes_a_directory(tmp_path):
    """With the tokenizer of its header; the ids and the logits are the same bits, and the ends of a text the same."""
    pytest.importorskip("gguf", reason="GGUF files need gguf, of the extra `pretrained`")
    config = their_decoders.FAMILIES["gemma3"] | {"vocab_size": 300}
    state, content = their_decoders.llama(config), json.loads(their_decoders.tokenizer().to_str())["model"]
    vocabulary = {"tokenizer_model": "gpt2", "tokenizer_pre": "gpt-2", "bos_token_id": 0, "eos_token_id": 1}
    vocabulary["token_list"] = [*content["vocab"], *(f"<{i}>" for i in range(len(content["vocab"]), 300))]
    vocabulary["token_merges"] = [" ".join(merge) for merge in content["merges"]]
    fields = {"token_types": [3, 3] + [1] * 298, "sliding_window": 3, "chat_template": "{{ messages }}"}
    their_decoders.write_gguf(tmp_path / "model.gguf", "gemma3", state, config, vocabulary | fields)
    summary = export_run(tmp_path / "model.gguf", to="huggingface")
    assert summary.startswith(f"{tmp_path / 'model' / 'export' / 'huggingface'}: {len(state)} tensors, ")
    assert summary.endswith("for transformers.Gemma3ForCausalLM")
    out = tmp_path / "model" / "export" / "huggingface"
    assert shapes(load_file(out / "model.safetensors")) == shapes(state)
    about = json.loads((out / "config.json").read_text())
    assert about["vocab_size"] == 300 and not [name for name in about if "." in name]
    assert json.loads((out / "tokenizer_config.json").read_text())["chat_template"] == "{{ messages }}"
    original, copy = load_pretrained(tmp_path / "model.gguf"), load_pretrained(out)
    assert original.config == copy.config
    read = lambda model: (model.tokenizer.encode(TEXT), model.tokenizer.special, model.tokenizer.ends)
    assert read(original) == read(copy) and read(copy)[1:] == ({"bos": 0, "eos": 1}, (1,))
    np.testing.assert_array_equal(original.logits([TEXT])[0], copy.logits([TEXT])[0])


def test_what_transformers_lacks_is_refused(tmp_path):
    """Each in one line that names the option or the file and what to do; nothing is written."""
    weights = decoder(tmp_path / "there", "llama")
    data, options = weights.data, weights.options
    other = SimpleNamespace(tokenizer=data.tokenizer._replace(recipe=("character",)))
    cases = {
        "--model.normalizer sparsemax: export programs": {
            "options": dataclasses.replace(options, normalizer="sparsemax")
        },
        "with --model.per-layer 0:mask=window": {"options": dataclasses.replace(options, per_layer="0:mask=window(2)")},
        "runs/x has another tokenizer than": {"data": other},
        "stores neither a tokenizer nor names": {"data": None},
    }
    for message, change in cases.items():
        with pytest.raises(InputError, match=message) as error:
            hugging_face.write(weights._replace(**change), tmp_path / "there", tmp_path / "out", is_run=True)
        assert "\n" not in str(error.value) and not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="it must be new or empty, and has"):
        hugging_face.write(weights, tmp_path / "there", tmp_path / "there", is_run=True)
    their_weights.write_weights(tmp_path / "timm" / "model.safetensors", their_weights.timm(), their_weights.TIMM)
    with pytest.raises(InputError, match="is no model of Hugging Face, as --to huggingface needs: use --naming"):
        hugging_face.write(exchange.read(tmp_path / "timm"), tmp_path / "timm", tmp_path / "out", is_run=False)


# --- with the libraries -----------------------------------------------------------------------------------------------

TOKENS = np.array([[3, 10, 2, 7, 1, 5, 4]], np.int32)


@pytest.fixture(scope="module")
def libraries():
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch==2.13.0, an extra")
    return torch, pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")


def assert_transformers_computes_the_same(libraries, kind, out, *inputs):
    """The library misses no tensor and ignores none; its logits are those of our module with the weights written."""
    torch, transformers = libraries
    model, info = getattr(transformers, kind).from_pretrained(out, output_loading_info=True)
    assert not {*info["missing_keys"]} - {"lm_head.weight"} and not info["unexpected_keys"]
    assert model.dtype == torch.float32
    weights = exchange.read(out)
    module, params = exchange.module_of(weights), {"params": exchange.nested(weights.arrays)}
    logits = np.asarray(jax.jit(module.apply)(params, *inputs)[0])
    x = inputs[0].transpose(0, 3, 1, 2) if inputs[0].ndim == 4 else inputs[0].astype(np.int64)
    with torch.no_grad():
        expected = model.eval()(torch.tensor(x)).logits.numpy()
    error = abs(logits - expected).max() / abs(expected).max()
    print(kind, out, error)
    assert error < 1e-5
    return model


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["gpt2", *their_decoders.FAMILIES, "qwen2 with a bias"])
def test_transformers_reads_language_models(libraries, tmp_path, family):
    weights = decoder(tmp_path / "there", family.partition(" ")[0])
    if "bias" in family:
        bias = {f"decoder/layer_{i}/attention/out/bias": np.linspace(-1, 1, 16, dtype=np.float32) for i in range(2)}
        weights = weights._replace(arrays=weights.arrays | bias)
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    assert_transformers_computes_the_same(libraries, "AutoModelForCausalLM", tmp_path / "out", TOKENS)
    their_tokenizer = libraries[1].AutoTokenizer.from_pretrained(tmp_path / "out")
    assert their_tokenizer(TEXT)["input_ids"] == load_pretrained(tmp_path / "out").tokenizer.encode(TEXT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ENCODERS)
def test_transformers_reads_classifiers(libraries, tmp_path, model_type):
    encoder(tmp_path / "there", model_type)
    weights = classifier(tmp_path / "there", "relu" if model_type == "distilbert" else "tanh")
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    inputs, kind = (np.where(TOKENS == 1, 6, TOKENS), np.array([7], np.int32)), "AutoModelForSequenceClassification"
    model = assert_transformers_computes_the_same(libraries, kind, tmp_path / "out", *inputs)
    assert type(model).__name__ == f"{TYPES[model_type]}ForSequenceClassification"
    assert model.config.id2label == dict(enumerate(LABELS)) and model.config.num_labels == 3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pool", ["mean", "first", "max"])
def test_sentence_transformers_reads_classifiers_of_embeddings(tmp_path, pool):
    """Its `encode` returns the logits, also of a text that is cut."""
    sentence_transformers = pytest.importorskip("sentence_transformers", reason="parity needs sentence-transformers")
    encoder(tmp_path / "there", tokenizer_config={"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"})
    weights = classifier(tmp_path / "there", "none", pool=pool)
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    texts = [SENTENCE, "a " * 20, "bad"]
    logits = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu").encode(texts)
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(load_pretrained(tmp_path / "out").classify(texts), probabilities, atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model_type", ["vit", "deit"])
def test_transformers_reads_image_classifiers(libraries, tmp_path, model_type):
    weights = vision(tmp_path / "there", model_type)[0]
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    image = np.random.default_rng(0).standard_normal((2, 4, 4, 3)).astype(np.float32)
    model = assert_transformers_computes_the_same(libraries, "AutoModelForImageClassification", tmp_path / "out", image)
    assert model.config.id2label == dict(enumerate(LABELS))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_transformers_translates_with_the_vocabulary_of_the_run(libraries, tmp_path):
    """Logits of the next word, and the words that `generate` writes."""
    torch, transformers = libraries
    weights = translator(tmp_path / "there")
    hugging_face.write(weights, tmp_path / "there", tmp_path / "out", is_run=True)
    path = tmp_path / "out" / "generation_config.json"  # padding is never written here
    path.write_text(json.dumps(json.loads(path.read_text()) | {"max_length": 12, "bad_words_ids": [[0]]}))
    their_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    pretrained, text = load_pretrained(tmp_path / "out"), "the dog runs and sleeps"
    batch, inputs = pretrained.task.read([text]), their_tokenizer([text], return_tensors="pt")
    assert inputs["input_ids"][0].tolist() == batch["source"][0, : batch["source_length"][0]].tolist()
    target = np.array([[1, 5, 9, 7]])
    module, params = exchange.module_of(weights), {"params": exchange.nested(weights.arrays)}
    logits = np.asarray(jax.jit(module.apply)(params, batch["source"], batch["source_length"], target)[0])
    with torch.no_grad():
        expected = model(**inputs, decoder_input_ids=torch.tensor(target)).logits.numpy()
        written = model.generate(**inputs)
    error = abs(logits - expected).max() / abs(expected).max()
    print(error)
    assert error < 1e-5
    assert pretrained.translate([text]) == [their_tokenizer.decode(written[0], skip_special_tokens=True)]
