"""Byte-level BPE: cases by hand, and Hugging Face's GPT-2 tokenizer on unusual texts."""

import json

import pytest

from attention_jax.data.byte_pairs import byte_characters, byte_level_bpe, split_pieces

TEXTS = [
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


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_join_to_text_and_tokens_round_trip(text):
    tokenizer = byte_level_bpe([tuple(merge.split()) for merge in MERGES], ["<|endoftext|>"])
    assert "".join(split_pieces(text)) == text and tokenizer.text(tokenizer.tokens(text)) == text


def test_hugging_faces_tokenizer_finds_the_same_tokens(tmp_path):
    transformers = pytest.importorskip("transformers", reason="parity with Hugging Face needs transformers")
    merges = [tuple(merge.split()) for merge in MERGES]
    tokens = [*byte_characters(), *map("".join, merges), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *MERGES, ""]), encoding="utf-8")
    reference = transformers.GPT2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    tokenizer = byte_level_bpe(merges, ["<|endoftext|>"])
    assert {text: tokenizer.tokens(text) for text in TEXTS} == {text: reference.tokenize(text) for text in TEXTS}
    assert any(len(token) > 2 for text in TEXTS for token in tokenizer.tokens(text))
