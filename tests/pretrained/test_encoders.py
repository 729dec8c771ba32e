"""BERT, RoBERTa and DistilBERT against Hugging Face's transformers, with small models that it draws; and the real
all-MiniLM-L6-v2 against a float64 forward pass in NumPy."""

import functools
import json
import os

import jax
import numpy as np
import pytest
import their_encoders
from real_models import minilm

from attention_jax import config, load_pretrained
from attention_jax.data.batches import pad_rows
from attention_jax.errors import InputError
from attention_jax.pretrained import exchange, sentence_files

os.environ["HF_HUB_OFFLINE"] = "1"
SIZES = {"vocab_size": 30, "max_position_embeddings": 18, "pad_token_id": 1}
TINY = SIZES | {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
DISTIL = SIZES | {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 40}
FAMILIES = {
    "Bert": TINY | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3},
    "Roberta": TINY | {"layer_norm_eps": 1e-5},
    "DistilBert": DISTIL | {"activation": "relu"},
}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification")


@pytest.fixture(scope="module")
def libraries():
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch==2.13.0, an extra")
    return torch, pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")


def draw_model(torch, transformers, family, head):
    """A model whose parameters all differ from zero and one, which would hide a swap."""
    torch.manual_seed(0)
    extra = {"num_labels": 5} if head == "ForSequenceClassification" else {}
    about = getattr(transformers, f"{family}Config")(**FAMILIES[family], **extra, attn_implementation="eager")
    model = getattr(transformers, family + head)(about)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def relative_error(actual, expected):
    expected = expected.detach().numpy()
    return np.abs(np.asarray(actual) - expected).max() / np.abs(expected).max()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_heads_and_maps(libraries, tmp_path, family, head):
    torch, transformers = libraries
    model = draw_model(torch, transformers, family, head)
    model.save_pretrained(tmp_path / "there")
    weights = exchange.read(tmp_path / "there")
    rng, length = np.random.default_rng(0), np.array([13, 6])
    tokens, types = rng.integers(2, 30, (2, 13)), rng.integers(0, 2, (2, 13))
    tokens = np.where(np.arange(13) < length[:, None], tokens, 1)
    inputs = {"attention_mask": torch.tensor((np.arange(13) < length[:, None]).astype(np.int64))}
    inputs |= {"token_type_ids": torch.tensor(types)} if family == "Bert" else {}
    hf_output = model(torch.tensor(tokens), **inputs, output_attentions=True, output_hidden_states=True)
    module, params = exchange.module_of(weights), {"params": exchange.nested(weights.arrays)}
    call = (params, tokens, length, types if family == "Bert" else None)
    hidden, maps = jax.jit(functools.partial(module.apply, method="hidden", return_weights=True))(*call)
    logits, _ = jax.jit(module.apply)(*call)
    errors = {}
    for row, count in enumerate(length):
        errors[f"hidden {row}"] = relative_error(hidden[row, :count], hf_output.hidden_states[-1][row, :count])
        for layer, attention in enumerate(hf_output.attentions):
            errors[f"map {row} {layer}"] = relative_error(
                maps["encoder_attention"][row, layer, :, :count], attention[row, :, :count]
            )
        if head == "ForMaskedLM":
            errors[f"logits {row}"] = relative_error(logits[row, :count], hf_output.logits[row, :count])
    if head == "ForSequenceClassification":
        errors["logits"] = relative_error(logits, hf_output.logits)
    if head == "Model":
        mean = [hf_output.last_hidden_state[row, :count].mean(0) for row, count in enumerate(length)]
        errors["mean"] = relative_error(logits, torch.stack(mean))
    print(family, head, max(errors.values()))
    assert max(errors.values()) < 1e-5, errors

    changed = weights._replace(arrays={name: 0.9 * array for name, array in weights.arrays.items()})
    exchange.write(changed, tmp_path / "back", "safetensors", family.lower())
    again, loading_info = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    lacks = {name for name in loading_info["missing_keys"] if "pooler" not in name and "decoder" not in name}
    assert not lacks and not loading_info["unexpected_keys"]
    read = exchange.read(tmp_path / "back")
    assert read.options == weights.options
    expected = again.eval()(torch.tensor(tokens), **inputs)
    expected = expected.last_hidden_state if head == "Model" else expected.logits
    method = "hidden" if head == "Model" else None
    actual = jax.jit(functools.partial(module.apply, method=method))(
        {"params": exchange.nested(read.arrays)}, *call[1:]
    )[0]
    rows = np.arange(13) < length[:, None]
    actual, expected = (
        (actual, expected) if head == HEADS[2] else (np.asarray(actual)[rows], expected[torch.tensor(rows)])
    )
    assert relative_error(actual, expected) < 1e-5


SENTENCES = [
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "The baby is carried by the woman, who smiles at the old photographer from Bergen.",
    "A cheetah is running behind its prey.",
    "Interest rates rose.",
]


@pytest.mark.slow
def test_real_minilm():
    """Sentence embeddings and the similarities of three pairs are those of sentence-transformers' formula: the mean of
    the states, divided by its norm; and so are the maps that a page shows. Three compiled programs."""
    directory, tokenizers = minilm(), pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers")
    from safetensors.numpy import load_file

    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    rows = [tokenizer.encode(text).ids for text in SENTENCES]
    state_dict, expected = load_file(directory / "model.safetensors"), []
    for row in rows:
        mean = their_encoders.bert(state_dict, row)[0].mean(0)
        expected.append(mean / np.linalg.norm(mean))
    expected = np.stack(expected)
    weights = exchange.read(directory)
    options = weights.options
    assert (options.pool, options.unit_norm, options.num_heads, options.pooler) == ("mean", True, 12, "none")
    model = exchange.module_of(weights)
    params = {"params": exchange.nested(weights.arrays)}
    tokens, length = pad_rows(rows, 0)
    actual = np.asarray(jax.jit(model.apply)(params, tokens, length)[0])
    print(np.abs(actual - expected).max() / np.abs(expected).max())
    assert np.abs(actual - expected).max() < 1e-5 * np.abs(expected).max()
    similarity = lambda x: (x[::2] * x[1::2]).sum(-1)
    np.testing.assert_allclose(similarity(actual), similarity(expected), atol=1e-5)
    alone = np.asarray(jax.jit(model.apply)(params, np.array([rows[5]]), length[5:])[0])
    np.testing.assert_allclose(alone[0], actual[5], atol=1e-6)
    [record] = load_pretrained(directory).attention(SENTENCES[:1])
    [prediction] = record.predictions
    assert prediction.text == "embedding of 384 numbers"
    np.testing.assert_allclose(prediction.attentions[0].weights, their_encoders.bert(state_dict, rows[0])[1], atol=1e-5)


@pytest.mark.parametrize(
    ("steps", "pool", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {"pooling_mode_mean_tokens": True}, "at most Normalize"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        (["Transformer", "Pooling"], {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, "one of"),
        (["Transformer", "Pooling"], {}, "has none"),
    ],
)
def test_unknown_pooling_is_refused(tmp_path, steps, pool, message):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pool))
    paths = [{"type": f"sentence_transformers.models.{kind}", "path": f"{i}_{kind}"} for i, kind in enumerate(steps)]
    (tmp_path / "modules.json").write_text(json.dumps(paths))
    with pytest.raises(InputError, match=message):
        sentence_files.add_pooling(config.MaskedLanguageModelConfig(), tmp_path)


def test_sentences_are_preprocessed_like_the_files(tmp_path):
    """sentence-transformers, models/Transformer.py: strip, lower case, then truncation to max_seq_length; without it
    to what the tokenizer says; encode() puts the default prompt before."""

    def read_sentences(positions=512, **files):
        for path in tmp_path.iterdir():
            path.unlink()
        for name, content in files.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
        return sentence_files.sentences(tmp_path, positions)

    plain = sentence_files.Sentences()
    assert (
        read_sentences() == read_sentences(tokenizer_config={"model_max_length": 7}) == plain
        and plain.preprocess(" A ") == " A "
    )
    assert read_sentences(sentence_bert_config={"max_seq_length": 256, "do_lower_case": False}) == (
        "",
        True,
        False,
        256,
    )
    assert read_sentences(sentence_roberta_config={"max_seq_length": 9, "do_lower_case": True}) == ("", True, True, 9)
    assert read_sentences(modules=[], tokenizer_config={"model_max_length": 128}).most == 128
    assert (
        read_sentences(
            sentence_bert_config={"max_seq_length": None}, tokenizer_config={"model_max_length": int(1e30)}
        ).most
        == 512
    )
    prompts = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    assert read_sentences(modules=[], config_sentence_transformers=prompts).preprocess(" A dog ") == "q:  A dog"
    assert read_sentences(modules=[], config_sentence_transformers=prompts | {"default_prompt_name": None}).prompt == ""
    for files, message in (
        ({"sentence_bert_config": {"max_seq_length": 513}}, "must be 3 to 512"),
        ({"sentence_bert_config": {"tokenizer_args": {"x": 1}}}, "tokenizer_args in .* must be {}"),
        ({"modules": [], "tokenizer_config": {"truncation_side": "left"}}, "truncation_side"),
        ({"modules": [], "config_sentence_transformers": {"default_prompt_name": "x"}}, "must be one of its prompts"),
        ({"modules": [], "config_sentence_transformers": {"default_prompt_name": "x", "prompts": [1]}}, "is damaged"),
    ):
        with pytest.raises(InputError, match=message):
            read_sentences(**files)


@pytest.mark.parametrize(
    "pooling_config", [{"pooling_mode": "cls"}, {"pooling_mode_cls_token": True, "include_prompt": True}]
)
def test_a_pooling_is_named_in_two_forms(tmp_path, pooling_config):
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling_config))
    steps = [{"type": "a.Transformer", "path": ""}, {"type": "a.Pooling", "path": "1_Pooling"}]
    (tmp_path / "modules.json").write_text(json.dumps(steps))
    assert sentence_files.add_pooling(config.MaskedLanguageModelConfig(), tmp_path).pool == "first"
    (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(pooling_config | {"include_prompt": False}))
    with pytest.raises(InputError, match="include_prompt"):
        sentence_files.add_pooling(config.MaskedLanguageModelConfig(), tmp_path)


@pytest.mark.slow
def test_minilm_embeds_the_first_256_tokens(capsys):
    """Its sentence_bert_config.json says so; against the library's truncation and a forward pass in NumPy."""
    directory, tokenizers = minilm(), pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers")
    from safetensors.numpy import load_file

    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(256)
    text = "The committee met on a gray morning to discuss bridges, budgets and the price of bread. " * 22
    row = tokenizer.encode(text).ids
    mean = their_encoders.bert(load_file(directory / "model.safetensors"), row)[0].mean(0)
    embedding = load_pretrained(directory).embed([text])[0]
    np.testing.assert_allclose(embedding, mean / np.linalg.norm(mean), atol=1e-5)
    assert "1 of 1 texts the tokens beyond 256 are left out" in capsys.readouterr().err
