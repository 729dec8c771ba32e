import numpy as np
import pytest

from attention_jax.data.pairs import (
    PairData,
    Texts,
    Tokenizer,
    decode_targets,
    encode_sources,
    make_pairs,
    occurs_in,
    padding_share,
    references,
)
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from attention_jax.errors import InputError

WORDS = Vocabulary(["a", "b", "c"], pad=PAD, bos=BOS, eos=EOS, unk=UNK)  # a = 4, b = 5, c = 6


def test_rows_by_hand():
    pairs = make_pairs([[4], [4, 5]], [[6, 6, 5], [6]], WORDS, WORDS)
    np.testing.assert_array_equal(pairs.source, [[4, 2, 0], [4, 5, 2]])
    np.testing.assert_array_equal(pairs.source_length, [2, 3])
    np.testing.assert_array_equal(pairs.target, [[1, 6, 6, 5, 2], [1, 6, 2, 0, 0]])
    np.testing.assert_array_equal(pairs.target_length, [4, 2])
    assert {array.dtype for array in pairs} == {np.dtype(np.int32)}


def test_cut_rows_lose_their_end_mark():
    pairs = make_pairs([[4, 5, 6]], [[4, 5, 6]], WORDS, WORDS, source_width=2, target_width=2)
    np.testing.assert_array_equal(pairs.source, [[4, 5]])
    np.testing.assert_array_equal(pairs.target, [[1, 4, 5]])
    assert pairs.source_length.tolist() == pairs.target_length.tolist() == [2]


def test_padding_share_by_hand():
    pairs = make_pairs([[4], [4, 5]], [[6, 6, 5], [6]], WORDS, WORDS)
    assert padding_share([pairs]) == pytest.approx(3 / 14)  # one of 6 source and two of 8 target positions


def _data(**changes) -> PairData:
    tokenizer = Tokenizer(str.split, " ".join)
    base = PairData(
        train=(),
        batch_sizes=(),
        held_out={},
        texts={"test": Texts(["a"], ["A  b"])},
        seen={},
        source_vocabulary=WORDS,
        target_vocabulary=WORDS,
        source_tokenizer=tokenizer,
        target_tokenizer=tokenizer,
        facts={},
    )
    return base._replace(**changes)


def test_new_texts_in_and_out():
    source, lengths = encode_sources(_data(), ["a b", "zzz"])
    np.testing.assert_array_equal(source, [[4, 5, 2], [3, 2, 0]])
    assert lengths.tolist() == [3, 2]
    assert decode_targets(_data(), np.array([[4, 5, 2, 6]])) == ["a b"]
    with pytest.raises(InputError, match="at most 2 tokens .* 'a b'... has 3"):
        encode_sources(_data(), ["a", "a b"], limit=2)


def test_references_are_tokens_or_plain_text():
    assert references(_data(), "test") == ["A b"]
    assert references(_data(bleu_tokenize="13a"), "test") == ["A  b"]


def test_occurs_in():
    assert occurs_in(["x", "y"], ["y", "z"]).tolist() == [False, True]
