"""Tokenizers of pretrained models against the libraries that made their files."""

import io
import json

import pytest
from parity import ODD

from attention_jax.data.tokenizers import byte_characters
from attention_jax.errors import InputError
from attention_jax.pretrained import tokenizer

tokenizers = pytest.importorskip("tokenizers", reason="tokenizer.json needs tokenizers, of the extra `pretrained`")
gguf = pytest.importorskip("gguf", reason="GGUF files need gguf, of the extra `pretrained`")

TEXT = ["The quick brown fox jumps over the lazy dog, and don't we all know it in 1999?", "caf\u00e9 na\u00efve"] * 3


def byte_level(split=None, digits=False):
    """A small byte-level BPE as the library trains it, with two special tokens."""
    library_tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    splitters = [tokenizers.pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if split:
        splitters = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(split), behavior="isolated")]
    whole = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    library_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*splitters, whole])
    library_tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    library_tokenizer.train_from_iterator(TEXT, trainer)
    return library_tokenizer


def directory(place, library_tokenizer, **files):
    """A directory as `save_pretrained` writes it."""
    place.mkdir(exist_ok=True)
    library_tokenizer.save(str(place / "tokenizer.json"))
    for name, content in files.items():
        (place / f"{name}.json").write_text(json.dumps(content))
    return place


def header(path, model, tokens, **fields):
    """A GGUF file with a vocabulary and nothing else."""
    writer = gguf.GGUFWriter(path, fields.pop("architecture", "llama"))
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    for name, value in fields.items():
        if name.endswith("_token_id"):  # the library has no method for some
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        else:
            getattr(writer, f"add_{name}")(value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def test_tokenizer_json_equals_tokenizers_library(tmp_path):
    """But it neither cuts nor pads; the names of special tokens come from the other files."""
    library_tokenizer = byte_level()
    library_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    expected = [library_tokenizer.encode(text).ids for text in ODD]
    library_tokenizer.enable_truncation(3)
    library_tokenizer.enable_padding(length=9)
    special_tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None}
    place = directory(
        tmp_path / "a", library_tokenizer, tokenizer_config=special_tokens, generation_config={"eos_token_id": [1, 7]}
    )
    t = tokenizer.read_tokenizer(place, {"pad_token_id": 5})
    assert [t.encode(text) for text in ODD] == expected
    assert (t.special, t.mask, t.ends) == ({"bos": 0, "eos": 1, "pad": 5}, None, (1, 7))
    assert [t.decode(ids) for ids in expected if "<s>" not in t.tokens(ids)[1:]]
    assert [t.decode(t.encode(text)) for text in ODD[:16]] == ODD[:16]
    assert t.tokens(t.encode("The dog, \u00e9"))[0] == "<s>" and "\u2581dog" in t.tokens(t.encode("the dog"))


@pytest.mark.parametrize(
    ("generation", "config", "ends"),
    [
        ({"eos_token_id": 3}, {"eos_token_id": 4}, (3,)),
        ({}, {"eos_token_id": 4}, ()),
        ({"eos_token_id": None}, {"eos_token_id": 4}, ()),
        (None, {"eos_token_id": [5, 4]}, (4, 5)),
        (None, {"eos_token_id": None}, ()),
        (None, {}, (2,)),
    ],
)
def test_a_text_ends_where_it_ends_in_transformers(tmp_path, generation, config, ends):
    """What generate of transformers 5.24 does was tried: eos_token of the tokenizer ends nothing; a Llama's is 2."""
    files = {"tokenizer_config": {"eos_token": "</s>"}} | (
        {} if generation is None else {"generation_config": generation}
    )
    assert (
        tokenizer.read_tokenizer(directory(tmp_path, byte_level(), **files), {"model_type": "llama"} | config).ends
        == ends
    )


@pytest.mark.parametrize("file", ["special_tokens_map", "added_tokens"])
def test_tokens_of_older_files_must_be_in_tokenizer_json(tmp_path, file):
    """transformers adds them, unless tokenizer_config.json has added_tokens_decoder."""
    contents = {"special_tokens_map": {"pad_token": "the"}, "added_tokens": {"the": 9}}[file]
    with pytest.raises(InputError, match=rf"'the' in .*{file}.json contradicts tokenizer.json"):
        tokenizer.read_tokenizer(directory(tmp_path, byte_level(), **{file: contents}), {})
    directory(tmp_path, byte_level(), tokenizer_config={"added_tokens_decoder": {}})
    assert tokenizer.read_tokenizer(tmp_path, {}).special.get("pad") is None


@pytest.mark.parametrize(("model", "text"), [("Unigram", "a, b"), ("BPE", "a , b")])
def test_spaces_before_marks_are_cleaned_up_as_in_transformers(tmp_path, model, text):
    """transformers 5.24 leaves texts of a BPE as they are."""
    words = ["\u2581a", "\u2581,", "\u2581b"]
    kinds = {"Unigram": lambda: tokenizers.models.Unigram([(word, -1.0) for word in words], 0)}
    kinds["BPE"] = lambda: tokenizers.models.BPE({word: i for i, word in enumerate(words)}, [])
    library_tokenizer = tokenizers.Tokenizer(kinds[model]())
    library_tokenizer.decoder = tokenizers.decoders.Metaspace()
    place = directory(tmp_path, library_tokenizer, tokenizer_config={"clean_up_tokenization_spaces": True})
    assert (
        tokenizer.read_tokenizer(place, {}).decode([0, 1, 2])
        == tokenizer.cleanup_of(place, library_tokenizer)("a , b")
        == text
    )


@pytest.mark.parametrize("name", tokenizer.SPLITS)
def test_the_vocabulary_in_a_gguf_file(tmp_path, name):
    """Against the library's tokenizer of the same merges and the published split."""
    split = tokenizer.SPLITS[name]
    library_tokenizer = byte_level(None if split == "digits" else split, digits=split == "digits")
    content = json.loads(library_tokenizer.to_str())["model"]
    tokens = sorted(content["vocab"], key=content["vocab"].get)
    types = [3 if token in ("<s>", "</s>") else 1 for token in tokens]
    merges = [" ".join(merge) if isinstance(merge, list) else merge for merge in content["merges"]]
    ids = {"bos_token_id": 0, "eos_token_id": 1, "token_types": types}
    path = header(tmp_path / "a.gguf", "gpt2", tokens, token_merges=merges, tokenizer_pre=name, **ids)
    t = tokenizer.read_tokenizer(path, {})
    odd = [text for text in ODD if name != "qwen2" or "\u0301" not in text]  # Qwen composes, which is no split
    assert [t.encode(text, special=False) for text in odd] == [library_tokenizer.encode(text).ids for text in odd]
    assert [t.decode(t.encode(text)) for text in odd[:10]] == odd[:10]
    assert (t.special["bos"], t.special["eos"], t.ends) == (0, 1, (1,))
    number = t.tokens(t.encode("in 1999"))
    assert ("\u25811999" in number or "1999" in number) == (name == "gpt-2")
    assert len(t.encode("e\u0301")) == len(t.encode("\u00e9")) or name != "qwen2"


@pytest.mark.parametrize("prefix", [True, False])
def test_the_sentencepiece_vocabulary_in_a_gguf_file(tmp_path, prefix):
    """Against sentencepiece, whose BPE has bytes for unknown characters; the file has scores and no merges."""
    spm = pytest.importorskip("sentencepiece")
    content = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT),
        model_writer=content,
        model_type="bpe",
        vocab_size=340,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=3,
    )
    reference = spm.SentencePieceProcessor(model_proto=content.getvalue())
    size = range(reference.get_piece_size())
    kinds = [
        6 if reference.is_byte(i) else 2 if reference.is_unknown(i) else 3 if reference.is_control(i) else 1
        for i in size
    ]
    path = header(
        tmp_path / "a.gguf",
        "llama",
        [reference.id_to_piece(i) for i in size],
        token_scores=[reference.get_score(i) for i in size],
        token_types=kinds,
        add_space_prefix=prefix,
        bos_token_id=1,
        eos_token_id=2,
    )
    t = tokenizer.read_tokenizer(path, {})
    plain = [text for text in ODD if "<s>" not in text and text]
    assert [t.encode(text) for text in plain] == [[1, *reference.encode(text)] for text in plain]
    assert [t.decode(t.encode(text)) for text in plain] == plain


# What llama.cpp does with a header that does not say it: src/llama-vocab.cpp, 2026.


@pytest.mark.parametrize(("pre", "begins"), [("llama-bpe", True), ("llama3", True), ("gpt-2", False), ("qwen2", False)])
def test_bos_is_added_by_vocabulary_kind(tmp_path, pre, begins):
    tokens = [*byte_characters(), "ab", "<b>", "<e>"]
    fields = {"tokenizer_pre": pre, "token_merges": ["a b"], "bos_token_id": 257, "eos_token_id": 258}
    encode_with = lambda name, **extra: tokenizer.read_tokenizer(
        header(tmp_path / name, "gpt2", tokens, **fields, **extra), {}
    ).encode("ab")
    assert encode_with("a.gguf") == [257, 256] if begins else [256]
    assert encode_with("b.gguf", add_bos_token=not begins, add_eos_token=True) == [257] * (not begins) + [256, 258]
    fields.pop("bos_token_id")
    if begins:
        with pytest.raises(InputError, match="must have tokenizer.ggml.bos_token_id"):
            encode_with("c.gguf")


def test_sentencepiece_without_ids_has_the_usual_special_tokens(tmp_path):
    tokens = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "\u2581a"]
    path = header(tmp_path / "a.gguf", "llama", tokens, token_scores=[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, 0.5])
    t = tokenizer.read_tokenizer(path, {})
    assert (t.special["bos"], t.special["eos"], t.special["unk"], t.ends, t.encode("ac")) == (1, 2, 0, (2,), [1, 6, 0])


SPELLED = ["<|endoftext|>", "<|im_end|>", "<end_of_turn>", "<|eom_id|>", "<|fim_pad|>", "<|file_sep|>", "<|end|>"]


@pytest.mark.parametrize(
    ("tokens", "ids", "ends"),
    [
        (["<s>", "<e>", "<t>", "<m>"], {"eos": 1, "eot": 2, "eom": 3}, (1, 2, 3)),
        (["<e>", *SPELLED, "<|im_start|>"], {"eos": 0}, (0, 1, 2, 3, 4, 5, 6, 7)),
        (["<e>", "<|fim_pad|>", "<p>"], {"eos": 0, "fim_pad": 2}, (0, 2)),
        (["<|return|>", "<|call|>", "<|end|>", "<|flush|>"], {}, (0, 1, 3)),
        (["<|tool_response>", "</s>", "<e>"], {"eos": 2}, (0, 2)),
    ],
)
def test_end_tokens_equal_llama_cpp(tmp_path, tokens, ids, ends):
    ids = {f"{name}_token_id": number for name, number in ids.items()}
    path = header(
        tmp_path / "a.gguf",
        "gpt2",
        [*tokens, *byte_characters(), "ab"],
        token_merges=["a b"],
        tokenizer_pre="gpt-2",
        **ids,
    )
    t = tokenizer.read_tokenizer(path, {})
    assert t.ends == ends
    assert all(t.encode(tokens[number]) == [number] for number in ends)


def test_vocabulary_without_split_is_an_error(tmp_path):
    tokens = [*byte_characters(), "ab"]
    with pytest.raises(InputError, match="split in a way that its header does not name, in tokenizer.ggml.pre"):
        tokenizer.read_tokenizer(header(tmp_path / "a.gguf", "gpt2", tokens, token_merges=["a b"]), {})
    gpt2_path = header(tmp_path / "b.gguf", "gpt2", tokens, token_merges=["a b"], architecture="gpt2")
    assert tokenizer.read_tokenizer(gpt2_path, {}).encode("ab") == [256]


def of_bert():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"]
    library_tokenizer = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]")
    )
    library_tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    library_tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    library_tokenizer.add_special_tokens(words[:5])
    return library_tokenizer


@pytest.mark.parametrize(
    ("make_tokenizer", "settings"),
    [
        (of_bert, {"do_lower_case": False}),
        (of_bert, {"strip_accents": False}),
        (of_bert, {"tokenize_chinese_chars": False}),
        (of_bert, {"split_special_tokens": True}),
        (of_bert, {"added_tokens_decoder": {"6": {"content": "new"}}}),
        (of_bert, {"added_tokens_decoder": {"3": {"content": "[CLS]"}}}),
        (of_bert, {"added_tokens_decoder": {"2": {"content": "[CLS]", "lstrip": True}}}),
        (of_bert, {"added_tokens_decoder": {"2": {"content": "[CLS]", "special": False}}}),
        (of_bert, {"pad_token": "hello"}),
        (of_bert, {"image_token": "new"}),
        (of_bert, {"additional_special_tokens": ["new"]}),
        (of_bert, {"extra_special_tokens": {"x": {"content": "new"}}}),
        (lambda: byte_level(), {"add_prefix_space": True}),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_contradicting_tokenizer_config_is_an_error(tmp_path, make_tokenizer, settings):
    """What transformers 5.24 does with each was tried: other tokens than those of tokenizer.json."""
    with pytest.raises(InputError, match=f"{next(iter(settings))} .* contradicts tokenizer.json"):
        tokenizer.read_tokenizer(
            directory(tmp_path, make_tokenizer(), tokenizer_config=settings), {"model_type": "bert"}
        )
    same = {"do_lower_case": True, "strip_accents": None, "tokenize_chinese_chars": True, "model_max_length": 5}
    flags = {"content": "[CLS]", "lstrip": False, "rstrip": False, "single_word": False, "special": True}
    same |= {
        "added_tokens_decoder": {"2": flags},
        "pad_token": {"content": "[PAD]"},
        "additional_special_tokens": ["[SEP]"],
    }
    assert tokenizer.read_tokenizer(directory(tmp_path, of_bert(), tokenizer_config=same), {}).encode("Hello")
    loose = {"do_lower_case": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    assert tokenizer.read_tokenizer(directory(tmp_path, of_bert(), tokenizer_config=loose), {}).encode("Hello")


def test_gpt2s_two_files_need_no_library(tmp_path, monkeypatch):
    library_tokenizer = byte_level()
    content = json.loads(library_tokenizer.to_str())["model"]
    place = directory(tmp_path / "a", library_tokenizer, vocab=content["vocab"])
    (place / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, content["merges"])), encoding="utf-8")
    config = {"model_type": "gpt2", "eos_token_id": 1, "bos_token_id": 0}
    whole = tokenizer.read_tokenizer(place, config)
    monkeypatch.setattr(tokenizer, "tokenizers_library", lambda needed=True: None)
    t = tokenizer.read_tokenizer(place, config)
    assert [t.encode(text) for text in ODD] == [whole.encode(text) for text in ODD]
    assert [t.decode(t.encode(text)) for text in ODD] == [whole.decode(whole.encode(text)) for text in ODD]
    assert (t.special["eos"], t.ends, t.names, t.tokens([300])) == (1, (1,), whole.names, whole.tokens([300]))


def test_a_tokenizer_that_is_missing_or_damaged(tmp_path):
    def read_error(place, config=()):
        with pytest.raises(InputError) as error:
            tokenizer.read_tokenizer(place, dict(config))
        assert "\n" not in str(error.value) and len(str(error.value)) < 500
        return str(error.value)

    assert "must have the tokenizer of the model, tokenizer.json" in read_error(tmp_path)
    assert "there is no" in read_error(tmp_path / "none" / "none")
    (tmp_path / "tokenizer.json").write_text("{}")
    assert "tokenizer.json is damaged" in read_error(tmp_path)
    directory(tmp_path, byte_level(), tokenizer_config=[1])
    assert "tokenizer_config.json must be a JSON object (it is no object)" in read_error(tmp_path)
    directory(tmp_path, byte_level(), tokenizer_config={"added_tokens_decoder": [1]})
    assert "tokenizer_config.json is damaged" in read_error(tmp_path)
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "merges.txt").write_text("a b")
    (gpt2 / "vocab.json").write_text('{"a": 0, "b": 2}')
    assert "must number its 2 tokens from 0" in read_error(gpt2, {"model_type": "gpt2"})
    (gpt2 / "vocab.json").write_text('{"a": 0, "b": 1}')
    assert "must have what merges.txt makes; it has no 'ab'" in read_error(gpt2, {"model_type": "gpt2"})
    assert "distinct tokens" in read_error(header(tmp_path / "b.gguf", "gpt2", ["a", "a"]))
    assert "of the kind t5 is not supported" in read_error(header(tmp_path / "c.gguf", "t5", ["a", "b"]))
    strange = header(tmp_path / "d.gguf", "gpt2", ["a", "b"], tokenizer_pre="viking", token_merges=["a b"])
    assert (
        "split as viking is not supported; supported: gpt-2, smollm, qwen2, llama-bpe, llama3, llama-v3"
        in read_error(strange)
    )
    assert "is damaged" in read_error(
        header(tmp_path / "e.gguf", "gpt2", ["a", "b"], token_merges=["a b"], tokenizer_pre="gpt-2")
    )
    assert "is damaged" in read_error(header(tmp_path / "f.gguf", "gpt2", ["a", "b"], tokenizer_pre="smollm"))
