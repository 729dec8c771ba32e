"""Two options of how a source is read: bos before it, and tokens of nothing but whitespace."""

import importlib.util
import sys
import types

import numpy as np
import pytest

from attention_jax.config import Corpus, Multi30k, Reverse
from attention_jax.data import pair_files, stored, tokenizers
from attention_jax.data.pair_streams import PairEncoder
from attention_jax.data.pairs import Texts, encode_sources, load_pairs
from attention_jax.errors import InputError

SPLITS = {"train": Texts(["a b c", "c"], ["x", "y y"]), "test": Texts(["b a"], ["y"])}


def assemble(**options):
    return pair_files.assemble(SPLITS, Multi30k(**options), 2, bleu_tokenize="none")


@pytest.mark.parametrize("reverse", [False, True])
def test_source_bos_changes_nothing_else(reverse):
    plain, with_bos = (assemble(source_bos=bos, reverse_source=reverse, max_buckets=1) for bos in (False, True))
    bos = with_bos.source_vocabulary.bos_id
    for a, b in ((plain.train[0], with_bos.train[0]), (plain.held_out["test"], with_bos.held_out["test"])):
        assert (b.source[:, 0] == bos).all()
        np.testing.assert_array_equal(b.source[:, 1:], a.source)
        np.testing.assert_array_equal(b.source_length, a.source_length + 1)
        np.testing.assert_array_equal(b.target, a.target)
    assert plain.source_vocabulary.tokens == with_bos.source_vocabulary.tokens


def test_new_text_is_encoded_like_the_dataset():
    data, arrays = assemble(source_bos=True), {}
    reloaded = stored.decode(stored.encode(data._replace(stream=None), arrays), arrays)
    for dataset in (data, reloaded):
        source, length = encode_sources(dataset, ["b a"])
        np.testing.assert_array_equal(source, data.held_out["test"].source)
        assert length.tolist() == [4]
    assert encode_sources(data, ["b a"], width=6)[0].shape == (1, 6)
    encoder = PairEncoder(Corpus(source_bos=True), ("xx", "xx"), "")
    source, target = encoder(Texts(["b a"], ["y"]), (data.source_vocabulary, data.target_vocabulary))
    assert source[0] == data.held_out["test"].source[0, :3].tolist() and len(target[0]) == 1


def test_bos_counts_towards_the_longest_source():
    assert assemble(source_bos=True, max_length=4).facts["overlong_train"] == 1
    assert assemble(max_length=4).facts["overlong_train"] == 0
    data = load_pairs(Reverse(examples=20, source_bos=True))
    assert all((bucket.source[:, 0] == data.source_vocabulary.bos_id).all() for bucket in data.train)


@pytest.fixture
def spacy(monkeypatch, tmp_path):
    """A stand-in for spaCy: it splits at single spaces, and a second space is a token, as with its own rules."""
    split = lambda text: [types.SimpleNamespace(text=token or " ") for token in text.split(" ")]
    blank = lambda language: types.SimpleNamespace(tokenizer=split)
    monkeypatch.setitem(sys.modules, "spacy", types.SimpleNamespace(blank=blank))
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "spacy" or real(name))
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))


@pytest.mark.parametrize("keep, expected", [(True, ["a", " ", "b"]), (False, ["a", "b"])])
def test_keep_whitespace_also_from_cache(spacy, keep, expected):
    tokenizer = tokenizers.spacy("de", keep)
    assert tokenizer.tokens("a  b") == expected
    for _ in range(2):  # the second reads the cache
        assert tokenizer.split(["a  b", "c"]) == [expected, ["c"]]
    assert stored.TOKENIZERS[tokenizer.recipe[0]](*tokenizer.recipe[1:]).tokens("a  b") == expected


def test_only_spacy_has_whitespace_tokens():
    with pytest.raises(InputError, match=r"--data\.keep-whitespace needs --data\.tokenizer spacy, got whitespace"):
        assemble(keep_whitespace=True)
