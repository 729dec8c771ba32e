import numpy as np
import pytest

from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from attention_jax.errors import InputError


def test_ids_are_places_and_specials_come_first():
    v = Vocabulary(["b", "a"], pad=PAD, bos=BOS, eos=EOS, unk=UNK)
    assert v.tokens == [PAD, BOS, EOS, UNK, "b", "a"]
    assert (v.pad_id, v.bos_id, v.eos_id, v.unk_id) == (0, 1, 2, 3)
    assert v.encode(["a", "zzz", "b"]) == [5, 3, 4]
    assert v.decode(np.array([5, 4], np.int32)) == ["a", "b"]
    assert "a" in v and "zzz" not in v and len(v) == 6


def test_present_special_token_keeps_its_place():
    v = Vocabulary("_ab", bos="_")
    assert v.tokens == ["_", "a", "b"] and v.bos_id == 0 and v.eos_id is None


def test_sentence_stops_at_eos():
    v = Vocabulary(["x"], pad=PAD, bos=BOS, eos=EOS, unk=UNK)
    assert v.sentence([1, 4, 3, 2, 4, 0]) == ["x", UNK]


def test_unknown_characters_are_one_clear_line_without_unk():
    with pytest.raises(InputError, match=r"'#' '%' not in the vocabulary of 2; it knows: 'a' 'b'"):
        Vocabulary("ab").encode("a%#%")


def test_a_token_twice_is_an_error():
    with pytest.raises(InputError, match="'a' occurs more than once"):
        Vocabulary("aba")


def test_of_sentences_sorts_by_frequency():
    v = Vocabulary.of_sentences([["b", "a", "c"], ["b", "a"], ["b", UNK]], min_frequency=2, unk=UNK)
    assert v.tokens == [UNK, "b", "a"]


def test_equally_frequent_tokens_are_sorted_alphabetically():
    assert Vocabulary.of_sentences([["c", "a"], ["d", "b", "d"]]).tokens == ["d", "a", "b", "c"]
