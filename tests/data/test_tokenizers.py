import importlib.util
import json

import pytest
from hypothesis import given, settings, strategies as st

from attention_jax.data import stored as stored_data, tokenizers
from attention_jax.data.tokenizers import byte_characters, byte_level_bpe, split_pieces
from attention_jax.errors import InputError

TEXTS = [
    "the cat sat on the mat",
    "the dog sat on the cat",
    "a man and a dog",
    "low lower lowest new newer newest wide wider widest",
] * 5


def d2l_preprocess(text: str) -> list[str]:
    """Word for word what d2l 11.4 says: a space before a punctuation mark whose left neighbor
    is none; split at single spaces."""
    text = text.replace("\u202f", " ").replace("\xa0", " ")
    out = [
        " " + char if i > 0 and char in ",.!?" and text[i - 1] != " " else char for i, char in enumerate(text.lower())
    ]
    return [token for token in "".join(out).split(" ") if token]


@settings(deadline=None)
@given(st.text(alphabet="abÀ \u202f\xa0,.!?'-\u2009"))
def test_words_are_d2ls(text):
    assert tokenizers.words().tokens(text) == d2l_preprocess(text)


def slow_bpe(word: str, merges: list[tuple[str, str]]) -> list[str]:
    """Sennrich's algorithm read literally: go through the merges in their order, merge
    every occurrence from the left."""
    symbols = [*word[:-1], word[-1] + "</w>"]
    for pair in merges:
        i = 0
        while i < len(symbols) - 1:
            if (symbols[i], symbols[i + 1]) == pair:
                symbols[i : i + 2] = ["".join(pair)]
            i += 1
    return [s + "@@" for s in symbols[:-1]] + [symbols[-1].removesuffix("</w>")]


@settings(deadline=None)
@given(st.lists(st.text(alphabet="lowe", min_size=1, max_size=8), min_size=1, max_size=5))
def test_bpe_is_the_literal_algorithm_and_comes_back(words):
    merges = [("l", "o"), ("o", "w"), ("lo", "w"), ("e", "w</w>"), ("low", "e"), ("l", "o</w>"), ("e", "e")]
    tokenizer = tokenizers.merge_tokenizer({merge: rank for rank, merge in enumerate(merges)})
    line = " ".join(words)
    assert tokenizer.tokens(line) == [piece for word in words for piece in slow_bpe(word, merges)]
    assert tokenizer.text(tokenizer.tokens(line)) == line


def test_bpe_files(tmp_path):
    path = tmp_path / "code"
    path.write_text("#version: 0.2\nl o\nlo w</w>\n")
    assert tokenizers.bpe(str(path)).tokens("low lo") == ["low", "l@@", "o"]
    path.write_text("#version: 0.2\nl o\nlow\n")
    with pytest.raises(InputError, match="code line 3: expected two symbols to merge, got 'low'"):
        tokenizers.bpe(str(path))
    path.write_text("#version: 1.0\nl o\n")
    with pytest.raises(InputError, match="code must be of version 0.1 or 0.2 of subword-nmt, is of 1: "):
        tokenizers.bpe(str(path))
    assert tokenizers.merge_tokenizer({}).text(["a@@"]) == "a"  # a prediction may end in the middle of a word


@pytest.mark.parametrize("version", ["", "#version: 0.1\n", "#version: 0.1.0\n"])
def test_bpe_of_version_01_has_the_end_of_a_word_as_a_symbol(tmp_path, version):
    """By hand: l o w </w> -> lo w </w> -> lo w</w>; e </w> -> e</w>, and o e</w> are no merge."""
    path = tmp_path / "code"
    path.write_text(version + "l o\nw </w>\ne </w>\n\n")
    tokenizer = tokenizers.bpe(str(path))
    assert tokenizer.tokens("low lo loe e") == ["lo@@", "w", "lo", "lo@@", "e", "e"]
    path.write_text(version + "l o\nlo </w>\nlo</w> x\nw </w>\nlo w</w>\n")
    assert tokenizers.bpe(str(path)).tokens("low lo") == ["low", "lo"]
    stored = stored_data.decode(stored_data.encode(tokenizer, {}), {})
    assert stored.tokens("low") == ["lo@@", "w"]


def test_bpe_reads_merges_and_words_as_subword_nmt_does(tmp_path):
    """By hand: the first of two equal merges counts, and only a space separates, neither U+00A0 nor U+3000."""
    path = tmp_path / "code"
    path.write_text("#version: 0.2\na b\nb c</w>\na b\n\u00a0 x</w>\n#version: y</w>\n", encoding="utf-8")
    tokenizer = tokenizers.bpe(str(path))
    assert tokenizer.tokens("abc") == ["ab@@", "c"]
    assert tokenizer.tokens("\u00a0x  bc\u3000bc ") == ["\u00a0x", "b@@", "c@@", "\u3000@@", "bc"]


def test_sentencepiece_trains_once_and_comes_back(monkeypatch):
    import sentencepiece

    tokenizer, pieces = tokenizers.sentencepiece(TEXTS, 28)
    assert len(pieces) == 27 and len(set(pieces)) == 27  # 28 with its own unknown piece
    for text in TEXTS[:4]:
        assert tokenizer.text(tokenizer.tokens(text)) == text and set(tokenizer.tokens(text)) <= set(pieces)
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", lambda **_: pytest.fail("trained again"))
    assert tokenizers.sentencepiece(TEXTS, 28)[1] == pieces


def test_too_few_pieces_are_one_line():
    assert 20 < len(tokenizers.sentencepiece(TEXTS, 5000)[1]) < 200
    with pytest.raises(InputError, match="cannot train 3 pieces on 20 sentences.*--data.vocabulary-size") as caught:
        tokenizers.sentencepiece(TEXTS, 3)
    assert "\n" not in str(caught.value)


def test_spacy_is_optional(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install spacy"):
        tokenizers.spacy("de").tokens("Ein Haus.")


def test_whole_corpora_are_tokenized_once():
    calls = []

    def tokens(text):
        calls.append(text)
        return text.replace(".", " .").split()

    texts = ["ein Haus.", "", "zwei\u00a0Häuser."]
    for _ in range(2):
        assert tokenizers._tokenize_once("test", texts, tokens) == [["ein", "Haus", "."], [], ["zwei", "Häuser", "."]]
    assert len(calls) == 3


@pytest.mark.slow
def test_spacys_rules():
    pytest.importorskip("spacy")
    assert tokenizers.spacy("de").tokens("Zwei  Männer, z.B. er.") == ["Zwei", "Männer", ",", "z.B.", "er", "."]
    assert tokenizers.spacy("en").split(["don't go"]) == [["do", "n't", "go"]]


ODD_TEXTS = [
    "", " ", "  ", "a", " a", "  a", "a ", "a  ", " a  b   c ", "The house is old.", "Hello, world!",
    "I'm you're he'll we've it's she'd don't", "I'M YOU'RE IT'S", "'s", "''s", "'\u017f 't", "\u2019s it\u2019s",
    "x'tis 'twas'd", "3.14 1,000 20th a1b2", "\u0661\u0662\u0663 \u216b \u00bd \u00b2 \u4e09", "snake_case __init__",
    "tab\tand\ttab", "line\nline", "line\n\n\nline", "\n", " \n ", "a \n b", "\r\n\r\n x", "a\u00a0b \u00a0 c",
    "\u2003em\u3000wide\u2028line\u2029paragraph\u0085next", "\x1c\x1d a\x1e\x1fb", "\x00\x01\x7f\x80\x9f",
    "caf\u00e9 cafe\u0301", "\u0915\u094d\u0937\u093f \u0928\u092e\u0938\u094d\u0924\u0947",
    "na\u00efve Stra\u00dfe \u0130",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002", "\u3053\u3093\u306b\u3061\u306f \u4e16\u754c", "\uc548\ub155 \uc138\uc0c1",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f44d\U0001f3fd \u2764\ufe0f", "\U0001f1e9\U0001f1ea",
    "a\u200bb\u200dc\ufeffd", "\u1680 \u180e \u205f", "\u2460\u2461 \u3220", "\U0001d400\U0001d7d8 \U00020000",
    "<|endoftext|>", "a<|endoftext|> b", "<|endoftext|><|endoftext|>x", "<|endoftext", "!!! ... --- ???", "$5 + 5%=?",
    "aaaaaaaaaaaaaaaa", "https://example.org/a?b=c&d=%20", "\ue000\ufffd\U0010ffff", "\u0301\u0302 \u0301a",
]  # fmt: skip
"""Spaces, contractions, digits, emoji, combining characters, CJK, newlines, controls."""
MERGES = ["Ġ t", "h e", "Ġt he", "i n", "o u", "' s", "Ġ a", "Ġ Ġ", "Ċ Ċ", "a a", "aa aa", "e r", "l l", "o ld", "l d",
          "Ã ©", "ä \u00b8", "ð Ł", "ðŁ ĺ", "1 0", "< |", "| >", "e n", "en d", "Ð \u00b8"]  # fmt: skip


def test_pieces_and_bytes_by_hand():
    assert split_pieces("Don't  stop 42\n\nnow _x") == ["Don", "'t", " ", " stop", " 42", "\n", "\n", "now", " _", "x"]
    assert split_pieces("e\u0301\x1c!") == ["e", "\u0301\x1c!"]  # a combining character and a control are no letters
    assert [byte_characters()[byte] for byte in b"\x00 ~\x7f\xad\xff"] == list("\u0100\u0120~\u0121\u0143\u00ff")
    assert split_pieces("'S'll") == ["'", "S", "'ll"]


def test_pieces_join_to_text_and_tokens_round_trip():
    tokenizer = byte_level_bpe([tuple(merge.split()) for merge in MERGES], ["<|endoftext|>"])
    assert ["".join(split_pieces(text)) for text in ODD_TEXTS] == ODD_TEXTS
    assert [tokenizer.text(tokenizer.tokens(text)) for text in ODD_TEXTS] == ODD_TEXTS


def test_hugging_faces_tokenizer_finds_the_same_tokens(tmp_path):
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
    merges = [tuple(merge.split()) for merge in MERGES]
    tokens = [*byte_characters(), *map("".join, merges), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    reference = transformers.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    tokenizer = byte_level_bpe(merges, ["<|endoftext|>"])
    assert {text: tokenizer.tokens(text) for text in ODD_TEXTS} == {
        text: reference.tokenize(text) for text in ODD_TEXTS
    }
    assert any(len(token) > 2 for text in ODD_TEXTS for token in tokenizer.tokens(text))
