"""Sentence pairs: texts, rows, lengths and facts belong together, packed or not; no source is in two splits."""

import dataclasses
import importlib.util
import sys
import types
from collections import Counter
from functools import partial
from itertools import combinations

import jax
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from attention_jax import config as configs
from attention_jax.config import Corpus, Reverse, TextPairs
from attention_jax.data import pairs, stored, tokenizers
from attention_jax.data.pairs import (
    PairData,
    Texts,
    concatenate_pairs,
    decode_targets,
    encode_sources,
    load_pairs,
    make_pairs,
    padding_share,
    references,
)
from attention_jax.data.splits import split_by_source
from attention_jax.data.stream import load_tokens
from attention_jax.data.vocabulary import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary
from attention_jax.errors import InputError
from attention_jax.tasks import build, build_model
from attention_jax.tasks.seq2seq import Seq2seqTask

WORDS = Vocabulary(["a", "b", "c"], pad=PAD, bos=BOS, eos=EOS, unk=UNK)  # a = 4, b = 5, c = 6


def test_rows_by_hand():
    pairs = make_pairs([[4], [4, 5]], [[6, 6, 5], [6]], WORDS, WORDS)
    np.testing.assert_array_equal(pairs.source, [[4, 2, 0], [4, 5, 2]])
    np.testing.assert_array_equal(pairs.source_length, [2, 3])
    np.testing.assert_array_equal(pairs.target, [[1, 6, 6, 5, 2], [1, 6, 2, 0, 0]])
    np.testing.assert_array_equal(pairs.target_length, [4, 2])
    assert {array.dtype for array in pairs} == {np.dtype(np.int32)}
    assert padding_share([pairs]) == pytest.approx(3 / 14)  # one of 6 source and two of 8 target positions


def test_cut_rows_lose_their_end_mark():
    pairs = make_pairs([[4, 5, 6]], [[4, 5, 6]], WORDS, WORDS, source_width=2, target_width=2)
    np.testing.assert_array_equal(pairs.source, [[4, 5]])
    np.testing.assert_array_equal(pairs.target, [[1, 4, 5]])
    assert pairs.source_length.tolist() == pairs.target_length.tolist() == [2]


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


SPLITS = {
    "train": Texts(["a b c", "a", "b b b b b b", "c"], ["A B", "A", "B B", "C C C"]),
    "test": Texts(["a b zz", "c"], ["A ZZ", "C"]),
}


def assemble(splits=SPLITS, bleu_tokenize="none", **options):
    return pairs.assemble(splits, TextPairs(**options), 2, bleu_tokenize=bleu_tokenize)


def test_rows_texts_and_facts_belong_together():
    data = assemble(max_buckets=2)
    rows = [
        (data.source_vocabulary.sentence(source), data.target_vocabulary.sentence(target))
        for bucket in data.train
        for source, target in zip(bucket.source, bucket.target)
    ]
    assert rows == [(s.split(), t.split()) for s, t in zip(*data.texts["train"])]
    assert sorted(data.texts["train"].source) == sorted(SPLITS["train"].source)
    assert [bucket.source.shape for bucket in data.train] == [(3, 4), (1, 7)]
    assert data.batch_sizes == (2, 2) and data.seen["test"].tolist() == [False, True]
    facts = data.facts
    assert (facts["source_vocabulary"], facts["target_vocabulary"], facts["train_pairs"], facts["test_pairs"]) == (
        7,
        7,
        4,
        2,
    )
    assert facts["test_inputs_also_in_train"] == 1 and facts["test_unknown_target_tokens"] == pytest.approx(
        1 / 3, abs=1e-5
    )
    # by hand: 3 rows of 4 + 4 positions with 4 + 2 + 2 and 3 + 2 + 4 tokens, one row of 7 + 3 without padding
    assert facts["padding_share"] == pytest.approx(1 - (17 + 10) / (24 + 10), abs=1e-4)


def test_held_out_rows_and_texts():
    data = assemble()
    np.testing.assert_array_equal(data.held_out["test"].source_length, [4, 2])
    assert data.source_vocabulary.sentence(data.held_out["test"].source[0]) == ["a", "b", "<unk>"]
    assert decode_targets(data, data.held_out["test"].target[:, 1:]) == ["A <unk>", "C"]
    assert references(data, "test") == ["A ZZ", "C"]


def test_overlong_pairs():
    cut = assemble(max_length=4)
    assert (
        cut.facts["overlong_train"] == 1
        and cut.facts["overlong_train_pairs"] == "truncated"
        and cut.facts["train_pairs"] == 4
    )
    assert max(bucket.source.shape[1] for bucket in cut.train) == 4
    dropped = assemble(max_length=4, overlong="drop")
    assert dropped.facts["train_pairs"] == 3 and "b b b b b b" not in dropped.texts["train"].source
    with pytest.raises(InputError, match="pair 3 of train: the source has 7 tokens with its end mark, the limit is 4"):
        assemble(max_length=4, overlong="error")
    with pytest.raises(InputError, match="no training pair is within --data.max-length 1"):
        assemble(max_length=1, overlong="drop")
    held_out = assemble(
        {"train": SPLITS["train"], "test": Texts(["a b c a b c"], ["A"])}, max_length=4, overlong="drop"
    )
    assert held_out.held_out["test"].source.shape == (1, 4) and held_out.texts["test"].source == ["a b c a b c"]


def test_source_reversed_tokens():
    data = assemble(reverse_source=True)
    assert data.source_vocabulary.sentence(data.held_out["test"].source[0]) == ["<unk>", "b", "a"]
    source, length = encode_sources(data, ["a b c"])
    assert data.source_vocabulary.decode(source[0]) == ["c", "b", "a", "<eos>"] and length.tolist() == [4]
    assert data.source_tokenizer.text(["c", "b", "a"]) == "a b c"
    assert decode_targets(data, data.held_out["test"].target[1:, 1:]) == ["C"]


def test_joint_vocabulary_and_lower_case():
    data = assemble(joint_vocabulary=True, lowercase=True)
    assert data.source_vocabulary is data.target_vocabulary and set(data.source_vocabulary.tokens[4:]) == {
        "a",
        "b",
        "c",
    }
    assert data.texts["test"].target == ["a zz", "c"]


@pytest.mark.parametrize("reverse", [False, True])
def test_new_texts_are_lowercased_like_data(reverse):
    data = assemble(lowercase=True, reverse_source=reverse)
    (new, _), (same, _) = (encode_sources(data, [text]) for text in ("A B", "a b"))
    assert (new == same).all() and data.source_vocabulary.unk_id not in new


def test_min_frequency():
    assert set(assemble(min_frequency=3).source_vocabulary.tokens[4:]) == {"b"}


@pytest.mark.parametrize("joint", [False, True])
def test_sentencepiece_makes_the_vocabulary(joint):
    rng = np.random.default_rng(0)
    train = Texts(
        *(
            [" ".join("".join(rng.choice(syllables, 2)) for _ in range(5)) for _ in range(60)]
            for syllables in (["ba", "ke", "ti", "mo", "lu"], ["sche", "ra", "zu", "gno", "fi"])
        )
    )
    example = Texts(train.source[:1], train.target[:1])
    data = assemble(
        {"train": train, "test": example},
        tokenizer="sentencepiece",
        vocabulary_size=30,
        joint_vocabulary=joint,
        bleu_tokenize="13a",
    )
    # 30 with sentencepiece's own unknown piece, which ours replaces; and pad, bos, eos
    assert len(data.source_vocabulary) == len(data.target_vocabulary) == 33
    assert (data.source_vocabulary is data.target_vocabulary) == joint
    assert decode_targets(data, data.held_out["test"].target[:, 1:]) == references(data, "test") == example.target


def test_batches_by_tokens():
    assert assemble(max_buckets=1, batch_tokens=70).batch_sizes == (8,)  # the widest row has 7 tokens with its end mark


def test_bpe_needs_merges():
    with pytest.raises(InputError, match="--data.merges"):
        assemble(tokenizer="bpe")


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.sampled_from("xyz")), min_size=8, max_size=40), st.integers(0, 3)
)
def test_splits_share_no_source(pairs, seed):
    sources, targets = zip(*pairs)
    splits = split_by_source(sources, targets, {"valid": 2, "test": 1}, seed)
    where = {name: [sources[row] for row in rows] for name, rows in splits.items()}
    for first, second in combinations(where.values(), 2):
        assert not set(first) & set(second)
    assert len(set(where["valid"])) == len(where["valid"]) <= 2
    train = [pairs[row] for row in splits["train"]]
    held_out = set(where["valid"]) | set(where["test"])
    assert len(set(train)) == len(train) and set(train) == {pair for pair in pairs if pair[0] not in held_out}


@settings(deadline=None)
@given(st.integers(0, 30), st.integers(2, 5), st.integers(0, 3))
def test_concatenation_uses_every_pair_once(count, most, seed):
    texts = Texts([f"s{i}" for i in range(count)], [f"t{i}" for i in range(count)])
    both = concatenate_pairs(texts, most, seed)
    assert both.source[:count] == texts.source and both.target[:count] == texts.target
    assert [source.replace("s", "t") for source in both.source] == both.target
    rows = [source.split() for source in both.source[count:]]
    assert sorted(word for row in rows for word in row) == sorted(texts.source)
    assert all(2 <= len(row) <= most for row in rows[:-1]) and all(len(row) <= most for row in rows)


SOURCES = {"train": Texts(["a b c", "c"], ["x", "y y"]), "test": Texts(["b a"], ["y"])}


@pytest.mark.parametrize("reverse", [False, True])
def test_source_bos_changes_nothing_else(reverse):
    plain, with_bos = (
        assemble(SOURCES, source_bos=bos, reverse_source=reverse, max_buckets=1) for bos in (False, True)
    )
    bos = with_bos.source_vocabulary.bos_id
    for a, b in ((plain.train[0], with_bos.train[0]), (plain.held_out["test"], with_bos.held_out["test"])):
        assert (b.source[:, 0] == bos).all()
        np.testing.assert_array_equal(b.source[:, 1:], a.source)
        np.testing.assert_array_equal(b.source_length, a.source_length + 1)
        np.testing.assert_array_equal(b.target, a.target)
    assert plain.source_vocabulary.tokens == with_bos.source_vocabulary.tokens


def test_new_text_is_encoded_like_the_dataset():
    data, arrays = assemble(SOURCES, source_bos=True), {}
    reloaded = stored.decode(stored.encode(data, arrays), arrays)
    for dataset in (data, reloaded):
        source, length = encode_sources(dataset, ["b a"])
        np.testing.assert_array_equal(source, data.held_out["test"].source)
        assert length.tolist() == [4]
    assert encode_sources(data, ["b a"], width=6)[0].shape == (1, 6)


def test_bos_counts_towards_the_longest_source():
    assert assemble(SOURCES, source_bos=True, max_length=4).facts["overlong_train"] == 1
    assert assemble(SOURCES, max_length=4).facts["overlong_train"] == 0
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
        assemble(SOURCES, keep_whitespace=True)


FAST_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def arrange(packing: int = 0, count: int = 12) -> PairData:
    """Pairs of 0 to 13 words, cut to 10 tokens, in one bucket or packed."""
    rng = np.random.default_rng(0)
    side = lambda: [" ".join(f"w{n}" for n in rng.integers(0, 20, size)) for size in rng.integers(0, 14, count)]
    train, options = Texts(side(), side()), Corpus(max_length=10, max_buckets=1, overlong="truncate")
    write = lambda _, file: pairs.write_tokens({"train": train}, options, file, bleu_tokenize="none")
    return pairs.arrange_pairs(load_tokens("never", (), (), write), options, 16, packing)


def pairs_of(rows: pairs.PackedPairs) -> list:
    """The pairs of packed rows, with their end marks."""
    pairs_in_rows = []
    for row in range(len(rows.source)):
        sides = [
            (rows.source_segment[row], rows.source[row], rows.source_length[row]),
            (rows.target_segment[row], rows.target[row, 1:], rows.target_length[row]),
        ]
        for pair in np.unique(sides[0][0][: sides[0][2]]):
            pairs_in_rows.append(tuple(tuple(x[:size][segment[:size] == pair].tolist()) for segment, x, size in sides))
    return pairs_in_rows


def test_no_pair_is_split_or_lost():
    [alone], [packed] = arrange(0, 60).train, arrange(24, 60).train
    cut = lambda tokens, length: tuple(tokens[:length].tolist())
    rows = zip(alone.source, alone.source_length, alone.target[:, 1:], alone.target_length)
    assert Counter(pairs_of(packed)) == Counter((cut(*row[:2]), cut(*row[2:])) for row in rows)
    assert packed.target.shape[1] == 25 and len(packed.source) < 30 and max(packed.source_length) <= 24
    assert arrange(24, 60).facts["packed_padding_share"] < arrange(0, 60).facts["padding_share"] - 0.1


POSITIONS = ["sinusoidal", *(pytest.param(p, marks=pytest.mark.slow) for p in ("learned", "rotary"))]


@pytest.mark.parametrize("positions", POSITIONS)
def test_packing_keeps_loss_and_gradient(positions):
    model = configs.TransformerConfig(
        1, 1, hidden_size=8, num_heads=2, mlp_dim=8, dropout=0.0, position_embedding=positions, max_length=14
    )
    config = configs.Config("packed", Corpus(), model, train=configs.Train(label_smoothing=0.1))
    data = arrange()
    task = Seq2seqTask(config, None, build_model(config, len(data.source_vocabulary), len(data.target_vocabulary)))
    batches = [
        split._asdict() | {"weight": np.ones(len(split.source), np.float32)}
        for split in (*data.train, *arrange(24).train)
    ]
    first = batches[0]
    start = lambda rng: task.model.init(rng, first["source"], first["source_length"], first["target"][:, :-1])["params"]
    params = jax.jit(start, compiler_options=FAST_TO_COMPILE)(jax.random.PRNGKey(0))

    @partial(jax.jit, compiler_options=FAST_TO_COMPILE)
    def sums(params, batch):
        return jax.value_and_grad(lambda p: task.loss(p, batch, jax.random.PRNGKey(1))[:2], has_aux=True)(params)

    (expected_loss, tokens), expected = sums(params, batches[0])
    (loss, count), gradient = sums(params, batches[1])
    assert float(count) == float(tokens) == data.train[0].target_length.sum()
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-6)
    largest = max(float(abs(leaf).max()) for leaf in jax.tree.leaves(expected))
    for actual_leaf, expected_leaf in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(actual_leaf, expected_leaf, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize(
    "model, changes, message",
    [
        (configs.LuongConfig(), {}, "supports packed sequences, which Luong does not"),
        (configs.TransformerConfig(), {"packing": 11}, "--data.max-length 12; got 11"),
    ],
)
def test_unpackable_options_are_one_line(model, changes, message):
    options = dataclasses.replace(Corpus(examples=60, packing=32, max_length=12), **changes)
    with pytest.raises(InputError) as error:
        build(configs.Config("x", options, model))
    assert message in str(error.value) and "\n" not in str(error.value)


def test_own_corpus_from_two_files_and_from_one(tmp_path):
    rows = [(f"source {i}", f"target {i}") for i in range(40)] + [("source 0", "target 0")]
    for name, line in (("s", "{0}"), ("t", "{1}"), ("both.tsv", "{0}\t{1}")):
        (tmp_path / name).write_text("".join(line.format(*row) + "\n" for row in rows))
    double = load_pairs(Corpus(source_file=str(tmp_path / "s"), target_file=str(tmp_path / "t"), held_out_fraction=0.1))
    single = load_pairs(Corpus(tsv_file=str(tmp_path / "both.tsv"), held_out_fraction=0.1))
    assert double.texts == single.texts and double.facts == single.facts
    facts = [double.facts[f"{name}_pairs"] for name in ("train", "valid", "test")]
    assert facts == [32, 4, 4] and double.facts["pairs_left_out"] == 1


def test_bleu_counts_characters_where_words_have_no_spaces(tmp_path):
    (tmp_path / "pairs.tsv").write_text("".join(f"{n} dogs\t{n}只狗\n" for n in range(40)), encoding="utf-8")
    tokens = lambda **options: load_pairs(Corpus(tsv_file=str(tmp_path / "pairs.tsv"), **options)).bleu_tokenize
    plain = {"tokenizer": "character", "languages": ("en", "zh")}
    assert (tokens(**plain), tokens(tokenizer="character"), tokens(languages=("en", "zh"))) == ("zh", "13a", "none")


def test_own_corpus_bad_input(tmp_path):
    path, options = tmp_path / "a.tsv", Corpus(tsv_file=str(tmp_path / "a.tsv"), max_length=20)
    lines = [f"source {i}\ttarget {i}" for i in range(20)]
    lines[12] = "a long " + "very " * 30 + "source\ttarget"
    path.write_text("\n".join(lines))
    files = "--data.source-file FILE and --data.target-file FILE, or --data.tsv-file FILE"
    cases = {
        "line 13: the source has 34 tokens with its end mark, the limit is 20": options,
        files: Corpus(source_file="x"),
        "as many of both sides": Corpus(source_file="a", target_file="a,b"),
        "--data.vocabulary-file is one file or source,target": dataclasses.replace(options, vocabulary_file="a,b,c"),
        "no vocabulary at nowhere": dataclasses.replace(options, vocabulary_file="nowhere"),
        "nowhere is not the file of a sentencepiece": dataclasses.replace(
            options, vocabulary_file="nowhere", tokenizer="sentencepiece"
        ),
    }
    for message, data in cases.items():
        with pytest.raises(InputError, match=message) as error:
            load_pairs(data)
        assert "\n" not in str(error.value)
    assert load_pairs(dataclasses.replace(options, overlong="drop")).facts["train_pairs"] in (17, 18)
