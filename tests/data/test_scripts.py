"""Texts in other scripts and spellings: words with marks, normal forms, language codes, words like special tokens."""

import unicodedata

import numpy as np
import pytest

from attention_jax.config import Corpus, LabeledFile, TextFile
from attention_jax.data import labeled_texts, pairs, text_windows, tokenizers
from attention_jax.data.pairs import decode_targets, load_pairs
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from attention_jax.errors import InputError
from attention_jax.export import prepare_text


@pytest.mark.parametrize(
    "text, words",
    [
        ("İstanbul İyi", ["i̇stanbul", "i̇yi"]),
        ("cafe\u0301 noe\u0308l!", ["cafe\u0301", "noe\u0308l", "!"]),
        ("नमस्ते दुनिया।", ["नमस्ते", "दुनिया", "।"]),
        ("مُحَمَّد رَسُول", ["مُحَمَّد", "رَسُول"]),
        ("ภาษาไทย", ["ภาษาไทย"]),
        ("\u0645\u06cc\u200c\u062e\u0648", ["\u0645\u06cc\u200c\u062e\u0648"]),
        ("I \u2764\ufe0f it's", ["i", "\u2764\ufe0f", "it's"]),
        ("It's late: go_on 3.5!", ["it's", "late", ":", "go_on", "3", ".", "5", "!"]),
        ("l\u2019été 'quoted'", ["l\u2019été", "'", "quoted", "'"]),
    ],
)
def test_marks_stay_with_their_letters(text, words):
    assert tokenizers.split_words(text) == words


def test_no_word_begins_with_a_mark():
    """A letter or symbol, then any of Unicode's marks: one word, whatever the mark."""
    marks = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code))[0] == "M"]
    assert [mark for mark in marks if tokenizers.split_words(f"a{mark}b ?{mark}") != [f"a{mark}b", f"?{mark}"]] == []


def twins(count: int = 30) -> list[tuple[str, str]]:
    """`count` texts composed, the same decomposed, and the same with two spaces."""
    composed = [f"café n{number}" for number in range(count)]
    decomposed = [unicodedata.normalize("NFD", text) for text in composed]
    return [(text, "x" * (1 + n % 7)) for n, text in enumerate([*composed, *decomposed, *composed])]


def test_unicode_twins_are_in_one_split(tmp_path):
    rows = [(source.replace(" ", "  ") if n >= 60 else source, target) for n, (source, target) in enumerate(twins())]
    (tmp_path / "a").write_text("".join(f"{s}\t{t}\n" for s, t in rows), encoding="utf-8")
    data = load_pairs(Corpus(tsv_file=str(tmp_path / "a"), held_out_fraction=0.1, tokenizer="character"), 4)
    same = lambda split: {" ".join(unicodedata.normalize("NFC", text).split()) for text in data.texts[split].source}
    train, valid, test = map(same, ("train", "valid", "test"))
    assert not (train & valid or train & test or valid & test) and len(train | valid | test) == 30
    assert (len(valid), len(test)) == (3, 3)


def test_unicode_twins_of_held_out_are_not_streamed(tmp_path, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    (tmp_path / "a").write_text("".join(f"{s}\t{t}\n" for s, t in twins()), encoding="utf-8")
    options = Corpus(tsv_file=str(tmp_path / "a"), held_out_fraction=0.05, tokenizer="character", stream="always")
    data = load_pairs(options, 4)
    text = lambda row, length: "".join(data.source_vocabulary.decode(row[: length - 1]))
    to_nfc = lambda text: unicodedata.normalize("NFC", text)
    rows = [row for bucket in data.train for row in zip(bucket.source[:], bucket.source_length)]
    trained = {to_nfc(text(*row)) for row in rows}
    held_out = {to_nfc(text) for name in ("valid", "test") for text in data.texts[name].source}
    assert len(held_out) == 2 and len(trained) == 28 and not trained & held_out


def test_twins_of_other_spellings_are_one_labeled_text(tmp_path):
    (tmp_path / "a").write_text("".join(f"{'ab'[n % 2]}\t{s}\n" for n, (s, _) in enumerate(twins())), encoding="utf-8")
    facts = labeled_texts.load(LabeledFile(tsv_file=str(tmp_path / "a")), 4).facts
    assert facts["texts_left_out"] == 60 and facts["texts_of_several_labels"] == 0
    assert sum(facts[f"{split}_texts"] for split in ("train", "valid", "test")) == 30


def test_labels_of_other_spellings_are_one_class(tmp_path):
    labels = ("café", "cafe\u0301", "the\u0301", "thé")
    (tmp_path / "a").write_text("".join(f"{labels[n % 4]}\ttext {n}\n" for n in range(40)), encoding="utf-8")
    assert labeled_texts.load(LabeledFile(tsv_file=str(tmp_path / "a")), 4).names == ("café", "thé")


def test_twins_of_other_spellings_are_counted(tmp_path):
    held_out = ["a line of the café au lait"]
    lines = [unicodedata.normalize("NFD", held_out[0]), "x" * 500, *held_out, "y" * 20]
    (tmp_path / "a").write_text("\n".join(lines), encoding="utf-8")
    data = text_windows.load(TextFile(str(tmp_path / "a"), held_out_fraction=0.15, sequence_length=4))
    assert data.facts["held_out_lines_also_in_train"] == 1


@pytest.mark.parametrize(
    "codes, tokens",
    [
        ("zh zh-CN zh_TW ZH zh-Hant-HK zho chi cmn yue", "zh"),
        ("ja jpn ja_JP JA ko kor th tha lo lao km khm my mya bur", "char"),
        ("en en-GB deu de_DE xx pt-BR sr-Latn hsb sw la", "13a"),
    ],
)
def test_languages_by_the_first_part_of_their_codes(codes, tokens):
    assert {code: tokenizers.bleu_tokens(code) for code in codes.split()} == dict.fromkeys(codes.split(), tokens)


@pytest.mark.parametrize("code", ["jp", "cn", "Japanese", "zz", "", "e", "e1", "日本"])
def test_what_is_no_language_code_is_refused(tmp_path, code):
    (tmp_path / "a").write_text("".join(f"s{n}\tt{n}\n" for n in range(9)))
    with pytest.raises(InputError, match="--data.languages needs codes of languages"):
        load_pairs(Corpus(tsv_file=str(tmp_path / "a"), languages=("en", code)), 4)


def test_language_with_region_is_scored_by_characters(tmp_path):
    """Two sentences with two wrong endings: 69.3 by sacrebleu's own characters, 0.0 by its words."""
    from sacrebleu.metrics import BLEU

    outputs, targets = (
        ["私は猫が好きでした。", "今日は天気がいいですね。"],
        ["私は猫が好きです。", "今日は天気がいいです。"],
    )
    (tmp_path / "a").write_text("".join(f"s{n}\tt{n}\n" for n in range(9)))
    options = Corpus(tsv_file=str(tmp_path / "a"), languages=("en", "ja-JP"), tokenizer="character")
    tokenize = load_pairs(options, 4).bleu_tokenize
    score = lambda tokens: BLEU(tokenize=tokens, force=True).corpus_score(outputs, [targets]).score
    assert score(tokenize) == score("char") > 50 > 1 > score("13a")


SPECIAL = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


@pytest.mark.parametrize("tokenizer", ["whitespace", "words", "character", "spacy", "bpe", "sentencepiece"])
@pytest.mark.parametrize("from_file", [False, True], ids=["", "file"])
def test_special_words_do_not_end_a_text(tmp_path, monkeypatch, tokenizer, from_file):
    """A perfect output has as many tokens as the reference, whatever words the text has."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    if tokenizer == "spacy":
        pytest.importorskip("spacy", reason="spaCy is optional")
    if tokenizer == "sentencepiece" and from_file:
        pytest.skip("its vocabulary file is a model")
    lines = [f"a{n} <eos> b <pad> c <bos> d\tx <eos> y{n} <pad> <bos> z<eos>z" for n in range(40)]
    (tmp_path / "a").write_text("\n".join(lines) + "\n")
    (tmp_path / "merges").write_text("< e\n<e o\n<eo s\n<eos ></w>\n")
    (tmp_path / "v").write_text("\n".join(["<eos>", "x", "a1", "<bos>", "z"]) + "\n")
    files = {
        "merges": str(tmp_path / "merges") if tokenizer == "bpe" else "",
        "vocabulary_file": str(tmp_path / "v") if from_file else "",
    }
    options = Corpus(
        tsv_file=str(tmp_path / "a"), tokenizer=tokenizer, vocabulary_size=40, languages=("xx", "xx"), **files
    )
    data = load_pairs(options, 4)
    vocabulary, pairs = data.target_vocabulary, data.held_out["test"]
    ends = (vocabulary.pad_id, vocabulary.bos_id, vocabulary.eos_id)
    for row, length, text in zip(pairs.target, pairs.target_length, data.texts["test"].target):
        tokens = row[1 : 1 + length]
        assert tokens[-1] == vocabulary.eos_id and not np.isin(tokens[:-1], ends).any()
        assert len(vocabulary.sentence(tokens)) == length - 1 == len(data.target_tokenizer.tokens(text))
    if tokenizer in ("whitespace", "words"):
        assert decode_targets(data, pairs.target[:1, 1:])[0].startswith(f"x {UNK}" if not from_file else "x ")
        assert data.facts["test_unknown_target_tokens"] > 0


def test_special_word_is_unknown_in_labeled_text(tmp_path):
    (tmp_path / "a").write_text("".join(f"{'ab'[n % 2]}\t<pad> w{n} {PAD}\n" for n in range(40)))
    for tokenizer in ("words", "character", "sentencepiece"):
        options = LabeledFile(tsv_file=str(tmp_path / "a"), tokenizer=tokenizer, vocabulary_size=30, min_frequency=1)
        data = labeled_texts.load(options, 4)
        for bucket in data.train:
            assert not any(
                (row[:length] == data.vocabulary.pad_id).any() for row, length in zip(bucket.tokens, bucket.length)
            )


def test_unk_in_text_is_unknown_token():
    vocabulary = Vocabulary(["dog"], **SPECIAL)
    assert vocabulary.encode_text(["dog", UNK, EOS, PAD, BOS, "cat"]) == [4, 3, 3, 3, 3, 3]
    assert UNK in vocabulary and not {EOS, PAD, BOS} & {token for token in vocabulary.tokens if token in vocabulary}
    with pytest.raises(InputError, match="'_' not in the vocabulary of 3; it knows: 'a' 'b'"):
        Vocabulary("_ab", bos="_").encode_text("a_b")


def test_exported_reference_encodes_special_tokens_alike(monkeypatch):
    tokens = Vocabulary(["dog"], **SPECIAL).tokens
    recipe = {"steps": [["find", r"\S+"]], "vocabulary": "source", "begin": [], "end": [EOS], "most": None, "empty": []}
    files = {
        "manifest.json": {"preprocessing": {"encode": recipe}, "inputs": [{"shape": [8, 8]}, {"shape": [8]}]},
        "words.json": {"source": {"tokens": tokens, "pad": 0, "bos": 1, "eos": 2, "unk": 3}},
    }
    monkeypatch.setattr(prepare_text, "read_json", files.get)
    ids, lengths = prepare_text.prepare(["dog <eos> dog <unk> <pad>", ""])
    assert ids.tolist() == [[4, 3, 4, 3, 3, 2, 0, 0], [2] + [0] * 7] and lengths.tolist() == [6, 1]


DOCUMENT = "the quick brown fox jumps over the lazy dog " * 120
"""5,280 bytes: more than sentencepiece trains on."""


@pytest.mark.parametrize("alphabet", ["", "数据"], ids=["spaced", "unspaced"])
def test_long_documents_train_sentencepiece(tmp_path, monkeypatch, alphabet):
    """In each of the callers: labeled texts, pairs and a plain text."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    document = alphabet * 1_000 or DOCUMENT
    (tmp_path / "a").write_text("".join(f"{'xy'[n % 2]}{n // 2}\t{n} {document}\n" for n in range(8)), encoding="utf-8")
    (tmp_path / "b").write_text("".join(f"{'xy'[n % 2]}\t{n} {document}\n" for n in range(8)), encoding="utf-8")
    with_pieces = {"tokenizer": "sentencepiece", "vocabulary_size": 40}
    labeled = labeled_texts.load(LabeledFile(tsv_file=str(tmp_path / "b"), **with_pieces), 4)
    translation = load_pairs(Corpus(tsv_file=str(tmp_path / "a"), **with_pieces, overlong="truncate"), 4)
    text = text_windows.load(TextFile(text_file=str(tmp_path / "b"), held_out_fraction=0.4, **with_pieces))
    for vocabulary in (labeled.vocabulary, translation.target_vocabulary, text.vocabulary):
        assert set(document.replace(" ", "")) <= set("".join(vocabulary.tokens))


def test_texts_that_sentencepiece_reads_whole_are_not_cut():
    assert tokenizers.split_long_text("é" * 2_096) == ["é" * 2_096]
    assert "".join(tokenizers.split_long_text("é" * 2_097)) == "é" * 2_097
    assert max(len(piece.encode()) for piece in tokenizers.split_long_text("\U0001f600" * 2_000)) <= 4_192


def test_splits_compare_what_the_model_reads(tmp_path):
    """Texts that are equal after lower-casing, words and compatible characters are in one split, and count once."""
    spellings = {"words": "N{} now!\nn{} now !\nn{}  NOW!", "sentencepiece": "n{} now\n\uff4e{}  now"}
    for tokenizer, forms in spellings.items():
        texts = [text for n in range(20) for text in forms.replace("{}", str(n)).split("\n")]
        lines = [f"{'ab'[n % 2]}\t{text}\n" for n, text in enumerate(texts)]
        (tmp_path / "a").write_text("".join(lines), encoding="utf-8")
        as_read = labeled_texts.texts_as_read(LabeledFile(tokenizer=tokenizer))
        examples = labeled_texts.read_examples(LabeledFile(str(tmp_path / "a")))
        split = labeled_texts.select(examples, 0.1, as_read).split_index
        assert (split != labeled_texts.DUPLICATE).sum() == 20
        keys = {pairs.source_key(text, Corpus(tokenizer=tokenizer)) for text in texts}
        assert len(keys) == 20
    assert pairs.source_key("CAF\xc9  au", Corpus(lowercase=True)) == "caf\xe9 au"
