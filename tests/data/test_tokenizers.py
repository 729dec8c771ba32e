import importlib.util

import pytest
from hypothesis import given, settings, strategies as st

from attention_jax.data import tokenizers
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
    assert tokenizers.merge_tokenizer({}).text(["a@@"]) == "a"  # a prediction may end in the middle of a word


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


def test_an_earlier_merge_comes_before_a_later_one():
    tokens = lambda *merges: tokenizers.bpe_of_merges(merges).tokens("abc")
    assert tokens(("a", "b"), ("b", "c</w>")) == ["ab@@", "c"]
    assert tokens(("b", "c</w>"), ("a", "b")) == ["a@@", "bc"]
