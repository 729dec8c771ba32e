"""What generation_config.json says of decoding is honored or refused: by definition, and against transformers."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.decode import greedy
from attention_jax.errors import InputError
from attention_jax.pretrained import generation_config
from attention_jax.pretrained.generation_config import Rules
from attention_jax.pretrained.pooled_search import apply_generation_rules, pooled_beam_search

WRITTEN = """_from_model_config assistant_confidence_threshold assistant_early_exit assistant_ensemble_weight
assistant_lookbehind bad_words_ids begin_suppress_tokens bos_token_id cache_config cache_implementation compile_config
constraints continuous_batching_config decoder_start_token_id disable_compile diversity_penalty do_sample dola_layers
early_stopping encoder_no_repeat_ngram_size encoder_repetition_penalty eos_token_id epsilon_cutoff eta_cutoff
exponential_decay_length_penalty force_words_ids forced_bos_token_id forced_eos_token_id guidance_scale is_assistant
length_penalty low_memory max_cache_len max_length max_matching_ngram_size max_new_tokens max_time min_length
min_new_tokens min_p no_repeat_ngram_size num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams
num_return_sequences output_attentions output_hidden_states output_logits output_scores pad_token_id penalty_alpha
prefill_chunk_size prompt_lookup_num_tokens remove_invalid_values renormalize_logits repetition_penalty
return_dict_in_generate sequence_bias speculation_type stop_strings suppress_tokens target_lookbehind temperature
token_healing top_h top_k top_p transformers_version typical_p use_cache use_mtp watermarking_config"""
"""What GenerationConfig of transformers 5.24 writes."""
CHAIN = jax.nn.log_softmax(jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)), jnp.float32))


def chain(tokens, cache):
    """A step whose next token depends on the last one only; token 1 ends a text."""
    return CHAIN[tokens], cache


def write_greedily(rules: Rules, length: int = 8) -> list[int]:
    step, cache = apply_generation_rules(chain, None, 1, rules, bos=0, ends=(1,), max_length=length, beams=False)
    return greedy(step, cache, 1, bos=0, eos=1, max_length=length)[0].tolist()


def by_definition(rules: Rules, length: int = 8) -> list[int]:
    """Greedy decoding with rules, one token after the other."""
    text = [0]
    while len(text) <= length and text[1:][-1:] != [1]:
        scores = np.array(CHAIN[text[-1]])
        for token in {*text}:
            factor = rules.repetition_penalty
            scores[token] = scores[token] / factor if scores[token] > 0 else scores[token] * factor
        size = rules.no_repeat_ngram_size
        grams = [text[i : i + size] for i in range(len(text) - size + 1)] if size else []
        at = len(text) - 1
        for token in range(6):
            ends_badly = any((*text, token)[-len(sequence) :] == sequence for sequence in rules.banned)
            if ends_badly or ([*text[len(text) - size + 1 :], token] in grams) or (token == 1 and at < rules.shortest):
                scores[token] = -np.inf
        if rules.first is not None and at == 0:
            scores = np.where(np.arange(6) == rules.first, 0, -np.inf)
        if rules.last is not None and at == length - 1:
            scores = np.where(np.arange(6) == rules.last, 0, -np.inf)
        scores[list(rules.suppressed)] = -np.inf
        if at == (rules.first is not None):
            scores[list(rules.suppressed_first)] = -np.inf
        text.append(int(scores.argmax()))
    return text[1:] + [0] * (length + 1 - len(text))


@pytest.mark.parametrize(
    "rules",
    [
        Rules(),
        Rules(repetition_penalty=2.0),
        Rules(no_repeat_ngram_size=2),
        Rules(no_repeat_ngram_size=3, shortest=7),
        Rules(banned=((4,), (5, 2)), shortest=8),
        Rules(first=3, last=1, shortest=9),
        Rules(suppressed=(2, 4), suppressed_first=(3, 5), shortest=4),
        Rules(first=2, suppressed_first=(0, 1, 5)),
    ],
    ids=str,
)
def test_rules_are_those_of_the_definition(rules):
    assert write_greedily(rules) == by_definition(rules)


def test_pooled_beam_search_finds_best_texts():
    """With a beam as wide as there are texts, by log p / length^alpha; and its scores are those of its texts."""
    length, alpha = 3, 1.5
    texts = {}
    for a in range(6):
        for b in range(6):
            for c in range(6):
                text = [a] if a == 1 else [a, b] if b == 1 else [a, b, c]
                path = [0, *text]
                texts[tuple(text)] = float(sum(CHAIN[i, j] for i, j in itertools.pairwise(path))) / len(text) ** alpha
    best = sorted(texts.items(), key=lambda pair: -pair[1])[:4]
    search_options = {"bos": 0, "ends": (1,), "pad": 0, "max_length": length, "alpha": alpha, "early_stopping": "never"}
    tokens, scores = pooled_beam_search(chain, (), 2, beam_size=36, n_best=4, **search_options)
    assert tokens[1].tolist() == [[*text, *[0] * (length - len(text))] for text, _ in best]
    np.testing.assert_allclose(scores[0], [score for _, score in best], rtol=1e-5)


def test_every_entry_that_transformers_writes_is_known(tmp_path):
    entries = dict.fromkeys(WRITTEN.split(), 7)
    assert generation_config.check_entries(entries | {"sharpness": 2}, "x") == ["sharpness"]


@pytest.mark.slow
def test_the_list_of_entries_is_that_of_transformers():
    transformers = pytest.importorskip("transformers", reason="the walk over its class needs it, of `libraries`")
    assert vars(transformers.GenerationConfig()).keys() - {"_original_object_hash"} == {*WRITTEN.split()}


@pytest.mark.parametrize(
    "entries",
    [
        {"do_sample": True},
        {"num_beam_groups": 2},
        {"diversity_penalty": 0.5},
        {"encoder_no_repeat_ngram_size": 3},
        {"exponential_decay_length_penalty": [3, 1.1]},
        {"stop_strings": ["a"]},
        {"penalty_alpha": 0.6},
        {"guidance_scale": 2.0},
        {"sequence_bias": [[[3], 2.0]]},
        {"num_return_sequences": 2},
        {"early_stopping": "soon"},
        {"num_beams": 0},
        {"forced_eos_token_id": [1, 2]},
    ],
    ids=str,
)
def test_translator_rejects_unsupported_entries(entries):
    with pytest.raises(InputError, match=next(iter(entries))):
        generation_config.search_of(entries, "generation_config.json", (1,))


def test_the_search_of_a_translator():
    entries = {"max_length": 200, "num_beams": 4, "length_penalty": 0.5, "early_stopping": True, "min_length": 5}
    search = generation_config.search_of(
        entries | {"bad_words_ids": [[1], [7], [3, 4]], "top_k": 5, "min_p": 0.5}, "", (1,)
    )
    assert search == (
        4,
        0.5,
        True,
        199,
        False,
        Rules(banned=((7,), (3, 4)), shortest=4),
    )  # the first token counts there
    assert generation_config.search_of({"max_new_tokens": 3, "max_length": 9, "min_new_tokens": 2}, "", (1,))[3] == 3
    assert generation_config.search_of({}, "", (1,)) == (1, 1.0, False, None, False, Rules())


@pytest.mark.parametrize(
    "entries",
    [{"num_beams": 2}, {"no_repeat_ngram_size": 3}, {"bad_words_ids": [[3]]}, {"min_new_tokens": 3},
     {"penalty_alpha": 0.6}, {"do_sample": True, "min_p": 0.1}, {"do_sample": True, "typical_p": 0.9},
     {"suppress_tokens": [1]}],
    ids=str,
)  # fmt: skip
def test_language_model_rejects_unsupported_entries(entries):
    with pytest.raises(InputError, match=[*entries][-1]):
        generation_config.sampling_of(entries, "generation_config.json")


def test_generation_config_precedes_config_json(tmp_path):
    config = {"num_beams": 6, "hidden_size": 3, "max_length": 5}
    assert generation_config.entries(tmp_path, config)[0] == {"num_beams": 6, "max_length": 5}
    (tmp_path / "generation_config.json").write_text(json.dumps({"max_length": 7}))
    assert generation_config.entries(tmp_path, config)[0] == {"max_length": 7}


def test_caller_overrides_generation_config(tmp_path):
    from attention_jax.pretrained.decoder_model import PretrainedLanguageModel

    (tmp_path / "generation_config.json").write_text(json.dumps({"do_sample": True, "top_k": 9, "max_length": 12}))
    (tmp_path / "model.safetensors").write_bytes(b"")
    model = PretrainedLanguageModel(tmp_path, None, None, {}, None)
    sampling, total = model.generation_options({})
    assert (sampling.temperature, sampling.top_k, sampling.top_p, total) == (1.0, 9, 1.0, 12)
    sampling, total = model.generation_options({"length": 3, "temperature": 0.5})
    assert (sampling.temperature, sampling.top_k, sampling.length, total) == (0.5, 9, 3, None)


@pytest.mark.slow
def test_a_language_model_writes_as_its_files_say(tmp_path):
    """Against the same options given by hand; a length with the text counts its tokens."""
    import their_decoders

    from attention_jax import load_pretrained

    pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers, of the extra `pretrained`")
    their_decoders.directory(tmp_path)
    model, texts = load_pretrained(tmp_path), ["The quick brown fox", "The"]
    file = tmp_path / "generation_config.json"
    alone = model.generate(texts, length=9)
    file.write_text(json.dumps({"do_sample": True, "temperature": 0.7, "top_k": 9, "max_new_tokens": 9}))
    assert model.generate(texts) == model.generate(texts, length=9, temperature=0.7, top_k=9, top_p=1.0) != alone
    assert model.generate(texts, temperature=0) == alone
    file.write_text(json.dumps({"max_length": 12, "do_sample": False, "temperature": 0.7}))
    tokens = [len(model.tokenizer.encode(text)) for text in texts]
    outputs = model.generate(texts)
    assert outputs == [model.generate([text], length=12 - count)[0] for text, count in zip(texts, tokens)]
    file.write_text(json.dumps({"max_length": tokens[0]}))
    with pytest.raises(InputError, match="max_length"):
        model.generate(texts)
    assert model.generate(texts, length=9) == alone


def test_special_tokens_in_source_equal_marian(tmp_path):
    """Against MarianTokenizer of transformers 5.24, whose results these are; the pieces here are words."""
    from attention_jax.pretrained.task_models import marian_source

    tokens = marian_source(str.split, tmp_path)
    assert tokens(">>fra<< The <pad> fox</s>b") == [">>fra<<", "The", "<pad>", "fox", "</s>", "b"]
    assert tokens("The >>fra<< fox") == ["The", ">>fra<<", "fox"] and tokens(">>a>>b<<q") == [">>a>>b<<", "q"]
    assert tokens("a<unk>>>fra<<q <PAD> >>") == ["a", "<unk>", ">>fra<<", "q", "<PAD>", ">>"]
    for settings in ({"eos_token": "x"}, {"bos_token": "x"}, {"sp_model_kwargs": {"add_eos": True}}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        with pytest.raises(InputError, match=f"{next(iter(settings))} .* is not supported"):
            marian_source(str.split, tmp_path)


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        ({}, (7, 7, 1)),
        ({"bos_token_id": 4}, (7, 4, 1)),
        ({"decoder_start_token_id": None, "bos_token_id": 4}, (7, 4, 1)),
        ({"decoder_start_token_id": 0, "bos_token_id": 4, "pad_token_id": 3, "eos_token_id": [5, 6]}, (3, 0, 5)),
    ],
)
def test_a_translation_begins_where_it_begins_in_transformers(tmp_path, entries, ids):
    from attention_jax.pretrained.task_models import special_ids

    assert special_ids(tmp_path, entries, 7, 1) == ids
    with pytest.raises(InputError, match="eos_token_id in generation_config.json .* must be a token"):
        special_ids(tmp_path, entries | {"eos_token_id": None}, 7, 1)


def test_special_tokens_that_a_source_spells_are_these_tokens(tmp_path):
    """As the tokenizers of transformers read them; in the words of a dataset they would be unknown."""
    from types import SimpleNamespace

    from attention_jax.data.vocabulary import Vocabulary
    from attention_jax.pretrained.task_models import TranslatorTask

    vocabulary = Vocabulary(["<pad>", "</s>", "<unk>", "a"], pad="<pad>", bos="<pad>", eos="</s>", unk="<unk>")
    data = SimpleNamespace(source_vocabulary=vocabulary, source_tokenizer=SimpleNamespace(tokens=str.split))
    read = TranslatorTask.read(SimpleNamespace(data=data), ["a <pad> </s> b a", "a"])
    assert read["source"][:, :6].tolist() == [[3, 0, 1, 2, 3, 1], [3, 1, 0, 0, 0, 0]]
    assert not read["source"][:, 6:].any()  # padded to a length of few
    assert read["source_length"].tolist() == [6, 2]


SETTINGS = [
    {"max_length": 160},
    {"max_length": 20, "no_repeat_ngram_size": 2},
    {"max_length": 12, "num_beams": 3, "length_penalty": -1.0, "early_stopping": True},
    {"max_length": 15, "num_beams": 4, "no_repeat_ngram_size": 3, "min_length": 9, "repetition_penalty": 1.3},
    {
        "max_length": 12,
        "bad_words_ids": [[5], [7, 8]],
        "num_beams": 3,
        "early_stopping": "never",
        "length_penalty": 2.0,
    },
    {"max_length": 9, "forced_bos_token_id": 8, "forced_eos_token_id": 1, "num_beams": 3, "renormalize_logits": True},
    {"max_length": 9, "suppress_tokens": [3, 4, 5], "begin_suppress_tokens": [1, 9], "eos_token_id": [1, 12]},
]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_a_translator_writes_what_transformers_writes(tmp_path, settings):
    torch = pytest.importorskip("torch", reason="parity with transformers needs torch, of the extra `libraries`")
    t = pytest.importorskip("transformers", reason="parity needs transformers, of the extra `libraries`")
    k = pytest.importorskip("tokenizers", reason="parity needs tokenizers, of the extra `pretrained`")
    from attention_jax import load_pretrained

    words = ["<pad>", "</s>", "<unk>", *(f"\u2581w{i}" for i in range(29))]
    tokenizer = k.Tokenizer(k.models.Unigram([(word, -float(i)) for i, word in enumerate(words)], 2))
    tokenizer.pre_tokenizer, tokenizer.decoder = k.pre_tokenizers.Metaspace(), k.decoders.Metaspace()
    tokenizer.post_processor = k.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tokenizer.add_special_tokens(words[:3])
    torch.manual_seed(5)
    sizes = {"vocab_size": 32, "d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 1, "num_heads": 4}
    model = t.T5ForConditionalGeneration(t.T5Config(**sizes, decoder_start_token_id=0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(tmp_path)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    about = {"decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0} | settings
    (tmp_path / "generation_config.json").write_text(json.dumps(about))
    hf_model = t.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    ends = np.atleast_1d(about["eos_token_id"])
    up_to_end = lambda row: row[: next((at for at, token in enumerate(row) if token in ends), len(row))]
    texts = ["w3 w1 w7 w2 w11 w5", "w9 w9", "w4 w20 w13"]
    task, params = (pretrained := load_pretrained(tmp_path)).task, pretrained.params
    outputs = np.asarray(jax.jit(task.generate)(params, task.read(texts)))
    for text, row in zip(texts, outputs.tolist()):
        assert up_to_end(row) == up_to_end(
            hf_model.generate(torch.tensor([tokenizer.encode(text).ids]))[0].tolist()[1:]
        )
